package auth

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/gophercloud/gophercloud/v2/openstack/config/clouds"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

var updateReadings = flag.Bool("update", false, "rewrite testdata/cloudsreadings.json and testdata/cloudskeys.json")

// cloudsReadings is also read by test/cloudsoracle, to compare how
// gophercloud's clientconfig reads the same files.
const cloudsReadings = "testdata/cloudsreadings.json"

// cloudsReading is one case with its result. Without a cloud, the files were
// rejected; without a login, the credentials were.
type cloudsReading struct {
	Case        string            `json:"case"`
	Files       map[string]string `json:"files"`
	Region      string            `json:"region,omitempty"`
	Environment map[string]string `json:"environment,omitempty"`
	Cloud       *clouds.Cloud     `json:"cloud,omitempty"`
	Login       any               `json:"login,omitempty"` // what Keystone would receive
	Refusal     string            `json:"refusal,omitempty"`
	Oracle      map[string]string `json:"oracle,omitempty"`
	Why         string            `json:"why,omitempty"`
}

// TestCloudsReadings pins how every case is read. A difference from
// clientconfig must have a reason.
func TestCloudsReadings(t *testing.T) {
	var lines []string
	seen := map[string]bool{}
	for _, c := range cloudsCases {
		if seen[c.name] {
			t.Errorf("two cases have the name %q", c.name)
		}
		seen[c.name] = true
		if (c.why == "") != (len(c.oracle) == 0) {
			t.Errorf("%s: a difference needs a reason, and a reason a difference", c.name)
		}
		line, err := json.Marshal(c.read(t))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
	}
	// One case per line.
	now := "[\n" + strings.Join(lines, ",\n") + "\n]\n"
	if *updateReadings {
		if err := os.WriteFile(cloudsReadings, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	recorded, err := os.ReadFile(cloudsReadings)
	if err != nil {
		t.Fatal(err)
	}
	if string(recorded) == now {
		return
	}
	was := strings.Split(string(recorded), "\n")
	for i, line := range strings.Split(now, "\n") {
		if !slices.Contains(was, line) {
			t.Errorf("line %d is now\n%s\nwhich %s does not contain (go test -update rewrites it)", i+1, line, cloudsReadings)
		}
	}
	t.Errorf("%s differs from the current result", cloudsReadings)
}

// read reads the case the way a backend does. In its files, $DIR is their
// directory, which also contains certificates.
func (c cloudsCase) read(t *testing.T) cloudsReading {
	t.Helper()
	ca := authtest.NewAuthority(t)
	_, _, cert, key := ca.Issue("client", false)
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM, "cert.pem": cert, "key.pem": key})
	files := c.contents()
	for name, content := range files {
		authtest.WriteFile(t, dir+"/"+name, strings.ReplaceAll(content, "$DIR", dir))
	}
	reading := cloudsReading{Case: c.name, Files: files, Region: c.region, Environment: c.environment, Oracle: c.oracle, Why: c.why}
	sources := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.Environment(c.environment), files: fileSet{}}
	var cloud account
	read, err := sources.merged("gold", c.region)
	if err == nil {
		cloud, err = read.account()
	}
	if err != nil {
		reading.Refusal = strings.ReplaceAll(err.Error(), dir, "$DIR")
		return reading
	}
	for _, path := range []*string{&cloud.CACertFile, &cloud.ClientCertFile, &cloud.ClientKeyFile} {
		*path = strings.ReplaceAll(*path, dir, "$DIR")
	}
	reading.Cloud = &cloud.Cloud
	found, err := sources.Resolve(Config{Source: Source{Cloud: "gold"}, Region: c.region})
	if err != nil {
		reading.Refusal = strings.ReplaceAll(err.Error(), dir, "$DIR")
		return reading
	}
	reading.Login = loginBody(t, found.Keystone)
	return reading
}

// loginBody returns what Keystone would receive.
func loginBody(t *testing.T, options gophercloud.AuthOptions) any {
	t.Helper()
	var scope map[string]any
	var err error
	if options.Scope != nil {
		scope, err = options.ToTokenV3ScopeMap()
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := options.ToTokenV3CreateMap(scope)
	if err != nil {
		t.Fatal(err)
	}
	return body["auth"]
}
