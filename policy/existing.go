package policy

import (
	"fmt"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Holding is where an existing volume counts.
type Holding struct{ Tenant, Backend string }

// DecideHolder decides about an existing volume that is bound to another claim. What the
// claim requests does not matter, since the volume exists; nor do quotas and suspended
// backends. The decision has the quotas that count the volume.
func (p *Policy) DecideHolder(r Request, backend string) Decision {
	return decideHeld(p, r, Holding{Backend: backend}, func(d *decider, tenant *Tenant, class *Class, backend int) *Denial {
		d.decision.Quotas = []QuotaScope{tenant.scope, class.scope, p.Backends[backend].scope}
		return nil
	})
}

// DecideExpansion decides about a claim that requests a larger volume; the request has
// the new size. The claim must still be entitled to a volume of this size from the
// volume's tenant on the volume's backend. What matters only to a new volume is ignored:
// the StorageClass's parameters and topologies, the smallest size, and whether the
// backend is suspended.
//
// The decision has only the volume's backend. Its quotas cover the whole volume, which
// already counts there.
func (p *Policy) DecideExpansion(r Request, of Holding) Decision {
	return decideHeld(p, r, of, func(d *decider, tenant *Tenant, class *Class, backend int) *Denial {
		size := roundUpGiB(r.Bytes)
		limits := class.size.narrow(p.Backends[backend].VolumeSize, document.Element("backends", backend)+".volumeSize")
		limits.min = nil
		d.decision.Volume = VolumeProperties{SizeGiB: size}
		d.decision.Quotas = []QuotaScope{tenant.scope, class.scope, p.Backends[backend].scope}
		return limits.check(size)
	})
}

// DecideRetype decides whether a claim's volume may get another volume type. The rule of
// the claim's StorageClass must still name the volume's tenant and backend, and must not
// fix another type. Quotas count by tenant, rule and backend, so the type does not affect
// them.
func (p *Policy) DecideRetype(r Request, of Holding, volumeType string) Decision {
	return decideHeld(p, r, of, func(d *decider, _ *Tenant, class *Class, _ int) *Denial {
		d.decision.Volume = VolumeProperties{Type: volumeType}
		if class.VolumeType != "" && class.VolumeType != volumeType {
			return &Denial{Reason: ParameterNotAllowed, Path: class.path + ".volumeType", Message: fmt.Sprintf(
				"%s.volumeType grants only volumes of type %q; change the rule first", class.path, class.VolumeType)}
		}
		return nil
	})
}

// DecideModification decides whether a VolumeAttributesClass may change the type of a
// claim's volume. Any tenant may name any such class, so the rule must list the type.
func (p *Policy) DecideModification(r Request, of Holding, volumeType string) Decision {
	return decideHeld(p, r, of, func(d *decider, _ *Tenant, class *Class, _ int) *Denial {
		d.decision.Volume = VolumeProperties{Type: volumeType}
		return class.grantsType(volumeType)
	})
}

// decideHeld decides about a volume that exists. by decides what the request is about, once
// the claim's tenant and rule and the volume's backend are found.
func decideHeld(p *Policy, r Request, of Holding, by func(d *decider, tenant *Tenant, class *Class, backend int) *Denial) Decision {
	d := &decider{policy: p, request: r}
	tenant, class, backend, denial := d.findHolder(of)
	if denial == nil {
		d.decision.Backends = []string{of.Backend}
		denial = by(d, tenant, class, backend)
	}
	d.decision.Denial = denial
	return d.decision
}

// findHolder finds the claim's tenant and rule, and the volume's backend. The
// tenant must be the volume's, if that is given, and the rule must name that backend.
func (d *decider) findHolder(of Holding) (tenant *Tenant, class *Class, backend int, denial *Denial) {
	if denial := d.checkClaim(); denial != nil {
		return nil, nil, 0, denial
	}
	tenant, index, denial := d.findTenant()
	if denial != nil {
		return nil, nil, 0, denial
	}
	d.decision.Tenant = tenant.Name
	path := document.Element("tenants", index)
	if of.Tenant != "" && tenant.Name != of.Tenant {
		return nil, nil, 0, &Denial{Reason: NoMatchingTenant, Path: path, Message: fmt.Sprintf(
			"namespace %s belongs to tenant %s now, but the volume counts for tenant %s (%s)", d.request.Namespace, tenant.Name, of.Tenant, path)}
	}
	if class, denial = d.findClass(tenant, path); denial != nil {
		return nil, nil, 0, denial
	}
	d.decision.Rule = class.path
	backend = d.policy.backendIndex(of.Backend)
	if backend < 0 || !slices.Contains(class.Backends, of.Backend) {
		return nil, nil, 0, &Denial{Reason: NoMatchingClass, Path: class.path + ".backends", Message: fmt.Sprintf(
			"tenant %s may not use backend %s, which has the volume, for StorageClass %s (%s.backends)", tenant.Name, of.Backend, d.request.StorageClass, class.path)}
	}
	return tenant, class, backend, nil
}
