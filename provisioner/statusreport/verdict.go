package statusreport

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxNamed bounds how many tenants a sentence names.
const maxNamed = 3

// A certificate is a trouble troubleBefore its expiry, and a delay to come warnBefore it.
const (
	troubleBefore = 3 * day
	warnBefore    = 21 * day
	day           = 24 * time.Hour
)

// Troubles lists what needs an operator: no known leader, a refused policy, unreadable
// credentials, certificates about to expire, or a backend that does not answer. It leaves out pending claims, because
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
		for _, sentence := range r.expiring(backend, troubleBefore) {
			troubles = append(troubles, "backend "+backend.Name+": "+sentence)
		}
	}
	return troubles
}

// expiring returns a sentence for each certificate of a backend that expires within a time.
func (r *Report) expiring(b Backend, within time.Duration) (sentences []string) {
	for _, c := range b.Certificates {
		switch left := c.Expires.Sub(r.Time); {
		case left <= 0:
			sentences = append(sentences, "the "+c.Of+" certificate has expired")
		case left <= within:
			sentences = append(sentences, "the "+c.Of+" certificate expires in "+inLargestUnit(left))
		}
	}
	return sentences
}

// Delays lists what holds up work, or may soon, although nothing is broken, or because
// something is.
func (r *Report) Delays() []string {
	var delays, full []string
	if r.Claims != nil && r.Claims.Total > 0 {
		delays = append(delays, r.waiting(&r.Claims.Waiting, "1 claim waits", "%d claims wait"))
	}
	if r.Deletions != nil && r.Deletions.Total > 0 {
		delays = append(delays, r.waiting(&r.Deletions.Waiting, "1 deletion waits", "%d deletions wait"))
	}
	if r.Expansions != nil && r.Expansions.Total > 0 {
		delays = append(delays, r.waiting(r.Expansions, "1 expansion waits", "%d expansions wait"))
	}
	if r.Snapshots != nil && r.Snapshots.Total > 0 {
		delays = append(delays, r.waiting(r.Snapshots, "1 snapshot waits", "%d snapshots wait"))
	}
	if r.Attachments != nil && r.Attachments.Total > 0 {
		delays = append(delays, r.waiting(&r.Attachments.Waiting, "1 attachment waits", "%d attachments wait")+r.staged())
	}
	if r.Audit != nil && r.Audit.Total > 0 {
		delays = append(delays, fmt.Sprintf("findings of the last audit: %d", r.Audit.Total))
	}
	for _, backend := range r.Backends {
		if len(r.expiring(backend, troubleBefore)) > 0 {
			continue // it is a trouble
		}
		for _, sentence := range r.expiring(backend, warnBefore) {
			delays = append(delays, "backend "+backend.Name+": "+sentence)
		}
	}
	for _, tenant := range r.Tenants {
		for _, quota := range tenant.Quotas {
			if quota.isLimited() && *quota.Used >= *quota.Limit {
				full = append(full, tenant.Name)
				break
			}
		}
	}
	if len(full) > 0 {
		delays = append(delays, "a quota is full: "+named("tenant", full))
	}
	return delays
}

func (r *Report) waiting(w *Waiting, one, many string) string {
	text := one
	if w.Total > 1 {
		text = fmt.Sprintf(many, w.Total)
	}
	if len(w.Pending) > 0 && !w.Pending[0].Since.IsZero() {
		text += ", the oldest" + r.lasting(w.Pending[0].Since)
	}
	return text
}

// staged names the nodes that have not let go of volumes.
func (r *Report) staged() string {
	var nodes []string
	for _, p := range r.Attachments.Pending {
		if p.Reason == StillStaged && !slices.Contains(nodes, p.Node) {
			nodes = append(nodes, p.Node)
		}
	}
	if len(nodes) == 0 {
		return ""
	}
	return "; volumes that Kubernetes has detached are still staged on " + named("node", nodes)
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
	return inLargestUnit(max(0, r.Time.Sub(t)))
}

func inLargestUnit(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/day)
}

// isLimited reports whether the limit allows something and the use is known.
func (q Quota) isLimited() bool { return q.Limit != nil && q.Used != nil && *q.Limit > 0 }
