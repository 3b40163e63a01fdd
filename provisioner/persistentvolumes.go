package provisioner

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// countRecorded counts the volume of a PersistentVolume in any phase, because the
// volume exists until the object is gone.
func (f *Followup) countRecorded(pv *corev1.PersistentVolume) {
	uid := objects.MadeFor(pv)
	if !f.isMine(pv) || uid == "" {
		return
	}
	f.ledger.Record(uid, ledger.Volume{
		Tenant:       pv.Annotations[objects.AnnotationTenant],
		StorageClass: pv.Spec.StorageClassName,
		GiB:          objects.SizeGiB(pv),
		VolumeID:     pv.Annotations[objects.AnnotationVolume],
		Imported:     pv.Name == objects.ImportedPVName(pv.Annotations[objects.AnnotationVolume]),
		Rebound:      objects.HolderOf(pv) != uid,
	}, pv.Annotations[objects.AnnotationBackend])
}

// noteOutlived remembers a claim that the cache still shows after its PersistentVolume is
// gone, usually because the cache lags.
func (f *Followup) noteOutlived(of *corev1.ObjectReference) {
	if of == nil {
		return
	}
	claim, err := f.cachedClaims.PersistentVolumeClaims(of.Namespace).Get(of.Name)
	if err != nil || claim.UID != of.UID {
		return
	}
	f.journal.NoteOutlived(of.UID)
}

// volumeGone forgets a PersistentVolume, and reports whether this term has removed its
// volume. Otherwise the volume counts until a listing shows that it is gone.
func (f *Followup) volumeGone(pv *corev1.PersistentVolume) (removed bool) {
	f.noteOutlived(pv.Spec.ClaimRef)
	removed = f.journal.ObjectGone(pv.UID)
	f.nodes.Forget(pv.UID)
	f.parkedVolumes.forget(pv)
	if ref := pv.Spec.ClaimRef; ref != nil {
		// A claim that was never bound to it is provisioned again.
		if claim, err := f.cachedClaims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name); err == nil && claim.UID == ref.UID && claim.Spec.VolumeName == "" {
			f.parkedClaims.requeue(claim.UID)
		}
	}
	if !f.isMine(pv) {
		return removed
	}
	claim := objects.MadeFor(pv)
	if removed {
		f.ledger.Release(claim)
	} else {
		f.ledger.PersistentVolumeGone(claim)
	}
	return removed
}

// reportNeverBound reports how to fix a PersistentVolume that a user deleted before its
// claim was bound to it. The PersistentVolume controller binds no claim to an object that
// is being deleted, and this program keeps the object while the claim may still need it.
func (f *Followup) reportNeverBound(pv *corev1.PersistentVolume) {
	bound := pv.Status.Phase == corev1.VolumeBound || pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed
	ref := pv.Spec.ClaimRef
	if pv.DeletionTimestamp == nil || bound || ref == nil || !f.isMine(pv) {
		return
	}
	claim, err := f.cachedClaims.PersistentVolumeClaims(ref.Namespace).Get(ref.Name)
	if err != nil || claim.UID != ref.UID || claim.Spec.VolumeName != "" {
		return
	}
	message := fmt.Sprintf("PersistentVolume %s was deleted before it was bound, so claim %s/%s can no longer be bound to it; delete the claim to remove the PersistentVolume and its volume, then create a new claim", pv.Name, ref.Namespace, ref.Name)
	f.parkedVolumes.report(pv, claim, corev1.EventTypeWarning, reasonDeletedUnbound, message)
}

// reasonDeletedUnbound is the reason of the event that reportNeverBound writes.
const reasonDeletedUnbound = "DeletedBeforeBound"

// VolumeGroup identifies this program's PersistentVolumes with one backend, protocol,
// phase and reclaim policy.
type VolumeGroup struct {
	Backend, Protocol string
	Phase             corev1.PersistentVolumePhase
	ReclaimPolicy     corev1.PersistentVolumeReclaimPolicy
}

// VolumeCount is how many PersistentVolumes a group has.
type VolumeCount struct {
	Count int
	// Since is when the first of them entered the phase; zero if unknown.
	Since time.Time
}

// PersistentVolumeCounts counts this program's PersistentVolumes in the cache.
func (r *reports) PersistentVolumeCounts() (map[VolumeGroup]VolumeCount, error) {
	all, err := r.cachedPVs.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	inForce := r.policy()
	counts := map[VolumeGroup]VolumeCount{}
	for _, pv := range all {
		if !r.isMine(pv) {
			continue
		}
		group := VolumeGroup{
			Backend: pv.Annotations[objects.AnnotationBackend], Protocol: r.metrics.ProtocolLabel(pv.Annotations[objects.AnnotationProtocol]),
			Phase: pv.Status.Phase, ReclaimPolicy: pv.Spec.PersistentVolumeReclaimPolicy,
		}
		if _, known := inForce.Backend(group.Backend); !known {
			group.Backend = otherLabel
		}
		count := counts[group]
		count.Count++
		if since := pv.Status.LastPhaseTransitionTime; since != nil && (count.Since.IsZero() || since.Time.Before(count.Since)) {
			count.Since = since.Time
		}
		counts[group] = count
	}
	return counts, nil
}

// CountByBackend counts this program's PersistentVolumes in any phase by their backend.
func CountByBackend(pvs corelisters.PersistentVolumeLister, provisionerName string) (map[string]int, error) {
	all, err := pvs.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, pv := range all {
		if backend := pv.Annotations[objects.AnnotationBackend]; backend != "" && pv.Annotations[objects.AnnotationProvisionedBy] == provisionerName {
			counts[backend]++
		}
	}
	return counts, nil
}
