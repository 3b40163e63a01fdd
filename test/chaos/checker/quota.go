package checker

import (
	"fmt"
	"maps"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// Quotas collects every limit that any policy allowed, so that lowering a limit
// below current usage exceeds nothing.
type Quotas struct {
	cluster string
	// backendOf names the backend of a project.
	backendOf map[string]string
	classes   []string
	policies  []*policy.Policy
}

// NewQuotas begins without any limit. The classes are those whose rules have
// limits.
func NewQuotas(cluster string, backendOf map[string]string, classes []string) *Quotas {
	return &Quotas{cluster: cluster, backendOf: backendOf, classes: classes}
}

// Allow adds a policy that comes into force. All must have the same rules, in
// the same order.
func (q *Quotas) Allow(p *policy.Policy) { q.policies = append(q.policies, p) }

// Counts reports whether a volume counts in a kind of scope.
type Counts func(kind policy.ScopeKind, v cindersim.Volume) bool

// Exceeded names the limits that are exceeded under every policy so far. A
// claim counts once, however many volumes it has: a duplicate is another
// finding.
func (q *Quotas) Exceeded(volumes []cindersim.Volume, counts Counts) []Finding {
	exceeded := map[string]string{}
	for i, p := range q.policies {
		over := q.over(p, volumes, counts)
		if i == 0 {
			exceeded = over
			continue
		}
		for scope := range exceeded {
			if over[scope] == "" {
				delete(exceeded, scope)
			}
		}
	}
	var findings []Finding
	for scope, text := range exceeded {
		findings = append(findings, Finding{Kind: OverQuota, Object: scope, Text: text + q.members(scope, volumes, counts)})
	}
	return findings
}

// members lists what counts in a scope.
func (q *Quotas) members(scope string, volumes []cindersim.Volume, counts Counts) string {
	var text strings.Builder
	eachCounted(q.policies[len(q.policies)-1], q.cluster, q.backendOf, volumes, counts, func(s policy.QuotaScope, v cindersim.Volume) {
		if scopeOf(s) == scope {
			fmt.Fprintf(&text, "\n%s, %d GiB, on %s, created %s", describe(v), v.SizeGiB, q.backendOf[v.Project], v.Created.Format("15:04:05.000"))
		}
	})
	return text.String()
}

// over returns the scopes that have more than one policy allows.
func (q *Quotas) over(p *policy.Policy, volumes []cindersim.Volume, counts Counts) map[string]string {
	sums := Usage(p, q.cluster, q.backendOf, volumes, counts)
	over := map[string]string{}
	for _, tenant := range p.Tenants {
		for _, class := range q.classes {
			for _, backend := range p.Backends {
				for _, scope := range p.QuotaScopes(tenant.Name, class, backend.Name) {
					if denial := scope.Check(policy.Usage{}, sums[scopeOf(scope)]); denial != nil {
						over[scopeOf(scope)] = fmt.Sprintf("%s under every policy so far, such as revision %s", denial.Message, p.Revision())
					}
				}
			}
		}
	}
	return over
}

func scopeOf(s policy.QuotaScope) string { return string(s.Kind) + " " + s.Name }

// Everything counts.
func Everything(policy.ScopeKind, cindersim.Volume) bool { return true }

// Usage sums up the usage of a policy's scopes.
func Usage(p *policy.Policy, cluster string, backendOf map[string]string, volumes []cindersim.Volume, counts Counts) map[string]policy.Usage {
	sums := map[string]policy.Usage{}
	eachCounted(p, cluster, backendOf, volumes, counts, func(s policy.QuotaScope, v cindersim.Volume) {
		sums[scopeOf(s)] = sums[scopeOf(s)].Add(policy.Usage{Volumes: 1, Gigabytes: int64(v.SizeGiB)})
	})
	return sums
}

// eachCounted goes through all scopes of all volumes that count there.
func eachCounted(p *policy.Policy, cluster string, backendOf map[string]string, volumes []cindersim.Volume, counts Counts, yield func(policy.QuotaScope, cindersim.Volume)) {
	seen := map[string]bool{}
	for _, v := range volumes {
		uid := v.Metadata[StampClaimUID]
		// Half a stamp does not count.
		if v.Metadata[StampCluster] != cluster || v.Metadata[StampPV] != pvNameFor(uid) || seen[uid] {
			continue
		}
		seen[uid] = true
		for _, s := range p.QuotaScopes(v.Metadata[StampTenant], v.Metadata[StampStorageClass], backendOf[v.Project]) {
			if counts(s.Kind, v) {
				yield(s, v)
			}
		}
	}
}

// RoomToGrow says why a volume of a size finds no room to grow with this decision;
// empty if it does. The volume counts already.
func RoomToGrow(d policy.Decision, used map[string]policy.Usage, sizeGiB int) (reason policy.Reason, message string) {
	without := maps.Clone(used)
	for _, s := range d.Quotas {
		without[scopeOf(s)] = without[scopeOf(s)].Sub(policy.Usage{Volumes: 1, Gigabytes: int64(sizeGiB)})
	}
	return Room(d, without)
}

// Room says why a claim with this decision finds no room; empty if it does.
func Room(d policy.Decision, used map[string]policy.Usage) (reason policy.Reason, message string) {
	room := d.Room(func(s policy.QuotaScope) policy.Usage { return used[scopeOf(s)] })
	if room.Denial == nil {
		return "", ""
	}
	return room.Denial.Reason, room.Denial.Message
}
