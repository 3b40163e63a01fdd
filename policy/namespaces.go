package policy

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

// matchKind is the way in which a tenant matches a namespace. A higher kind wins.
type matchKind int

const (
	noMatch matchKind = iota
	bySelector
	byPattern
	byName
)

// namespaceMatcher holds a tenant's namespaces and selector, prepared for use.
type namespaceMatcher struct {
	listed   map[string]bool
	patterns []string
	selector labels.Selector
	// selectorText is a part of sentences for the trace.
	selectorText string
}

func newNamespaceMatcher(t *Tenant, selector labels.Selector) namespaceMatcher {
	m := namespaceMatcher{listed: map[string]bool{}, selector: selector}
	for _, entry := range t.Namespaces {
		if names.IsPattern(entry) {
			m.patterns = append(m.patterns, entry)
		} else {
			m.listed[entry] = true
		}
	}
	if selector != nil {
		m.selectorText = selectors.Describe(t.NamespaceSelector)
	}
	return m
}

// otherwise says why a namespace does not belong to the tenant.
func (t *Tenant) otherwise() string {
	var reasons []string
	if len(t.Namespaces) > 0 {
		reasons = append(reasons, fmt.Sprintf("namespaces [%s] do not include it", strings.Join(t.Namespaces, ", ")))
	}
	if t.matcher.selector != nil {
		reasons = append(reasons, fmt.Sprintf("namespaceSelector %s does not select its labels", t.matcher.selectorText))
	}
	return strings.Join(reasons, ", and ")
}

// match returns the strongest kind of match and the reason for it.
func (m namespaceMatcher) match(namespace string, namespaceLabels labels.Set) (matchKind, string) {
	if m.listed[namespace] {
		return byName, "its name is listed"
	}
	for _, pattern := range m.patterns {
		if names.Matches(pattern, namespace) {
			return byPattern, fmt.Sprintf("its name matches the pattern %q", pattern)
		}
	}
	if m.selector != nil && m.selector.Matches(namespaceLabels) {
		return bySelector, "its labels are selected by " + m.selectorText
	}
	return noMatch, ""
}

// TenantOf returns the tenant that a namespace belongs to, or why it belongs to
// none, as Decide does.
func (p *Policy) TenantOf(namespace string, namespaceLabels map[string]string) (*Tenant, *Denial) {
	d := &decider{policy: p, request: Request{Namespace: namespace, NamespaceLabels: namespaceLabels}}
	tenant, _, denial := d.findTenant()
	return tenant, denial
}

// The time for comparing each pattern or selector with all others grows with the
// square of their number. At these limits it is about a second.
const (
	maxPatterns  = 10_000
	maxSelectors = 5_000
)

// namespaceEntry is a name or pattern with its place in the file.
type namespaceEntry struct {
	tenant int
	path   string
	text   string
}

// validateNamespaces makes sure that no namespace is named by two tenants, and
// that no patterns of two tenants have a name in common.
func (p *Policy) validateNamespaces(d *document.Document) {
	exact := map[string]namespaceEntry{}
	patterns := map[string]namespaceEntry{}
	var ordered []namespaceEntry
	for i, t := range p.Tenants {
		for j, text := range t.Namespaces {
			if names.Namespace().Mistake(text) != "" {
				continue
			}
			e := namespaceEntry{tenant: i, path: fmt.Sprintf("tenants[%d].namespaces[%d]", i, j), text: text}
			seen := exact
			if names.IsPattern(text) {
				seen = patterns
			}
			earlier, twice := seen[text]
			switch {
			case twice && earlier.tenant == i:
				d.Warnf(e.path, "%q is listed twice; remove one", text)
				continue
			case twice:
				d.Errorf(e.path, "%q is claimed by %s too; a namespace belongs to one tenant, so remove one of them", text, p.locate(d, earlier.tenant, earlier.path))
				continue
			}
			seen[text] = e
			if !names.IsPattern(text) {
				continue
			}
			if len(ordered) == maxPatterns {
				d.Errorf(e.path, "there are more than %d patterns; select namespaces by their labels instead", maxPatterns)
				return
			}
			if other, example, ok := overlap(ordered, e); ok {
				d.Errorf(e.path, "%q overlaps with %q of %s: both match %q; a namespace belongs to one tenant, so narrow one of them (a name wins over a pattern, a pattern over namespaceSelector)",
					text, other.text, p.locate(d, other.tenant, other.path), example)
			}
			ordered = append(ordered, e)
		}
	}
}

// overlap looks for a pattern of another tenant that has a name in common with
// the entry, and gives a shortest such name.
func overlap(earlier []namespaceEntry, e namespaceEntry) (namespaceEntry, string, bool) {
	for _, other := range earlier {
		if other.tenant == e.tenant {
			continue
		}
		if example, ok := names.Namespace().Common(other.text, e.text); ok {
			return other, example, true
		}
	}
	return namespaceEntry{}, "", false
}

// locate describes the place of something that a tenant says.
func (p *Policy) locate(d *document.Document, tenant int, path string) string {
	return fmt.Sprintf("%s (line %d, tenant %s)", path, d.Find(path).Line, p.Tenants[tenant].Name)
}

const narrowSelector = "a namespace belongs to one tenant, so narrow one of them, for example with a matchExpressions entry with the operator NotIn or DoesNotExist"

// validateSelectors makes sure that the selector of one tenant does not include
// that of another, and warns about selectors that may overlap.
func (p *Policy) validateSelectors(d *document.Document) {
	type entry struct {
		tenant  int
		path    string
		domains selectors.Domains
	}
	var earlier []entry
	for i, t := range p.Tenants {
		if t.matcher.selector == nil {
			continue
		}
		e := entry{i, document.Element("tenants", i) + ".namespaceSelector", selectors.DomainsOf(t.NamespaceSelector)}
		if key, ok := e.domains.Impossible(); ok {
			d.Warnf(e.path, "the selector cannot match any namespace: its requirements on the label %s contradict each other", key)
			continue
		}
		if len(earlier) == maxSelectors {
			d.Errorf(e.path, "there are more than %d selectors; list namespaces by name instead", maxSelectors)
			return
		}
		inner, outer, crossing := -1, -1, -1
		for j, o := range earlier {
			if o.domains.Disjoint(e.domains) {
				continue
			}
			if e.domains.Within(o.domains) {
				inner = j
				break
			}
			if outer < 0 && o.domains.Within(e.domains) {
				outer = j
			}
			if crossing < 0 {
				crossing = j
			}
		}
		where := func(i int) string { return p.locate(d, earlier[i].tenant, earlier[i].path) }
		switch {
		case inner >= 0:
			d.Errorf(e.path, "%s selects every namespace that this selector does; %s", where(inner), narrowSelector)
		case outer >= 0:
			d.Errorf(e.path, "the selector also selects every namespace of %s; %s", where(outer), narrowSelector)
		case crossing >= 0:
			d.Warnf(e.path, "a namespace may have the labels for this selector and for %s; its claims would be denied as AmbiguousTenant", where(crossing))
		}
		earlier = append(earlier, e)
	}
}
