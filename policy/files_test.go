package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// header begins every file of a policy.
const header = "apiVersion: " + APIVersion + "\nkind: Policy\n"

// Parts of one policy.
const (
	backendsPart = header + "backends:\n  - {name: gold, auth: {cloud: gold}}\n  - {name: old, auth: {cloudConfig: old.conf}}\n"
	teamAPart    = header + "tenants:\n  - name: team-a\n    namespaces: [team-a]\n    classes: [{storageClasses: [c], backends: [gold, old]}]\n"
	teamBPart    = header + "# Team B.\ntenants:\n  - name: team-b\n    namespaces: [team-b]\n    classes: [{storageClasses: [c], backends: [gold]}]\n"
)

// directory makes files; a name that ends in / is a directory, and a text after -> a link.
func directory(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path, text := filepath.Join(dir, name), files[name]
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		switch target, link := strings.CutPrefix(text, "->"); {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o700)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestADirectoryIsOnePolicy(t *testing.T) {
	dir := directory(t, map[string]string{"0-backends.yaml": backendsPart, "team-a.yaml": teamAPart, "team-b.yml": teamBPart, ".team-c.yaml.swp": "not read"})
	p, err := Load(dir, protocols())
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Backends) != 2 || len(p.Tenants) != 2 || p.Source != dir {
		t.Errorf("%d backends, %d tenants of %s", len(p.Backends), len(p.Tenants), p.Source)
	}
	if path := "tenants[1].classes[0]"; p.FileOf(path) != filepath.Join(dir, "team-b.yml") || p.Line(path) != 7 {
		t.Errorf("%s stands in %s:%d", path, p.FileOf(path), p.Line(path))
	}
	if got, want := p.ResolveFile(p.Backends[1].Auth.CloudConfig), filepath.Join(dir, "old.conf"); got != want {
		t.Errorf("a relative name means %s, want %s", got, want)
	}
	if d := p.Decide(Request{Namespace: "team-b", StorageClass: "c", Bytes: 1}); d.Tenant != "team-b" || d.Rule != "tenants[1].classes[0]" || d.Denial != nil {
		t.Errorf("%+v", d)
	}
}

// TestWhatADirectoryMayNotHave: each mistake names its file, line and column, and both places
// where there are two.
func TestWhatADirectoryMayNotHave(t *testing.T) {
	many, others := map[string]string{}, map[string]string{}
	for i := range MaxFiles + 1 {
		many[fmt.Sprintf("%03d.yaml", i)], others[fmt.Sprintf("%03d.txt", i)] = header, ""
	}
	large := map[string]string{}
	for i := range 5 {
		large[fmt.Sprintf("%d.yaml", i)] = header + "#" + strings.Repeat("x", MaxFileSize-len(header)-1)
	}
	aliases := header + "defaults: {metadata: &m {a: b}}\ntenants: [" + strings.Repeat("*m,", 10) + "]\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  []string // without the directory
	}{
		"nothing":                          {map[string]string{".hidden.yaml": backendsPart}, []string{": the directory has no policy; put files into it whose names end in .yaml or .yml"}},
		"another ending":                   {map[string]string{"b.yaml": backendsPart + teamAPart[len(header):], "team-b.yaml.bak": teamBPart, "team-c.json": "{}"}, []string{"/team-b.yaml.bak: is not read as a part of the policy: the directory may have only files whose names end in .yaml or .yml", "/team-c.json: is not read"}},
		"a directory":                      {map[string]string{"b.yaml": backendsPart + teamAPart[len(header):], "team-b.yaml/": ""}, []string{"/team-b.yaml: is not read"}},
		"too many others":                  {others, []string{": the directory has more than 256 files; join some of them"}},
		"too many files":                   {many, []string{": the directory has more than 256 files; join some of them"}},
		"too large":                        {large, []string{": the files are larger than 4 MiB together; make the policy smaller"}},
		"a large file":                     {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "b.yaml": strings.Repeat("#", MaxFileSize+1)}, []string{"/b.yaml: the file is larger than 1 MiB"}},
		"no header":                        {map[string]string{"a.yaml": backendsPart, "b.yaml": teamAPart[len(header):]}, []string{"/b.yaml:1:1: apiVersion: is missing", "/b.yaml:1:1: kind: is missing"}},
		"another kind":                     {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "a.test.yaml": "apiVersion: " + APIVersion + "\nkind: PolicyTest\ntests: []\n"}, []string{`/a.test.yaml:2:7: kind: must be Policy, not "PolicyTest"`, `/a.test.yaml:3:1: tests: unknown key`}},
		"an empty file":                    {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "b.yaml": "# later\n"}, []string{"/b.yaml:1:1: the file is empty"}},
		"a list, and none in another file": {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "b.yaml": header + "tenants: none\n"}, []string{"/b.yaml:3:10: tenants: must be a list"}},
		"nowhere a list":                   {map[string]string{"a.yaml": teamAPart, "b.yaml": teamBPart}, []string{": backends: is missing; list the Cinder endpoints"}},
		"a key twice":                      {map[string]string{"a.yaml": backendsPart + "clusterID: x\n", "b.yaml": teamAPart + "\nclusterID: x\n"}, []string{"/b.yaml:8:1: clusterID: the key is given twice, first in DIR/a.yaml:6, and only lists may stand in several files; remove one"}},
		"a mapping in parts":               {map[string]string{"a.yaml": backendsPart + "defaults: {region: a}\n", "b.yaml": teamAPart + "defaults: {interface: public}\n"}, []string{"/b.yaml:7:1: defaults: the key is given twice, first in DIR/a.yaml:6"}},
		"a tenant twice":                   {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "b.yaml": strings.Replace(teamBPart, "name: team-b", "name: team-a", 1)}, []string{`/b.yaml:5:11: tenants[1].name: tenants[0] (DIR/a.yaml:7) is already called "team-a"`}},
		"a backend twice":                  {map[string]string{"a.yaml": backendsPart, "b.yaml": teamAPart + "backends: [{name: gold, auth: {cloud: other}}]\n"}, []string{`/b.yaml:7:19: backends[2].name: backends[0] (DIR/a.yaml:4) is already called "gold"`}},
		"a namespace twice":                {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "b.yaml": strings.Replace(teamBPart, "[team-b]", "[team-a]", 1)}, []string{`/b.yaml:6:18: tenants[1].namespaces[0]: "team-a" is`, "(DIR/a.yaml:8"}},
		"an unknown backend":               {map[string]string{"a.yaml": backendsPart + teamAPart[len(header):], "b.yaml": strings.Replace(teamBPart, "[gold]", "[golt]", 1)}, []string{`/b.yaml:7:48: tenants[1].classes[0].backends[0]: unknown backend "golt"; did you mean "gold"?`}},
		"one of bad syntax":                {map[string]string{"a.yaml": header + "backends: [\n", "b.yaml": teamAPart + "  what: x\n"}, []string{"/a.yaml:3: from this line on", "/b.yaml:7: from this line on"}},
		"mistakes in all":                  {map[string]string{"a.yaml": backendsPart + "x: y\n", "b.yaml": teamAPart + "z: y\n"}, []string{`/a.yaml:6:1: x: unknown key "x"`, `/b.yaml:7:1: z: unknown key "z"`}},
		"an alias of another file":         {map[string]string{"a.yaml": aliases, "b.yaml": header + "backends: *m\n"}, []string{"/b.yaml:3: *m is read as a reference"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := directory(t, c.files)
			p, err := Load(dir, protocols())
			var mistakes ErrorList
			if p != nil || !errors.As(err, &mistakes) {
				t.Fatalf("%v, %v", p, err)
			}
			for _, want := range c.want {
				if want = strings.ReplaceAll(want, "DIR", dir); strings.HasPrefix(want, "/") || strings.HasPrefix(want, ":") {
					want = dir + want
				}
				if !strings.Contains("\n"+err.Error(), "\n"+want) && !(strings.HasPrefix(want, "(") && strings.Contains(err.Error(), want)) {
					t.Errorf("no %q in\n%v", want, err)
				}
			}
		})
	}
}

// TestWarningsNameTheirFiles: also the other place that one speaks of.
func TestWarningsNameTheirFiles(t *testing.T) {
	dir := directory(t, map[string]string{"a.yaml": backendsPart, "b.yaml": teamAPart, "c.yaml": header + "backends: [{name: spare, auth: {cloud: spare}}]\n",
		"d.yaml": strings.Replace(teamBPart, "{storageClasses: [c],", "{storageClasses: [c, c],", 1)})
	p, err := Load(dir, protocols())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{dir + `/c.yaml:3:12: backends[2]: no rule uses backend "spare"`, dir + "/d.yaml:7:36: ", "(" + dir + "/d.yaml:7) takes it first"} {
		if !strings.Contains(p.Warnings.Error(), want) {
			t.Errorf("no %q in\n%v", want, p.Warnings)
		}
	}
}

// TestAliasesAreBoundedTogether: many short files do not add up.
func TestAliasesAreBoundedTogether(t *testing.T) {
	bomb := header + "tenants: [{classes: &c [&k {storageClasses: [" + strings.Repeat("x,", 100) + "]}, " + strings.Repeat("*k,", 50) + "]}, " + strings.Repeat("{classes: *c},", 10) + "]\n"
	var files Files
	for i := range 10 {
		files = append(files, File{Name: fmt.Sprintf("%02d.yaml", i), Text: []byte(bomb)})
	}
	if _, err := Parse([]byte(bomb), "alone.yaml", protocols()); err == nil || strings.Contains(err.Error(), "expands") {
		t.Errorf("alone: %.300v", err)
	}
	if _, err := ParseFiles(files, "policies", protocols()); err == nil || !strings.Contains(err.Error(), "the file expands to more than 400000 values") {
		t.Errorf("%.300v", err)
	}
}

func TestRevisionOfFiles(t *testing.T) {
	one := Files{{Name: "a.yaml", Text: []byte("1")}, {Name: "b.yaml", Text: []byte("2")}}
	for name, other := range map[string]Files{
		"another text":   {{Name: "a.yaml", Text: []byte("1")}, {Name: "b.yaml", Text: []byte("3")}},
		"another name":   {{Name: "a.yaml", Text: []byte("1")}, {Name: "c.yaml", Text: []byte("2")}},
		"joined":         {{Name: "a.yaml", Text: []byte("12")}, {Name: "b.yaml", Text: nil}},
		"one more":       {{Name: "a.yaml", Text: []byte("1")}, {Name: "b.yaml", Text: []byte("2")}, {Name: "c.yaml", Text: nil}},
		"one less":       {{Name: "a.yaml", Text: []byte("1")}},
		"the whole text": {{Name: "", Text: []byte("12")}},
	} {
		if one.Revision() == other.Revision() {
			t.Errorf("%s: the same revision", name)
		}
	}
	if alone := (Files{{Name: "a.yaml", Text: []byte("1")}}); alone.Revision() != RevisionOf([]byte("1")) {
		t.Error("the name of a single file counts")
	}
}

// TestFilesAreEncodedAsOneText: what any policy may have comes back, in the promised size.
func TestFilesAreEncodedAsOneText(t *testing.T) {
	odd := []byte("\ufeffa: \"<&>\\\t\u2028\"\r\n")
	for name, files := range map[string]Files{
		"one":     {{Name: "", Text: odd}},
		"several": {{Name: "a.yaml", Text: odd}, {Name: "b.yaml", Text: nil}},
		"largest": {{Name: "a.yaml", Text: bytes.Repeat([]byte("\n"), MaxSize/2)}, {Name: "b.yaml", Text: bytes.Repeat([]byte{'"'}, MaxSize/2)}},
	} {
		encoded := files.Encode()
		if len(encoded) > MaxEncodedSize {
			t.Errorf("%s: %d bytes", name, len(encoded))
		}
		if got := DecodeFiles(encoded); got.Revision() != files.Revision() {
			t.Errorf("%s: decoded as something else", name)
		}
	}
	for _, text := range []string{"", "[", "[]", "[1]", `[{"name":"a.yaml","text":"x"}]`, `[{"name":"a.yaml"},{"name":""}]`, `[{"name":"b.yaml"},{"name":"a.yaml"}]`, `[{"name":"a.yaml"},{"name":"a.yaml"}]`, "kind: Policy"} {
		if got := DecodeFiles([]byte(text)); len(got) != 1 || got[0].Name != "" || string(got[0].Text) != text {
			t.Errorf("%s is read as %v", text, got)
		}
	}
}

// TestAVolumeIsReadAsItIsAtOneTime: the kubelet has the files of a volume in a directory that
// it replaces. Links that it has not made or removed yet do not count.
func TestAVolumeIsReadAsItIsAtOneTime(t *testing.T) {
	dir := directory(t, map[string]string{
		"..2026_1/b.yaml": backendsPart, "..2026_1/a.yaml": teamAPart, "..2026_2/b.yaml": backendsPart, "..2026_2/c.yaml": teamBPart, "..data": "->..2026_1",
		"a.yaml": "->..data/a.yaml", "b.yaml": "->..data/b.yaml",
	})
	p, err := Load(dir, protocols())
	if err != nil || p.Tenants[0].Name != "team-a" || p.FileOf("tenants[0]") != filepath.Join(dir, "a.yaml") {
		t.Fatalf("%v, %v", p, err)
	}
	if err := os.Symlink("..2026_2", filepath.Join(dir, "..data_tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	next, err := Load(dir, protocols())
	if err != nil || len(next.Tenants) != 1 || next.Tenants[0].Name != "team-b" || next.Revision() == p.Revision() {
		t.Fatalf("after the update: %v, %v", next, err)
	}
}

// TestNoReaderSeesAHalfUpdatedVolume: two contents take turns while they are read.
func TestNoReaderSeesAHalfUpdatedVolume(t *testing.T) {
	dir := directory(t, nil)
	contents := [2]Files{{{Name: "a.yaml", Text: []byte("1")}, {Name: "b.yaml", Text: []byte("1")}}, {{Name: "a.yaml", Text: []byte("2")}, {Name: "c.yaml", Text: []byte("2")}}}
	swap := func(n int) error {
		now := fmt.Sprintf("..%d", n)
		err := os.Mkdir(filepath.Join(dir, now), 0o700)
		for _, file := range contents[n%2] {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, now, file.Name), file.Text, 0o600))
		}
		return errors.Join(err, os.Symlink(now, filepath.Join(dir, "..tmp")), os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")),
			os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", n-1))))
	}
	if err := swap(0); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for n := 1; n < 300; n++ {
			if err := swap(n); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for reads := 0; ; reads++ {
		files, err := ReadFiles(dir)
		switch {
		case err != nil && strings.Contains(err.Error(), "changed each of the 5 times"):
		case err != nil:
			t.Fatal(err)
		case files.Revision() != contents[0].Revision() && files.Revision() != contents[1].Revision():
			t.Fatalf("half of each: %q", files)
		}
		select {
		case err := <-done:
			if err != nil || reads == 0 {
				t.Fatalf("%d reads, %v", reads, err)
			}
			return
		default:
		}
	}
}

// TestSplitPoliciesDecideAlike: however the lists of a policy are split into files, it is the
// same policy, and decides the same.
func TestSplitPoliciesDecideAlike(t *testing.T) {
	for _, file := range testdata(t, "good") {
		whole, err := Load(file, protocols())
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(10) {
			files := split(t, whole.Files()[0].Text, rand.New(rand.NewPCG(seed, 0)))
			parts, err := ParseFiles(files, filepath.Dir(file), protocols())
			if err != nil {
				t.Fatalf("%s, split with seed %d: %v", file, seed, err)
			}
			sameDecisions(t, fmt.Sprintf("%s, split with seed %d", file, seed), whole, parts)
		}
	}
}

// sameDecisions compares two policies, and what they decide about everything they name.
func sameDecisions(t *testing.T, what string, whole, parts *Policy) {
	t.Helper()
	want, err := json.Marshal(whole)
	got, failed := json.Marshal(parts)
	if err != nil || failed != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: is\n%s\nwant\n%s (%v, %v)", what, got, want, err, failed)
	}
	if len(whole.Warnings) != len(parts.Warnings) {
		t.Errorf("%s: warns\n%v\nwant\n%v", what, parts.Warnings, whole.Warnings)
	}
	for _, tenant := range whole.Tenants {
		for _, namespace := range append([]string{"stranger"}, tenant.Namespaces...) {
			for _, class := range tenant.Classes {
				for _, storageClass := range class.StorageClasses {
					request := Request{Namespace: namespace, NamespaceLabels: map[string]string{"team": "a"}, Claim: "data", StorageClass: storageClass, Bytes: 5 << 30}
					if got, want := parts.Decide(request), whole.Decide(request); !reflect.DeepEqual(got, want) {
						t.Errorf("%s: %s/%s: decides\n%+v\nwant\n%+v", what, namespace, storageClass, got, want)
					}
				}
			}
		}
	}
}

// split splits the lists of a policy at random, and gives each other key to one of the files.
func split(t *testing.T, text []byte, random *rand.Rand) Files {
	t.Helper()
	var whole yaml.Node
	if err := yaml.Unmarshal(text, &whole); err != nil {
		t.Fatal(err)
	}
	unalias(&whole)
	parts := make([][]*yaml.Node, 1+random.IntN(5))
	root := whole.Content[0].Content
	for i := 0; i < len(root); i += 2 {
		key, value := root[i], root[i+1]
		switch {
		case key.Value == "apiVersion" || key.Value == "kind":
			for n := range parts {
				parts[n] = append(parts[n], key, value)
			}
		case value.Kind != yaml.SequenceNode || len(value.Content) == 0:
			n := random.IntN(len(parts))
			parts[n] = append(parts[n], key, value)
		default:
			for n, rest := 0, value.Content; len(rest) > 0; n++ {
				most := len(rest)
				if n < len(parts)-1 {
					most = random.IntN(most + 1)
				}
				if most > 0 {
					parts[n] = append(parts[n], key, &yaml.Node{Kind: yaml.SequenceNode, Content: rest[:most]})
				}
				rest = rest[most:]
			}
		}
	}
	files := make(Files, len(parts))
	for n, content := range parts {
		part, err := yaml.Marshal(&yaml.Node{Kind: yaml.MappingNode, Content: content})
		if err != nil {
			t.Fatal(err)
		}
		files[n] = File{Name: fmt.Sprintf("%d.yaml", n), Text: part}
	}
	return files
}

// unalias replaces aliases by what they stand for, which may be in another file after a split.
func unalias(n *yaml.Node) {
	n.Anchor = ""
	for i, inner := range n.Content {
		if inner.Kind == yaml.AliasNode {
			n.Content[i] = inner.Alias
		}
		unalias(n.Content[i])
	}
}

// TestRelativeNamesInOneFileWithSeveral start from the directory of that file.
func TestRelativeNamesInOneFileWithSeveral(t *testing.T) {
	files := Files{{Name: "a.yaml", Text: []byte(backendsPart)}, {Name: "b.yaml", Text: []byte(teamAPart)}}
	for name, text := range map[string]string{
		"as it is kept": string(files.Encode()),
		"a manifest":    fmt.Sprintf("kind: ConfigMap\ndata: {a.yaml: %q, b.yaml: %q}\n", backendsPart, teamAPart),
	} {
		p, err := ReadManifest(strings.NewReader(text), "/tmp/last-good.yaml", protocols())
		if err != nil || p.ResolveFile("old.conf") != "/tmp/old.conf" || p.Revision() != files.Revision() {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}
