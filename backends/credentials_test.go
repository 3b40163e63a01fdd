package backends

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// goodCredentials returns the values of the two gauges.
func goodCredentials(metrics *Metrics) (good bool, at time.Time) {
	seconds := testutil.ToFloat64(metrics.credentialsReadAt.WithLabelValues("gold"))
	return testutil.ToFloat64(metrics.credentialsGood.WithLabelValues("gold")) == 1, time.UnixMilli(int64(seconds * 1000))
}

// TestBrokenFileKeepsTheClient: the logged-in client stays in use as long as
// the configuration is the same and its credentials are accepted.
func TestBrokenFileKeepsTheClient(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	whole := strings.ReplaceAll(cindertest.PasswordCloud, "$URL", cloud.URL+"/identity")
	for name, broken := range map[string]string{
		"empty":        "",
		"half":         whole[:len(whole)/2],
		"no YAML":      "clouds: [",
		"entry gone":   "clouds: {zinc: {}}",
		"no password":  strings.ReplaceAll(whole, "password: s3cr3t", ""),
		"file is gone": "-",
	} {
		t.Run(name, func(t *testing.T) {
			metrics := testMetrics()
			pool := NewPool(PoolOptions{Sources: sources, Metrics: metrics, CredentialsAge: time.Nanosecond})
			authtest.WriteFile(t, sources.CloudsFile, whole)
			before, err := pool.Client(t.Context(), gold)
			equal(t, authtest.ErrorText(err), "")
			inUse, err := pool.CheckCredentials(gold)
			equal(t, authtest.ErrorText(err), "")
			good, readAt := goodCredentials(metrics)
			equal(t, good, true)
			if age := time.Since(readAt); age < -time.Second || age > time.Minute {
				t.Errorf("the last good reading was %s ago", age)
			}
			if broken == "-" {
				equal(t, os.Remove(sources.CloudsFile), nil)
			} else {
				authtest.WriteFile(t, sources.CloudsFile, broken)
			}
			logins := cloud.LoginCount()
			for range 3 {
				client, err := pool.Client(t.Context(), gold)
				if err != nil || client != before {
					t.Errorf("client %p and error %v, want %p", client, err, before)
				}
			}
			version, err := pool.CheckCredentials(gold)
			equal(t, version, inUse)
			equal(t, cinder.KindOf(err), cinder.KindConfig)
			good, again := goodCredentials(metrics)
			equal(t, good, false)
			equal(t, again, readAt)
			// The client was made for a different configuration.
			other := gold
			other.Auth.Region = "RegionTwo"
			if _, err := pool.Client(t.Context(), other); !cinder.IsKind(err, cinder.KindConfig) {
				t.Errorf("with another configuration: %v", err)
			}
			equal(t, cloud.LoginCount(), logins)
			authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(whole, "s3cr3t", "n3w"))
			client, err := pool.Client(t.Context(), gold)
			if err != nil || client == before {
				t.Errorf("after the file was fixed: client %p and error %v", client, err)
			}
			good, _ = goodCredentials(metrics)
			equal(t, good, true)
			equal(t, cloud.LoginCount(), logins+1)
		})
	}
}

// TestBrokenFileIsNotReadByEveryRequest: a broken file is read no more often
// than a good one.
func TestBrokenFileIsNotReadByEveryRequest(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	metrics := testMetrics()
	pool := NewPool(PoolOptions{Sources: sources, Metrics: metrics, CredentialsAge: time.Hour})
	before, err := pool.Client(t.Context(), gold)
	equal(t, authtest.ErrorText(err), "")
	age := func(by time.Duration) {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		entry, _ := pool.clients.Peek(pool.clients.Keys()[0])
		entry.read = entry.read.Add(-by)
	}
	authtest.WriteFile(t, sources.CloudsFile, "broken: [")
	age(2 * time.Hour)
	for range 2 {
		if client, err := pool.Client(t.Context(), gold); err != nil || client != before {
			t.Errorf("client %p and error %v, want %p", client, err, before)
		}
		// If the file had been read, the new credentials would be in use.
		authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(strings.ReplaceAll(cindertest.PasswordCloud, "s3cr3t", "n3w"), "$URL", cloud.URL+"/identity"))
	}
	age(2 * time.Hour)
	if client, err := pool.Client(t.Context(), gold); err != nil || client == before {
		t.Errorf("client %p and error %v, want a different one than %p", client, err, before)
	}
}

func TestCheckCredentials(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	text := strings.ReplaceAll(cindertest.PasswordCloud, "$URL", cloud.URL+"/identity")
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Hour})
	check := func() string {
		t.Helper()
		version, err := pool.CheckCredentials(gold)
		equal(t, authtest.ErrorText(err), "")
		return version
	}
	first := check()
	equal(t, regexp.MustCompile(`^[0-9a-f]{24}$`).MatchString(first), true)
	equal(t, check(), first)
	equal(t, cloud.LoginCount(), 0)
	before, err := pool.Client(t.Context(), gold)
	equal(t, authtest.ErrorText(err), "")
	equal(t, check(), first)
	if client, _ := pool.Client(t.Context(), gold); client != before {
		t.Error("a check without a change has dropped the client")
	}

	authtest.WriteFile(t, sources.CloudsFile, strings.ReplaceAll(text, "s3cr3t", "n3w"))
	if client, _ := pool.Client(t.Context(), gold); client != before {
		t.Error("without a check the credentials are not an hour old")
	}
	second := check()
	if second == first {
		t.Error("a different password gives the same version")
	}
	if client, err := pool.Client(t.Context(), gold); err != nil || client == before {
		t.Errorf("after the check: client %p and error %v", client, err)
	}
	authtest.WriteFile(t, sources.CloudsFile, text)
	equal(t, check(), first)

	other := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics()})
	if version, err := other.CheckCredentials(gold); err != nil || version == first {
		t.Errorf("the version %q would help to guess the password offline (error %v)", version, err)
	}
	_, err = pool.CheckCredentials(Config{Name: "gold", Auth: auth.Config{Source: auth.Source{Cloud: "zinc"}}})
	equal(t, authtest.ErrorText(err), `backend gold: `+sources.CloudsFile+` has no cloud "zinc"; it has "gold"`)
}

// TestChecksDoNotSpareFromEviction: a check is not a use of a client.
func TestChecksDoNotSpareFromEviction(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	text := cindertest.PasswordCloud
	for _, name := range []string{"zinc", "iron"} {
		text += strings.Replace(strings.TrimPrefix(cindertest.PasswordCloud, "\nclouds:\n"), "gold", name, 1)
	}
	pool := NewPool(PoolOptions{Size: 2, Sources: cloud.Clouds(text), Metrics: testMetrics()})
	use := func(name string) {
		if _, err := pool.Client(t.Context(), Config{Name: name, Auth: auth.Config{Source: auth.Source{Cloud: name}}}); err != nil {
			t.Fatal(err)
		}
	}
	use("gold")
	use("zinc")
	if _, err := pool.CheckCredentials(gold); err != nil {
		t.Fatal(err)
	}
	use("iron")
	use("zinc")
	equal(t, cloud.LoginCount(), 3)
	use("gold")
	equal(t, cloud.LoginCount(), 4)
}

// TestEveryFileIsWatched: a change of any input of the credentials changes
// their version, and nothing else does.
func TestEveryFileIsWatched(t *testing.T) {
	_, _, certificate, key := authtest.NewAuthority(t).Issue("client", false)
	_, _, other, _ := authtest.NewAuthority(t).Issue("another", true)
	dir := authtest.WriteFiles(t, map[string]string{
		"clouds.yaml": "clouds: {gold: {profile: p, cacert: $DIR/ca.pem, cert: $DIR/cert.pem, key: $DIR/key.pem, auth: {username: kube, user_domain_name: D, project_id: x}}}",
		"ca.pem":      certificate, "cert.pem": certificate, "key.pem": key,
		"clouds-public.yaml": "public-clouds: {p: {auth: {auth_url: 'http://one/v3'}}}",
		"secure.yaml":        "clouds: {gold: {auth: {password: s3cr3t}}}",
		"old.conf":           "[Global]\nauth-url=http://one/v3\nusername=kube\npassword=s3cr3t\ndomain-name=D\ntenant-id=x\n",
	})
	path := func(name string) string { return filepath.Join(dir, name) }
	text, err := os.ReadFile(path("clouds.yaml"))
	equal(t, err, nil)
	authtest.WriteFile(t, path("clouds.yaml"), strings.ReplaceAll(string(text), "$DIR", dir))
	pool := NewPool(PoolOptions{Sources: auth.Sources{CloudsFile: path("clouds.yaml"), Getenv: authtest.NoEnvironment}, Metrics: testMetrics()})
	versions := func() [2]string {
		t.Helper()
		var found [2]string
		for i, source := range []auth.Source{{Cloud: "gold"}, {CloudConfig: dir + "/old.conf"}} {
			version, err := pool.CheckCredentials(Config{Name: []string{"gold", "old"}[i], Auth: auth.Config{Source: source}})
			if err != nil {
				t.Fatal(err)
			}
			found[i] = version
		}
		return found
	}
	replace := func(name, old, by string) {
		t.Helper()
		content, err := os.ReadFile(path(name))
		equal(t, err, nil)
		authtest.WriteFile(t, path(name), strings.ReplaceAll(string(content), old, by))
	}
	last := versions()
	for name, test := range map[string]struct {
		change func()
		cloud  bool
		conf   bool
	}{
		"clouds.yaml":          {change: func() { replace("clouds.yaml", "project_id: x", "project_id: y") }, cloud: true},
		"secure.yaml":          {change: func() { replace("secure.yaml", "s3cr3t", "n3w") }, cloud: true},
		"clouds-public.yaml":   {change: func() { replace("clouds-public.yaml", "one", "two") }, cloud: true},
		"certificate":          {change: func() { authtest.WriteFile(t, path("ca.pem"), other) }, cloud: true},
		"cloud configuration":  {change: func() { replace("old.conf", "s3cr3t", "n3w") }, conf: true},
		"a word of no meaning": {change: func() { replace("clouds.yaml", "clouds: {gold", "# words\nclouds: {gold") }},
		"another file":         {change: func() { authtest.WriteFile(t, path("clouds.yml"), "x") }},
	} {
		test.change()
		now := versions()
		if changed := now[0] != last[0]; changed != test.cloud {
			t.Errorf("%s: the cloud's version has changed: %v", name, changed)
		}
		if changed := now[1] != last[1]; changed != test.conf {
			t.Errorf("%s: the cloud configuration's version has changed: %v", name, changed)
		}
		last = now
	}
}

// TestEnvironmentIsReadEveryTime: a change of the environment counts, although
// it is not a file.
func TestEnvironmentIsReadEveryTime(t *testing.T) {
	variables := map[string]string{"OS_AUTH_URL": "http://one/v3", "OS_USERNAME": "kube", "OS_USER_DOMAIN_NAME": "D", "OS_PASSWORD": "s3cr3t", "OS_PROJECT_ID": "x"}
	pool := NewPool(PoolOptions{Sources: auth.Sources{Getenv: authtest.Environment(variables)}, Metrics: testMetrics()})
	config := Config{Name: "here", Auth: auth.Config{Source: auth.Source{Environment: true}}}
	before, err := pool.CheckCredentials(config)
	equal(t, authtest.ErrorText(err), "")
	variables["OS_PASSWORD"] = "n3w"
	after, err := pool.CheckCredentials(config)
	equal(t, authtest.ErrorText(err), "")
	equal(t, after == before, false)
}

// TestBrokenFileLeavesTheCredentialsThatWereRead: a follower reads credentials,
// but logs in only when it leads.
func TestBrokenFileLeavesTheCredentialsThatWereRead(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	sources := cloud.Clouds(cindertest.PasswordCloud)
	pool := NewPool(PoolOptions{Sources: sources, Metrics: testMetrics(), CredentialsAge: time.Nanosecond})
	good, err := pool.CheckCredentials(gold)
	if err != nil {
		t.Fatal(err)
	}
	authtest.WriteFile(t, sources.CloudsFile, "clouds: [")
	if _, err := pool.Client(t.Context(), gold); err != nil {
		t.Errorf("the first login after the file broke: %v", err)
	}
	// A change of something else does not lose them.
	slower := gold
	slower.Limits.RequestsPerSecond = 5
	if _, err := pool.Client(t.Context(), slower); err != nil {
		t.Errorf("with another limit: %v", err)
	}
	if version, err := pool.CheckCredentials(gold); version != good || !cinder.IsKind(err, cinder.KindConfig) {
		t.Errorf("a check of the broken file gives version %q, want %q, and error %v", version, good, err)
	}
	other := gold
	other.Auth.Source.Cloud = "zinc"
	if version, err := pool.CheckCredentials(other); version != "" || !cinder.IsKind(err, cinder.KindConfig) {
		t.Errorf("a backend whose credentials were never read has version %q and error %v", version, err)
	}
}
