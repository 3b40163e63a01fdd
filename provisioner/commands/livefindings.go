package commands

import (
	"fmt"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
)

// warning and mistake return one finding.
func warning(path, format string, arguments ...any) []policycli.Finding {
	return []policycli.Finding{{Path: path, Warning: true, Message: fmt.Sprintf(format, arguments...)}}
}

func mistake(path, format string, arguments ...any) []policycli.Finding {
	return []policycli.Finding{{Path: path, Message: fmt.Sprintf(format, arguments...)}}
}

// ruleFindings compares what the rules name with what their backends offer. The choices
// made by StorageClasses are not known here.
func (r *liveRun) ruleFindings() []policycli.Finding {
	findings := r.zoneFindings()
	for i := range r.policy.Tenants {
		for _, class := range r.policy.Tenants[i].Classes {
			for _, b := range r.usableBackends(class) {
				findings = append(findings, b.lacksType(class)...)
				findings = append(findings, b.lacksGrantedTypes(class)...)
				findings = append(findings, b.lacksZone(class)...)
			}
		}
	}
	return findings
}

// zoneFindings compares the zones that backends map to nodes with those of Cinder. A
// rule that fixes one of them gets no finding of its own.
func (r *liveRun) zoneFindings() []policycli.Finding {
	var findings []policycli.Finding
	for _, b := range r.backends {
		if b.client == nil || b.Suspended {
			continue
		}
		for i, zone := range b.Zones {
			findings = append(findings, b.zoneFinding(fmt.Sprintf("%s.zones[%d].name", b.path, i), zone.Name)...)
		}
	}
	return findings
}

// usableBackends returns the backends of a rule that answered and get new volumes.
func (r *liveRun) usableBackends(class policy.Class) []*liveBackend {
	var usable []*liveBackend
	for _, name := range class.Backends {
		// A rule may name a backend twice, which is only a warning.
		if b := r.backend(name); b.client != nil && !b.Suspended && !slices.Contains(usable, b) {
			usable = append(usable, b)
		}
	}
	return usable
}

func (b *liveBackend) lacksType(class policy.Class) []policycli.Finding {
	switch {
	case class.VolumeType == "" && b.noDefault:
		return warning(class.Path(), "backend %s has no default volume type, and the rule names none; claims whose StorageClass names none either may fail", b.Name)
	case class.VolumeType == "" || b.types == nil:
		return nil
	}
	return b.typeFinding(policy.FieldPath(class.Path(), "volumeType"), class.VolumeType)
}

// lacksGrantedTypes returns the findings about the types that a VolumeAttributesClass may
// give the volumes of a rule in mode csi.
func (b *liveBackend) lacksGrantedTypes(class policy.Class) []policycli.Finding {
	if class.ModeOn(*b.Backend) != policy.ModeCSI || b.types == nil {
		return nil
	}
	var findings []policycli.Finding
	for i, name := range class.VolumeTypes {
		findings = append(findings, b.typeFinding(fmt.Sprintf("%s[%d]", policy.FieldPath(class.Path(), "volumeTypes"), i), name)...)
	}
	return findings
}

func (b *liveBackend) typeFinding(path, name string) []policycli.Finding {
	return b.lacks("volume type", path, name, b.answer.VolumeTypes, slices.ContainsFunc(b.types, func(t cinder.VolumeType) bool {
		return t.ID == name || t.Name == name
	}))
}

func (b *liveBackend) lacksZone(class policy.Class) []policycli.Finding {
	if len(b.Zones) > 0 {
		return nil
	}
	return b.zoneFinding(policy.FieldPath(class.Path(), "availabilityZone"), class.AvailabilityZone)
}

func (b *liveBackend) zoneFinding(path, name string) []policycli.Finding {
	if name == "" || b.zones == nil {
		return nil
	}
	at := slices.IndexFunc(b.zones, func(z cinder.Zone) bool { return z.Name == name })
	if at >= 0 && !b.zones[at].Available {
		return warning(path, "backend %s says that availability zone %q is not available now", b.Name, name)
	}
	return b.lacks("availability zone", path, name, b.answer.Zones, at >= 0)
}

// maxNamed is how many names a message lists.
const maxNamed = 10

// lacks returns the finding about a name that Cinder does not list. Databases may
// compare names without regard to case, so a name that differs only in case is just a
// warning.
func (b *liveBackend) lacks(what, path, name string, offered []string, listed bool) []policycli.Finding {
	if listed {
		return nil
	}
	for _, other := range offered {
		if strings.EqualFold(other, name) {
			return warning(path, "backend %s lists the %s as %q, not %q; write it in the same way", b.Name, what, other, name)
		}
	}
	has := "it lists none for the project"
	if len(offered) > 0 {
		has = "it has " + strings.Join(offered[:min(len(offered), maxNamed)], ", ")
		if more := len(offered) - maxNamed; more > 0 {
			has += fmt.Sprintf(" and %d more", more)
		}
	}
	return mistake(path, "backend %s has no %s %q; %s", b.Name, what, name, has)
}

// quotaFindings compares the quotas of the policy with Cinder's own. It leaves out a
// scope if the quota of one of its backends is not known.
func (r *liveRun) quotaFindings() []policycli.Finding {
	var findings []policycli.Finding
	for _, b := range r.backends {
		if b.hasQuota && !b.Suspended && (isFull(b.quota.MaxVolumes, b.quota.Volumes) || isFull(b.quota.MaxGigabytes, b.quota.Gigabytes)) {
			findings = append(findings, warning(b.path, "backend %s: Cinder's quota of the project has no room for another volume: %s and %s are used",
				b.Name, b.answer.Quota.Volumes.Describe("volumes"), b.answer.Quota.Gigabytes.Describe("GiB"))...)
		}
	}
	for _, scope := range r.policy.Scopes() {
		names := r.backendsOf(scope)
		for _, limit := range []struct {
			key, unit string
			policy    *int64
			cinder    func(cinder.ProjectQuota) int64
		}{
			{"volumes", "volumes", scope.Limits.Volumes, func(q cinder.ProjectQuota) int64 { return q.MaxVolumes }},
			{"gigabytes", "GiB", scope.Limits.Gigabytes, func(q cinder.ProjectQuota) int64 { return q.MaxGigabytes }},
			{"snapshotGigabytes", "GiB", scope.Limits.SnapshotGigabytes, func(q cinder.ProjectQuota) int64 { return q.MaxGigabytes }},
		} {
			most, known := r.cinderLimit(names, limit.cinder)
			if limit.policy != nil && known && *limit.policy > most {
				findings = append(findings, warning(policy.FieldPath(scope.Path, limit.key), "%s may have %d %s, but Cinder's own quota for %s is %d %s; raise it, or lower this one",
					scope.Subject(), *limit.policy, limit.unit, backendNames(names), most, limit.unit)...)
			}
		}
	}
	return findings
}

func isFull(limit, used int64) bool { return limit >= 0 && used >= limit }

func backendNames(names []string) string {
	if len(names) == 1 {
		return "backend " + names[0]
	}
	return "backends " + strings.Join(names, ", ") + " together"
}

// backendsOf returns the backends whose volumes count against a scope.
func (r *liveRun) backendsOf(scope policy.QuotaScope) []string {
	if scope.Kind == policy.BackendScope {
		return []string{scope.Name}
	}
	var names []string
	for _, tenant := range r.policy.Tenants {
		for _, class := range tenant.Classes {
			if scope.Kind == policy.TenantScope && tenant.Name != scope.Name || scope.Kind == policy.ClassScope && class.Path() != scope.Name {
				continue
			}
			for _, name := range class.Backends {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// cinderLimit returns the sum of Cinder's limits at the places of the backends, which
// may share one. It is unknown if any of the limits is unknown, or if there are none.
func (r *liveRun) cinderLimit(names []string, of func(cinder.ProjectQuota) int64) (most int64, known bool) {
	places := map[cinder.Place]bool{}
	for _, name := range names {
		b := r.backend(name)
		if !b.hasQuota || of(b.quota) < 0 {
			return 0, false
		}
		if place := b.client.Place(); !places[place] {
			places[place] = true
			most += of(b.quota)
		}
	}
	return most, len(places) > 0
}
