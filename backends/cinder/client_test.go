package cinder

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// recordedRequest is a request that Cinder received.
type recordedRequest struct {
	line string // "METHOD path"
	body string // compact JSON
	api  string // OpenStack-API-Version
}

// scripted answers requests by "METHOD path" below the project and records
// them.
type scripted struct {
	t       *testing.T
	answers map[string]http.HandlerFunc

	mu       sync.Mutex
	requests []recordedRequest
}

func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	line := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/volume/v3/0123456789abcdef0123456789abcdef")
	s.mu.Lock()
	s.requests = append(s.requests, recordedRequest{line, string(body), r.Header.Get("OpenStack-API-Version")})
	handler, ok := s.answers[line]
	s.mu.Unlock()
	if !ok {
		s.t.Errorf("unexpected request %s", line)
		cindertest.Answer(w, http.StatusNotFound, cindertest.RoutingNotFound)
		return
	}
	handler(w, r)
}

func newScripted(t *testing.T, answers map[string]http.HandlerFunc) (*Client, *scripted) {
	t.Helper()
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	s := &scripted{t: t, answers: answers}
	cloud.Set(func() { cloud.Cinder = s.serve })
	return client, s
}

// TestRequests checks every mutation's address and body against the Block
// Storage API reference, and that none sends a microversion.
func TestRequests(t *testing.T) {
	connector := Connector{Host: "k8s", IP: "10.0.0.1", Initiator: "iqn.2026-01.example:k8s", WWPNs: []string{"5001438002a3004a", "5001438002a30048"}, WWNNs: []string{"5001438002a3004b", "5001438002a30049"},
		NQN: "nqn.2014-08.org.nvmexpress:uuid:1", Multipath: true}
	const fullConnector = `{"connector":{"host":"k8s","ip":"10.0.0.1","initiator":"iqn.2026-01.example:k8s","wwpns":["5001438002a3004a","5001438002a30048"],"wwnns":["5001438002a3004b","5001438002a30049"],` +
		`"nqn":"nqn.2014-08.org.nvmexpress:uuid:1","multipath":true,"platform":"x86_64","os_type":"linux","do_local_attach":false}}`
	tests := map[string]struct {
		call func(ctx context.Context, c *Client) error
		line string
		body string
	}{
		"create": {func(ctx context.Context, c *Client) error {
			_, err := c.CreateVolume(ctx, NewVolume{Name: "pvc-1", SizeGiB: 5, Type: "ssd", Zone: "az1", Metadata: map[string]string{"a": "b"}})
			return err
		}, "POST /volumes", `{"volume":{"name":"pvc-1","size":5,"volume_type":"ssd","availability_zone":"az1","metadata":{"a":"b"}}}`},
		"create with Cinder's defaults": {func(ctx context.Context, c *Client) error {
			_, err := c.CreateVolume(ctx, NewVolume{Name: "pvc-1", SizeGiB: 1})
			return err
		}, "POST /volumes", `{"volume":{"name":"pvc-1","size":1}}`},
		"delete":       {func(ctx context.Context, c *Client) error { return c.DeleteVolume(ctx, "v1") }, "DELETE /volumes/v1", ""},
		"force delete": {func(ctx context.Context, c *Client) error { return c.ForceDeleteVolume(ctx, "v1") }, "POST /volumes/v1/action", `{"os-force_delete":""}`},
		"reserve":      {func(ctx context.Context, c *Client) error { return c.Reserve(ctx, "v1") }, "POST /volumes/v1/action", `{"os-reserve":{}}`},
		"unreserve":    {func(ctx context.Context, c *Client) error { return c.Unreserve(ctx, "v1") }, "POST /volumes/v1/action", `{"os-unreserve":{}}`},
		"attach": {func(ctx context.Context, c *Client) error { return c.Attach(ctx, "v1", "k8s", false) }, "POST /volumes/v1/action",
			`{"os-attach":{"host_name":"k8s","mode":"rw","mountpoint":"/dev/standalone-cinder"}}`},
		"attach read-only": {func(ctx context.Context, c *Client) error { return c.Attach(ctx, "v1", "k8s", true) }, "POST /volumes/v1/action",
			`{"os-attach":{"host_name":"k8s","mode":"ro","mountpoint":"/dev/standalone-cinder"}}`},
		"detach":     {func(ctx context.Context, c *Client) error { return c.Detach(ctx, "v1", "a1") }, "POST /volumes/v1/action", `{"os-detach":{"attachment_id":"a1"}}`},
		"detach all": {func(ctx context.Context, c *Client) error { return c.Detach(ctx, "v1", "") }, "POST /volumes/v1/action", `{"os-detach":{}}`},
		"initialize": {func(ctx context.Context, c *Client) error {
			_, err := c.InitializeConnection(ctx, "v1", connector)
			return err
		},
			"POST /volumes/v1/action", `{"os-initialize_connection":` + fullConnector + `}`},
		"initialize with the least": {func(ctx context.Context, c *Client) error {
			_, err := c.InitializeConnection(ctx, "v1", Connector{Host: "k8s"})
			return err
		},
			"POST /volumes/v1/action", `{"os-initialize_connection":{"connector":{"host":"k8s","multipath":false,"platform":"x86_64","os_type":"linux","do_local_attach":false}}}`},
		"terminate": {func(ctx context.Context, c *Client) error { return c.TerminateConnection(ctx, "v1", connector) },
			"POST /volumes/v1/action", `{"os-terminate_connection":` + fullConnector + `}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, cinder := newScripted(t, map[string]http.HandlerFunc{test.line: fixed(202, `{"volume": {"id": "v1", "name": "pvc-1", "status": "creating", "metadata": {"a": "b"}}, "connection_info": {}}`)})
			if err := test.call(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			equal(t, cinder.requests, []recordedRequest{{line: test.line, body: test.body}})
		})
	}
}

func TestInvalidRequestsAreNotSent(t *testing.T) {
	client, cinder := newScripted(t, nil)
	for _, size := range []int64{0, -1} {
		_, err := client.CreateVolume(t.Context(), NewVolume{SizeGiB: size})
		equal(t, authtest.ErrorText(err), fmt.Sprintf("backend gold: volume.create: %d GiB is not a valid size", size))
		equal(t, KindOf(err), KindInvalid)
	}
	for _, id := range []string{"", "..", "../volumes", "v1/action", "v1?force=true", "v1#", "v1%2f", " v1", "detail\n"} {
		for name, call := range map[string]func() error{
			"get":        func() error { _, err := client.Volume(t.Context(), id); return err },
			"delete":     func() error { return client.DeleteVolume(t.Context(), id) },
			"force":      func() error { return client.ForceDeleteVolume(t.Context(), id) },
			"reserve":    func() error { return client.Reserve(t.Context(), id) },
			"unreserve":  func() error { return client.Unreserve(t.Context(), id) },
			"initialize": func() error { _, err := client.InitializeConnection(t.Context(), id, Connector{}); return err },
			"terminate":  func() error { return client.TerminateConnection(t.Context(), id, Connector{}) },
			"attach":     func() error { return client.Attach(t.Context(), id, "k8s", false) },
			"detach":     func() error { return client.Detach(t.Context(), id, "a1") },
		} {
			if err := call(); !IsKind(err, KindInvalid) {
				t.Errorf("%s of %q: %v", name, id, err)
			}
		}
	}
	equal(t, len(cinder.requests), 0)
}

// recordedVolume is a volume in use as Cinder 21.3.1 (Zed) returns it to an
// administrator.
const recordedVolume = `{"volume": {"id": "974a66ec-0adc-4a85-b770-0fb55507e490", "status": "in-use", "size": 1, "availability_zone": "nova",
	"created_at": "2026-11-20T15:22:02.000000", "updated_at": "2026-11-20T15:22:04.000000", "name": "seq-iscsi", "description": null, "volume_type": "iscsi",
	"snapshot_id": null, "source_volid": null, "metadata": {"readonly": "False", "attached_mode": "rw"}, "user_id": "admin", "bootable": "false",
	"encrypted": false, "multiattach": false, "attachments": [{"id": "974a66ec-0adc-4a85-b770-0fb55507e490", "attachment_id": "2dde5d37-99e4-4f54-85fe-e21af7df9e0e",
	"volume_id": "974a66ec-0adc-4a85-b770-0fb55507e490", "server_id": null, "host_name": "node1", "device": "/dev/sdb", "attached_at": "2026-11-20T15:22:04.000000"}],
	"os-vol-host-attr:host": "rig@iscsi#iscsi"}}`

func TestVolumeIsRead(t *testing.T) {
	client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/974a66ec-0adc-4a85-b770-0fb55507e490": fixed(200, recordedVolume)})
	got, err := client.Volume(t.Context(), "974a66ec-0adc-4a85-b770-0fb55507e490")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, Volume{
		ID: "974a66ec-0adc-4a85-b770-0fb55507e490", Name: "seq-iscsi", Status: StatusInUse, SizeGiB: 1, Type: "iscsi", Zone: "nova",
		Metadata:    map[string]string{"readonly": "False", "attached_mode": "rw"},
		Attachments: []Attachment{{ID: "2dde5d37-99e4-4f54-85fe-e21af7df9e0e", Host: "node1"}},
		CreatedAt:   time.Date(2026, 11, 20, 15, 22, 2, 0, time.UTC),
	})
}

func TestVolumeForSeveralHostsIsRead(t *testing.T) {
	client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/974a66ec-0adc-4a85-b770-0fb55507e490": fixed(200, strings.Replace(recordedVolume, `"multiattach": false`, `"multiattach": true`, 1))})
	got, err := client.Volume(t.Context(), "974a66ec-0adc-4a85-b770-0fb55507e490")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got.MultiAttach, true)
}

func TestTimestamps(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-11-20T15:21:26.412044":  time.Date(2026, 11, 20, 15, 21, 26, 412044000, time.UTC),
		"2026-11-20T15:21:26":         time.Date(2026, 11, 20, 15, 21, 26, 0, time.UTC),
		"2026-11-20T15:21:26Z":        time.Date(2026, 11, 20, 15, 21, 26, 0, time.UTC),
		"2026-11-20T16:21:26.5+01:00": time.Date(2026, 11, 20, 15, 21, 26, 500000000, time.UTC),
		"":                            {},
		"yesterday":                   {},
	} {
		if got := parseTime(text); !got.Equal(want) {
			t.Errorf("parseTime(%q) = %v, want %v", text, got, want)
		}
	}
}

// pages serves a paged listing whose links name a host and prefix that do not
// exist, as behind a proxy.
func pages(t *testing.T, marks map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, ok := marks[r.URL.Query().Get("marker")]
		if !ok {
			t.Errorf("unexpected marker in %s", r.URL)
		}
		cindertest.Answer(w, http.StatusOK, body)
	}
}

func page(next string, ids ...string) string {
	var volumes []string
	for _, id := range ids {
		volumes = append(volumes, fmt.Sprintf(`{"id": %q, "status": "available", "size": 1, "metadata": {}}`, id))
	}
	links := ""
	if next != "" {
		links = fmt.Sprintf(`, "volumes_links": [{"rel": "self", "href": "http://x/"}, {"rel": "next", "href": "http://internal.invalid:1/other/v3/volumes/detail?limit=2&sort=created_at%%3Adesc&marker=%s"}]`, next)
	}
	return `{"volumes": [` + strings.Join(volumes, ",") + `]` + links + `}`
}

func TestListing(t *testing.T) {
	missingMarker := `{"itemNotFound": {"code": 404, "message": "Volume b could not be found."}}`
	tests := map[string]struct {
		marks   map[string]string // pages by marker
		want    [][]string
		wantErr string
	}{
		"one page":                    {marks: map[string]string{"": page("", "a", "b")}, want: [][]string{{"a", "b"}}},
		"links of another host":       {marks: map[string]string{"": page("b", "a", "b"), "b": page("d", "c", "d"), "d": page("", "e")}, want: [][]string{{"a", "b"}, {"c", "d"}, {"e"}}},
		"nothing":                     {marks: map[string]string{"": page("")}},
		"empty last page":             {marks: map[string]string{"": page("b", "a", "b"), "b": page("b")}, want: [][]string{{"a", "b"}}},
		"a volume twice":              {marks: map[string]string{"": page("b", "a", "b"), "b": page("d", "b", "d"), "d": page("", "e")}, want: [][]string{{"a", "b"}, {"d"}, {"e"}}},
		"a page without anything new": {marks: map[string]string{"": page("b", "a", "b"), "b": page("c", "a", "b"), "c": page("", "d")}, want: [][]string{{"a", "b"}, {"d"}}},
		"a page that leads back":      {marks: map[string]string{"": page("b", "a", "b"), "b": page("c", "c"), "c": page("b", "d")}, want: [][]string{{"a", "b"}, {"c"}, {"d"}}, wantErr: "backend gold: volume.list: the list of volumes links back to a page that was already read"},
		"no list":                     {marks: map[string]string{"": `{"volume": {}}`}, wantErr: "backend gold: volume.list: the answer has no list of volumes"},
		"null":                        {marks: map[string]string{"": `{"volumes": null}`}, wantErr: "backend gold: volume.list: the answer has no list of volumes"},
		"no list on the second page":  {marks: map[string]string{"": page("b", "a", "b"), "b": `{}`}, want: [][]string{{"a", "b"}}, wantErr: "backend gold: volume.list: the answer has no list of volumes"},
		"HTML":                        {marks: map[string]string{"": "<html>"}, wantErr: "backend gold: volume.list: unexpected response: not the JSON documented in the API reference"},
		"link that is no address":     {marks: map[string]string{"": `{"volumes": [{"id": "a", "metadata": {}}], "volumes_links": [{"rel": "next", "href": "http://[::1"}]}`}, wantErr: "backend gold: volume.list: the link to the next page is not a valid address"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/detail": pages(t, test.marks)})
			var got [][]string
			err := client.ListVolumes(t.Context(), Query{PageSize: 2}, func(page []Volume) bool {
				got = append(got, ids(page))
				return true
			})
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, got, test.want)
		})
	}
	t.Run("the marker is deleted between two pages", func(t *testing.T) {
		deleted := false
		client, cinder := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/detail": func(w http.ResponseWriter, r *http.Request) {
			switch marker := r.URL.Query().Get("marker"); {
			case marker == "" && !deleted:
				cindertest.Answer(w, http.StatusOK, page("b", "a", "b"))
			case marker == "b":
				deleted = true
				cindertest.Answer(w, http.StatusNotFound, missingMarker)
			case marker == "":
				cindertest.Answer(w, http.StatusOK, page("c", "a", "c"))
			case marker == "c":
				cindertest.Answer(w, http.StatusOK, page("", "d"))
			}
		}})
		var got [][]string
		err := client.ListVolumes(t.Context(), Query{PageSize: 2}, func(page []Volume) bool {
			got = append(got, ids(page))
			return true
		})
		equal(t, authtest.ErrorText(err), "")
		equal(t, got, [][]string{{"a", "b"}, {"c"}, {"d"}})
		equal(t, len(cinder.requests), 4)
	})
	t.Run("markers are deleted all the time", func(t *testing.T) {
		client, cinder := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/detail": func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("marker") != "" {
				cindertest.Answer(w, http.StatusNotFound, missingMarker)
				return
			}
			cindertest.Answer(w, http.StatusOK, page("b", "a", "b"))
		}})
		err := client.ListVolumes(t.Context(), Query{PageSize: 2}, func([]Volume) bool { return true })
		equal(t, authtest.ErrorText(err), "backend gold: volume.list: Volume b could not be found (HTTP 404)")
		equal(t, KindOf(err), KindUnavailable)
		equal(t, len(cinder.requests), 2*maxPasses)
	})
	t.Run("stops when the caller has seen enough", func(t *testing.T) {
		client, cinder := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/detail": pages(t, map[string]string{"": page("b", "a", "b")})})
		if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return false }); err != nil {
			t.Fatal(err)
		}
		equal(t, len(cinder.requests), 1)
	})
	t.Run("query", func(t *testing.T) {
		var query url.Values
		client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/detail": func(w http.ResponseWriter, r *http.Request) {
			query = r.URL.Query()
			cindertest.Answer(w, http.StatusOK, page(""))
		}})
		if err := client.ListVolumes(t.Context(), Query{Status: StatusDeleting, PageSize: 1000}, func([]Volume) bool { return true }); err != nil {
			t.Fatal(err)
		}
		equal(t, query, url.Values{"status": {"deleting"}, "limit": {"1000"}, "sort": {"created_at:desc"}})
	})
}

func ids(volumes []Volume) []string {
	var ids []string
	for _, v := range volumes {
		ids = append(ids, v.ID)
	}
	return ids
}

// TestAbsenceNeedsProof: a proxy without a backend also answers 404. Accepting
// that as Cinder's answer would lose volumes.
func TestAbsenceNeedsProof(t *testing.T) {
	const proxy = "default backend - 404"
	tests := map[string]struct {
		get, list http.HandlerFunc
		kind      Kind
		want      string
		requests  int
	}{
		"Cinder's fault":               {get: fixed(404, `{"itemNotFound": {"code": 404, "message": "Volume v1 could not be found."}}`), kind: KindNotFound, want: "Volume v1 could not be found (HTTP 404, req-1)", requests: 1},
		"a proxy's 404 for everything": {get: fixed(404, proxy), list: fixed(404, proxy), kind: KindConfig, want: unprovenAbsence + " (HTTP 404, req-1)", requests: 2},
		"the list still has it":        {get: fixed(404, proxy), list: fixed(200, page("", "v0", "v1")), kind: KindConfig, want: unprovenAbsence + " (HTTP 404, req-1)", requests: 2},
		"the list of its project has it": {get: fixed(404, proxy), list: func(w http.ResponseWriter, r *http.Request) {
			volumes := []string{"v0"}
			if r.URL.Query().Get("all_tenants") == "1" {
				volumes = append(volumes, "v1") // in the project that the backend led to before
			}
			fixed(200, page("", volumes...))(w, r)
		}, kind: KindConfig, want: unprovenAbsence + " (HTTP 404, req-1)", requests: 2},
		"the list does not have it":      {get: fixed(404, proxy), list: fixed(200, page("", "v0")), kind: KindNotFound, want: "volume v1 is not in the list of volumes (HTTP 404)", requests: 2},
		"Cinder's routing, project gone": {get: fixed(404, cindertest.RoutingNotFound), list: fixed(404, cindertest.RoutingNotFound), kind: KindConfig, want: unprovenAbsence + " (HTTP 404, req-1)", requests: 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, cinder := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/v1": test.get, "GET /volumes/detail": test.list})
			_, err := client.Volume(t.Context(), "v1")
			equal(t, authtest.ErrorText(err), "backend gold: volume.get: "+test.want)
			equal(t, KindOf(err), test.kind)
			equal(t, len(cinder.requests), test.requests)
		})
	}
	t.Run("a 404 to a listing proves no volume's absence", func(t *testing.T) {
		client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /volumes/detail": fixed(404, `{"itemNotFound": {"code": 404, "message": "The resource could not be found."}}`)})
		err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true })
		equal(t, KindOf(err), KindUnavailable)
	})
}

// TestConnectionDocumentIsExact: no number may pass through a float.
func TestConnectionDocumentIsExact(t *testing.T) {
	const document = `{"driver_volume_type":"iscsi","data":{"target_lun":9007199254740993,"target_luns":[18446744073709551615,1e3,1.10],"auth_password":"a<b>&\u00e9 \\ \"","qos_specs":null,"encrypted":false,"nested":{"z":1,"a":[{}]}}}`
	client, _ := newScripted(t, map[string]http.HandlerFunc{"POST /volumes/v1/action": fixed(200, `{"connection_info": `+document+`}`)})
	got, err := client.InitializeConnection(t.Context(), "v1", Connector{Host: "k8s"})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, string(got), document)
}

func TestConnectionDocumentIsMissing(t *testing.T) {
	for _, body := range []string{`{}`, `{"connection_info": null}`, `{"connection": {}}`} {
		client, _ := newScripted(t, map[string]http.HandlerFunc{"POST /volumes/v1/action": fixed(200, body)})
		_, err := client.InitializeConnection(t.Context(), "v1", Connector{Host: "k8s"})
		equal(t, authtest.ErrorText(err), "backend gold: volume.os-initialize_connection: the answer has no connection_info")
		equal(t, KindOf(err), KindInternal)
	}
}

// TestFailureReason: the client uses the messages API with the microversion
// that it needs and the endpoint has, and ignores its failures.
func TestFailureReason(t *testing.T) {
	const versions = `{"versions": [{"id": "v3.0", "status": "CURRENT", "version": "3.%d", "min_version": "3.0"}]}`
	const messages = `{"messages": [{"resource_uuid": "other", "user_message": "another volume's trouble."},
		{"resource_uuid": "v1", "user_message": "schedule allocate volume:Could not find any available weighted backend."},
		{"resource_uuid": "v1", "user_message": "create volume from backend storage:Driver failed to create the volume."}]}`
	tests := map[string]struct {
		versions, messages http.HandlerFunc
		want               string
		api                []string
	}{
		"current":                  {fixed(200, fmt.Sprintf(versions, 70)), fixed(200, messages), "schedule allocate volume:Could not find any available weighted backend", []string{"", "volume 3.5"}},
		"only just":                {fixed(300, fmt.Sprintf(versions, 3)), fixed(200, messages), "schedule allocate volume:Could not find any available weighted backend", []string{"", "volume 3.3"}},
		"too old":                  {fixed(200, fmt.Sprintf(versions, 2)), nil, "", []string{""}},
		"no discovery":             {fixed(404, "404 page not found"), nil, "", []string{""}},
		"discovery without number": {fixed(200, `{"versions": [{"id": "v2.0", "version": ""}, {"id": "v3.0", "version": "3.x"}]}`), nil, "", []string{""}},
		"no message":               {fixed(200, fmt.Sprintf(versions, 70)), fixed(200, `{"messages": []}`), "", []string{"", "volume 3.5"}},
		"messages forbidden":       {fixed(200, fmt.Sprintf(versions, 70)), fixed(403, ""), "", []string{"", "volume 3.5"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			client, cinder := newScripted(t, map[string]http.HandlerFunc{"GET /volume/v3/": test.versions, "GET /messages": test.messages})
			equal(t, client.FailureReason(t.Context(), "v1"), test.want)
			var api []string
			for _, request := range cinder.requests {
				api = append(api, request.api)
			}
			equal(t, api, test.api)
		})
	}
	t.Run("the versions are requested once", func(t *testing.T) {
		client, cinder := newScripted(t, map[string]http.HandlerFunc{"GET /volume/v3/": fixed(200, fmt.Sprintf(versions, 70)), "GET /messages": fixed(200, messages)})
		for range 3 {
			client.FailureReason(t.Context(), "v1")
		}
		equal(t, len(cinder.requests), 4)
	})
}

func TestVersionRoot(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://c:8776/v3/":            "http://c:8776/v3/",
		"http://c:8776/v3":             "http://c:8776/v3/",
		"http://c/volume/v3/0123abcd/": "http://c/volume/v3/",
		"https://c/cinder/v3/0123/v3/": "https://c/cinder/v3/",
	} {
		got, err := versionRoot(endpoint)
		if err != nil || got != want {
			t.Errorf("versionRoot(%q) = %q, %v, want %q", endpoint, got, err, want)
		}
	}
	for _, endpoint := range []string{"http://c/v2/", "http://[::1", "http://c/v30/"} {
		if got, err := versionRoot(endpoint); err == nil {
			t.Errorf("versionRoot(%q) = %q, want an error", endpoint, got)
		}
	}
}
