package provisioner

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// leaves returns a list to which the claims are added that the hub leaves to an import.
func (f *fixture) leaves() *[]string {
	importer := &fakeImporter{waiting: parking.NewLot[*corev1.PersistentVolumeClaim]()}
	f.Imports(importer)
	return &importer.considered
}

// fakeImporter remembers the claims that are left to it.
type fakeImporter struct {
	Importer
	considered []string
	waiting    *parking.Lot[*corev1.PersistentVolumeClaim]
}

func (f *fakeImporter) Consider(claim *corev1.PersistentVolumeClaim) {
	f.considered = append(f.considered, claim.Name)
}

func (f *fakeImporter) Parked() *parking.Lot[*corev1.PersistentVolumeClaim] { return f.waiting }

func asks(claim *corev1.PersistentVolumeClaim) {
	claim.Annotations[objects.AnnotationImport] = "volume"
}

// TestClaimThatAsksForAnImportGetsNoNewVolume: room may have been reserved before the
// annotation was written, or it may be written between admission and attempt.
func TestClaimThatAsksForAnImportGetsNoNewVolume(t *testing.T) {
	f := newFixture(t)
	left := f.leaves()
	claim := f.claim(nil)
	if !f.admits(claim) {
		t.Fatal("not admitted")
	}
	annotated := claim.DeepCopy()
	asks(annotated)
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(annotated))
	if pv, err := f.provision(claim); pv != nil || err == nil {
		t.Errorf("provisioned %v, %v", pv, err)
	}
	if f.admits(annotated) {
		t.Error("admitted")
	}
	if _, counts := f.ledger.PositionOf(claim.UID); counts || !slices.Equal(*left, []string{"data", "data"}) {
		t.Errorf("room is reserved: %t; left %v", counts, *left)
	}
	if events := f.newEvents(); len(events) > 0 {
		t.Errorf("events %q", events)
	}
}

// TestClaimWhoseVolumeWasBegunKeepsIt: a later annotation changes nothing.
func TestClaimWhoseVolumeWasBegunKeepsIt(t *testing.T) {
	f := newFixture(t)
	left := f.leaves()
	claim := f.claim(nil)
	f.ledger.Found(claim.UID, ledger.Volume{Tenant: "a", StorageClass: f.class.Name, GiB: 2, VolumeID: "new"}, "gold")
	asks(claim)
	if !f.admits(claim) || len(*left) > 0 {
		t.Errorf("left to an import: %v", *left)
	}
}

// TestImportThatWasBegunGoesOnWithoutTheAnnotation: the hub must not make another
// volume, nor undo the import when the claim is deleted.
func TestImportThatWasBegunGoesOnWithoutTheAnnotation(t *testing.T) {
	f := newFixture(t)
	left := f.leaves()
	claim := f.claim(nil)
	f.ledger.Found(claim.UID, ledger.Volume{Tenant: "a", StorageClass: f.class.Name, GiB: 2, VolumeID: "volume", Imported: true}, "gold")
	if f.admits(claim) {
		t.Error("admitted")
	}
	if pv, err := f.provision(claim); pv != nil || err == nil {
		t.Errorf("provisioned %v, %v", pv, err)
	}
	if !slices.Equal(*left, []string{"data", "data"}) {
		t.Errorf("left %v", *left)
	}
	f.forgetClaim(claim)
	f.must(f.claimGone(t.Context(), claim.UID))
	if position, counts := f.ledger.PositionOf(claim.UID); !counts || !position.Imported {
		t.Error("the hub ended the import")
	}
}

// TestImportedClaimIsNotProvisionedBeforeItIsBound: its PersistentVolume does not have
// the name that the library looks for.
func TestImportedClaimIsNotProvisionedBeforeItIsBound(t *testing.T) {
	f := newFixture(t)
	f.leaves()
	claim := f.claim(asks)
	f.followup.VolumeSeen(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "imported-volume", UID: "pv-1", Annotations: map[string]string{
			objects.AnnotationProvisionedBy: "test", objects.AnnotationCluster: f.Cluster, objects.AnnotationVolume: "volume", objects.AnnotationBackend: "gold",
			objects.AnnotationTenant: "a", objects.AnnotationClaimUID: string(claim.UID),
		}},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}},
	})
	if f.admits(claim) {
		t.Error("admitted")
	}
	if pv, err := f.provision(claim); pv != nil || err == nil {
		t.Errorf("provisioned %v, %v", pv, err)
	}
}

// TestClaimsThatWaitForImportsArePending: status and metrics show them like the others.
func TestClaimsThatWaitForImportsArePending(t *testing.T) {
	f := newFixture(t)
	waiting := parking.NewLot[*corev1.PersistentVolumeClaim]()
	f.Imports(&fakeImporter{waiting: waiting})
	claim := f.claim(asks)
	waiting.IsNews(claim.UID, "ImportNotGranted", "the rule grants none", false)
	waiting.Park(claim, parking.Denied)
	groups := f.PendingClaims()
	if len(groups) != 1 || groups[0].Reason != "ImportNotGranted" || groups[0].Count != 1 {
		t.Errorf("%+v", groups)
	}
	if report := f.ReportClaims(Selected{Limit: 10}); len(report.Waiting.Pending) != 1 || report.Waiting.Pending[0].Message != "the rule grants none" {
		t.Errorf("%+v", report.Waiting)
	}
}
