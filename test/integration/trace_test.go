package integration

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collectortrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// collector is an OTLP collector that keeps the names of spans by trace.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans map[string][]string
}

func startCollector(t *testing.T) *collector {
	c := &collector{spans: map[string][]string{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var sent collectortrace.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("the collector got %s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, resource := range sent.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					id := hex.EncodeToString(span.TraceId)
					c.spans[id] = append(c.spans[id], span.Name)
				}
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

// missing returns the spans that a claim's trace lacks.
func (c *collector) missing(claimUID string, want []string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.spans[strings.ReplaceAll(claimUID, "-", "")]
	return slices.DeleteFunc(slices.Clone(want), func(name string) bool { return slices.Contains(have, name) })
}

// TestClaimIsOneTraceAcrossReplicas: one replica provisions, another one deletes.
func TestClaimIsOneTraceAcrossReplicas(t *testing.T) {
	t.Parallel()
	collector := startCollector(t)
	w := newWorld(t, "trace", cindersim.Options{})
	start := func() *harness.Replica { return w.start("--trace-endpoint", collector.URL) }
	first := start()
	w.claim("a", "data", "gold", "1Gi")
	bound, err := suite.WaitBound(w.ctx, "trace-a", 1)
	w.must(err)
	uid := string(bound[0].UID)
	want := func(spans ...string) {
		t.Helper()
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			if missing := collector.missing(uid, spans); len(missing) > 0 {
				return fmt.Sprintf("the trace %s lacks %q", uid, missing), nil
			}
			return "", nil
		}))
	}
	made := []string{"provision", "volume.create", "wait while creating", "complete"}
	want(made...)
	w.must(first.Stop(w.ctx))
	second := start()
	w.must(suite.DeleteClaims(w.ctx, "trace-a"))
	w.noResidue()
	w.must(second.Stop(w.ctx))
	want(append(made, "delete", "volume.delete", "wait while deleting")...)
}
