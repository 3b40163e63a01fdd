// Package provisioner is the hub, where claims meet policy, Cinder and
// protocols.
//
// A claim's path: admission (does the policy admit it, and can any backend
// honor it?) → Provision (backend, volume, connection, mapping, Secret,
// PersistentVolume) → completion (the volume's last step to in-use, once the
// API server has the PersistentVolume). Delete works from what the
// PersistentVolume records, never from the current policy.
//
// A Provisioner lives for one leader's term and holds all of the term's mutable state.
package provisioner

import (
	"context"
	"log/slog"
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
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/journal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/tracing"
)

// Provisioner implements the provisioning library's interfaces for one term.
type Provisioner struct {
	Options
	limiter     *backoff.Limiter[string]
	tenantRates *tenantRates
	claimTimes  *claimTimes
	reschedules *reschedules
	cleaner     removal.Cleaner

	parkedClaims  *parkedClaims
	parkedVolumes *parkedVolumes
	journal       *journal.Journal
	followup      *Followup
	ledger        *ledger.Ledger
	placement     *placement.Placer
	sources       *copies.Resolver
	secrets       *secrets.Keeper
	// owners hold something about a claim until it is gone.
	owners []forgetter
}

// forgetter drops what it holds about a claim that is gone.
type forgetter interface{ Forget(claim types.UID) }

var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
	_ controller.DeletionGuard    = (*Provisioner)(nil)
)

// New makes the Provisioner of one term.
func New(options Options) *Provisioner {
	p := &Provisioner{
		Options:     options,
		limiter:     backoff.New[string](retry.For(nil)),
		tenantRates: newTenantRates(options.Policy),
		claimTimes:  newClaimTimes(),
		reschedules: newReschedules(),
		journal:     journal.New(),
		ledger:      ledger.New(options.Policy),
	}
	p.placement = placement.New(placement.Options{
		Policy: p.Policy, Ledger: p.ledger, Term: p.Term, Unfinished: p.journal.StampOf,
		Backends: func() []string { return p.Backends.Names() },
		Volumes:  func(backend string) (placement.Volumes, error) { return p.Backends.Volumes(backend) },
	})
	p.cleaner = removal.Cleaner{
		Client: p.Client, ProvisionerName: p.Name, Cluster: p.Cluster, ClusterUID: p.ClusterUID, Namespace: p.Namespace,
		RecordedBy: p.recordedBy, Nodes: p.Nodes, UseOf: p.useOf, Volumes: p.unrecordedVolumes,
	}
	p.sources = copies.NewResolver(copies.Options{
		Client: p.Client, Claims: p.Claims, IndexedClaims: p.IndexedClaims, PersistentVolumes: p.PersistentVolumes, Cluster: p.Cluster,
		Snapshots: p.Snapshots, SnapshotClient: p.SnapshotClient, Name: p.Name,
	})
	p.secrets = secrets.New(secrets.Options{
		Client: p.Client, PersistentVolumes: p.PersistentVolumes, Namespace: p.Namespace, Cluster: p.Cluster, Logger: p.Logger,
		MayBeUnrecorded: p.placement.MayBeUnrecorded, IsWanted: p.isWanted, ClaimsOfVolumes: p.claimsOfVolumes, MostAge: youngEnough,
		RemoveOwn: func(ctx context.Context, pvName string) error {
			if err := p.cleaner.RemoveSecret(ctx, pvName); !removal.IsKept(err) {
				return err
			}
			return nil
		},
	})
	p.parkedClaims, p.parkedVolumes = newParkedClaims(options, p.limiter), newParkedVolumes(options, p.limiter)
	p.followup = newFollowup(p, options.FollowupWorkers)
	p.owners = []forgetter{p.parkedClaims, p.placement, p.reschedules, p.claimTimes, p.journal}
	return p
}

// Cleaner returns what removes the things that nothing needs, with the term's backends.
func (p *Provisioner) Cleaner() removal.Cleaner { return p.cleaner }

func (p *Provisioner) unrecordedVolumes(backend string) (removal.Unrecorded, cinder.Connector, error) {
	volumes, err := p.Backends.Volumes(backend)
	if err != nil {
		return nil, cinder.Connector{}, err
	}
	connector, err := p.Backends.Connector(backend)
	return volumes, connector, err
}

// Placement returns what places and counts the volumes of the term.
func (p *Provisioner) Placement() *placement.Placer { return p.placement }

// Ledger returns the counts that the term's quotas are compared with.
func (p *Provisioner) Ledger() *ledger.Ledger { return p.ledger }

// Sources returns what finds the content that claims want.
func (p *Provisioner) Sources() *copies.Resolver { return p.sources }

// Followup returns what finishes the work that the library leaves unfinished.
func (p *Provisioner) Followup() *Followup { return p.followup }

// Limiter returns the retry delays of this term, for the library's queues.
func (p *Provisioner) Limiter() *backoff.Limiter[string] { return p.limiter }

// SupportsBlock reports that the program serves raw block claims.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

func (p *Provisioner) stopping() bool {
	select {
	case <-p.Stopping:
		return true
	default:
		return p.Term.Err() != nil
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
	// LabelsOfNode returns the labels of a node, if it is cached; nil if nothing
	// caches nodes.
	LabelsOfNode func(name string) (map[string]string, bool)
	// AttributesClass reads a VolumeAttributesClass from a cache. It is nil without the
	// CSI driver: then no claim gets a volume with such a class.
	AttributesClass func(name string) (*storagev1.VolumeAttributesClass, error)

	// Workers is how many claims, and how many deletions, are worked on at once.
	// The library must be given the same number.
	Workers int
	// FollowupWorkers is how many volumes are completed or undone at once. These
	// workers must not fall far behind those that serve claims.
	FollowupWorkers int
	// Requeue brings parked objects back.
	Requeue Requeue

	// Board is where the term publishes what may unblock work. The hub subscribes first.
	Board *parking.Board

	// Import is called with each claim that is to get a volume that exists at Cinder,
	// and LeftImport with each such volume whose claim is gone and that no
	// PersistentVolume names. Both are nil if nothing imports.
	Import     func(claim *corev1.PersistentVolumeClaim)
	LeftImport func(backend string, v cinder.Volume)
	// ParkedImports returns the claims whose imports wait; nil if nothing imports.
	ParkedImports func() *parking.Lot[*corev1.PersistentVolumeClaim]

	// Term ends with the lease. Undoing may continue until then.
	Term context.Context
	// Stopping is closed when the replica begins to hand over: it takes no new
	// work, and leaves what waits to the next leader.
	Stopping <-chan struct{}

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait
	// for, except turns at backends.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound

	Logger  *slog.Logger
	Metrics *Metrics
	Tracer  tracing.Tracer
}

// Volumes manages the volumes of one backend; *backends.Lifecycle implements it.
type Volumes interface {
	Connecting
	Removing
	Listing
	Status
}

// Connecting creates volumes and brings them into use.
type Connecting interface {
	Connect(ctx context.Context, spec backends.Spec) (backends.Connected, error)
	Complete(ctx context.Context, target backends.Target, readOnly bool) error
	// IsComplete reports whether Complete would do nothing, according to the term's
	// listing.
	IsComplete(target backends.Target) bool
	// Rebind stamps a volume for the claim that has it now.
	Rebind(ctx context.Context, target backends.Target, to stamps.Volume, own func(before stamps.Volume) map[string]string) (cinder.Volume, error)
	// Mark notes on a volume that it was recorded, without bringing it into use.
	Mark(ctx context.Context, target backends.Target) error
	// HasVolumeOf reports whether the claim has a volume.
	HasVolumeOf(ctx context.Context, stamp stamps.Volume) (bool, error)
	// KnowsNothingOf reports whether this term provably created nothing for the claim.
	KnowsNothingOf(stamp stamps.Volume) bool
}

// Removing removes volumes. Every removal needs a proof.
type Removing interface {
	// Remove removes the volume that a PersistentVolume names.
	Remove(ctx context.Context, target backends.Target) error
	// Abandon removes all unrecorded volumes of a claim.
	Abandon(ctx context.Context, stamp stamps.Volume, connector cinder.Connector, permit backends.Permit) error
	// RemoveUnrecorded removes one unrecorded volume.
	RemoveUnrecorded(ctx context.Context, volumeID string, stamp stamps.Volume, connector cinder.Connector, permit backends.Permit) error
	// Duplicates returns the IDs of volumes that were seen in addition to the
	// claim's recorded one, and forgets them.
	Duplicates(claimUID, recorded string) []string
}

// Listing shows which volumes exist.
type Listing interface {
	// Volumes lists the cluster's volumes, once in a term.
	Volumes(ctx context.Context) ([]cinder.Volume, error)
	// Relist lists them again.
	Relist(ctx context.Context) ([]cinder.Volume, error)
	// HasVolume reports whether the backend has the volume.
	HasVolume(ctx context.Context, volumeID string) (bool, error)
	// LastUncertain returns when the answer to a create request was last lost in this term.
	LastUncertain() time.Time
}

// Status reports a backend's health and place.
type Status interface {
	// Health returns nil while the backend answers.
	Health() error
	// Place returns the backend's endpoint and project; zero before its first login.
	Place() cinder.Place
}

// Backends provides the configured backends for this term.
type Backends interface {
	// Volumes returns an error if no backend of that name is configured.
	Volumes(name string) (Volumes, error)
	// Connector returns what identifies the nodes to which the backend connects its
	// volumes.
	Connector(name string) (cinder.Connector, error)
	// NodeLabels returns the labels of the nodes that can use the backend's volumes;
	// empty means all nodes.
	NodeLabels(name string) map[string]string
	// Mappings returns the backend's mappings by protocol.
	Mappings(name string) map[string]mapping.Mapping
	// Names lists every configured backend.
	Names() []string
}

// WatchTurns watches the queues for workers until the context ends. If nobody has a
// worker, somebody must get one.
func (p *Provisioner) WatchTurns(ctx context.Context) {
	go p.parkedVolumes.loop.Run(ctx)
	p.parkedClaims.loop.Run(ctx)
}

// Nodes determines which nodes use a volume; *nodeuse.Tracker implements it.
type Nodes interface {
	// Known reads a cache, so an empty answer proves nothing.
	Known(v nodeuse.Volume) ([]string, error)
	// Users reads from the API server.
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	// Watches reports whether NodeChanged will be called when a node releases a
	// volume.
	Watches() bool
	Forget(pv types.UID)
	// Attachments covers the volumes of the CSI driver.
	removal.Attachments
}
