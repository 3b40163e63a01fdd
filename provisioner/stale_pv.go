package provisioner

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
)

// A request that saves a PersistentVolume may be delayed, by the network or a paused
// sender, until the claim was deleted and its attempt undone. The object then names a
// volume that is gone. If its reclaim policy is Delete, the library deletes it; otherwise
// it would stay forever, as if a user had kept the volume.

// staleRecord reports whether a PersistentVolume may name a volume that this
// term has undone.
func (f *Followup) staleRecord(pv *corev1.PersistentVolume) (stamp stamps.Volume, stale bool) {
	if !f.isMine(pv) || pv.DeletionTimestamp != nil || pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		return stamps.Volume{}, false
	}
	return f.journal.UndoneOf(pv)
}

// removeStale removes a PersistentVolume whose volume this term has undone, once it is
// certain that the volume and the claim are gone. No pod has ever used it: a volume that
// was in use is never undone.
func (f *Followup) removeStale(ctx context.Context, pv *corev1.PersistentVolume, claim stamps.Volume) (removed bool, err error) {
	origin, err := objects.OriginOf(pv)
	if err != nil {
		return false, err
	}
	volumes, err := f.backends.Recorded(origin.Backend)
	if err != nil {
		return false, err
	}
	_, exists, err := volumes.Find(f.rates.OnBehalfOf(ctx, origin.Tenant), origin.VolumeID)
	if err != nil || exists || origin.Place != volumes.Place() {
		return false, err
	}
	// The stamp of a volume found in a listing does not name the claim; the object does.
	if pv.Spec.ClaimRef != nil {
		claim.Namespace, claim.Claim = pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name
	}
	live, err := objects.ClaimOf(ctx, f.client, claim)
	if err != nil || live != nil && !objects.BoundElsewhere(live) {
		return false, err
	}
	err = f.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("cannot delete PersistentVolume %s, which names a volume that has already been removed: %w", pv.Name, err)
	}
	if err := f.cleaner.RemoveSecret(ctx, pv.Name); err != nil && !removal.IsKept(err) {
		return true, err
	}
	f.logger.Info("Removed a PersistentVolume that was saved after its volume had been removed", "persistentVolume", pv.Name, "claimUID", origin.ClaimUID)
	return true, nil
}
