package imports

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const snapshotPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: silver, auth: {cloud: silver}}
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [fast], backends: [silver, gold], import: {names: [old]}}
      - {storageClasses: [new], backends: [gold]}
`

// snapshotProject is a backend's project with snapshots.
type snapshotProject struct{ snapshots []cinder.Snapshot }

func (p snapshotProject) FindSnapshot(_ context.Context, id string) (cinder.Snapshot, bool, error) {
	n := slices.IndexFunc(p.snapshots, func(s cinder.Snapshot) bool { return s.ID == id })
	if n < 0 {
		return cinder.Snapshot{}, false, nil
	}
	return p.snapshots[n], true, nil
}

func (p snapshotProject) Look(_ context.Context, target backends.Target) (cinder.Volume, cinder.Place, error) {
	return cinder.Volume{ID: target.VolumeID}, cinder.Place{}, nil
}

func (p snapshotProject) ImportableSnapshot(s cinder.Snapshot, _ stamps.Snapshot) error {
	if s.Status != cinder.StatusAvailable {
		return errors.New("snapshot " + s.ID + " is " + string(s.Status))
	}
	return nil
}

func snapshotImporter(t *testing.T, project snapshotProject, objects ...runtime.Object) *SnapshotImporter {
	t.Helper()
	p, err := policy.Parse([]byte(snapshotPolicy), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return &SnapshotImporter{
		Client: fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}),
		//nolint:staticcheck // NewClientset needs apply configurations, which this client does not have.
		SnapshotClient: snapshotfake.NewSimpleClientset(objects...), Policy: p, Cluster: "cluster-1", ClusterUID: "uid-1",
		Snapshots: func(backend, _ string) (Snapshots, error) {
			if backend != "gold" {
				return nil, nil
			}
			return project, nil
		},
	}
}

func oldSnapshot() cinder.Snapshot {
	return cinder.Snapshot{ID: "1", Name: "old", VolumeID: "volume-1", SizeGiB: 2, Status: cinder.StatusAvailable}
}

func snapshotWish() SnapshotWish {
	return SnapshotWish{Snapshot: "old", Namespace: "team-a", Name: "nightly", StorageClass: "fast", Driver: "test",
		DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain, VolumeMode: corev1.PersistentVolumeBlock}
}

// TestSnapshotObjects: the command makes, only once, what the running program will
// serve, and refuses what the program would refuse.
func TestSnapshotObjects(t *testing.T) {
	content := func(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
		c := objects.NewImportedSnapshotContent("1", "team-a", "nightly", "test", "fast", snapshotv1.VolumeSnapshotContentRetain, nil)
		c.UID = "c1"
		change(c)
		return c
	}
	same := func(*snapshotv1.VolumeSnapshotContent) {}
	snapshot := func(from string) *snapshotv1.VolumeSnapshot {
		return &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", UID: "u1"},
			Spec: snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &from}}}
	}
	const (
		makeContent  = "create VolumeSnapshotContent imported-1 for snapshot 1 (old, 2 GiB) of backend gold, with the deletionPolicy Retain"
		makeSnapshot = "create VolumeSnapshot team-a/nightly, for which the running program imports the snapshot (tenant a, tenants[0].classes[0])"
	)
	for name, test := range map[string]struct {
		wish    func(*SnapshotWish)
		change  func(*cinder.Snapshot)
		objects []runtime.Object
		steps   []string
		refused string
	}{
		"nothing exists":            {steps: []string{makeContent, makeSnapshot}},
		"by the ID":                 {wish: func(w *SnapshotWish) { w.Snapshot = "1" }, steps: []string{makeContent, makeSnapshot}},
		"the content exists":        {objects: []runtime.Object{content(same)}, steps: []string{makeSnapshot}},
		"the VolumeSnapshot exists": {objects: []runtime.Object{snapshot("imported-1")}, steps: []string{makeContent}},
		"both exist":                {objects: []runtime.Object{content(same), snapshot("imported-1")}},
		"it was imported": {objects: []runtime.Object{content(same), snapshot("imported-1")}, change: func(s *cinder.Snapshot) {
			s.Metadata = stamps.Snapshot{Cluster: "cluster-1", ClusterUID: "uid-1", Namespace: "team-a", Snapshot: "nightly", SnapshotUID: "u1", Content: "imported-1", Tenant: "a"}.Metadata(nil)
		}},
		"no such snapshot":             {wish: func(w *SnapshotWish) { w.Snapshot = "x" }, refused: `the backend has no snapshot with the ID or the name "x" in its project; see standalone-cinder snapshot list`},
		"another snapshot of the name": {wish: func(w *SnapshotWish) { w.Snapshot = "twice" }, refused: `2 snapshots of the backend have the name "twice": 8, 9; give the ID of one`},
		"a rule without import":        {wish: func(w *SnapshotWish) { w.StorageClass = "new" }, refused: `tenant a has kept no snapshot with the ID "1", and tenants[0].classes[1] grants no others that exist at Cinder; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or add import to the rule`},
		"not granted":                  {wish: func(w *SnapshotWish) { w.Snapshot = "8" }, refused: `tenant a has kept no snapshot with the ID "8", and tenants[0].classes[0].import grants none on the backends of the rule; correct spec.source.snapshotHandle of the VolumeSnapshotContent, or the rule`},
		"no namespace":                 {wish: func(w *SnapshotWish) { w.Namespace = "team-x" }, refused: "namespace team-x does not exist, or is being deleted"},
		"not available":                {change: func(s *cinder.Snapshot) { s.Status = cinder.StatusCreating }, refused: "snapshot 1 is creating"},
		"the content is another's": {objects: []runtime.Object{content(func(c *snapshotv1.VolumeSnapshotContent) { c.Spec.VolumeSnapshotRef.Name = "other" })},
			refused: "VolumeSnapshotContent imported-1, of VolumeSnapshot team-a/other, has snapshot 1; delete both, with the deletionPolicy Retain, if nothing needs them"},
		"another content names it": {objects: []runtime.Object{content(func(c *snapshotv1.VolumeSnapshotContent) { c.Name = "by-hand" })},
			refused: "VolumeSnapshotContent by-hand, of VolumeSnapshot team-a/nightly, has snapshot 1; delete both, with the deletionPolicy Retain, if nothing needs them"},
		"the content is for another rule": {objects: []runtime.Object{content(func(c *snapshotv1.VolumeSnapshotContent) { c.Annotations = nil })},
			refused: `VolumeSnapshotContent imported-1 exists for StorageClass "", not for "fast"`},
		"the VolumeSnapshot is another": {objects: []runtime.Object{snapshot("x")}, refused: "VolumeSnapshot team-a/nightly exists, and is not for VolumeSnapshotContent imported-1"},
	} {
		t.Run(name, func(t *testing.T) {
			wish, s := snapshotWish(), oldSnapshot()
			if test.wish != nil {
				test.wish(&wish)
			}
			if test.change != nil {
				test.change(&s)
			}
			all := []cinder.Snapshot{s, {ID: "8", Name: "twice", Status: cinder.StatusAvailable}, {ID: "9", Name: "twice", Status: cinder.StatusAvailable}}
			i := snapshotImporter(t, snapshotProject{all}, test.objects...)
			planned, err := i.PlanObjects(t.Context(), all, wish)
			if test.refused != "" {
				if err == nil || err.Error() != test.refused {
					t.Errorf("error %v, want %s", err, test.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(planned.Steps, test.steps) {
				t.Errorf("steps %q, want %q", planned.Steps, test.steps)
			}
			if err := i.ApplyObjects(t.Context(), planned); err != nil {
				t.Fatal(err)
			}
			made, err := i.SnapshotClient.SnapshotV1().VolumeSnapshotContents().Get(t.Context(), "imported-1", metav1.GetOptions{})
			if err != nil || objects.ImportedHandleOf(made) != "1" || made.Annotations[objects.AnnotationStorageClass] != "fast" || made.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentRetain {
				t.Errorf("content %+v, error %v", made, err)
			}
			wanted, err := i.SnapshotClient.SnapshotV1().VolumeSnapshots("team-a").Get(t.Context(), "nightly", metav1.GetOptions{})
			if err != nil || *wanted.Spec.Source.VolumeSnapshotContentName != "imported-1" {
				t.Errorf("VolumeSnapshot %+v, error %v", wanted, err)
			}
		})
	}
}

// TestListSnapshots: the list says to whom each snapshot belongs, and what prevents its
// import.
func TestListSnapshots(t *testing.T) {
	stamped := func(id, uid, content string) cinder.Snapshot {
		s := oldSnapshot()
		s.ID = id
		s.Metadata = stamps.Snapshot{Cluster: "cluster-1", ClusterUID: "uid-1", Namespace: "team-a", Snapshot: "nightly", SnapshotUID: uid, Content: content, Tenant: "a"}.Metadata(nil)
		return s
	}
	creating := oldSnapshot()
	creating.ID, creating.Status = "2", cinder.StatusCreating
	all := []cinder.Snapshot{oldSnapshot(), creating, stamped("3", "u3", "imported-3"), stamped("4", "u4", "snapcontent-u4"), stamped("5", "u5", "snapcontent-u5"), stamped("6", "u6", "snapcontent-u6")}
	content := func(name, handle string) *snapshotv1.VolumeSnapshotContent {
		c := objects.NewImportedSnapshotContent(handle, "team-a", "nightly", "test", "fast", snapshotv1.VolumeSnapshotContentRetain, nil)
		c.Name = name
		return c
	}
	i := snapshotImporter(t, snapshotProject{all}, content("imported-3", "3"), content("snapcontent-u4", "other"),
		&snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", UID: types.UID("u5")}})
	known, err := ReadSnapshots(t.Context(), i.SnapshotClient)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range i.ListSnapshots("gold", snapshotProject{all}, all, known) {
		got = append(got, strings.Join([]string{l.ID, l.Owner(), l.Why}, "|"))
	}
	want := []string{
		"1|nobody|",
		"2|nobody|snapshot 2 is creating",
		"3|team-a/nightly (imported-3)|VolumeSnapshotContent imported-3 names it",
		"4|team-a/nightly of cluster cluster-1|it is stamped for VolumeSnapshotContent snapcontent-u4, which exists",
		"5|team-a/nightly of cluster cluster-1|it is stamped for VolumeSnapshot team-a/nightly, which exists",
		"6|team-a/nightly of cluster cluster-1|",
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}
