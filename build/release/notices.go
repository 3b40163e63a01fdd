package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// noticesName is the file with the licenses of what is linked into the
// binaries. Most of them demand that copies come with their text.
const noticesName = "THIRD_PARTY_LICENSES"

var isNotice = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)`)

// readNotices collects the licenses and notices of every module that some
// platform's binary contains, and of Go itself.
func readNotices(ctx context.Context, s source) ([]byte, error) {
	directories := map[string]string{}
	var names []string
	for _, t := range s.targets() {
		listed, err := run(ctx, s.directory, t.environment(),
			"go", "list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{"\t"}}{{.Dir}}{{end}}{{end}}`, t.pkg)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(listed)) {
			name, directory, found := strings.Cut(strings.TrimSpace(line), "\t")
			if found && directories[name] == "" {
				directories[name], names = directory, append(names, name)
			}
		}
	}
	goroot, err := run(ctx, s.directory, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	const standardLibrary = "The Go standard library"
	directories[standardLibrary] = strings.TrimSpace(string(goroot))
	names = append(names, standardLibrary)

	var b bytes.Buffer
	for _, name := range names {
		found := false
		entries, err := os.ReadDir(directories[name])
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if entry.IsDir() || !isNotice.MatchString(entry.Name()) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(directories[name], entry.Name()))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "==== %s: %s\n\n%s\n\n", name, entry.Name(), bytes.TrimSpace(content))
			found = true
		}
		if !found {
			return nil, fmt.Errorf("%s has no license in %s, so it cannot be redistributed", name, directories[name])
		}
	}
	return b.Bytes(), nil
}
