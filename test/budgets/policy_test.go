package budgets

import (
	"fmt"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// namespaces are in the cluster, whatever the number of tenants.
const namespaces = 5000

// policyOf returns a policy with that many tenants, which share the namespaces in
// every way in which a tenant can have some, and one backend per five tenants.
func policyOf(tb testing.TB, tenants int) *policy.Policy {
	tb.Helper()
	var text strings.Builder
	text.WriteString("apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\nbackends:\n")
	for i := range max(1, tenants/5) {
		fmt.Fprintf(&text, "  - {name: backend-%d, auth: {cloud: cloud-%d}}\n", i, i)
	}
	text.WriteString("tenants:\n")
	for i := range tenants {
		var own string
		switch i % 4 {
		case 0: // names
			var names []string
			for n := i; n < namespaces; n += tenants {
				names = append(names, namespaceOf(n, tenants))
			}
			own = "namespaces: [" + strings.Join(names, ", ") + "]"
		case 1:
			own = fmt.Sprintf(`namespaces: ["team-%d-*"]`, i)
		case 2:
			own = fmt.Sprintf(`namespaces: ["project-%d-*-prod"]`, i)
		default:
			own = fmt.Sprintf("namespaceSelector: {matchLabels: {managed: \"true\", team: \"%d\"}}", i)
		}
		fmt.Fprintf(&text, "  - {name: tenant-%d, %s, quota: {volumes: 1000000}, classes: [{storageClasses: [fast], backends: [backend-%d]}]}\n", i, own, i/5%max(1, tenants/5))
	}
	p, err := policy.Parse([]byte(text.String()), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// namespaceOf returns the name of a namespace, which matches the entry of its
// tenant.
func namespaceOf(n, tenants int) string {
	switch tenant := n % tenants; tenant % 4 {
	case 1:
		return fmt.Sprintf("team-%d-%d", tenant, n)
	case 2:
		return fmt.Sprintf("project-%d-%d-prod", tenant, n)
	}
	return fmt.Sprintf("project-%d", n)
}

// requestOf returns a claim in the namespace of that number.
func requestOf(n, tenants int) policy.Request {
	namespace, labels := namespaceOf(n, tenants), map[string]string{"managed": "true"}
	if tenant := n % tenants; tenant%4 == 3 {
		labels["team"] = fmt.Sprint(tenant)
	}
	return policy.Request{
		Namespace: namespace, NamespaceLabels: policy.NamespaceLabels(namespace, labels), Claim: "data", StorageClass: "fast", Bytes: 1 << 30,
	}
}

func requests(tenants int) []policy.Request {
	var all []policy.Request
	for n := range namespaces {
		all = append(all, requestOf(n, tenants))
	}
	return all
}

// decides fails unless the policy gives a claim to the tenant that it was made for.
func decides(tb testing.TB, p *policy.Policy, r policy.Request, n, tenants int) policy.Decision {
	tb.Helper()
	d := p.Decide(r)
	if want := fmt.Sprintf("tenant-%d", n%tenants); d.Denial != nil || d.Tenant != want {
		tb.Fatalf("namespace %s: tenant %q, %+v; want %s", r.Namespace, d.Tenant, d.Denial, want)
	}
	return d
}

// TestDecisionsStayWithinTheirBudget: a decision allocates the same with a thousand
// tenants as with ten.
func TestDecisionsStayWithinTheirBudget(t *testing.T) {
	for _, tenants := range []int{10, 1000} {
		p, all, i := policyOf(t, tenants), requests(tenants), 0
		within(t, fmt.Sprintf("a decision among %d tenants", tenants), 30, func() {
			decides(t, p, all[i%namespaces], i%namespaces, tenants)
			i++
		})
	}
}

func BenchmarkDecide(b *testing.B) {
	for _, tenants := range []int{10, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			p, all := policyOf(b, tenants), requests(tenants)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p.Decide(all[i%namespaces])
			}
		})
	}
}

// BenchmarkLoad reads a policy, as every reload does.
func BenchmarkLoad(b *testing.B) {
	for _, tenants := range []int{10, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) {
			text := policyOf(b, tenants).Files()[0].Text
			described := mappers.BuiltIn().Describe()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := policy.Parse(text, "policy.yaml", described); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// within fails if a function allocates more often than its budget, on average.
func within(t *testing.T, what string, budget float64, f func()) {
	t.Helper()
	if raceEnabled {
		t.Skip("the race detector allocates, too")
	}
	const runs = 20
	if got := testing.AllocsPerRun(runs, f); got > budget {
		t.Errorf("%s allocates %.0f times, more than %.0f", what, got, budget)
	} else {
		t.Logf("%s allocates %.0f times, of %.0f", what, got, budget)
	}
}
