package snapshot

import (
	"encoding/json"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestCachedVolumeSnapshotsAreBounded: a tenant writes as much as the API server accepts.
func TestCachedVolumeSnapshotsAreBounded(t *testing.T) {
	big := func() *string { text := strings.Repeat("x", 100<<10); return &text }
	kept, err := trimmed(&snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: "s1", UID: "uid", Annotations: map[string]string{"a": *big()}, Labels: map[string]string{"a": *big()},
			Finalizers: []string{*big()}, OwnerReferences: []metav1.OwnerReference{{Name: *big()}}, GenerateName: *big(),
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: big(), VolumeSnapshotContentName: big()},
			VolumeSnapshotClassName: big(),
		},
		Status: &snapshotv1.VolumeSnapshotStatus{Error: &snapshotv1.VolumeSnapshotError{Message: big()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(kept)
	if err != nil || len(document) > 4<<10 {
		t.Errorf("a VolumeSnapshot of %d bytes is kept (%v)", len(document), err)
	}
	if snapshot := kept.(*snapshotv1.VolumeSnapshot); snapshot.Namespace != "team-a" || snapshot.Name != "s1" || snapshot.UID != "uid" {
		t.Errorf("it is %+v", snapshot.ObjectMeta)
	}
}
