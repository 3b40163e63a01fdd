package auth

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// resolveCloud resolves the cloud "gold" of files written for one test.
func resolveCloud(t *testing.T, files map[string]string, config Config) (Credentials, error) {
	t.Helper()
	dir := authtest.WriteFiles(t, files)
	config.Source = Source{Cloud: "gold"}
	return Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Resolve(config)
}

func TestCloudsFilesAreMerged(t *testing.T) {
	const user = "user_id: u, password: p, project_id: x"
	tests := map[string]struct {
		files  map[string]string
		config Config
		check  func(t *testing.T, c Credentials)
	}{
		"password from secure.yaml": {
			files: map[string]string{
				"clouds.yaml": "clouds: {gold: {auth: {auth_url: http://k, user_id: u, project_id: x}}}",
				"secure.yaml": "clouds: {gold: {auth: {password: from-secure}}}",
			},
			check: func(t *testing.T, c Credentials) { equal(t, c.Keystone.Password, "from-secure") },
		},
		"secure.yaml wins": {
			files: map[string]string{
				"clouds.yaml": "clouds: {gold: {auth: {auth_url: http://k, user_id: u, password: old, project_id: x}}}",
				"secure.yaml": "clouds: {gold: {auth: {password: new}}, other: {auth: {password: wrong}}}",
			},
			check: func(t *testing.T, c Credentials) { equal(t, c.Keystone.Password, "new") },
		},
		"trust from secure.yaml": {
			files: map[string]string{
				"clouds.yaml": "clouds: {gold: {auth: {auth_url: http://k, user_id: u, password: p}}}",
				"secure.yaml": "clouds: {gold: {auth: {trust_id: t1}}}",
			},
			check: func(t *testing.T, c Credentials) { equal(t, c.Keystone.Scope.TrustID, "t1") },
		},
		"profile from clouds-public.yaml": {
			files: map[string]string{
				"clouds.yaml":        "clouds: {gold: {profile: vendor, auth: {" + user + "}}}",
				"clouds-public.yaml": "public-clouds: {vendor: {region_name: R1, interface: internal, auth: {auth_url: http://vendor/v3}}}",
			},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Keystone.IdentityEndpoint, "http://vendor/v3/")
				equal(t, c.Endpoint, gophercloud.EndpointOpts{Region: "R1", Availability: gophercloud.AvailabilityInternal})
			},
		},
		"the entry wins over its profile": {
			files: map[string]string{
				"clouds.yaml":        "clouds: {gold: {cloud: vendor, region_name: R2, verify: false, auth: {" + user + "}}}",
				"clouds-public.yaml": "public-clouds: {vendor: {region_name: R1, verify: true, auth: {auth_url: http://vendor/v3}}}",
			},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Endpoint.Region, "R2")
				equal(t, c.TLS.InsecureSkipVerify, true)
			},
		},
		"the backend's region has overrides": {
			files:  map[string]string{"clouds.yaml": regions},
			config: Config{Region: "R2"},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Keystone.IdentityEndpoint, "http://r2/v3/")
				equal(t, c.Endpoint.Region, "R2")
				equal(t, c.TLS.InsecureSkipVerify, true)
			},
		},
		"the entry's own region_name has overrides": {
			files: map[string]string{"clouds.yaml": strings.Replace(regions, "gold:", "gold:\n    region_name: R2", 1)},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Keystone.IdentityEndpoint, "http://r2/v3/")
				equal(t, c.Endpoint.Region, "R2")
			},
		},
		"without any region the first of the list": {
			files: map[string]string{"clouds.yaml": regions},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Keystone.IdentityEndpoint, "http://k/v3/")
				equal(t, c.Endpoint.Region, "R1")
				equal(t, c.TLS.InsecureSkipVerify, false)
			},
		},
		"the backend's region and interface win": {
			files:  map[string]string{"clouds.yaml": "clouds: {gold: {region_name: R1, interface: internal, auth: {auth_url: http://k, " + user + "}}}"},
			config: Config{Region: "R9", Interface: "admin"},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Endpoint, gophercloud.EndpointOpts{Region: "R9", Availability: gophercloud.AvailabilityAdmin})
			},
		},
		"endpoint_type in its old spelling": {
			files: map[string]string{"clouds.yaml": "clouds: {gold: {endpoint_type: internalURL, auth: {auth_url: http://k, " + user + "}}}"},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Endpoint.Availability, gophercloud.AvailabilityInternal)
			},
		},
		"certificates are verified by default": {
			files: map[string]string{"clouds.yaml": "clouds: {gold: {auth: {auth_url: http://k, " + user + "}}}"},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.TLS.InsecureSkipVerify, false)
				equal(t, c.Endpoint.Availability, gophercloud.AvailabilityPublic)
				equal(t, c.Keystone.AllowReauth, true)
			},
		},
		"a token cannot be renewed": {
			files: map[string]string{"clouds.yaml": "clouds: {gold: {auth: {auth_url: http://k, token: t, project_id: x}}}"},
			check: func(t *testing.T, c Credentials) { equal(t, c.Keystone.AllowReauth, false) },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := resolveCloud(t, test.files, test.config)
			if err != nil {
				t.Fatal(err)
			}
			test.check(t, found)
		})
	}
}

const regions = `
clouds:
  gold:
    auth: {auth_url: http://k, user_id: u, password: p, project_id: x}
    regions:
    - R1
    - name: R2
      values: {verify: false, auth: {auth_url: http://r2}}
`

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestUnreadableCloudsFiles(t *testing.T) {
	broken := "clouds:\n  gold:\n    auth:\n      password: hunter2\n     username: x\n"
	wrongType := "clouds:\n  gold:\n    auth: {password: [hunter2]}\n"
	good := "clouds: {gold: {auth: {auth_url: http://k, user_id: u, password: p}}}"
	tests := map[string]struct {
		files map[string]string
		want  string // $DIR is the directory
	}{
		"missing file":  {map[string]string{}, "cannot read $DIR/clouds.yaml: no such file or directory"},
		"missing cloud": {map[string]string{"clouds.yaml": "clouds: {zinc: {}, lead: {}}"}, `$DIR/clouds.yaml has no cloud "gold"; it has "lead", "zinc"`},
		"no clouds":     {map[string]string{"clouds.yaml": ""}, `$DIR/clouds.yaml has no cloud "gold"; it has none`},
		"not YAML":      {map[string]string{"clouds.yaml": broken}, "$DIR/clouds.yaml:2: not a valid clouds file"},
		"tab":           {map[string]string{"clouds.yaml": "clouds:\n  gold:\n\tauth: {}\n"}, "$DIR/clouds.yaml:3: not a valid clouds file; indent with spaces, not tabs, and quote values that begin with a special character"},
		"wrong type":    {map[string]string{"clouds.yaml": wrongType}, "$DIR/clouds.yaml:3: password is a list, not text"},
		"another key":   {map[string]string{"clouds.yaml": "cloud: {gold: {}}"}, `$DIR/clouds.yaml has no key clouds, which holds the entries; its keys are "cloud"`},
		"an openrc script": {map[string]string{"clouds.yaml": "#!/usr/bin/env bash\nexport OS_AUTH_URL=http://k/v3\nif [ -z x ]; then unset y; fi\n"},
			"$DIR/clouds.yaml is an openrc script, not a clouds file; download clouds.yaml instead, or set auth.environment in the policy and the script's variables in the pods"},
		"variables of a script": {map[string]string{"clouds.yaml": "OS_AUTH_URL=http://k/v3\nOS_PASSWORD=hunter2\n"},
			"$DIR/clouds.yaml is an openrc script, not a clouds file; download clouds.yaml instead, or set auth.environment in the policy and the script's variables in the pods"},
		"no mapping":            {map[string]string{"clouds.yaml": "hunter2"}, "$DIR/clouds.yaml:1: not a valid clouds file: a mapping is needed here"},
		"secure.yaml not YAML":  {map[string]string{"clouds.yaml": good, "secure.yaml": broken}, `$DIR/clouds.yaml: cloud "gold": unable to load secure.yaml: $DIR/secure.yaml:2: not a valid clouds file`},
		"missing profile":       {map[string]string{"clouds.yaml": "clouds: {gold: {profile: vendor}}"}, `$DIR/clouds.yaml: cloud "gold": cloud "vendor" does not exist in clouds-public.yaml, and no profile is built in`},
		"profile file not YAML": {map[string]string{"clouds.yaml": "clouds: {gold: {profile: vendor}}", "clouds-public.yaml": broken}, `$DIR/clouds.yaml: cloud "gold": unable to load clouds-public.yaml: $DIR/clouds-public.yaml:2: not a valid clouds file`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := authtest.WriteFiles(t, test.files)
			_, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{Cloud: "gold"}})
			if want := strings.ReplaceAll(test.want, "$DIR", dir); authtest.ErrorText(err) != want {
				t.Errorf("error %q\nwant  %q", authtest.ErrorText(err), want)
			}
		})
	}
}

// TestDamagedCloudsFilesShowNoSecret reads files in which a few bytes are
// damaged, as by a slip in an editor.
func TestDamagedCloudsFilesShowNoSecret(t *testing.T) {
	const secret = "hunter2"
	const content = `
clouds:
  gold:
    auth_type: password
    interface: internal
    cert: |
      -----BEGIN hunter2 PRIVATE KEY-----
    auth:
      auth_url: http://k/v3
      username: kube
      password: hunter2
      token: "hunter2"
      application_credential_secret: 'hunter2'
      user_domain_name: Default
      project_name: storage
`
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		damaged := content
		for range rapid.IntRange(1, 3).Draw(t, "slips") {
			at := rapid.IntRange(0, len(damaged)-4).Draw(t, "at")
			length := rapid.IntRange(0, 3).Draw(t, "deleted")
			inserted := rapid.StringOfN(rapid.RuneFrom([]rune(" \n\t:-[]{}'\"&*!|>%@,#?a0\x00\u00e9")), 0, 2, -1).Draw(t, "inserted")
			if strings.Contains(damaged[max(0, at-len(secret)):min(len(damaged), at+length+len(secret))], secret) {
				continue // keep the secret intact
			}
			damaged = damaged[:at] + inserted + damaged[at+length:]
		}
		path := filepath.Join(dir, "clouds.yaml")
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Sources{CloudsFile: path, Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{Cloud: "gold"}})
		if strings.Contains(authtest.ErrorText(err), secret) {
			t.Fatalf("error %q contains a secret from\n%s", err, damaged)
		}
	})
}

func TestWhereCloudsFileIsSearched(t *testing.T) {
	const content = "clouds: {gold: {auth: {auth_url: http://k, user_id: u, password: p, project_id: x}}}"
	config := Config{Source: Source{Cloud: "gold"}}
	empty := t.TempDir()
	t.Setenv("HOME", empty)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(empty, ".config"))
	t.Chdir(empty)
	t.Run("nowhere", func(t *testing.T) {
		_, err := Sources{Getenv: authtest.NoEnvironment}.Resolve(config)
		want := "no clouds.yaml was found (looked at clouds.yaml, clouds.yml, clouds.json, " + empty + "/.config/openstack/clouds.yaml, " + empty +
			"/.config/openstack/clouds.yml, " + empty + "/.config/openstack/clouds.json, /etc/openstack/clouds.yaml, /etc/openstack/clouds.yml, /etc/openstack/clouds.json); name one with --clouds-file"
		if _, statErr := os.Stat("/etc/openstack"); statErr == nil {
			t.Skip("this machine has an /etc/openstack")
		}
		equal(t, authtest.ErrorText(err), want)
	})
	t.Run("OS_CLIENT_CONFIG_FILE", func(t *testing.T) {
		dir := authtest.WriteFiles(t, map[string]string{"mine.yaml": content})
		_, err := Sources{Getenv: authtest.Environment(map[string]string{"OS_CLIENT_CONFIG_FILE": dir + "/mine.yaml"})}.Resolve(config)
		equal(t, authtest.ErrorText(err), "")
	})
	t.Run("working directory", func(t *testing.T) {
		t.Chdir(authtest.WriteFiles(t, map[string]string{"clouds.yml": content}))
		_, err := Sources{Getenv: authtest.NoEnvironment}.Resolve(config)
		equal(t, authtest.ErrorText(err), "")
	})
	t.Run("user's configuration", func(t *testing.T) {
		home := t.TempDir()
		t.Setenv("XDG_CONFIG_HOME", home)
		if err := os.Mkdir(filepath.Join(home, "openstack"), 0o700); err != nil {
			t.Fatal(err)
		}
		authtest.WriteFile(t, filepath.Join(home, "openstack", "clouds.yaml"), content)
		_, err := Sources{Getenv: authtest.NoEnvironment}.Resolve(config)
		equal(t, authtest.ErrorText(err), "")
	})
}

// TestEnvironmentDoesNotLeak would fail with a reader that fills gaps in an
// entry from OS_* variables, like the OpenStack clients.
func TestEnvironmentDoesNotLeak(t *testing.T) {
	foreign := map[string]string{
		"OS_AUTH_URL": "http://foreign/v3", "OS_USERNAME": "foreign", "OS_USER_ID": "foreign", "OS_PASSWORD": "foreign", "OS_TOKEN": "foreign", "OS_AUTH_TOKEN": "foreign",
		"OS_PROJECT_ID": "foreign", "OS_PROJECT_NAME": "foreign", "OS_TENANT_ID": "foreign", "OS_TENANT_NAME": "foreign",
		"OS_DOMAIN_ID": "foreign", "OS_DOMAIN_NAME": "foreign", "OS_USER_DOMAIN_ID": "foreign", "OS_PROJECT_DOMAIN_ID": "foreign", "OS_DEFAULT_DOMAIN": "foreign",
		"OS_APPLICATION_CREDENTIAL_ID": "foreign", "OS_APPLICATION_CREDENTIAL_SECRET": "foreign", "OS_TRUST_ID": "foreign", "OS_SYSTEM_SCOPE": "all",
		"OS_REGION_NAME": "foreign", "OS_INTERFACE": "admin", "OS_ENDPOINT_TYPE": "admin", "OS_CLOUD": "foreign", "OS_INSECURE": "true", "OS_CACERT": "/nowhere",
		"OS_CERT": "/nowhere", "OS_KEY": "/nowhere", "OS_IDENTITY_API_VERSION": "2", "OS_CINDER_ENDPOINT": "http://foreign", "OS_AUTH_TYPE": "token",
	}
	for name, value := range foreign {
		t.Setenv(name, value)
	}
	before := slices.Sorted(slices.Values(os.Environ()))
	directory, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := authtest.WriteFiles(t, map[string]string{
		"clouds.yaml": `
clouds:
  full: {auth: {auth_url: http://k, user_id: u, password: p, project_id: x}}
  bare: {auth: {auth_url: http://k, user_id: u, project_id: x}}
  application: {auth: {auth_url: http://k, application_credential_id: a, application_credential_secret: s}}
`,
		"old.conf":  "[Global]\nauth-url=http://k/v3\nuser-id=u\npassword=p\ntenant-id=x\n",
		"bare.conf": "[Global]\nauth-url=http://k/v3\nuser-id=u\n",
	})
	sources := Sources{CloudsFile: dir + "/clouds.yaml"}
	for name, auth := range map[string]Source{"full": {Cloud: "full"}, "application": {Cloud: "application"}, "INI": {CloudConfig: dir + "/old.conf"}, "noauth": {Noauth: &Noauth{Endpoint: "http://c"}}} {
		found, err := sources.Resolve(Config{Source: auth})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		scope := found.Keystone.Scope
		if scope == nil {
			scope = &gophercloud.AuthScope{}
		}
		for _, value := range []string{found.Keystone.IdentityEndpoint, found.Keystone.Username, found.Keystone.UserID, found.Keystone.Password, found.Keystone.TokenID, found.Keystone.DomainID,
			found.Keystone.DomainName, found.Keystone.ApplicationCredentialID, found.Keystone.ApplicationCredentialSecret, scope.ProjectID, scope.ProjectName, scope.DomainID,
			scope.TrustID, found.Endpoint.Region, string(found.Endpoint.Availability)} {
			if strings.Contains(value, "foreign") || value == "admin" {
				t.Errorf("%s: %q comes from the environment", name, value)
			}
		}
		if scope.System || found.TLS != nil && (found.TLS.InsecureSkipVerify || found.TLS.RootCAs != nil) {
			t.Errorf("%s: scope or TLS comes from the environment", name)
		}
	}
	// Values missing in the entry stay missing, although the environment has
	// them.
	for name, auth := range map[string]Source{"bare": {Cloud: "bare"}, "bare INI": {CloudConfig: dir + "/bare.conf"}} {
		if _, err := sources.Resolve(Config{Source: auth}); err == nil || !strings.HasSuffix(err.Error(), "the credentials have no password, application credential or token") {
			t.Errorf("%s: error %v, want the missing password", name, err)
		}
	}
	if after := slices.Sorted(slices.Values(os.Environ())); !slices.Equal(before, after) {
		t.Error("reading credentials changed the environment")
	}
	if after, _ := os.Getwd(); after != directory {
		t.Error("reading credentials changed the working directory")
	}
}

func TestNoWayToLogIn(t *testing.T) {
	_, err := Sources{}.Resolve(Config{})
	equal(t, authtest.ErrorText(err), "no way to log in is configured; set one of auth.cloud, auth.noauth, auth.cloudConfig or auth.environment")
}

// TestVersionFollowsCredentials changes one input at a time.
func TestVersionFollowsCredentials(t *testing.T) {
	ca, other := authtest.NewAuthority(t), authtest.NewAuthority(t)
	_, _, cert, key := ca.Issue("client", false)
	_, _, cert2, key2 := ca.Issue("client", false)
	base := map[string]string{
		"clouds.yaml": "clouds: {gold: {region_name: R, cacert: $DIR/ca.pem, cert: $DIR/cert.pem, key: $DIR/key.pem, auth: {auth_url: http://k, username: kube, password: p, domain_name: d, project_name: x}}}",
		"secure.yaml": "clouds: {gold: {auth: {trust_id: t}}}",
		"ca.pem":      ca.PEM,
		"cert.pem":    cert,
		"key.pem":     key,
	}
	config := Config{Region: "R1"}
	version := func(files map[string]string, config Config) string {
		t.Helper()
		dir := t.TempDir()
		for name, content := range files {
			authtest.WriteFile(t, filepath.Join(dir, name), strings.ReplaceAll(content, "$DIR", dir))
		}
		config.Source = Source{Cloud: "gold"}
		found, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Resolve(config)
		if err != nil {
			t.Fatal(err)
		}
		return found.Version
	}
	original := version(base, config)
	if version(base, config) != original {
		t.Error("the same credentials have two versions")
	}
	edit := func(file, old, new string) map[string]string {
		files := maps.Clone(base)
		if !strings.Contains(files[file], old) {
			t.Fatalf("%s does not contain %q", file, old)
		}
		files[file] = strings.Replace(files[file], old, new, 1)
		return files
	}
	same := map[string]map[string]string{
		"comment":       edit("clouds.yaml", "clouds: {", "# a comment\nclouds: {"),
		"another entry": edit("clouds.yaml", "clouds: {", "clouds: {zinc: {auth: {password: q}}, "),
		"renamed CA file": func() map[string]string {
			f := edit("clouds.yaml", "ca.pem", "ca2.pem")
			f["ca2.pem"] = ca.PEM
			return f
		}(),
		"unrelated setting": edit("clouds.yaml", "region_name: R,", "region_name: R, compute_api_version: 2,"),
		"unrelated file":    func() map[string]string { f := maps.Clone(base); f["other.pem"] = other.PEM; return f }(),
		"order of the keys": edit("clouds.yaml", "username: kube, password: p,", "password: p, username: kube,"),
	}
	for name, files := range same {
		if version(files, config) != original {
			t.Errorf("%s: the version changed", name)
		}
	}
	changed := map[string]map[string]string{
		"password":           edit("clouds.yaml", "password: p", "password: q"),
		"one more blank":     edit("clouds.yaml", "password: p", `password: "p "`),
		"user":               edit("clouds.yaml", "username: kube", "username: kubf"),
		"address":            edit("clouds.yaml", "http://k", "http://l"),
		"project":            edit("clouds.yaml", "project_name: x", "project_name: y"),
		"trust":              edit("secure.yaml", "trust_id: t", "trust_id: u"),
		"CA's content":       func() map[string]string { f := maps.Clone(base); f["ca.pem"] = other.PEM; return f }(),
		"client certificate": func() map[string]string { f := maps.Clone(base); f["cert.pem"], f["key.pem"] = cert2, key2; return f }(),
		"no verification":    edit("clouds.yaml", "region_name: R,", "region_name: R, verify: false,"),
		"interface":          edit("clouds.yaml", "region_name: R,", "interface: internal,"),
	}
	seen := map[string]string{original: "original"}
	for name, files := range changed {
		got := version(files, config)
		if before, ok := seen[got]; ok {
			t.Errorf("%s has the same version as %s", name, before)
		}
		seen[got] = name
	}
	for name, config := range map[string]Config{
		"backend's region": {Region: "R2"},
	} {
		if _, ok := seen[version(base, config)]; ok {
			t.Errorf("%s: the version did not change", name)
		}
	}
}

// TestAccountIsWhatKeystoneChecksFirst: project, region and certificates do not
// change who logs in.
func TestAccountIsWhatKeystoneChecksFirst(t *testing.T) {
	const entry = "auth_url: http://k/v3, username: u, user_domain_id: d, password: p, project_id: x"
	account := func(auth, more string) string {
		found, err := resolveCloud(t, map[string]string{"clouds.yaml": "clouds: {gold: {auth: {" + auth + "}" + more + "}}"}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		return found.Account()
	}
	base := account(entry, "")
	for name, other := range map[string]string{
		"project": account(strings.Replace(entry, "project_id: x", "project_id: y", 1), ""),
		"region":  account(entry, ", region_name: R2, interface: internal, verify: false"),
		"version": account(strings.Replace(entry, "http://k/v3", "http://k", 1), ""),
	} {
		if other != base {
			t.Errorf("another %s is another account", name)
		}
	}
	for name, other := range map[string]string{
		"password":   account(strings.Replace(entry, "password: p", "password: q", 1), ""),
		"user":       account(strings.Replace(entry, "username: u", "username: v", 1), ""),
		"domain":     account(strings.Replace(entry, "domain_id: d", "domain_id: e", 1), ""),
		"Keystone":   account(strings.Replace(entry, "//k", "//l", 1), ""),
		"credential": account("auth_url: http://k/v3, application_credential_id: a, application_credential_secret: p", ""),
	} {
		if other == base {
			t.Errorf("another %s is the same account", name)
		}
	}
	noauth, err := Sources{}.Resolve(Config{Source: Source{Noauth: &Noauth{Endpoint: "http://c/v3"}}})
	if err != nil || noauth.Account() != "" {
		t.Errorf("noauth has the account %q (%v)", noauth.Account(), err)
	}
}
