// Package provisioner is the hub, where claims meet policy, Cinder and
// protocols.
//
// A claim's path: ShouldProvision filters (claims.go) → Provision (attempt.go): the policy
// decides (admission.go); the claim gets its turn, room, volume, connection, mapping,
// Secret and PersistentVolume → completion (followup.go): the volume's last step to
// in-use, once the API server has the PersistentVolume. Delete (deletion.go) works from
// what the PersistentVolume records, never from the current policy. Leftovers of deleted
// claims are undone (undo.go, sweep.go). Work that cannot continue waits for its turn or a
// trigger (parked.go).
//
// A Provisioner lives for one leader's term and holds all of the term's mutable state. It
// first creates what the term knows, then gives each part only the owners it needs.
package provisioner

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// Provisioner implements the provisioning library's interfaces for one term. Its parts
// share what the term knows.
type Provisioner struct {
	*attempts
	*deletions
	*orphans
	*wakeups
	*reports

	followup  *Followup
	rates     *tenantRates
	imports   *imports
	limiter   *backoff.Limiter[string]
	ledger    *ledger.Ledger
	placement *placement.Placer
	sources   *copies.Resolver
	cleaner   removal.Cleaner
}

var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
	_ controller.DeletionGuard    = (*Provisioner)(nil)
)

// New returns the Provisioner of one term.
func New(o Options) *Provisioner {
	self := identity{o.Name, o.Cluster, o.ClusterUID, o.Namespace}
	over := &ending{o.Term, o.Stopping}
	limiter := backoff.New[string](retry.For(nil))
	parkedClaims, parkedVolumes := newParkedClaims(o, limiter), newParkedVolumes(o, limiter)
	known := &memory{journal: journal.New(), ledger: ledger.New(o.Policy), records: o.Records, indexedClaims: o.IndexedClaims}
	placer := placement.New(placement.Options{
		Policy: o.Policy, Ledger: known.ledger, Term: o.Term, Unfinished: known.journal.StampOf, Backends: o.Backends.Names,
		Volumes: func(backend string) (placement.Volumes, error) { return o.Backends.Listing(backend) },
	})
	cleaner := removal.Cleaner{
		Client: o.Client, ProvisionerName: o.Name, Cluster: o.Cluster, ClusterUID: o.ClusterUID, Namespace: o.Namespace,
		RecordedBy: known.recordedBy, Nodes: o.Nodes, UseOf: known.useOf,
		Volumes: func(backend string) (removal.Unrecorded, cinder.Connector, error) {
			return unrecordedVolumes(o.Backends, backend)
		},
	}
	sources := copies.NewResolver(copies.Options{
		Client: o.Client, Claims: o.Claims, IndexedClaims: o.IndexedClaims, PersistentVolumes: o.PersistentVolumes, Cluster: o.Cluster,
		Snapshots: o.Snapshots, SnapshotClient: o.SnapshotClient, Name: o.Name, Attachments: o.Nodes.KnownAttachments,
	})
	keeper := secrets.New(secrets.Options{
		Client: o.Client, PersistentVolumes: o.PersistentVolumes, Namespace: o.Namespace, Cluster: o.Cluster, Logger: o.Logger,
		IsInUse: func(backend string) bool {
			_, inPolicy := o.Policy().Backend(backend)
			return inPolicy || known.ledger.CountsOn(backend)
		},
		IsWanted: known.isWanted, MostAge: youngEnough,
		ClaimsOfVolumes: func(ctx context.Context) (map[types.UID]bool, error) { return claimsOfVolumes(ctx, o.Backends) },
		RemoveOwn: func(ctx context.Context, pvName string) error {
			if err := cleaner.RemoveSecret(ctx, pvName); !removal.IsKept(err) {
				return err
			}
			return nil
		},
	})
	known.secrets = keeper
	rates, imports := newTenantRates(o.Policy), &imports{}
	decider := &decider{
		provisioner: o.Name, policy: o.Policy, sources: sources, placement: placer, client: o.Client, namespaces: o.Namespaces, classes: o.Classes,
		labelsOfNode: o.LabelsOfNode, attributesClass: o.AttributesClass, logger: o.Logger,
	}
	times := newClaimTimes(decider, known.ledger, o.Metrics)
	asked := newReschedules()
	tasks := newTasks(o, over, known)
	followup := newFollowup(&Followup{
		identity: self, tasks: tasks, board: o.Board, policy: o.Policy, placement: placer,
		parkedClaims: parkedClaims, parkedVolumes: parkedVolumes, claimTimes: times, rates: rates, cleaner: cleaner,
		nodes: o.Nodes, client: o.Client, cachedClaims: o.Claims, recorder: o.Recorder,
	})
	orphans := newOrphans(&orphans{
		identity: self, memory: known, cleaner: cleaner, placement: placer, backends: o.Backends, rates: rates, tasks: tasks, followup: followup,
		parkedClaims: parkedClaims, imports: imports, cachedPVs: o.PersistentVolumes, logger: o.Logger,
		owners: []forgetter{parkedClaims, placer, asked, times, known.journal},
	})
	claims := &claims{
		identity: self, decider: decider, memory: known, ending: over, tasks: tasks, parkedClaims: parkedClaims, reschedules: asked, claimTimes: times,
		imports: imports, cachedClaims: o.Claims, cachedPVs: o.PersistentVolumes, recorder: o.Recorder,
	}
	wakeups := &wakeups{
		board: o.Board, placement: placer, policy: o.Policy, backends: o.Backends, cachedClaims: o.Claims,
		parkedClaims: parkedClaims, followup: followup, logger: o.Logger,
	}
	return &Provisioner{
		attempts: &attempts{claims: claims, orphans: orphans, rates: rates, backends: o.Backends, mappers: o.Mappers, nodesRefuse: o.NodesRefuse, metrics: o.Metrics, tracer: o.Tracer},
		deletions: &deletions{
			identity: self, ending: over, parkedVolumes: parkedVolumes, tasks: tasks, journal: known.journal, secrets: keeper, placement: placer,
			rates: rates, backends: o.Backends, nodes: o.Nodes, client: o.Client, cachedPVs: o.PersistentVolumes, metrics: o.Metrics, tracer: o.Tracer, logger: o.Logger,
		},
		orphans: orphans, wakeups: wakeups,
		reports: &reports{
			identity: self, parkedClaims: parkedClaims, parkedVolumes: parkedVolumes, tasks: tasks, imports: imports, journal: known.journal, ledger: known.ledger,
			policy: o.Policy, cachedPVs: o.PersistentVolumes, metrics: o.Metrics,
		},
		followup: followup, rates: rates, imports: imports, limiter: limiter, ledger: known.ledger, placement: placer, sources: sources, cleaner: cleaner,
	}
}

// Run does all of the term's work that the library does not do, until the context ends
// and no work is under way.
func (p *Provisioner) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, run := range []func(context.Context){
		p.followup.tasks.loop.Run, p.orphans.CountBackends, p.orphans.Sweep, p.wakeups.offerFreedRoom,
		p.attempts.parkedClaims.loop.Run, p.deletions.parkedVolumes.loop.Run,
	} {
		group.Go(func() { run(ctx) })
	}
	group.Wait()
}

// VolumeChanged tells the hub about a PersistentVolume: before is nil when it is first
// seen, after is nil when it is gone.
func (p *Provisioner) VolumeChanged(before, after *corev1.PersistentVolume) {
	if before != nil && objects.MayBeTaken(before) {
		// It may satisfy claims no longer that were left to Kubernetes.
		p.board.Publish(parking.Trigger{Kind: parking.Volume, Name: before.Name})
	}
	if after == nil {
		p.followup.VolumeGone(before)
		return
	}
	if before != nil && p.followup.isRebound(before) && !p.followup.isRebound(after) {
		// Retry what was denied while the volume counted for another tenant, now that the
		// cache shows its tenant.
		p.board.Publish(parking.Trigger{Kind: parking.Namespace, Name: after.Spec.ClaimRef.Namespace})
	}
	p.followup.VolumeSeen(after)
}

// ClaimChanged tells the hub about a claim: before is nil when it is first seen, after is
// nil when it is gone.
func (p *Provisioner) ClaimChanged(before, after *corev1.PersistentVolumeClaim) {
	switch {
	case after == nil:
		p.followup.ClaimGone(before)
	case before != nil:
		p.followup.ClaimChanged(before, after)
	}
	claim := cmp.Or(after, before)
	p.board.Publish(parking.SourceClaim(claim.Namespace, claim.Name))
	if admission.PopulatorOf(claim) != "" {
		p.board.Publish(parking.PopulatedClaim(claim.UID))
	}
}

// Imports sets the importer of existing volumes. Without one, nothing is imported.
func (p *Provisioner) Imports(by Importer) { p.imports.Importer = by }

// OnBehalfOf marks requests to Cinder as a tenant's, so that tenants take turns at a
// backend and stay within their request rates.
func (p *Provisioner) OnBehalfOf(ctx context.Context, tenant string) context.Context {
	return p.rates.OnBehalfOf(ctx, tenant)
}

// Cleaner returns what removes unneeded objects, with the term's backends.
func (p *Provisioner) Cleaner() removal.Cleaner { return p.cleaner }

// Secrets returns what writes the Secrets of PersistentVolumes.
func (p *Provisioner) Secrets() *secrets.Keeper { return p.secrets }

// Placement returns what places and counts the volumes of the term.
func (p *Provisioner) Placement() *placement.Placer { return p.placement }

// Ledger returns the counts behind the term's quotas.
func (p *Provisioner) Ledger() *ledger.Ledger { return p.ledger }

// Sources returns what finds the content that claims ask for.
func (p *Provisioner) Sources() *copies.Resolver { return p.sources }

// Limiter returns the retry delays of this term, for the library's queues.
func (p *Provisioner) Limiter() *backoff.Limiter[string] { return p.limiter }

// SupportsBlock reports that the program serves raw block claims.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Importer gives existing Cinder volumes to claims.
type Importer interface {
	// Consider is called with each claim that may get such a volume, and Left with each
	// imported volume whose claim is gone and that no PersistentVolume names.
	Consider(claim *corev1.PersistentVolumeClaim)
	Left(backend string, v cinder.Volume)
	// Parked returns the claims whose imports are waiting.
	Parked() *parking.Lot[*corev1.PersistentVolumeClaim]
}

// imports is the term's Importer, which is created after the hub; nil if nothing imports.
type imports struct{ Importer }

// ending tells whether the term is ending.
type ending struct {
	term  context.Context
	begun <-chan struct{}
}

// stopping reports whether the replica takes no new work and leaves waiting work to the
// next leader.
func (e *ending) stopping() bool {
	select {
	case <-e.begun:
		return true
	default:
		return e.term.Err() != nil
	}
}

// Options configure a Provisioner.
type Options struct {
	// Name is the provisioner's name in StorageClasses and PersistentVolumes.
	Name string
	// Cluster is stamped on every volume.
	Cluster string
	// ClusterUID is the UID of namespace kube-system, also stamped on every volume.
	ClusterUID string
	// Namespace is where the program runs and keeps its Secrets.
	Namespace string

	// Policy returns the policy in force.
	Policy   func() *policy.Policy
	Backends Backends
	Mappers  *mappers.Registry

	Client kubernetes.Interface
	// Snapshots reads VolumeSnapshots from caches, SnapshotClient from the API server.
	Snapshots         objects.SnapshotReader
	SnapshotClient    snapshotclient.Interface
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	// IndexedClaims is the cache of claims, with the indexes of objects.ClaimIndexers.
	IndexedClaims cache.Indexer
	// Records is the cache of PersistentVolumes, with the indexes of
	// objects.Indexers.
	Records    cache.Indexer
	Namespaces corelisters.NamespaceLister
	Classes    storagelisters.StorageClassLister
	Recorder   eventrecord.EventRecorder
	Nodes      Nodes
	// LabelsOfNode returns the labels of a node; nil if nodes are not cached.
	LabelsOfNode func(name string) (map[string]string, bool)
	// AttributesClass reads a VolumeAttributesClass from a cache. It is nil without the
	// CSI driver; then no claim with such a class gets a volume.
	AttributesClass func(name string) (*storagev1.VolumeAttributesClass, error)
	// NodesRefuse returns why the CSI driver's nodes cannot use a backend's volumes of a
	// type; nil if they can, or if that is not known. It is nil without the CSI driver.
	NodesRefuse func(backend, volumeType string) error

	// Workers is how many claims, and how many deletions, are worked on at once.
	// The library must be given the same number.
	Workers int
	// FollowupWorkers is how many volumes are completed or undone at once. These
	// workers must not fall far behind those that serve claims.
	FollowupWorkers int
	// Requeue requeues parked objects.
	Requeue Requeue

	// Board is where the term publishes what may unblock work. The hub subscribes first.
	Board *parking.Board

	// Term ends with the lease. Undoing may continue until then.
	Term context.Context
	// Stopping is closed when the replica begins to hand over: it takes no new
	// work, and leaves what waits to the next leader.
	Stopping <-chan struct{}

	// Monitor watches the work. MaxWorkTime exceeds every wait within the work, except
	// for turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound

	Logger  *slog.Logger
	Metrics *Metrics
	Tracer  tracing.Tracer
}

// Unrecorded manages the volumes of one backend that no PersistentVolume records yet.
type Unrecorded interface {
	Connect(ctx context.Context, spec backends.Spec) (backends.Connected, error)
	// Abandon removes all unrecorded volumes of a claim.
	Abandon(ctx context.Context, stamp stamps.Volume, connector cinder.Connector, permit backends.Permit) error
	removal.Unrecorded
}

// Recorded manages the volumes of one backend that PersistentVolumes record.
type Recorded interface {
	Complete(ctx context.Context, target backends.Target, readOnly bool) error
	// IsComplete reports whether the term's listing shows that Complete has nothing to
	// do.
	IsComplete(target backends.Target) bool
	// Rebind stamps a volume for the claim that has it now.
	Rebind(ctx context.Context, target backends.Target, to stamps.Volume, own func(before stamps.Volume) map[string]string) (cinder.Volume, error)
	// Mark marks a volume as recorded without bringing it into use.
	Mark(ctx context.Context, target backends.Target) error
	// Remove removes the volume of a PersistentVolume.
	Remove(ctx context.Context, target backends.Target) error
	// Duplicates returns the IDs of volumes that were seen in addition to the
	// claim's recorded one, and forgets them.
	Duplicates(claimUID, recorded string) []string
	// Find reads a volume by its ID, regardless of owner.
	Find(ctx context.Context, volumeID string) (v cinder.Volume, found bool, err error)
	// Place returns the backend's endpoint and project; zero before its first login.
	Place() cinder.Place
}

// Listing shows which volumes one backend has.
type Listing interface {
	placement.Volumes
	// HasVolumeOf reports whether the claim has a volume.
	HasVolumeOf(ctx context.Context, stamp stamps.Volume) (bool, error)
	// LastUncertain returns when this term last lost the answer to a create request.
	LastUncertain() time.Time
}

// Backends provides the configured backends for this term.
type Backends interface {
	// Unrecorded, Recorded and Listing return an error if no backend of that name is
	// configured.
	Unrecorded(name string) (Unrecorded, error)
	Recorded(name string) (Recorded, error)
	Listing(name string) (Listing, error)
	// Connector returns the identity of the nodes to which the backend connects its
	// volumes.
	Connector(name string) (cinder.Connector, error)
	// NodeLabels returns the labels of the nodes that can use the backend's volumes;
	// empty means every node.
	NodeLabels(name string) map[string]string
	// Mappings returns the backend's mappings by protocol.
	Mappings(name string) map[string]mapping.Mapping
	// Names lists every configured backend.
	Names() []string
}

// Nodes determines which nodes use a volume; *nodeuse.Tracker implements it.
type Nodes interface {
	// Known reads a cache, so an empty answer proves nothing.
	Known(v nodeuse.Volume) ([]string, error)
	// Users reads from the API server.
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	// Watches reports whether the trigger of a node is published when it releases a
	// volume.
	Watches() bool
	Forget(pv types.UID)
	// Attachments covers the CSI driver's volumes.
	removal.Attachments
}
