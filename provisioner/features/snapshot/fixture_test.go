package snapshot

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	snapshotlisters "github.com/kubernetes-csi/external-snapshotter/client/v8/listers/volumesnapshot/v1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const (
	driver     = "test"
	testPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    quota: {snapshots: 1}
    classes:
      - {storageClasses: [fast], backends: [gold]}
`
)

func here() cinder.Place { return cinder.NewPlace("http://cinder:8776/v3", "p1") }

// fakeSnapshots fakes the snapshots of one backend.
type fakeSnapshots struct {
	calls []string
	// listings counts how often it was listed again.
	listings int
	listed   []cinder.Snapshot
	// since holds snapshots that only another listing shows.
	since  []cinder.Snapshot
	err    error
	health error
	place  cinder.Place
	// failRemoval is an error that only removals return; failImport one that only imports
	// return.
	failRemoval, failImport error
	// meanwhile is called before a permit is requested.
	meanwhile func()
	// existing are snapshots that can be imported; ofVolume is the volume of all of
	// them.
	existing []*cinder.Snapshot
	ofVolume cinder.Volume
}

func (f *fakeSnapshots) FindSnapshot(_ context.Context, id string) (cinder.Snapshot, bool, error) {
	for _, s := range f.existing {
		if s.ID == id {
			return *s, true, f.err
		}
	}
	return cinder.Snapshot{}, false, f.err
}

func (f *fakeSnapshots) Look(context.Context, backends.Target) (cinder.Volume, cinder.Place, error) {
	return f.ofVolume, f.place, f.err
}

func (f *fakeSnapshots) ImportableSnapshot(s cinder.Snapshot, _ stamps.Snapshot) error {
	if s.Status != cinder.StatusAvailable {
		return &cinder.Error{Backend: "gold", Kind: cinder.KindConflict, Message: "snapshot " + s.ID + " is " + string(s.Status)}
	}
	return nil
}

func (f *fakeSnapshots) ImportSnapshot(ctx context.Context, spec backends.SnapshotImport) (cinder.Snapshot, error) {
	if f.meanwhile != nil {
		f.meanwhile()
	}
	if f.failImport != nil {
		return cinder.Snapshot{}, f.failImport
	}
	s, _, _ := f.FindSnapshot(ctx, spec.SnapshotID)
	if err := spec.Granted(s); err != nil {
		return cinder.Snapshot{}, err
	}
	if err := spec.Permit(ctx); err != nil {
		return cinder.Snapshot{}, err
	}
	f.call("import %s for %s", spec.SnapshotID, spec.Stamp.Content)
	if f.err != nil {
		return cinder.Snapshot{}, f.err
	}
	for _, s := range f.existing {
		if s.ID == spec.SnapshotID {
			s.Metadata = spec.Stamp.Metadata(s.Metadata)
			s.Metadata["standalone-cinder.openstack.org/recorded"] = "true"
			delete(s.Metadata, stamps.KeyMode)
			if spec.CSI {
				s.Metadata[stamps.KeyMode] = stamps.ModeCSI
			}
			return *s, nil
		}
	}
	return cinder.Snapshot{}, nil
}

func (f *fakeSnapshots) call(format string, arguments ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, arguments...))
}

func (f *fakeSnapshots) TakeSnapshot(ctx context.Context, spec backends.SnapshotSpec) (cinder.Snapshot, error) {
	if f.meanwhile != nil {
		f.meanwhile()
	}
	if err := spec.Source.Permit(ctx, cinder.Volume{}); err != nil {
		return cinder.Snapshot{}, err
	}
	f.call("take %s of %s", spec.Name, spec.Source.VolumeID)
	return cinder.Snapshot{ID: "snapshot-1", VolumeID: spec.Source.VolumeID, SizeGiB: 2, CreatedAt: time.Unix(1000, 0), Status: cinder.StatusAvailable}, f.err
}

func (f *fakeSnapshots) MarkSnapshot(_ context.Context, s cinder.Snapshot) error {
	f.call("mark %s", s.ID)
	return f.err
}

func (f *fakeSnapshots) RemoveSnapshot(ctx context.Context, target backends.SnapshotTarget) error {
	if f.meanwhile != nil {
		f.meanwhile()
	}
	if err := target.Permit(ctx); err != nil {
		return err
	}
	f.call("remove %s unrecorded=%t", target.SnapshotID, target.Unrecorded)
	for _, s := range f.existing {
		if s.ID == target.SnapshotID && stamps.IsCSISnapshot(*s) && !target.Stamp.Owns(*s) {
			return &cinder.Error{Backend: "gold", Kind: backends.KindNotOurs, Message: "snapshot " + s.ID + " does not carry the stamp"}
		}
	}
	if _, found, _ := f.FindSnapshot(ctx, target.SnapshotID); !found && target.Place != f.place {
		return &cinder.Error{Backend: "gold", Kind: backends.KindElsewhere, Message: "snapshot " + target.SnapshotID + " was recorded elsewhere", Place: f.place}
	}
	if f.failRemoval != nil {
		return f.failRemoval
	}
	return f.err
}

func (f *fakeSnapshots) AbandonSnapshots(_ context.Context, target backends.SnapshotTarget) (kept []string, err error) {
	f.call("abandon those of %s unrecorded=%t", target.Stamp.SnapshotUID, target.Unrecorded)
	for _, s := range f.listed {
		if target.Unrecorded && target.Stamp.Owns(s) && stamps.WasRecorded(s) {
			kept = append(kept, s.ID)
		}
	}
	return kept, f.err
}

func (f *fakeSnapshots) Snapshots(context.Context) ([]cinder.Snapshot, error) { return f.listed, f.err }
func (f *fakeSnapshots) RelistSnapshots(context.Context) ([]cinder.Snapshot, error) {
	f.listings++
	return slices.Concat(f.listed, f.since), f.err
}
func (f *fakeSnapshots) Health() error       { return f.health }
func (f *fakeSnapshots) Place() cinder.Place { return f.place }

type fakeBackends map[string]fakeBackend

type fakeBackend interface {
	Snapshots
	Existing
	Health() error
}

func (b fakeBackends) of(name string) (fakeBackend, error) {
	if backend, has := b[name]; has {
		return backend, nil
	}
	return nil, fmt.Errorf("backend %q is not in the policy", name)
}
func (b fakeBackends) Snapshots(of Shelf) (Snapshots, error) { return b.of(of.Backend) }
func (b fakeBackends) Existing(of Shelf) (Existing, error)   { return b.of(of.Backend) }
func (b fakeBackends) Groups(name string) (Groups, error) {
	backend, err := b.of(name)
	groups, _ := backend.(Groups)
	return groups, err
}
func (b fakeBackends) Health(name string) error {
	backend, err := b.of(name)
	if err != nil {
		return nil
	}
	return backend.Health()
}
func (b fakeBackends) Names() []string { return slices.Sorted(maps.Keys(b)) }

// bench is a Controller whose caches show what its fake API server has.
type bench struct {
	*testing.T
	*Controller
	client    *snapshotfake.Clientset
	backend   *fakeSnapshots
	recorder  *eventrecord.FakeRecorder
	gone      []string
	snapshots cache.Indexer
	contents  cache.Indexer
	policy    *policy.Policy
}

func newBench(t *testing.T, existing ...runtime.Object) *bench {
	t.Helper()
	p, err := policy.Parse([]byte(testPolicy), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	indexer := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	b := &bench{T: t, backend: &fakeSnapshots{place: here()}, recorder: eventrecord.NewFakeRecorder(100), snapshots: indexer(), contents: indexer(), policy: p}
	claims, volumes, namespaces, classes := indexer(), indexer(), indexer(), indexer()
	if err := volumes.AddIndexers(objects.Indexers()); err != nil {
		t.Fatal(err)
	}
	var core, snapshots []runtime.Object
	for _, object := range existing {
		var err error
		switch object.(type) {
		case *corev1.PersistentVolumeClaim:
			err = claims.Add(object)
		case *corev1.PersistentVolume:
			err = volumes.Add(object)
		case *corev1.Namespace:
			err = namespaces.Add(object)
			core = append(core, object)
		case *snapshotv1.VolumeSnapshotClass:
			err = classes.Add(object)
		default:
			snapshots = append(snapshots, object)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	//nolint:staticcheck // NewClientset needs apply configurations, which this client does not have.
	b.client = snapshotfake.NewSimpleClientset(snapshots...)
	b.Controller = New(Options{
		Caches: &Caches{},
		Name:   driver, Cluster: "cluster-1", ClusterUID: "uid-1", Policy: func() *policy.Policy { return b.policy }, Backends: fakeBackends{"gold": b.backend},
		Ledger: ledger.New(func() *policy.Policy { return b.policy }), Client: fake.NewClientset(core...), Snapshots: b.client,
		Claims: corelisters.NewPersistentVolumeClaimLister(claims), PersistentVolumes: volumes,
		Namespaces: corelisters.NewNamespaceLister(namespaces), Recorder: b.recorder,
		Caller:      func(ctx context.Context, _ string) context.Context { return ctx },
		Definitions: newDefinitions(),
		Board:       parking.NewBoard(),
		Workers:     4, LookAgain: time.Hour, Monitor: liveness.New(), Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	var mu sync.Mutex
	b.Board.Subscribe(func(triggers []parking.Trigger) {
		mu.Lock()
		defer mu.Unlock()
		for _, one := range triggers {
			if one.Kind == parking.Snapshots {
				b.gone = append(b.gone, one.Name)
			}
		}
	})
	b.show(&listers{snapshotlisters.NewVolumeSnapshotLister(b.snapshots), snapshotlisters.NewVolumeSnapshotContentLister(b.contents), snapshotlisters.NewVolumeSnapshotClassLister(classes), nil})
	b.refresh()
	return b
}

// refresh makes the caches current.
func (b *bench) refresh() {
	b.Helper()
	snapshots, err := b.client.SnapshotV1().VolumeSnapshots("").List(b.Context(), metav1.ListOptions{})
	b.must(err)
	contents, err := b.client.SnapshotV1().VolumeSnapshotContents().List(b.Context(), metav1.ListOptions{})
	b.must(err)
	var all []any
	for i := range snapshots.Items {
		all = append(all, &snapshots.Items[i])
	}
	b.must(b.snapshots.Replace(all, ""))
	all = nil
	for i := range contents.Items {
		all = append(all, &contents.Items[i])
	}
	b.must(b.contents.Replace(all, ""))
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// content reads the content of the VolumeSnapshot nightly; nil if there is none.
func (b *bench) content() *snapshotv1.VolumeSnapshotContent {
	b.Helper()
	content, err := b.client.SnapshotV1().VolumeSnapshotContents().Get(b.Context(), "snapcontent-u1", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	b.must(err)
	return content
}

func (b *bench) syncNightly() error {
	b.refresh()
	return b.syncSnapshot(b.Context(), b.loop.Attempt(item{snapshotItem, "team-a", "nightly"}))
}

func (b *bench) syncItsContent() error {
	b.refresh()
	return b.syncContent(b.Context(), b.loop.Attempt(item{contentItem, "", "snapcontent-u1"}))
}

// drain works on everything that is in the queue.
func (b *bench) drain() {
	for b.loop.Queue.Len() > 0 {
		b.loop.Next(b.Context())
	}
}

func (b *bench) events() []string {
	var all []string
	for {
		select {
		case event := <-b.recorder.Events:
			all = append(all, event)
		default:
			return all
		}
	}
}

func (b *bench) wantCalls(want ...string) {
	b.Helper()
	if !slices.Equal(b.backend.calls, want) {
		b.Errorf("requests %q, want %q", b.backend.calls, want)
	}
}

// wantEvents compares the beginnings of the events.
func (b *bench) wantEvents(want ...string) {
	b.Helper()
	got := b.events()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		b.Errorf("events %q, want %q", got, want)
	}
}

func namespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}
}

func claim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "c1"},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-c1"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	if change != nil {
		change(c)
	}
	return c
}

func volume(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-c1", UID: "pv1", Annotations: map[string]string{
			objects.AnnotationProvisionedBy: driver, objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a",
			objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "c1", objects.AnnotationConnector: "{}",
		}},
		Spec: corev1.PersistentVolumeSpec{StorageClassName: "fast", ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "c1"}},
	}
	if change != nil {
		change(pv)
	}
	return pv
}

func class(change func(*snapshotv1.VolumeSnapshotClass)) *snapshotv1.VolumeSnapshotClass {
	c := &snapshotv1.VolumeSnapshotClass{ObjectMeta: metav1.ObjectMeta{Name: "snap"}, Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete}
	if change != nil {
		change(c)
	}
	return c
}

func nightly(change func(*snapshotv1.VolumeSnapshot)) *snapshotv1.VolumeSnapshot {
	claim, class := "data", "snap"
	s := &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "nightly", UID: "u1"},
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim}, VolumeSnapshotClassName: &class},
	}
	if change != nil {
		change(s)
	}
	return s
}

// recorded returns the content of nightly, whose snapshot is ready.
func recorded(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	c := objects.NewSnapshotContent(objects.SnapshotOrigin{
		Content: "snapcontent-u1", VolumeID: "volume-1", Backend: "gold", Place: here(), Tenant: "a", Cluster: "cluster-1", StorageClass: "fast",
		Namespace: "team-a", Name: "nightly", UID: "u1",
	}, class(nil), nil)
	c.UID = "content-1"
	c.Status = objects.SnapshotStatus(cinder.Snapshot{SizeGiB: 2}, "snapshot-1")
	if change != nil {
		change(c)
	}
	return c
}

// deletedContent returns a content whose deletion the snapshot-controller has
// requested.
func deletedContent(change func(*snapshotv1.VolumeSnapshotContent)) *snapshotv1.VolumeSnapshotContent {
	return recorded(func(c *snapshotv1.VolumeSnapshotContent) {
		now := metav1.Now()
		c.DeletionTimestamp = &now
		c.Annotations[objects.AnnotationSnapshotBeingDeleted] = "yes"
		if change != nil {
			change(c)
		}
	})
}

func stamped(id string, uid types.UID, isRecorded bool) cinder.Snapshot {
	stamp := stamps.Snapshot{Cluster: "cluster-1", ClusterUID: "uid-1", Namespace: "team-a", Snapshot: "nightly", SnapshotUID: string(uid), Content: objects.SnapshotContentName(uid), Tenant: "a", StorageClass: "fast"}
	s := cinder.Snapshot{ID: id, VolumeID: "volume-1", Metadata: stamp.Metadata(nil)}
	if isRecorded {
		s.Metadata["standalone-cinder.openstack.org/recorded"] = "true"
	}
	return s
}

// newDefinitions returns a client for the metadata of CRDs, of which there are none.
func newDefinitions() *metadatafake.FakeMetadataClient {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		panic(err)
	}
	return metadatafake.NewSimpleMetadataClient(scheme)
}
