package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with a file beside the test data; an absent file means that
// nothing is expected.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		var err error
		if got == "" {
			if err = os.Remove(file); errors.Is(err, os.ErrNotExist) {
				err = nil
			}
		} else {
			err = os.WriteFile(file, []byte(got), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update rewrites it)\n got:\n%s\nwant:\n%s", file, got, want)
	}
}

// testdata returns the policies in a directory, by name.
func testdata(t testing.TB, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no policies in testdata/%s: %v", dir, err)
	}
	named := map[string]string{}
	for _, file := range files {
		named[strings.TrimSuffix(filepath.Base(file), ".yaml")] = file
	}
	return named
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestGoodPolicies compares each good policy with the values in force, every
// default filled in, and with the warnings about it.
func TestGoodPolicies(t *testing.T) {
	for name, file := range testdata(t, "good") {
		t.Run(name, func(t *testing.T) {
			p, err := Parse(read(t, file), name+".yaml", protocols())
			if err != nil {
				t.Fatal(err)
			}
			effective, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			base := strings.TrimSuffix(file, ".yaml")
			golden(t, base+".effective.json", string(effective)+"\n")
			warnings := p.Warnings.Error()
			if warnings != "" {
				warnings += "\n"
			}
			golden(t, base+".warnings.txt", warnings)
		})
	}
}

// TestBadPolicies compares what is said about each bad policy, word for word.
func TestBadPolicies(t *testing.T) {
	for name, file := range testdata(t, "bad") {
		t.Run(name, func(t *testing.T) {
			p, err := Parse(read(t, file), name+".yaml", protocols())
			var mistakes ErrorList
			if p != nil || !errors.As(err, &mistakes) || len(mistakes) == 0 {
				t.Fatalf("Parse = %v, %v; want no policy and an ErrorList", p, err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n")
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the errors show a password:\n%v", err)
			}
			line := 0
			for _, e := range mistakes {
				if e.Line < line {
					t.Errorf("the errors are not sorted by line:\n%v", err)
				}
				line = e.Line
			}
		})
	}
}

// TestExampleIsGood keeps the example that operators copy free of mistakes and
// warnings.
func TestExampleIsGood(t *testing.T) {
	p, err := Load("../config.example.yaml", protocols())
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Warnings) > 0 {
		t.Errorf("warnings about the example:\n%v", p.Warnings)
	}
	var backends, tenants []string
	for _, b := range p.Backends {
		backends = append(backends, b.Name)
	}
	for _, t := range p.Tenants {
		tenants = append(tenants, t.Name)
	}
	if want := []string{"gold", "ceph", "lab"}; !reflect.DeepEqual(backends, want) {
		t.Errorf("backends = %v, want %v", backends, want)
	}
	if want := []string{"team-a", "developers"}; !reflect.DeepEqual(tenants, want) {
		t.Errorf("tenants = %v, want %v", tenants, want)
	}
}

// TestEveryKeyIsRead makes sure that each field of the types is a key that
// testdata/good/everything.yaml uses, so that no kind of field is without a
// reader and no key without a test.
func TestEveryKeyIsRead(t *testing.T) {
	d := newDocument("everything.yaml")
	p := &Policy{}
	d.Read(read(t, "testdata/good/everything.yaml"), p)
	if len(d.Errors()) > 0 {
		t.Fatal(d.Errors())
	}
	used := map[string]bool{}
	for path := range d.Positions() {
		used[path[strings.LastIndex(path, ".")+1:]] = true
	}
	seen := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			walk(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[typ] || typ == reflect.TypeFor[Size]() {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			if !used[name] {
				t.Errorf("no test uses the key %s of %v", name, typ)
			}
			walk(typ.Field(i).Type)
		}
	}
	walk(reflect.TypeFor[Policy]())
}

// TestEncodingsOfTheSameFile: editors on other systems add byte order marks and
// carriage returns; neither changes what the file says.
func TestEncodingsOfTheSameFile(t *testing.T) {
	data := read(t, "testdata/good/everything.yaml")
	plain, err := Parse(data, "p.yaml", protocols())
	if err != nil {
		t.Fatal(err)
	}
	for name, encoded := range map[string][]byte{
		"byte order mark": append([]byte("\xef\xbb\xbf"), data...),
		"CRLF":            bytes.ReplaceAll(data, []byte("\n"), []byte("\r\n")),
		"no last newline": bytes.TrimRight(data, "\n"),
		"document marker": append([]byte("%YAML 1.1\n---\n"), data...),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Parse(encoded, "p.yaml", protocols())
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(p.Backends, plain.Backends) || !reflect.DeepEqual(p.Tenants, plain.Tenants) {
				t.Error("the file reads differently")
			}
			if p.Revision() == plain.Revision() {
				t.Error("a file with other bytes has the same revision")
			}
		})
	}
}

func TestSyntaxErrorsNameTheLine(t *testing.T) {
	const (
		place    = "p.yaml:"
		sentence = ": from this line on the file is not valid YAML: "
	)
	example := string(read(t, "testdata/good/sketch.yaml"))
	tests := map[string]struct{ old, new, line, message string }{
		"a key out of line in a list entry": {"  - name: lab\n", "  - name: lab\n   bad: x\n", "19",
			"the line is indented wrongly, or a hyphen is missing (did not find expected '-' indicator)"},
		"a missing comma": {"quota: {volumes: 20, ", "quota: {volumes: 20 ", "28",
			"a brace is not closed, or a comma is missing (did not find expected ',' or '}')"},
		"an open bracket": {`["*"]`, `["*"`, "38",
			"a bracket is not closed, or a comma is missing (did not find expected ',' or ']')"},
		"an open quote": {`"4711"`, `"4711`, "30",
			`a value that begins with * or & must be put in quotes, such as "*", or a quote before it is not closed (did not find expected alphabetic or numeric character)`},
		"a lone star": {`["*"]`, `[*]`, "38",
			`a value that begins with * or & must be put in quotes, such as "*", or a quote before it is not closed (did not find expected alphabetic or numeric character)`},
		"two colons": {"clusterID: prod", "clusterID: prod: x", "3",
			"the line has one ': ' too many, or is indented wrongly (mapping values are not allowed in this context)"},
		"no colon": {"clusterID: prod", "clusterID prod", "3",
			"a key without a colon, or something before it is not closed (could not find expected ':')"},
		"a reserved character": {"prod-eu-1", "@prod", "3",
			"a value that begins with this character must be put in quotes (found character that cannot start any token)"},
		"a directive of another YAML": {"apiVersion: ", "%YAML 1.2\n---\napiVersion: ", "1",
			"only the directive %YAML 1.1 is understood; remove the line (found incompatible YAML document)"},
		"in the first line": {"apiVersion: ", "apiVersion: [", "1",
			"a bracket is not closed, or a comma is missing (did not find expected ',' or ']')"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			broken := strings.Replace(example, test.old, test.new, 1)
			if broken == example {
				t.Fatal("the example does not have what the test replaces")
			}
			_, err := Parse([]byte(broken), "p.yaml", protocols())
			want := place + test.line + sentence + test.message
			if err == nil || err.Error() != want {
				t.Errorf("\n got %v\nwant %v", err, want)
			}
		})
	}
}

func TestLargeFilesAreRefused(t *testing.T) {
	data := append(read(t, "testdata/good/minimal.yaml"), bytes.Repeat([]byte("#"), MaxFileSize)...)
	const want = "p.yaml: the file is larger than 1 MiB, which is more than a ConfigMap can hold"
	if _, err := Parse(data, "p.yaml", protocols()); err == nil || err.Error() != want {
		t.Errorf("Parse: %v, want %s", err, want)
	}
	if _, err := Read(bytes.NewReader(data), "p.yaml", protocols()); err == nil || err.Error() != want {
		t.Errorf("Read: %v, want %s", err, want)
	}
}

// TestNumbersAreBounded: what takes time that grows with the square of a number
// is refused or left out before it takes long.
func TestNumbersAreBounded(t *testing.T) {
	const (
		head    = "apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\nbackends: [{name: b, auth: {cloud: c}}]\ntenants:\n"
		classes = "    classes: [{storageClasses: [\"*\"], backends: [b]}]\n"
	)
	last := func(text string) string {
		t.Helper()
		_, err := Parse([]byte(text), "p.yaml", protocols())
		var mistakes ErrorList
		if !errors.As(err, &mistakes) {
			t.Fatalf("Parse: %v", err)
		}
		return mistakes[len(mistakes)-1].Path + ": " + mistakes[len(mistakes)-1].Message
	}

	var patterns, selectors, entries strings.Builder
	patterns.WriteString(head + "  - name: a\n" + classes + "    namespaces:\n")
	for i := range maxPatterns + 1 {
		fmt.Fprintf(&patterns, "      - \"*-%d\"\n", i)
	}
	if got, want := last(patterns.String()), "tenants[0].namespaces[10000]: there are more than 10000 patterns; select namespaces by their labels instead"; got != want {
		t.Errorf("patterns: %s, want %s", got, want)
	}

	selectors.WriteString(head)
	for i := range maxSelectors + 1 {
		fmt.Fprintf(&selectors, "  - name: t%d\n    namespaceSelector: {}\n%s", i, classes)
	}
	if got, want := last(selectors.String()), "tenants[5000].namespaceSelector: there are more than 5000 selectors; list namespaces by name instead"; got != want {
		t.Errorf("selectors: %s, want %s", got, want)
	}

	entries.WriteString(head + "  - name: a\n    namespaces: [a]\n    classes:\n      - backends: [b]\n        storageClasses:\n")
	for range maxShadows + 1 {
		entries.WriteString("          - same\n")
	}
	if p := mustParse(t, entries.String()); len(p.Warnings) > 0 {
		t.Errorf("%d warnings, want none for so many entries", len(p.Warnings))
	}
}

func TestLoadOfUnreadableFiles(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "absent.yaml"), protocols())
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "read policy: open ") {
		t.Errorf("absent file: %v", err)
	}
	_, err = Load("https://example.com/policy.yaml", protocols())
	if want := "read policy: open https://example.com/policy.yaml: no such file or directory; download the policy, and give the file"; err == nil || err.Error() != want {
		t.Errorf("an address: %v", err)
	}
}

func TestRevisionIsThatOfTheContent(t *testing.T) {
	data := read(t, "testdata/good/minimal.yaml")
	one, err := Parse(data, "one.yaml", protocols())
	if err != nil {
		t.Fatal(err)
	}
	two, err := Parse(data, "two.yaml", protocols())
	if err != nil {
		t.Fatal(err)
	}
	if one.Revision() != two.Revision() || len(one.Revision()) != 12 {
		t.Errorf("revisions %q and %q, want the same 12 digits", one.Revision(), two.Revision())
	}
}

func TestResolveFile(t *testing.T) {
	p := &Policy{Source: "/etc/standalone-cinder/policy.yaml"}
	for name, want := range map[string]string{
		"old.conf":           "/etc/standalone-cinder/old.conf",
		"../secret/old.conf": "/etc/secret/old.conf",
		"/run/old.conf":      "/run/old.conf",
	} {
		if got := p.ResolveFile(name); got != want {
			t.Errorf("ResolveFile(%q) = %q, want %q", name, got, want)
		}
	}
}
