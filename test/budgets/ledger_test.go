package budgets

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/fairshare"
)

// volumes are counted in the ledger.
const volumes = 20_000

// filled returns a ledger with every volume of a large cluster.
func filled(tb testing.TB, tenants int) (*ledger.Ledger, *policy.Policy) {
	tb.Helper()
	p := policyOf(tb, tenants)
	l := ledger.New(func() *policy.Policy { return p })
	for i := range volumes {
		l.Record(types.UID(fmt.Sprintf("claim-%d", i)), ledger.Volume{Tenant: fmt.Sprintf("tenant-%d", i%tenants), StorageClass: "fast", GiB: 1}, fmt.Sprintf("backend-%d", i%tenants/5))
	}
	return l, p
}

func reserve(tb testing.TB, l *ledger.Ledger, p *policy.Policy, d policy.Decision, uid types.UID) {
	backend, _, refused, err := l.Reserve(uid, "fast", ledger.Decided{Decision: d, Revision: p.Revision()})
	if err != nil || refused != nil || backend == "" {
		tb.Fatalf("backend %q, %+v, %v", backend, refused, err)
	}
}

// TestReservationsStayWithinTheirBudget: reserving room for a claim, counting its
// volume and releasing both do not depend on the number of tenants.
func TestReservationsStayWithinTheirBudget(t *testing.T) {
	for _, tenants := range []int{10, 1000} {
		l, p := filled(t, tenants)
		d := decides(t, p, requestOf(namespaces-1, tenants), namespaces-1, tenants)
		volume := ledger.Volume{Tenant: d.Tenant, StorageClass: "fast", GiB: 1, VolumeID: "volume"}
		within(t, fmt.Sprintf("reserving among %d tenants", tenants), 15, func() {
			reserve(t, l, p, d, "new")
			l.Record("new", volume, d.Backends[0])
			l.Release("new")
		})
	}
}

func BenchmarkReserve(b *testing.B) {
	for _, tenants := range []int{10, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			l, p := filled(b, tenants)
			d := p.Decide(requestOf(namespaces-1, tenants))
			b.ReportAllocs()
			for b.Loop() {
				reserve(b, l, p, d, "new")
				l.Release("new")
			}
		})
	}
}

// BenchmarkRecountAfterReload sums up every volume again, under another policy.
func BenchmarkRecountAfterReload(b *testing.B) {
	for _, tenants := range []int{10, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			one, other := policyOf(b, tenants), policyOf(b, tenants)
			inForce := one
			l := ledger.New(func() *policy.Policy { return inForce })
			for i := range volumes {
				l.Record(types.UID(fmt.Sprintf("claim-%d", i)), ledger.Volume{Tenant: fmt.Sprintf("tenant-%d", i%tenants), StorageClass: "fast", GiB: 1}, fmt.Sprintf("backend-%d", i%tenants/5))
			}
			b.ReportAllocs()
			for b.Loop() {
				one, other = other, one
				inForce = one
				if l.Usage(policy.TenantScope, "tenant-1").Volumes == 0 {
					b.Fatal("nothing counts")
				}
			}
		})
	}
}

// TestTurnsStayWithinTheirBudget: the end of a turn allocates nothing that grows with
// the number of those who wait.
func TestTurnsStayWithinTheirBudget(t *testing.T) {
	turns := fairshare.New(1, func(string) int { return 0 }, func(string) {})
	turns.Begin("first", "tenant", "backend")
	for i := range 1000 {
		turns.Begin(fmt.Sprintf("item-%d", i), fmt.Sprintf("tenant-%d", i), "backend")
	}
	i := 0
	within(t, "passing on a turn among 1,000 tenants", 10, func() {
		turns.End("first")
		turns.End(fmt.Sprintf("item-%d", i))
		i++
	})
}
