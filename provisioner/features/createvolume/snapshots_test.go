package createvolume

import (
	"context"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// shownSnapshots shows what the API server has, and what the snapshot-controller and
// csi-snapshotter make of it.
type shownSnapshots struct {
	w *world
	// classes are keyed by name.
	classes map[string]*snapshotv1.VolumeSnapshotClass
	// contents are keyed by name; ready means that all objects are ready.
	contents map[string]*snapshotv1.VolumeSnapshotContent
	ready    bool
	// lingers means that the deletion of a VolumeSnapshot removes no content.
	lingers bool
}

func (s *shownSnapshots) VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	found, err := s.w.SnapshotClient.SnapshotV1().VolumeSnapshots(namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err == nil && s.ready {
		ready := true
		found.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &ready}
	}
	return found, err
}

func (s *shownSnapshots) VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	content, has := s.contents[name]
	if has && !s.lingers && content.Spec.VolumeSnapshotRef.Name != "" {
		_, err := s.w.SnapshotClient.SnapshotV1().VolumeSnapshots("team-a").Get(context.Background(), content.Spec.VolumeSnapshotRef.Name, metav1.GetOptions{})
		has = !apierrors.IsNotFound(err)
	}
	if !has {
		return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotcontents"), name)
	}
	return content, nil
}

func (s *shownSnapshots) VolumeSnapshotClass(name string) (*snapshotv1.VolumeSnapshotClass, error) {
	if class, has := s.classes[name]; has {
		return class, nil
	}
	return nil, apierrors.NewNotFound(snapshotv1.Resource("volumesnapshotclasses"), name)
}

func (s *shownSnapshots) ContentsOf(id string) ([]*snapshotv1.VolumeSnapshotContent, error) {
	var found []*snapshotv1.VolumeSnapshotContent
	for _, content := range s.contents {
		if content.Status != nil && content.Status.SnapshotHandle != nil && *content.Status.SnapshotHandle == "gold/"+id {
			found = append(found, content)
		}
	}
	return found, nil
}

// taken returns a content that is ready.
func taken(volume string) *snapshotv1.VolumeSnapshotContent {
	handle, created, size := "gold/s1", time.Unix(1000, 0).UnixNano(), int64(2<<30)
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: objects.SnapshotContentName("")},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &volume},
			VolumeSnapshotRef: corev1.ObjectReference{Namespace: "team-a", Name: objects.NameForCaller("a snapshot")},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, CreationTime: &created, RestoreSize: &size},
	}
}

func newSnapshotWorld(t *testing.T) (*world, *shownSnapshots, wire.Handle) {
	t.Helper()
	w := newWorld(t)
	shown := &shownSnapshots{w: w, contents: map[string]*snapshotv1.VolumeSnapshotContent{}, classes: map[string]*snapshotv1.VolumeSnapshotClass{
		"driver":     {Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete},
		"keeps":      {Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentRetain},
		"theirs":     {Driver: "example.org", DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete},
		"parameters": {Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, Parameters: map[string]string{"volumeSnapshotClass": "driver"}},
	}}
	w.Snapshots = shown
	created, err := w.Create(t.Context(), trusted(nil))
	must(t, err)
	return w, shown, created.Volume
}

// TestSnapshotForATrustedCaller: it is requested only once, by a VolumeSnapshot beside
// the claim of the volume, and only for a volume that was made for such a caller.
func TestSnapshotForATrustedCaller(t *testing.T) {
	by := func(class string) map[string]string { return map[string]string{"volumeSnapshotClass": class} }
	named := objects.NameForCaller("a snapshot")
	for name, test := range map[string]struct {
		parameters map[string]string
		prepare    func(w *world, shown *shownSnapshots, volume *wire.Handle)
		kind, want string
	}{
		"ready": {parameters: by("driver"), prepare: func(_ *world, shown *shownSnapshots, volume *wire.Handle) {
			shown.ready, shown.contents[objects.SnapshotContentName("")] = true, taken(volume.String())
		}},
		"not ready": {parameters: by("driver"), prepare: func(_ *world, shown *shownSnapshots, volume *wire.Handle) {
			content, message := taken(volume.String()), "QuotaExceeded: full"
			content.Status = &snapshotv1.VolumeSnapshotContentStatus{Error: &snapshotv1.VolumeSnapshotError{Message: &message}}
			shown.contents[content.Name] = content
		}, kind: "Conflict", want: "VolumeSnapshot team-a/" + named + " is not ready: QuotaExceeded: full"},
		"nobody works it off": {parameters: by("driver"), kind: "Conflict", want: "VolumeSnapshot team-a/" + named + " is not ready: the snapshot-controller and the csi-snapshotter have not finished it"},
		"no class":            {parameters: by("gone"), kind: "Invalid", want: `VolumeSnapshotClass "gone" does not exist`},
		"another's class":     {parameters: by("theirs"), kind: "Invalid", want: `VolumeSnapshotClass "theirs" is not the driver's`},
		"a class that keeps":  {parameters: by("keeps"), kind: "Invalid", want: `VolumeSnapshotClass "keeps" keeps snapshots, so the driver could not delete them`},
		"a class that would lead to another call": {parameters: by("parameters"), kind: "Invalid", want: `VolumeSnapshotClass "parameters" has parameters, but the driver takes none`},
		"another parameter":                       {parameters: map[string]string{"volumeSnapshotClass": "driver", "namespace": "team-a"}, kind: "Invalid", want: `unknown parameter "namespace"; only volumeSnapshotClass is supported`},
		"no volume":                               {parameters: by("driver"), prepare: func(_ *world, _ *shownSnapshots, volume *wire.Handle) { volume.ID = "v9" }, kind: "NotFound", want: "no PersistentVolume has the handle gold/v9"},
		"a tenant's volume": {parameters: by("driver"), prepare: func(w *world, _ *shownSnapshots, _ *wire.Handle) {
			claims := w.client.CoreV1().PersistentVolumeClaims("team-a")
			claim, _ := claims.Get(context.Background(), objects.NameForCaller("some volume / with any name"), metav1.GetOptions{})
			claim.Annotations[objects.AnnotationVolumeName] = "copied from another claim"
			_, _ = claims.Update(context.Background(), claim, metav1.UpdateOptions{})
		}, kind: "Denied", want: "volume gold/volume-uid-1 was not made for a caller of the driver; to get a snapshot, create a VolumeSnapshot in the namespace of its claim"},
		"the name of another volume's": {parameters: by("driver"), prepare: func(w *world, _ *shownSnapshots, _ *wire.Handle) {
			class, other := "driver", "other"
			_, _ = w.SnapshotClient.SnapshotV1().VolumeSnapshots("team-a").Create(context.Background(), &snapshotv1.VolumeSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: named, Namespace: "team-a", Annotations: map[string]string{objects.AnnotationSnapshotName: "a snapshot"}},
				Spec:       snapshotv1.VolumeSnapshotSpec{VolumeSnapshotClassName: &class, Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &other}},
			}, metav1.CreateOptions{})
		}, kind: "AlreadyExists", want: `the snapshot "a snapshot" was requested of another volume, or with another VolumeSnapshotClass`},
		"a tenant's VolumeSnapshot": {parameters: by("driver"), prepare: func(w *world, _ *shownSnapshots, _ *wire.Handle) {
			_, _ = w.SnapshotClient.SnapshotV1().VolumeSnapshots("team-a").Create(context.Background(), &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: named, Namespace: "team-a"}}, metav1.CreateOptions{})
		}, kind: "AlreadyExists", want: "VolumeSnapshot team-a/" + named + " was not made for a snapshot of that name"},
		"another volume's by now": {parameters: by("driver"), prepare: func(_ *world, shown *shownSnapshots, _ *wire.Handle) {
			shown.contents[objects.SnapshotContentName("")] = taken("gold/v9")
		}, kind: "AlreadyExists", want: "VolumeSnapshot team-a/" + named + " is of another volume"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, shown, volume := newSnapshotWorld(t)
			if test.prepare != nil {
				test.prepare(w, shown, &volume)
			}
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
				defer cancel()
				got, err := w.TakeSnapshot(ctx, volume, "a snapshot", test.parameters)
				if test.kind != "" {
					wantFailure(t, err, test.kind, test.want)
					continue
				}
				must(t, err)
				if got.Handle.String() != "gold/s1" || got.Volume != volume || got.Bytes != 2<<30 || got.Created.Unix() != 1000 || got.NotReady {
					t.Errorf("answered %+v", got)
				}
			}
		})
	}
	w, _, _ := newSnapshotWorld(t)
	if !w.MakesSnapshot(by("driver")) || w.MakesSnapshot(nil) {
		t.Error("a trusted caller is not told from the sidecar")
	}
	w.TrustParameters = false
	if w.MakesSnapshot(by("driver")) {
		t.Error("somebody is trusted")
	}
}

// TestOnlySnapshotsOfTrustedCallersAreRemoved: all others are left to the Engine, such
// as those that the sidecar deletes.
func TestOnlySnapshotsOfTrustedCallersAreRemoved(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(w *world, shown *shownSnapshots)
		removed bool
		kind    string
	}{
		"a trusted caller's":     {removed: true},
		"no callers are trusted": {prepare: func(w *world, _ *shownSnapshots) { w.TrustParameters = false }},
		"a tenant's": {prepare: func(w *world, _ *shownSnapshots) {
			snapshots := w.SnapshotClient.SnapshotV1().VolumeSnapshots("team-a")
			asked, _ := snapshots.Get(context.Background(), objects.NameForCaller("a snapshot"), metav1.GetOptions{})
			asked.Annotations[objects.AnnotationSnapshotName] = "copied from another"
			_, _ = snapshots.Update(context.Background(), asked, metav1.UpdateOptions{})
		}},
		"an imported one": {prepare: func(_ *world, shown *shownSnapshots) {
			content := shown.contents[objects.SnapshotContentName("")]
			content.Status.SnapshotHandle, content.Spec.Driver = nil, wire.DriverName
		}},
		"the sidecar's call": {prepare: func(_ *world, shown *shownSnapshots) {
			shown.contents[objects.SnapshotContentName("")].DeletionTimestamp = &metav1.Time{Time: time.Now()}
		}},
		"it takes longer": {prepare: func(_ *world, shown *shownSnapshots) { shown.lingers = true }, kind: "Conflict"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, shown, volume := newSnapshotWorld(t)
			shown.ready, shown.contents[objects.SnapshotContentName("")] = true, taken(volume.String())
			_, err := w.TakeSnapshot(t.Context(), volume, "a snapshot", map[string]string{"volumeSnapshotClass": "driver"})
			must(t, err)
			if test.prepare != nil {
				test.prepare(w, shown)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
			defer cancel()
			removed, err := w.RemoveSnapshot(ctx, wire.Handle{Backend: "gold", ID: "s1"})
			if test.kind != "" {
				wantFailure(t, err, test.kind, "snapshot gold/s1 has not been removed yet: VolumeSnapshot team-a/"+objects.NameForCaller("a snapshot")+" is being deleted")
			} else if err != nil || removed != test.removed {
				t.Errorf("removed %t (%v)", removed, err)
			}
			_, err = w.SnapshotClient.SnapshotV1().VolumeSnapshots("team-a").Get(t.Context(), objects.NameForCaller("a snapshot"), metav1.GetOptions{})
			if kept := !apierrors.IsNotFound(err); kept == (test.removed || test.kind != "") {
				t.Errorf("the VolumeSnapshot is there: %t", kept)
			}
		})
	}
}

var _ controller.Maker = (*Maker)(nil)
