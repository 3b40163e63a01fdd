package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestIdleReplicasSendNoRequests: once the last sweep of the term is over, a leader
// with volumes sends no request to Cinder, and it and a follower renew or read the
// Lease and do nothing else at the API server but keep their watches.
//
//tier:outage
func TestIdleReplicasSendNoRequests(t *testing.T) {
	t.Parallel()
	const settled, window = 105 * time.Second, 45 * time.Second
	w := newWorld(t, "idle", cindersim.Options{})
	w.start()
	w.start()
	w.claim("a", "data", "gold", "1Gi")
	w.claim("b", "data", "lab", "1Gi")
	for _, namespace := range []string{"idle-a", "idle-b"} {
		_, err := suite.WaitBound(w.ctx, namespace, 1)
		w.must(err)
	}
	time.Sleep(settled)
	file, err := os.Open(suite.ControlPlane().AuditPath())
	w.must(err)
	defer file.Close()
	_, err = file.Seek(0, io.SeekEnd)
	w.must(err)
	w.sim.ResetJournal()
	time.Sleep(window)
	if requests := w.sim.CountByOperation(); len(requests) > 0 {
		t.Errorf("OpenStack was asked for %v", requests)
	}
	account := fmt.Sprintf("system:serviceaccount:%s:%s", harness.Namespace, harness.Account(w.provisioner))
	others, leases := map[string]int{}, 0
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event struct {
			Verb, RequestURI string
			ObjectRef        struct{ Namespace, Resource string }
			User             struct{ Username string }
		}
		if json.Unmarshal(lines.Bytes(), &event) != nil {
			continue // the last line may be half written, the first half read
		}
		switch {
		case event.User.Username != account, event.Verb == "watch":
		case event.ObjectRef.Resource == "leases":
			leases++
		case event.ObjectRef.Namespace != "" && !strings.HasPrefix(event.ObjectRef.Namespace, "idle-"):
			// The protection of copied claims is one finalizer for all drivers of a
			// cluster, so these replicas may end the protection of another test's claim.
		default:
			others[event.Verb+" "+event.RequestURI]++
		}
	}
	w.must(lines.Err())
	if len(others) > 0 {
		t.Errorf("the API server was asked for %q", slices.Sorted(maps.Keys(others)))
	}
	if leases == 0 {
		t.Error("no request for the Lease was seen, so nothing is proven")
	}
	w.must(suite.DeleteClaims(w.ctx, "idle-a"))
	w.must(suite.DeleteClaims(w.ctx, "idle-b"))
	w.noResidue()
}
