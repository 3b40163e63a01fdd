package app

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/library"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/portnames"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/expand"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports/claims"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/moves"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/schedules"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

// followupWorkers is how many workers complete volumes after their claims are served. A
// backend that does not answer occupies at most half of them.
const followupWorkers = 64

// term is a leader's own state, from election to hand-over.
type term struct {
	// board is where everything that may unblock other work is published.
	board       *parking.Board
	backends    *termBackends
	provisioner *provisioner.Provisioner
	expander    *expand.Controller
	importer    *claims.Controller
	snapshots   *snapshot.Controller
	schedules   *schedules.Controller
	moves       *moves.Reporter
	auditor     *auditor
	pods        *pods
	// sidecars is nil without the CSI driver.
	sidecars *csiTerm
	// reach is what attaching in mode csi has shown about volume types.
	reach *attach.Reach
	// gate decides who may attach a volume.
	gate *attach.Gate
	// features run beside the hub, and hear of objects after it, in this order.
	features  []feature
	informers termInformers
	library   *controller.ProvisionController
	// workers are the library's own workers, which it starts itself.
	workers sync.WaitGroup
}

// feature works beside the hub until the context ends. One that is also a claimWatcher or
// a volumeWatcher hears of these objects.
type feature interface{ Run(ctx context.Context) }

// policyChanged wakes whatever waits for another policy.
func (t *term) policyChanged() {
	t.backends.update()
	t.provisioner.PolicyChanged()
}

// credentialsChanged retries what may have failed because of the old credentials.
func (t *term) credentialsChanged(backends []string) {
	t.backends.tryAgain(backends)
	t.publish(parking.Credentials, backends...)
}

// publish retries what waits for a change of one of these objects or backends.
func (t *term) publish(kind parking.TriggerKind, names ...string) {
	triggers := make([]parking.Trigger, len(names))
	for i, name := range names {
		triggers[i] = parking.Trigger{Kind: kind, Name: name}
	}
	t.board.Publish(triggers...)
}

// runTerm leads from election to hand-over. stop ends the acceptance of new work;
// termCtx ends with the lease and cuts off requests under way. runTerm returns when
// nothing of this term is running. changed is when an earlier leader can have changed
// something for the last time.
func (e *elector) runTerm(stop, termCtx context.Context, fence func() error, changed time.Time) error {
	e.status.setLeading(true)
	defer e.status.setLeading(false)
	e.dialer.StopBatching()
	defer e.dialer.StartBatching()
	termCtx, cut := context.WithCancel(termCtx)
	defer cut()
	e.leads.Store(&leadership{ctx: termCtx, fence: fence})
	defer e.leads.Store(&leadership{ctx: termCtx, fence: notLeading})
	e.logger.Info("Leading", "identity", e.identity)

	stop, handOver := context.WithCancel(stop)
	defer handOver()
	// Work stops when either context ends.
	work, stopWork := context.WithCancel(termCtx)
	defer stopWork()
	defer context.AfterFunc(stop, stopWork)()

	t := e.newTerm(work, termCtx, fence, handOver)
	t.backends.changed = changed
	seen, err := t.follow()
	if err != nil {
		return err
	}
	// Before the first decision, the ledger must have counted every PersistentVolume
	// and whatever may be growing.
	if !cache.WaitForCacheSync(work.Done(), seen...) {
		// The queues of a term exist from its beginning, and end with those who work on
		// them.
		<-t.start(work, func() {})
		return t.informers.release()
	}
	e.leads.Store(&leadership{ctx: termCtx, fence: fence, term: t, since: time.Now()})
	e.reportTroubles()

	drained := t.start(work, func() { e.noteEarlierClaims(work, t.provisioner) })
	<-work.Done()
	if stop.Err() != nil {
		e.logger.Info("Handing over: waiting for requests in flight to finish", "drainTimeout", e.options.DrainTimeout)
	}
	select {
	case <-drained:
	case <-time.After(e.options.DrainTimeout):
		e.logger.Warn("Drain timeout exceeded, so requests in flight are aborted; the next leader determines their outcome")
		cut()
		<-drained
	}
	e.logger.Info("No longer leading", "identity", e.identity)
	return t.informers.release()
}

// start runs all parts of a term until the context ends. It closes the channel when
// none of them is running any more.
func (t *term) start(work context.Context, first func()) (drained <-chan struct{}) {
	var running sync.WaitGroup
	running.Go(first)
	running.Go(func() { t.library.Run(work) })
	running.Go(func() { t.provisioner.Run(work) })
	for _, feature := range t.features {
		running.Go(func() { feature.Run(work) })
	}
	ended := make(chan struct{})
	go func() {
		<-work.Done()
		running.Wait()
		t.workers.Wait()
		close(ended)
	}()
	return ended
}

// portNames returns a reader of the nodes' port names that says on the nodes what is
// wrong with them.
func (e *elector) portNames() *portnames.Pools {
	pools := portnames.New(e.client)
	pools.Skipped = func(node, why string) {
		e.recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, corev1.EventTypeWarning, portnames.ReasonInvalidPortNames, why)
		e.logger.Warn("A node gets no new volumes by Fibre Channel, since its port names are not known", "node", node, "error", why)
	}
	return pools
}

// newTerm makes everything that a leader needs, but starts nothing. handOver ends the
// term as a stop of the process does.
func (e *elector) newTerm(work, termCtx context.Context, fence func() error, handOver func()) *term {
	board := parking.NewBoard()
	t := &term{
		board: board,
		backends: &termBackends{
			board:      board,
			policy:     e.policy.Load,
			retired:    &e.retired,
			cluster:    e.cluster,
			pool:       e.pool,
			metrics:    e.backendMetrics,
			fence:      fence,
			changing:   e.terminationLog.Change,
			readLag:    e.options.ReadLag,
			termCtx:    termCtx,
			logger:     e.logger,
			nodes:      e.portNames(),
			watchQueue: func(name string) { e.watchQueue(work, name) },
			lifecycles: map[string]*termBackend{},
		},
		informers: e.lendInformers(),
		reach:     attach.NewReach(),
		gate:      attach.NewGate(),
	}
	snapshots, nodes := &snapshot.Caches{}, nodeuse.New(nodeuse.Options{Client: e.client, Caches: e.nodes.caches()})
	t.provisioner = provisioner.New(provisioner.Options{
		Name:              e.options.ProvisionerName,
		Cluster:           e.cluster,
		ClusterUID:        e.clusterUID,
		Namespace:         e.namespace,
		Policy:            e.policy.Load,
		Backends:          t.backends,
		Mappers:           e.mappers,
		Client:            e.client,
		Snapshots:         snapshots,
		SnapshotClient:    e.snapshotClient,
		Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Lister(),
		IndexedClaims:     e.factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(),
		Records:           e.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
		Nodes:             nodes,
		LabelsOfNode:      e.nodes.labelsOf,
		AttributesClass:   e.attributesClass(),
		NodesRefuse: func(backend, volumeType string) error {
			return t.reach.Refusal(backend, volumeType, t.backends.attachRules(backend).CephSecret)
		},
		Namespaces:      e.factory.Core().V1().Namespaces().Lister(),
		Classes:         e.factory.Storage().V1().StorageClasses().Lister(),
		Recorder:        e.recorder,
		Workers:         e.options.Workers,
		FollowupWorkers: followupWorkers,
		Requeue: provisioner.Requeue{
			Claim:  func(claim *corev1.PersistentVolumeClaim) { t.informers.claims.Requeue(claim) },
			Volume: func(pv *corev1.PersistentVolume) { t.informers.volumes.Requeue(pv) },
		},
		Board: board,

		Term:     termCtx,
		Stopping: work.Done(),
		Logger:   e.logger,
		Metrics:  e.provisionerMetrics,
		Tracer:   tracing.New(e.options.Traces),

		Monitor:     e.monitor,
		MaxWorkTime: e.maxWorkTime,
	})
	t.snapshots = e.newSnapshots(t, snapshots, nodes)
	t.schedules = e.newSchedules(t, snapshots)
	t.moves = e.newMoves()
	t.backends.moved = t.provisioner.Recount
	t.expander = e.newExpander(t)
	t.importer = e.newImporter(t, nodes)
	t.provisioner.Imports(t.importer)
	t.auditor = e.newAuditor(t)
	t.pods = &pods{replica: e.replica}
	t.features = []feature{e.newProtector(t), t.snapshots, t.schedules, t.expander, t.importer, t.auditor, &keeper{replica: e.replica}, t.pods}
	if e.options.TenantStatus {
		t.features = append(t.features, e.newTenantStatuses(t))
	}
	if t.sidecars = e.newCSI(work, termCtx, t, handOver); t.sidecars != nil {
		t.features = append(t.features, t.sidecars)
		if e.options.TaintLostNodes {
			t.features = append(t.features, e.newOutOfService(t))
		}
	}
	t.library = e.newLibrary(work, t)
	t.library.ControllerWaitGroup(&t.workers)
	return t
}

// newLibrary makes a term's controller of the provisioning library.
func (e *elector) newLibrary(work context.Context, t *term) *controller.ProvisionController {
	client := &library.Client{Interface: e.client, Recorder: e.recorder, Volumes: e.factory.Core().V1().PersistentVolumes().Lister(), Provisioner: e.options.ProvisionerName}
	return controller.NewProvisionController(work, client, e.options.ProvisionerName, t.provisioner,
		controller.LeaderElection(false),
		controller.AdditionalProvisionerNames([]string{policy.CSIDriver}),
		controller.ClaimsInformer(t.informers.claims),
		controller.VolumesInformer(t.informers.volumes),
		controller.ClassesInformer(t.informers.classes),
		controller.Threadiness(e.options.Workers),
		controller.RateLimiter(t.provisioner.Limiter()),
		controller.ResyncPeriod(resyncPeriod),
		// Never stop retrying, or a volume would be forgotten.
		controller.FailedProvisionThreshold(0),
		controller.FailedDeleteThreshold(0),
		controller.AddFinalizer(true),
		controller.CreateProvisionedPVBackoff(wait.Backoff{Duration: 100 * time.Millisecond, Factor: 3, Steps: 4}),
		controller.MetricsPort(0),
		controller.MetricsInstance(e.libraryMetrics),
	)
}

func (e *elector) newAuditor(t *term) *auditor {
	return &auditor{
		policy: e.policy.Load,
		client: e.client,
		caches: objects.Caches{
			Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
			PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Lister(),
		},
		cluster:         e.cluster,
		clusterUID:      e.clusterUID,
		namespace:       e.namespace,
		provisionerName: e.options.ProvisionerName,
		provisioner:     t.provisioner,
		backends:        t.backends,
		snapshots:       t.snapshots,
		isGone:          t.backends.isGone,
		metrics:         e.audits,
		tell:            e.tell,
		record: func(pv *corev1.PersistentVolume, reason, message string) {
			e.recorder.Event(pv, corev1.EventTypeWarning, reason, message)
		},
		warn: e.logger.Warn,
	}
}

// noteEarlierClaims lists the claims that exist when the term begins. It sends the
// request now, to the server that granted the lease.
func (e *elector) noteEarlierClaims(ctx context.Context, p *provisioner.Provisioner) {
	for {
		earlier, err := objects.ListEarlierClaims(ctx, e.client)
		if err == nil {
			p.NoteEarlier(earlier)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

// termInformers are the process's informers, lent for one term.
type termInformers struct {
	volumes, claims, namespaces, classes, nodes, attachments *termInformer
	// attributes and reports are nil without the CSI driver.
	attributes, reports *termInformer
}

func (e *elector) lendInformers() termInformers {
	own := e.processInformers()
	lent := termInformers{
		volumes:     e.lend(own.volumes),
		claims:      e.lend(own.claims),
		namespaces:  e.lend(own.namespaces),
		classes:     e.lend(own.classes),
		nodes:       e.lend(own.nodes),
		attachments: e.lend(own.attachments),
	}
	if own.attributes != nil {
		lent.attributes, lent.reports = e.lend(*own.attributes), e.lend(*own.reports)
	}
	return lent
}

// release stops the informers from notifying the term.
func (lent termInformers) release() error {
	for _, informer := range []*termInformer{lent.volumes, lent.claims, lent.namespaces, lent.classes, lent.nodes, lent.attachments, lent.attributes, lent.reports} {
		if informer == nil {
			continue
		}
		if err := informer.Release(); err != nil {
			return err
		}
	}
	return nil
}

var _ workqueue.TypedRateLimiter[string] = (*backoff.Limiter[string])(nil)
