package budgets

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// pageSize is how many volumes Cinder lists at once.
const pageSize = 1000

// listing reads one page. A server that only repeats what the simulator once said
// allocates next to nothing of its own.
func listing(tb testing.TB) func() {
	tb.Helper()
	sim, err := cindersim.New(cindersim.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	if err := sim.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(sim.Close)
	for i := range pageSize {
		uid := fmt.Sprintf("5f0c1f0e-8a51-4e0f-9f5a-%012d", i)
		if _, err := sim.AddVolume(cindersim.Volume{
			Name: "pvc-" + uid, SizeGiB: 1, Status: "in-use", Created: time.Now(), AdminMetadata: map[string]string{"readonly": "False", "attached_mode": "rw"},
			Metadata: map[string]string{
				policy.StampPrefix + "cluster": "c", policy.StampPrefix + "claim-uid": uid, policy.StampPrefix + "tenant": "team", policy.StampPrefix + "storage-class": "gold",
				"csi.storage.k8s.io/pvc/name": "data", "csi.storage.k8s.io/pvc/namespace": "team-a", "csi.storage.k8s.io/pv/name": "pvc-" + uid,
			},
			Attachments: []cindersim.Attachment{{Host: "standalone-cinder", Mountpoint: "/dev/kubernetes"}},
		}); err != nil {
			tb.Fatal(err)
		}
	}
	page := get(tb, sim.NoauthEndpoint()+"/"+cindersim.DefaultNoauthProject+"/volumes/detail")
	origin, err := url.Parse(sim.NoauthEndpoint())
	if err != nil {
		tb.Fatal(err)
	}
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: origin.Scheme, Host: origin.Host})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("limit") != strconv.Itoa(pageSize) {
			behind.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(page)
	}))
	tb.Cleanup(front.Close)
	found, err := auth.Sources{}.Resolve(auth.Config{Source: auth.Source{Noauth: &auth.Noauth{Endpoint: front.URL + origin.Path, User: "admin", Project: cindersim.DefaultNoauthProject}}})
	if err != nil {
		tb.Fatal(err)
	}
	client, err := cinder.Login(tb.Context(), found, cinder.Options{
		Backend: "gold", Limits: turns.Limits{Concurrency: 1}, RequestTimeout: time.Minute, Metrics: cinder.NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return func() {
		read := 0
		err := client.ListVolumes(tb.Context(), cinder.Query{PageSize: pageSize, Keep: isOurs}, func(page []cinder.Volume) bool {
			read += len(page)
			return false
		})
		if err != nil || read != pageSize {
			tb.Fatalf("%d volumes, %v", read, err)
		}
	}
}

// isOurs selects the metadata that the program reads.
func isOurs(key string) bool {
	return strings.HasPrefix(key, policy.StampPrefix) || strings.HasPrefix(key, "csi.storage.k8s.io/")
}

// get reads what the simulator says to an administrator.
func get(tb testing.TB, address string) []byte {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, address, nil)
	if err != nil {
		tb.Fatal(err)
	}
	request.Header.Set("X-Auth-Token", "admin:"+cindersim.DefaultNoauthProject)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		tb.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		tb.Fatalf("%s: %s, %v", address, response.Status, err)
	}
	return content
}

func TestListingStaysWithinItsBudget(t *testing.T) {
	within(t, "listing 1,000 volumes", 70*pageSize, listing(t))
}

func BenchmarkListing(b *testing.B) {
	run := listing(b)
	b.ReportAllocs()
	for b.Loop() {
		run()
	}
}
