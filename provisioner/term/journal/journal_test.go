package journal

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// TestUndoneIsForgottenInTime: the journal remembers for 15 minutes that a claim
// was undone, even if no other claim is undone afterward.
func TestUndoneIsForgottenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := New()
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", Annotations: map[string]string{
			objects.AnnotationClaimUID: "uid-1", objects.AnnotationBackend: "gold",
		}}}
		begun := Beginning{Backend: "gold", Stamp: stamps.Volume{ClaimUID: "uid-1", PV: "pvc-uid-1"}}
		j.NoteUndone("uid-1", begun)
		if stamp, undone := j.UndoneOf(pv); !undone || stamp != begun.Stamp {
			t.Errorf("undone: %t, stamp %+v", undone, stamp)
		}
		time.Sleep(undoneFor)
		if _, undone := j.UndoneOf(pv); undone {
			t.Errorf("a PersistentVolume that is saved %s after an undo names a volume that was undone", undoneFor)
		}
	})
}

// TestHandlesBelongToOneAttempt: while two volumes are being saved, kubelet must not
// come to see them as one.
func TestHandlesBelongToOneAttempt(t *testing.T) {
	j := New()
	j.Begin("uid-1", Beginning{})
	j.Begin("uid-2", Beginning{})
	same := Handle{Driver: "rbd", VolumeHandle: "volume-1"}
	if holder := j.ReserveHandle("uid-1", same); holder != "" {
		t.Errorf("a free handle is held by %s", holder)
	}
	if holder := j.ReserveHandle("uid-2", same); holder != "uid-1" {
		t.Errorf("the handle of uid-1 is held by %q", holder)
	}
	j.Finish("uid-1")
	if holder := j.ReserveHandle("uid-2", same); holder != "" {
		t.Errorf("the handle of a finished attempt is held by %s", holder)
	}
}
