package auth

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

func TestUnusableCredentials(t *testing.T) {
	tests := map[string]struct{ entry, want string }{
		"no auth_url":                {`{auth: {username: kube}}`, "the credentials name no auth_url"},
		"no auth at all":             {`{region_name: R}`, "the credentials name no auth_url"},
		"auth_url without a scheme":  {`{auth: {auth_url: "keystone/v3", user_id: u, password: p}}`, `auth_url "keystone/v3" is not an http or https address`},
		"a slash in the password":    {`{auth: {auth_url: "http://u:hunter2/x@keystone/v3", user_id: u, password: p}}`, `auth_url "http://keystone/v3" is not an http or https address`},
		"auth_url with a password":   {`{auth: {auth_url: "ftp://u:hunter2@keystone/v3", user_id: u, password: p}}`, `auth_url "ftp://keystone/v3" is not an http or https address`},
		"nothing to log in with":     {`{auth: {auth_url: "http://k"}}`, "the credentials have no password, application credential or token"},
		"auth_type without its part": {`{auth_type: password, auth: {auth_url: "http://k", token: t}}`, "the credentials have no password"},
		"token without its part":     {`{auth_type: v3token, auth: {auth_url: "http://k", password: p}}`, "the credentials have no token"},
		"application without name":   {`{auth_type: v3applicationcredential, auth: {auth_url: "http://k"}}`, "the credentials have no application_credential_id or application_credential_name"},
		"application without secret": {`{auth: {auth_url: "http://k", application_credential_id: a}}`, "the application credential has no secret"},
		"application with a trust":   {`{auth: {auth_url: "http://k", application_credential_id: a, application_credential_secret: s, trust_id: t}}`, "a trust needs a user and password, not an application credential"},
		"another auth_type":          {`{auth_type: v3oidcpassword, auth: {auth_url: "http://k"}}`, `auth_type "v3oidcpassword" is not supported; use password, v3applicationcredential or token`},
		"no user":                    {`{auth: {auth_url: "http://k", password: p}}`, "the credentials name no user; give username or user_id"},
		"no user domain":             {`{auth: {auth_url: "http://k", username: kube, password: p, project_id: x}}`, `the credentials do not say to which domain user "kube" belongs; give user_domain_id or user_domain_name`},
		"no project domain":          {`{auth: {auth_url: "http://k", user_id: u, password: p, project_name: x}}`, `the credentials do not say to which domain project "x" belongs; give project_domain_id or project_domain_name, or project_id`},
		"system scope":               {`{auth: {auth_url: "http://k", user_id: u, password: p, system_scope: all}}`, "system_scope cannot be used for volumes, which belong to projects; name a project instead"},
		"unknown interface":          {`{interface: intrenal, auth: {auth_url: "http://k", user_id: u, password: p}}`, `interface "intrenal" is not public, internal or admin`},
		"interface and more":         {`{interface: "internal password hunter2", auth: {auth_url: "http://k", user_id: u, password: p}}`, "interface is not public, internal or admin"},
		"auth_url and more":          {`{auth: {auth_url: "k username kube password hunter2", user_id: u, password: p}}`, "auth_url is not an http or https address"},
		"certificate and more":       {`{cacert: "/nowhere password hunter2", auth: {auth_url: "http://k", user_id: u, password: p}}`, "cannot read the certificate: no such file or directory"},
		"missing CA":                 {`{cacert: /nowhere/ca.pem, auth: {auth_url: "http://k", user_id: u, password: p}}`, "cannot read the certificate in /nowhere/ca.pem: no such file or directory"},
		"client key without a cert":  {`{key: /nowhere/key.pem, auth: {auth_url: "http://k", user_id: u, password: p}}`, "there is a client key without a client certificate"},
		"missing client certificate": {`{cert: /nowhere/c.pem, auth: {auth_url: "http://k", user_id: u, password: p}}`, "cannot read the certificate in /nowhere/c.pem: no such file or directory"},
		"inline key that is no PEM":  {`{cert: "-----BEGIN hunter2", auth: {auth_url: "http://k", user_id: u, password: p}}`, "the client certificate is unusable: tls: failed to find any PEM data in certificate input"},
		"inline CA that is no PEM":   {`{cacert: "-----BEGIN hunter2", auth: {auth_url: "http://k", user_id: u, password: p}}`, "the CA certificate is not a PEM certificate"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds: {gold: " + test.entry + "}"})
			_, err := Sources{CloudsFile: dir + "/clouds.yaml", Getenv: authtest.NoEnvironment}.Resolve(Config{Source: Source{Cloud: "gold"}})
			if err == nil || err.Error() != test.want {
				t.Errorf("error %v\nwant  %s", err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("the error contains a secret")
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
		if got := WithoutUser(address); got != want {
			t.Errorf("WithoutUser(%q) = %q, want %q", address, got, want)
		}
	}
}

func TestCertificateInTheHomeDirectory(t *testing.T) {
	ca := authtest.NewAuthority(t)
	t.Setenv("HOME", authtest.WriteFiles(t, map[string]string{"ca.pem": ca.PEM}))
	dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds: {gold: {cacert: ~/ca.pem, auth: {auth_url: https://k, user_id: u, password: p}}}"})
	found, err := Sources{CloudsFile: dir + "/clouds.yaml"}.Resolve(Config{Source: Source{Cloud: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	if found.TLS.RootCAs == nil {
		t.Error("the authority was not read")
	}
}
