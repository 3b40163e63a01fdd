package provisioner

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// PendingGroup is the parked claims, or deletions, with one state and reason.
type PendingGroup struct {
	State parking.Reason
	// Reason is the reason of the last event about them; empty if there was none. While
	// they fail, the library may have written that event.
	Reason string
	Count  int
	// Oldest is when the oldest object of the group was created.
	Oldest time.Time
}

// PendingClaims groups the waiting claims, except those that another program serves.
func (r *reports) PendingClaims() []PendingGroup {
	return groups(r.waiting(), func(state parking.Reason, reported string) string {
		if state == parking.Failing {
			// The last event of our own is about an earlier denial.
			return "ProvisioningFailed"
		}
		return reported
	})
}

// PendingDeletions groups the released PersistentVolumes that wait for something.
func (r *reports) PendingDeletions() []PendingGroup {
	return groups([]*parking.Lot[*corev1.PersistentVolume]{r.parkedVolumes.lot}, func(state parking.Reason, reported string) string {
		if state == parking.Failing && reported == "" {
			return "VolumeFailedDelete"
		}
		return reported
	})
}

// waiting returns the lots of claims that wait for something, including imports.
func (r *reports) waiting() []*parking.Lot[*corev1.PersistentVolumeClaim] {
	lots := []*parking.Lot[*corev1.PersistentVolumeClaim]{r.parkedClaims.lot}
	if r.imports.Importer != nil {
		lots = append(lots, r.imports.Parked())
	}
	return lots
}

func groups[T metav1.Object](lots []*parking.Lot[T], reasonOf func(state parking.Reason, reported string) string) []PendingGroup {
	type key struct {
		state  parking.Reason
		reason string
	}
	found := map[key]PendingGroup{}
	add := func(object T, state parking.Reason, reported string) {
		if state == parking.Left {
			return
		}
		at := key{state, reasonOf(state, reported)}
		group, ok := found[at]
		created := object.GetCreationTimestamp().Time
		if !ok || created.Before(group.Oldest) {
			group.Oldest = created
		}
		group.State, group.Reason = at.state, at.reason
		group.Count++
		found[at] = group
	}
	for _, lot := range lots {
		lot.Each(add)
	}
	all := make([]PendingGroup, 0, len(found))
	for _, group := range found {
		all = append(all, group)
	}
	slices.SortFunc(all, func(a, b PendingGroup) int {
		return cmp.Or(cmp.Compare(a.State, b.State), cmp.Compare(a.Reason, b.Reason))
	})
	return all
}

// Turns counts one kind of work: how much is under way, and how much waits for a worker.
type Turns struct {
	Work          string
	Held, Waiting int
}

// Turns counts the work of the term.
func (r *reports) Turns() []Turns {
	count := func(work string, turns interface{ Count() (held, waiting int) }) Turns {
		held, waiting := turns.Count()
		return Turns{work, held, waiting}
	}
	return []Turns{count("claims", r.parkedClaims.loop.Turns), count("deletions", r.parkedVolumes.loop.Turns), count("followup", r.tasks.loop.Turns)}
}

// QuotaUse is what counts against the limits of one scope of the policy.
type QuotaUse struct {
	Scope policy.QuotaScope
	Used  policy.Usage
}

// Quotas returns every scope of the policy in force, with what counts against it:
// the volumes of PersistentVolumes, those that listings showed, and reservations.
func (r *reports) Quotas() []QuotaUse {
	var all []QuotaUse
	for _, scope := range r.policy().Scopes() {
		all = append(all, QuotaUse{scope, r.ledger.Usage(scope.Kind, scope.Name)})
	}
	return all
}
