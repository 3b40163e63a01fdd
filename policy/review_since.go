package policy

// findingKey tells whether two policies mean the same for a subject.
type findingKey struct {
	kind    FindingKind
	subject string
	detail  string
}

func (f Finding) key() findingKey { return findingKey{f.Kind, f.Subject, f.detail} }

// topic is what a finding is about, whatever it says. An ended finding whose
// topic has another finding needs no mention.
func (f Finding) topic() findingKey {
	switch f.Kind {
	case PendingDenied, PendingGranted, StorageClassGone:
		return findingKey{kind: "Pending", subject: f.Subject}
	}
	return findingKey{kind: f.Kind, subject: f.Subject}
}

// Since returns what changes from an earlier policy to the one of this review:
// the findings that the earlier review of the same objects does not have, and
// as Ended those that only it has.
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
