package objects

import (
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

type oneSnapshot struct {
	snapshot *snapshotv1.VolumeSnapshot
	content  *snapshotv1.VolumeSnapshotContent
}

func (o oneSnapshot) VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	if o.snapshot == nil || o.snapshot.Namespace != namespace || o.snapshot.Name != name {
		return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshots"), name)
	}
	return o.snapshot, nil
}

func (o oneSnapshot) VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	if o.content == nil || o.content.Name != name {
		return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotcontents"), name)
	}
	return o.content, nil
}

func TestSnapshotSource(t *testing.T) {
	now := metav1.Now()
	block := corev1.PersistentVolumeBlock
	for name, test := range map[string]struct {
		change  func(o *oneSnapshot)
		reason  policy.Reason
		message string
		mode    policy.VolumeMode
		known   bool
		// formats means that an empty filesystem may be made on the restored volume.
		formats bool
	}{
		"ready":             {change: func(*oneSnapshot) {}, mode: policy.Filesystem},
		"of the CSI driver": {change: func(o *oneSnapshot) { o.content.Spec.Driver = wire.DriverName }, mode: policy.Filesystem, formats: true},
		"of the CSI driver, and of a volume that was imported": {change: func(o *oneSnapshot) {
			o.content.Spec.Driver, o.content.Annotations[AnnotationNeverFormat] = wire.DriverName, "true"
		}, mode: policy.Filesystem},
		"its filesystem is recorded": {change: func(o *oneSnapshot) {
			o.content.Annotations[AnnotationFilesystemUUIDs] = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
		}, mode: policy.Filesystem, known: true},
		"of a raw volume":                   {change: func(o *oneSnapshot) { o.content.Spec.SourceVolumeMode = &block }, mode: policy.Block},
		"it does not exist":                 {change: func(o *oneSnapshot) { o.snapshot = nil }, reason: policy.SourceNotFound, message: "does not exist"},
		"in another namespace":              {change: func(o *oneSnapshot) { o.snapshot.Namespace = "team-b" }, reason: policy.SourceNotFound, message: "does not exist"},
		"it is being deleted":               {change: func(o *oneSnapshot) { o.snapshot.DeletionTimestamp = &now }, reason: policy.SourceNotFound, message: "is being deleted"},
		"not bound":                         {change: func(o *oneSnapshot) { o.snapshot.Status = nil }, reason: policy.SourceNotReady, message: "is not ready yet"},
		"not ready":                         {change: func(o *oneSnapshot) { ready := false; o.snapshot.Status.ReadyToUse = &ready }, reason: policy.SourceNotReady, message: "is not ready yet"},
		"its content is gone":               {change: func(o *oneSnapshot) { o.content = nil }, reason: policy.SourceNotReady, message: "which does not exist"},
		"its content is being deleted":      {change: func(o *oneSnapshot) { o.content.DeletionTimestamp = &now }, reason: policy.SourceNotFound, message: "which is being deleted"},
		"its content is another's":          {change: func(o *oneSnapshot) { o.content.Spec.VolumeSnapshotRef.UID = "u2" }, reason: policy.SourceNotOurs, message: "which is another's"},
		"its content is another driver's":   {change: func(o *oneSnapshot) { o.content.Spec.Driver = "other" }, reason: policy.SourceNotOurs, message: "which this program did not make"},
		"an administrator made it":          {change: func(o *oneSnapshot) { o.content.Annotations = nil }, reason: policy.SourceNotOurs, message: "which this program did not make"},
		"its record is damaged":             {change: func(o *oneSnapshot) { delete(o.content.Annotations, AnnotationBackend) }, reason: policy.SourceNotOurs, message: "has an unusable record"},
		"it belongs to another cluster":     {change: func(o *oneSnapshot) { o.content.Annotations[AnnotationCluster] = "x" }, reason: policy.SourceNotOurs, message: `of cluster "x"`},
		"its content names no snapshot yet": {change: func(o *oneSnapshot) { o.content.Status = nil }, reason: policy.SourceNotReady, message: "whose snapshot is not ready"},
	} {
		t.Run(name, func(t *testing.T) {
			content := "snapcontent-u1"
			ready := true
			o := oneSnapshot{
				snapshot: &snapshotv1.VolumeSnapshot{
					ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", UID: "u1"},
					Status:     &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content, ReadyToUse: &ready},
				},
				content: NewSnapshotContent(SnapshotOrigin{
					Content: content, VolumeID: "volume-1", Backend: "gold", Place: cinder.NewPlace("http://cinder:8776/v3", "p1"), Tenant: "a", Cluster: "cluster-1",
					StorageClass: "fast", Namespace: "team-a", Name: "nightly", UID: "u1",
				}, &snapshotv1.VolumeSnapshotClass{Driver: "test"}, nil),
			}
			o.content.Status = SnapshotStatus(cinder.Snapshot{SizeGiB: 3}, "snapshot-1")
			test.change(&o)
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "restored"}}
			source, denial, err := SnapshotSourceOf(claim, &admission.DataSource{Kind: admission.SnapshotKind, Name: "nightly"}, "test", "cluster-1", o)
			if err != nil {
				t.Fatal(err)
			}
			if test.reason != "" {
				if denial == nil || denial.Reason != test.reason || !strings.Contains(denial.Message, test.message) || !strings.HasPrefix(denial.Message, "VolumeSnapshot team-a/nightly, whose content this claim asks for, ") {
					t.Errorf("denial %+v", denial)
				}
				return
			}
			if source != nil && source.NeverFormat == test.formats {
				t.Errorf("what is restored is never formatted: %v", source.NeverFormat)
			}
			want := policy.Source{Name: "VolumeSnapshot team-a/nightly", IsSnapshot: true, Tenant: "a", Backend: "gold", SizeGiB: 3, VolumeMode: test.mode, FilesystemKnown: test.known}
			if o.content.Spec.Driver == wire.DriverName {
				want.Mode = policy.ModeCSI
			}
			if denial != nil || source.Decided != want || source.Content.Snapshot.SnapshotID != "snapshot-1" || !source.Content.Snapshot.Place.IsKnown() {
				t.Errorf("source %+v, denial %+v", source, denial)
			}
		})
	}
}
