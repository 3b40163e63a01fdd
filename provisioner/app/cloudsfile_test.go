package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// TestMissingCloudsFileEndsTheStart: a replica without any credentials would be ready
// but could do nothing. One that can serve another backend starts.
func TestMissingCloudsFileEndsTheStart(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "clouds.yaml")
	present := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(present, []byte("clouds: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const needed = "; these backends log in with its entries: gold (p.yaml:4); nothing is in force: mount the file, or correct the flag"
	for name, c := range map[string]struct{ file, auth, want string }{
		"no flag":             {"", "{cloud: gold}", ""},
		"no file, for one":    {absent, "{cloud: gold}}\n  - {name: silver, auth: {noauth: {endpoint: http://cinder:8776/v3}}", ""},
		"a file":              {present, "{cloud: gold}", ""},
		"no file":             {absent, "{cloud: gold}", "--clouds-file " + absent + " cannot be read: no such file or directory" + needed},
		"a directory":         {filepath.Dir(present), "{cloud: gold}", "--clouds-file " + filepath.Dir(present) + " cannot be read: is a directory" + needed},
		"no file, and no use": {absent, "{noauth: {endpoint: http://cinder:8776/v3}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := "apiVersion: " + policy.APIVersion + "\nkind: Policy\nbackends:\n  - {name: gold, auth: " + c.auth + "}\ntenants: []\n"
			p, err := policy.Parse([]byte(text), "p.yaml", mappers.BuiltIn().Describe())
			if err != nil {
				t.Fatal(err)
			}
			a := newReloader(&replica{options: Options{CloudsFile: c.file}, logger: slog.New(slog.DiscardHandler)})
			a.policy.Store(p)
			got := ""
			if err := a.checkCloudsFile(); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("\n got %s\nwant %s", got, c.want)
			}
		})
	}
}
