package backends

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestLoginBody checks what Keystone is really sent for every way of writing
// credentials down, against the bodies of the Identity API reference
// ("Password authentication with scoped authorization" and its companions).
func TestLoginBody(t *testing.T) {
	const byName = `{"methods": ["password"], "password": {"user": {"name": "kube", "password": "s3cr3t", "domain": {"name": "Default"}}}}`
	tests := map[string]struct {
		clouds string // the auth section and what else is in the entry
		want   string
	}{
		"password by names": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, user_domain_name: Default, project_name: storage, project_domain_name: Projects}}`,
			want:   `{"identity": ` + byName + `, "scope": {"project": {"name": "storage", "domain": {"name": "Projects"}}}}`,
		},
		"password by ids": {
			clouds: `{auth: {auth_url: $URL, user_id: u1, password: s3cr3t, project_id: p1}}`,
			want:   `{"identity": {"methods": ["password"], "password": {"user": {"id": "u1", "password": "s3cr3t"}}}, "scope": {"project": {"id": "p1"}}}`,
		},
		"ids win over names, and a domain beside an id is left out": {
			clouds: `{auth: {auth_url: $URL, user_id: u1, username: kube, user_domain_name: Default, password: s3cr3t, project_id: p1, project_name: storage, project_domain_name: Default}}`,
			want:   `{"identity": {"methods": ["password"], "password": {"user": {"id": "u1", "password": "s3cr3t"}}}, "scope": {"project": {"id": "p1"}}}`,
		},
		"a domain's id wins over its name": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, user_domain_id: default, user_domain_name: Default, project_name: storage, project_domain_id: default, project_domain_name: Default}}`,
			want: `{"identity": {"methods": ["password"], "password": {"user": {"name": "kube", "password": "s3cr3t", "domain": {"id": "default"}}}},
				"scope": {"project": {"name": "storage", "domain": {"id": "default"}}}}`,
		},
		"one domain for user and project": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, domain_name: Default, project_name: storage}}`,
			want:   `{"identity": ` + byName + `, "scope": {"project": {"name": "storage", "domain": {"name": "Default"}}}}`,
		},
		"the user's domain serves the project": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, user_domain_name: Default, project_name: storage}}`,
			want:   `{"identity": ` + byName + `, "scope": {"project": {"name": "storage", "domain": {"name": "Default"}}}}`,
		},
		"default domain": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, default_domain: default, project_name: storage}}`,
			want: `{"identity": {"methods": ["password"], "password": {"user": {"name": "kube", "password": "s3cr3t", "domain": {"id": "default"}}}},
				"scope": {"project": {"name": "storage", "domain": {"id": "default"}}}}`,
		},
		"without a project Keystone takes the user's default one, whatever domain is named": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, domain_name: Default}}`,
			want:   `{"identity": ` + byName + `}`,
		},
		"the v2.0 API's one domain": {
			clouds: `{auth: {auth_url: $URL/v2.0, username: kube, password: s3cr3t, project_name: storage}}`,
			want: `{"identity": {"methods": ["password"], "password": {"user": {"name": "kube", "password": "s3cr3t", "domain": {"id": "default"}}}},
				"scope": {"project": {"name": "storage", "domain": {"id": "default"}}}}`,
		},
		"application credential by id": {
			clouds: `{auth_type: v3applicationcredential, auth: {auth_url: $URL/v3, application_credential_id: ac1, application_credential_secret: s3cr3t}}`,
			want:   `{"identity": {"methods": ["application_credential"], "application_credential": {"id": "ac1", "secret": "s3cr3t"}}}`,
		},
		"application credential by name": {
			clouds: `{auth_type: v3applicationcredential, auth: {auth_url: $URL/v3/, application_credential_name: ac, application_credential_secret: s3cr3t, username: kube, user_domain_name: Default}}`,
			want: `{"identity": {"methods": ["application_credential"], "application_credential":
				{"name": "ac", "secret": "s3cr3t", "user": {"name": "kube", "domain": {"name": "Default"}}}}}`,
		},
		"application credential by name and user id": {
			clouds: `{auth: {auth_url: $URL, application_credential_name: ac, application_credential_secret: s3cr3t, user_id: u1, user_domain_name: Default}}`,
			want:   `{"identity": {"methods": ["application_credential"], "application_credential": {"name": "ac", "secret": "s3cr3t", "user": {"id": "u1"}}}}`,
		},
		"an application credential is never mixed with a password and project beside it": {
			clouds: `{auth: {auth_url: $URL, application_credential_id: ac1, application_credential_secret: s3cr3t, username: kube, password: other, project_id: p1, user_domain_name: Default}}`,
			want:   `{"identity": {"methods": ["application_credential"], "application_credential": {"id": "ac1", "secret": "s3cr3t"}}}`,
		},
		"auth_type chooses": {
			clouds: `{auth_type: password, auth: {auth_url: $URL, application_credential_id: ac1, application_credential_secret: other, token: other, username: kube, password: s3cr3t, project_id: p1, user_domain_name: Default}}`,
			want:   `{"identity": ` + byName + `, "scope": {"project": {"id": "p1"}}}`,
		},
		"trust": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, user_domain_name: Default, trust_id: t1}}`,
			want:   `{"identity": ` + byName + `, "scope": {"OS-TRUST:trust": {"id": "t1"}}}`,
		},
		"a trust replaces the project, which Keystone refuses beside it": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, domain_name: Default, project_name: storage, trust_id: t1}}`,
			want:   `{"identity": ` + byName + `, "scope": {"OS-TRUST:trust": {"id": "t1"}}}`,
		},
		"token for a project": {
			clouds: `{auth_type: token, auth: {auth_url: $URL, token: tok, project_id: p1}}`,
			want:   `{"identity": {"methods": ["token"], "token": {"id": "tok"}}, "scope": {"project": {"id": "p1"}}}`,
		},
		"token as it is": {
			clouds: `{auth: {auth_url: $URL, token: tok}}`,
			want:   `{"validated": "tok"}`,
		},
		"scalars stay as they are written": {
			clouds: `{auth: {auth_url: $URL, user_id: 0017, password: 0123, project_id: 00000000000000000000000000000001}}`,
			want:   `{"identity": {"methods": ["password"], "password": {"user": {"id": "0017", "password": "0123"}}}, "scope": {"project": {"id": "00000000000000000000000000000001"}}}`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := newCloudServer(t)
			pool := NewPool(PoolOptions{Sources: cloud.clouds("clouds: {gold: " + test.clouds + "}"), Metrics: testMetrics()})
			if _, err := pool.Client(t.Context(), Config{Name: "gold", Auth: Auth{Cloud: "gold"}}); err != nil {
				t.Fatal(err)
			}
			var want map[string]any
			if err := json.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
			got := cloud.lastLogin()
			if auth, ok := got["auth"].(map[string]any); ok {
				got = auth
			}
			if !reflect.DeepEqual(got, want) {
				encoded, _ := json.Marshal(got)
				t.Errorf("Keystone was sent\n%s\nwant\n%s", encoded, test.want)
			}
			if n := cloud.loginCount(); n != 1 {
				t.Errorf("%d requests to log in, want 1 and no discovery", n)
			}
		})
	}
}

func TestUnusableCredentials(t *testing.T) {
	tests := map[string]struct{ entry, want string }{
		"no auth_url":                {`{auth: {username: kube}}`, "the credentials name no auth_url"},
		"no auth at all":             {`{region_name: R}`, "the credentials name no auth_url"},
		"auth_url without a scheme":  {`{auth: {auth_url: "keystone/v3", user_id: u, password: p}}`, `auth_url "keystone/v3" is not an http or https address`},
		"auth_url with a password":   {`{auth: {auth_url: "ftp://u:hunter2@keystone/v3", user_id: u, password: p}}`, `auth_url "ftp://keystone/v3" is not an http or https address`},
		"nothing to log in with":     {`{auth: {auth_url: "http://k"}}`, "the credentials have no password, application credential or token"},
		"auth_type without its part": {`{auth_type: password, auth: {auth_url: "http://k", token: t}}`, "the credentials have no password"},
		"token without its part":     {`{auth_type: v3token, auth: {auth_url: "http://k", password: p}}`, "the credentials have no token"},
		"application without name":   {`{auth_type: v3applicationcredential, auth: {auth_url: "http://k"}}`, "the credentials have no application_credential_id or application_credential_name"},
		"application without secret": {`{auth: {auth_url: "http://k", application_credential_id: a}}`, "the application credential has no secret"},
		"application with a trust":   {`{auth: {auth_url: "http://k", application_credential_id: a, application_credential_secret: s, trust_id: t}}`, "a trust is used with user and password, not with an application credential"},
		"another auth_type":          {`{auth_type: v3oidcpassword, auth: {auth_url: "http://k"}}`, `auth_type "v3oidcpassword" is not supported; use password, v3applicationcredential or token`},
		"no user":                    {`{auth: {auth_url: "http://k", password: p}}`, "the credentials name no user; give username or user_id"},
		"no user domain":             {`{auth: {auth_url: "http://k", username: kube, password: p, project_id: x}}`, `the credentials do not say to which domain user "kube" belongs; give user_domain_id or user_domain_name`},
		"no project domain":          {`{auth: {auth_url: "http://k", user_id: u, password: p, project_name: x}}`, `the credentials do not say to which domain project "x" belongs; give project_domain_id or project_domain_name, or project_id`},
		"system scope":               {`{auth: {auth_url: "http://k", user_id: u, password: p, system_scope: all}}`, "system_scope is of no use for volumes, which belong to projects; name a project instead"},
		"unknown interface":          {`{interface: intrenal, auth: {auth_url: "http://k", user_id: u, password: p}}`, `interface "intrenal" is none of public, internal and admin`},
		"missing CA":                 {`{cacert: /nowhere/ca.pem, auth: {auth_url: "http://k", user_id: u, password: p}}`, "cannot read certificate /nowhere/ca.pem: no such file or directory"},
		"client key without a cert":  {`{key: /nowhere/key.pem, auth: {auth_url: "http://k", user_id: u, password: p}}`, "a client key is given without a client certificate"},
		"missing client certificate": {`{cert: /nowhere/c.pem, auth: {auth_url: "http://k", user_id: u, password: p}}`, "cannot read certificate /nowhere/c.pem: no such file or directory"},
		"inline key that is no PEM":  {`{cert: "-----BEGIN hunter2", auth: {auth_url: "http://k", user_id: u, password: p}}`, "the client certificate cannot be used: tls: failed to find any PEM data in certificate input"},
		"inline CA that is no PEM":   {`{cacert: "-----BEGIN hunter2", auth: {auth_url: "http://k", user_id: u, password: p}}`, "the CA certificate is not a PEM certificate"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := writeFiles(t, map[string]string{"clouds.yaml": "clouds: {gold: " + test.entry + "}"})
			_, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: noEnvironment}.resolve(Config{Name: "b", Auth: Auth{Cloud: "gold"}})
			if err == nil || err.Error() != "backend b: "+test.want {
				t.Errorf("error %v\nwant  backend b: %s", err, test.want)
			}
			if !IsKind(err, KindConfig) {
				t.Errorf("kind %s, want Config", KindOf(err))
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("the error shows a secret")
			}
		})
	}
}

func TestIdentityV3(t *testing.T) {
	for address, want := range map[string]string{
		"http://k:5000":                "http://k:5000/v3/",
		"http://k:5000/":               "http://k:5000/v3/",
		"http://k:5000/v3":             "http://k:5000/v3/",
		"http://k:5000/v3//":           "http://k:5000/v3/",
		"http://k/identity":            "http://k/identity/v3/",
		"http://k/dev1/identity/v3":    "http://k/dev1/identity/v3/",
		"http://k:5000/v2.0":           "http://k:5000/v3/",
		"http://k:5000/identity/v2.0/": "http://k:5000/identity/v3/",
		"http://k:5000/v2":             "http://k:5000/v3/",
	} {
		if got, _ := identityV3(address); got != want {
			t.Errorf("identityV3(%q) = %q, want %q", address, got, want)
		}
	}
}

func TestWithoutUser(t *testing.T) {
	for address, want := range map[string]string{
		"http://cinder:8776/v3":         "http://cinder:8776/v3",
		"http://u:p@cinder:8776/v3/x@y": "http://cinder:8776/v3/x@y",
		"http://u:p@ss@cinder":          "http://cinder",
		"u:p@cinder/v3":                 "cinder/v3",
		"":                              "",
		"http://u:p@":                   "http://",
	} {
		if got := withoutUser(address); got != want {
			t.Errorf("withoutUser(%q) = %q, want %q", address, got, want)
		}
	}
}
