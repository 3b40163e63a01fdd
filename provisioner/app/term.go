package app

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
)

// followupWorkers complete volumes after their claims are served; they must
// not fall far behind the workers that serve claims.
const followupWorkers = 16

// term leads from election to hand-over. stop ends the taking of work; hold
// ends with the lease and cuts what is under way. It returns when nothing of
// this term runs any more.
func (a *App) term(stop, hold context.Context, fence func() error) error {
	a.status.setLeading(true)
	defer a.status.setLeading(false)
	a.fence.Store(&fence)
	defer a.fence.Store(nil)
	a.logger.Info("Leading", "identity", a.identity)

	hold, cut := context.WithCancel(hold)
	defer cut()
	// Work stops on either signal.
	work, stopWork := context.WithCancel(hold)
	defer stopWork()
	defer context.AfterFunc(stop, stopWork)()

	lent := &termBackends{
		policy:     a.policy.Load,
		cluster:    a.cluster,
		pool:       a.pool,
		metrics:    a.backendMetrics,
		fence:      fence,
		hold:       hold,
		logger:     a.logger,
		lifecycles: map[string]*backends.Lifecycle{},
	}
	p := provisioner.New(provisioner.Options{
		Name:              a.options.ProvisionerName,
		Cluster:           a.cluster,
		Namespace:         a.namespace,
		Policy:            a.policy.Load,
		Backends:          lent,
		Mappers:           a.mappers,
		Client:            a.client,
		Claims:            a.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: a.factory.Core().V1().PersistentVolumes().Lister(),
		Namespaces:        a.factory.Core().V1().Namespaces().Lister(),
		Classes:           a.factory.Storage().V1().StorageClasses().Lister(),
		Recorder:          a.recorder,
		Hold:              hold,
		Stopping:          work.Done(),
		Logger:            a.logger,
		Metrics:           a.provisionerMetrics,
	})
	if err := p.CountRecorded(); err != nil {
		return err
	}
	followup := provisioner.NewFollowup(p)
	claims := provisioner.NewTermInformer(a.factory.Core().V1().PersistentVolumeClaims().Informer())
	volumes := provisioner.NewTermInformer(a.factory.Core().V1().PersistentVolumes().Informer())
	namespaces := provisioner.NewTermInformer(a.factory.Core().V1().Namespaces().Informer())
	p.OnRequeue(claims.Requeue)

	var workers sync.WaitGroup
	library := controller.NewProvisionController(work, a.client, a.options.ProvisionerName, p,
		controller.LeaderElection(false),
		controller.ClaimsInformer(claims),
		controller.VolumesInformer(volumes),
		controller.ClassesInformer(a.factory.Storage().V1().StorageClasses().Informer()),
		controller.Threadiness(a.options.Workers),
		controller.RateLimiter(p.Limiter()),
		controller.ResyncPeriod(resyncPeriod),
		// Never give up: a volume would be forgotten.
		controller.FailedProvisionThreshold(0),
		controller.FailedDeleteThreshold(0),
		controller.AddFinalizer(true),
		controller.CreateProvisionedPVBackoff(wait.Backoff{Duration: 100 * time.Millisecond, Factor: 3, Steps: 4}),
		controller.MetricsPort(0),
	)
	library.ControllerWaitGroup(&workers)

	release, err := watchTerm(p, followup, volumes, claims, namespaces)
	if err != nil {
		return err
	}

	var running sync.WaitGroup
	running.Go(func() { library.Run(work) })
	running.Go(func() { followup.Run(work, followupWorkers) })

	<-work.Done()
	if stop.Err() != nil {
		a.logger.Info("Handing over: letting requests under way end", "drainTimeout", a.options.DrainTimeout)
	}
	drained := make(chan struct{})
	go func() {
		running.Wait()
		workers.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(a.options.DrainTimeout):
		a.logger.Warn("Requests under way did not end in time and are cut; the next leader settles them by looking")
		cut()
		<-drained
	}
	a.logger.Info("Led", "identity", a.identity)
	return release()
}

// watchTerm connects what happens in the cluster with the term's follow-up.
// release undoes it.
func watchTerm(p *provisioner.Provisioner, followup *provisioner.Followup, volumes, claims, namespaces *provisioner.TermInformer) (release func() error, err error) {
	_, err = volumes.Follow(cache.ResourceEventHandlerFuncs{
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
	_, err = claims.Follow(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(object any) {
			if claim, ok := deleted[*corev1.PersistentVolumeClaim](object); ok {
				followup.ClaimGone(claim.UID)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	_, err = namespaces.Follow(cache.ResourceEventHandlerFuncs{
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
	return func() error {
		for _, informer := range []*provisioner.TermInformer{volumes, claims, namespaces} {
			if err := informer.Release(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// deleted unwraps an object of a deletion, which may come as its last known
// state.
func deleted[T any](object any) (T, bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	typed, ok := object.(T)
	return typed, ok
}

var _ workqueue.TypedRateLimiter[string] = (*provisioner.RetryLimiter)(nil)
