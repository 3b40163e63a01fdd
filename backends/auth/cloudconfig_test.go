package auth

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func resolveINI(t *testing.T, content string) (Credentials, error) {
	t.Helper()
	dir := authtest.WriteFiles(t, map[string]string{"old.conf": content})
	return Sources{Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{CloudConfig: filepath.Join(dir, "old.conf")}})
}

func TestCloudConfigKeystone(t *testing.T) {
	ca := authtest.NewAuthority(t)
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM})
	tests := map[string]struct {
		content string
		want    gophercloud.AuthOptions
		check   func(t *testing.T, c Credentials)
	}{
		"names": {
			content: "[Global]\nauth-url = http://k:5000/v3\nusername = kube\npassword = p\ndomain-name = Default\ntenant-name = storage\nregion = R1\nca-file = " + dir + "/ca.pem\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k:5000/v3/", Username: "kube", Password: "p", DomainName: "Default", AllowReauth: true,
				Scope: &gophercloud.AuthScope{ProjectName: "storage", DomainName: "Default"}},
			check: func(t *testing.T, c Credentials) {
				equal(t, c.Endpoint.Region, "R1")
				if c.TLS.RootCAs == nil {
					t.Error("ca-file was not read")
				}
			},
		},
		"ids": {
			content: "[Global]\nauth-url=http://k/v3\nuser-id=u\npassword=p\ndomain-id=d\ntenant-id=x\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k/v3/", UserID: "u", Password: "p", AllowReauth: true,
				Scope: &gophercloud.AuthScope{ProjectID: "x"}},
		},
		"domain by id": {
			content: "[Global]\nauth-url=http://k/v3\nusername=kube\npassword=p\ndomain-id=d\ntenant-name=x\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k/v3/", Username: "kube", Password: "p", DomainID: "d", AllowReauth: true,
				Scope: &gophercloud.AuthScope{ProjectName: "x", DomainID: "d"}},
		},
		"separate domains": {
			content: "[Global]\nauth-url=http://k/v3\nusername=kube\npassword=p\nuser-domain-name=u\ntenant-domain-name=t\ntenant-name=x\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k/v3/", Username: "kube", Password: "p", DomainName: "u", AllowReauth: true,
				Scope: &gophercloud.AuthScope{ProjectName: "x", DomainName: "t"}},
		},
		"trust without a project keeps the user's domain": {
			content: "[Global]\nauth-url=http://k/v3\nusername=kube\npassword=p\ndomain-name=Default\ntrust-id=t\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k/v3/", Username: "kube", Password: "p", DomainName: "Default", AllowReauth: true,
				Scope: &gophercloud.AuthScope{TrustID: "t"}},
		},
		"v2.0 is repaired, with the domain it implied": {
			content: "[Global]\nauth-url=http://k:5000/v2.0\nusername=kube\npassword=p\ntenant-name=x\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k:5000/v3/", Username: "kube", Password: "p", DomainID: "default", AllowReauth: true,
				Scope: &gophercloud.AuthScope{ProjectName: "x", DomainID: "default"}},
		},
		"application credential": {
			content: "[Global]\nauth-url=http://k/v3\napplication-credential-id=a\napplication-credential-secret=s\ntls-insecure=true\n",
			want:    gophercloud.AuthOptions{IdentityEndpoint: "http://k/v3/", ApplicationCredentialID: "a", ApplicationCredentialSecret: "s", AllowReauth: true},
			check:   func(t *testing.T, c Credentials) { equal(t, c.TLS.InsecureSkipVerify, true) },
		},
		"case, comments, quotes and other sections": {
			content: "\ufeff# cloud config\r\n[LoadBalancer]\nlb-version v2\nsubnet = \"open\n[LoadBalancerClass \"x\"]\npassword=wrong\n[GLOBAL] ; ours\n Auth-URL = \"http://k/v3\" # Keystone\nUSER-ID=u;u\npassword = \"p #1; \\\"q\\\"\" ; said\ntenant-id = x\t# ours\n; end\n",
			want: gophercloud.AuthOptions{IdentityEndpoint: "http://k/v3/", UserID: "u;u", Password: `p #1; "q"`, AllowReauth: true,
				Scope: &gophercloud.AuthScope{ProjectID: "x"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := resolveINI(t, test.content)
			if err != nil {
				t.Fatal(err)
			}
			got, want := found.Keystone, test.want
			if (got.Scope == nil) != (want.Scope == nil) || got.Scope != nil && *got.Scope != *want.Scope {
				t.Errorf("scope %+v, want %+v", got.Scope, want.Scope)
			}
			got.Scope, want.Scope = nil, nil
			equal(t, got, want)
			if test.check != nil {
				test.check(t, found)
			}
		})
	}
}

// TestCloudConfigOfOtherPrograms reads what the files of real clusters have.
func TestCloudConfigOfOtherPrograms(t *testing.T) {
	const account = "auth-url=https://k/v3\nusername=kube\npassword=p\ndomain-name=D\n"
	clouds := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds: {openstack: {interface: internal, auth: {auth_url: http://k, user_id: u, password: of-clouds, project_id: x}}}"}) + "/clouds.yaml"
	for name, test := range map[string]struct {
		content, want string
	}{
		"os-endpoint-type":          {account + "tenant-id=x\nos-endpoint-type=internal\n", "password p, project x, interface internal, verified"},
		"project-id":                {account + "project-id=x\n", "password p, project x, interface public, verified"},
		"tls-insecure as yes":       {account + "tenant-id=x\ntls-insecure = yes\n", "password p, project x, interface public, not verified"},
		"tls-insecure as 1":         {account + "tenant-id=x\ntls-insecure=1\n", "password p, project x, interface public, not verified"},
		"tls-insecure as True":      {account + "tenant-id=x\ntls-insecure=True\n", "password p, project x, interface public, not verified"},
		"tls-insecure alone":        {account + "tenant-id=x\ntls-insecure # for now\n", "password p, project x, interface public, not verified"},
		"tls-insecure as off":       {account + "tenant-id=x\ntls-insecure=off\n", "password p, project x, interface public, verified"},
		"tls-insecure as maybe":     {account + "tenant-id=x\ntls-insecure=maybe\n", "$FILE: tls-insecure is neither true nor false"},
		"a line goes on":            {strings.Replace(account, "=p", "=\"a\\\nb\"", 1) + "tenant-id=x\n", "password ab, project x, interface public, verified"},
		"tenant and project":        {account + "tenant-id=x\nproject-id=y\n", "$FILE: tenant-id contradicts project-id; keep one of them"},
		"use-clouds":                {"use-clouds=true\nclouds-file=" + clouds + "\ncloud=openstack\n", "password of-clouds, project x, interface internal, verified"},
		"use-clouds and more":       {"use-clouds=yes\nclouds-file=" + clouds + "\ncloud=openstack\npassword=q\n", "password q, project x, interface internal, verified"},
		"use-clouds, no cloud":      {"use-clouds=true\n", "$FILE: use-clouds needs a cloud: the name of an entry of clouds.yaml"},
		"use-clouds, another":       {"use-clouds=true\ncloud=gold\nclouds-file=" + clouds + "\n", "$FILE: " + clouds + ` has no cloud "gold"; it has "openstack"`},
		"use-clouds as no":          {"use-clouds=no\n" + account + "tenant-id=x\n", "password p, project x, interface public, verified"},
		"several clouds":            {"[Global \"one\"]\n" + account, "$FILE: there are several clouds, as [Global \"name\"]; give each backend a file with the [Global] of its cloud"},
		"secret-name":               {"secret-name=x\n", "$FILE: secret-name names a Secret with the credentials, which is not read; write what it contains into [Global]"},
		"a trustee":                 {account + "trust-id=t\ntrustee-id=u\n", "$FILE: trustee-id and trustee-password cannot be used; give the trustee as user, with trust-id"},
		"no project":                {account, "$FILE: the credentials name no project; give project_id, or project_name and its domain"},
		"keys of clouds.yaml alone": {account + "tenant-id=x\nvolume-interface=admin\n", "password p, project x, interface admin, verified"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := authtest.WriteFiles(t, map[string]string{"old.conf": "[Global]\n" + test.content})
			found, err := Sources{Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{CloudConfig: dir + "/old.conf"}})
			equal(t, described(found, err), strings.ReplaceAll(test.want, "$FILE", dir+"/old.conf"))
		})
	}
}

// described names what matters of credentials.
func described(found Credentials, err error) string {
	if err != nil {
		return err.Error()
	}
	verified := "verified"
	if found.TLS.InsecureSkipVerify {
		verified = "not verified"
	}
	return fmt.Sprintf("password %s, project %s, interface %s, %s", found.Keystone.Password, found.Keystone.Scope.ProjectID, found.Endpoint.Availability, verified)
}

// TestEnvironmentOfRCFiles reads variables as openrc files set them.
func TestEnvironmentOfRCFiles(t *testing.T) {
	for name, test := range map[string]struct {
		more map[string]string
		want string
	}{
		"insecure":          {map[string]string{"OS_INSECURE": "True"}, "password p, project x, interface public, not verified"},
		"insecure as maybe": {map[string]string{"OS_INSECURE": "maybe"}, "OS_INSECURE is neither true nor false"},
		"tenant":            {map[string]string{"OS_TENANT_ID": "y"}, "OS_TENANT_ID contradicts OS_PROJECT_ID; keep one of them"},
		"Block Storage's":   {map[string]string{"OS_VOLUMEV3_INTERFACE": "internalURL"}, "password p, project x, interface internal, verified"},
		"a cloud":           {map[string]string{"OS_CLOUD": "gold"}, "OS_CLOUD means a file, which auth.environment does not read; use auth.cloud, or unset the variable"},
	} {
		variables := map[string]string{"OS_AUTH_URL": "http://k", "OS_USER_ID": "u", "OS_PASSWORD": "p", "OS_PROJECT_ID": "x"}
		maps.Copy(variables, test.more)
		found, err := Sources{Getenv: authtest.Environment(variables)}.Resolve(Config{Source: Source{Environment: true}})
		if got := described(found, err); got != test.want {
			t.Errorf("%s: %s\nwant %s", name, got, test.want)
		}
	}
}

// TestWarningsAboutCredentials names what an operator may not have meant.
func TestWarningsAboutCredentials(t *testing.T) {
	dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds:\n  gold:\n    verify: false\n    volume-api-version: 2\n    compute_api_version: 2\n    region: R\n    auth: {auth_url: http://k, user_id: u, password: p, project_id: x}\n"})
	sources, config := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}, Config{Source: Source{Cloud: "gold"}}
	found, err := sources.Resolve(config)
	equal(t, err, nil)
	equal(t, found.Warnings, []string{
		"the servers' certificates are not verified (verify: false): anyone on the network can steal the password and the tokens; name the authority in cacert instead",
		dir + "/clouds.yaml:4: volume-api-version has no effect: the program speaks version 3 of Cinder's API",
	})
	var unknown []string
	for _, key := range sources.UnknownKeys(config) {
		unknown = append(unknown, key.At+" "+key.Key)
	}
	equal(t, unknown, []string{dir + "/clouds.yaml:5 compute_api_version", dir + "/clouds.yaml:6 region"})

	for secret, want := range map[string][]string{
		"$OS_PASSWORD": {"$DIR/clouds.yaml:2: password looks like a variable that nothing has replaced; write its value instead"},
		"${OS_SECRET}": {"$DIR/clouds.yaml:2: password looks like a variable that nothing has replaced; write its value instead"},
		"$hunter2":     nil,
		"hunter${2}":   nil,
	} {
		dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds:\n  gold: {auth: {auth_url: http://k, user_id: u, project_id: x, password: '" + secret + "'}}\n"})
		found, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Resolve(config)
		equal(t, err, nil)
		for i := range want {
			want[i] = strings.ReplaceAll(want[i], "$DIR", dir)
		}
		equal(t, found.Warnings, want)
	}
}

// TestAnOddEntryStopsOnlyItsUsers: the other entries of the file are for other
// programs.
func TestAnOddEntryStopsOnlyItsUsers(t *testing.T) {
	const gold = "  gold: {auth: {auth_url: http://k, user_id: u, password: p, project_id: x}}\n"
	for name, other := range map[string]string{
		"a list":           "  zinc: [1]\n",
		"twice":            "  zinc: {}\n  zinc: {}\n",
		"a key twice":      "  zinc: {auth: {password: p, password: q}}\n",
		"no mapping":       "  zinc: {auth: text, regions: 7, verify: [x]}\n",
		"itself":           "  zinc: &z {<<: *z}\n",
		"a number as name": "  7: {}\n  ~: 1\n  [a, b]: c\n",
	} {
		dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds:\n" + other + gold, "secure.yaml": "clouds:\n" + other})
		sources := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}
		if _, err := sources.Resolve(Config{Source: Source{Cloud: "gold"}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCloudConfigPasswords(t *testing.T) {
	for written, want := range map[string]string{
		`plain`:              `plain`,
		`a#b;c`:              `a#b;c`,
		`"a # b"`:            `a # b`,
		`a # comment`:        `a`,
		`a ; comment`:        `a`,
		`with blanks inside`: `with blanks inside`,
		`  around  `:         `around`,
		`"  kept  "`:         `  kept  `,
		`a=b==`:              `a=b==`,
		`%(user)s$HOME`:      `%(user)s$HOME`,
		"`tick":              "`tick",
		`'single'`:           `'single'`,
		`C:\new\table`:       `C:\new\table`,
		`"a\\b\"c"`:          `a\b"c`,
		`"tab\tline\n"`:      "tab\tline\n",
		`""`:                 ``,
		`pre"quoted # "post`: `prequoted # post`,
		`pässwörd`:           `pässwörd`,
	} {
		file, err := parseINI([]byte("[Global]\npassword = "+written+"\n"), "global")
		if err != nil {
			t.Errorf("%s: %v", written, err)
			continue
		}
		if got := file["global"]["password"]; got != want {
			t.Errorf("%s was read as %q, want %q", written, got, want)
		}
	}
}

func TestCloudConfigNoauth(t *testing.T) {
	tests := map[string]struct {
		content string
		want    Noauth
	}{
		"as documented":          {"[Global]\ncinder-endpoint=http://host:8776/v2\n", Noauth{Endpoint: "http://host:8776/v2", User: "admin", Project: "admin"}},
		"as coded":               {"[Cinder]\nendpoint=http://host:8776/v3\n[Global]\nusername=kube\ntenant-name=demo\n", Noauth{Endpoint: "http://host:8776/v3", User: "kube", Project: "demo"}},
		"tenant by id":           {"[Global]\ncinder-endpoint=http://host\ntenant-id=0123abcd\n", Noauth{Endpoint: "http://host", User: "admin", Project: "0123abcd"}},
		"quoted":                 {"[global]\ncinder-endpoint=\"http://host:8776/v3\"\n", Noauth{Endpoint: "http://host:8776/v3", User: "admin", Project: "admin"}},
		"project in the address": {"[Global]\ncinder-endpoint=http://host:8776/v3/0123abcd\n", Noauth{Endpoint: "http://host:8776/v3/0123abcd", User: "admin", Project: "0123abcd"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := resolveINI(t, test.content)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, *found.Noauth, test.want)
		})
	}
}

func TestUnusableCloudConfig(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"both kinds":     {"[Global]\nauth-url=http://k/v3\n[Cinder]\nendpoint=http://c\n", ": both auth-url and a noauth endpoint are given; keep one of them"},
		"neither kind":   {"[Global]\nusername=u\n", ": neither auth-url nor cinder-endpoint in [Global] nor endpoint in [Cinder] is given"},
		"empty file":     {"", ": neither auth-url nor cinder-endpoint in [Global] nor endpoint in [Cinder] is given"},
		"open section":   {"[Global\npassword=hunter2\n", ":1: not a section of the form [Name]"},
		"text after it":  {"\n[Global] hunter2\n", ":2: not a section of the form [Name]"},
		"no equals sign": {"[Global]\npassword hunter2\n", ":2: not of the form key=value"},
		"no key":         {"[Global]\n= hunter2\n", ":2: not of the form key=value"},
		"backslash":      {"[Global]\npassword=hunter2\\\ntenant-name=x\n", ":2: the value ends with a backslash, so other programs join the next line to it; put it in quotes, and write the backslash twice"},
		"open quotes":    {"[Global]\nauth-url=http://k\npassword=\"hunter2\n", ":3: the value's quotes are not closed"},
		"Latin-1":        {"[Global]\npassword=hunter2\xfc\n", ":1: the file is not UTF-8"},
		"no domain":      {"[Global]\nauth-url=http://k/v3\nusername=kube\npassword=hunter2\n", `: the credentials do not say to which domain user "kube" belongs; give user_domain_id or user_domain_name`},
		"noauth address": {"[Cinder]\nendpoint=c:8776\n", `: noauth endpoint "c:8776" is not an http or https address`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := authtest.WriteFiles(t, map[string]string{"old.conf": test.content})
			_, err := Sources{Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{CloudConfig: filepath.Join(dir, "old.conf")}})
			if want := dir + "/old.conf" + test.want; authtest.ErrorText(err) != want {
				t.Errorf("error %q\nwant  %q", authtest.ErrorText(err), want)
			}
		})
	}
	_, err := Sources{}.Resolve(Config{Source: Source{CloudConfig: "/nowhere/old.conf"}})
	equal(t, authtest.ErrorText(err), "cannot read /nowhere/old.conf: no such file or directory")
}

// FuzzINI checks that any quoted value is read back, and that no error quotes
// the file.
func FuzzINI(f *testing.F) {
	f.Add("p#ss;w\"\\rd", "[x")
	f.Add(" \t", "a = \"b")
	f.Add("\\", "= b")
	f.Fuzz(func(t *testing.T, value, noise string) {
		escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value)
		file, err := parseINI([]byte("[Global]\nkey = \""+escaped+"\" # comment\nnext = 1\n"), "global")
		if strings.ToValidUTF8(value, "") != value {
			if err == nil {
				t.Error("invalid UTF-8 was accepted")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := file["global"]["key"]; got != value || file["global"]["next"] != "1" {
			t.Errorf("%q was read back as %q", value, got)
		}
		const secret = "hunter2hunter2"
		if _, err := parseINI([]byte("[Global]\n"+noise+secret), "global"); err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("error %q quotes the file", err)
		}
	})
}

func TestEnvironmentCredentials(t *testing.T) {
	ca := authtest.NewAuthority(t)
	_, _, cert, key := ca.Issue("client", false)
	dir := authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM, "cert.pem": cert, "key.pem": key})
	user := map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_USER_ID": "u", "OS_PASSWORD": "p", "OS_PROJECT_ID": "x"}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(user)
		maps.Copy(all, more)
		return all
	}
	tests := map[string]struct {
		variables map[string]string
		want      gophercloud.AuthOptions
		check     func(t *testing.T, c Credentials)
	}{
		"ids": {user, gophercloud.AuthOptions{UserID: "u", Password: "p", Scope: &gophercloud.AuthScope{ProjectID: "x"}}, nil},
		"names": {
			map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_USERNAME": "kube", "OS_PASSWORD": "p", "OS_USER_DOMAIN_NAME": "ud", "OS_PROJECT_NAME": "x", "OS_PROJECT_DOMAIN_NAME": "pd"},
			gophercloud.AuthOptions{Username: "kube", Password: "p", DomainName: "ud", Scope: &gophercloud.AuthScope{ProjectName: "x", DomainName: "pd"}}, nil},
		"names of old": {
			map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_USERNAME": "kube", "OS_PASSWORD": "p", "OS_DOMAIN_ID": "d", "OS_TENANT_NAME": "x"},
			gophercloud.AuthOptions{Username: "kube", Password: "p", DomainID: "d", Scope: &gophercloud.AuthScope{ProjectName: "x", DomainID: "d"}}, nil},
		"domain by name": {
			map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_USERNAME": "kube", "OS_PASSWORD": "p", "OS_DOMAIN_NAME": "d", "OS_TENANT_ID": "x"},
			gophercloud.AuthOptions{Username: "kube", Password: "p", DomainName: "d", Scope: &gophercloud.AuthScope{ProjectID: "x"}}, nil},
		"only the user's domain, as most rc files": {
			map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_USERNAME": "kube", "OS_PASSWORD": "p", "OS_USER_DOMAIN_ID": "d", "OS_PROJECT_NAME": "x"},
			gophercloud.AuthOptions{Username: "kube", Password: "p", DomainID: "d", Scope: &gophercloud.AuthScope{ProjectName: "x", DomainID: "d"}}, nil},
		"user id of old": {map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_USERID": "u", "OS_PASSWORD": "p", "OS_PROJECT_ID": "x"}, gophercloud.AuthOptions{UserID: "u", Password: "p", Scope: &gophercloud.AuthScope{ProjectID: "x"}}, nil},
		"trust":          {with(map[string]string{"OS_TRUST_ID": "t"}), gophercloud.AuthOptions{UserID: "u", Password: "p", Scope: &gophercloud.AuthScope{TrustID: "t"}}, nil},
		"token":          {map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_AUTH_TYPE": "token", "OS_TOKEN": "tok", "OS_PROJECT_ID": "x"}, gophercloud.AuthOptions{TokenID: "tok", Scope: &gophercloud.AuthScope{ProjectID: "x"}}, nil},
		"auth_type":      {with(map[string]string{"OS_AUTH_TYPE": "password", "OS_TOKEN": "stale"}), gophercloud.AuthOptions{UserID: "u", Password: "p", Scope: &gophercloud.AuthScope{ProjectID: "x"}}, nil},
		"application credential": {
			map[string]string{"OS_AUTH_URL": "http://k/v3", "OS_AUTH_TYPE": "v3applicationcredential", "OS_APPLICATION_CREDENTIAL_ID": "a", "OS_APPLICATION_CREDENTIAL_SECRET": "s"},
			gophercloud.AuthOptions{ApplicationCredentialID: "a", ApplicationCredentialSecret: "s"}, nil},
		"region, interface and certificates": {
			with(map[string]string{"OS_REGION_NAME": "R", "OS_INTERFACE": "internal", "OS_CACERT": dir + "/ca.pem", "OS_CERT": dir + "/cert.pem", "OS_KEY": dir + "/key.pem"}),
			gophercloud.AuthOptions{UserID: "u", Password: "p", Scope: &gophercloud.AuthScope{ProjectID: "x"}},
			func(t *testing.T, c Credentials) {
				equal(t, c.Endpoint, gophercloud.EndpointOpts{Region: "R", Availability: gophercloud.AvailabilityInternal})
				equal(t, len(c.TLS.Certificates), 1)
				equal(t, c.TLS.RootCAs != nil, true)
				equal(t, c.TLS.InsecureSkipVerify, false)
			}},
		"insecure, endpoint type of old": {
			with(map[string]string{"OS_INSECURE": "1", "OS_ENDPOINT_TYPE": "adminURL"}),
			gophercloud.AuthOptions{UserID: "u", Password: "p", Scope: &gophercloud.AuthScope{ProjectID: "x"}},
			func(t *testing.T, c Credentials) {
				equal(t, c.Endpoint.Availability, gophercloud.AvailabilityAdmin)
				equal(t, c.TLS.InsecureSkipVerify, true)
			}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			found, err := Sources{Getenv: authtest.Environment(test.variables)}.Resolve(Config{Source: Source{Environment: true}})
			if err != nil {
				t.Fatal(err)
			}
			got, want := found.Keystone, test.want
			if (got.Scope == nil) != (want.Scope == nil) || got.Scope != nil && *got.Scope != *want.Scope {
				t.Errorf("scope %+v, want %+v", got.Scope, want.Scope)
			}
			want.IdentityEndpoint, want.AllowReauth = "http://k/v3/", want.TokenID == ""
			got.Scope, want.Scope = nil, nil
			equal(t, got, want)
			if test.check != nil {
				test.check(t, found)
			}
		})
	}
	t.Run("noauth", func(t *testing.T) {
		for _, variables := range []map[string]string{
			{"OS_CINDER_ENDPOINT": "http://c:8776/v2", "OS_USERNAME": "kube", "OS_TENANT_NAME": "demo"},
			{"OS_CINDER_ENDPOINT": "http://c:8776/v2", "OS_USERNAME": "kube", "OS_PROJECT_NAME": "demo"},
		} {
			found, err := Sources{Getenv: authtest.Environment(variables)}.Resolve(Config{Source: Source{Environment: true}})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, *found.Noauth, Noauth{Endpoint: "http://c:8776/v2", User: "kube", Project: "demo"})
		}
	})
	t.Run("nothing", func(t *testing.T) {
		_, err := Sources{Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{Environment: true}})
		equal(t, authtest.ErrorText(err), "the environment has neither OS_AUTH_URL nor OS_CINDER_ENDPOINT")
	})
	t.Run("the process's by default", func(t *testing.T) {
		t.Setenv("OS_CINDER_ENDPOINT", "http://c:8776/v3")
		found, err := Sources{}.Resolve(Config{Source: Source{Environment: true}})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, found.Noauth.Endpoint, "http://c:8776/v3")
	})
}

func TestNoauthAccounts(t *testing.T) {
	tests := map[string]struct {
		noauth Noauth
		want   string
	}{
		"no endpoint":             {Noauth{}, "the noauth endpoint is empty; give Cinder's address such as http://cinder:8776/v3"},
		"no scheme":               {Noauth{Endpoint: "cinder:8776"}, `noauth endpoint "cinder:8776" is not an http or https address`},
		"password in the address": {Noauth{Endpoint: "ftp://u:hunter2@cinder"}, `noauth endpoint "ftp://cinder" is not an http or https address`},
		"another project":         {Noauth{Endpoint: "http://c/v3/0123abcd", Project: "admin"}, `the noauth endpoint http://c/v3/0123abcd ends with project "0123abcd", but the configured project is "admin"; keep one of them`},
		"another project behind a proxy's password": {Noauth{Endpoint: "http://u:hunter2@c/v3/0123abcd", Project: "admin"}, `the noauth endpoint http://c/v3/0123abcd ends with project "0123abcd", but the configured project is "admin"; keep one of them`},
		"more behind it": {Noauth{Endpoint: "http://c/v3/0123abcd/volumes"}, "noauth endpoint http://c/v3/0123abcd/volumes has extra text after the version and project; give Cinder's address such as http://cinder:8776/v3"},
		"colon":          {Noauth{Endpoint: "http://c", User: "a:b"}, "user and project of a noauth endpoint must not contain colons, slashes or blanks, since they are sent as user:project"},
		"line break":     {Noauth{Endpoint: "http://c", Project: "a\nX-Source: b"}, "user and project of a noauth endpoint must not contain colons, slashes or blanks, since they are sent as user:project"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Sources{}.Resolve(Config{Source: Source{Noauth: &test.noauth}})
			equal(t, authtest.ErrorText(err), test.want)
		})
	}
	t.Run("version", func(t *testing.T) {
		versions := map[string]bool{}
		for _, noauth := range []Noauth{{Endpoint: "http://c"}, {Endpoint: "http://d"}, {Endpoint: "http://c", User: "u"}, {Endpoint: "http://c", Project: "p"}} {
			found, err := Sources{}.Resolve(Config{Source: Source{Noauth: &noauth}})
			if err != nil {
				t.Fatal(err)
			}
			versions[found.Version] = true
		}
		equal(t, len(versions), 4)
	})
}
