package provisioner

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// countRecorded counts a PersistentVolume, whatever its phase: its volume
// exists until the object is gone.
func (p *Provisioner) countRecorded(pv *corev1.PersistentVolume) {
	uid := types.UID(pv.Annotations[record.AnnotationClaimUID])
	if !p.isMine(pv) || uid == "" {
		return
	}
	const gib = 1 << 30
	bytes := policy.Bytes(pv.Spec.Capacity[corev1.ResourceStorage])
	p.placement.Record(uid, ledger.Holding{
		Tenant:       pv.Annotations[record.AnnotationTenant],
		StorageClass: pv.Spec.StorageClassName,
		GiB:          (bytes + gib - 1) / gib,
		VolumeID:     pv.Annotations[record.AnnotationVolume],
	}, pv.Annotations[record.AnnotationBackend])
}

// isMine reports whether this program wrote the object under its present name
// for this cluster.
func (p *Provisioner) isMine(pv *corev1.PersistentVolume) bool {
	return record.IsOurs(pv) && pv.Annotations[record.AnnotationProvisionedBy] == p.Name && pv.Annotations[record.AnnotationCluster] == p.Cluster
}

// CountByBackend counts the PersistentVolumes of this program, of whatever
// phase, by the backend that their volumes are on.
func CountByBackend(pvs corelisters.PersistentVolumeLister, provisionerName string) (map[string]int, error) {
	all, err := pvs.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, pv := range all {
		if backend := pv.Annotations[record.AnnotationBackend]; backend != "" && pv.Annotations[record.AnnotationProvisionedBy] == provisionerName {
			counts[backend]++
		}
	}
	return counts, nil
}
