// Command tier prints a pattern for go test -run and -skip that matches the tests of
// some tiers. A test belongs to a tier by a line in its comment: //tier:outage.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// tiers says when tests that make test leaves out run.
var tiers = map[string]string{
	"outage": "make faults: outages, lost leaders, changes under way and long waits; half a minute or more each",
	"matrix": "make faults: every kind of fault at every step, hostile answers, thousands of objects; minutes each",
	"oldest": "make test-oldest, too: what an API server of another minor might treat differently",
	"apart":  "make faults, alone: tests only what other tests use anyway",
}

func main() {
	tests, err := find(".", os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tier:", err)
		os.Exit(1)
	}
	fmt.Printf("^(%s)$\n", strings.Join(tests, "|"))
}

// find returns the tests below a folder that belong to one of the wanted tiers. At
// least one must belong to each.
func find(root string, wanted []string) ([]string, error) {
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			test, ok := declaration.(*ast.FuncDecl)
			if !ok || test.Doc == nil {
				continue
			}
			for _, comment := range test.Doc.List {
				tier, marked := strings.CutPrefix(comment.Text, "//tier:")
				if _, known := tiers[tier]; marked && !known {
					return fmt.Errorf("%s: %s has the unknown tier %q", path, test.Name.Name, tier)
				}
				if marked {
					found[tier] = append(found[tier], test.Name.Name)
				}
			}
		}
		return nil
	})
	var tests []string
	for _, tier := range wanted {
		if err == nil && len(found[tier]) == 0 {
			err = fmt.Errorf("no test has the tier %q", tier)
		}
		tests = append(tests, found[tier]...)
	}
	slices.Sort(tests)
	return slices.Compact(tests), err
}
