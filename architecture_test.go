package main

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/standalone-cinder/standalone-cinder"

// rooms lists, from the entrance down, what each room may import of this module besides
// itself. A trailing slash includes all packages below. docs/architecture.md draws the same.
// An import through another package is an import of that package, which has its own row.
var rooms = []struct {
	room string
	may  []string
	why  string
}{
	{"./", []string{"mappers", "policy/cli", "provisioner/app", "provisioner/commands/client", "provisioner/csi/nodecheck", "provisioner/csi/nodecopy", "provisioner/csi/nodegrow", "provisioner/csi/plugin", "provisioner/wiring/", "provisioner/worker/tracing"},
		"main picks a command, and passes it the protocols"},
	{"cmd/", []string{"mappers", "provisioner/commands/client", "provisioner/wiring"},
		"the plugin alone has neither the process nor the node plugin"},
	{"provisioner/app/", []string{"provisioner", "provisioner/features/", "provisioner/term/", "provisioner/objects/", "provisioner/worker/", "provisioner/csi/", "provisioner/statusreport", "provisioner/webserver/", "provisioner/wiring", "policy", "backends/", "mappers/"},
		"the process wires everything, except the commands"},
	{"provisioner/commands/", []string{"provisioner/csi/wire", "provisioner/features/", "provisioner/objects/", "provisioner/statusreport", "provisioner/wiring", "policy/", "backends/", "mappers/"},
		"commands run beside the leader, without the hub and what a term knows"},
	{"provisioner", []string{"provisioner/features/copies", "provisioner/term/", "provisioner/objects/", "provisioner/worker/", "provisioner/statusreport", "policy/", "backends/", "mappers/"},
		"the hub takes claims to volumes and back; other features work beside it"},
	{"provisioner/features/", []string{"provisioner/csi/controller", "provisioner/csi/frozen", "provisioner/csi/staged", "provisioner/csi/wire", "provisioner/term/", "provisioner/objects/", "provisioner/worker/", "policy/", "backends/", "mappers"},
		"a feature knows neither the hub nor another feature, so one can be added or removed alone"},
	{"provisioner/term/", []string{"provisioner/objects/", "provisioner/worker/", "policy", "backends/", "mappers"},
		"what a term knows does not depend on who acts on it"},
	{"provisioner/objects/", []string{"provisioner/csi/staged", "provisioner/csi/wire", "provisioner/worker/bound", "policy/", "backends/", "mappers"},
		"objects are read, written and proven without the memory of a term, so that commands can do it, too"},
	{"provisioner/worker/", nil,
		"how work waits its turn does not depend on what it is"},
	{"provisioner/csi/", []string{"provisioner/webserver"},
		"the CSI driver asks the rest of the program through interfaces of its own, and its node plugin uses nothing of the provisioner"},
	{"provisioner/wiring/", []string{"policy", "backends/"},
		"translation does not depend on its users"},
	{"provisioner/statusreport", nil, "what a report says is shared by replicas and commands"},
	{"provisioner/webserver/", nil, "what bounds HTTP clients does not know what is served"},
	{"policy/", []string{"mappers/mapping", "mappers/template"},
		"policy is pure and decides the same way offline"},
	{"backends/", nil, "backends knows OpenStack, and nothing else"},
	{"mappers/", nil, "mappers is pure"},
}

// featuresTogether lists which feature may import another.
var featuresTogether = map[string]string{
	// A content's import is planned by the checks that the command uses.
	"provisioner/features/snapshot": "provisioner/features/imports",
}

// foreign lists which rooms alone may import some packages of others.
var foreign = []struct {
	imported []string
	only     []string
	why      string
}{
	{[]string{"github.com/gophercloud/"}, []string{"backends/auth", "backends/cinder", "backends/cinder/catalog"},
		"one package speaks OpenStack, with the credentials that another reads"},
	{[]string{"github.com/gophercloud/utils/"}, nil,
		"module registries do not always serve it; the tests use it as an oracle (test/cloudsoracle)"},
	{[]string{"github.com/prometheus/exporter-toolkit/"}, nil,
		"it links html/template, for which the linker keeps every exported method; the tests use it as an oracle"},
	{[]string{"github.com/container-storage-interface/", "google.golang.org/grpc/"}, []string{"provisioner/csi/"},
		"the CSI driver's rooms alone know the specification"},
	{[]string{"k8s.io/client-go/"}, []string{"provisioner/"},
		"policy, backends and mappers need no cluster"},
	{[]string{"k8s.io/"}, []string{"provisioner/", "policy/", "mappers/"},
		"backends does not know Kubernetes"},
	{[]string{"github.com/prometheus/"}, []string{"./", "backends/", "provisioner", "provisioner/app/", "provisioner/commands/", "provisioner/csi/plugin", "provisioner/features/", "provisioner/webserver", "provisioner/wiring", "provisioner/worker/"},
		"who decides, maps, remembers or proves is not measured by itself"},
	{[]string{"go.opentelemetry.io/otel/sdk/", "go.opentelemetry.io/otel/exporters/"}, []string{"provisioner/wiring/traces"},
		"one package knows where spans go"},
	{[]string{module + "/test/"}, nil, "nothing outside test/ uses the fixtures"},
}

func TestImportDirections(t *testing.T) {
	imports := moduleImports(t)
	for pkg, direct := range imports {
		room := 0
		for room < len(rooms) && !covers(rooms[room].room, pkg) {
			room++
		}
		if room == len(rooms) {
			t.Errorf("%s is in no room of the table", pkg)
			continue
		}
		for _, imported := range direct {
			if own, ok := strings.CutPrefix(imported, module+"/"); ok && !isSameRoom(rooms[room].room, pkg, own) && !slices.ContainsFunc(rooms[room].may, func(may string) bool { return covers(may, own) }) {
				t.Errorf("%s imports %s: %s", pkg, own, rooms[room].why)
			}
			for _, rule := range foreign {
				if slices.ContainsFunc(rule.imported, func(prefix string) bool { return strings.HasPrefix(imported+"/", prefix) }) &&
					!slices.ContainsFunc(rule.only, func(only string) bool { return covers(only, pkg) }) {
					t.Errorf("%s imports %s: %s", pkg, imported, rule.why)
				}
			}
		}
	}
	for _, r := range rooms {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(imports)), func(pkg string) bool { return covers(r.room, pkg) }) {
			t.Errorf("no package is in room %q; is its name still right?", r.room)
		}
	}
}

// isSameRoom reports whether a package imports one of its own room. Features are rooms
// of their own.
func isSameRoom(room, pkg, imported string) bool {
	if room != "provisioner/features/" {
		return strings.HasSuffix(room, "/") && covers(room, imported)
	}
	feature := func(pkg string) string { return strings.Split(strings.TrimPrefix(pkg, room)+"/", "/")[0] }
	return covers(room, imported) && (feature(pkg) == feature(imported) || featuresTogether[pkg] == imported)
}

// moduleImports lists the direct imports of every package of the program in
// this module, without test files. A forbidden import through another package
// of the module is a direct import of that package, which has its own rule.
func moduleImports(t *testing.T) map[string][]string {
	t.Helper()
	output, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, output)
	}
	imports := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
		words := strings.Fields(line)
		pkg := strings.TrimPrefix(strings.TrimPrefix(words[0], module), "/")
		if pkg == "test" || strings.HasPrefix(pkg, "test/") {
			continue
		}
		imports[pkg] = words[1:]
	}
	return imports
}

// covers reports whether a pattern covers a package: "a/" covers a and everything
// below it, "a" only a, "./" the module's root.
func covers(pattern, pkg string) bool {
	below, ok := strings.CutSuffix(pattern, "/")
	return pkg == strings.TrimPrefix(below, ".") || ok && below != "." && strings.HasPrefix(pkg, pattern)
}

func TestPatternsCoverWhatTheySay(t *testing.T) {
	for _, c := range []struct {
		pattern, pkg string
		want         bool
	}{
		{"./", "", true},
		{"./", "policy", false},
		{"policy/", "policy", true},
		{"policy/", "policy/cli", true},
		{"policy/", "policyother", false},
		{"provisioner", "provisioner", true},
		{"provisioner", "provisioner/app", false},
	} {
		if got := covers(c.pattern, c.pkg); got != c.want {
			t.Errorf("covers(%q, %q) = %t", c.pattern, c.pkg, got)
		}
	}
}

// mentioned matches the name of a file that docs mention.
var mentioned = regexp.MustCompile("`([a-z0-9_/]+\\.go|testdata/[a-z_]+\\.txt)`")

// TestDocumentedFilesExist keeps docs/ from naming files that were moved. A
// name without a folder may be anywhere.
func TestDocumentedFilesExist(t *testing.T) {
	names := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			names[filepath.Base(path)], names[path] = true, true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	below, err := filepath.Glob("docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, document := range append(append(documents, below...), "README.md", "mappers/README.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range mentioned.FindAllStringSubmatch(string(text), -1) {
			if name := found[1]; !names[name] && !names[filepath.Join("provisioner", name)] && !names[filepath.Join(filepath.Dir(document), name)] {
				t.Errorf("%s mentions %s, which does not exist", document, name)
			}
		}
	}
}

// TestFaultsNameTestsThatExist keeps docs/faults.md from naming tests that no
// longer exist.
func TestFaultsNameTestsThatExist(t *testing.T) { namesExistingTests(t, "docs/faults.md", 20) }

// namesExistingTests checks that a page names at least that many tests, and
// that all of them, and the scenarios after a slash, exist.
func namesExistingTests(t *testing.T, page string, least int) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	err = filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if scenario, ok := strings.CutSuffix(filepath.Base(path), ".txt"); ok && filepath.Base(filepath.Dir(path)) == "testdata" {
			declared[scenario] = true
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for line := range strings.Lines(string(source)) {
			if name, ok := strings.CutPrefix(line, "func Test"); ok {
				name, _, _ = strings.Cut(name, "(")
				declared["Test"+name] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(Test\\w+)(?:/(\\w+))?`").FindAllStringSubmatch(string(text), -1)
	if len(named) < least {
		t.Errorf("%s names only %d tests", page, len(named))
	}
	for _, found := range named {
		if !declared[found[1]] || found[2] != "" && !declared[found[2]] {
			t.Errorf("%s names %s, which does not exist", page, found[0])
		}
	}
}

// The bounds of docs/decisions.md. Whoever changes the architecture reads all of it.
const (
	mostDecisions          = 40
	mostLinesOfOneDecision = 15
)

// TestDecisionsAreFewAndShort: every decision has a number and a day, and the page stays
// short enough to be read.
func TestDecisionsAreFewAndShort(t *testing.T) {
	titles, text := decisions(t)
	if all := strings.Count(text, "\n## "); len(titles) != all || all > mostDecisions {
		t.Errorf("%d of %d decisions are numbered in order and have a day; there may be %d", len(titles), all, mostDecisions)
	}
	for _, record := range strings.Split(text, "\n## ")[1:] {
		lines := slices.DeleteFunc(strings.Split(record, "\n"), func(line string) bool { return line == "" })
		if len(lines) > mostLinesOfOneDecision {
			t.Errorf("decision %q has %d lines, more than %d: what it does belongs into the package, what it costs and what was rejected stays", lines[0], len(lines), mostLinesOfOneDecision)
		}
	}
}

// decisions returns the titles of the records of docs/decisions.md, as long as they
// are numbered in order and have a day, and the text of the page.
func decisions(t *testing.T) (titles []string, text string) {
	t.Helper()
	content, err := os.ReadFile("docs/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, heading := range regexp.MustCompile(`(?m)^## (\d+)\. (.+)\n\n\*\d{4}-\d\d-\d\d\*$`).FindAllStringSubmatch(string(content), -1) {
		if heading[1] == strconv.Itoa(len(titles)+1) {
			titles = append(titles, heading[2])
		}
	}
	return titles, string(content)
}

// TestCommentsCiteDecisionsThatExist: comments cite a decision by its title, since
// numbers change.
func TestCommentsCiteDecisionsThatExist(t *testing.T) {
	titles, _ := decisions(t)
	cited := 0
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		content, err := os.ReadFile(path)
		for _, found := range regexp.MustCompile(`(?m)^\s*// .*See docs/decisions\.md, "([^"]*)`).FindAllStringSubmatch(string(content), -1) {
			cited++
			if !slices.Contains(titles, found[1]) {
				t.Errorf("%s cites decision %q, which does not exist", path, found[1])
			}
		}
		return err
	})
	if err != nil || cited < 5 {
		t.Errorf("%d citations of decisions, %v", cited, err)
	}
}
