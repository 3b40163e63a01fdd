package app

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestAttachmentsOfASelectionAreItsOwn: a tenant learns nothing of the volumes of others.
func TestAttachmentsOfASelectionAreItsOwn(t *testing.T) {
	known := func() bool { return true }
	pvs, attachments := cache.NewIndexer(cache.MetaNamespaceKeyFunc, objects.Indexers()), cache.NewStore(cache.MetaNamespaceKeyFunc)
	for namespace, attached := range map[string]bool{"a": true, "b": false} {
		pv := "pvc-" + namespace
		if err := pvs.Add(&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pv},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:               &corev1.ObjectReference{Namespace: namespace, Name: "data"},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/" + pv}},
			},
		}); err != nil {
			t.Fatal(err)
		}
		if err := attachments.Add(&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "csi-" + namespace},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: "node-1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
			Status:     storagev1.VolumeAttachmentStatus{Attached: attached},
		}); err != nil {
			t.Fatal(err)
		}
	}
	of := &term{sidecars: &csiTerm{engine: attach.New(attach.Options{
		Backends: func() []string { return []string{"gold"} }, PersistentVolumes: pvs, Attachments: attach.Cache[storagev1.VolumeAttachment]{Store: attachments, Known: known},
		Nodes:   attach.Cache[corev1.Node]{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), Known: known},
		Reports: attach.Cache[coordinationv1.Lease]{Store: cache.NewStore(cache.MetaNamespaceKeyFunc), Known: known},
	})}}
	for name, c := range map[string]struct {
		selected          provisioner.Selected
		attached, waiting int
	}{
		"everything":        {provisioner.Selected{}, 1, 1},
		"one tenant":        {provisioner.Selected{Namespaces: sets.New("a")}, 1, 0},
		"another namespace": {provisioner.Selected{Namespace: "b"}, 0, 1},
		"another claim":     {provisioner.Selected{Namespace: "b", Claim: "other"}, 0, 0},
	} {
		c.selected.Limit = 10
		report := of.reportAttachments(c.selected)
		if report == nil || report.Attached != c.attached || report.Total != c.waiting {
			t.Errorf("%s: %+v", name, report)
		}
	}
	if report := (&term{}).reportAttachments(provisioner.Selected{}); report != nil {
		t.Errorf("without the CSI driver: %+v", report)
	}
}

// TestFindingsAreForThoseWhoSeeEverything: most belong to no tenant.
func TestFindingsAreForThoseWhoSeeEverything(t *testing.T) {
	u := &auditor{}
	all := provisioner.Selected{Limit: 1}
	if u.result(all) != nil {
		t.Error("there are findings before the first audit")
	}
	u.last.Store(&lastAudit{findings: []audit.Finding{{Kind: audit.OrphanVolume, Volume: "v1", Claim: "a/data"}, {Kind: audit.BackendUnreadable}}})
	if got := u.result(all); got == nil || got.Total != 2 || got.NotShown != 1 || len(got.Findings) != 1 || got.Findings[0].Subject != "volume v1 of claim a/data" {
		t.Errorf("%+v", got)
	}
	if u.result(provisioner.Selected{Namespace: "a"}) != nil || u.result(provisioner.Selected{Namespaces: sets.New("a")}) != nil {
		t.Error("a tenant sees findings")
	}
}
