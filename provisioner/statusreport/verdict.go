package statusreport

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxNamed bounds how many tenants a sentence names.
const maxNamed = 3

// Troubles lists what needs an operator: no known leader, a refused policy, unreadable
// credentials, or a backend that does not answer. It leaves out pending claims, because
// most of them are denied by the policy.
func (r *Report) Troubles() []string {
	troubles := []string{}
	if r.Leader.Identity == "" {
		troubles = append(troubles, "no replica is known to lead")
	}
	if len(r.Policy.Refused) > 0 {
		troubles = append(troubles, "the policy file is refused")
	}
	for _, trouble := range r.Credentials {
		troubles = append(troubles, "the credentials of backend "+trouble.Backend+" cannot be read")
	}
	for _, backend := range r.Backends {
		if backend.State == CircuitOpen {
			troubles = append(troubles, "backend "+backend.Name+" does not answer"+r.lasting(backend.Since)+r.concerning(backend.Name))
		}
	}
	return troubles
}

// Delays lists what holds up claims and deletions although nothing is broken, or because
// something is.
func (r *Report) Delays() []string {
	var delays, full, reached []string
	if r.Claims != nil && r.Claims.Total > 0 {
		delays = append(delays, r.waiting(&r.Claims.Waiting, "1 claim waits", "%d claims wait"))
	}
	if r.Deletions != nil && r.Deletions.Total > 0 {
		delays = append(delays, r.waiting(&r.Deletions.Waiting, "1 deletion waits", "%d deletions wait"))
	}
	for _, tenant := range r.Tenants {
		ofRule := func(rule Rule) bool { return slices.ContainsFunc(rule.Quotas, Quota.isFull) }
		if slices.ContainsFunc(tenant.Quotas, Quota.isFull) || slices.ContainsFunc(tenant.Rules, ofRule) {
			full = append(full, tenant.Name)
		}
	}
	for _, backend := range r.Backends {
		if !backend.Suspended && slices.ContainsFunc(backend.Quotas, Quota.isFull) {
			reached = append(reached, backend.Name)
		}
	}
	if len(full) > 0 {
		delays = append(delays, "a quota is full: "+named("tenant", full))
	}
	if len(reached) > 0 {
		delays = append(delays, "a limit is reached: "+named("backend", reached))
	}
	return delays
}

func (r *Report) waiting(w *Waiting, one, many string) string {
	text := one
	if w.Total > 1 {
		text = fmt.Sprintf(many, w.Total)
	}
	longest := time.Time{}
	for _, p := range w.Pending {
		if longest.IsZero() || !p.Since.IsZero() && p.Since.Before(longest) {
			longest = p.Since
		}
	}
	if longest.IsZero() {
		return text
	}
	return text + ", the longest" + r.lasting(longest)
}

// concerning names the tenants that have volumes on a backend.
func (r *Report) concerning(backend string) string {
	var tenants []string
	for _, tenant := range r.Tenants {
		for _, share := range tenant.Shares {
			if share.Backend == backend && share.Volumes > 0 {
				tenants = append(tenants, tenant.Name)
			}
		}
	}
	if len(tenants) == 0 {
		return ""
	}
	return ", which concerns " + named("tenant", tenants)
}

// named names some of many.
func named(noun string, names []string) string {
	if len(names) > 1 {
		noun += "s"
	}
	text := noun + " " + strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (r *Report) lasting(since time.Time) string {
	if since.IsZero() {
		return ""
	}
	return " for " + r.Age(since)
}

// Age returns how long before the report something was, in the largest unit of which
// there are two.
func (r *Report) Age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	age := max(0, r.Time.Sub(t))
	const day = 24 * time.Hour
	switch {
	case age < 2*time.Minute:
		return fmt.Sprintf("%d s", age/time.Second)
	case age < 2*time.Hour:
		return fmt.Sprintf("%d min", age/time.Minute)
	case age < 2*day:
		return fmt.Sprintf("%d h", age/time.Hour)
	}
	return fmt.Sprintf("%d days", age/day)
}

func (q Quota) isFull() bool { return q.isLimited() && *q.Used >= *q.Limit }

// isLimited reports whether the limit allows something and the use is known.
func (q Quota) isLimited() bool { return q.Limit != nil && q.Used != nil && *q.Limit > 0 }
