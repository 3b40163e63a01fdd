package policy

import (
	"fmt"
	"regexp"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
)

// Populator is the namespace of a program that fills volumes for the claims of others:
// it makes a claim of its own there, fills the volume of that, and gives the
// PersistentVolume to the claim that is to be filled.
type Populator struct {
	Namespace string `json:"namespace"`
}

// Populated is the claim that a populator's claim is made for. Its namespace decides
// which tenant asks.
type Populated struct {
	Namespace       string
	NamespaceLabels map[string]string
	Claim           string
	// Missing is why there is no such claim. The other fields are empty then.
	Missing string
}

// The reasons that are about populators.
const (
	// NoPopulatedClaim: what is in a populator's namespace asks on behalf of no claim.
	NoPopulatedClaim Reason = "NoPopulatedClaim"
	// AwaitsPopulator: the claim asks for content that only a volume populator has, which
	// has the claim's volume made for one of its own. Nothing is wrong with such a claim,
	// so nobody is told. It comes before the policy is asked.
	AwaitsPopulator Reason = "AwaitsPopulator"
)

// IsPopulator reports whether a namespace is a populator's. It belongs to no tenant then,
// whatever its labels are and whichever pattern matches its name.
func (p *Policy) IsPopulator(namespace string) bool { return p.populatorPath(namespace) != "" }

// populatorPath returns the entry for a populator's namespace; empty for any other one.
func (p *Policy) populatorPath(namespace string) string {
	i, ok := p.index.populators[namespace]
	if !ok {
		return ""
	}
	return document.Element("populators", i)
}

// noPopulatedClaim denies what is in a populator's namespace; why may be empty.
func noPopulatedClaim(namespace, path, why string) *Denial {
	message := fmt.Sprintf("namespace %s is a populator's (%s) and belongs to no tenant: its claims get volumes only on behalf of claims that wait to be filled", namespace, path)
	if why != "" {
		message += "; " + why
	}
	return &Denial{Reason: NoPopulatedClaim, Path: path, Message: message}
}

var endsInUID = regexp.MustCompile(`(?:^|-)([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)

// PopulatedUID returns the UID of the claim that a populator's claim is made for: the
// name of the latter ends in it.
func PopulatedUID(claim string) (uid string, ok bool) {
	found := endsInUID.FindStringSubmatch(claim)
	if found == nil {
		return "", false
	}
	return found[1], true
}

// onBehalf replaces a request from a populator's namespace by one of the claim that is to
// be filled, of which only the namespace and the name matter. It goes before every search
// for a tenant, so that a populator's namespace never has one of its own.
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

// indexPopulators indexes populators by namespace. Of several with the same namespace,
// which is an error, it keeps the first.
func (p *Policy) indexPopulators() {
	p.index.populators = make(map[string]int, len(p.Populators))
	for i := len(p.Populators) - 1; i >= 0; i-- {
		p.index.populators[p.Populators[i].Namespace] = i
	}
}

// validatePopulators makes sure that every populator has one namespace, which no tenant
// lists.
func (p *Policy) validatePopulators(d *document.Document) {
	listed := map[string]namespaceEntry{}
	for i, t := range p.Tenants {
		for j, text := range t.Namespaces {
			if _, twice := listed[text]; !twice {
				listed[text] = namespaceEntry{tenant: i, path: fmt.Sprintf("tenants[%d].namespaces[%d]", i, j)}
			}
		}
	}
	for i, populator := range p.Populators {
		element := document.Element("populators", i)
		at, namespace := document.Child(element, "namespace"), populator.Namespace
		tenants, isListed := listed[namespace]
		first := p.index.populators[namespace]
		switch {
		case namespace == "":
			if !d.IsUnread(element) && !d.IsUnread(at) {
				d.Errorf(at, "is missing; name the namespace in which the populator makes its claims")
			}
		case names.Namespace().Mistake(namespace) != "":
			d.Errorf(at, "%q cannot be a namespace: %s", namespace, names.Namespace().Mistake(namespace))
		case names.IsPattern(namespace):
			d.Errorf(at, "%q is a pattern, but whoever gets a populator's namespace asks on behalf of every tenant; name each namespace in an entry of its own", namespace)
		case first != i:
			earlier := document.Child(document.Element("populators", first), "namespace")
			d.Errorf(at, "%q is named by %s (line %d) already; remove one of them", namespace, earlier, d.Find(earlier).Line)
		case isListed:
			d.Errorf(at, "%q is listed by %s, too; a populator's claims belong to the tenants whose claims they fill, so remove one of them", namespace, p.locate(d, tenants.tenant, tenants.path))
		}
	}
}
