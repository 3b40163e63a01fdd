package app

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/library"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/portnames"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/copies"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/expand"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports/claims"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/work/tracing"
)

// followupWorkers is how many workers complete volumes after their claims are served. A
// backend that does not answer occupies at most half of them.
const followupWorkers = 64

// term is a leader's own state, from election to hand-over.
type term struct {
	backends    *termBackends
	provisioner *provisioner.Provisioner
	expander    *expand.Controller
	importer    *claims.Controller
	informers   termInformers
	auditor     *auditor
	snapshots   *snapshot.Controller
	keeper      *keeper
	protector   *copies.Protector
	// csi is nil unless there are sidecars.
	csi     *csiTerm
	library *controller.ProvisionController
	// workers are the library's own workers, which it starts itself.
	workers sync.WaitGroup
}

// policyChanged wakes whatever waits for another policy.
func (t *term) policyChanged() {
	t.backends.update()
	t.provisioner.PolicyChanged()
}

// credentialsChanged retries what may have failed because of the old credentials.
func (t *term) credentialsChanged(backends []string) {
	t.backends.tryAgain(backends)
	t.provisioner.CredentialsChanged(backends)
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
	counted, err := t.informers.follow(t.provisioner, t.protector, t.snapshots)
	if err != nil {
		return err
	}
	held, err := t.informers.followExpansions(t.expander)
	if err != nil {
		return err
	}
	if err := t.informers.followImports(t.importer); err != nil {
		return err
	}
	// Before the first decision, the ledger must have counted every PersistentVolume
	// and whatever may be growing.
	if !cache.WaitForCacheSync(work.Done(), counted, held) {
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
	running.Go(func() { t.provisioner.Followup().Run(work) })
	running.Go(func() { t.provisioner.CountBackends(work) })
	running.Go(func() { t.provisioner.Sweep(work) })
	running.Go(func() { t.provisioner.WatchTurns(work) })
	running.Go(func() { t.expander.Run(work) })
	running.Go(func() { t.importer.Run(work) })
	running.Go(func() { t.auditor.run(work) })
	running.Go(func() { t.keeper.run(work) })
	running.Go(func() { t.snapshots.Run(work) })
	running.Go(func() { t.protector.Run(work) })
	if t.csi != nil {
		running.Go(func() { t.csi.run(work) })
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
	t := &term{
		backends: &termBackends{
			policy:     e.policy.Load,
			retired:    &e.retired,
			cluster:    e.cluster,
			pool:       e.pool,
			metrics:    e.backendMetrics,
			fence:      fence,
			readLag:    e.options.ReadLag,
			termCtx:    termCtx,
			logger:     e.logger,
			nodes:      e.portNames(),
			watchQueue: func(name string) { e.watchQueue(work, name) },
			lifecycles: map[string]*termBackend{},
		},
		informers: e.lendInformers(),
	}
	board := parking.NewBoard()
	t.provisioner = provisioner.New(provisioner.Options{
		Name:              e.options.ProvisionerName,
		Cluster:           e.cluster,
		ClusterUID:        e.clusterUID,
		Namespace:         e.namespace,
		Policy:            e.policy.Load,
		Backends:          t.backends,
		Mappers:           e.mappers,
		Client:            e.client,
		Snapshots:         cachedSnapshots{t},
		SnapshotClient:    e.snapshotClient,
		Claims:            e.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: e.factory.Core().V1().PersistentVolumes().Lister(),
		IndexedClaims:     e.factory.Core().V1().PersistentVolumeClaims().Informer().GetIndexer(),
		Records:           e.factory.Core().V1().PersistentVolumes().Informer().GetIndexer(),
		Nodes:             nodeuse.New(nodeuse.Options{Client: e.client, Caches: e.nodes.caches()}),
		LabelsOfNode:      e.nodes.labelsOf,
		AttributesClass:   e.attributesClass(),
		Namespaces:        e.factory.Core().V1().Namespaces().Lister(),
		Classes:           e.factory.Storage().V1().StorageClasses().Lister(),
		Recorder:          e.recorder,
		Workers:           e.options.Workers,
		FollowupWorkers:   followupWorkers,
		Requeue: provisioner.Requeue{
			Claim:  func(claim *corev1.PersistentVolumeClaim) { t.informers.claims.Requeue(claim) },
			Volume: func(pv *corev1.PersistentVolume) { t.informers.volumes.Requeue(pv) },
		},
		Board:         board,
		Import:        func(claim *corev1.PersistentVolumeClaim) { t.importer.Consider(claim) },
		ParkedImports: func() *parking.Lot[*corev1.PersistentVolumeClaim] { return t.importer.Parked() },
		LeftImport:    func(backend string, v cinder.Volume) { t.importer.Left(backend, v) },

		Term:     termCtx,
		Stopping: work.Done(),
		Logger:   e.logger,
		Metrics:  e.provisionerMetrics,
		Tracer:   tracing.New(e.options.Traces),

		Monitor:     e.monitor,
		MaxWorkTime: e.maxWorkTime,
	})
	t.snapshots = e.newSnapshots(t, board)
	t.backends.answers, t.backends.moved = t.provisioner.BackendAnswers, t.provisioner.Recount
	t.expander = e.newExpander(t, board)
	t.importer = e.newImporter(t, board)
	t.auditor = e.newAuditor(t)
	t.keeper = &keeper{replica: e.replica}
	t.protector = copies.NewProtector(copies.ProtectorOptions{
		Resolver: t.provisioner.Sources(), Client: e.client, Claims: e.factory.Core().V1().PersistentVolumeClaims().Lister(), Classes: e.factory.Storage().V1().StorageClasses().Lister(),
		Board: board, Logger: e.logger, Monitor: e.monitor, MaxWorkTime: e.maxWorkTime,
	})
	t.csi = e.newCSI(work, termCtx, t, handOver)
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

// follow connects the term to what happens in the cluster. counted reports that
// all PersistentVolumes that existed at the start were seen.
func (lent termInformers) follow(p *provisioner.Provisioner, protector *copies.Protector, snapshots *snapshot.Controller) (counted func() bool, err error) {
	followup := p.Followup()
	volumes, err := lent.volumes.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { followup.VolumeSeen(object.(*corev1.PersistentVolume)) },
		UpdateFunc: func(_, object any) { followup.VolumeSeen(object.(*corev1.PersistentVolume)) },
		DeleteFunc: func(object any) {
			if pv, ok := deleted[*corev1.PersistentVolume](object); ok {
				followup.VolumeGone(pv)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	changed := func(claim *corev1.PersistentVolumeClaim) {
		p.SourceChanged(claim.Namespace, claim.Name)
		p.PopulatedChanged(claim)
		protector.ClaimChanged(claim)
		snapshots.ClaimChanged(claim)
	}
	_, err = lent.claims.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { changed(object.(*corev1.PersistentVolumeClaim)) },
		UpdateFunc: func(before, after any) {
			followup.ClaimChanged(before.(*corev1.PersistentVolumeClaim), after.(*corev1.PersistentVolumeClaim))
			changed(after.(*corev1.PersistentVolumeClaim))
		},
		DeleteFunc: func(object any) {
			if claim, ok := deleted[*corev1.PersistentVolumeClaim](object); ok {
				followup.ClaimGone(claim)
				changed(claim)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	_, err = lent.namespaces.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { p.Reconsider(object.(*corev1.Namespace).Name) },
		UpdateFunc: func(before, after any) {
			if !maps.Equal(before.(*corev1.Namespace).Labels, after.(*corev1.Namespace).Labels) {
				p.Reconsider(after.(*corev1.Namespace).Name)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	_, err = lent.classes.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.ReconsiderClass(object.(*storagev1.StorageClass).Name) },
		UpdateFunc: func(_, after any) { p.ReconsiderClass(after.(*storagev1.StorageClass).Name) },
	})
	if err != nil {
		return nil, err
	}
	if lent.attributes != nil {
		_, err = lent.attributes.Follow(cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { p.ReconsiderAttributes(object.(*storagev1.VolumeAttributesClass).Name) },
		})
		if err != nil {
			return nil, err
		}
	}
	if err := watchNodes(p, lent.nodes, lent.attachments, lent.reports); err != nil {
		return nil, err
	}
	return volumes.HasSynced, nil
}

// deleted unwraps a deleted object, which may arrive as its last known state.
func deleted[T any](object any) (T, bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	typed, ok := object.(T)
	return typed, ok
}

var _ workqueue.TypedRateLimiter[string] = (*backoff.Limiter[string])(nil)
