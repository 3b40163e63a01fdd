package app

import (
	"errors"
	"maps"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// claimWatcher is a part of a term that hears of claims: before is nil for a claim that
// is seen first, after for one that is gone.
type claimWatcher interface {
	ClaimChanged(before, after *corev1.PersistentVolumeClaim)
}

// volumeWatcher is a part of a term that hears of PersistentVolumes: before is nil for
// one that is seen first, after for one that is gone.
type volumeWatcher interface {
	VolumeChanged(before, after *corev1.PersistentVolume)
}

// follow connects the parts of a term to what happens in the cluster. Once all of seen
// report true, the parts have heard of every claim and PersistentVolume that existed at
// the start.
func (t *term) follow() (seen []cache.InformerSynced, err error) {
	from := t.informers
	volumeWatchers, claimWatchers := []volumeWatcher{t.provisioner, t.moves}, []claimWatcher{t.provisioner}
	for _, f := range t.features {
		if watcher, ok := f.(volumeWatcher); ok {
			volumeWatchers = append(volumeWatchers, watcher)
		}
		if watcher, ok := f.(claimWatcher); ok {
			claimWatchers = append(claimWatchers, watcher)
		}
	}
	var errs []error
	volumes := hear(&errs, from.volumes, func(before, after *corev1.PersistentVolume) {
		for _, watcher := range volumeWatchers {
			watcher.VolumeChanged(before, after)
		}
	})
	claims := hear(&errs, from.claims, func(before, after *corev1.PersistentVolumeClaim) {
		for _, watcher := range claimWatchers {
			watcher.ClaimChanged(before, after)
		}
	})
	hear(&errs, from.namespaces, func(before, after *corev1.Namespace) {
		if after != nil && (before == nil || !maps.Equal(before.Labels, after.Labels)) {
			t.publish(parking.Namespace, after.Name)
		}
	})
	hear(&errs, from.classes, func(_, after *storagev1.StorageClass) {
		if after != nil {
			t.publish(parking.Class, after.Name)
		}
	})
	hear(&errs, from.attributes, func(before, after *storagev1.VolumeAttributesClass) {
		if before == nil {
			t.publish(parking.Attributes, after.Name)
		}
	})
	// Deletions that wait for nodes wake on every change, because the watch may show
	// only the second of two. What was there before the term is no news.
	hear(&errs, from.nodes, func(before, after *corev1.Node) {
		if before != nil {
			t.publish(parking.Node, before.Name)
		}
	})
	hear(&errs, from.reports, func(before, _ *coordinationv1.Lease) {
		if before != nil {
			t.publish(parking.Node, staged.NodeOf(before.Name))
		}
	})
	hear(&errs, from.attachments, func(before, after *storagev1.VolumeAttachment) {
		if after == nil {
			t.publish(parking.Node, before.Spec.NodeName)
		}
	})
	return []cache.InformerSynced{volumes, claims}, errors.Join(errs...)
}

// hear calls changed for every object that an informer shows: before is nil for one that
// is seen first, after for one that is gone. Without an informer, there are no objects.
func hear[T any](errs *[]error, informer *termInformer, changed func(before, after *T)) (seen cache.InformerSynced) {
	if informer == nil {
		return nil
	}
	registration, err := informer.Follow(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object.(*T)) },
		UpdateFunc: func(before, after any) { changed(before.(*T), after.(*T)) },
		DeleteFunc: func(object any) {
			// It may arrive as its last known state.
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if last, ok := object.(*T); ok {
				changed(last, nil)
			}
		},
	})
	if err != nil {
		*errs = append(*errs, err)
		return nil
	}
	return registration.HasSynced
}
