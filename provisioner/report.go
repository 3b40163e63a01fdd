package provisioner

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// reports describes what the term is doing and what is waiting.
type reports struct {
	identity
	parkedClaims  *parkedClaims
	parkedVolumes *parkedVolumes
	tasks         *tasks
	imports       *imports
	journal       *journal.Journal
	ledger        *ledger.Ledger
	policy        func() *policy.Policy
	cachedPVs     corelisters.PersistentVolumeLister
	metrics       *Metrics
}

// Census returns what counts against the quotas.
func (r *reports) Census() ledger.Census { return r.ledger.Census() }

// Selected selects the claims of a report; the zero value selects all.
type Selected struct {
	Namespace, Claim string
	// Namespaces are those of a tenant; nil means all.
	Namespaces sets.Set[string]
	// Limit is the largest number of pending objects to list.
	Limit int
}

// Includes reports whether a claim is selected.
func (s Selected) Includes(namespace, claim string) bool {
	return (s.Namespace == "" || s.Namespace == namespace) && (s.Claim == "" || s.Claim == claim) && (s.Namespaces == nil || s.Namespaces.Has(namespace))
}

// ParkedClaims lists the claims that cannot get a new volume now.
func (r *reports) ParkedClaims() []parking.Parked[*corev1.PersistentVolumeClaim] {
	return r.parkedClaims.lot.List()
}

// ReportClaims takes one snapshot of each owner, so the parts may be moments apart.
func (r *reports) ReportClaims(selected Selected) statusreport.Claims {
	var parked []parking.Parked[*corev1.PersistentVolumeClaim]
	for _, lot := range r.waiting() {
		parked = append(parked, lot.List()...)
	}
	unfinished := r.journal.Unfinished()
	working := r.parkedClaims.loop.Turns.Working()

	pending := make([]statusreport.Pending, 0, len(parked))
	waits := make(map[types.UID]bool, len(parked))
	for _, one := range parked {
		claim := one.Object
		waits[claim.UID] = true
		if selected.Includes(claim.Namespace, claim.Name) {
			entry := statusreport.NewPending(string(one.State), one.Reason, one.Message, one.Since, claim.CreationTimestamp.Time)
			entry.Namespace, entry.Name, entry.StorageClass = claim.Namespace, claim.Name, objects.ClassName(claim)
			entry.Backend = unfinished[claim.UID].Backend
			pending = append(pending, entry)
		}
	}
	return statusreport.Claims{
		InFlight: r.steps(selected, unfinished, working, waits),
		Waiting:  statusreport.NewWaiting(pending, selected.Limit),
	}
}

// ReportDeletions does for released PersistentVolumes what ReportClaims does for
// claims.
func (r *reports) ReportDeletions(selected Selected) statusreport.Deletions {
	var pending []statusreport.Pending
	for _, one := range r.parkedVolumes.lot.List() {
		pv := one.Object
		claim := ptr.Deref(pv.Spec.ClaimRef, corev1.ObjectReference{})
		if selected.Includes(claim.Namespace, claim.Name) {
			entry := statusreport.NewPending(string(one.State), one.Reason, one.Message, one.Since, pv.CreationTimestamp.Time)
			entry.Namespace, entry.Name, entry.StorageClass = claim.Namespace, claim.Name, pv.Spec.StorageClassName
			entry.PersistentVolume, entry.Backend = pv.Name, pv.Annotations[objects.AnnotationBackend]
			pending = append(pending, entry)
		}
	}
	inProgress := 0
	for _, name := range r.parkedVolumes.loop.Turns.Working() {
		// One that has just gone is nobody's.
		claim := corev1.ObjectReference{}
		if pv, err := r.cachedPVs.Get(name); err == nil {
			claim = ptr.Deref(pv.Spec.ClaimRef, corev1.ObjectReference{})
		}
		if selected.Includes(claim.Namespace, claim.Name) {
			inProgress++
		}
	}
	return statusreport.Deletions{InProgress: inProgress, Waiting: statusreport.NewWaiting(pending, selected.Limit)}
}

// steps counts the claims under way. With a selection, it counts only those whose
// namespaces the journal knows.
func (r *reports) steps(selected Selected, unfinished map[types.UID]journal.Beginning, working []string, waits map[types.UID]bool) []statusreport.Step {
	var choosing, connecting, saving stepCount
	for claim, begun := range unfinished {
		switch {
		case !selected.Includes(begun.Stamp.Namespace, begun.Stamp.Claim):
		case begun.HandedOver != nil:
			saving.add(begun.Since)
		case !waits[claim]:
			connecting.add(begun.Since)
		}
	}
	known := []statusreport.Step{connecting.as(statusreport.Connecting), saving.as(statusreport.Saving)}
	if selected.Namespace != "" || selected.Namespaces != nil {
		return known
	}
	for _, claim := range working {
		if _, begun := unfinished[types.UID(claim)]; !begun {
			choosing.count++
		}
	}
	tasks := r.tasks.count()
	return slices.Concat([]statusreport.Step{choosing.as(statusreport.Choosing)}, known, []statusreport.Step{
		{Step: statusreport.Queued, Count: tasks.queued},
		{Step: statusreport.Completing, Count: tasks.completing},
		{Step: statusreport.Undoing, Count: tasks.undoing},
	})
}

type stepCount struct {
	count  int
	oldest time.Time
}

func (s *stepCount) add(since time.Time) {
	s.count++
	if s.oldest.IsZero() || since.Before(s.oldest) {
		s.oldest = since
	}
}

func (s *stepCount) as(name statusreport.StepName) statusreport.Step {
	step := statusreport.Step{Step: name, Count: s.count}
	if !s.oldest.IsZero() {
		step.OldestSeconds = time.Since(s.oldest).Round(time.Millisecond).Seconds()
	}
	return step
}
