package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/statuspage"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// newDirectoryStarter makes a replica whose policy is the directory policy.
func newDirectoryStarter(t *testing.T, files map[string]string) *starter {
	t.Helper()
	s := newStarter(t, policyOf("not used", ""), cloudsOf("hunter2"))
	s.replica.options.PolicyFile = filepath.Join(s.dir, "policy")
	if err := os.Mkdir(s.replica.options.PolicyFile, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		s.write(t, "policy/"+name, text)
	}
	return s
}

// tenantOf returns a file with one tenant.
func tenantOf(name string) string {
	return "apiVersion: " + policy.APIVersion + "\nkind: Policy\ntenants:\n  - {name: " + name + ", namespaces: [" + name + "], classes: [{storageClasses: [c], backends: [gold]}]}\n"
}

// TestEveryChangeOfADirectoryIsNoticed: of a file, of their number, and of their names.
func TestEveryChangeOfADirectoryIsNoticed(t *testing.T) {
	s := newDirectoryStarter(t, map[string]string{"a.yaml": policyOf("x", "")})
	r, err := s.start(t)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.policy.Load().Revision(); got != policy.RevisionOf([]byte(policyOf("x", ""))) {
		t.Errorf("a directory of one file has the revision %s, not that of the file", got)
	}
	for _, step := range []struct {
		what, name, text string
		tenants          int
		refused          string
	}{
		{"a file is added", "b.yaml", tenantOf("b"), 2, ""},
		{"a file is changed", "b.yaml", tenantOf("bb"), 2, ""},
		{"a file is bad", "b.yaml", tenantOf("a"), 2, "/policy/b.yaml:4:12: tenants[1].name: tenants[0] ("},
		{"it is good again", "b.yaml", tenantOf("bb"), 2, ""},
		{"a file is not part of it", "c.yaml.bak", tenantOf("c"), 2, "/policy/c.yaml.bak: is not read"},
		{"and has gone", "c.yaml.bak", "", 2, ""},
		{"another file is added", "c.yaml", tenantOf("c"), 3, ""},
		{"a file is removed", "b.yaml", "", 2, ""},
		{"the backends are removed", "a.yaml", "", 2, "/policy: backends: is missing"},
	} {
		before := s.policy.Load().Revision()
		s.write(t, "policy/"+step.name, step.text)
		r.checkPolicyFile()
		now := s.policy.Load()
		_, refused := s.status.troubles()
		if len(now.Tenants) != step.tenants || (refused != nil) != (step.refused != "") || refused != nil && !strings.Contains(refused.Error(), step.refused) {
			t.Errorf("%s: %d tenants, refused %v", step.what, len(now.Tenants), refused)
		}
		if changed := now.Revision() != before; changed != (refused == nil && !strings.Contains(step.what, "again") && !strings.Contains(step.what, "gone")) {
			t.Errorf("%s: the revision was %s and is %s", step.what, before, now.Revision())
		}
	}
}

// TestSeveralFilesAreKept: a replica that starts while one is bad has what was in force, also
// if --policy has become a file or a directory since.
func TestSeveralFilesAreKept(t *testing.T) {
	files := map[string]string{"a.yaml": strings.Replace(policyOf("x", ""), "auth: {cloud: gold}", "auth: {cloudConfig: gold.conf}", 1), "b.yaml": tenantOf("b")}
	first := newDirectoryStarter(t, files)
	if _, err := first.start(t); err != nil {
		t.Fatal(err)
	}
	if err := first.keepNow(t); err != nil {
		t.Fatal(err)
	}
	inForce := first.policy.Load().Revision()
	alone := policyOf("alone", "")
	for name, c := range map[string]struct {
		path, bad     string
		earlier, want string
		from          string // where relative file names start from
	}{
		"a directory":                 {path: "policy", bad: "policy/b.yaml", want: inForce, from: "policy"},
		"a directory that is gone":    {path: "gone", bad: "policy/b.yaml", want: inForce, from: "gone"},
		"a file since":                {path: "policy.yaml", bad: "policy.yaml", want: inForce, from: "."},
		"a directory since":           {path: "policy/", bad: "policy/b.yaml", earlier: alone, want: policy.RevisionOf([]byte(alone)), from: "policy"},
		"what an older version wrote": {path: "policy.yaml", bad: "policy.yaml", earlier: alone, want: policy.RevisionOf([]byte(alone)), from: "."},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDirectoryStarter(t, files)
			s.use(first.client)
			if c.earlier != "" {
				s.save(t, c.earlier)
			}
			s.replica.options.PolicyFile = s.dir + "/" + c.path
			s.write(t, c.bad, "tenants: [")
			if _, err := s.start(t); err != nil {
				t.Fatal(err)
			}
			if got := s.policy.Load(); got.Revision() != c.want || got.ResolveFile("gold.conf") != filepath.Join(s.dir, c.from, "gold.conf") {
				t.Errorf("revision %s is in force, want %s; gold.conf means %s", got.Revision(), c.want, got.ResolveFile("gold.conf"))
			}
			if report := s.server.report(statuspage.Request{}); report.Policy.Source != statusreport.FromLastGood {
				t.Errorf("the report says %+v", report.Policy)
			}
			if err := s.keepNow(t); err != nil {
				t.Fatal(err)
			}
			if got := policy.DecodeFiles([]byte(s.kept(t))).Revision(); got != c.want {
				t.Errorf("revision %s is kept", got)
			}
			if err := first.keepNow(t); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestMistakesInWhatIsKeptNameTheFile: the files themselves are elsewhere.
func TestMistakesInWhatIsKeptNameTheFile(t *testing.T) {
	s := newDirectoryStarter(t, map[string]string{"a.yaml": "tenants: ["})
	s.save(t, string(policy.Files{{Name: "a.yaml", Text: []byte(policyOf("x", ""))}, {Name: "b.yaml", Text: []byte("kind: Plicy\n")}}.Encode()))
	_, err := s.start(t)
	if want := "Secret storage/openstack.org-standalone-cinder-last-good/b.yaml:1:7: kind: must be Policy"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
