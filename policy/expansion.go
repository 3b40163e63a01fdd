package policy

import (
	"fmt"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Holding is where a volume counts that exists already.
type Holding struct{ Tenant, Backend string }

// DecideExpansion decides about a claim that wants its volume larger; the request
// has the new size. The claim must still get a volume of this size from the
// volume's tenant on the volume's backend. What only matters to a new volume does
// not count: the StorageClass's parameters and topologies, the smallest size, and
// whether the backend is suspended.
//
// The decision has the volume's backend alone. Its quotas hold the whole volume,
// which counts there already.
func (p *Policy) DecideExpansion(r Request, of Holding) Decision {
	d := &decider{policy: p, request: r}
	d.decision.Denial = d.expand(of)
	return d.decision
}

func (d *decider) expand(of Holding) *Denial {
	if denial := d.checkClaim(); denial != nil {
		return denial
	}
	tenant, index, denial := d.findTenant()
	if denial != nil {
		return denial
	}
	d.decision.Tenant = tenant.Name
	path := document.Element("tenants", index)
	if tenant.Name != of.Tenant {
		return &Denial{Reason: NoMatchingTenant, Path: path, Message: fmt.Sprintf(
			"namespace %s belongs to tenant %s now, but the volume counts for tenant %s (%s)", d.request.Namespace, tenant.Name, of.Tenant, path)}
	}
	class, denial := d.findClass(tenant, path)
	if denial != nil {
		return denial
	}
	d.decision.Rule = class.path
	backend := d.policy.backendIndex(of.Backend)
	if backend < 0 || !slices.Contains(class.Backends, of.Backend) {
		return &Denial{Reason: NoMatchingClass, Path: class.path + ".backends", Message: fmt.Sprintf(
			"tenant %s may no longer use backend %s, which has the volume, for StorageClass %s (%s.backends)", tenant.Name, of.Backend, d.request.StorageClass, class.path)}
	}
	size := roundUpGiB(d.request.Bytes)
	limits := class.size.narrow(d.policy.Backends[backend].VolumeSize, document.Element("backends", backend)+".volumeSize")
	limits.min = nil
	if denial := limits.check(size); denial != nil {
		return denial
	}
	d.decision.Backends = []string{of.Backend}
	d.decision.Volume = VolumeProperties{SizeGiB: size}
	d.decision.Quotas = []QuotaScope{tenantScope(tenant, index), classScope(tenant, class), backendScope(&d.policy.Backends[backend], backend)}
	return nil
}
