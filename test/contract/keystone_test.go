package contract

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

const unauthorized = "The request you have made requires authentication."

func keystoneCases() []testCase {
	return []testCase{
		{"keystone: discovery needs no token", onlyKeystone, func(t *testing.T, target Target) {
			k := target.Keystone
			root := &client{base: strings.TrimSuffix(k.URL, "/v3"), http: target.http}
			values := root.call(t, "GET", "/", nil).want(t, http.StatusMultipleChoices).object(t, "versions")["values"].([]any)
			if len(values) != 1 || !strings.HasPrefix(values[0].(map[string]any)["id"].(string), "v3.") {
				t.Errorf("the versions are %v", values)
			}
			version := k.client(target.http).call(t, "GET", "", nil).want(t, http.StatusOK).object(t, "version")
			if version["status"] != "stable" {
				t.Errorf("the version is %v", version)
			}
		}},
		{"keystone: a token comes with user, project, roles, times and catalog", onlyKeystone, tokenContents},
		{"keystone: user and project may be given by id", onlyKeystone, func(t *testing.T, target Target) {
			k := target.Keystone
			named := k.client(target.http).call(t, "POST", "/auth/tokens", k.passwordAuth(k.Member)).want(t, http.StatusCreated)
			k.client(target.http).call(t, "POST", "/auth/tokens", object{"auth": object{
				"identity": object{"methods": []string{"password"}, "password": object{"user": object{
					"id": named.object(t, "token", "user")["id"], "password": k.Member.Password,
				}}},
				"scope": object{"project": object{"id": named.object(t, "token", "project")["id"]}},
			}}).want(t, http.StatusCreated)
		}},
		{"keystone: whatever is wrong about a login, the answer is the same 401", onlyKeystone, refusedLogins},
		{"keystone: a request without auth or identity is a 400", onlyKeystone, func(t *testing.T, target Target) {
			c := target.Keystone.client(target.http)
			for _, body := range []any{object{}, object{"auth": object{}}} {
				c.call(t, "POST", "/auth/tokens", body).want(t, http.StatusBadRequest)
			}
		}},
		{"keystone: an application credential brings its project and takes no scope", onlyKeystone, func(t *testing.T, target Target) {
			k := target.Keystone
			if k.Credential == nil {
				t.Skip("no application credential is known (CONTRACT_CREDENTIAL_ID)")
			}
			auth := func(secret string) object {
				return object{"identity": object{
					"methods":                []string{"application_credential"},
					"application_credential": object{"id": k.Credential.ID, "secret": secret},
				}}
			}
			login := func(auth object) answer {
				return k.client(target.http).call(t, "POST", "/auth/tokens", object{"auth": auth})
			}
			got := login(auth(k.Credential.Secret)).want(t, http.StatusCreated)
			if project := got.object(t, "token", "project")["id"]; project != target.Project {
				t.Errorf("the project is %v", project)
			}
			if id := got.object(t, "token", "application_credential")["id"]; id != k.Credential.ID {
				t.Errorf("the token names the credential %v", id)
			}
			c := &client{base: cinderOf(t, got, k.Region), token: got.header.Get("X-Subject-Token"), http: target.http}
			c.call(t, "GET", "/volumes?limit=1", nil).want(t, http.StatusOK)
			// Different at the beginning, since Keystone hashes only the first
			// part of a long secret.
			wantUnauthorized(t, login(auth("x"+k.Credential.Secret)), k.URL)
			scoped := auth(k.Credential.Secret)
			scoped["scope"] = object{"project": object{"id": target.Project}}
			wantIdentityError(t, login(scoped), http.StatusUnauthorized,
				"Error authenticating with application credential: Application credentials cannot request a scope.")
		}},
		{"keystone: an application credential that does not exist is a 404", onlyKeystone, func(t *testing.T, target Target) {
			id := strings.Repeat("0", 32)
			got := target.Keystone.client(target.http).call(t, "POST", "/auth/tokens", object{"auth": object{
				"identity": object{"methods": []string{"application_credential"}, "application_credential": object{"id": id, "secret": "x"}},
			}})
			wantIdentityError(t, got, http.StatusNotFound, "Could not find Application Credential: "+id+".")
		}},
		{"keystone: a trust that does not exist is a 401", onlyKeystone, func(t *testing.T, target Target) {
			k := target.Keystone
			auth := k.passwordAuth(k.Member)
			auth["auth"].(object)["scope"] = object{"OS-TRUST:trust": object{"id": strings.Repeat("0", 32)}}
			wantUnauthorized(t, k.client(target.http).call(t, "POST", "/auth/tokens", auth), k.URL)
		}},
		{"keystone: an unscoped token has no catalog and no project", onlyKeystone, func(t *testing.T, target Target) {
			k := target.Keystone
			auth := k.passwordAuth(k.Member)
			auth["auth"].(object)["scope"] = "unscoped"
			token := k.client(target.http).call(t, "POST", "/auth/tokens", auth).want(t, http.StatusCreated).object(t, "token")
			for _, field := range []string{"project", "catalog"} {
				if token[field] != nil {
					t.Errorf("the token's %s is %v", field, token[field])
				}
			}
		}},
		{"keystone: a token validates itself and can be revoked", onlyKeystone, revokedToken},
		{"keystone: Cinder refuses a request without token", onlyKeystone, func(t *testing.T, target Target) {
			for _, path := range []string{"", "/", "/volumes", "/" + target.Project + "/volumes", "/bogus"} {
				c := &client{base: target.Endpoint, http: target.http}
				wantUnauthorized(t, c.call(t, "GET", path, nil), target.Keystone.URL)
			}
		}},
		{"keystone: Cinder refuses tokens that Keystone did not issue", onlyKeystone, func(t *testing.T, target Target) {
			for _, token := range []string{"bogus", "admin:" + target.Project} {
				c := &client{base: target.client().base, token: token, http: target.http}
				wantUnauthorized(t, c.call(t, "GET", "/volumes", nil), target.Keystone.URL)
			}
		}},
		{"keystone: another project in the URL is malformed", onlyKeystone, func(t *testing.T, target Target) {
			c := target.at(target.Endpoint + "/" + strings.Repeat("f", 32))
			c.call(t, "GET", "/volumes", nil).wantBadRequest(t, "Malformed request url")
		}},
		{"keystone: the URL may leave the project out", onlyKeystone, func(t *testing.T, target Target) {
			target.at(target.Endpoint).call(t, "GET", "/volumes?limit=1", nil).want(t, http.StatusOK)
		}},
	}
}

func tokenContents(t *testing.T, target Target) {
	k := target.Keystone
	got := k.client(target.http).call(t, "POST", "/auth/tokens", k.passwordAuth(k.Member)).want(t, http.StatusCreated)
	if got.header.Get("X-Subject-Token") == "" {
		t.Error("the answer has no X-Subject-Token")
	}
	token := got.object(t, "token")
	if name := got.object(t, "token", "user")["name"]; name != k.Member.User {
		t.Errorf("the user is %v", name)
	}
	if project := got.object(t, "token", "project"); project["name"] != k.Member.Project || project["id"] != target.Project {
		t.Errorf("the project is %v", project)
	}
	roles := make(map[any]bool)
	for _, role := range token["roles"].([]any) {
		roles[role.(map[string]any)["name"]] = true
	}
	if !roles["member"] || roles["admin"] {
		t.Errorf("the roles are %v", roles)
	}
	issued, errIssued := time.Parse(time.RFC3339, token["issued_at"].(string))
	expires, errExpires := time.Parse(time.RFC3339, token["expires_at"].(string))
	if errIssued != nil || errExpires != nil || !expires.After(issued) {
		t.Errorf("it is issued at %v and expires at %v", token["issued_at"], token["expires_at"])
	}
	if endpoint := cinderOf(t, got, k.Region); !strings.HasSuffix(endpoint, "/v3/"+target.Project) {
		t.Errorf("the volume service is at %s", endpoint)
	}
	bare := k.client(target.http).call(t, "POST", "/auth/tokens?nocatalog", k.passwordAuth(k.Member)).want(t, http.StatusCreated)
	if bare.object(t, "token")["catalog"] != nil {
		t.Error("nocatalog does not omit the catalog")
	}
}

func refusedLogins(t *testing.T, target Target) {
	k := target.Keystone
	for name, change := range map[string]func(*Account){
		"a wrong password":   func(a *Account) { a.Password += "x" },
		"an unknown user":    func(a *Account) { a.User = "nobody-" + a.User },
		"an unknown project": func(a *Account) { a.Project = "nowhere-" + a.Project },
		"a foreign project": func(a *Account) {
			if k.Other != nil {
				a.Project = k.Other.Project
			} else {
				a.Project = "nowhere"
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			account := k.Member
			change(&account)
			wantUnauthorized(t, k.client(target.http).call(t, "POST", "/auth/tokens", k.passwordAuth(account)), k.URL)
		})
	}
	elsewhere := *k
	elsewhere.Domain = "no-such-domain"
	t.Run("an unknown domain", func(t *testing.T) {
		wantUnauthorized(t, k.client(target.http).call(t, "POST", "/auth/tokens", elsewhere.passwordAuth(k.Member)), k.URL)
	})
}

func revokedToken(t *testing.T, target Target) {
	k := target.Keystone
	issued := k.client(target.http).call(t, "POST", "/auth/tokens", k.passwordAuth(k.Member)).want(t, http.StatusCreated)
	token := issued.header.Get("X-Subject-Token")
	subject := func(method string) answer {
		request, err := http.NewRequest(method, k.URL+"/auth/tokens", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("X-Auth-Token", token)
		request.Header.Set("X-Subject-Token", token)
		return send(t, target.http, request)
	}
	shown := subject("GET").want(t, http.StatusOK)
	if shown.object(t, "token", "project")["id"] != target.Project {
		t.Errorf("the token shows as %s", shown.raw)
	}
	subject("DELETE").wantEmpty(t, http.StatusNoContent)
	wantUnauthorized(t, subject("GET"), k.URL)
}

// wantUnauthorized requires the 401 that Keystone and, in front of Cinder, its
// middleware answer.
func wantUnauthorized(t *testing.T, got answer, keystone string) {
	t.Helper()
	wantIdentityError(t, got, http.StatusUnauthorized, unauthorized)
	got.wantHeader(t, "Www-Authenticate", `Keystone uri="`+keystone+`"`)
}

func wantIdentityError(t *testing.T, got answer, status int, message string) {
	t.Helper()
	details := got.want(t, status).object(t, "error")
	if details["message"] != message || details["code"] != float64(status) || details["title"] != http.StatusText(status) {
		t.Errorf("%s: the error is %v, want %q", got.request, details, message)
	}
}

// tenancyCases cover what a project member must not see or do.
func tenancyCases() []testCase {
	return []testCase{
		{"tenancy: another project's volume does not exist", onlyKeystone, func(t *testing.T, target Target) {
			stranger := target.other(t)
			name := unique(t, "private")
			id := available(t, target, object{"name": name})
			missing := "Volume " + id + " could not be found."
			stranger.call(t, "GET", "/volumes/"+id, nil).wantNotFound(t, missing)
			stranger.call(t, "DELETE", "/volumes/"+id, nil).wantNotFound(t, missing)
			act(t, stranger, id, "os-reserve", object{}).wantNotFound(t, missing)
			stranger.call(t, "POST", "/attachments", object{"attachment": object{"volume_uuid": id}}, "3.44").wantNotFound(t, missing)
			for _, path := range []string{"/volumes?name=" + name, "/volumes/detail?all_tenants=1&name=" + name} {
				if found := listed(t, stranger, path); len(found) > 0 {
					t.Errorf("%s shows it", path)
				}
			}
			wantStatus(t, target.client(), id, "available")
		}},
		{"tenancy: an administrator finds it with all_tenants", onlyKeystone, func(t *testing.T, target Target) {
			admin := target.admin(t)
			name := unique(t, "seen")
			id := available(t, target, object{"name": name})
			if found := listed(t, admin, "/volumes?all_tenants=1&name="+name); len(found) != 1 {
				t.Errorf("it is listed %d times", len(found))
			}
			if view := show(t, admin, id); view["os-vol-tenant-attr:tenant_id"] != target.Project || view["os-vol-host-attr:host"] == nil {
				t.Errorf("the administrator's view is %v", view)
			}
		}},
		{"tenancy: a member's view hides hosts", onlyKeystone, func(t *testing.T, target Target) {
			id := attached(t, target)
			view := show(t, target.client(), id, "3.65")
			if view["os-vol-tenant-attr:tenant_id"] != target.Project {
				t.Errorf("the project is %v", view["os-vol-tenant-attr:tenant_id"])
			}
			for _, field := range []string{"os-vol-host-attr:host", "os-vol-mig-status-attr:migstat", "migration_status", "provider_id", "cluster_name"} {
				if _, shown := view[field]; shown {
					t.Errorf("a member sees %s", field)
				}
			}
			attachment := view["attachments"].([]any)[0].(map[string]any)
			if attachment["host_name"] != nil {
				t.Errorf("a member sees the host %v", attachment["host_name"])
			}
		}},
		{"tenancy: a member may not overrule states", onlyKeystone, func(t *testing.T, target Target) {
			id := available(t, target, nil)
			c := target.client()
			for action, parameters := range map[string]object{
				"force_detach": {}, "reset_status": {"status": "available"}, "force_delete": {},
			} {
				act(t, c, id, "os-"+action, parameters).wantError(t, http.StatusForbidden, "forbidden",
					"Policy doesn't allow volume_extension:volume_admin_actions:"+action+" to be performed.")
			}
			c.call(t, "GET", "/os-services", nil).wantError(t, http.StatusForbidden, "forbidden",
				"Policy doesn't allow volume_extension:services:index to be performed.")
			c.call(t, "PUT", "/os-quota-sets/"+target.Project, object{"quota_set": object{"volumes": 1}}).
				wantError(t, http.StatusForbidden, "forbidden", "Policy doesn't allow volume_extension:quotas:update to be performed.")
			wantStatus(t, c, id, "available")
		}},
		{"tenancy: a member's unknown filter is dropped below 3.31 and refused from there on", onlyKeystone, func(t *testing.T, target Target) {
			id := available(t, target, nil)
			found := false
			for _, v := range listed(t, target.client(), "/volumes/detail?bogus=1&display_name=nobody") {
				found = found || v["id"] == id
			}
			if !found {
				t.Error("a list with unknown filters lacks a volume")
			}
			target.client().call(t, "GET", "/volumes/detail?bogus=1", nil, "3.31").
				wantBadRequest(t, "Invalid filters bogus are found in query options.")
		}},
	}
}
