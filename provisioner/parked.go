package provisioner

import (
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Requeue returns objects to the library's queues.
type Requeue struct {
	Claim  func(*corev1.PersistentVolumeClaim)
	Volume func(*corev1.PersistentVolume)
}

// parked holds the objects of one library queue that cannot continue now, until their
// turn comes or one of their triggers fires. It does not poll. The loop uses the library
// queue's keys: UIDs of claims, names of PersistentVolumes.
type parked[T metav1.Object] struct {
	loop     *worker.Loop[string]
	lot      *parking.Lot[T]
	recorder eventrecord.EventRecorder
}

func newParked[T metav1.Object](name string, o Options, limiter *backoff.Limiter[string], requeue func(keys []string)) parked[T] {
	return parked[T]{lot: parking.NewLot[T](), recorder: o.Recorder, loop: worker.New(worker.Options[string]{
		Name: name, Workers: o.Workers, OwnTurns: func(tenant string) int { return o.Policy().ConcurrencyOf(tenant) },
		Board: o.Board, Monitor: o.Monitor, MaxWorkTime: o.MaxWorkTime, Limiter: limiter, Requeue: requeue,
	})}
}

// park parks an object after an attempt. If one of its triggers has fired since the
// attempt began, the object is requeued at once.
func (p *parked[T]) park(turn *turn, object T, reason parking.Reason, triggers []parking.Trigger) {
	p.lot.Park(object, reason)
	turn.Await(triggers...)
}

// parkedClaims writes one event for each reason why a claim waits.
type parkedClaims struct {
	parked[*corev1.PersistentVolumeClaim]
	logger *slog.Logger
}

// newParkedClaims requeues claims in their current version, oldest first.
func newParkedClaims(o Options, limiter *backoff.Limiter[string]) *parkedClaims {
	return &parkedClaims{logger: o.Logger, parked: newParked[*corev1.PersistentVolumeClaim]("claims", o, limiter, func(keys []string) {
		var claims []*corev1.PersistentVolumeClaim
		for _, key := range keys {
			if claim := objects.ClaimByUID(o.IndexedClaims, types.UID(key)); claim != nil {
				claims = append(claims, claim)
			}
		}
		slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int {
			return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		})
		for _, claim := range claims {
			o.Requeue.Claim(claim)
		}
	})}
}

// requeue requeues a claim in its current version.
func (p *parkedClaims) requeue(claim types.UID) { p.loop.Add(string(claim)) }

// reconsider requeues a claim that is denied, or blocked by its backend.
func (p *parkedClaims) reconsider(claim types.UID) {
	if _, parked := p.lot.Take(claim, parking.Denied, parking.Blocked); parked {
		p.requeue(claim)
	}
}

// leave lists a claim that another program serves. It writes no event: the message is
// only for reports.
func (p *parkedClaims) leave(claim *corev1.PersistentVolumeClaim, why policy.Denial) {
	p.lot.IsNews(claim.UID, string(why.Reason), why.Message, true)
	p.lot.Park(claim, parking.Left)
}

// admitted forgets that a claim was denied, blocked or left alone, but not its events.
func (p *parkedClaims) admitted(claim types.UID) {
	p.lot.Take(claim, parking.Denied, parking.Blocked, parking.Left)
}

// Forget drops a claim that needs no more work, and its events. A turn under way ends
// with its work, which may be waiting for Cinder.
func (p *parkedClaims) Forget(claim types.UID) {
	p.lot.Forget(claim)
	p.loop.Forget(string(claim))
}

// report writes an event about a denied claim, if it is news.
func (p *parkedClaims) report(claim *corev1.PersistentVolumeClaim, reason, message string) {
	if p.lot.IsNews(claim.UID, reason, message, isVolatile(reason)) {
		p.recorder.Event(claim, corev1.EventTypeWarning, reason, message)
		p.logger.Info("Denied a claim", "claim", claim.Namespace+"/"+claim.Name, "reason", reason, "message", message)
	}
}

// parkedVolumes does for deletions what parkedClaims does for claims.
type parkedVolumes struct {
	parked[*corev1.PersistentVolume]
}

func newParkedVolumes(o Options, limiter *backoff.Limiter[string]) *parkedVolumes {
	return &parkedVolumes{newParked[*corev1.PersistentVolume]("volumes to delete", o, limiter, func(names []string) {
		for _, name := range names {
			if pv, err := o.PersistentVolumes.Get(name); err == nil {
				o.Requeue.Volume(pv)
			}
		}
	})}
}

// forget drops a PersistentVolume that is gone.
func (p *parkedVolumes) forget(pv *corev1.PersistentVolume) {
	p.lot.Forget(pv.UID)
	p.loop.Forget(pv.Name)
}

// report writes an event about a PersistentVolume, and about its claim if the caller
// passes one, if it is news.
func (p *parkedVolumes) report(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, eventType, reason, message string) {
	if !p.lot.IsNews(pv.UID, reason, message, isVolatile(reason)) {
		return
	}
	p.recorder.Event(pv, eventType, reason, message)
	if claim != nil {
		p.recorder.Event(claim, eventType, reason, message)
	}
}

// isVolatile reports whether messages with this reason change constantly without saying
// anything new: quota numbers change with every claim, and the last error of a backend or
// a rebind with every request.
func isVolatile(reason string) bool {
	return reason == string(policy.QuotaExceeded) || reason == placement.ReasonBackendUnavailable || reason == reasonRebindFailed
}
