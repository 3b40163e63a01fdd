package provisioner

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// identity marks the volumes and objects of this program.
type identity struct{ name, cluster, clusterUID, namespace string }

// isMine reports whether this program wrote the object under its present name
// for this cluster.
func (i identity) isMine(pv *corev1.PersistentVolume) bool {
	return objects.IsOurs(pv) && pv.Annotations[objects.AnnotationProvisionedBy] == i.name && pv.Annotations[objects.AnnotationCluster] == i.cluster
}

func (i identity) targetOf(pv *corev1.PersistentVolume, origin objects.Origin) backends.Target {
	target := origin.Target()
	target.Stamp.ClusterUID = i.clusterUID
	target.RecordedAt, target.PVUID = pv.CreationTimestamp.Time, string(pv.UID)
	target.Undecided = pv.Status.Phase == "" || pv.Status.Phase == corev1.VolumePending
	return target
}

// stampOf returns the part of a claim's stamp that identifies its volumes.
func (i identity) stampOf(uid types.UID, tenant string) stamps.Volume {
	return stamps.Volume{Cluster: i.cluster, ClusterUID: i.clusterUID, ClaimUID: string(uid), PV: objects.PVNameFor(string(uid)), Tenant: tenant}
}

// isRebound reports whether a PersistentVolume is bound to a claim other than the one
// that its record names.
func (i identity) isRebound(pv *corev1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return objects.IsOurs(pv) && pv.Annotations[objects.AnnotationProvisionedBy] == i.name &&
		pv.Status.Phase == corev1.VolumeBound && ref != nil && ref.UID != objects.HolderOf(pv)
}

// contradicts reports whether a volume's stamp names a holder other than the claim that
// its PersistentVolume records and is bound to: a rebind was interrupted after the stamp,
// and then the PersistentVolume went back to its earlier claim.
func (i identity) contradicts(pv *corev1.PersistentVolume, v cinder.Volume) bool {
	ref := pv.Spec.ClaimRef
	if !i.isMine(pv) || pv.Annotations[objects.AnnotationVolume] != v.ID || pv.Status.Phase != corev1.VolumeBound || ref == nil {
		return false
	}
	target := stamps.Volume{Cluster: i.cluster, ClaimUID: string(objects.MadeFor(pv)), PV: pv.Name}
	return target.Owns(v) && ref.UID == objects.HolderOf(pv) && stamps.Of(v).Holder() != string(ref.UID)
}

// mayDelete rejects PersistentVolumes whose volume may also belong elsewhere: those from
// another cluster, perhaps restored from a backup, and those that name an unstamped
// volume that another PersistentVolume also names.
func (i identity) mayDelete(pv *corev1.PersistentVolume, origin objects.Origin, cachedPVs corelisters.PersistentVolumeLister) error {
	if !origin.Historic {
		if origin.Cluster != i.cluster {
			return objects.Damaged(pv, objects.AnnotationCluster, fmt.Sprintf("is %q, but this cluster's ID is %q: the volume belongs to the other cluster", origin.Cluster, i.cluster))
		}
		return nil
	}
	all, err := cachedPVs.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, other := range all {
		if other.UID != pv.UID && (other.Annotations[objects.HistoricVolume] == origin.VolumeID || other.Annotations[objects.AnnotationVolume] == origin.VolumeID) {
			return objects.Damaged(pv, objects.HistoricVolume, fmt.Sprintf("names volume %s, and so does PersistentVolume %s", origin.VolumeID, other.Name))
		}
	}
	return nil
}
