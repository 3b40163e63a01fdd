package auth

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
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
		"no project":                 {`{auth: {auth_url: "http://k", user_id: u, password: p}}`, "the credentials name no project; give project_id, or project_name and its domain"},
		"our own placeholder":        {`{auth: {auth_url: "http://k", application_credential_id: REPLACE-WITH-ITS-ID, application_credential_secret: s}}`, "$DIR/clouds.yaml:1: application_credential_id still has the example's placeholder"},
		"unknown key of auth":        {`{auth: {auth_url: "http://k", user_id: u, password: hunter2, project_nam: x}}`, "$DIR/clouds.yaml:1: project_nam is not a supported key of auth; remove it, or correct its name"},
		"two projects":               {`{project-id: y, auth: {auth_url: "http://k", user_id: u, password: p, project_id: x}}`, "$DIR/clouds.yaml:1: project-id contradicts project_id; keep one of them"},
		"no Block Storage":           {`{has_volume: false, auth: {auth_url: "http://k", user_id: u, password: p, project_id: x}}`, "$DIR/clouds.yaml:1: has_volume says that the cloud has no Block Storage"},
		"no login":                   {`{auth_type: "", auth: {auth_url: "http://k", user_id: u, password: p, project_id: x}}`, "$DIR/clouds.yaml:1: auth_type is empty, which other clients interpret as a cloud without logins; remove the key, or use auth.noauth in the policy"},
		"endpoint of version 2":      {`{volume_endpoint_override: "http://u:hunter2@c/v2", auth: {auth_url: "http://k", user_id: u, password: p, project_id: x}}`, `the endpoint "http://c/v2" is not an http or https address of Block Storage's version 3`},
		"braces":                     {`{auth: {auth_url: "http://{password}/v3", user_id: u, password: p, project_id: x}}`, "auth_url has braces that do not name another key of the entry"},
		"another region in the list": {`{region_name: R1, regions: [R2], auth: {auth_url: "http://k", user_id: u, password: p, project_id: x}}`, `$DIR/clouds.yaml: cloud "gold": region_name is not in the list of regions; remove one of the two, or give the backend's region`},
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
			if want := strings.ReplaceAll(test.want, "$DIR", dir); err == nil || err.Error() != want {
				t.Errorf("error %v\nwant  %s", err, want)
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
	dir := authtest.WriteFiles(t, map[string]string{"clouds.yaml": "clouds: {gold: {cacert: ~/ca.pem, auth: {auth_url: https://k, user_id: u, password: p, project_id: x}}}"})
	found, err := Sources{CloudsFile: dir + "/clouds.yaml"}.Resolve(Config{Source: Source{Cloud: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	if found.TLS.RootCAs == nil {
		t.Error("the authority was not read")
	}
}
