package policy

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/names"
)

// This file is about values that can be read and are nevertheless not what
// anybody means.

// Bounds of durations. Shorter ones end before any request does; longer ones were
// probably meant in another unit.
const (
	MinVolumeTimeout  = time.Second
	MinRequestTimeout = 100 * time.Millisecond
	MinAuditInterval  = 100 * time.Millisecond
	MinDeletingGrace  = time.Second
	MaxTimeout        = 24 * time.Hour
	MaxAuditTime      = 30 * 24 * time.Hour
)

// MaxCount is the largest number of Cinder's own quotas (MAX_INT in its
// db/constants.py).
const MaxCount = math.MaxInt32

// validateBounds checks a duration that the file gives.
func validateBounds(d *document.Document, path string, value, least, most time.Duration, why string) {
	switch {
	case !d.Has(path) || value <= 0: // which is reported elsewhere
	case value < least:
		d.Errorf(path, "%s is too short: %s; write at least %s", value, why, least)
	case value > most:
		d.Errorf(path, "%s is too long to be meant; write at most %s", shortDuration(value), shortDuration(most))
	}
}

// shortDuration writes whole hours without minutes and seconds.
func shortDuration(value time.Duration) string { return strings.TrimSuffix(value.String(), "0m0s") }

func (v *validator) validateAudit() {
	validateDurations(v.Document, "audit", named[time.Duration]{"interval", v.Audit.Interval}, named[time.Duration]{"grace", v.Audit.Grace})
	validateBounds(v.Document, "audit.interval", v.Audit.Interval, MinAuditInterval, MaxAuditTime, "every audit lists all volumes")
	least := time.Duration(0)
	if v.Audit.Delete {
		least = MinDeletingGrace
	}
	validateBounds(v.Document, "audit.grace", v.Audit.Grace, least, MaxAuditTime, "with delete: true the audit would look at volumes that are just being created")
	if !v.Audit.Delete || v.Audit.Grace < MinDeletingGrace {
		return
	}
	for i, b := range v.Backends {
		if b.Timeouts.Create > v.Audit.Grace {
			v.Warnf("audit.grace", "%s is shorter than the %s that backend %s may take to create a volume (%s); with delete: true give it at least that", v.Audit.Grace, b.Timeouts.Create, b.Name, document.Element("backends", i)+".timeouts.create")
			return
		}
	}
}

// validateCount checks the upper end of a number of volumes or GiB.
func validateCount(d *document.Document, path string, value *int64) {
	if value != nil && d.Has(path) && *value > MaxCount {
		d.Errorf(path, "%d is too large: Cinder counts no further than %d; write a smaller number, or remove the key if there is no limit", *value, MaxCount)
	}
}

// warnContradiction reports a limit of 0 beside one that allows something.
func warnContradiction(d *document.Document, path, what string, a, b named[*int64]) {
	for _, pair := range [][2]named[*int64]{{a, b}, {b, a}} {
		none, other := pair[0], pair[1]
		if at := document.Child(path, other.key); none.value != nil && other.value != nil && *none.value == 0 && *other.value > 0 && d.Has(at) {
			d.Warnf(at, "has no effect, because %s: 0 allows no %s; raise %s, or remove one of the two", none.key, what, none.key)
		}
	}
}

// validateWholeGiB reports a size that no volume can have.
func validateWholeGiB(d *document.Document, path string, size *Size, largest bool) {
	switch {
	case size == nil || !d.Has(path) || size.Bytes < gib || size.Bytes%gib == 0 || roundUpGiB(size.Bytes) > maxGiB:
	case largest:
		d.Warnf(path, "%s is not a whole number of GiB, so the largest volume has %d GiB; write %dGi", size, size.Bytes/gib, size.Bytes/gib)
	default:
		d.Warnf(path, "%s is not a whole number of GiB, so the smallest volume has %d GiB; write %dGi", size, roundUpGiB(size.Bytes), roundUpGiB(size.Bytes))
	}
}

// smallest returns the size of the smallest volume within the limits, in GiB, and
// what demands it.
func (s sizeLimits) smallest() (size int64, demandedBy string) {
	if s.min == nil || s.min.Bytes <= gib {
		return 1, ""
	}
	return roundUpGiB(s.min.Bytes), s.minPath
}

// validateRoom makes sure that the smallest volume fits into every quota.
func (v *validator) validateRoom() {
	noRoom := func(path string, limit *int64, of sizeLimits) {
		size, demandedBy := of.smallest()
		if limit != nil && v.Has(path) && *limit > 0 && *limit < size && size <= maxGiB {
			v.Errorf(path, "no volume fits into %d GiB: the smallest has %d GiB (%s); raise the quota or lower the smallest size", *limit, size, demandedBy)
		}
	}
	for i := range v.Backends {
		path := document.Element("backends", i)
		noRoom(path+".limits.gigabytes", v.Backends[i].Limits.Gigabytes, sizeLimits{}.narrow(v.Backends[i].VolumeSize, path+".volumeSize"))
	}
	for i := range v.Tenants {
		t, path := &v.Tenants[i], document.Element("tenants", i)
		noRoom(path+".quota.gigabytes", t.Quota.Gigabytes, t.size)
		for j := range t.Classes {
			c := &t.Classes[j]
			at := document.Element(path+".classes", j) + ".quota"
			noRoom(at+".gigabytes", c.Quota.Gigabytes, c.size)
			whole := t.Quota.Limits(Usage{})
			for k, limit := range c.Quota.Limits(Usage{}) {
				if limit.Most != nil && whole[k].Most != nil && *limit.Most > *whole[k].Most && *whole[k].Most >= 0 {
					v.Warnf(document.Child(at, limit.Key), "%d is never reached, because the whole tenant has at most %d %s (%s); lower it or remove it", *limit.Most, *whole[k].Most, limit.Unit, path+".quota."+limit.Key)
				}
			}
		}
		v.warnUnlimitedSnapshots(t, path)
	}
}

// warnUnlimitedSnapshots reports a tenant whose volumes are limited and whose snapshots
// are not, although Cinder counts the size of both in one quota of the project.
func (v *validator) warnUnlimitedSnapshots(t *Tenant, path string) {
	unlimited := func(q Quota) bool { return q.Snapshots == nil && q.SnapshotGigabytes == nil }
	limits := func(most *int64) bool { return most != nil && *most > 0 }
	if (limits(t.Quota.Volumes) || limits(t.Quota.Gigabytes)) && unlimited(t.Quota) && slices.ContainsFunc(t.Classes, func(c Class) bool { return unlimited(c.Quota) }) {
		v.Warnf(path+".quota", "limits volumes and not snapshots, whose size Cinder counts in the quota of the project, so snapshots of tenant %s can keep others from volumes; add snapshotGigabytes or snapshots, or snapshots: 0 if it is to have none", t.Name)
	}
}

// warnSuspendedRule reports a rule that has backends, and can use none.
func (v *validator) warnSuspendedRule(path string, c *Class) {
	for _, name := range c.Backends {
		if b, ok := v.Backend(name); !ok || !b.Suspended {
			return
		}
	}
	if len(c.Backends) > 0 {
		v.Warnf(document.Child(path, "backends"), "every backend of the rule is suspended (%s), so its claims are denied as %s; end a suspension, or add another backend", strings.Join(c.Backends, ", "), BackendsSuspended)
	}
}

// warnSamePlace reports backends that differ in nothing but their limits. Those
// with other connectors, workflows or modes have a purpose.
func (v *validator) warnSamePlace() {
	type identity struct{ place, connector string }
	seen := map[identity]int{}
	for i, b := range v.Backends {
		place := v.ProjectOf(b)
		if place == "" {
			continue
		}
		if b.Auth.NoAuth == nil {
			place += " and interface " + orDefault(string(b.Interface))
			if b.Endpoint != "" {
				place += " at " + b.Endpoint
			}
		}
		key := identity{place, fmt.Sprintf("%+v %s %s", b.Connector, b.Workflow, b.Mode)}
		first, ok := seen[key]
		if !ok {
			seen[key] = i
			continue
		}
		if v.Backends[first].Name == b.Name || b.Auth.NoAuth != nil && endpointMistake(b.Auth.NoAuth.Endpoint) != "" {
			continue // which is reported elsewhere
		}
		at := document.Element("backends", first)
		v.Warnf(document.Element("backends", i), "backend %q points to the same place as %q (%s, %s): %s; the limits of each count only its own volumes, so together they allow twice as much, and each lists the volumes of both; use one backend, or give them different connectors or workflows",
			b.Name, v.Backends[first].Name, at, v.LineOf(at), place)
	}
}

// ProjectOf describes the Cinder project that a backend leads to, as far as the policy
// alone shows it; empty if the backend has no auth.
func (p *Policy) ProjectOf(b Backend) string {
	var project string
	switch auth := b.Auth; {
	case auth.NoAuth != nil:
		return fmt.Sprintf("endpoint %s and project %s", strings.TrimRight(auth.NoAuth.Endpoint, "/"), auth.NoAuth.Project)
	case auth.Cloud != "":
		project = "cloud " + auth.Cloud
	case auth.CloudConfig != "":
		project = "cloudConfig " + p.ResolveFile(auth.CloudConfig)
	case auth.Environment:
		project = "environment"
	default:
		return ""
	}
	return project + ", region " + orDefault(b.Region)
}

func orDefault(value string) string {
	if value == "" {
		return "(default)"
	}
	return value
}

// systemNamespace is the namespace of Kubernetes itself.
const systemNamespace = "kube-system"

// warnSystemNamespace reports a tenant that gets kube-system by a pattern or
// selector: it was most likely written for other namespaces.
func (v *validator) warnSystemNamespace() {
	best, tenant := noMatch, -1
	for i := range v.Tenants {
		kind, _ := v.Tenants[i].matcher.match(systemNamespace, labels.Set(NamespaceLabels(systemNamespace, nil)))
		if kind > best {
			best, tenant = kind, i
		}
	}
	if tenant < 0 {
		return
	}
	t, path := &v.Tenants[tenant], document.Element("tenants", tenant)
	switch best {
	case bySelector:
		what := "namespaceSelector {} selects every namespace"
		if len(t.NamespaceSelector.MatchLabels)+len(t.NamespaceSelector.MatchExpressions) > 0 {
			what = "namespaceSelector " + t.matcher.selectorText + " also selects namespaces without labels"
		}
		v.Warnf(path+".namespaceSelector", "%s, so every namespace that no other tenant names belongs to tenant %s, kube-system included; require a label with matchLabels, or list kube-system in the tenant that should have it", what, t.Name)
	case byPattern:
		i := slices.IndexFunc(t.Namespaces, func(entry string) bool { return names.Matches(entry, systemNamespace) })
		v.Warnf(document.Element(path+".namespaces", i), "the pattern %q matches kube-system, too; narrow it, or list kube-system in the tenant that should have it", t.Namespaces[i])
	}
}

// endpointDetails checks the parts of an endpoint that its form leaves open.
func endpointDetails(endpoint, project string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return fmt.Sprintf("the port of the endpoint must be 1 to 65535, not %s", port)
		}
	}
	parts := strings.FieldsFunc(u.Path, func(r rune) bool { return r == '/' })
	version := slices.IndexFunc(parts, func(part string) bool { return part == "v1" || part == "v2" || part == "v3" })
	switch {
	case version < 0:
	case len(parts) > version+2:
		return "the endpoint has extra text after the version and project"
	case len(parts) == version+2 && project != "" && parts[version+1] != project:
		return fmt.Sprintf("the endpoint ends with project %q, but project is %q; keep one of them", parts[version+1], project)
	}
	return ""
}

// fileMistake describes why a path cannot be that of a file; it is empty if it
// can.
func fileMistake(path string) string {
	switch {
	case strings.HasPrefix(path, "~"):
		return "~ is not replaced by a home directory; write the whole path, or one relative to the policy file"
	case strings.Contains(path, "$"):
		return "variables are not replaced in paths; write the whole path, or one relative to the policy file"
	case strings.HasSuffix(path, "/"):
		return "it is a directory; name a file"
	}
	return ""
}
