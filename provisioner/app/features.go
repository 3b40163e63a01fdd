package app

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/frozen"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/expand"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/freeze"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports/claims"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/moves"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/schedules"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/tenantstatus"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// expandWorkers is how many volumes are extended at once. A storage array may take its
// time, and there must be a worker for other backends and tenants.
const expandWorkers = 16

// newProtector makes a term's protection of claims that are copied.
func (e *elector) newProtector(t *term) *copies.Protector {
	return copies.NewProtector(copies.ProtectorOptions{
		Resolver:    t.provisioner.Sources(),
		Client:      e.client,
		Claims:      e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		Classes:     e.factory.Storage().V1().StorageClasses().Lister(),
		Board:       t.board,
		Logger:      e.logger,
		Monitor:     e.monitor,
		MaxWorkTime: e.maxWorkTime,
	})
}

// newExpander makes a term's expansion controller.
func (e *elector) newExpander(t *term) *expand.Controller {
	return expand.New(expand.Options{
		Name:              e.options.ProvisionerName,
		Cluster:           e.cluster,
		Policy:            e.policy.Load,
		Room:              t.provisioner.Placement(),
		Growths:           t.provisioner.Ledger(),
		Volumes:           func(backend string) (expand.Volumes, error) { return t.backends.current(backend) },
		OnBehalfOf:        t.provisioner.OnBehalfOf,
		Client:            e.client,
		Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Lister(),
		Namespaces:        e.factory.Core().V1().Namespaces().Lister(),
		Recorder:          e.recorder,
		Sidecar:           e.csiSocket != nil,
		TrustParameters:   e.options.CSITrustParameters,
		Workers:           expandWorkers,
		Monitor:           e.monitor,
		MaxWorkTime:       e.maxWorkTime,
		Board:             t.board,
		Logger:            e.logger,
		Metrics:           e.expandMetrics,
		Tracer:            tracing.New(e.options.Traces),
	})
}

const (
	// importWorkers is how many volumes are imported at once.
	importWorkers = 8
	// importListings is how long claims share one full listing of a backend. A tenant
	// who corrects something at Cinder and looks again must see the effect.
	importListings = 2 * time.Second
)

// newImporter makes a term's controller for imports by tenants.
func (e *elector) newImporter(t *term, nodes *nodeuse.Tracker) *claims.Controller {
	return claims.New(claims.Options{
		Site: imports.Site{
			ProvisionerName: e.options.ProvisionerName,
			Cluster:         e.cluster,
			ClusterUID:      e.clusterUID,
			Namespace:       e.namespace,
			Mappers:         e.mappers,
			Nodes:           nodes,
			Secrets:         t.provisioner.Secrets(),
			Client:          e.client,
			Caches: objects.Objects{
				Claims:            e.factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(),
				PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
				Classes:           e.factory.Storage().V1().StorageClasses().Informer().GetIndexer(),
				Namespaces:        e.factory.Core().V1().Namespaces().Informer().GetIndexer(),
			},
		},
		Policy:      e.policy.Load,
		Room:        t.provisioner.Placement(),
		Volumes:     func(backend string) (claims.Volumes, error) { return t.backends.current(backend) },
		Connector:   t.backends.Connector,
		OnBehalfOf:  t.provisioner.OnBehalfOf,
		Provision:   t.provisioner.RequeueClaim,
		Recorder:    e.recorder,
		Workers:     importWorkers,
		Monitor:     e.monitor,
		MaxWorkTime: e.maxWorkTime,
		Board:       t.board,
		Logger:      e.logger,
		Tracer:      tracing.New(e.options.Traces),
		Count:       e.importMetrics.count,

		ShareListings: importListings,
	})
}

const (
	// snapshotWorkers is how many snapshots are taken or removed at once.
	snapshotWorkers = 64
	// lookForSnapshots is how often to look for the snapshot resources until their CRDs
	// are installed. Each look costs one request.
	lookForSnapshots = 5 * time.Second
	// snapshotTakeUpTime covers the time in which the snapshot-controller binds a
	// VolumeSnapshot and the program imports its snapshot. A sidecar has a worker less
	// while it waits.
	snapshotTakeUpTime = 2 * time.Second
)

// newSnapshots makes a term's snapshot controller.
func (e *elector) newSnapshots(t *term, caches *snapshot.Caches, nodes *nodeuse.Tracker) *snapshot.Controller {
	return snapshot.New(snapshot.Options{
		Name:              e.options.ProvisionerName,
		Cluster:           e.cluster,
		ClusterUID:        e.clusterUID,
		CSI:               e.csiSocket != nil,
		Policy:            e.policy.Load,
		Backends:          snapshotBackends{t.backends},
		Ledger:            t.provisioner.Ledger(),
		Caches:            caches,
		Client:            e.client,
		Snapshots:         e.snapshotClient,
		Definitions:       e.metadataClient,
		Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
		Namespaces:        e.factory.Core().V1().Namespaces().Lister(),
		Recorder:          e.recorder,
		Caller:            t.provisioner.OnBehalfOf,
		Freezer:           freeze.New(freeze.Options{Client: e.client, Namespace: e.namespace, Uses: nodes, Gate: t.gate, AtMost: frozen.Longest, Logger: e.logger}),
		Board:             t.board,
		Workers:           snapshotWorkers,
		LookAgain:         lookForSnapshots,
		TakeUpTime:        snapshotTakeUpTime,
		Monitor:           e.monitor,
		MaxWorkTime:       e.maxWorkTime,
		Logger:            e.logger,
		Metrics:           e.snapshotMetrics,
	})
}

// snapshotBackends presents the term's backends to the snapshot controller.
type snapshotBackends struct{ *termBackends }

func (b snapshotBackends) on(of snapshot.Shelf) (backends.Snapshots, error) {
	lifecycle, err := b.current(of.Backend)
	if err != nil {
		return backends.Snapshots{}, err
	}
	if of.Backups {
		return lifecycle.Snapshots().Backups(), nil
	}
	return lifecycle.Snapshots(), nil
}

func (b snapshotBackends) Snapshots(of snapshot.Shelf) (snapshot.Snapshots, error) { return b.on(of) }
func (b snapshotBackends) Existing(of snapshot.Shelf) (snapshot.Existing, error)   { return b.on(of) }
func (b snapshotBackends) Groups(name string) (snapshot.Groups, error) {
	return b.on(snapshot.Shelf{Backend: name})
}

func (b snapshotBackends) Health(name string) error {
	lifecycle, err := b.current(name)
	if err != nil {
		return nil
	}
	return lifecycle.Health()
}

// newTenantStatuses makes a term's controller of the tenants' own objects.
func (e *elector) newTenantStatuses(t *term) *tenantstatus.Controller {
	return tenantstatus.New(tenantstatus.Options{
		Objects:     tenantstatus.NewStored(e.metadataClient, e.options.ProvisionerName),
		Policy:      e.policy.Load,
		Usage:       t.provisioner.Ledger().Usage,
		Waiting:     t.waitingForTenants,
		Namespaces:  e.factory.Core().V1().Namespaces().Lister(),
		Tell:        func(message string) { e.tell(corev1.EventTypeWarning, "TenantStatusNotKept", message) },
		Board:       t.board,
		Monitor:     e.monitor,
		MaxWorkTime: e.maxWorkTime,
		Logger:      e.logger,
	})
}

// newSchedules makes a term's controller of scheduled snapshots.
func (e *elector) newSchedules(t *term, snapshots *snapshot.Caches) *schedules.Controller {
	return schedules.New(schedules.Options{
		Name:              e.options.ProvisionerName,
		Cluster:           e.cluster,
		Policy:            e.policy.Load,
		Snapshots:         snapshots,
		Client:            e.snapshotClient,
		Kubernetes:        e.client,
		Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Lister(),
		Namespaces:        e.factory.Core().V1().Namespaces().Lister(),
		Recorder:          e.recorder,
		Tell:              func(message string) { e.tell(corev1.EventTypeWarning, "SchedulesNotKept", message) },
		Metrics:           e.scheduleMetrics,
		Board:             t.board,
		Monitor:           e.monitor,
		MaxWorkTime:       e.maxWorkTime,
		Logger:            e.logger,
	})
}

// newMoves makes a term's view of moves between backends.
func (e *elector) newMoves() *moves.Reporter {
	return moves.New(moves.Options{
		Name:              e.options.ProvisionerName,
		Cluster:           e.cluster,
		Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Lister(),
		Recorder:          e.recorder,
	})
}

// waitingForTenants lists the tenants' objects that cannot continue, with what their events
// say.
func (t *term) waitingForTenants() []tenantstatus.Waiting {
	claims := t.provisioner.ParkedClaims()
	for i, one := range claims {
		if one.State == parking.Failing {
			// The library has written this event.
			claims[i].EventReason, claims[i].Event = "ProvisioningFailed", one.Message
		}
	}
	all := waitingAs("PersistentVolumeClaim", claims)
	all = append(all, waitingAs("PersistentVolumeClaim", t.importer.Parked().List())...)
	all = append(all, waitingAs("PersistentVolumeClaim", t.expander.Parked().List())...)
	all = append(all, waitingAs("PersistentVolumeClaim", t.schedules.Parked().List())...)
	for _, one := range t.snapshots.Parked().List() {
		// Contents are the administrators'.
		if one.Object.GetNamespace() != "" {
			all = append(all, waitingAs(snapshot.KindOf(one.Object), []parking.Parked[metav1.Object]{one})...)
		}
	}
	return all
}

// waitingAs leaves out what only waits for its turn, or for another program.
func waitingAs[T metav1.Object](kind string, parked []parking.Parked[T]) []tenantstatus.Waiting {
	var all []tenantstatus.Waiting
	for _, one := range parked {
		if one.State != parking.Waiting && one.State != parking.Left {
			all = append(all, tenantstatus.Waiting{
				Namespace: one.Object.GetNamespace(), Kind: kind, Name: one.Object.GetName(),
				State: string(one.State), Reason: one.EventReason, Message: one.Event, Since: metav1.NewTime(one.Since),
			})
		}
	}
	return all
}
