package provisioner

import (
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/parking"
)

// Requeue returns objects to the library's queues.
type Requeue struct {
	Claim  func(*corev1.PersistentVolumeClaim)
	Volume func(*corev1.PersistentVolume)
}

// parked holds the claims and deletions that cannot continue now, and brings them back
// when one of their triggers fires. It does not poll. It writes one event for each
// reason why an object waits.
type parked struct {
	claims  *parking.Lot[*corev1.PersistentVolumeClaim]
	volumes *parking.Lot[*corev1.PersistentVolume]
	board   *parking.Board

	claimLister  corelisters.PersistentVolumeClaimLister
	volumeLister corelisters.PersistentVolumeLister
	requeue      Requeue
	recorder     eventrecord.EventRecorder
	logger       *slog.Logger
}

func newParked(options Options) *parked {
	p := &parked{
		claims: parking.NewLot[*corev1.PersistentVolumeClaim](), volumes: parking.NewLot[*corev1.PersistentVolume](), board: options.Board,
		claimLister: options.Claims, volumeLister: options.PersistentVolumes, requeue: options.Requeue,
		recorder: options.Recorder, logger: options.Logger,
	}
	options.Board.Subscribe(p.hear)
	return p
}

// now returns a moment to pass to parkClaim or parkVolume. Take it before
// deciding, so that a trigger that fires before the object is parked is not
// missed.
func (p *parked) now() parking.Moment { return p.board.Now() }

// hear requeues everything that is parked on any of these triggers, oldest claims
// first.
func (p *parked) hear(triggers []parking.Trigger) {
	p.requeueClaims(p.claims.TriggeredBy(triggers))
	p.requeueVolumes(p.volumes.TriggeredBy(triggers))
}

// requeueClaims brings claims back in their current version.
func (p *parked) requeueClaims(claims []*corev1.PersistentVolumeClaim) {
	slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	for _, claim := range claims {
		if current, err := p.claimLister.PersistentVolumeClaims(claim.Namespace).Get(claim.Name); err == nil && current.UID == claim.UID {
			p.requeue.Claim(current)
		}
	}
}

func (p *parked) requeueVolumes(pvs []*corev1.PersistentVolume) {
	for _, pv := range pvs {
		if current, err := p.volumeLister.Get(pv.Name); err == nil && current.UID == pv.UID {
			p.requeue.Volume(current)
		}
	}
}

// awaitTurn parks a claim until inviteClaim.
func (p *parked) awaitTurn(claim *corev1.PersistentVolumeClaim) {
	p.claims.Park(claim, parking.Waiting, nil)
}

// hasTurn ends the wait that awaitTurn began.
func (p *parked) hasTurn(claim types.UID) { p.claims.Take(claim, parking.Waiting) }

// inviteClaim brings back a claim whose turn has come.
func (p *parked) inviteClaim(uid types.UID) {
	if claim, ok := p.claims.Take(uid, parking.Waiting); ok {
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// inviteVolume brings back a PersistentVolume whose turn has come.
func (p *parked) inviteVolume(name string) {
	if pv, err := p.volumeLister.Get(name); err == nil {
		p.requeue.Volume(pv)
	}
}

// parkClaim parks a claim after a decision that began at the moment since. If one
// of its triggers has fired since then, the claim comes back at once.
func (p *parked) parkClaim(claim *corev1.PersistentVolumeClaim, reason parking.Reason, triggers []parking.Trigger, since parking.Moment) {
	p.claims.Park(claim, reason, triggers)
	if p.board.Since(since, triggers) {
		p.claims.Take(claim.UID, parking.Failing)
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// parkVolume does for a deletion what parkClaim does for a claim.
func (p *parked) parkVolume(pv *corev1.PersistentVolume, reason parking.Reason, triggers []parking.Trigger, since parking.Moment) {
	p.volumes.Park(pv, reason, triggers)
	if p.board.Since(since, triggers) {
		p.volumes.Take(pv.UID)
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
}

// reconsider brings back a denied claim.
func (p *parked) reconsider(claim *corev1.PersistentVolumeClaim) {
	if _, isDenied := p.claims.Take(claim.UID, parking.Denied); isDenied {
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// leave lists a claim that another program serves. There is no event: the lot remembers
// the message for reports only.
func (p *parked) leave(claim *corev1.PersistentVolumeClaim, why policy.Denial) {
	p.claims.IsNews(claim.UID, string(why.Reason), why.Message, true)
	p.claims.Park(claim, parking.Left, nil)
}

// admitted forgets that a claim was denied or left alone, but not the events about it.
func (p *parked) admitted(claim types.UID) {
	p.claims.Take(claim, parking.Denied, parking.Left)
}

// claimGone forgets a claim and the events about it.
func (p *parked) claimGone(claim types.UID) {
	p.claims.Forget(claim)
}

// reportDenial writes an event about a denied claim, if it is news.
func (p *parked) reportDenial(claim *corev1.PersistentVolumeClaim, reason, message string) {
	if p.claims.IsNews(claim.UID, reason, message, isVolatile(reason)) {
		p.recorder.Event(claim, corev1.EventTypeWarning, reason, message)
		p.logger.Info("Denied a claim", "claim", claim.Namespace+"/"+claim.Name, "reason", reason, "message", message)
	}
}

// reportOnPV writes an event about a PersistentVolume, and about its claim if
// the caller passes one, if it is news.
func (p *parked) reportOnPV(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, eventType, reason, message string) {
	if !p.volumes.IsNews(pv.UID, reason, message, isVolatile(reason)) {
		return
	}
	p.recorder.Event(pv, eventType, reason, message)
	if claim != nil {
		p.recorder.Event(claim, eventType, reason, message)
	}
}

// isVolatile reports whether messages with this reason change constantly without
// saying anything new: the numbers of a quota change with every claim, and a
// backend's last error, or that of a rebind, with every request.
func isVolatile(reason string) bool {
	return reason == string(policy.QuotaExceeded) || reason == placement.ReasonBackendUnavailable || reason == reasonRebindFailed
}
