package provisioner

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
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

// meantFor makes a PersistentVolume name a claim: by the administrator without the UID, by
// Kubernetes with it.
func meantFor(claim string, uid types.UID) func(*corev1.PersistentVolume) {
	return func(pv *corev1.PersistentVolume) {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: claim, UID: uid}
	}
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
		"is meant for another":    {pv: meantFor("other", ""), admits: true},
		"is meant for it":         {pv: meantFor("data", "")},
		"is meant for it and has another class": {pv: func(pv *corev1.PersistentVolume) {
			meantFor("data", "")(pv)
			pv.Spec.StorageClassName = "two"
		}},
		"is meant for it and is too small": {pv: func(pv *corev1.PersistentVolume) {
			meantFor("data", "")(pv)
			pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Mi")
		}, admits: true},
		"was meant for an earlier claim of the name": {pv: meantFor("data", "uid-earlier"), admits: true},
		"was chosen for it":                          {pv: meantFor("data", "uid-1")},
		"was bound to it, which it does not show yet": {pv: func(pv *corev1.PersistentVolume) {
			meantFor("data", "uid-1")(pv)
			pv.Status.Phase = corev1.VolumeBound
		}},
		"has the class in the older annotation": {pv: func(pv *corev1.PersistentVolume) {
			pv.Spec.StorageClassName, pv.Annotations = "", map[string]string{corev1.BetaStorageClassAnnotation: "one"}
		}},
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
			const want = "PersistentVolume by-hand satisfies the claim, so Kubernetes binds the two"
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

// TestClaimWithASelectorIsDeniedBesideAnAvailableVolume: the cache holds no labels, so it
// cannot show that a selector matches.
func TestClaimWithASelectorIsDeniedBesideAnAvailableVolume(t *testing.T) {
	f := newFixture(t)
	f.count()
	f.store(static(nil))
	trim := objects.NewTrimmer()
	claim := f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
		trim.Claim(c)
	})
	if f.admits(claim) {
		t.Error("admitted")
	}
	if events := f.newEvents(); len(events) != 1 || !strings.Contains(events[0], "selector") {
		t.Errorf("the events %q do not say that the selector is refused", events)
	}
}

// TestClaimIsProvisionedWhenTheVolumeFitsNoLonger: an administrator may change a
// PersistentVolume that nobody has taken.
func TestClaimIsProvisionedWhenTheVolumeFitsNoLonger(t *testing.T) {
	for name, test := range map[string]struct {
		before, after func(*corev1.PersistentVolume)
	}{
		"its class changed": {nil, func(pv *corev1.PersistentVolume) { pv.Spec.StorageClassName = "two" }},
		"it shrank": {nil, func(pv *corev1.PersistentVolume) {
			pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("1Mi")
		}},
		"it is for another now": {meantFor("data", ""), meantFor("other", "")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.count()
			before, after := static(test.before), static(test.after)
			f.store(before)
			claim := f.claim(nil)
			if f.admits(claim) {
				t.Fatal("admitted")
			}
			f.store(after)
			f.VolumeChanged(before, after)
			f.wantRequeued(claim.Name)
			if !f.admits(claim) {
				t.Error("not admitted")
			}
		})
	}
}

// TestVolumeThatIsTakenWakesOnlyThoseThatWaitForIt: a class may have thousands of claims
// that are denied.
func TestVolumeThatIsTakenWakesOnlyThoseThatWaitForIt(t *testing.T) {
	f := newFixture(t)
	f.count()
	if f.admits(f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("1Ti")
	})) {
		t.Fatal("admitted")
	}
	before, after := static(nil), static(meantFor("other", "other"))
	f.store(after)
	f.VolumeChanged(before, after)
	f.wantRequeued()
}

// TestTimeUntilTheVolumeWasTakenIsNotOurs: the program waited for Kubernetes.
func TestTimeUntilTheVolumeWasTakenIsNotOurs(t *testing.T) {
	f := newFixture(t)
	f.count()
	f.store(static(nil))
	claim := f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	})
	if f.admits(claim) {
		t.Fatal("admitted")
	}
	f.store(static(meantFor("other", "other")))
	if !f.admits(claim) {
		t.Fatal("not admitted")
	}
	_, bound := bound(claim)
	f.ClaimChanged(claim, bound)
	if count, took := f.measured("a", "gold"); count != 1 || took > time.Minute {
		t.Errorf("measured %d claims and %s", count, took)
	}
}

// TestVolumeIsUndoneWhenTheClaimGetsAnotherMeanwhile: with the reclaim policy Retain, its
// PersistentVolume would stay, and the tenant's quota hold it.
func TestVolumeIsUndoneWhenTheClaimGetsAnotherMeanwhile(t *testing.T) {
	f, followup, gold := newCountedFixture(t)
	claim := f.claim(nil)
	gold.onCall = func() {
		gold.onCall = nil
		bound := claim.DeepCopy()
		bound.Spec.VolumeName = "by-hand"
		f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(bound))
		f.must(f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, bound.Namespace))
		f.ClaimChanged(claim, bound)
	}
	if pv, err := f.provision(claim); !isIgnored(err) {
		t.Fatalf("got %v, %v", pv, err)
	}
	f.follow(followup)
	wantCalls(t, gold, "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
	if _, counts := f.ledger.PositionOf(claim.UID); counts {
		t.Error("its room is held")
	}
}
