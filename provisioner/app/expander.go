package app

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/expand"
	"github.com/standalone-cinder/standalone-cinder/provisioner/tracing"
)

// expandWorkers extend volumes. A storage array may take its time, and other
// backends and tenants always find a worker.
const expandWorkers = 16

// newExpander makes a term's controller of expansions.
func (a *App) newExpander(t *term) *expand.Controller {
	return expand.New(expand.Options{
		Name:    a.options.ProvisionerName,
		Cluster: a.cluster,
		Policy:  a.policy.Load,
		Room:    t.provisioner.Placement(),
		Volumes: func(backend string) (expand.Volumes, error) {
			lifecycle, moved, err := t.backends.configured(backend)
			if err == nil && moved {
				t.backends.tellMoved(backend)
			}
			return lifecycle, err
		},
		OnBehalfOf:        t.provisioner.OnBehalfOf,
		Client:            a.client,
		Claims:            a.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: a.factory.Core().V1().PersistentVolumes().Lister(),
		Namespaces:        a.factory.Core().V1().Namespaces().Lister(),
		Recorder:          a.recorder,
		Workers:           expandWorkers,
		Monitor:           a.monitor,
		LongestWork:       a.longestWork,
		Logger:            a.logger,
		Metrics:           a.expandMetrics,
		Tracer:            tracing.New(a.options.Traces),
	})
}

// followExpansions connects the controller to what happens in the cluster. held
// reports that all claims that existed at the start were seen.
func (lent termInformers) followExpansions(c *expand.Controller) (held func() bool, err error) {
	_, err = lent.volumes.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { c.VolumeChanged(nil, object.(*corev1.PersistentVolume)) },
		UpdateFunc: func(before, after any) {
			c.VolumeChanged(before.(*corev1.PersistentVolume), after.(*corev1.PersistentVolume))
		},
	})
	if err != nil {
		return nil, err
	}
	claims, err := lent.claims.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { c.ClaimSeen(object.(*corev1.PersistentVolumeClaim)) },
		UpdateFunc: func(before, after any) {
			c.ClaimChanged(before.(*corev1.PersistentVolumeClaim), after.(*corev1.PersistentVolumeClaim))
		},
		DeleteFunc: func(object any) {
			if claim, ok := deleted[*corev1.PersistentVolumeClaim](object); ok {
				c.ClaimGone(claim)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return claims.HasSynced, nil
}
