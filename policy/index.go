package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// index finds what a claim or a volume names without scanning the policy: a decision
// takes as long with a thousand tenants as with ten.
type index struct {
	// backends and tenants map names to positions in the policy.
	backends, tenants map[string]int
	// populators maps namespaces to positions in the policy.
	populators map[string]int
	// listed are the tenants that list a namespace.
	listed map[string][]int
	// prefixes are the tenants with a pattern that begins with a text, suffixes those
	// with one that begins with a * and ends with a text.
	prefixes, suffixes affixes
	// labels are the tenants whose selectors require a value of a label; unlabeled are
	// those whose selectors require none.
	labels    map[label][]int
	unlabeled []int
}

type label struct{ key, value string }

// affixes are tenants by beginnings or ends of names, which have few lengths.
type affixes struct {
	tenants map[string][]int
	lengths []int
}

func (a *affixes) add(text string, tenant int) {
	if a.tenants == nil {
		a.tenants = map[string][]int{}
	}
	a.tenants[text] = append(a.tenants[text], tenant)
	if !slices.Contains(a.lengths, len(text)) {
		a.lengths = append(a.lengths, len(text))
	}
}

// newIndex indexes backends, tenants and populators, but not tenants' namespaces, which must
// be valid for that.
func newIndex(p *Policy) index {
	return index{
		backends:   positions(p.Backends, func(b Backend) string { return b.Name }),
		tenants:    positions(p.Tenants, func(t Tenant) string { return t.Name }),
		populators: positions(p.Populators, func(p Populator) string { return p.Namespace }),
	}
}

// positions indexes a list by name. Of duplicates, which are an error, it keeps the first.
func positions[T any](list []T, name func(T) string) map[string]int {
	found := make(map[string]int, len(list))
	for i, value := range slices.Backward(list) {
		found[name(value)] = i
	}
	return found
}

// addNamespaces indexes tenants by namespace.
func (x *index) addNamespaces(tenants []Tenant) {
	x.listed, x.labels = map[string][]int{}, map[label][]int{}
	demands := make([][]labels.Requirement, len(tenants))
	sharing := map[label]int{}
	for i := range tenants {
		for _, entry := range tenants[i].Namespaces {
			prefix, rest, isPattern := strings.Cut(entry, "*")
			switch {
			case !isPattern:
				x.listed[entry] = append(x.listed[entry], i)
			case prefix != "":
				x.prefixes.add(prefix, i)
			default:
				x.suffixes.add(rest[strings.LastIndexByte(rest, '*')+1:], i)
			}
		}
		if selector := tenants[i].matcher.selector; selector != nil {
			demands[i] = demanded(selector)
			for _, requirement := range demands[i] {
				for _, l := range labelsOf(requirement) {
					sharing[l]++
				}
			}
		}
	}
	for i := range tenants {
		if tenants[i].matcher.selector == nil {
			continue
		}
		if len(demands[i]) == 0 {
			x.unlabeled = append(x.unlabeled, i)
			continue
		}
		// Many tenants may require the same value of one label, such as the stage, but
		// hardly of all labels.
		most := func(r labels.Requirement) (most int) {
			for _, l := range labelsOf(r) {
				most = max(most, sharing[l])
			}
			return most
		}
		rarest := slices.MinFunc(demands[i], func(a, b labels.Requirement) int { return most(a) - most(b) })
		for _, l := range labelsOf(rarest) {
			x.labels[l] = append(x.labels[l], i)
		}
	}
}

// demanded returns the requirements that only certain values satisfy.
func demanded(selector labels.Selector) []labels.Requirement {
	all, _ := selector.Requirements()
	return slices.DeleteFunc(slices.Clone(all), func(r labels.Requirement) bool {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			return false
		}
		return true
	})
}

func labelsOf(r labels.Requirement) []label {
	var all []label
	for value := range r.Values() {
		all = append(all, label{r.Key(), value})
	}
	return all
}

// candidates returns the tenants that a namespace may belong to, in order. No other
// tenant matches it.
func (x *index) candidates(namespace string, of map[string]string) []int {
	found := slices.Clone(x.listed[namespace])
	for _, n := range x.prefixes.lengths {
		if n <= len(namespace) {
			found = append(found, x.prefixes.tenants[namespace[:n]]...)
		}
	}
	for _, n := range x.suffixes.lengths {
		if n <= len(namespace) {
			found = append(found, x.suffixes.tenants[namespace[len(namespace)-n:]]...)
		}
	}
	for key, value := range of {
		found = append(found, x.labels[label{key, value}]...)
	}
	found = append(found, x.unlabeled...)
	slices.Sort(found)
	return slices.Compact(found)
}
