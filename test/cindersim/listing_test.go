package cindersim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// populated returns a simulator with n volumes, several created in every
// second.
func populated(t testing.TB, n int) *Simulator {
	t.Helper()
	s, err := New(Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		if _, err := s.AddVolume(Volume{
			Name: fmt.Sprintf("pvc-%05d", i), Created: start.Add(time.Duration(i) * 300 * time.Millisecond), Updated: start,
			SizeGiB: 1 + i%3, Metadata: map[string]string{"cluster": fmt.Sprintf("c%d", i%50), "claim": fmt.Sprint(i)},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// get performs a request without a network.
func get(t testing.TB, s *Simulator, path string) map[string]any {
	t.Helper()
	recorder := fetch(s, path)
	if recorder.Code != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, recorder.Code, recorder.Body)
	}
	var body map[string]any
	if err := json.Unmarshal(recorder.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return body
}

func fetch(s *Simulator, path string) *httptest.ResponseRecorder {
	request := httptest.NewRequest("GET", "http://cinder"+path, nil)
	request.Header.Set("X-Auth-Token", "admin:"+DefaultNoauthProject)
	recorder := httptest.NewRecorder()
	s.NoauthHandler().ServeHTTP(recorder, request)
	return recorder
}

func TestPagesAreInOrderAndComplete(t *testing.T) {
	const count = 157
	s := populated(t, count)
	for _, order := range []struct {
		query string
		less  func(a, b map[string]any) int
	}{
		{"", func(a, b map[string]any) int { return compareKeys(b, a, "created_at", "id") }},
		{"&sort=created_at:desc,name:asc", func(a, b map[string]any) int {
			if a["created_at"] != b["created_at"] {
				return compareKeys(b, a, "created_at")
			}
			return compareKeys(a, b, "name")
		}},
		{"&sort=created_at:asc", func(a, b map[string]any) int { return compareKeys(a, b, "created_at", "id") }},
		{"&sort=name:asc", func(a, b map[string]any) int { return compareKeys(a, b, "name", "created_at", "id") }},
		{"&sort=size:desc,name:asc", func(a, b map[string]any) int {
			if a["size"] != b["size"] {
				return int(b["size"].(float64) - a["size"].(float64))
			}
			return compareKeys(a, b, "name")
		}},
		{"&sort_key=name&sort_dir=desc", func(a, b map[string]any) int { return compareKeys(b, a, "name", "created_at", "id") }},
	} {
		for _, limit := range []int{1, 7, 50, count, 1000} {
			t.Run(fmt.Sprintf("limit %d %s", limit, order.query), func(t *testing.T) {
				path := fmt.Sprintf("/v3/volumes/detail?limit=%d%s", limit, order.query)
				var all []map[string]any
				for pages := 0; path != ""; pages++ {
					if pages > count+1 {
						t.Fatal("the pages have no end")
					}
					body := get(t, s, path)
					page := body["volumes"].([]any)
					for _, v := range page {
						all = append(all, v.(map[string]any))
					}
					path = ""
					if links, ok := body["volumes_links"].([]any); ok {
						if len(page) < limit {
							t.Error("a page that is not full links to a next one")
						}
						path = strings.TrimPrefix(links[0].(map[string]any)["href"].(string), "http://cinder")
					}
				}
				if len(all) != count || !slices.IsSortedFunc(all, order.less) {
					t.Errorf("%d volumes, sorted: %v", len(all), slices.IsSortedFunc(all, order.less))
				}
			})
		}
	}
}

func compareKeys(a, b map[string]any, keys ...string) int {
	for _, key := range keys {
		if order := strings.Compare(a[key].(string), b[key].(string)); order != 0 {
			return order
		}
	}
	return 0
}

func TestAPageHoldsNoMoreThanTheMaximum(t *testing.T) {
	s, err := New(Options{MaxLimit: 3})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if _, err := s.AddVolume(Volume{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, query := range []string{"", "?limit=4", "?limit=1000"} {
		body := get(t, s, "/v3/volumes"+query)
		if n := len(body["volumes"].([]any)); n != 3 || body["volumes_links"] == nil {
			t.Errorf("%q lists %d volumes, with links %v", query, n, body["volumes_links"])
		}
	}
	if n := len(get(t, s, "/v3/volumes?offset=4")["volumes"].([]any)); n != 1 {
		t.Errorf("behind the fourth are %d volumes", n)
	}
}

func TestCountedListsLinkOnTheLastPageToo(t *testing.T) {
	s := populated(t, 4)
	request := httptest.NewRequest("GET", "http://cinder/v3/volumes?limit=2&with_count=true", nil)
	request.Header.Set("X-Auth-Token", "admin:"+DefaultNoauthProject)
	request.Header.Set("OpenStack-API-Version", "volume 3.45")
	recorder := httptest.NewRecorder()
	s.NoauthHandler().ServeHTTP(recorder, request)
	if body := recorder.Body.String(); !strings.Contains(body, `"count":4`) || !strings.Contains(body, `?limit=2&with_count=true&marker=`) {
		t.Errorf("the answer is %s", body)
	}
}

func TestFilterValuesAreReadAsPythonDoes(t *testing.T) {
	s := populated(t, 9)
	for filter, want := range map[string]int{
		"size=1": 3, "size=[1,2]": 6, "size='1'": 3, "size=01": 0, "status=available": 9, "status='available'": 9,
		"status=('available','error')": 9, "status=error": 0, "bootable=false": 9, "bootable=0": 0, "bootable=true": 0,
		"metadata={'cluster':'c1'}": 1, "metadata={'cluster':'c1','claim':1}": 1, "metadata=[]": 0, "metadata={}": 9,
		"availability_zone=nova": 9, "host=cinder@iscsi%23iscsi": 9, "attach_status=detached": 9, "volume_type=iscsi": 0,
		"id=nope": 0, "migration_status=x": 0,
	} {
		key, value, _ := strings.Cut(filter, "=")
		if !strings.Contains(value, "%23") {
			value = url.QueryEscape(value)
		}
		if got := len(get(t, s, "/v3/volumes?"+key+"="+value)["volumes"].([]any)); got != want {
			t.Errorf("%s finds %d, want %d", filter, got, want)
		}
	}
}

// TestViewsAreRenewedWhenSomethingChanges guards the cache of rendered views.
func TestViewsAreRenewedWhenSomethingChanges(t *testing.T) {
	clock := newClock()
	s := started(t, clock.options(Options{}))
	c := noauthSender(t, s)
	id := c.create("a")
	const from = `{"connector": {"host": "n", "initiator": "iqn.n"}}`
	see := func() string {
		list, _ := json.Marshal(c.do(http.StatusOK, "GET", "/volumes/detail", "").body["volumes"].([]any)[0])
		alone, _ := json.Marshal(c.do(http.StatusOK, "GET", "/volumes/"+id, "").body["volume"])
		if string(list) != string(alone) {
			t.Errorf("the list shows %s, the volume %s", list, alone)
		}
		return string(alone)
	}
	last := see()
	for _, step := range []struct{ method, path, body string }{
		{"PUT", "/volumes/" + id, `{"volume": {"name": "b"}}`},
		{"POST", "/volumes/" + id + "/metadata", `{"metadata": {"k": "v"}}`},
		{"DELETE", "/volumes/" + id + "/metadata/k", ``},
		{"POST", "/volumes/" + id + "/action", `{"os-reserve": {}}`},
		{"POST", "/volumes/" + id + "/action", `{"os-attach": {"host_name": "n", "mountpoint": "/dev/sdb"}}`},
		{"POST", "/volumes/" + id + "/action", `{"os-begin_detaching": {}}`},
		{"POST", "/volumes/" + id + "/action", `{"os-detach": {}}`},
		{"POST", "/volumes/" + id + "/action", `{"os-extend": {"new_size": 5}}`},
		{"POST", "/volumes/" + id + "/action", `{"os-update_readonly_flag": {"readonly": true}}`},
	} {
		clock.advance(time.Second)
		if got := c.try(t.Context(), step.method, step.path, step.body); got.err != nil || got.status >= 300 {
			t.Fatalf("%s %s %s: %d, %v", step.method, step.path, step.body, got.status, got.err)
		}
		now := see()
		if now == last {
			t.Errorf("%s %s %s does not show", step.method, step.path, step.body)
		}
		last = now
	}
	c.act(http.StatusOK, id, "os-initialize_connection", from)
	// The same volume, asked for in other ways.
	for _, path := range []string{"/v3/volumes/" + id, "/v3/" + DefaultNoauthProject + "/volumes/" + id} {
		self := get(t, s, path)["volume"].(map[string]any)["links"].([]any)[0].(map[string]any)["href"]
		if self != "http://cinder"+path {
			t.Errorf("%s has the self link %v", path, self)
		}
	}
}

func BenchmarkListPageOf1000(b *testing.B) {
	s := populated(b, 5000)
	b.ResetTimer()
	for range b.N {
		fetch(s, "/v3/volumes/detail")
	}
}

func BenchmarkListByName(b *testing.B) {
	s := populated(b, 5000)
	b.ResetTimer()
	for i := range b.N {
		fetch(s, fmt.Sprintf("/v3/volumes/detail?name=pvc-%05d", i%5000))
	}
}

func BenchmarkListByMetadata(b *testing.B) {
	s := populated(b, 5000)
	b.ResetTimer()
	for i := range b.N {
		fetch(s, "/v3/volumes/detail?metadata="+url.QueryEscape(fmt.Sprintf("{'cluster':'c%d'}", i%50)))
	}
}

func BenchmarkVolumeLife(b *testing.B) {
	s := populated(b, 1000)
	handler := s.NoauthHandler()
	send := func(method, path, body string) *httptest.ResponseRecorder {
		request := httptest.NewRequest(method, "http://cinder/v3"+path, strings.NewReader(body))
		request.Header.Set("X-Auth-Token", "admin:"+DefaultNoauthProject)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, request)
		return recorder
	}
	for range b.N {
		var made struct{ Volume struct{ ID string } }
		if err := json.Unmarshal(send("POST", "/volumes", `{"volume": {"name": "x", "size": 1}}`).Body.Bytes(), &made); err != nil {
			b.Fatal(err)
		}
		path := "/volumes/" + made.Volume.ID
		for _, action := range []string{
			`{"os-reserve": {}}`, `{"os-initialize_connection": {"connector": {"host": "n", "initiator": "iqn.n"}}}`,
			`{"os-attach": {"host_name": "n", "mountpoint": "/dev/sdb"}}`, `{"os-terminate_connection": {"connector": {"host": "n"}}}`, `{"os-detach": {}}`,
		} {
			send("POST", path+"/action", action)
		}
		if got := send("DELETE", path, ""); got.Code != http.StatusAccepted {
			b.Fatalf("status %d", got.Code)
		}
	}
}
