package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const testPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: gold}
  - name: silver
    auth: {cloud: silver}
tenants:
  - name: a
    namespaces: [team-a]
    volumeSize: {max: 10Gi}
    classes:
      - {storageClasses: [both], backends: [gold, silver], fsType: xfs}
      - {storageClasses: [one], backends: [gold]}
`

// fakeVolumes fakes the volumes of one backend.
type fakeVolumes struct {
	// volumeType is the type that Connect reports.
	volumeType  string
	hasVolumeOf map[string]bool // by claim UID
	listed      []cinder.Volume
	listErr     error
	document    string
	err         error
	calls       []string
	onCall      func()
	hasVolume   map[string]bool // by volume ID
	health      error
	// touched holds the UIDs of claims for which a volume may have been created.
	touched    map[string]bool
	abandonErr error
	// abandonKeeps makes Abandon find that the volume was attached.
	abandonKeeps  bool
	hasErr        error
	onList        func()
	lastUncertain time.Time
	shared        bool                // volumes can be attached to several hosts
	duplicates    map[string][]string // volume IDs by claim UID
	stored        bool                // connections come from earlier attempts
	apart         bool                // each claim's volume has an ID of its own
	zone          string              // where volumes are, whatever was requested
	full          map[string]bool     // zones in which Cinder cannot make volumes
	specs         []backends.Spec     // of the calls of Connect
	records       map[string]string   // of keys, by claim UID
	encrypted     bool                // Cinder encrypts the volumes
	attach        func(backends.Target) error
}

func (f *fakeVolumes) call(format string, arguments ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, arguments...))
	if f.onCall != nil {
		f.onCall()
	}
}

// namePlaceholder stands in documents for the volume's name.
const namePlaceholder = "NAME-OF-THE-VOLUME"

func (f *fakeVolumes) volumeOf(stamp stamps.Volume) string {
	if f.apart {
		return "volume-of-" + stamp.ClaimUID
	}
	return "volume-1"
}

// answer reports the ID of a request to Cinder to the caller.
func answer(ctx context.Context, operation, requestID string) {
	if answered := turns.CallerOf(ctx).Answered; answered != nil {
		answered(operation, requestID)
	}
}

func (f *fakeVolumes) Connect(ctx context.Context, spec backends.Spec) (backends.Connected, error) {
	f.call("connect %s %d GiB", spec.Name, spec.SizeGiB)
	f.specs = append(f.specs, spec)
	if f.err != nil {
		return backends.Connected{}, f.err
	}
	if f.full[spec.Zone] {
		reason := "no host"
		if spec.Zone != "" {
			reason += " in " + spec.Zone
		}
		return backends.Connected{}, &backends.NotMadeError{Zone: spec.Zone, Reason: reason, Failure: &cinder.Error{
			Kind: backends.KindVolumeFailed, Backend: "gold", Message: "volume volume-1 went to error and was removed: " + reason,
		}}
	}
	metadata := map[string]string{}
	if spec.NewKey != nil {
		record, made := f.records[spec.Stamp.ClaimUID]
		if from := spec.Source.Volume; from != nil && !made {
			record, made = f.records[from.Stamp.ClaimUID]
		}
		if !made {
			new, err := spec.NewKey(ctx)
			if err != nil {
				return backends.Connected{}, err
			}
			record = new.String()
		}
		if f.records == nil {
			f.records = map[string]string{}
		}
		f.records[spec.Stamp.ClaimUID], metadata[stamps.KeyEncryption] = record, record
	}
	answer(ctx, cinder.OperationCreate, "req-create")
	answer(ctx, "volume.reserve", "req-reserve")
	document := strings.ReplaceAll(f.document, namePlaceholder, spec.Name)
	return backends.Connected{Volume: cinder.Volume{ID: f.volumeOf(spec.Stamp), SizeGiB: spec.SizeGiB, Type: f.volumeType, MultiAttach: f.shared, Encrypted: f.encrypted, Metadata: metadata, Zone: cmp.Or(f.zone, spec.Zone)}, Document: []byte(document), Fresh: !f.stored, Place: f.Place()}, nil
}

// Place returns the same place for all fakes.
func (f *fakeVolumes) Place() cinder.Place {
	return cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p1"}
}

func (f *fakeVolumes) Complete(_ context.Context, target backends.Target, readOnly bool) error {
	f.call("complete %s read-only=%t", target.VolumeID, readOnly)
	if f.attach != nil {
		return f.attach(target)
	}
	return f.err
}

func (f *fakeVolumes) Remove(ctx context.Context, target backends.Target) error {
	if target.Permit != nil {
		if err := target.Permit(ctx, cinder.Volume{ID: target.VolumeID, Status: cinder.StatusInUse}); err != nil {
			return err
		}
	}
	f.call("remove %s historic=%t", target.VolumeID, target.Historic)
	answer(ctx, cinder.OperationDelete, "req-delete")
	if target.Place != f.Place() && f.err == nil {
		return target.Found(ctx, f.Place())
	}
	return f.err
}

// Abandon requests the permit as the lifecycle does, for the claim's volume that is in
// the listing, or for one that this term created.
func (f *fakeVolumes) Abandon(ctx context.Context, stamp stamps.Volume, _ cinder.Connector, permit backends.Permit) error {
	v := cinder.Volume{ID: f.volumeOf(stamp), Status: cinder.StatusAttaching, Metadata: stamp.Metadata(nil)}
	for _, listed := range f.listed {
		if stamp.Owns(listed) {
			v = listed
		}
		if stamp.Owns(listed) && stamps.EverAttached(listed) {
			f.abandonKeeps = true
		}
	}
	if f.abandonKeeps {
		return &cinder.Error{Kind: backends.KindRecorded, Message: "volume has been attached"}
	}
	if err := permit(ctx, v); err != nil {
		return err
	}
	f.call("abandon %s", stamp.PV)
	answer(ctx, cinder.OperationDelete, "req-undo")
	return f.abandonErr
}

func (f *fakeVolumes) Mark(_ context.Context, target backends.Target) error {
	f.call("mark %s", target.VolumeID)
	return f.err
}

func (f *fakeVolumes) Rebind(ctx context.Context, target backends.Target, to stamps.Volume, own func(before stamps.Volume) map[string]string) (cinder.Volume, error) {
	var rebound cinder.Volume
	for i, v := range f.listed {
		if v.ID != target.VolumeID {
			continue
		}
		if err := target.Permit(ctx, v); err != nil {
			return cinder.Volume{}, err
		}
		f.call("rebind %s to %s/%s of tenant %s", v.ID, to.Namespace, to.Claim, to.Tenant)
		if f.err == nil {
			f.listed[i].Metadata = maps.Clone(v.Metadata)
			maps.Copy(f.listed[i].Metadata, to.Metadata(own(stamps.Of(v))))
			rebound = f.listed[i]
		}
	}
	return rebound, f.err
}

func (f *fakeVolumes) IsComplete(target backends.Target) bool {
	return slices.ContainsFunc(f.listed, func(v cinder.Volume) bool { return v.ID == target.VolumeID && target.IsCompletedBy(v) })
}

func (f *fakeVolumes) Duplicates(claimUID, _ string) []string {
	duplicates := f.duplicates[claimUID]
	delete(f.duplicates, claimUID)
	return duplicates
}

func (f *fakeVolumes) HasVolumeOf(_ context.Context, stamp stamps.Volume) (bool, error) {
	return f.hasVolumeOf[stamp.ClaimUID], nil
}

func (f *fakeVolumes) Volumes(context.Context) ([]cinder.Volume, error) {
	if f.onList != nil {
		f.onList()
	}
	return f.listed, f.listErr
}

func (f *fakeVolumes) Relist(ctx context.Context) ([]cinder.Volume, error) { return f.Volumes(ctx) }

func (f *fakeVolumes) LastUncertain() time.Time { return f.lastUncertain }

func (f *fakeVolumes) RemoveUnrecorded(ctx context.Context, id string, stamp stamps.Volume, _ cinder.Connector, permit backends.Permit) error {
	v := cinder.Volume{ID: id, Status: cinder.StatusAvailable, Metadata: stamp.Metadata(nil)}
	for _, listed := range f.listed {
		if listed.ID == id {
			v = listed
		}
	}
	if err := permit(ctx, v); err != nil {
		return err
	}
	f.call("remove unrecorded %s of %s", id, stamp.PV)
	return f.err
}

func (f *fakeVolumes) Find(_ context.Context, id string) (cinder.Volume, bool, error) {
	return cinder.Volume{ID: id}, f.hasVolume[id], errors.Join(f.err, f.hasErr)
}

func (f *fakeVolumes) Health() error { return f.health }

func (f *fakeVolumes) KnowsNothingOf(stamp stamps.Volume) bool { return !f.touched[stamp.ClaimUID] }

type fakeBackends map[string]*fakeVolumes

func (f fakeBackends) of(name string) (*fakeVolumes, error) {
	if volumes, ok := f[name]; ok {
		return volumes, nil
	}
	return nil, fmt.Errorf("backend %q is not in the policy", name)
}

func (f fakeBackends) Unrecorded(name string) (Unrecorded, error) { return f.of(name) }
func (f fakeBackends) Recorded(name string) (Recorded, error)     { return f.of(name) }
func (f fakeBackends) Listing(name string) (Listing, error)       { return f.of(name) }

func (f fakeBackends) Connector(name string) (cinder.Connector, error) {
	return cinder.Connector{Host: "k8s", Initiator: "iqn.2026-01.example:" + name}, nil
}

func (f fakeBackends) NodeLabels(name string) map[string]string {
	if name == "silver" {
		return map[string]string{"storage": "fc", "zone": "a"}
	}
	return nil
}

// Mappings maps connections of protocol flex to FlexVolumes.
func (f fakeBackends) Mappings(string) map[string]mapping.Mapping {
	return map[string]mapping.Mapping{"flex": {As: mapping.FlexVolume, Driver: "example.org/flex"}}
}

func (f fakeBackends) Names() []string {
	var names []string
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// fixture is a Provisioner with fakes around it.
type fixture struct {
	*Provisioner
	Options
	t        *testing.T
	backends fakeBackends
	client   *fake.Clientset
	events   *eventrecord.FakeRecorder
	factory  informers.SharedInformerFactory
	stop     chan struct{}
	class    *storagev1.StorageClass
	// mu guards requeued, because timers bring claims back, and a turn may lapse after
	// its test has ended.
	mu       sync.Mutex
	requeued []string
	// onRequeue is called for each of them.
	onRequeue func(name string)
	// nodes is the cache of nodes; blind means that it is not synced yet.
	nodes       cache.Indexer
	attachments cache.Indexer
	blind       bool
	current     atomic.Pointer[policy.Policy]
	log         relay
	journal     *journal.Journal

	parkedClaims  *parkedClaims
	parkedVolumes *parkedVolumes
	// labelsOfNode and attributesClass read caches of nodes and VolumeAttributesClasses.
	labelsOfNode    map[string]map[string]string
	attributesClass func(name string) (*storagev1.VolumeAttributesClass, error)
}

// relay passes the log on to a handler that tests replace.
type relay struct{ slog.Handler }

// otherBackends stands for backends that tests replace.
type otherBackends struct{ Backends }

const iscsiDocument = `{"driver_volume_type": "iscsi", "data": {"target_portal": "10.0.0.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1",
  "target_lun": 1, "auth_method": "CHAP", "auth_username": "user", "auth_password": "hush-hush-hush"}}`

func newFixture(t *testing.T, existing ...runtime.Object) *fixture {
	t.Helper()
	parsed, err := policy.Parse([]byte(testPolicy), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := mappers.New(mappers.Options{SecretNamespace: "own", Protocols: mappers.BuiltIn()})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		t:        t,
		backends: fakeBackends{"gold": {document: iscsiDocument}, "silver": {document: iscsiDocument}},
		client:   fake.NewClientset(existing...),
		events:   eventrecord.NewFakeRecorder(20),
		stop:     make(chan struct{}),
		log:      relay{slog.DiscardHandler},
		class:    &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Provisioner: "test"},
	}
	f.current.Store(parsed)
	f.factory = informers.NewSharedInformerFactory(f.client, 0)
	volumes := f.factory.Core().V1().PersistentVolumes().Informer()
	f.must(volumes.AddIndexers(objects.Indexers()))
	claims := f.factory.Core().V1().PersistentVolumeClaims().Informer()
	f.must(claims.AddIndexers(objects.ClaimIndexers()))
	f.nodes = cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeuse.NodeIndexers())
	f.attachments = cache.NewIndexer(cache.MetaNamespaceKeyFunc, nodeuse.AttachmentIndexers())
	requeued := func(name string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requeued = append(f.requeued, name)
		if f.onRequeue != nil {
			f.onRequeue(name)
		}
	}
	f.Options = Options{
		Name:              "test",
		Cluster:           "cluster-1",
		ClusterUID:        "kube-system-uid",
		Namespace:         "own",
		Policy:            f.current.Load,
		Backends:          &otherBackends{f.backends},
		Mappers:           registry,
		Client:            f.client,
		Claims:            f.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: f.factory.Core().V1().PersistentVolumes().Lister(),
		IndexedClaims:     claims.GetIndexer(),
		Records:           volumes.GetIndexer(),
		Nodes: nodeuse.New(nodeuse.Options{Client: f.client, Caches: &nodeuse.Caches{
			Nodes: f.nodes, Attachments: f.attachments,
			Synced: func() bool { return !f.blind },
		}}),
		LabelsOfNode: func(name string) (map[string]string, bool) {
			labels, ok := f.labelsOfNode[name]
			return labels, ok
		},
		AttributesClass: func(name string) (*storagev1.VolumeAttributesClass, error) {
			if f.attributesClass == nil {
				return nil, errors.New("none exists")
			}
			return f.attributesClass(name)
		},
		Namespaces:      f.factory.Core().V1().Namespaces().Lister(),
		Classes:         f.factory.Storage().V1().StorageClasses().Lister(),
		Recorder:        f.events,
		Workers:         100,
		FollowupWorkers: 1,
		Requeue: Requeue{
			Claim:  func(claim *corev1.PersistentVolumeClaim) { requeued(claim.Name) },
			Volume: func(pv *corev1.PersistentVolume) { requeued(pv.Name) },
		},
		Term:     t.Context(),
		Stopping: f.stop,
		Board:    parking.NewBoard(),
		Monitor:  liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
		Logger:  slog.New(&f.log),
		Metrics: NewMetrics(prometheus.NewRegistry(), registry.Protocols()),
	}
	f.newTerm(nil)
	f.must(f.factory.Storage().V1().StorageClasses().Informer().GetStore().Add(f.class))
	return f
}

// newTerm forgets everything, and begins another term with changed options.
func (f *fixture) newTerm(change func(*Options)) {
	f.Board = parking.NewBoard()
	if change != nil {
		change(&f.Options)
	}
	f.Provisioner = New(f.Options)
	f.journal, f.parkedClaims, f.parkedVolumes = f.attempts.journal, f.attempts.parkedClaims, f.deletions.parkedVolumes
	f.t.Cleanup(f.followup.loop.Queue.ShutDown)
	// Make it look as if the term had begun long ago.
	for name := range f.backends {
		f.followup.backendListed(name)
	}
}

// newCountedFixture makes a fixture whose backends are counted, with its
// follow-up and backend gold.
func newCountedFixture(t *testing.T) (f *fixture, followup *Followup, gold *fakeVolumes) {
	t.Helper()
	f = newFixture(t)
	f.count()
	return f, f.followup, f.backends["gold"]
}

// count lists the backends, as CountBackends does when a term begins.
func (f *fixture) count() {
	f.t.Helper()
	for _, name := range f.Backends.Names() {
		f.countUntilDone(f.t.Context(), name)
	}
}

// inForce replaces part of the test policy, and puts the result in force.
func (f *fixture) inForce(before, after string) {
	f.t.Helper()
	parsed := parsePolicy(f.t, strings.Replace(testPolicy, before, after, 1))
	f.current.Store(parsed)
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// claim adds a claim to the API server and the cache.
func (f *fixture) claim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	f.t.Helper()
	class := f.class.Name
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: types.UID("uid-1"), ResourceVersion: versionInTerm, Annotations: map[string]string{objects.AnnotationStorageProvisioner: "test"}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1500Mi")}},
		},
	}
	if change != nil {
		change(claim)
	}
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Add(claim))
	f.goneAtTheServer(claim) // an earlier one of the same name
	f.must(f.client.Tracker().Add(claim))
	return claim
}

// Resource versions of objects that last changed before the term began, when it began,
// and later.
const (
	versionBefore = "9"
	versionOfTerm = "10"
	versionInTerm = "11"
)

// noteEarlier makes the given claims older than the term.
func (f *fixture) noteEarlier(claims ...*corev1.PersistentVolumeClaim) {
	uids := make([]types.UID, len(claims))
	for i, claim := range claims {
		uids[i] = claim.UID
	}
	f.NoteEarlier(objects.NewEarlierClaims(versionOfTerm, uids))
}

// useBackends gives the Provisioner other backends.
func (f *fixture) useBackends(b Backends) { f.Backends.(*otherBackends).Backends = b }

// publish retries what waits for a trigger.
func (f *fixture) publish(kind parking.TriggerKind, name string) {
	f.Board.Publish(parking.Trigger{Kind: kind, Name: name})
}

func (f *fixture) forgetClaim(claim *corev1.PersistentVolumeClaim) {
	f.t.Helper()
	f.goneAtTheServer(claim)
	f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Delete(claim))
}

// goneAtTheServer deletes a claim from the API server, but not from the cache.
func (f *fixture) goneAtTheServer(claim *corev1.PersistentVolumeClaim) {
	f.t.Helper()
	err := f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim.Namespace, claim.Name)
	if !apierrors.IsNotFound(err) {
		f.must(err)
	}
}

// turn begins an attempt at a claim.
func (f *fixture) turn(claim *corev1.PersistentVolumeClaim) *turn {
	return f.parkedClaims.loop.Attempt(string(claim.UID))
}

// occupy gives all turns that a tenant can have to other claims, until free.
func (f *fixture) occupy() (free func()) {
	var busy []string
	next := "busy"
	for ; f.parkedClaims.loop.Turns.Begin(next, "a", "gold"); next += "-" {
		busy = append(busy, next)
	}
	f.parkedClaims.loop.Turns.Leave(next)
	return func() {
		for _, claim := range busy {
			f.parkedClaims.loop.Turns.End(claim)
		}
	}
}

// admits takes a claim through the filter, the decision and the reservation, and reports
// whether its volume would be connected now. Then its turn lasts: provision goes on from
// there.
func (f *fixture) admits(claim *corev1.PersistentVolumeClaim) bool {
	f.t.Helper()
	if !f.ShouldProvision(f.t.Context(), claim) {
		return false
	}
	if _, err := f.PersistentVolumes.Get(objects.PVNameOf(claim)); err == nil {
		return true // the library stops here
	}
	class, err := f.Classes.Get(objects.ClassName(claim))
	f.must(err)
	a := &attempt{attempts: f.attempts, claim: claim, class: class, pvName: objects.PVNameOf(claim), turn: f.turn(claim)}
	defer f.cleanUpIfGone(claim)
	if err = a.stillWanted(); err == nil {
		err = a.decide(f.t.Context(), f.askerOf(claim))
	}
	if err == nil {
		err = a.takeTurn()
	}
	if err == nil {
		_, err = a.chooseBackend(f.t.Context())
	}
	if err != nil {
		if _, err := f.settle(a, time.Now(), err); !isIgnored(err) {
			f.t.Errorf("error %v", err)
		}
		if err != errNoTurn {
			f.parkedClaims.loop.Turns.End(string(claim.UID))
		}
	}
	return err == nil
}

func (f *fixture) provision(claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, state, err := f.Provision(f.t.Context(), controller.ProvisionOptions{StorageClass: f.class, PVC: claim, PVName: "pvc-" + string(claim.UID)})
	if state != controller.ProvisioningFinished {
		f.t.Errorf("state %s", state)
	}
	return pv, err
}

// store adds or updates a PersistentVolume in the API server and the cache.
func (f *fixture) store(pv *corev1.PersistentVolume) {
	f.t.Helper()
	f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Add(pv))
	resource := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	if err := f.client.Tracker().Update(resource, pv, ""); apierrors.IsNotFound(err) {
		f.must(f.client.Tracker().Add(pv))
	} else {
		f.must(err)
	}
}

// delete releases a PersistentVolume and deletes its volume.
func (f *fixture) delete(pv *corev1.PersistentVolume) error {
	f.t.Helper()
	f.released(pv)
	return f.deleteReleased(pv)
}

// deleteReleased returns nil if the volume and the object were deleted.
func (f *fixture) deleteReleased(pv *corev1.PersistentVolume) error {
	err := f.Delete(f.t.Context(), pv)
	if errors.Is(err, errObjectDeleted) {
		return nil
	}
	return err
}

func (f *fixture) released(pv *corev1.PersistentVolume) {
	f.t.Helper()
	pv.Status.Phase = corev1.VolumeReleased
	if pv.Spec.PersistentVolumeReclaimPolicy == "" {
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	}
	if pv.Spec.ClaimRef == nil {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: types.UID(pv.Annotations[objects.AnnotationClaimUID])}
	}
	f.store(pv)
}

// newEvents returns the events since the last call.
func (f *fixture) newEvents() []string {
	var events []string
	for {
		select {
		case event := <-f.events.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

func isIgnored(err error) bool {
	var ignored *controller.IgnoredError
	return errors.As(err, &ignored) && ignored != errObjectDeleted
}

func wantCalls(t *testing.T, volumes *fakeVolumes, want ...string) {
	t.Helper()
	if got := strings.Join(volumes.calls, "; "); got != strings.Join(want, "; ") {
		t.Errorf("the backend was called: %s\nwant: %s", got, strings.Join(want, "; "))
	}
}

// stamped returns a volume at Cinder that an earlier leader created for a claim of
// namespace team-a.
func (f *fixture) stamped(uid string) cinder.Volume {
	return cinder.Volume{ID: "volume-of-" + uid, SizeGiB: 1, Metadata: stamps.Volume{
		Cluster: "cluster-1", ClusterUID: "kube-system-uid", Namespace: "team-a", Claim: "data", ClaimUID: uid, PV: "pvc-" + uid, Tenant: "a", StorageClass: f.class.Name,
	}.Metadata(nil)}
}

// seen shows the cached PersistentVolumes to the follow-up, as the informer does
// when a term begins.
func (f *fixture) seen() {
	f.t.Helper()
	followup := f.followup
	for _, pv := range f.factory.Core().V1().PersistentVolumes().Informer().GetStore().List() {
		followup.VolumeSeen(pv.(*corev1.PersistentVolume))
	}
}

func parsePolicy(t interface{ Fatal(...any) }, text string) *policy.Policy {
	p, err := policy.Parse([]byte(text), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	return p
}
