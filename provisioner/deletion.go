package provisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/proof"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
)

// ShouldDelete keeps the library from starting deletions while handing over,
// while the backend does not answer, while a node has the volume in use, and
// while others have their turn.
func (p *Provisioner) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	if p.stopping() {
		return false
	}
	since := p.parked.now()
	origin, err := record.OriginOf(pv)
	if !mayRelease(pv) || err != nil || p.journal.isRemoved(pv.UID) {
		// The library sees that too, or Delete says what is wrong.
		return true
	}
	if unhealthy := p.placement.health(origin.Backend); unhealthy != nil {
		p.volumeTurns.Leave(pv.Name)
		p.holdForBackend(pv, origin.Backend, unhealthy, since)
		return false
	}
	// Whoever is not known here is asked for before the first change.
	if users, err := p.Nodes.Known(nodeuse.VolumeOf(pv)); err == nil && len(users) > 0 {
		p.volumeTurns.Leave(pv.Name)
		p.holdForNodes(pv, users, since)
		return false
	}
	return p.volumeTurns.Take(pv.Name, origin.Tenant, origin.Backend)
}

// mayRelease says whether a PersistentVolume asks for its volume's removal.
func mayRelease(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// Delete removes everything behind a released PersistentVolume. It reads only
// the PersistentVolume: no rule of the current policy takes part.
func (p *Provisioner) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.UID == "" {
		// The library could not save this object and wants its volume gone. An
		// answer that was lost may still mean that the object is saved, so the
		// volume stays: the next attempt adopts it, or finds the object.
		return nil
	}
	if p.journal.isRemoved(pv.UID) {
		return nil
	}
	started, since := time.Now(), p.parked.now()
	origin, err := record.OriginOf(pv)
	if err == nil {
		err = p.mayDelete(pv, origin)
	}
	if err == nil {
		if !p.volumeTurns.Begin(pv.Name, origin.Tenant, origin.Backend) {
			return &controller.IgnoredError{Reason: "no free worker for this tenant or backend"}
		}
		defer p.volumeTurns.End(pv.Name)
		err = p.remove(p.onBehalfOf(ctx, origin.Tenant), pv, &origin)
	}
	outcome := func(outcome string) { p.Metrics.deleted(origin.Backend, origin.Protocol, outcome, time.Since(started)) }
	switch {
	case err == nil:
		p.journal.noteRemoved(pv.UID)
		p.parked.volumes.Forget(pv.UID)
		p.limiter.Succeeded(pv.Name)
		outcome("success")
		return nil
	case p.stopping():
		return handingOver()
	}
	var changed *proof.ChangedError
	var inUse *proof.InUseError
	switch unhealthy := p.placement.health(origin.Backend); {
	case errors.As(err, &changed):
		outcome("stopped")
		p.parked.tellVolume(pv, nil, corev1.EventTypeNormal, "DeletionStopped", changed.Error())
		return &controller.IgnoredError{Reason: changed.Error()}
	case errors.As(err, &inUse) && p.Nodes.Watches():
		outcome("in_use")
		p.holdForNodes(pv, inUse.Nodes, since)
		return &controller.IgnoredError{Reason: inUse.Error()}
	case unhealthy != nil:
		outcome("held_back")
		p.holdForBackend(pv, origin.Backend, unhealthy, since)
		return &controller.IgnoredError{Reason: unhealthy.Error()}
	}
	retry := retry.For(err)
	p.limiter.Failed(pv.Name, retry)
	p.parked.parkVolume(pv, parking.Failing, helpsAt(origin.Backend), since)
	outcome(retry.Outcome)
	return err
}

// holdForBackend parks a deletion until its backend answers again.
func (p *Provisioner) holdForBackend(pv *corev1.PersistentVolume, backend string, unhealthy error, since parking.Moment) {
	p.parked.tellVolume(pv, nil, corev1.EventTypeWarning, reasonBackendUnavailable, unhealthy.Error())
	p.parked.parkVolume(pv, parking.Held, helpsAt(backend), since)
}

// helpsAt are what may help a deletion at a backend.
func helpsAt(backend string) []parking.Help {
	return []parking.Help{{Kind: parking.Policy}, {Kind: parking.Credentials, Name: backend}, {Kind: parking.Backend, Name: backend}}
}

// holdForNodes parks a deletion until the nodes have let the volume go.
func (p *Provisioner) holdForNodes(pv *corev1.PersistentVolume, users []string, since parking.Moment) {
	p.parked.tellVolume(pv, nil, corev1.EventTypeWarning, reasonStillInUse, (&proof.InUseError{PV: pv.Name, Nodes: users}).Error())
	helps := make([]parking.Help, len(users))
	for i, node := range users {
		helps[i] = parking.Help{Kind: parking.Node, Name: node}
	}
	p.parked.parkVolume(pv, parking.Held, helps, since)
}

// mayDelete refuses objects whose volume somebody else may use: one that came
// here from another cluster, by a backup perhaps, and one without a stamp that a
// second object names.
func (p *Provisioner) mayDelete(pv *corev1.PersistentVolume, origin record.Origin) error {
	if !origin.Historic {
		if origin.Cluster != p.Cluster {
			return record.Damaged(pv, record.AnnotationCluster, fmt.Sprintf("is %q, but this cluster's id is %q: the volume is the other cluster's", origin.Cluster, p.Cluster))
		}
		return nil
	}
	all, err := p.PersistentVolumes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.UID != pv.UID && (other.Annotations[record.HistoricVolume] == origin.VolumeID || other.Annotations[record.AnnotationVolume] == origin.VolumeID) {
			return record.Damaged(pv, record.HistoricVolume, fmt.Sprintf("names volume %s, and so does PersistentVolume %s", origin.VolumeID, other.Name))
		}
	}
	return nil
}

func (p *Provisioner) remove(ctx context.Context, pv *corev1.PersistentVolume, origin *record.Origin) error {
	if origin.Historic && origin.Backend == "" {
		backend, err := p.locateHistoric(ctx, origin)
		if err != nil {
			return err
		}
		if err := p.pinHistoric(ctx, pv, origin, backend); err != nil {
			return err
		}
	}
	volumes, err := p.Backends.Volumes(origin.Backend)
	if err != nil {
		return fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
	}
	release := p.releaseOf(pv, origin.VolumeID)
	target := origin.Target()
	target.Permit = release.Permit
	target.Found = func(ctx context.Context, at cinder.Place) error { return p.recordPlace(ctx, pv, at) }
	if err := volumes.Remove(ctx, target); err != nil {
		return record.WithRemedy(err, *origin)
	}
	if !release.IsProven() {
		// There was nothing left to change.
		if err := release.Permit(ctx, cinder.Volume{}); err != nil {
			return err
		}
	}
	p.settleSeconds(volumes, *origin)
	// Only now: while the volume exists a node may still need the credentials
	// to log out, and the PersistentVolume must not refer to nothing.
	return p.secrets.VolumeRemoved(ctx, pv.UID, *origin)
}

// releaseOf begins the proof that a released volume may go.
func (p *Provisioner) releaseOf(pv *corev1.PersistentVolume, volumeID string) *proof.Release {
	return proof.NewRelease(proof.ReleaseOptions{Client: p.Client, PersistentVolumes: p.PersistentVolumes, Nodes: p.Nodes}, pv, volumeID)
}

// noteOutlived remembers a claim that is still in the cache when its
// PersistentVolume is gone: most often the cache is late.
func (p *Provisioner) noteOutlived(of *corev1.ObjectReference) {
	if of == nil {
		return
	}
	claim, err := p.Claims.PersistentVolumeClaims(of.Namespace).Get(of.Name)
	if err != nil || claim.UID != of.UID {
		return
	}
	p.journal.noteOutlived(of.UID)
}

// volumeGone forgets a PersistentVolume, and reports whether this term has
// removed its volume. Else that counts until a listing shows that it is gone.
func (p *Provisioner) volumeGone(pv *corev1.PersistentVolume) (removed bool) {
	p.noteOutlived(pv.Spec.ClaimRef)
	removed = p.journal.objectGone(pv.UID)
	p.secrets.VolumeGone(pv.UID)
	p.Nodes.Forget(pv.UID)
	p.parked.volumes.Forget(pv.UID)
	p.limiter.Gone(pv.Name)
	p.volumeTurns.Leave(pv.Name)
	if ref := pv.Spec.ClaimRef; ref != nil {
		// A claim that was never bound to it goes on by itself.
		if claim, err := p.Claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil && claim.UID == ref.UID && claim.Spec.VolumeName == "" {
			p.parked.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
		}
	}
	if !p.isMine(pv) {
		return removed
	}
	claim := types.UID(pv.Annotations[record.AnnotationClaimUID])
	if removed {
		p.placement.release(claim)
	} else {
		p.placement.Forsake(claim)
	}
	return removed
}

// tellNeverBound says what is to be done about a PersistentVolume that somebody
// deleted before its claim was bound to it. The PersistentVolume controller binds
// no claim to an object that is being deleted, and this program keeps the object
// as long as the claim may still get it.
func (p *Provisioner) tellNeverBound(pv *corev1.PersistentVolume) {
	bound := pv.Status.Phase == corev1.VolumeBound || pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
	ref := pv.Spec.ClaimRef
	if pv.DeletionTimestamp == nil || bound || ref == nil || !p.isMine(pv) {
		return
	}
	claim, err := p.Claims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.UID != ref.UID || claim.Spec.VolumeName != "" {
		return
	}
	message := fmt.Sprintf("PersistentVolume %s was deleted before it was bound, and claim %s/%s cannot be bound to it any more; delete the claim, too: both go, with the volume, and a new claim gets a new one", pv.Name, ref.Namespace, ref.Name)
	p.parked.tellVolume(pv, claim, corev1.EventTypeWarning, reasonDeletedUnbound, message)
}

// reasonDeletedUnbound is the event's reason of tellNeverBound.
const reasonDeletedUnbound = "DeletedBeforeBound"

// reasonStillInUse is the event's reason when a deletion waits for a node.
const reasonStillInUse = "VolumeStillInUse"
