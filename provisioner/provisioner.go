// Package provisioner is where claims meet policy, Cinder and protocols.
//
// A claim's way through it: admission (does the policy grant it, and can any
// source honor it) → Provision (backend, volume, connection, mapping, Secret,
// PersistentVolume) → completion (the volume's last step to in-use, once the
// PersistentVolume is in the API server). Delete goes the way back from what
// the PersistentVolume records, never from the current policy.
//
// A Provisioner lives as long as one leader's term and holds all of the term's
// mutable state.
package provisioner

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/fairshare"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/proof"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/secrets"
)

// Volumes is the life of one backend's volumes; *backends.Lifecycle is it.
type Volumes interface {
	Connecting
	Removing
	Listing
	Status
}

// Connecting makes volumes and brings them into use.
type Connecting interface {
	Connect(ctx context.Context, spec backends.Spec) (backends.Connected, error)
	Complete(ctx context.Context, target backends.Target, readOnly bool) error
	// Mark writes on a volume that it was recorded, without bringing it into use.
	Mark(ctx context.Context, target backends.Target) error
	// Holds says whether there is a volume of the claim.
	Holds(ctx context.Context, stamp backends.Stamp) (bool, error)
	// Untouched says that this term provably made nothing for the claim.
	Untouched(stamp backends.Stamp) bool
}

// Removing removes volumes, each with a proof of its own.
type Removing interface {
	// Remove removes the volume that a PersistentVolume names.
	Remove(ctx context.Context, target backends.Target) error
	// Abandon removes all volumes of a claim that no PersistentVolume names.
	Abandon(ctx context.Context, stamp backends.Stamp, connector backends.Connector, permit backends.Permit) error
	// RemoveUnrecorded removes one of them.
	RemoveUnrecorded(ctx context.Context, volumeID string, stamp backends.Stamp, connector backends.Connector, permit backends.Permit) error
	// Duplicates hands over the ids of volumes that were seen beside a recorded one.
	Duplicates(claimUID, recorded string) []string
}

// Listing tells what volumes there are.
type Listing interface {
	// Volumes lists the cluster's volumes, once in a term.
	Volumes(ctx context.Context) ([]backends.Volume, error)
	// Relist lists them anew.
	Relist(ctx context.Context) ([]backends.Volume, error)
	Has(ctx context.Context, volumeID string) (bool, error)
	// LastDoubt is when the answer to a create was lost last in this term.
	LastDoubt() time.Time
}

// Status tells how a backend stands.
type Status interface {
	// Health is nil while the backend answers.
	Health() error
	// Place is where the backend leads; zero before it was asked anything.
	Place() backends.Place
}

// Backends gives the volumes of a backend for this term.
type Backends interface {
	// Volumes returns an error when no backend of that name is configured.
	Volumes(name string) (Volumes, error)
	// Connector is what the backend's volumes are connected to.
	Connector(name string) (backends.Connector, error)
	// NodeLabels select the nodes that the backend's volumes are for; empty
	// means all.
	NodeLabels(name string) map[string]string
	// Mappings says, by protocol, what the backend's connections become.
	Mappings(name string) map[string]mappers.Mapping
	// Names lists every configured backend.
	Names() []string
}

// Nodes tells which nodes use a volume; *nodeuse.Tracker does.
type Nodes interface {
	// Known answers from a cache: none does not mean that none does.
	Known(v nodeuse.Volume) ([]string, error)
	// Users asks the API server.
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	// Watches says that NodeChanged will be called when a node lets a volume go.
	Watches() bool
	Forget(pv types.UID)
}

// Options configure a Provisioner.
type Options struct {
	// Name is what StorageClasses and PersistentVolumes call the program.
	Name string
	// Cluster is stamped on every volume.
	Cluster string
	// ClusterUID is the UID of namespace kube-system, stamped beside it.
	ClusterUID string
	// Namespace is the program's own; its Secrets live there.
	Namespace string

	// Policy returns the policy in force.
	Policy   func() *policy.Policy
	Backends Backends
	Mappers  *mappers.Registry

	Client            kubernetes.Interface
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	// Records is the cache of PersistentVolumes, with the indexes of
	// record.Indexers.
	Records    cache.Indexer
	Namespaces corelisters.NamespaceLister
	Classes    storagelisters.StorageClassLister
	Recorder   eventrecord.EventRecorder
	Nodes      Nodes

	// Workers is how many claims, and as many deletions, are worked on at once;
	// the library must have as many.
	Workers int
	// FollowupWorkers is how many of them complete and undo at once. They must not
	// fall far behind those that serve claims.
	FollowupWorkers int
	// Requeue brings objects back that were parked.
	Requeue Requeue

	// Term ends when the term is lost; undoing work goes on until then.
	Term context.Context
	// Stopping is closed when the replica was told to hand over: no new work
	// is taken, and waits are parked for the next leader.
	Stopping <-chan struct{}

	Logger  *slog.Logger
	Metrics *Metrics
}

// Provisioner implements the provisioning library's interfaces for one term.
type Provisioner struct {
	Options
	limiter     *backoff.Limiter
	tenantRates *tenantRates
	cleaner     proof.Cleaner

	claimTurns  *fairshare.Turns[types.UID] // claims
	volumeTurns *fairshare.Turns[string]    // PersistentVolumes, by name
	journal     *journal
	parked      *parked
	followup    *Followup
	placement   *placement
	secrets     *secrets.Keeper
}

var (
	_ controller.Provisioner      = (*Provisioner)(nil)
	_ controller.BlockProvisioner = (*Provisioner)(nil)
	_ controller.Qualifier        = (*Provisioner)(nil)
	_ controller.DeletionGuard    = (*Provisioner)(nil)
)

// New makes the provisioner of one term.
func New(options Options) *Provisioner {
	p := &Provisioner{
		Options:     options,
		limiter:     backoff.New(retry.For(nil)),
		tenantRates: newTenantRates(options.Policy),
		parked:      newParked(options),
		journal:     newJournal(),
	}
	p.placement = newPlacement(options, p.journal)
	p.cleaner = proof.Cleaner{
		Client: p.Client, ProvisionerName: p.Name, Cluster: p.Cluster, ClusterUID: p.ClusterUID, Namespace: p.Namespace,
		RecordedBy: p.recordedBy, Nodes: p.Nodes, UseOf: p.useOf, Volumes: p.unrecordedVolumes,
	}
	p.secrets = secrets.New(secrets.Options{
		Client: p.Client, PersistentVolumes: p.PersistentVolumes, Namespace: p.Namespace, Cluster: p.Cluster, Logger: p.Logger,
		MayBeUnrecorded: p.placement.mayBeUnrecorded, Wanted: p.wantedClaims, ClaimsOfVolumes: p.claimsOfVolumes, MostAge: youngEnough,
		RemoveOwn: func(ctx context.Context, pvName string) error {
			if err := p.cleaner.RemoveSecret(ctx, pvName); !proof.IsKept(err) {
				return err
			}
			return nil
		},
	})
	p.claimTurns = fairshare.New(options.Workers, p.ownTurns, p.parked.inviteClaim)
	p.volumeTurns = fairshare.New(options.Workers, p.ownTurns, p.parked.inviteVolume)
	p.followup = newFollowup(p, options.FollowupWorkers)
	return p
}

// Cleaner removes what is nobody's, with the term's backends.
func (p *Provisioner) Cleaner() proof.Cleaner { return p.cleaner }

func (p *Provisioner) unrecordedVolumes(backend string) (proof.Unrecorded, backends.Connector, error) {
	volumes, err := p.Backends.Volumes(backend)
	if err != nil {
		return nil, backends.Connector{}, err
	}
	connector, err := p.Backends.Connector(backend)
	return volumes, connector, err
}

// Followup does what is left when the library is done with an object.
func (p *Provisioner) Followup() *Followup { return p.followup }

// Limiter is the retry delays of this term, for the library's queues.
func (p *Provisioner) Limiter() *backoff.Limiter { return p.limiter }

// SupportsBlock says that raw block claims are served.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

func (p *Provisioner) stopping() bool {
	select {
	case <-p.Stopping:
		return true
	default:
		return p.Term.Err() != nil
	}
}
