package policy

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

// TestIndexOverlooksNoTenant compares decisions that look at a few tenants with those
// that look at all, for tenants that overlap in every way, including ways that a
// policy must not have.
func TestIndexOverlooksNoTenant(t *testing.T) {
	texts := rapid.SampledFrom([]string{"a", "b", "ab", "a-b", "*", "a*", "*a", "a*b", "*a*", "ab*", "*-b", "a-*", "*a*b", "a*a", "ab*ab"})
	keys, values := rapid.SampledFrom([]string{"k", "l"}), rapid.SampledFrom([]string{"", "v", "w"})
	rapid.Check(t, func(rt *rapid.T) {
		p := &Policy{}
		for i := range rapid.IntRange(0, 6).Draw(rt, "tenants") {
			tenant := Tenant{Name: fmt.Sprintf("t%d", i), Namespaces: rapid.SliceOfN(texts, 0, 3).Draw(rt, "namespaces")}
			if rapid.Bool().Draw(rt, "selects") {
				tenant.NamespaceSelector = &metav1.LabelSelector{MatchLabels: rapid.MapOfN(keys, values, 0, 2).Draw(rt, "labels")}
				for range rapid.IntRange(0, 2).Draw(rt, "expressions") {
					operator := rapid.SampledFrom(selectors.Operators()).Draw(rt, "operator")
					expression := metav1.LabelSelectorRequirement{Key: keys.Draw(rt, "key"), Operator: metav1.LabelSelectorOperator(operator)}
					if operator == "In" || operator == "NotIn" {
						expression.Values = rapid.SliceOfN(values, 1, 2).Draw(rt, "values")
					}
					tenant.NamespaceSelector.MatchExpressions = append(tenant.NamespaceSelector.MatchExpressions, expression)
				}
			}
			d := newDocument("p.yaml")
			tenant.matcher = newNamespaceMatcher(&tenant, selectors.Compile(d, tenant.NamespaceSelector, "namespaceSelector"))
			if len(d.Errors()) > 0 {
				rt.Fatal(d.Errors())
			}
			p.Tenants = append(p.Tenants, tenant)
		}
		p.index = newIndex(p)
		p.index.addNamespaces(p.Tenants)
		request := Request{
			Namespace:       rapid.StringMatching(`[ab]([ab-]{0,3}[ab])?`).Draw(rt, "namespace"),
			NamespaceLabels: rapid.MapOfN(keys, values, 0, 2).Draw(rt, "namespaceLabels"),
			StorageClass:    "fast", Bytes: gib,
		}
		fast, whole := p.Decide(request), p.Explain(request)
		if !reflect.DeepEqual(fast.Denial, whole.Denial) || fast.Tenant != whole.Tenant {
			rt.Fatalf("tenant %q and %q, %+v and %+v", fast.Tenant, whole.Tenant, fast.Denial, whole.Denial)
		}
		matching := slices.DeleteFunc(slices.Clone(whole.Trace), func(s TraceStep) bool {
			return !strings.Contains(s.Path, ".") && !s.Matched && !s.Outranked
		})
		if !slices.Equal(fast.Trace, matching) {
			rt.Fatalf("the traces are\n%v and\n%v", fast.Trace, matching)
		}
	})
}

// TestIndexFindsTheFirstOfAName: two with the same name are an error, which the
// validation must be able to report.
func TestIndexFindsTheFirstOfAName(t *testing.T) {
	p := &Policy{Backends: []Backend{{Name: "x", Region: "first"}, {Name: "x"}}, Tenants: []Tenant{{Name: "y", Namespaces: []string{"first"}}, {Name: "y"}}}
	p.index = newIndex(p)
	if b, ok := p.Backend("x"); !ok || b.Region != "first" {
		t.Errorf("backend %+v, %t", b, ok)
	}
	if tenant, ok := p.Tenant("y"); !ok || len(tenant.Namespaces) != 1 {
		t.Errorf("tenant %+v, %t", tenant, ok)
	}
	if _, ok := p.Backend("z"); ok {
		t.Error("a backend is found that does not exist")
	}
}
