// Package snapshot takes and removes the snapshots of VolumeSnapshots, and backups, which
// are one more kind of what Cinder keeps of a volume. The cluster's
// snapshot-controller binds VolumeSnapshots and starts their deletion; this package
// does for native volumes what a CSI driver and its sidecar do.
//
// The VolumeSnapshotContent is written before the request to Cinder, under the name
// that the snapshot-controller looks for, and with the finalizer that keeps it until
// the snapshot is removed. So every snapshot has an object that leads to it, whatever
// process dies. Before the content names its snapshot, the snapshot is marked at
// Cinder. One without the mark was never handed out.
//
// A VolumeSnapshotContent that somebody made for an existing snapshot is served if the
// policy grants the snapshot to the namespace of its VolumeSnapshot (import.go). Such a
// content may also have the CSI driver's name.
//
// A Controller lives for one leader's term.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Snapshots manages the snapshots, or the backups, of one backend; backends.Snapshots
// implements it.
type Snapshots interface {
	TakeSnapshot(ctx context.Context, spec backends.SnapshotSpec) (cinder.Snapshot, error)
	// MarkSnapshot marks a snapshot as recorded.
	MarkSnapshot(ctx context.Context, s cinder.Snapshot) error
	RemoveSnapshot(ctx context.Context, target backends.SnapshotTarget) error
	// AbandonSnapshots removes the snapshots of a VolumeSnapshot whose content names
	// none. It returns the IDs of those that it kept.
	AbandonSnapshots(ctx context.Context, target backends.SnapshotTarget) (kept []string, err error)
	// FindSnapshot reads a snapshot of any owner.
	FindSnapshot(ctx context.Context, id string) (s cinder.Snapshot, found bool, err error)
	// Snapshots lists the cluster's snapshots, once in a term.
	Snapshots(ctx context.Context) ([]cinder.Snapshot, error)
	// RelistSnapshots lists them again.
	RelistSnapshots(ctx context.Context) ([]cinder.Snapshot, error)
	// Place returns the endpoint and project of the backend; zero before its first
	// login.
	Place() cinder.Place
}

// Existing imports snapshots, or backups, that exist at Cinder.
type Existing interface {
	imports.Snapshots
	// ImportSnapshot stamps a snapshot.
	ImportSnapshot(ctx context.Context, spec backends.SnapshotImport) (cinder.Snapshot, error)
	// Place is that of Snapshots.
	Place() cinder.Place
}

// Groups manages the group snapshots of one backend; backends.Snapshots implements it.
type Groups interface {
	TakeGroup(ctx context.Context, spec backends.GroupSpec) ([]cinder.Snapshot, error)
	RemoveGroup(ctx context.Context, target backends.GroupTarget) (kept []string, err error)
	// AbandonGroups removes the groups to which nothing leads and that nobody needs.
	AbandonGroups(ctx context.Context, clusterUID string, isLost func(ctx context.Context, uid string) (bool, error)) (removed []string, err error)
}

// Backends provides the configured backends for this term.
type Backends interface {
	// Snapshots, Existing and Groups return an error if no backend of that name is
	// configured.
	Snapshots(of Shelf) (Snapshots, error)
	Existing(of Shelf) (Existing, error)
	Groups(name string) (Groups, error)
	// Health returns nil while a backend answers, or if none of that name is configured.
	Health(name string) error
	// Names lists every configured backend.
	Names() []string
}

// Options configure a Controller.
type Options struct {
	// Name is the driver's name in VolumeSnapshotClasses, which is the provisioner's
	// name.
	Name string
	// Cluster and ClusterUID are stamped on every snapshot.
	Cluster, ClusterUID string
	// CSI means that the program serves the CSI driver's sidecars.
	CSI bool
	// Policy returns the policy in force.
	Policy   func() *policy.Policy
	Backends Backends
	Ledger   *ledger.Ledger

	// Caches are also read by others, from before the Controller is made.
	*Caches
	Client    kubernetes.Interface
	Snapshots snapshotclient.Interface
	Claims    corelisters.PersistentVolumeClaimLister
	// PersistentVolumes is their cache, with the indexes of package record.
	PersistentVolumes cache.Indexer
	Namespaces        corelisters.NamespaceLister
	Recorder          eventrecord.EventRecorder

	// Freezer is for VolumeGroupSnapshots.
	Freezer Freezer
	// Caller marks requests to Cinder as a tenant's.
	Caller func(ctx context.Context, tenant string) context.Context
	// Board is where the term publishes what may unblock work.
	Board *parking.Board

	// TakeUpTime is how long the sidecar's question about an existing snapshot waits until
	// that has been imported.
	TakeUpTime time.Duration
	// Workers is how many snapshots are taken or removed at once.
	Workers int
	// Definitions reads the metadata of CRDs.
	Definitions metadata.Interface
	// LookAgain is how long to wait before looking again for resources that the API
	// server does not serve yet although their CRDs are being installed.
	LookAgain time.Duration

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait
	// for, except turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound

	Logger  *slog.Logger
	Metrics *Metrics
}

// Freezer freezes the filesystems of volumes on all nodes that use them.
type Freezer interface {
	// Freeze returns when nothing more is written. thaw must be called; its error means that
	// something may have been written before. If err has the method MayHaveStoppedPods, and
	// that returns false, it may be called again soon.
	Freeze(ctx context.Context, volumes []*corev1.PersistentVolume) (thaw func(context.Context) error, err error)
}

// Controller takes and removes the snapshots of one term.
type Controller struct {
	Options
	loop *worker.Loop[item]
	// parked are the objects that wait, with the events about them.
	parked    *parking.Lot[metav1.Object]
	counting  *counting
	leftovers *leftovers
	grouped   *groups

	mu sync.Mutex
	// removed is the set of contents whose snapshots this term has removed, until
	// the objects are gone.
	removed map[types.UID]bool
	// handed is the set of contents whose imports this term has told, until the objects are
	// gone: the cache may be late, and then the same snapshot is handed out twice.
	handed map[types.UID]bool
}

// item is an object or a backend in the queue.
type item struct {
	kind itemKind
	// namespace is empty for a content and a backend.
	namespace, name string
}

type itemKind string

const (
	snapshotItem     itemKind = "VolumeSnapshot"
	contentItem      itemKind = "VolumeSnapshotContent"
	groupItem        itemKind = objects.GroupKind
	groupContentItem itemKind = "VolumeGroupSnapshotContent"
	// backendItem is a backend whose snapshots are to be listed again.
	backendItem itemKind = "backend"
)

func (i item) String() string {
	return strings.TrimPrefix(i.namespace+"/"+i.name, "/")
}

// attempt is an attempt at an item.
type attempt = worker.Attempt[item]

// New makes the Controller of one term.
func New(options Options) *Controller {
	c := &Controller{Options: options, parked: parking.NewLot[metav1.Object](), removed: map[types.UID]bool{}, handed: map[types.UID]bool{}}
	c.counting, c.leftovers = &counting{Controller: c, counted: map[Shelf]bool{}}, &leftovers{Controller: c, kept: map[string]kept{}}
	c.grouped = &groups{c, newPauses()}
	options.Board.Subscribe(c.counting.hear) // before the loop, which brings back what waits for it
	c.loop = worker.New(worker.Options[item]{
		Name: "snapshots", Workers: options.Workers, OwnTurns: func(tenant string) int { return c.Policy().ConcurrencyOf(tenant) },
		Do:       func(ctx context.Context, a *attempt) worker.Outcome { return outcome(c.sync(ctx, a)) },
		Describe: func(of item) string { return fmt.Sprintf("the worker for %s %s", of.kind, of) },
		Board:    options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return c
}

// Run works until the context ends. It waits for the snapshot resources, which
// may be installed at any time.
func (c *Controller) Run(ctx context.Context) {
	defer c.loop.Queue.ShutDown()
	if !c.awaitResources(ctx, ofSnapshots()) {
		return
	}
	var group sync.WaitGroup
	defer group.Wait()
	// Before the other caches are shown, what groups count must be known, too.
	if !c.grouped.startGroups(ctx, &group) {
		return
	}
	stopped, err := c.startCaches(ctx)
	if err != nil {
		c.Logger.Error("Cannot follow VolumeSnapshots, so no snapshots are taken", "error", err)
		return
	}
	defer stopped()
	if !c.awaitCaches(ctx) {
		return
	}
	group.Go(func() { c.counting.countBackends(ctx) })
	c.loop.Run(ctx)
}

// sync does what an object or a backend needs now.
func (c *Controller) sync(ctx context.Context, a *attempt) error {
	switch a.Key.kind {
	case contentItem:
		return c.syncContent(ctx, a)
	case groupItem:
		return c.grouped.syncGroup(ctx, a)
	case groupContentItem:
		return c.grouped.syncGroupContent(ctx, a)
	case backendItem:
		return c.leftovers.syncBackend(ctx, a)
	}
	return c.syncSnapshot(ctx, a)
}

// Shelf is what a backend keeps of one kind: its snapshots, or its backups.
type Shelf struct {
	Backend string
	Backups bool
}

func shelfOf(origin objects.SnapshotOrigin) Shelf { return Shelf{origin.Backend, origin.Backup != ""} }

// answering returns what manages a shelf of a backend that answers.
func (c *Controller) answering(of Shelf) (Snapshots, error) {
	backend, err := c.Backends.Snapshots(of)
	if err != nil {
		return nil, err
	}
	return backend, c.Backends.Health(of.Backend)
}

func outcome(err error) worker.Outcome {
	switch {
	case err == nil:
		return worker.Outcome{Done: true}
	case errors.As(err, new(*denied)):
		return worker.Outcome{Retry: new(retry.Infeasible(nil))}
	}
	return worker.Outcome{Retry: new(retry.For(err))}
}

func (c *Controller) enqueue(i item) { c.loop.Queue.Add(i) }

// itemOf returns the item of an object.
func itemOf(object metav1.Object) item {
	switch object.(type) {
	case *snapshotv1.VolumeSnapshotContent:
		return item{contentItem, "", object.GetName()}
	case *groupv1.VolumeGroupSnapshotContent:
		return item{groupContentItem, "", object.GetName()}
	case *groupv1.VolumeGroupSnapshot:
		return item{groupItem, object.GetNamespace(), object.GetName()}
	}
	return item{snapshotItem, object.GetNamespace(), object.GetName()}
}

// KindOf returns the kind of an object of a Controller's lot.
func KindOf(object metav1.Object) string { return string(itemOf(object).kind) }

// park keeps an object until one of the triggers fires, or the policy changes.
func (c *Controller) park(a *attempt, object metav1.Object, reason parking.Reason, triggers ...parking.Trigger) {
	c.parked.Park(object, reason)
	a.Await(append(triggers, parking.Trigger{Kind: parking.Policy})...)
}

// Parked returns the objects that cannot continue now.
func (c *Controller) Parked() *parking.Lot[metav1.Object] { return c.parked }
