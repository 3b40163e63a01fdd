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
// credentials, certificates about to expire, or a backend that rejects the login or does not
// answer. It leaves out pending claims, because most of them are denied by the policy.
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
		if refusal := backend.loginRefusal(); refusal != "" {
			since := r.lasting(backend.Since)
			if backend.State != CircuitOpen {
				since = ", last " + r.Age(backend.LastFailureAt) + " ago"
			}
			troubles = append(troubles, "the login to backend "+backend.Name+" is rejected"+since+r.concerning(backend.Name)+": "+refusal)
		} else if backend.State == CircuitOpen {
			troubles = append(troubles, "backend "+backend.Name+" does not answer"+r.lasting(backend.Since)+r.concerning(backend.Name))
		}
		for _, c := range backend.Certificates {
			if r.left(c) <= troubleBefore {
				troubles = append(troubles, "backend "+backend.Name+": "+r.Expiring(c))
			}
		}
	}
	return troubles
}

// left returns how long a certificate is valid after the report.
func (r *Report) left(c Certificate) time.Duration { return c.Expires.Sub(r.Time) }

// Expiring says when a certificate expires; it is empty if that is not soon.
func (r *Report) Expiring(c Certificate) string {
	switch left := r.left(c); {
	case left <= 0:
		return "the " + c.Of + " certificate has expired"
	case left <= warnBefore:
		return "the " + c.Of + " certificate expires in " + inLargestUnit(left)
	}
	return ""
}

// Delays lists what holds up work, or may soon, although nothing is broken, or because
// something is.
func (r *Report) Delays() []string {
	var delays, full, reached []string
	for _, section := range r.Sections() {
		if section.Total > 0 {
			delays = append(delays, r.waiting(section))
		}
	}
	delays = append(delays, r.rollout()...)
	if r.Audit != nil && r.Audit.Total > 0 {
		delays = append(delays, fmt.Sprintf("findings of the last audit: %d", r.Audit.Total))
	}
	for _, backend := range r.Backends {
		for _, c := range backend.Certificates {
			if left := r.left(c); left > troubleBefore && left <= warnBefore {
				delays = append(delays, "backend "+backend.Name+": "+r.Expiring(c))
			}
		}
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

// rollout says what keeps the replicas from being alike and ready.
func (r *Report) rollout() []string {
	var said, images, down []string
	for _, pod := range r.Pods {
		if pod.Ending {
			continue
		}
		if !slices.Contains(images, pod.Image) {
			images = append(images, pod.Image)
		}
		if !pod.Ready {
			down = append(down, pod.Name)
		}
	}
	if len(images) > 1 {
		said = append(said, "replicas run different images: "+strings.Join(images, ", "))
	}
	if len(down) > 0 {
		said = append(said, "not ready: "+named("pod", down))
	}
	return said
}

func (r *Report) waiting(w Section) string {
	text := "1 " + w.noun + " waits"
	if w.Total > 1 {
		text = fmt.Sprintf("%d %ss wait", w.Total, w.noun)
	}
	longest, older := time.Time{}, false
	var holding []string
	for _, p := range w.Pending {
		if longest.IsZero() || !p.Since.IsZero() && p.Since.Before(longest) {
			longest, older = p.Since, r.MayBeOlder(p)
		}
		if p.Reason == StillStaged && !slices.Contains(holding, p.Node) {
			holding = append(holding, p.Node)
		}
	}
	if !longest.IsZero() {
		text += ", the longest for "
		if older {
			text += "at least "
		}
		text += r.Age(longest)
	}
	if len(holding) > 0 {
		text += "; volumes that Kubernetes has detached are still staged on " + named("node", holding)
	}
	return text
}

// loginRefusal returns why Keystone rejects the login; empty if it does not, or is silent.
func (b Backend) loginRefusal() string {
	refusal, isLogin := strings.CutPrefix(b.LastFailure, "auth.login: ")
	if !isLogin || !strings.Contains(refusal, "(HTTP 4") || b.State != CircuitOpen && b.FailuresInARow == 0 {
		return ""
	}
	return refusal
}

// concerning names the tenants that have volumes on a backend or can have them nowhere else,
// and the namespaces whose claims wait for it: a pending claim does not name its tenant.
func (r *Report) concerning(backend string) string {
	var tenants, namespaces, concerned []string
	for _, tenant := range r.Tenants {
		has := func(share Share) bool { return share.Backend == backend && share.Volumes > 0 }
		isOnly := func(rule Rule) bool { return slices.Equal(rule.Backends, []string{backend}) }
		if slices.ContainsFunc(tenant.Shares, has) || slices.ContainsFunc(tenant.Rules, isOnly) {
			tenants = append(tenants, tenant.Name)
		}
	}
	if r.Claims != nil {
		for _, p := range r.Claims.Pending {
			if p.Backend == backend && !slices.Contains(namespaces, p.Namespace) {
				namespaces = append(namespaces, p.Namespace)
			}
		}
	}
	if len(tenants) > 0 {
		concerned = append(concerned, named("tenant", tenants))
	}
	if len(namespaces) > 0 {
		concerned = append(concerned, "pending claims of "+named("namespace", namespaces))
	}
	if len(concerned) == 0 {
		return ""
	}
	return ", which concerns " + strings.Join(concerned, " and ")
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

// MayBeOlder reports whether an object may have waited since before its time. A leader denies
// again, as its term begins, what an earlier one denied.
func (r *Report) MayBeOlder(p Pending) bool {
	const beginning = 30 * time.Second
	began := r.Replica.LeadsSince
	return !p.Created.IsZero() && p.Created.Before(began) && p.Created.Before(p.Since) && p.Since.Sub(began).Abs() <= beginning
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

func (q Quota) isFull() bool { return q.IsLimited() && *q.Used >= *q.Limit }

// IsLimited reports whether the limit allows something and the use is known.
func (q Quota) IsLimited() bool { return q.Limit != nil && q.Used != nil && *q.Limit > 0 }
