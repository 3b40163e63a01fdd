package provisioner

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/fairshare"
	"github.com/standalone-cinder/standalone-cinder/provisioner/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/proof"
	"github.com/standalone-cinder/standalone-cinder/provisioner/retry"
	"github.com/standalone-cinder/standalone-cinder/provisioner/secrets"
)

// Volumes is the life of one backend's volumes; *backends.Lifecycle is it.
type Volumes interface {
	Connecting
	Removing
	Listing
	Standing
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
	// Seconds hands over the ids of volumes that were seen beside a recorded one.
	Seconds(claimUID, recorded string) []string
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

// Standing tells how a backend stands.
type Standing interface {
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
	Mappings(name string) map[string]mapping.Mapping
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

	// Hold ends when the term is lost; undoing work goes on until then.
	Hold context.Context
	// Stopping is closed when the replica was told to hand over: no new work
	// is taken, and waits are parked for the next leader.
	Stopping <-chan struct{}

	Logger  *slog.Logger
	Metrics *Metrics
}

// Provisioner implements the provisioning library's interfaces for one term.
type Provisioner struct {
	Options
	limiter *backoff.Limiter
	paces   *paces
	cleaner proof.Cleaner

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
		Options: options,
		limiter: backoff.New(retry.For(nil)),
		paces:   newPaces(options.Policy),
		parked:  newParked(options),
		journal: newJournal(),
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
		return p.Hold.Err() != nil
	}
}

// handingOver is returned instead of an error when work is parked: the library
// then neither writes an event nor retries.
func handingOver() error {
	return &controller.IgnoredError{Reason: "this replica hands over; the next leader goes on"}
}

// Provision makes, or finds again, the volume of a claim and returns the
// PersistentVolume for it. Any step may have been done by an earlier attempt,
// of this leader or another.
func (p *Provisioner) Provision(ctx context.Context, options controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	started := time.Now()
	claim := options.PVC
	attempt := &attempt{p: p, claim: claim, class: options.StorageClass, pvName: options.PVName, since: p.parked.now()}
	defer attempt.endTurn()
	defer p.leaveIfGone(claim)
	pv, err := attempt.run(ctx)
	switch {
	case err == nil:
		p.parked.claims.Forget(claim.UID)
		p.limiter.Succeeded(string(claim.UID))
		p.Metrics.provisioned(attempt.backend, attempt.protocol, "success", time.Since(started))
		return pv, controller.ProvisioningFinished, nil
	case p.stopping() || errors.Is(err, errNothingToDo):
		return nil, controller.ProvisioningFinished, ignored(err)
	}
	if unhealthy := p.placement.health(attempt.backend); unhealthy != nil {
		p.Metrics.provisioned(attempt.backend, attempt.protocol, "held_back", time.Since(started))
		p.deny(claim, *p.placement.unavailable([]ledger.PassedOver{{Backend: attempt.backend, Why: unhealthy.Error()}}, attempt.decision.Backends), attempt.since)
		return nil, controller.ProvisioningFinished, &controller.IgnoredError{Reason: unhealthy.Error()}
	}
	if backends.IsKind(err, backends.KindOverQuota) {
		p.placement.noteFull(attempt.backend, attempt.decision.Volume, err)
		if p.placement.couldGoElsewhere(claim.UID, attempt.decision) {
			p.parked.requeueClaims([]*corev1.PersistentVolumeClaim{claim})
			return nil, controller.ProvisioningFinished, &controller.IgnoredError{Reason: err.Error()}
		}
	}
	retry := retry.For(err)
	p.limiter.Failed(string(claim.UID), retry)
	p.parked.parkClaim(claim, parking.Failing, attempt.helps(), attempt.since)
	p.Metrics.provisioned(attempt.backend, attempt.protocol, retry.Outcome, time.Since(started))
	// Finished, although the volume may be there: what an unfinished attempt
	// leaves is remembered in begun and at Cinder, not in the library, whose
	// memory ends with the process.
	return nil, controller.ProvisioningFinished, err
}

func ignored(err error) error {
	if errors.Is(err, errNothingToDo) {
		return &controller.IgnoredError{Reason: err.Error()}
	}
	return handingOver()
}

// errNothingToDo ends an attempt for which there is no reason any more.
var errNothingToDo = errors.New("the claim is gone or no longer granted")
