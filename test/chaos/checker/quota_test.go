package checker

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// policyWith gives a tenant and a backend this many volumes each.
func policyWith(t *testing.T, tenant, backend int) *policy.Policy {
	t.Helper()
	p, err := policy.Parse(fmt.Appendf(nil, `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: %s
backends:
  - {name: gold, auth: {environment: true}, limits: {volumes: %d}}
tenants:
  - {name: a, namespaces: [a], quota: {volumes: %d}, classes: [{storageClasses: [fast], backends: [gold]}]}
`, cluster, backend, tenant), "policy.yaml", nil)

	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestQuotasFindWhatIsExceededUnderEveryPolicy(t *testing.T) {
	other := stamped("v8", "u8")
	other.Metadata[StampCluster] = "another"
	three := []cindersim.Volume{stamped("v1", "u1"), stamped("v2", "u2"), stamped("v3", "u3"), stamped("v4", "u3"), other}
	for _, c := range []struct {
		name   string
		limits [][2]int // tenant, backend
		counts Counts
		want   []string
	}{
		{"enough", [][2]int{{3, 3}}, Everything, nil},
		{"too many for the tenant", [][2]int{{2, 3}}, Everything, []string{"tenant a: tenant a would use 3 of 2 volumes"}},
		{"too many for the backend", [][2]int{{3, 2}}, Everything, []string{"backend gold: backend gold would use 3 of 2 volumes"}},
		{"a limit that was lowered", [][2]int{{3, 3}, {2, 3}}, Everything, nil},
		{"a limit that was raised", [][2]int{{2, 3}, {3, 3}}, Everything, nil},
		{"both too low", [][2]int{{1, 3}, {2, 3}}, Everything, []string{"tenant a: tenant a would use 3 of 1 volumes"}},
		{"one that does not count for the tenant", [][2]int{{2, 2}}, func(kind policy.ScopeKind, v cindersim.Volume) bool {
			return kind == policy.BackendScope || v.ID != "v1"
		}, []string{"backend gold: backend gold would use 3 of 2 volumes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := NewQuotas(cluster, map[string]string{"project": "gold"}, []string{"fast"})
			for _, limits := range c.limits {
				q.Allow(policyWith(t, limits[0], limits[1]))
			}
			var got []string
			for _, f := range q.Exceeded(three, c.counts) {
				text, _, _ := strings.Cut(f.Text, " (")
				got = append(got, f.Object+": "+text)
				if f.Kind != OverQuota || !strings.Contains(f.Text, "\nvolume v3 (pvc-u3, in-use), 1 GiB, on gold, created ") {
					t.Errorf("%+v does not list the volumes", f)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

func TestRoomIsThePolicysAnswer(t *testing.T) {
	p := policyWith(t, 1, 5)
	decision := p.Decide(policy.Request{Namespace: "a", StorageClass: "fast", Bytes: 1 << 30})
	backendOf := map[string]string{"project": "gold"}
	if reason, message := Room(decision, Usage(p, cluster, backendOf, nil, Everything)); reason != "" || message != "" {
		t.Errorf("an empty tenant has no room: %s, %s", reason, message)
	}
	used := Usage(p, cluster, backendOf, []cindersim.Volume{stamped("v1", "u1")}, Everything)
	if reason, _ := Room(decision, used); reason != policy.QuotaExceeded {
		t.Errorf("a full tenant is answered %q", reason)
	}
}

func TestIsStaleLeavesTimeForTheWire(t *testing.T) {
	since := time.Now()
	for _, c := range []struct {
		by, holder string
		after      time.Duration
		want       bool
	}{
		{"x", "x", time.Hour, false},
		{"x", "", time.Hour, false},
		{"x", "y", -time.Second, false},
		{"x", "y", staleAfter, false},
		{"x", "y", staleAfter + time.Millisecond, true},
	} {
		if got := IsStale(c.by, since.Add(c.after), c.holder, since); got != c.want {
			t.Errorf("%s, %s after %s took the lease: %t", c.by, c.after, c.holder, got)
		}
	}
}
