package ledger

import (
	"sync"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// account is the usage by scope, of volumes and snapshots together.
type account struct {
	policy func() *policy.Policy

	// mu guards the volumes and snapshots, too.
	mu sync.Mutex
	// sums is the usage under the policy at the last refresh. Another policy may have other
	// rules, so recount then sums everything up again.
	sums    map[Scope]policy.Usage
	inForce *policy.Policy
	recount func()
}

// refresh recomputes the sums when the policy has changed.
func (a *account) refresh() {
	if p := a.policy(); p != a.inForce {
		a.inForce, a.sums = p, map[Scope]policy.Usage{}
		a.recount()
	}
}

// used returns the usage of a scope.
func (a *account) used(s policy.QuotaScope) policy.Usage { return a.sums[Scope{s.Kind, s.Name}] }

// tenantOf returns the tenant that a volume or snapshot counts for. It is empty if only a
// stamp names the tenant, and that tenant may not use the backend. Anyone with write access
// to the backend's project can forge a stamp, which must not use up that tenant's quota.
// The policy in force decides, because a reload may change what the tenant may use.
func (a *account) tenantOf(tenant, backend string, byStamp bool) string {
	if byStamp && !a.inForce.MayUse(tenant, backend) {
		return ""
	}
	return tenant
}

func (a *account) countIn(tenant, storageClass, backend string, usage policy.Usage, change func(policy.Usage, policy.Usage) policy.Usage) {
	for _, s := range a.inForce.QuotaScopes(tenant, storageClass, backend) {
		key := Scope{s.Kind, s.Name}
		a.sums[key] = change(a.sums[key], usage)
	}
}
