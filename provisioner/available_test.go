package provisioner

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// static is a PersistentVolume that an administrator made by hand.
func static(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", UID: "uid-by-hand"},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "one", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable},
	}
	if change != nil {
		change(pv)
	}
	return pv
}

// TestClaimThatAnAvailableVolumeSatisfies: whoever sets the provisioner's name on a new
// claim must not take the volume away that Kubernetes binds to it.
func TestClaimThatAnAvailableVolumeSatisfies(t *testing.T) {
	const block, whole = corev1.PersistentVolumeBlock, corev1.ReadWriteMany
	for name, test := range map[string]struct {
		pv     func(*corev1.PersistentVolume)
		claim  func(*corev1.PersistentVolumeClaim)
		admits bool
	}{
		"fits": {},
		"is larger": {pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Ti")
		}},
		"is too small": {pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Mi")
		}, admits: true},
		"has another class":       {pv: func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "two" }, admits: true},
		"has another mode":        {pv: func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = new(block) }, admits: true},
		"has another access mode": {pv: func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{whole} }, admits: true},
		"has other attributes":    {pv: func(pv *corev1.PersistentVolume) { pv.Spec.VolumeAttributesClassName = new("fast") }, admits: true},
		"is available soon":       {pv: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumePending }},
		"is released":             {pv: func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased }, admits: true},
		"is meant for another": {pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "other"}
		}, admits: true},
		"is being deleted":         {pv: func(pv *corev1.PersistentVolume) { pv.DeletionTimestamp = new(metav1.Now()) }, admits: true},
		"fits one that has a node": {claim: func(c *corev1.PersistentVolumeClaim) { c.Annotations["volume.kubernetes.io/selected-node"] = "node-1" }},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.count()
			f.store(static(test.pv))
			claim := f.claim(test.claim)
			if admitted := f.admits(claim); admitted != test.admits {
				t.Fatalf("admitted: %t", admitted)
			}
			report := f.ReportClaims(Selected{Limit: 1})
			if test.admits {
				return
			}
			const want = "PersistentVolume by-hand is available and satisfies the claim, so Kubernetes binds the two"
			if len(report.Pending) != 1 || report.Pending[0].State != "left" || report.Pending[0].Reason != "VolumeAvailable" || report.Pending[0].Message != want {
				t.Errorf("reported as %+v", report.Pending)
			}
			if _, counts := f.ledger.PositionOf(claim.UID); counts || len(f.newEvents()) > 0 {
				t.Error("room is reserved, or an event written")
			}
		})
	}
}

// TestClaimIsProvisionedWhenAnotherGetsTheVolume: one volume cannot satisfy two claims.
func TestClaimIsProvisionedWhenAnotherGetsTheVolume(t *testing.T) {
	for name, after := range map[string]*corev1.PersistentVolume{
		"taken": static(func(pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "other", UID: "other"}
		}),
		"deleted": nil,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.count()
			pv := static(nil)
			f.store(pv)
			claim := f.claim(nil)
			if f.admits(claim) {
				t.Fatal("admitted")
			}
			f.VolumeChanged(pv, pv)
			f.wantRequeued()
			if after != nil {
				f.store(after)
			} else {
				f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Delete(pv))
			}
			f.VolumeChanged(pv, after)
			f.wantRequeued(claim.Name)
			if !f.admits(claim) {
				t.Error("not admitted")
			}
			if report := f.ReportClaims(Selected{Limit: 1}); report.Total != 0 {
				t.Errorf("still reported: %+v", report.Pending)
			}
		})
	}
}

// TestSchedulerPassesOverAvailableVolumes: for a class that waits for a pod, the scheduler
// has looked at them when it selects a node.
func TestSchedulerPassesOverAvailableVolumes(t *testing.T) {
	f := newFixture(t)
	f.count()
	f.store(static(nil))
	waits := storagev1.VolumeBindingWaitForFirstConsumer
	f.class.VolumeBindingMode = &waits
	if !f.admits(f.claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations["volume.kubernetes.io/selected-node"] = "node-1" })) {
		t.Error("not admitted")
	}
}
