package provisioner

import (
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
)

// Requeue queues objects with the library again.
type Requeue struct {
	Claim  func(*corev1.PersistentVolumeClaim)
	Volume func(*corev1.PersistentVolume)
}

// parked keeps the claims and deletions that cannot continue now, and brings
// them back when something happens that could help them. It does not poll, and
// writes one event about why each waits.
type parked struct {
	claims  *parking.Lot[*corev1.PersistentVolumeClaim]
	volumes *parking.Lot[*corev1.PersistentVolume]
	helped  *parking.History

	claimLister  corelisters.PersistentVolumeClaimLister
	volumeLister corelisters.PersistentVolumeLister
	requeue      Requeue
	recorder     eventrecord.EventRecorder
	metrics      *Metrics
	logger       *slog.Logger
}

func newParked(options Options) *parked {
	return &parked{
		claims: parking.NewLot[*corev1.PersistentVolumeClaim](), volumes: parking.NewLot[*corev1.PersistentVolume](), helped: parking.NewHistory(),
		claimLister: options.Claims, volumeLister: options.PersistentVolumes, requeue: options.Requeue,
		recorder: options.Recorder, metrics: options.Metrics, logger: options.Logger,
	}
}

// now returns the moment to pass to parkClaim or parkVolume. Taken before a
// decision, it makes sure that no help before the parking is missed.
func (p *parked) now() parking.Moment { return p.helped.Now() }

// help brings back what the helps may help, the oldest claims first.
func (p *parked) help(helps []parking.Help) {
	p.helped.Note(helps)
	p.requeueClaims(p.claims.HelpedBy(helps))
	p.requeueVolumes(p.volumes.HelpedBy(helps))
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

// hasTurn ends what awaitTurn began.
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

// parkClaim parks a claim after a decision that began at the moment since. If
// anything has happened since then that may help the claim, it comes back at
// once.
func (p *parked) parkClaim(claim *corev1.PersistentVolumeClaim, why parking.Why, helps []parking.Help, since parking.Moment) {
	p.claims.Park(claim, why, helps)
	p.countDenied()
	if p.helped.Since(since, helps) {
		p.claims.Take(claim.UID, parking.Failing)
		p.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
	}
}

// parkVolume does the same for a deletion.
func (p *parked) parkVolume(pv *corev1.PersistentVolume, why parking.Why, helps []parking.Help, since parking.Moment) {
	p.volumes.Park(pv, why, helps)
	if p.helped.Since(since, helps) {
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

// admitted forgets that a claim was denied, but not the events about it.
func (p *parked) admitted(claim types.UID) {
	p.claims.Take(claim, parking.Denied)
	p.countDenied()
}

// claimGone forgets a claim and the events about it.
func (p *parked) claimGone(claim types.UID) {
	p.claims.Forget(claim)
	p.countDenied()
}

func (p *parked) countDenied() { p.metrics.deniedClaims(p.claims.Count(parking.Denied)) }

// reportDenial writes an event about a denied claim, if it is news.
func (p *parked) reportDenial(claim *corev1.PersistentVolumeClaim, reason, message string) {
	if p.claims.IsNews(claim.UID, reason, message, isPassing(reason)) {
		p.recorder.Event(claim, corev1.EventTypeWarning, reason, message)
		p.logger.Info("Denied a claim", "claim", claim.Namespace+"/"+claim.Name, "reason", reason, "message", message)
	}
}

// reportOnPV writes an event about a PersistentVolume, and about its claim if
// the caller passes one, if it is news.
func (p *parked) reportOnPV(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, eventType, reason, message string) {
	if !p.volumes.IsNews(pv.UID, reason, message, isPassing(reason)) {
		return
	}
	p.recorder.Event(pv, eventType, reason, message)
	if claim != nil {
		p.recorder.Event(claim, eventType, reason, message)
	}
}

// isPassing reports whether the messages of an event's reason change all the
// time without being news: the numbers of a quota change with every claim, and a
// backend's last error with every request.
func isPassing(reason string) bool {
	return reason == string(policy.QuotaExceeded) || reason == reasonBackendUnavailable
}
