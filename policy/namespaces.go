package policy

import (
	"fmt"
	"regexp"
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
	// selectorText describes the selector in the trace.
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

// otherwise explains why a namespace does not belong to the tenant.
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

// TenantOf returns the tenant that a namespace belongs to, or why it belongs to none, as
// Decide does.
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

// validateNamespaces makes sure that no namespace is listed by two tenants, and that no
// patterns of two tenants have a name in common.
func (v *validator) validateNamespaces() {
	exact := map[string]namespaceEntry{}
	patterns := map[string]namespaceEntry{}
	var ordered []namespaceEntry
	for i, t := range v.Tenants {
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
				v.Warnf(e.path, "%q is listed twice; remove one", text)
				continue
			case twice:
				v.Errorf(e.path, "%q is claimed by %s too; a namespace belongs to one tenant, so remove one of them", text, v.locate(earlier.tenant, earlier.path))
				continue
			}
			seen[text] = e
			if !names.IsPattern(text) {
				continue
			}
			if len(ordered) == maxPatterns {
				v.Errorf(e.path, "there are more than %d patterns; select namespaces by their labels instead", maxPatterns)
				return
			}
			if other, example, ok := overlap(ordered, e); ok {
				v.Errorf(e.path, "%q overlaps with %q of %s: both match %q; a namespace belongs to one tenant, so narrow one of them (a name wins over a pattern, a pattern over namespaceSelector)",
					text, other.text, v.locate(other.tenant, other.path), example)
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

// locate describes the position of a tenant's value.
func (v *validator) locate(tenant int, path string) string {
	return fmt.Sprintf("%s (%s, tenant %s)", path, v.LineOf(path), v.Tenants[tenant].Name)
}

const narrowSelector = "a namespace belongs to one tenant, so narrow one of them, for example with a matchExpressions entry with the operator NotIn or DoesNotExist"

// validateSelectors makes sure that no tenant's selector includes another's, and warns
// about selectors that may overlap.
func (v *validator) validateSelectors() {
	type entry struct {
		tenant  int
		path    string
		domains selectors.Domains
	}
	var earlier []entry
	for i, t := range v.Tenants {
		if t.matcher.selector == nil {
			continue
		}
		e := entry{i, document.Element("tenants", i) + ".namespaceSelector", selectors.DomainsOf(t.NamespaceSelector)}
		if key, ok := e.domains.Impossible(); ok {
			v.Warnf(e.path, "the selector cannot match any namespace: its requirements on the label %s contradict each other", key)
			continue
		}
		if len(earlier) == maxSelectors {
			v.Errorf(e.path, "there are more than %d selectors; list namespaces by name instead", maxSelectors)
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
		where := func(i int) string { return v.locate(earlier[i].tenant, earlier[i].path) }
		switch {
		case inner >= 0:
			v.Errorf(e.path, "%s selects every namespace that this selector does; %s", where(inner), narrowSelector)
		case outer >= 0:
			v.Errorf(e.path, "the selector also selects every namespace of %s; %s", where(outer), narrowSelector)
		case crossing >= 0:
			v.Warnf(e.path, "a namespace may have the labels for this selector and for %s; its claims would be denied as AmbiguousTenant", where(crossing))
		}
		earlier = append(earlier, e)
	}
}

// Populator is the namespace of a program that fills volumes for other users' claims: it
// creates its own claim there, fills that claim's volume, and gives the PersistentVolume
// to the original claim.
type Populator struct {
	Namespace string `json:"namespace"`
}

// Populated is the claim that a populator's claim serves. Its namespace determines the
// tenant.
type Populated struct {
	Namespace       string
	NamespaceLabels map[string]string
	Claim           string
	// Missing is why there is no such claim. The other fields are then empty.
	Missing string
}

// The reasons that are about populators.
const (
	// NoPopulatedClaim: something in a populator's namespace asks on behalf of no claim.
	NoPopulatedClaim Reason = "NoPopulatedClaim"
	// AwaitsPopulator: the claim requests content that only a volume populator has; the
	// populator creates the volume for a claim of its own. Such a claim is fine, so it
	// gets no event. This is decided before the policy is consulted.
	AwaitsPopulator Reason = "AwaitsPopulator"
)

// IsPopulator reports whether a namespace is a populator's. Then it belongs to no tenant,
// regardless of its labels and of patterns that match its name.
func (p *Policy) IsPopulator(namespace string) bool { return p.populatorPath(namespace) != "" }

// populatorPath returns the entry for a populator's namespace; empty for any other one.
func (p *Policy) populatorPath(namespace string) string {
	i, ok := p.index.populators[namespace]
	if !ok {
		return ""
	}
	return document.Element("populators", i)
}

// noPopulatedClaim denies a claim in a populator's namespace; why may be empty.
func noPopulatedClaim(namespace, path, why string) *Denial {
	message := fmt.Sprintf("namespace %s is a populator's (%s) and belongs to no tenant: its claims get volumes only on behalf of claims that wait to be filled", namespace, path)
	if why != "" {
		message += "; " + why
	}
	return &Denial{Reason: NoPopulatedClaim, Path: path, Message: message}
}

var endsInUID = regexp.MustCompile(`(?:^|-)([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)

// PopulatedUID returns the UID of the claim that a populator's claim serves; the latter's
// name ends in it.
func PopulatedUID(claim string) (uid string, ok bool) {
	found := endsInUID.FindStringSubmatch(claim)
	if found == nil {
		return "", false
	}
	return found[1], true
}

// onBehalf replaces a request from a populator's namespace by one for the claim that it
// serves; only that claim's namespace and name matter. It precedes every search for a
// tenant, so that a populator's namespace never has one of its own.
func (d *decider) onBehalf() *Denial {
	namespace, of := d.request.Namespace, d.request.Populated
	path := d.policy.populatorPath(namespace)
	switch {
	case path == "":
		return nil
	case of == nil:
		return noPopulatedClaim(namespace, path, "")
	case of.Missing != "":
		return noPopulatedClaim(namespace, path, of.Missing)
	case d.policy.IsPopulator(of.Namespace):
		return noPopulatedClaim(namespace, path, fmt.Sprintf("namespace %s of claim %s is a populator's, too", of.Namespace, of.Claim))
	case !names.Namespace().Valid(of.Namespace):
		return noPopulatedClaim(namespace, path, fmt.Sprintf("%q cannot be the name of a namespace", of.Namespace))
	}
	d.trace(path, namespace, true, fmt.Sprintf("namespace %s is a populator's (%s): what follows is about claim %s/%s, on whose behalf it asks", namespace, path, of.Namespace, of.Claim))
	d.request.Namespace, d.request.NamespaceLabels, d.request.Claim = of.Namespace, of.NamespaceLabels, of.Claim
	d.request.Populated = nil
	return nil
}

// validatePopulators makes sure that every populator has one namespace, which no tenant
// lists.
func (v *validator) validatePopulators() {
	listed := map[string]namespaceEntry{}
	for i, t := range v.Tenants {
		for j, text := range t.Namespaces {
			if _, twice := listed[text]; !twice {
				listed[text] = namespaceEntry{tenant: i, path: fmt.Sprintf("tenants[%d].namespaces[%d]", i, j)}
			}
		}
	}
	for i, populator := range v.Populators {
		element := document.Element("populators", i)
		at, namespace := document.Child(element, "namespace"), populator.Namespace
		tenants, isListed := listed[namespace]
		first := v.index.populators[namespace]
		switch {
		case namespace == "":
			if !v.IsUnread(element) && !v.IsUnread(at) {
				v.Errorf(at, "is missing; name the namespace in which the populator makes its claims")
			}
		case names.Namespace().Mistake(namespace) != "":
			v.Errorf(at, "%q cannot be a namespace: %s", namespace, names.Namespace().Mistake(namespace))
		case names.IsPattern(namespace):
			v.Errorf(at, "%q is a pattern, but the owner of a populator's namespace asks on behalf of every tenant; name each namespace in an entry of its own", namespace)
		case first != i:
			earlier := document.Child(document.Element("populators", first), "namespace")
			v.Errorf(at, "%q is named by %s (%s) already; remove one of them", namespace, earlier, v.LineOf(earlier))
		case isListed:
			v.Errorf(at, "%q is listed by %s, too; a populator's claims belong to the tenants whose claims they fill, so remove one of them", namespace, v.locate(tenants.tenant, tenants.path))
		}
	}
}
