package contract

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func listCases() []testCase {
	return []testCase{
		{"list: names compare without case, accents and trailing blanks", both, func(t *testing.T, target Target) {
			base := unique(t, "name")
			lower := available(t, target, object{"name": base + "-e"})
			upper := available(t, target, object{"name": strings.ToUpper(base) + "-E"})
			accented := available(t, target, object{"name": base + "-é"})
			available(t, target, object{"name": base + "-e1"})
			for _, asked := range []string{base + "-e", base + "-E", base + "-É", base + "-e "} {
				wantListed(t, target, "/volumes?name="+url.QueryEscape(asked), lower, upper, accented)
			}
		}},
		{"list: a name is no pattern", both, func(t *testing.T, target Target) {
			base := unique(t, "pattern")
			under := available(t, target, object{"name": base + "_1"})
			available(t, target, object{"name": base + "-1"})
			wantListed(t, target, "/volumes?name="+base+"_1", under)
			wantListed(t, target, "/volumes?name="+base+"%25")
		}},
		{"list: display_name is an administrator's name for name", onlyNoauth, func(t *testing.T, target Target) {
			name := unique(t, "display")
			wantListed(t, target, "/volumes?display_name="+name)
			id := available(t, target, object{"name": name})
			wantListed(t, target, "/volumes?display_name="+name, id)
		}},
		{"list: name~ searches from 3.34 on and is ignored below 3.31", onlyNoauth, func(t *testing.T, target Target) {
			name := unique(t, "similar")
			found := available(t, target, object{"name": "x" + name + "x"})
			other := available(t, target, nil)
			wantListedAt(t, target, "3.34", "/volumes?name~="+name, found)
			ids := idsOf(listed(t, target.client(), "/volumes?name~="+name))
			if !slices.Contains(ids, found) || !slices.Contains(ids, other) {
				t.Error("below 3.31 name~ filters")
			}
		}},
		{"list: metadata entries must all match, without case", both, func(t *testing.T, target Target) {
			key, value := "contract", unique(t, "value")
			one := available(t, target, object{"metadata": object{key: value}})
			two := available(t, target, object{"metadata": object{key: strings.ToUpper(value), "cluster": "x"}})
			available(t, target, object{"metadata": object{key: value + "x"}})
			filter := func(text string) string { return "/volumes?metadata=" + url.QueryEscape(text) }
			wantListed(t, target, filter("{'"+key+"':'"+value+"'}"), one, two)
			wantListed(t, target, filter(`{"`+key+`":"`+value+`"}`), one, two)
			wantListed(t, target, filter("{'"+key+"':'"+value+" '}"), one, two)
			wantListed(t, target, filter("{'"+strings.ToUpper(key)+"':'"+value+"'}"), one, two)
			wantListed(t, target, filter("{'"+key+"':'"+value+"','cluster':'x'}"), two)
			wantListed(t, target, filter("{'"+key+"':'"+value+"','cluster':'y'}"))
		}},
		{"list: a metadata filter that is no dictionary finds nothing", both, func(t *testing.T, target Target) {
			available(t, target, nil)
			wantListed(t, target, "/volumes?metadata=garbage")
		}},
		{"list: an administrator's unknown filter finds nothing", onlyNoauth, func(t *testing.T, target Target) {
			available(t, target, nil)
			for _, version := range []string{"3.0", "3.31"} {
				wantListedAt(t, target, version, "/volumes/detail?bogus=1")
			}
			wantListed(t, target, "/volumes/detail?metadata[contract]=x")
			wantListed(t, target, "/volumes/detail?all_tenants=0")
		}},
		{"list: statuses filter", both, func(t *testing.T, target Target) {
			name := unique(t, "status")
			free := available(t, target, object{"name": name})
			taken := available(t, target, object{"name": name})
			reserve(t, target.client(), taken)
			wantListed(t, target, "/volumes?name="+name+"&status=available", free)
			wantListed(t, target, "/volumes?name="+name+"&status=attaching", taken)
			wantListed(t, target, "/volumes?name="+name+"&status="+url.QueryEscape("['available','attaching']"), free, taken)
			wantListed(t, target, "/volumes?name="+name+"&status=bogus")
		}},
		{"list: the short list has id, name and links only", both, func(t *testing.T, target Target) {
			name := unique(t, "short")
			id := available(t, target, object{"name": name})
			found := listed(t, target.client(), "/volumes?name="+name)
			if len(found) != 1 || found[0]["id"] != id || found[0]["name"] != name || found[0]["links"] == nil || len(found[0]) != 3 {
				t.Errorf("the list is %v", found)
			}
		}},
		{"list: the detailed list shows what a look at the volume shows", both, func(t *testing.T, target Target) {
			id := attached(t, target)
			name := show(t, target.client(), id)["name"].(string)
			found := listed(t, target.client(), "/volumes/detail?name="+name)
			if len(found) != 1 {
				t.Fatalf("the list has %d entries", len(found))
			}
			view := show(t, target.client(), id)
			for field, want := range view {
				got := found[0][field]
				switch field {
				case "links", "metadata", "attachments":
					if !same(got, want) {
						t.Errorf("%s is %v in the list and %v alone", field, got, want)
					}
				default:
					if got != want {
						t.Errorf("%s is %v in the list and %v alone", field, got, want)
					}
				}
			}
		}},
	}
}

func pagingCases() []testCase {
	return []testCase{
		{"paging: markers lead through every volume once, newest first", both, func(t *testing.T, target Target) {
			name := unique(t, "page")
			want := make(map[string]bool)
			for range 5 {
				want[available(t, target, object{"name": name})] = true
			}
			path := "/volumes?limit=2&name=" + name
			var created []string
			seen := make(map[string]bool)
			for pages := 0; path != ""; pages++ {
				if pages > 5 {
					t.Fatal("the pages have no end")
				}
				got := target.client().call(t, "GET", path, nil).want(t, http.StatusOK)
				page := got.list(t, "volumes")
				for _, v := range page {
					id := v["id"].(string)
					if seen[id] || !want[id] {
						t.Errorf("%s is listed again or should not be", id)
					}
					seen[id] = true
					created = append(created, show(t, target.client(), id)["created_at"].(string)+id)
				}
				path = ""
				if links, ok := got.body["volumes_links"].([]any); ok {
					link := links[0].(map[string]any)
					last := page[len(page)-1]["id"].(string)
					if next := target.client().base + "/volumes?limit=2&name=" + name + "&marker=" + last; link["rel"] != "next" || link["href"] != next {
						t.Errorf("the link is %v, want %s", link, next)
					}
					path = strings.TrimPrefix(link["href"].(string), target.client().base)
				} else if len(page) == 2 {
					t.Error("a full page has no link to the next")
				}
			}
			if len(seen) != len(want) {
				t.Errorf("%d volumes are listed, want %d", len(seen), len(want))
			}
			if !slices.IsSortedFunc(created, func(a, b string) int { return strings.Compare(b, a) }) {
				t.Errorf("the order is %v", created)
			}
		}},
		{"paging: limits and markers that are none", both, func(t *testing.T, target Target) {
			c := target.client()
			if found := listed(t, c, "/volumes?limit=0"); len(found) != 0 {
				t.Errorf("limit=0 lists %d volumes", len(found))
			}
			c.call(t, "GET", "/volumes?limit=x", nil).wantBadRequest(t, "limit param must be an integer")
			c.call(t, "GET", "/volumes?limit=-1", nil).wantBadRequest(t, "limit param must be positive")
			c.call(t, "GET", "/volumes?marker="+missingID, nil).wantNotFound(t, "Volume "+missingID+" could not be found.")
		}},
		{"paging: lists sort by name", both, func(t *testing.T, target Target) {
			base := unique(t, "sort")
			value := object{"contract-sort": base}
			b := available(t, target, object{"name": base + "-b", "metadata": value})
			a := available(t, target, object{"name": base + "-A", "metadata": value})
			c := available(t, target, object{"name": base + "-c", "metadata": value})
			filter := "&metadata=" + url.QueryEscape("{'contract-sort':'"+base+"'}")
			if got := idsOf(listed(t, target.client(), "/volumes?sort=name:asc"+filter)); !slices.Equal(got, []string{a, b, c}) {
				t.Errorf("ascending: %v, want %v", got, []string{a, b, c})
			}
			if got := idsOf(listed(t, target.client(), "/volumes?sort=name:desc"+filter)); !slices.Equal(got, []string{c, b, a}) {
				t.Errorf("descending: %v, want %v", got, []string{c, b, a})
			}
			target.client().call(t, "GET", "/volumes?sort=name:up", nil).
				wantBadRequest(t, "Invalid input received: Unknown sort direction, must be 'desc' or 'asc'.")
		}},
		{"paging: with_count counts from 3.45 on", both, func(t *testing.T, target Target) {
			name := unique(t, "count")
			for range 3 {
				available(t, target, object{"name": name})
			}
			got := target.client().call(t, "GET", "/volumes?limit=1&with_count=true&name="+name, nil, "3.45").want(t, http.StatusOK)
			if got.body["count"] != 3.0 || len(got.list(t, "volumes")) != 1 {
				t.Errorf("the answer is %s", got.raw)
			}
		}},
	}
}

func idsOf(volumes []map[string]any) []string {
	var ids []string
	for _, v := range volumes {
		ids = append(ids, v["id"].(string))
	}
	return ids
}

// wantListed requires a list of exactly these volumes, in any order.
func wantListed(t testing.TB, target Target, path string, want ...string) {
	t.Helper()
	wantListedAt(t, target, "3.0", path, want...)
}

func wantListedAt(t testing.TB, target Target, version, path string, want ...string) {
	t.Helper()
	got := idsOf(listed(t, target.client(), path, version))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s at %s lists %v, want %v", path, version, got, want)
	}
}
