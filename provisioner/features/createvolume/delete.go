package createvolume

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// The kinds of failures that backends also have.
const (
	notOurs = string(backends.KindNotOurs)
	inUse   = string(backends.KindInUse)
)

// Delete implements controller.Maker. It deletes the claim that was made for a trusted
// caller, and waits until the hub has removed the volume. It deletes no other volume:
// tenants delete their claims, and the hub then removes the volumes.
func (m *Maker) Delete(ctx context.Context, volume wire.Handle) error {
	found := objects.ByHandle(m.PersistentVolumes, wire.DriverName, volume.String())
	at := volume
	if len(found) == 1 {
		var err error
		if at, err = objects.LocationOf(found[0]); err != nil {
			return failure(controller.Damaged, "%s", err)
		}
	}
	v, exists, err := m.find(ctx, at)
	switch {
	case err != nil:
		return err
	case len(found) == 0 && !exists:
		return nil
	case len(found) == 0 && m.isOfAnotherHandle(v, volume):
		return nil // a swap has given it to another PersistentVolume, so what the handle named is gone
	case len(found) == 0 && (!stamps.IsCSI(v) || stamps.Of(v).Cluster != m.Cluster):
		return failure(notOurs, "volume %s does not carry the stamp of a volume of the driver in this cluster, so it is not deleted", volume)
	case len(found) == 0:
		return failure(notOurs, "no PersistentVolume names volume %s; run an audit to see whether something needs it", volume)
	case len(found) > 1:
		return failure(controller.Damaged, "PersistentVolumes %s and %s name volume %s", found[0].Name, found[1].Name, volume)
	}
	pv := found[0]
	claim, err := m.madeFor(ctx, pv)
	if err != nil {
		return err
	}
	if claim != nil {
		if err := m.unused(pv, v); err != nil {
			return err
		}
		if err := deleteObject(ctx, claim, m.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete); err != nil {
			return err
		}
	}
	ref := pv.Spec.ClaimRef
	_, gone, err := await(ctx, func() (struct{}, bool, error) {
		now, err := m.volumeOf(pv.Name)
		return struct{}{}, err == nil && (now == nil || now.UID != pv.UID), err
	}, func() error {
		if waits, does := m.DeletionWaits(ref.Namespace, ref.Name); does && waits.Reason == "VolumeHasSnapshots" {
			return failure(inUse, "%s", waits.Message)
		}
		return nil
	})
	if err != nil || gone {
		return err
	}
	why := "it is being deleted"
	if waits, does := m.DeletionWaits(ref.Namespace, ref.Name); does && waits.Message != "" {
		why = waits.Message
	}
	return failure(conflict, "volume %s has not been removed yet: %s", volume, why)
}

// isOfAnotherHandle reports whether a PersistentVolume has a volume under another handle.
func (m *Maker) isOfAnotherHandle(v cinder.Volume, volume wire.Handle) bool {
	return slices.ContainsFunc(objects.ByVolumeID(m.PersistentVolumes, v.ID), func(pv *corev1.PersistentVolume) bool {
		return objects.IsCSI(pv) && objects.IsSwapped(pv) && pv.Spec.CSI.VolumeHandle != volume.String() && stamps.Of(v).PV == pv.Name
	})
}

// find reads a volume from Cinder.
func (m *Maker) find(ctx context.Context, volume wire.Handle) (v cinder.Volume, exists bool, err error) {
	volumes, err := m.Volumes(volume.Backend)
	if err != nil {
		return v, false, failure(unavailable, "%s", err)
	}
	return volumes.Find(ctx, volume.ID)
}

// madeFor returns the claim that was made for the caller of a volume. It returns nil if
// the claim is deleted, so that the volume will be removed, too.
func (m *Maker) madeFor(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, error) {
	ref := pv.Spec.ClaimRef
	switch {
	case !m.TrustParameters || ref == nil || pv.Annotations[objects.AnnotationCluster] != m.Cluster:
		return nil, failure(inUse, "PersistentVolume %s names the volume; delete its claim instead, and the reclaim policy applies", pv.Name)
	case pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return nil, failure(inUse, "PersistentVolume %s keeps the volume: its reclaim policy is %s", pv.Name, pv.Spec.PersistentVolumeReclaimPolicy)
	}
	claim, err := m.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && claim.UID != ref.UID:
		return nil, nil
	case err != nil:
		return nil, err
	case !objects.IsForCaller(claim):
		return nil, failure(inUse, "claim %s/%s has the volume, and was not made by the driver; delete the claim", claim.Namespace, claim.Name)
	}
	return claim, nil
}

// unused returns an error if a node has the volume, or is about to get it.
func (m *Maker) unused(pv *corev1.PersistentVolume, v cinder.Volume) error {
	attached, err := m.IsAttached(pv.Name)
	switch {
	case err != nil:
		return err
	case attached:
		return failure(inUse, "a VolumeAttachment names PersistentVolume %s", pv.Name)
	}
	if records := stamps.NodeRecordsOf(v); len(records) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(records)))
		return failure(inUse, "volume %s is attached to node %s", v.ID, records[first].Node)
	}
	switch v.Status {
	case cinder.StatusReserved, cinder.StatusAttaching, cinder.StatusInUse:
		return failure(inUse, "volume %s is %s", v.ID, v.Status)
	}
	return nil
}
