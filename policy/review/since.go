package review

import (
	"reflect"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// findingKey is equal for two findings with the same statement about the same subject.
type findingKey struct {
	kind    FindingKind
	subject string
	detail  string
}

func (f Finding) key() findingKey { return findingKey{f.Kind, f.Subject, f.detail} }

// topic returns the subject of a finding, regardless of its statement. An ended finding
// is omitted if there is another one with the same topic.
func (f Finding) topic() findingKey {
	switch f.Kind {
	case PendingDenied, PendingGranted, PendingLeft, StorageClassGone:
		return findingKey{kind: "Pending", subject: f.Subject}
	}
	return findingKey{kind: f.Kind, subject: f.Subject}
}

// Since returns the changes from an earlier review of the same objects: new findings and,
// as Ended, those that only the earlier one has.
func (r Review) Since(earlier Review) Review {
	before, now, topics := map[findingKey]bool{}, map[findingKey]bool{}, map[findingKey]bool{}
	for _, f := range earlier.Findings {
		before[f.key()] = true
	}
	changed := Review{Claims: r.Claims, Volumes: r.Volumes, Findings: []Finding{}}
	for _, f := range r.Findings {
		now[f.key()] = true
		topics[f.topic()] = true
		if !before[f.key()] {
			changed.Findings = append(changed.Findings, f)
		}
	}
	for _, f := range earlier.Findings {
		if !now[f.key()] && !topics[f.topic()] {
			changed.Ended = append(changed.Ended, f)
		}
	}
	return changed
}

// Change reviews a policy and returns the changes from an earlier one. What exists
// differs for the two only in the places of their backends.
func Change(earlier, p *policy.Policy, before, now Existing) Review {
	review := Of(p, now).Since(Of(earlier, before))
	review.Findings = append(review.Findings, changedBackends(earlier, p, now)...)
	sortFindings(review.Findings)
	return review
}

// changedBackends finds the backends whose endpoint or account differs from an earlier
// policy, unless it is known offline whether their volumes are there.
func changedBackends(earlier, p *policy.Policy, existing Existing) []Finding {
	volumes := slices.Clone(existing.Volumes)
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(a.Name, b.Name) })
	var findings []Finding
	for i := range p.Backends {
		b := &p.Backends[i]
		before, ok := earlier.Backend(b.Name)
		if !ok {
			continue
		}
		changed := changedSelection(before, b)
		if len(changed) == 0 {
			continue
		}
		var recorded groups
		for _, v := range volumes {
			// If it can be decided offline, it is BackendElsewhere or nothing.
			decided := v.Place.Endpoint != "" && (existing.Places[b.Name].Endpoint != "" || existing.Places[b.Name].excludes(v.Place))
			if v.Backend != b.Name || v.Retain || decided {
				continue
			}
			where := "which do not record where they are"
			if v.Place.Endpoint != "" {
				where = "recorded at " + v.Place.String()
			}
			recorded.add(where, v.Name)
		}
		path := backendPath(p, b.Name)
		recorded.each(func(where string, names []string) {
			f := grouped(BackendChanged, b.Name, path, names,
				"%s of backend %s changed, so the volumes of %s, %s, may no longer be found; volumes that are not found are not deleted until the backend points there again",
				strings.Join(changed, " and "), b.Name, someVolumes(names), where)
			f.Line, f.File = p.Line(path), p.FileOf(path)
			findings = append(findings, f)
		})
	}
	return findings
}

// changedSelection names the differing keys among those that select a backend's place.
func changedSelection(before, now *policy.Backend) []string {
	var changed []string
	if !reflect.DeepEqual(before.Auth, now.Auth) {
		changed = append(changed, "auth")
	}
	if before.Region != now.Region {
		changed = append(changed, "region")
	}
	if before.Interface != now.Interface {
		changed = append(changed, "interface")
	}
	if before.Endpoint != now.Endpoint {
		changed = append(changed, "endpoint")
	}
	return changed
}
