package commands

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

func TestCheckCredentials(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	entry := func(name, more string) string {
		return "  " + name + ":\n    auth: {auth_url: https://keystone.example/v3, username: u, password: hunter2, user_domain_id: default, " + more + "}\n"
	}
	notPEM := file("ca.pem", "no certificate")
	clouds := file("clouds.yaml", "clouds:\n"+entry("good", "project_id: p")+entry("typo", "project_nam: p, project_id: p")+
		entry("ca", "project_id: p")+"    cacert: "+notPEM+"\n"+entry("gone", "project_id: p")+"    cacert: /absent/ca.pem\n"+
		"  secret:\n    auth: {auth_url: https://keystone.example/v3, username: u, user_domain_id: default}\n    password: x\n")
	file("secure.yaml", "clouds:\n  secret:\n    auth: {passwrd: hunter2}\n")
	var text strings.Builder
	text.WriteString("apiVersion: " + policy.APIVersion + "\nkind: Policy\ntenants: []\nbackends:\n")
	for _, name := range []string{"good", "typo", "ca", "gone", "secret", "absent"} {
		text.WriteString("  - {name: " + name + ", auth: {cloud: " + name + "}}\n")
	}
	text.WriteString("  - {name: ini, auth: {cloudConfig: absent.conf}}\n  - {name: env, auth: {environment: true}}\n")
	p, err := policy.Parse([]byte(text.String()), filepath.Join(dir, "p.yaml"), mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, finding := range CheckCredentials(p, clouds) {
		mark := "error"
		if finding.Warning {
			mark = "warning"
		}
		got = append(got, mark+" "+finding.Path+": "+strings.ReplaceAll(finding.Message, dir+"/", ""))
	}
	want := []string{
		`error backends[1].auth.cloud: backend typo cannot log in with these credentials: clouds.yaml:5: project_nam is not a supported key of auth; remove it, or correct its name; did you mean "project_name"?`,
		"error backends[2].auth.cloud: backend ca cannot log in with these credentials: the CA certificate in ca.pem is not a PEM certificate",
		"error backends[3].auth.cloud: backend gone cannot log in with these credentials: cannot read the certificate in /absent/ca.pem: no such file or directory",
		`error backends[4].auth.cloud: backend secret cannot log in with these credentials: secure.yaml:3: passwrd is not a supported key of auth; remove it, or correct its name; did you mean "password"?`,
		`error backends[5].auth.cloud: backend absent cannot log in with these credentials: clouds.yaml has no cloud "absent"; it has "ca", "gone", "good", "secret", "typo"`,
		"error backends[6].auth.cloudConfig: backend ini cannot log in with these credentials: cannot read absent.conf: no such file or directory",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
	if strings.Contains(strings.Join(got, " "), "hunter2") {
		t.Error("a finding shows a password")
	}
}
