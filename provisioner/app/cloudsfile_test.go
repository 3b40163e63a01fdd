package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/fingerprint"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/lastgood"
)

// TestMissingCloudsFileEndsTheStart: a replica without any credentials would be ready
// but could do nothing. It starts only if credentials are kept.
func TestMissingCloudsFileEndsTheStart(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "clouds.yaml")
	present := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(present, []byte("clouds: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const needed = "; these backends log in with its entries: gold (p.yaml:4); nothing is in force, because no usable credentials for them are kept in Secret ns/last"
	const remedy = ": mount the file, or correct the flag"
	config := auth.Config{Source: auth.Source{Cloud: "gold"}}
	usable := `{"for": "` + fingerprint.Of(config) + `", "cloud": {"auth": {"auth_url": "http://k/v3", "user_id": "u", "password": "p"}}}`
	for name, c := range map[string]struct{ file, auth, kept, want string }{
		"no flag":             {"", "{cloud: gold}", "", ""},
		"a file":              {present, "{cloud: gold}", "", ""},
		"no file":             {absent, "{cloud: gold}", "", "--clouds-file " + absent + " cannot be read: no such file or directory" + needed + remedy},
		"a directory":         {filepath.Dir(present), "{cloud: gold}", "", "--clouds-file " + filepath.Dir(present) + " cannot be read: is a directory" + needed + remedy},
		"no file, and no use": {absent, "{noauth: {endpoint: http://cinder:8776/v3}}", "", ""},
		"kept":                {absent, "{cloud: gold}", usable, ""},
		"kept and damaged": {absent, "{cloud: gold}", "hunter2", "--clouds-file " + absent + " cannot be read: no such file or directory" + needed +
			"; those of gold cannot be used: they are damaged" + remedy},
		"kept for others": {absent, "{cloud: zinc}", usable, "--clouds-file " + absent + " cannot be read: no such file or directory" + needed +
			"; those of gold cannot be used: they were read for another configuration of the backend" + remedy},
	} {
		t.Run(name, func(t *testing.T) {
			text := "apiVersion: " + policy.APIVersion + "\nkind: Policy\nbackends:\n  - {name: gold, auth: " + c.auth + "}\ntenants: []\n"
			p, err := policy.Parse([]byte(text), "p.yaml", mappers.BuiltIn().Describe())
			if err != nil {
				t.Fatal(err)
			}
			a := newReloader(&replica{options: Options{CloudsFile: c.file}, logger: slog.New(slog.DiscardHandler), lastGood: lastgood.Store{Namespace: "ns", Name: "last"}})
			a.policy.Store(p)
			kept := map[string][]byte{}
			if c.kept != "" {
				kept["gold"] = []byte(c.kept)
			}
			got := ""
			if err := a.checkCloudsFile(kept); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}
