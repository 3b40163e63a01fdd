package integration

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/faultproxy"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// formats notes in which format each request to the API server is sent and answered.
type formats struct {
	http.RoundTripper
	mu   sync.Mutex
	seen map[string]format
}

// format is how a request is sent, and how it is answered.
type format struct{ sent, accepts, got string }

// RoundTrip implements http.RoundTripper.
func (f *formats) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := f.RoundTripper.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[r.Method+" "+r.URL.Path] = format{r.Header.Get("Content-Type"), r.Header.Get("Accept"), answer.Header.Get("Content-Type")}
	return answer, nil
}

func TestTypedClientsSpeakProtobuf(t *testing.T) {
	t.Parallel()
	w := newSnapshotWorld(t, "wireformat")
	w.install()
	transport, err := suite.APIServerTransport()
	w.must(err)
	seen := &formats{RoundTripper: transport, seen: map[string]format{}}
	proxy, err := faultproxy.Start(faultproxy.Options{Target: suite.Config.Host, Transport: seen, TLS: true})
	w.must(err)
	w.Cleanup(proxy.Close)
	replica, err := suite.StartReplica(w.ctx, harness.ReplicaOptions{
		Policy: w.policy, Clouds: w.clouds, Provisioner: w.provisioner, APIServer: proxy.URL(), APIServerAuthority: proxy.Authority(),
	})
	w.must(err)
	w.Cleanup(replica.Kill)
	w.claim("a", "data", "gold", "1Gi")
	_, err = suite.WaitBound(w.ctx, w.name+"-a", 1)
	w.must(err)
	made := w.take("a", "nightly", "data", w.class)
	w.ready("a", "nightly")
	w.bound("a", "nightly")
	w.remove("a", "nightly")
	w.gone("a", "nightly", made.UID)
	w.clean()
	w.must(replica.Stop(w.ctx))
	seen.mu.Lock()
	defer seen.mu.Unlock()
	const protobuf = "application/vnd.kubernetes.protobuf"
	for request, f := range seen.seen {
		isPatch := strings.Contains(f.sent, "patch+json")
		switch {
		case strings.Contains(request, "snapshot.storage.k8s.io/v1/"):
			if f.got != "application/json" || f.sent != "" && f.sent != "application/json" && !isPatch {
				t.Errorf("%s: %+v; custom resources have no protobuf", request, f)
			}
		case f.sent != "" && f.sent != protobuf && !isPatch, !strings.HasPrefix(f.accepts, protobuf), !strings.HasPrefix(f.got, protobuf):
			t.Errorf("%s: %+v, want protobuf", request, f)
		}
	}
	for _, request := range []string{
		"POST /api/v1/persistentvolumes", "GET /api/v1/persistentvolumes", "GET /api/v1/persistentvolumeclaims",
		"POST /api/v1/namespaces/" + w.name + "-a/events", "GET /apis/coordination.k8s.io/v1/namespaces/" + harness.Namespace + "/leases",
		"POST /apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents", "GET /apis/snapshot.storage.k8s.io/v1/volumesnapshots",
	} {
		if _, ok := seen.seen[request]; !ok {
			t.Errorf("no %s; this test proves nothing", request)
		}
	}
}
