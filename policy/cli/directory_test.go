package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// teamOf is a file with one tenant.
func teamOf(name, volumes string) string {
	return good[:strings.Index(good, "backends:")] + "tenants:\n  - name: " + name + "\n    namespaces: [" + name + "]\n    quota: {volumes: " + volumes +
		"}\n    classes: [{storageClasses: [fast], backends: [gold]}]\n"
}

// directoryOf writes files, given by name and text.
func directoryOf(t *testing.T, files ...string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := 0; i < len(files); i += 2 {
		writeTo(t, dir, files[i], files[i+1])
	}
	return dir
}

// TestEveryCommandTakesADirectory: and names the files in it.
func TestEveryCommandTakesADirectory(t *testing.T) {
	was := directoryOf(t, "a.yaml", good, "b.yaml", teamOf("b", "10"))
	dir := directoryOf(t, "a.yaml", good, "b.yaml", teamOf("b", "20"))
	tests := write(t, "apiVersion: "+policy.APIVersion+"\nkind: PolicyTest\npolicy: "+dir+"\ntests:\n  - name: b\n    claim: {namespace: b, storageClass: fast, size: 1Gi}\n    expect: {tenant: b}\n")
	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"check":        {[]string{"check", dir}, ExitOK, dir + ": good: 1 backend, 2 tenants, revision "},
		"diff":         {[]string{"diff", was, dir}, ExitFailed, "~ tenants[b].quota.volumes: 10 -> 20\n"},
		"explain":      {[]string{"explain", "--policy", dir, "--namespace", "b", "--storage-class", "fast", "--size", "1Gi"}, ExitOK, "granted: tenant b, rule tenants[1].classes[0] (" + dir + "/b.yaml:7), backend gold"},
		"a denial":     {[]string{"explain", "--policy", dir, "--namespace", "b", "--storage-class", "fast", "--size", "1Gi", "--used", "tenant=b,volumes=20"}, ExitOK, "decided by tenants[1].quota.volumes (" + dir + "/b.yaml:6)"},
		"test":         {[]string{"test", tests}, ExitOK, "1 test of " + dir},
		"no such file": {[]string{"check", dir + "/absent"}, ExitUsage, ""},
		"empty":        {[]string{"check", t.TempDir()}, ExitFailed, ": the directory has no policy; put files into it whose names end in .yaml or .yml\n"},
		"another file": {[]string{"check", directoryOf(t, "a.yaml", good, "b.yaml.bak", "")}, ExitFailed, "/b.yaml.bak: is not read as a part of the policy"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := run("", c.args...); ExitCode(got.err) != c.code || !strings.Contains(got.stdout, c.want) {
				t.Errorf("exit code %d: %v\n%s", ExitCode(got.err), got.err, got.stdout)
			}
		})
	}
	got := run("", "explain", "--policy", dir, "--namespace", "b", "--storage-class", "fast", "--size", "1Gi", "-o", "json")
	if want := fmt.Sprintf("%q: %q", "file", filepath.Join(dir, "b.yaml")); got.err != nil || !strings.Contains(got.stdout, want) {
		t.Errorf("no %s in\n%s", want, got.stdout)
	}
}

// TestAManifestWithSeveralFiles: it has the revision of the directory, and positions in the
// manifest.
func TestAManifestWithSeveralFiles(t *testing.T) {
	block := func(key, text string) string {
		return "  " + key + ": |\n    " + strings.TrimSuffix(strings.ReplaceAll(text, "\n", "\n    "), "    ")
	}
	const head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: standalone-cinder-policy}\ndata:\n"
	p, err := policy.Load(directoryOf(t, "a.yaml", good, "b.yaml", teamOf("b", "10")), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		manifest, want string
	}{
		"in order":           {head + block("a.yaml", good) + block("b.yaml", teamOf("b", "10")), "revision " + p.Revision()},
		"in another order":   {head + block("b.yaml", teamOf("b", "10")) + block("a.yaml", good), "revision " + p.Revision()},
		"a mistake":          {head + block("b.yaml", teamOf("b", "-1")) + block("a.yaml", good), "<stdin>:11:26: tenants[1].quota.volumes: must not be negative"},
		"twice the same":     {head + block("a.yaml", good) + block("b.yaml", teamOf("a", "1")), "tenants[0] (<stdin>:11) is already called"},
		"quoted":             {head + block("a.yaml", good) + fmt.Sprintf("  b.yaml: %q\n", teamOf("b", "-1")), `<stdin> (data["b.yaml"]):6:22: tenants[1].quota.volumes`},
		"a key of no policy": {head + block("a.yaml", good) + block("b.yaml", teamOf("b", "10")) + "  notes.txt: x\n", "the key notes.txt is none"},
		"a file of no kind":  {head + block("a.yaml", good) + block("b.yaml", teamOf("b", "10")) + "  c.yaml: 'tenants: []'\n", `<stdin> (data["c.yaml"]):1:1: kind: is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := run(c.manifest, "check", "-"); !strings.Contains(got.stdout, c.want) {
				t.Errorf("no %s in\n%s%v", c.want, got.stdout, got.err)
			}
		})
	}
}

// sites are installations by the names of their ConfigMaps.
type sites map[string]*site

func (s sites) apply(args ...string) result {
	options := testOptions
	options.Pause = time.Millisecond
	options.Connect = func(to Place) (Installation, error) {
		if found := s[to.ConfigMap]; found != nil {
			return found, nil
		}
		return nil, errors.New("there is no " + to.String())
	}
	return runWith(options, "", append([]string{"apply"}, args...)...)
}

func TestApplyOfADirectory(t *testing.T) {
	dir := directoryOf(t, "a.yaml", good, "b.yaml", teamOf("b", "20"))
	large := directoryOf(t, "a.yaml", good, "b.yaml", teamOf("b", "20")+"#"+strings.Repeat("x", 1<<20-400), "c.yaml", teamOf("c", "20")+"#"+strings.Repeat("x", 1<<10))
	files := func(namesAndTexts ...string) (all policy.Files) {
		for i := 0; i < len(namesAndTexts); i += 2 {
			all = append(all, policy.File{Name: namesAndTexts[i], Text: []byte(namesAndTexts[i+1])})
		}
		return all
	}
	will := files("a.yaml", good, "b.yaml", teamOf("b", "20"))
	runs := func(file string) [][]Replica {
		return [][]Replica{{{Pod: "r", File: file, Revision: will.Revision()}}}
	}
	const mounted = "/etc/standalone-cinder/policy"
	for name, c := range map[string]struct {
		held, want policy.Files
		file       string
		looks      [][]Replica
		args       []string
		code       int
		out        string
	}{
		"the first time":   {held: files(), want: will, looks: runs(mounted), out: "holds no policy\n"},
		"a file changes":   {held: files("a.yaml", good, "b.yaml", teamOf("b", "10")), want: will, looks: runs(mounted), out: "~ tenants[b].quota.volumes: 10 -> 20\n"},
		"nothing changes":  {held: will, want: will, looks: runs(mounted), out: "holds revision " + will.Revision() + " already\n"},
		"a file goes":      {held: files("a.yaml", good, "b.yaml", teamOf("b", "20"), "c.yaml", teamOf("c", "1")), want: will, looks: runs(mounted), out: "the key c.yaml goes, because " + dir + " has no such file\n"},
		"a key of no file": {held: files("a.yaml", good, "policy.txt", "x"), want: will, looks: runs(mounted), out: "the key policy.txt goes"},
		"a dry run":        {held: files("a.yaml", good), want: files("a.yaml", good), looks: runs(mounted), args: []string{"--dry-run"}, out: "Gained:\n  tenant b is new"},
		"replicas that read one file": {held: files("policy.yaml", good), want: files("policy.yaml", good), looks: runs(mounted + "/policy.yaml"), code: ExitFailed,
			out: "replica r reads only the file /etc/standalone-cinder/policy/policy.yaml; first run"},
		"one file for replicas that read another": {file: filepath.Join(dir, "a.yaml"), held: files("a.yaml", good), want: files("a.yaml", good), looks: runs(mounted), code: ExitFailed,
			out: "replica r reads all keys of ConfigMap standalone-cinder/standalone-cinder-policy, not only policy.yaml; give a directory"},
		"one file for replicas that read it alone": {file: filepath.Join(dir, "a.yaml"), held: files("policy.yaml", "x"), want: files("policy.yaml", good), looks: runs(mounted),
			args: []string{"--timeout", "0"}, out: "holds revision " + policy.RevisionOf([]byte(good)) + " now"},
		"one file for replicas that read several": {file: filepath.Join(dir, "a.yaml"), held: will, want: will, looks: runs(mounted), code: ExitFailed,
			out: "replica r reads all keys of ConfigMap standalone-cinder/standalone-cinder-policy, not only policy.yaml; give a directory"},
		"one file beside keys of others": {file: filepath.Join(dir, "a.yaml"), held: files("policy.yaml", "x", "README", "x"), want: files("README", "x", "policy.yaml", good), looks: runs(mounted + "/policy.yaml"),
			args: []string{"--timeout", "0"}, out: "holds revision " + policy.RevisionOf([]byte(good)) + " now"},
		"more than a ConfigMap holds": {file: large, held: will, want: will, code: ExitFailed, out: "bytes, but a ConfigMap holds at most 1048576; put some into another ConfigMap"},
		"a key":                       {held: will, want: will, args: []string{"--key", "x.yaml"}, code: ExitUsage, out: "--key is for one file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &site{held: Held{Version: "1", Files: c.held}, looks: c.looks}
			if c.file == "" {
				c.file = dir
			}
			got := sites{"standalone-cinder-policy": s}.apply(append([]string{c.file}, c.args...)...)
			if ExitCode(got.err) != c.code || !strings.Contains(got.stdout+message(got.err), c.out) {
				t.Errorf("exit code %d, no %q in\n%s%v", ExitCode(got.err), c.out, got.stdout, got.err)
			}
			if len(s.held.Files) != len(c.want) || len(c.want) > 0 && s.held.Files.Revision() != c.want.Revision() {
				t.Errorf("the ConfigMap holds %s", s.held.Files)
			}
		})
	}
}

// TestApplyBesideOthers: each team may write its own ConfigMap, but what replicas read must be
// good as a whole.
func TestApplyBesideOthers(t *testing.T) {
	held := func(name, text string) *site {
		return &site{held: Held{Version: "1", Files: policy.Files{{Name: name, Text: []byte(text)}}}}
	}
	whole := policy.Files{{Name: "base.yaml", Text: []byte(good)}, {Name: "team-b.yaml", Text: []byte(teamOf("b", "20"))}}
	for name, c := range map[string]struct {
		name, text string
		args       []string
		code       int
		written    bool
		out        string
	}{
		"good":             {name: "team-b.yaml", text: teamOf("b", "20"), written: true, out: "~ tenants[b].quota.volumes: 10 -> 20\n"},
		"a mistake":        {name: "team-b.yaml", text: teamOf("a", "20"), code: ExitFailed, out: "tenants[0] (ConfigMap standalone-cinder/base/base.yaml:6) is already called \"a\""},
		"the same name":    {name: "base.yaml", text: teamOf("b", "20"), code: ExitFailed, out: "two ConfigMaps would have the key base.yaml, of which replicas see only one; rename the file"},
		"no such place":    {name: "team-b.yaml", text: teamOf("b", "20"), args: []string{"--beside", "absent"}, code: ExitUsage, out: "there is no ConfigMap standalone-cinder/absent"},
		"beside itself":    {name: "team-b.yaml", text: teamOf("b", "20"), args: []string{"--beside", "team-b"}, code: ExitUsage, out: "--beside names the ConfigMap to write, team-b; name only others"},
		"no directory yet": {name: "team-b.txt", text: teamOf("b", "20"), code: ExitFailed, out: "is not read as a part of the policy"},
	} {
		t.Run(name, func(t *testing.T) {
			all := sites{"base": held("base.yaml", good), "team-b": held("team-b.yaml", teamOf("b", "10"))}
			all["team-b"].looks = [][]Replica{{{Pod: "r", File: "/etc/policy", Revision: whole.Revision()}}}
			got := all.apply(append([]string{directoryOf(t, c.name, c.text), "--configmap", "team-b", "--beside", "base"}, c.args...)...)
			if ExitCode(got.err) != c.code || !strings.Contains(got.stdout+message(got.err), c.out) {
				t.Errorf("exit code %d, no %q in\n%s%v", ExitCode(got.err), c.out, got.stdout, got.err)
			}
			if written := all["team-b"].writes == 1; written != c.written || all["base"].writes > 0 {
				t.Errorf("%d and %d writes", all["team-b"].writes, all["base"].writes)
			}
		})
	}

	all := sites{"base": held("base.yaml", good), "team-b": held("team-b.yaml", teamOf("b", "10"))}
	all["team-b"].looks = [][]Replica{{{Pod: "r", File: "/etc/policy", Revision: whole.Revision()}}}
	got := all.apply(writeTo(t, t.TempDir(), "team-b.yaml", teamOf("b", "20")), "--configmap", "team-b", "--beside", "base", "-o", "json")
	var answer applied
	if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.err != nil || !answer.Written || answer.Check.Revision != whole.Revision() {
		t.Errorf("a file of its own: %v, %v\n%s", err, got.err, got.stdout)
	}
	if got := all.apply(writeTo(t, t.TempDir(), "team-b.txt", teamOf("b", "20")), "--configmap", "team-b", "--beside", "base"); ExitCode(got.err) != ExitFailed || !strings.Contains(got.stdout, "/team-b.txt: replicas refuse a directory with a file") {
		t.Errorf("another name: %v\n%s", got.err, got.stdout)
	}
	t.Chdir(directoryOf(t, "team-b.yaml", teamOf("b", "-1")))
	if got := all.apply("team-b.yaml", "--configmap", "team-b", "--beside", "base"); ExitCode(got.err) != ExitFailed || !strings.HasPrefix(got.stdout, "team-b.yaml:6:22: ") {
		t.Errorf("a mistake of its own: %v\n%s", got.err, got.stdout)
	}
	if got := all.apply("-", "--configmap", "team-b", "--beside", "base"); ExitCode(got.err) != ExitUsage || !strings.Contains(message(got.err), "not standard input") {
		t.Errorf("standard input: %v", got.err)
	}
}

// TestAFindingNamesItsFile: what a cluster's volumes reveal has a place in the files, too.
func TestAFindingNamesItsFile(t *testing.T) {
	options := testOptions
	options.ReadCluster = func(context.Context, string, string) (review.Existing, error) {
		return review.Existing{Claims: []review.Claim{{Name: "data", ClassExists: true, Request: policy.Request{Namespace: "b", StorageClass: "slow", Bytes: 1}}}}, nil
	}
	dir := directoryOf(t, "a.yaml", good, "b.yaml", teamOf("b", "1"))
	got := runWith(options, "", "check", dir, "--kubeconfig", "x", "-o", "json")
	if want := filepath.Join(dir, "b.yaml"); !strings.Contains(got.stdout, want) {
		t.Errorf("no %s in %v\n%s", want, got.err, got.stdout)
	}
}
