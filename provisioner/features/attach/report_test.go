package attach

import (
	"fmt"
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// TestReportSaysWhichAttachmentsWait: those under way, those that fail, and volumes that
// nodes have not let go of.
func TestReportSaysWhichAttachmentsWait(t *testing.T) {
	w := lost(t)
	w.reportsStaged(t, "n1", "boot-1", handle(), wire.Handle{Backend: "gold", ID: "gone"}, wire.Handle{Backend: "forged", ID: "x"})
	now := metav1.NewTime(joined)
	for name, change := range map[string]func(*storagev1.VolumeAttachment){
		"attached": func(a *storagev1.VolumeAttachment) { a.Status.Attached = true },
		"waits":    func(*storagev1.VolumeAttachment) {},
		"fails": func(a *storagev1.VolumeAttachment) {
			a.Status.AttachError = &storagev1.VolumeError{Message: "backend gold: no path"}
		},
		"leaves": func(a *storagev1.VolumeAttachment) {
			a.Status.Attached, a.DeletionTimestamp, a.Status.DetachError = true, &now, &storagev1.VolumeError{Message: "backend gold: 503"}
		},
		"another's": func(a *storagev1.VolumeAttachment) { a.Spec.Attacher = "another.example" },
	} {
		must(t, w.attachments.Add(testAttachment(pvName, "node-of-"+name, func(a *storagev1.VolumeAttachment) {
			a.Status.Attached, a.CreationTimestamp = false, now
			change(a)
		})))
	}
	found, known := Report(w.Engine)
	if !known || len(found.Attached) != 1 || found.Attached[0].Name != pvName {
		t.Errorf("attached are %v, known: %t", found.Attached, known)
	}
	var got []string
	for _, waits := range found.Waiting {
		pv := "no PersistentVolume"
		if waits.Volume != nil {
			pv = waits.Volume.Name
		}
		got = append(got, fmt.Sprintf("%s %s %s detaching=%t staged=%t %q since=%t", waits.Backend, waits.Node, pv, waits.Detaching, waits.StillStaged, waits.Failure, waits.Since.Equal(joined)))
	}
	slices.Sort(got)
	want := []string{
		`gold n1 no PersistentVolume detaching=true staged=true "" since=false`,
		"gold n1 " + pvName + ` detaching=true staged=true "" since=false`,
		"gold node-of-fails " + pvName + ` detaching=false staged=false "backend gold: no path" since=true`,
		"gold node-of-leaves " + pvName + ` detaching=true staged=false "backend gold: 503" since=true`,
		"gold node-of-waits " + pvName + ` detaching=false staged=false "" since=true`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	w.Reports.Known = func() bool { return false }
	if _, known := Report(w.Engine); known {
		t.Error("it is known before the caches are filled")
	}
}
