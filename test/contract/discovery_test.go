package contract

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// notRouted is the answer of Cinder's URL map to an unknown path.
const notRouted = "The resource could not be found.<br /><br />\n\n\n"

func discoveryCases() []testCase {
	return []testCase{
		{"the root lists versions without a token", both, versionsAtTheRoot},
		{"the version document is at /v3/ with a token", both, func(t *testing.T, target Target) {
			got := target.at(target.Endpoint).call(t, "GET", "/", nil).want(t, http.StatusOK)
			wantVersions(t, target, got)
		}},
		{"/v3 redirects to /v3/ with a token", both, func(t *testing.T, target Target) {
			got := target.at(target.Endpoint).call(t, "GET", "", nil).wantEmpty(t, http.StatusFound)
			got.wantHeader(t, "Location", target.Endpoint+"/")
		}},
		{"v2 is gone", both, func(t *testing.T, target Target) {
			wantNotRouted(t, target.at(target.root()).call(t, "GET", "/v2/", nil))
		}},
		{"an unknown path is a 404 of its own form", both, func(t *testing.T, target Target) {
			wantNotRouted(t, target.client().call(t, "GET", "/bogus", nil))
			wantNotRouted(t, target.client().call(t, "GET", "/volumes/"+missingID+"/bogus", nil))
		}},
		{"healthcheck needs no token", both, func(t *testing.T, target Target) {
			c := &client{base: target.root(), http: target.http}
			c.call(t, "GET", "/healthcheck", nil).want(t, http.StatusOK)
		}},
		{"without a microversion the answer is that of 3.0", both, func(t *testing.T, target Target) {
			wantVersion(t, target.client().call(t, "GET", "/volumes?limit=1", nil).want(t, http.StatusOK), "volume 3.0")
		}},
		{"the microversion asked for is confirmed", both, func(t *testing.T, target Target) {
			wantVersion(t, target.client().call(t, "GET", "/volumes?limit=1", nil, "3.27").want(t, http.StatusOK), "volume 3.27")
		}},
		{"the microversion is found among those of other services", both, func(t *testing.T, target Target) {
			request, err := http.NewRequest("GET", target.client().base+"/volumes?limit=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("X-Auth-Token", target.token)
			request.Header.Set("OpenStack-API-Version", "compute 2.1,volume 3.27")
			wantVersion(t, send(t, target.http, request).want(t, http.StatusOK), "volume 3.27")
		}},
		{"latest is the maximum of the version document", both, func(t *testing.T, target Target) {
			wantVersion(t, target.client().call(t, "GET", "/volumes?limit=1", nil, "latest").want(t, http.StatusOK), "volume "+maximum(t, target))
		}},
		{"a microversion above the maximum is a 406", both, func(t *testing.T, target Target) {
			got := target.client().call(t, "GET", "/volumes", nil, "3.999")
			got.wantError(t, http.StatusNotAcceptable, "computeFault",
				"Version 3.999 is not supported by the API. Minimum is 3.0 and maximum is "+maximum(t, target)+".")
			wantVersion(t, got, "volume 3.999")
		}},
		{"a microversion that is none is a 400", both, func(t *testing.T, target Target) {
			target.client().call(t, "GET", "/volumes", nil, "3.x").
				wantBadRequest(t, "API Version String 3.x is of invalid format. Must be of format MajorNum.MinorNum.")
		}},
		{"every answer names the request", both, func(t *testing.T, target Target) {
			for _, path := range []string{"/volumes?limit=1", "/volumes/" + missingID, "/bogus"} {
				got := target.client().call(t, "GET", path, nil)
				if id := got.header.Get("X-Openstack-Request-Id"); !strings.HasPrefix(id, "req-") {
					t.Errorf("%s: the request id is %q", got.request, id)
				}
			}
		}},
		{"volume types are listed by name", both, func(t *testing.T, target Target) {
			names := make(map[any]bool)
			for _, kind := range target.client().call(t, "GET", "/types", nil).want(t, http.StatusOK).list(t, "volume_types") {
				names[kind["name"]] = true
			}
			for _, want := range []string{target.Types.ISCSI, target.Types.Multipath, target.Types.Fail, target.Types.RBD} {
				if want != "" && !names[want] {
					t.Errorf("the type %s is not listed", want)
				}
			}
		}},
		{"volume types come in pages, each with a link to the next", both, typesByPage},
		{"the default volume type is one of the list", both, func(t *testing.T, target Target) {
			byDefault := target.client().call(t, "GET", "/types/default", nil).want(t, http.StatusOK).object(t, "volume_type")
			for _, kind := range target.client().call(t, "GET", "/types", nil).want(t, http.StatusOK).list(t, "volume_types") {
				if kind["id"] == byDefault["id"] && kind["name"] == byDefault["name"] {
					return
				}
			}
			t.Errorf("%v is not listed", byDefault)
		}},
		{"availability zones are listed", both, func(t *testing.T, target Target) {
			zones := target.client().call(t, "GET", "/os-availability-zone", nil).want(t, http.StatusOK).list(t, "availabilityZoneInfo")
			if len(zones) == 0 || zones[0]["zoneName"] == "" || zones[0]["zoneState"] == nil {
				t.Errorf("the zones are %v", zones)
			}
		}},
	}
}

func typesByPage(t *testing.T, target Target) {
	ids := func(query string) []any {
		got := target.client().call(t, "GET", "/types"+query, nil).want(t, http.StatusOK)
		var ids []any
		for _, kind := range got.list(t, "volume_types") {
			ids = append(ids, kind["id"])
		}
		if limited := strings.Contains(query, "limit=1"); limited && len(ids) > 0 {
			links := got.list(t, "volume_type_links")
			want := target.client().base + "/types?is_public=None&limit=1&marker=" + ids[0].(string)
			if len(links) != 1 || links[0]["rel"] != "next" || links[0]["href"] != want {
				t.Errorf("%s: the links are %v, want %s", got.request, links, want)
			}
		} else if strings.Contains(string(got.raw), "_links") {
			t.Errorf("%s: a last page has links: %s", got.request, got.raw)
		}
		return ids
	}
	all := ids("?is_public=None")
	if len(all) < 2 {
		t.Skip("there is only one volume type")
	}
	var paged []any
	for query := "?is_public=None&limit=1"; ; {
		page := ids(query)
		if len(page) == 0 || len(paged) > len(all) {
			break
		}
		paged = append(paged, page...)
		query = "?is_public=None&limit=1&marker=" + page[len(page)-1].(string)
	}
	if !same(paged, all) {
		t.Errorf("the pages have %v, the whole list %v", paged, all)
	}
}

func versionsAtTheRoot(t *testing.T, target Target) {
	anonymous := &client{base: target.root(), http: target.http}
	for _, path := range []string{"", "/"} {
		wantVersions(t, target, anonymous.call(t, "GET", path, nil).want(t, http.StatusMultipleChoices))
	}
}

// wantVersions requires the version document.
func wantVersions(t *testing.T, target Target, got answer) {
	t.Helper()
	versions := got.list(t, "versions")
	if len(versions) != 1 {
		t.Fatalf("%s: the versions are %v", got.request, versions)
	}
	version := versions[0]
	for field, want := range map[string]any{"id": "v3.0", "status": "CURRENT", "min_version": "3.0"} {
		if version[field] != want {
			t.Errorf("%s: %s is %v, want %v", got.request, field, version[field], want)
		}
	}
	self := ""
	for _, link := range version["links"].([]any) {
		if link.(map[string]any)["rel"] == "self" {
			self = link.(map[string]any)["href"].(string)
		}
	}
	if self != target.Endpoint+"/" {
		t.Errorf("%s: the self link is %q, want %q", got.request, self, target.Endpoint+"/")
	}
	wantVersion(t, got, "volume 3.0")
}

// maximum returns the highest microversion that the server offers. The project
// needs 3.44.
func maximum(t *testing.T, target Target) string {
	t.Helper()
	got := target.at(target.Endpoint).call(t, "GET", "/", nil).want(t, http.StatusOK)
	version, _ := got.list(t, "versions")[0]["version"].(string)
	minor, err := strconv.Atoi(strings.TrimPrefix(version, "3."))
	if err != nil || minor < 44 {
		t.Fatalf("the maximum microversion is %q", version)
	}
	return version
}

func wantVersion(t *testing.T, got answer, version string) {
	t.Helper()
	got.wantHeader(t, "OpenStack-API-Version", version)
	got.wantHeader(t, "Vary", "OpenStack-API-Version")
}

func wantNotRouted(t *testing.T, got answer) {
	t.Helper()
	got.want(t, http.StatusNotFound)
	if got.body["message"] != notRouted || got.body["code"] != "404 Not Found" || got.body["title"] != "Not Found" {
		t.Errorf("%s: the body is %s", got.request, got.raw)
	}
	if version := got.header.Get("OpenStack-API-Version"); version != "" {
		t.Errorf("%s: it names the microversion %s", got.request, version)
	}
}
