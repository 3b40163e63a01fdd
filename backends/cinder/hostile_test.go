package cinder

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// most is how much memory one answer may take.
const most = 64 << 20

// TestNoAnswerTakesMuchMemory sends the worst answers to every kind of request:
// the most JSON values for a byte, the longest texts, compressed or not.
//
//tier:matrix
func TestNoAnswerTakesMuchMemory(t *testing.T) {
	list := func(ctx context.Context, c *Client) error {
		return c.ListVolumes(ctx, Query{PageSize: 1000, Keep: func(key string) bool { return strings.HasPrefix(key, "ours/") }}, func([]Volume) bool { return true })
	}
	snapshots := func(ctx context.Context, c *Client) error {
		return c.ListSnapshots(ctx, Query{PageSize: 1000}, func([]Snapshot) bool { return true })
	}
	get := func(ctx context.Context, c *Client) error {
		_, err := c.Volume(ctx, "v1")
		return err
	}
	connect := func(ctx context.Context, c *Client) error {
		_, err := c.InitializeConnection(ctx, "v1", Connector{})
		return err
	}
	attachments := func(ctx context.Context, c *Client) error {
		_, err := c.Attachments(ctx, "v1")
		return err
	}
	versions := func(ctx context.Context, c *Client) error {
		_, err := c.MaxMicroversion(ctx)
		return err
	}
	types := func(ctx context.Context, c *Client) error {
		_, err := c.VolumeTypes(ctx)
		return err
	}
	byDefault := func(ctx context.Context, c *Client) error {
		_, err := c.DefaultVolumeType(ctx)
		return err
	}
	byID := func(ctx context.Context, c *Client) error {
		_, err := c.VolumeType(ctx, "t1")
		return err
	}
	zones := func(ctx context.Context, c *Client) error {
		_, err := c.Zones(ctx)
		return err
	}
	quota := func(ctx context.Context, c *Client) error {
		_, err := c.Quota(ctx)
		return err
	}
	tests := map[string]struct {
		send                func(ctx context.Context, c *Client) error
		status              int
		before, each, after string
		compressed          bool
	}{
		"empty volumes":            {send: list, before: `{"volumes":[{}`, each: `,{}`, after: `]}`},
		"named volumes":            {send: list, before: `{"volumes":[{"id":"a","metadata":{}}`, each: `,{"id":"a","metadata":{}}`, after: `]}`},
		"metadata":                 {send: list, before: `{"volumes":[{"id":"a","metadata":{"x":""`, each: `,"x":""`, after: `}}]}`},
		"attachments of a volume":  {send: list, before: `{"volumes":[{"id":"a","metadata":{},"attachments":[{}`, each: `,{}`, after: `]}]}`},
		"links":                    {send: list, before: `{"volumes_links":[{}`, each: `,{}`, after: `]}`},
		"other fields":             {send: list, before: `{"a":1`, each: `,"a":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]`, after: `}`},
		"one long text":            {send: list, before: `{"volumes":[{"id":"`, each: `a`, after: `"}]}`},
		"deep lists":               {send: list, before: `{"volumes":`, each: `[`, after: `}`},
		"compressed":               {send: list, before: `{"volumes":[{}`, each: `,{}`, after: `]}`, compressed: true},
		"a long fault":             {send: list, status: http.StatusServiceUnavailable, before: `{"a":[{}`, each: `,{}`, after: `]}`},
		"snapshots":                {send: snapshots, before: `{"snapshots":[{"id":"a","metadata":{}}`, each: `,{"id":"a","metadata":{}}`, after: `]}`},
		"metadata of a snapshot":   {send: snapshots, before: `{"snapshots":[{"id":"a","metadata":{"x":""`, each: `,"x":""`, after: `}}]}`},
		"metadata of one volume":   {send: get, before: `{"volume":{"id":"a","status":"in-use","metadata":{"x":""`, each: `,"x":""`, after: `}}}`},
		"a connection":             {send: connect, before: `{"connection_info":{"data":[{}`, each: `,{}`, after: `]}}`},
		"attachments":              {send: attachments, before: `{"attachments":[{}`, each: `,{}`, after: `]}`},
		"versions":                 {send: versions, before: `{"versions":[{}`, each: `,{}`, after: `]}`},
		"volume types":             {send: types, before: `{"volume_types":[{"id":"a"}`, each: `,{"id":"a"}`, after: `]}`},
		"extra specs of a type":    {send: types, before: `{"volume_types":[{"id":"a","extra_specs":{"x":""`, each: `,"x":""`, after: `}}]}`},
		"a type":                   {send: byID, before: `{"volume_type":{"id":"t1","extra_specs":{"x":""`, each: `,"x":""`, after: `}}}`},
		"a default type":           {send: byDefault, before: `{"volume_type":{"id":"a","extra_specs":{"x":""`, each: `,"x":""`, after: `}}}`},
		"availability zones":       {send: zones, before: `{"availabilityZoneInfo":[{"zoneName":"a"}`, each: `,{"zoneName":"a"}`, after: `]}`},
		"rates of the limits":      {send: quota, before: `{"limits":{"rate":[{}`, each: `,{}`, after: `]}}`},
		"a long limit":             {send: quota, before: `{"limits":{"absolute":{"maxTotalVolumes":1`, each: `1`, after: `}}}`},
		"fields of one attachment": {send: attachments, before: `{"attachments":[{"connection_info":{"a":1`, each: `,"a":[{}]`, after: `}}]}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() {
				cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					var to io.Writer = w
					if test.compressed {
						w.Header().Set("Content-Encoding", "gzip")
						zip := gzip.NewWriter(w)
						defer zip.Close()
						to = zip
					}
					w.WriteHeader(cmp.Or(test.status, http.StatusOK))
					_, _ = io.WriteString(to, test.before)
					chunk := strings.Repeat(test.each, 1+1<<20/len(test.each))
					for range 2 * maxPageSize >> 20 {
						// Compressing goes on without an error long after the
						// client has left.
						if _, err := io.WriteString(to, chunk); err != nil || r.Context().Err() != nil {
							return
						}
					}
					_, _ = io.WriteString(to, test.after)
				}
			})
			taken := memoryTaken(func() {
				if err := test.send(t.Context(), client); err == nil {
					t.Error("the answer was accepted")
				}
			})
			if taken > most {
				t.Errorf("the answer took %d MiB of memory", taken>>20)
			}
		})
	}
}

// TestHeadersAreBounded: several answers at once with headers of net/http's
// default maximum would take more memory than the program has.
func TestHeadersAreBounded(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	for length, accepted := range map[int]bool{100 << 10: true, 1 << 20: false} {
		cloud.Set(func() {
			cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Padding", strings.Repeat("a", length))
				cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
			}
		})
		err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true })
		if accepted != (err == nil) {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}

// memoryTaken returns the most that the heap grew while the function ran.
func memoryTaken(run func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	heap := func() int64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return int64(stats.HeapAlloc)
	}
	runtime.GC()
	before := heap()
	var highest atomic.Int64
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			highest.Store(max(highest.Load(), heap()-before))
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	run()
	close(done)
	<-stopped
	return highest.Load()
}

// TestListingEnds lists from servers whose lists never do.
func TestListingEnds(t *testing.T) {
	page := 0
	link := func(r *http.Request) string {
		page++
		return fmt.Sprintf(`"volumes_links": [{"rel": "next", "href": "http://%s%s?marker=%d"}]`, r.Host, r.URL.Path, page)
	}
	tests := map[string]struct {
		volumes func() string
		most    int
		message string
	}{
		"the same volume again and again": {func() string { return `{"id": "v1", "status": "available", "metadata": {}}` }, 10,
			"backend gold: volume.list: the list of volumes does not end"},
		"more volumes than requested": {func() string {
			return strings.TrimSuffix(strings.Repeat(`{"id": "v1", "status": "available", "metadata": {}},`, 1001), ",")
		}, 1, "backend gold: volume.list: the page has more volumes than the 1000 requested"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			page = 0
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() {
				cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
					cindertest.Answer(w, http.StatusOK, fmt.Sprintf(`{"volumes": [%s], %s}`, test.volumes(), link(r)))
				}
			})
			err := client.ListVolumes(t.Context(), Query{PageSize: 1000}, func([]Volume) bool { return true })
			if err == nil || err.Error() != test.message || !IsKind(err, KindInternal) {
				t.Errorf("got  %v\nwant %s", err, test.message)
			}
			if page > test.most {
				t.Errorf("%d pages were read", page)
			}
		})
	}
}

// TestOneOddVolumeLeavesTheListingReadable: the odd one is listed, in a state
// that the program does not act on.
func TestOneOddVolumeLeavesTheListingReadable(t *testing.T) {
	for name, odd := range map[string]string{
		"a size in quotes that is none": `"size": "big", "status": "available"`,
		"no status":                     `"size": 1`,
		"status null":                   `"status": null`,
		"encrypted a text":              `"status": "available", "encrypted": "yes"`,
		"attachments a number":          `"status": "available", "attachments": 7`,
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() {
				cloud.Cinder = fixed(http.StatusOK, `{"volumes": [{"id": "v1", "metadata": {}, `+odd+`}, {"id": "v2", "status": "available", "size": "10", "metadata": {"number": 7, "text": "a"}}]}`)
			})
			statuses := map[string]Status{}
			var second Volume
			err := client.ListVolumes(t.Context(), Query{}, func(page []Volume) bool {
				for _, v := range page {
					statuses[v.ID] = v.Status
					second = v
				}
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			equal(t, statuses, map[string]Status{"v1": StatusUnreadable, "v2": StatusAvailable})
			equal(t, second.SizeGiB, 10)
			equal(t, second.Metadata["text"], "a")
		})
	}
}

func TestVolumeWithoutAStatusIsAnError(t *testing.T) {
	for _, answer := range []string{`{"volume": {"id": "v1", "metadata": {}}}`, `{"volume": {"id": "v1", "metadata": {}, "status": null}}`, `{"volume": {"id": "v1", "metadata": {}, "status": ""}}`} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		cloud.Set(func() { cloud.Cinder = fixed(http.StatusAccepted, answer) })
		_, err := client.CreateVolume(t.Context(), NewVolume{Name: "pvc-1", SizeGiB: 1})
		if err == nil || err.Error() != "backend gold: volume.create: the answer gives no status of volume v1" || !effectUnknown(err) {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// TestServersTextIsOneShortSentence sends texts of any length and any bytes
// wherever a server has a choice.
func TestServersTextIsOneShortSentence(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, handler := range map[string]http.HandlerFunc{
		"request ID": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Openstack-Request-Id", "req-"+long)
			cindertest.Answer(w, http.StatusConflict, `{"conflictingRequest": {"message": "busy"}}`)
		},
		"odd request ID": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Openstack-Request-Id", "req-1\xff {secret}")
			cindertest.Answer(w, http.StatusConflict, `{"conflictingRequest": {"message": "busy"}}`)
		},
		"location": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://"+long+".example/")
			w.WriteHeader(http.StatusFound)
		},
		"fault": fixed(http.StatusBadRequest, `{"badRequest": {"message": "a\u0000b\n`+long+`"}}`),
		"status line": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.1 " + long + "\xff\r\n\r\n"))
				_ = conn.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := cindertest.NewCloud(t)
			client := logIn(t, cloud)
			cloud.Set(func() { cloud.Cinder = handler })
			err := client.Reserve(t.Context(), "v1")
			if err == nil {
				t.Fatal("no error")
			}
			text := err.Error()
			if len(text) > 1000 || strings.ToValidUTF8(text, "") != text || strings.ContainsAny(text, "\x00\n\r") || strings.Contains(text, "secret") {
				t.Errorf("%d bytes: %.200q", len(text), text)
			}
		})
	}
}

func TestUnknownStatusesShareOneLabel(t *testing.T) {
	for status, want := range map[int]string{200: "200", 413: "413", 599: "other", 299: "other", 999: "other"} {
		equal(t, codeLabel(status), want)
	}
}

func TestRetryAfterInBothForms(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"":                     0,
		"0":                    0,
		"7":                    7 * time.Second,
		"-1":                   0,
		"soon":                 0,
		"99999999999999999999": maxRetryAfter,
		time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat):     0,
		time.Now().Add(24 * time.Hour).UTC().Format(http.TimeFormat): maxRetryAfter,
	} {
		equal(t, retryAfter(http.Header{"Retry-After": {text}}), want)
	}
	soon := retryAfter(http.Header{"Retry-After": {time.Now().Add(time.Minute).UTC().Format(http.TimeFormat)}})
	if soon < 50*time.Second || soon > time.Minute {
		t.Errorf("a date in a minute gives %s", soon)
	}
}

func TestImplausibleDatesAreIgnored(t *testing.T) {
	for _, date := range []string{"Mon, 01 Jan 0001 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "yesterday"} {
		cloud := cindertest.NewCloud(t)
		client := logIn(t, cloud)
		cloud.Set(func() {
			cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", date)
				cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
			}
		})
		if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); err != nil {
			t.Fatal(err)
		}
		if off := time.Until(client.Now()).Abs(); off > time.Minute {
			t.Errorf("Date %s: the client's clock is off by %s", date, off)
		}
	}
}

// TestCallersOfDiscoveryKeepTheirTime: a silent endpoint delays no caller beyond
// its own context, and one request serves all.
func TestCallersOfDiscoveryKeepTheirTime(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	var asked atomic.Int32
	release := make(chan struct{})
	cloud.Set(func() {
		cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			<-release
			cindertest.Answer(w, http.StatusOK, `{"versions": [{"id": "v3.0", "version": "3.70"}]}`)
		}
	})
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := client.MaxMicroversion(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first caller got %v", err)
	}
	results := make(chan int)
	for range 5 {
		go func() {
			newest, _ := client.MaxMicroversion(t.Context())
			results <- newest
		}()
	}
	time.Sleep(20 * time.Millisecond)
	close(release)
	for range 5 {
		equal(t, <-results, 70)
	}
	equal(t, asked.Load(), 1)
}

// TestEmptyGzipIsNotDecompressed: a transport that does not ask for compression
// passes on what the server sends unchanged.
func TestEmptyGzipIsNotDecompressed(t *testing.T) {
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = zip.Write([]byte(`{"volumes": []}`))
	_ = zip.Close()
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	cloud.Set(func() {
		cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
			equal(t, r.Header.Get("Accept-Encoding"), "")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped.Bytes())
		}
	})
	if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); !IsKind(err, KindInternal) {
		t.Errorf("got %v", err)
	}
}
