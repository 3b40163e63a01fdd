package provisioner

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// ShouldDelete keeps the library from starting deletions while handing over,
// while the backend does not answer, and while others have their turn.
func (p *Provisioner) ShouldDelete(_ context.Context, pv *corev1.PersistentVolume) bool {
	if p.stopping() {
		return false
	}
	news := p.news()
	released := pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	origin, err := originOf(pv)
	if !released || err != nil || p.isRemoved(pv.UID) {
		// The library sees that too, or Delete says what is wrong.
		return true
	}
	if unhealthy := p.health(origin.Backend); unhealthy != nil {
		p.volumeTurns.End(pv.Name)
		p.holdVolumeBack(pv, unhealthy, news)
		return false
	}
	return p.volumeTurns.Take(pv.Name, origin.Tenant, origin.Backend)
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
	if p.isRemoved(pv.UID) {
		return nil
	}
	started, news := time.Now(), p.news()
	origin, err := originOf(pv)
	if err == nil {
		err = p.mayDelete(pv, origin)
	}
	if err == nil {
		if !p.volumeTurns.Begin(pv.Name, origin.Tenant, origin.Backend) {
			return &controller.IgnoredError{Reason: "others have their turn"}
		}
		defer p.volumeTurns.End(pv.Name)
		err = p.remove(p.onBehalfOf(ctx, origin.Tenant), pv, &origin)
	}
	switch {
	case err == nil:
		p.noteRemoved(pv.UID, true)
		p.failingVolumes.take(pv.UID)
		p.limiter.Succeeded(pv.Name)
		p.Metrics.deleted(origin.Backend, origin.Protocol, "success", time.Since(started))
		return nil
	case p.stopping():
		return handingOver()
	}
	if unhealthy := p.health(origin.Backend); unhealthy != nil {
		p.Metrics.deleted(origin.Backend, origin.Protocol, "held_back", time.Since(started))
		p.holdVolumeBack(pv, unhealthy, news)
		return &controller.IgnoredError{Reason: unhealthy.Error()}
	}
	retry := retryFor(err)
	p.limiter.Failed(pv.Name, retry)
	p.failingVolumes.add(pv, 0)
	if p.news().failed != news.failed {
		p.requeueVolumes([]*corev1.PersistentVolume{pv})
	}
	p.Metrics.deleted(origin.Backend, origin.Protocol, retry.outcome, time.Since(started))
	return err
}

// mayDelete refuses objects whose volume somebody else may use: one that came
// here from another cluster, by a backup perhaps, and one without a stamp that a
// second object names.
func (p *Provisioner) mayDelete(pv *corev1.PersistentVolume, origin Origin) error {
	if !origin.Historic {
		if origin.Cluster != p.Cluster {
			return damaged(pv, annotationCluster, fmt.Sprintf("is %q, but this cluster's id is %q: the volume is the other cluster's", origin.Cluster, p.Cluster))
		}
		return nil
	}
	all, err := p.PersistentVolumes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.UID != pv.UID && (other.Annotations[historicAnnotationVolume] == origin.VolumeID || other.Annotations[annotationVolume] == origin.VolumeID) {
			return damaged(pv, historicAnnotationVolume, fmt.Sprintf("names volume %s, and so does PersistentVolume %s", origin.VolumeID, other.Name))
		}
	}
	return nil
}

func (p *Provisioner) remove(ctx context.Context, pv *corev1.PersistentVolume, origin *Origin) error {
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
	target := origin.target()
	target.Found = func(ctx context.Context, at backends.Place) error { return p.recordPlace(ctx, pv.Name, at) }
	if err := volumes.Remove(ctx, target); err != nil {
		return withRemedy(err, *origin)
	}
	// Only now: while the volume exists a node may still need the credentials
	// to log out, and the PersistentVolume must not refer to nothing.
	if origin.sharesSecret() {
		return p.leaveSharedSecret(ctx, pv.UID, *origin)
	}
	return p.deleteSecret(ctx, *origin)
}

func (p *Provisioner) isRemoved(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.removed[uid]
}

func (p *Provisioner) noteRemoved(uid types.UID, removed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if removed {
		p.removed[uid] = true
		return
	}
	delete(p.removed, uid)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outlived[of.UID] = true
}

func (p *Provisioner) hasOutlived(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.outlived[uid]
}

// volumeGone forgets a PersistentVolume.
func (p *Provisioner) volumeGone(pv *corev1.PersistentVolume) {
	p.noteOutlived(pv.Spec.ClaimRef)
	p.noteRemoved(pv.UID, false)
	p.shared.volumeGone(pv.UID)
	p.failingVolumes.take(pv.UID)
	p.heldBack.take(pv.UID)
	p.toldHeldBack.take(pv.UID)
	p.limiter.Gone(pv.Name)
	p.volumeTurns.End(pv.Name)
}
