// Package selectors checks and compiles label selectors and compares what they select.
package selectors

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Operators returns the operators of matchExpressions, in the order of Kubernetes'
// documentation.
func Operators() []string {
	return []string{
		string(metav1.LabelSelectorOpIn), string(metav1.LabelSelectorOpNotIn),
		string(metav1.LabelSelectorOpExists), string(metav1.LabelSelectorOpDoesNotExist),
	}
}

// Compile checks and compiles a label selector. It returns nil if there is none or if it
// has mistakes.
func Compile(d *document.Document, selector *metav1.LabelSelector, path string) labels.Selector {
	if selector == nil {
		return nil
	}
	before := len(d.Errors())
	compiled := labels.NewSelector()
	add := func(key string, op selection.Operator, values []string) {
		// The mistakes that NewRequirement finds have already been reported more clearly.
		if requirement, err := labels.NewRequirement(key, op, values); err == nil {
			compiled = compiled.Add(*requirement)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(selector.MatchLabels)) {
		at := document.Child(document.Child(path, "matchLabels"), key)
		value := selector.MatchLabels[key]
		CheckKey(d, at, key)
		CheckValue(d, at, value)
		add(key, selection.Equals, []string{value})
	}
	for i, expression := range selector.MatchExpressions {
		at := document.Element(document.Child(path, "matchExpressions"), i)
		if expression.Key == "" {
			d.Errorf(document.Child(at, "key"), "is missing; name the label to look at")
		} else {
			CheckKey(d, document.Child(at, "key"), expression.Key)
		}
		for j, value := range expression.Values {
			CheckValue(d, document.Element(document.Child(at, "values"), j), value)
		}
		switch expression.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(expression.Values) == 0 {
				d.Errorf(document.Child(at, "values"), "is missing; %s needs at least one", expression.Operator)
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(expression.Values) > 0 {
				d.Errorf(document.Child(at, "values"), "%s takes no values; remove them", expression.Operator)
			}
		case "":
			d.Errorf(document.Child(at, "operator"), "is missing; the operators are %s", strings.Join(Operators(), ", "))
		default:
			d.Errorf(document.Child(at, "operator"), "unknown operator %q%s", expression.Operator,
				document.DidYouMean(string(expression.Operator), Operators(), "the operators are"))
		}
		add(expression.Key, selectionOperator(expression.Operator), expression.Values)
	}
	if len(d.Errors()) > before {
		return nil
	}
	return compiled
}

func selectionOperator(op metav1.LabelSelectorOperator) selection.Operator {
	switch op {
	case metav1.LabelSelectorOpIn:
		return selection.In
	case metav1.LabelSelectorOpNotIn:
		return selection.NotIn
	case metav1.LabelSelectorOpExists:
		return selection.Exists
	default:
		return selection.DoesNotExist
	}
}

// CheckKey reports a key that no label can have.
func CheckKey(d *document.Document, path, key string) {
	if len(validation.IsQualifiedName(key)) > 0 {
		if foreign := document.Foreign(key); foreign != "" {
			d.Errorf(path, "%q cannot be a label's key: %s; use letters, digits, '-', '_' and '.'", key, foreign)
			return
		}
		d.Errorf(path, "%q cannot be a label's key; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit, if need be after a DNS name and a slash", key)
	}
}

// CheckValue reports a value that no label can have.
func CheckValue(d *document.Document, path, value string) {
	if len(validation.IsValidLabelValue(value)) > 0 {
		if foreign := document.Foreign(value); foreign != "" {
			d.Errorf(path, "%q cannot be a label's value: %s; use letters, digits, '-', '_' and '.'", value, foreign)
			return
		}
		d.Errorf(path, "%q cannot be a label's value; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit", value)
	}
}

// domain is the set of values that a selector allows for one label.
type domain struct {
	// absent allows the label to be missing.
	absent bool
	// only means that just values are allowed; otherwise everything else is.
	only   bool
	values map[string]bool
}

// anything is the domain of a label that a selector does not mention.
var anything = domain{absent: true}

func (a domain) empty() bool { return !a.absent && a.only && len(a.values) == 0 }

func (a domain) allows(value string) bool { return a.values[value] == a.only }

func (a domain) intersect(b domain) domain {
	if !a.only && b.only {
		a, b = b, a
	}
	c := domain{absent: a.absent && b.absent, only: a.only, values: map[string]bool{}}
	for value := range a.values {
		if !a.only || b.allows(value) {
			c.values[value] = true
		}
	}
	if !a.only {
		for value := range b.values {
			c.values[value] = true
		}
	}
	return c
}

// meets reports whether two domains have something in common.
func (a domain) meets(b domain) bool {
	if a.absent && b.absent || !a.only && !b.only {
		return true
	}
	if !a.only {
		a, b = b, a
	}
	for value := range a.values {
		if b.allows(value) {
			return true
		}
	}
	return false
}

// within reports whether b allows everything that a allows.
func (a domain) within(b domain) bool {
	if a.absent && !b.absent {
		return false
	}
	if !a.only {
		if b.only {
			return false
		}
		for value := range b.values {
			if a.allows(value) {
				return false
			}
		}
		return true
	}
	for value := range a.values {
		if !b.allows(value) {
			return false
		}
	}
	return true
}

// Domains represents a selector by the domains of the labels it mentions.
type Domains map[string]domain

// DomainsOf returns the domains of a selector without mistakes.
func DomainsOf(selector *metav1.LabelSelector) Domains {
	domains := Domains{}
	restrict := func(key string, to domain) { domains[key] = domains.of(key).intersect(to) }
	for key, value := range selector.MatchLabels {
		restrict(key, domain{only: true, values: map[string]bool{value: true}})
	}
	for _, expression := range selector.MatchExpressions {
		values := map[string]bool{}
		for _, value := range expression.Values {
			values[value] = true
		}
		switch expression.Operator {
		case metav1.LabelSelectorOpIn:
			restrict(expression.Key, domain{only: true, values: values})
		case metav1.LabelSelectorOpNotIn:
			restrict(expression.Key, domain{absent: true, values: values})
		case metav1.LabelSelectorOpExists:
			restrict(expression.Key, domain{})
		case metav1.LabelSelectorOpDoesNotExist:
			restrict(expression.Key, domain{absent: true, only: true})
		}
	}
	return domains
}

func (s Domains) of(key string) domain {
	if d, ok := s[key]; ok {
		return d
	}
	return anything
}

// Impossible returns a label for which no value satisfies the selector.
func (s Domains) Impossible() (string, bool) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		if s[key].empty() {
			return key, true
		}
	}
	return "", false
}

// Disjoint reports whether no set of labels satisfies both selectors. Neither may
// be impossible by itself.
func (s Domains) Disjoint(t Domains) bool {
	for key, a := range s {
		if b, ok := t[key]; ok && !a.meets(b) {
			return true
		}
	}
	return false
}

// Within reports whether every set of labels that satisfies s satisfies t.
func (s Domains) Within(t Domains) bool {
	for key, b := range t {
		if !s.of(key).within(b) {
			return false
		}
	}
	return true
}

// Describe writes the selector in one line, as kubectl accepts it.
func Describe(selector *metav1.LabelSelector) string {
	text := metav1.FormatLabelSelector(selector)
	if text == "" || text == "<none>" {
		return "{}"
	}
	return fmt.Sprintf("{%s}", text)
}
