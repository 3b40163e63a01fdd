package selectors

import (
	"math/rand/v2"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// randomSelector uses two labels with three values, so that every combination
// is tried.
func randomSelector(r *rand.Rand) *metav1.LabelSelector {
	key := func() string { return []string{"k", "l"}[r.IntN(2)] }
	value := func() string { return []string{"", "1", "2"}[r.IntN(3)] }
	s := &metav1.LabelSelector{}
	if r.IntN(3) == 0 {
		s.MatchLabels = map[string]string{key(): value()}
	}
	for range r.IntN(3) {
		e := metav1.LabelSelectorRequirement{Key: key(), Operator: metav1.LabelSelectorOperator(Operators()[r.IntN(4)])}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			for range 1 + r.IntN(2) {
				e.Values = append(e.Values, value())
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

// everyLabelSet returns all labels that random selectors could tell apart; "9"
// stands for the values that they do not mention.
func everyLabelSet() []labels.Set {
	var sets []labels.Set
	values := []string{"absent", "", "1", "2", "9"}
	for _, k := range values {
		for _, l := range values {
			set := labels.Set{}
			if k != "absent" {
				set["k"] = k
			}
			if l != "absent" {
				set["l"] = l
			}
			sets = append(sets, set)
		}
	}
	return sets
}

// TestSelectorRelations compares what is concluded about pairs of selectors
// with what Kubernetes' own selectors do.
func TestSelectorRelations(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	compile := func(s *metav1.LabelSelector) labels.Selector {
		d := document.New(document.Options{})
		compiled := Compile(d, s, "s")
		kubernetes, err := metav1.LabelSelectorAsSelector(s)
		if err != nil || len(d.Errors()) > 0 {
			t.Fatalf("%v: %v, %v", s, err, d.Errors())
		}
		for _, set := range everyLabelSet() {
			if compiled.Matches(set) != kubernetes.Matches(set) {
				t.Fatalf("%v: differs from Kubernetes for %v", s, set)
			}
		}
		return compiled
	}
	outcomes := map[string]int{}
	for range 2000 {
		a, b := randomSelector(r), randomSelector(r)
		compiledA, compiledB := compile(a), compile(b)
		empty, disjoint, within := true, true, true
		for _, set := range everyLabelSet() {
			inA, inB := compiledA.Matches(set), compiledB.Matches(set)
			empty = empty && !inA
			disjoint = disjoint && !(inA && inB)
			within = within && (inB || !inA)
		}
		domainsA, domainsB := DomainsOf(a), DomainsOf(b)
		_, impossible := domainsA.Impossible()
		if impossible != empty {
			t.Fatalf("%v: impossible = %v, want %v", a, impossible, empty)
		}
		// Selectors that select nothing are left out of comparisons.
		_, impossibleB := domainsB.Impossible()
		if got := domainsA.Disjoint(domainsB); !impossible && !impossibleB && got != disjoint {
			t.Fatalf("%v, %v: disjoint = %v, want %v", a, b, got, disjoint)
		}
		if got := domainsA.Within(domainsB); !empty && got != within {
			t.Fatalf("%v, %v: within = %v, want %v", a, b, got, within)
		}
		for outcome, happened := range map[string]bool{"empty": empty, "disjoint": disjoint && !impossible && !impossibleB, "within": within && !empty} {
			if happened {
				outcomes[outcome]++
			}
		}
	}
	for _, outcome := range []string{"empty", "disjoint", "within"} {
		if outcomes[outcome] < 50 {
			t.Errorf("only %d pairs were %s", outcomes[outcome], outcome)
		}
	}
}

func TestSelectorInWords(t *testing.T) {
	for want, s := range map[string]*metav1.LabelSelector{
		"{}":         {},
		"{tenant=a}": {MatchLabels: map[string]string{"tenant": "a"}},
		"{!legacy,region in (eu,us),tenant=a}": {
			MatchLabels: map[string]string{"tenant": "a"},
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "region", Operator: metav1.LabelSelectorOpIn, Values: []string{"us", "eu"}},
				{Key: "legacy", Operator: metav1.LabelSelectorOpDoesNotExist},
			},
		},
	} {
		if got := Describe(s); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
