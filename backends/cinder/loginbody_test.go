package cinder

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestLoginBody checks what Keystone receives for every way of writing
// credentials, against the bodies in the Identity API reference ("Password
// authentication with scoped authorization" and its companions).
func TestLoginBody(t *testing.T) {
	const byName = `{"methods": ["password"], "password": {"user": {"name": "kube", "password": "s3cr3t", "domain": {"name": "Default"}}}}`
	tests := map[string]struct {
		clouds string // the auth section and the rest of the entry
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
		"ids win over names, and a domain is omitted if there is an id": {
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
		"an application credential is never mixed with a password and project": {
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
		"a trust replaces the project, since Keystone rejects both together": {
			clouds: `{auth: {auth_url: $URL, username: kube, password: s3cr3t, domain_name: Default, project_name: storage, trust_id: t1}}`,
			want:   `{"identity": ` + byName + `, "scope": {"OS-TRUST:trust": {"id": "t1"}}}`,
		},
		"token with a project": {
			clouds: `{auth_type: token, auth: {auth_url: $URL, token: tok, project_id: p1}}`,
			want:   `{"identity": {"methods": ["token"], "token": {"id": "tok"}}, "scope": {"project": {"id": "p1"}}}`,
		},
		"scalars stay as they are written": {
			clouds: `{auth: {auth_url: $URL, user_id: 17, password: 0129, project_id: 10000000000000000000000000000001}}`,
			want:   `{"identity": {"methods": ["password"], "password": {"user": {"id": "17", "password": "0129"}}}, "scope": {"project": {"id": "10000000000000000000000000000001"}}}`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			if _, err := logInFrom(t, cloud.Clouds("clouds: {gold: "+test.clouds+"}"), auth.Config{Source: auth.Source{Cloud: "gold"}}); err != nil {
				t.Fatal(err)
			}
			var want map[string]any
			if err := json.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
			got := cloud.LastLogin()
			if auth, ok := got["auth"].(map[string]any); ok {
				got = auth
			}
			if !reflect.DeepEqual(got, want) {
				encoded, _ := json.Marshal(got)
				t.Errorf("Keystone received\n%s\nwant\n%s", encoded, test.want)
			}
			if n := cloud.LoginCount(); n != 1 {
				t.Errorf("%d requests to log in, want 1 and no discovery", n)
			}
		})
	}
}
