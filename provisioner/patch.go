package provisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// annotate writes annotations on a PersistentVolume. The UID keeps them off
// another object that took its name meanwhile.
func (p *Provisioner) annotate(ctx context.Context, pv *corev1.PersistentVolume, annotations map[string]string) error {
	return p.patchMetadata(ctx, pv.Name, map[string]any{"uid": pv.UID, "annotations": annotations})
}

func (p *Provisioner) patchMetadata(ctx context.Context, name string, metadata map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		// Maps and lists of strings always encode.
		panic(err)
	}
	_, err = p.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// keepObject puts the finalizer on a PersistentVolume that is to be kept. The
// library keeps the others.
func (p *Provisioner) keepObject(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete || pv.DeletionTimestamp != nil || slices.Contains(pv.Finalizers, record.Finalizer) {
		return nil
	}
	return p.setFinalizers(ctx, pv, append(slices.Clone(pv.Finalizers), record.Finalizer))
}

// letObjectGo takes the finalizer off, if it is there.
func (p *Provisioner) letObjectGo(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !slices.Contains(pv.Finalizers, record.Finalizer) {
		return nil
	}
	return p.setFinalizers(ctx, pv, slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == record.Finalizer }))
}

// setFinalizers replaces all finalizers of an object that has not changed since
// it was cached; else it is done at the next try.
func (p *Provisioner) setFinalizers(ctx context.Context, pv *corev1.PersistentVolume, finalizers []string) error {
	err := p.patchMetadata(ctx, pv.Name, map[string]any{"finalizers": finalizers, "resourceVersion": pv.ResourceVersion})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot change the finalizers of PersistentVolume %s: %w", pv.Name, err)
	}
	return nil
}

// recordPlace notes on a PersistentVolume where its volume was found, before the
// volume is removed: whoever goes on then knows that "not found" means gone.
func (p *Provisioner) recordPlace(ctx context.Context, pv *corev1.PersistentVolume, at cinder.Place) error {
	if err := p.annotate(ctx, pv, record.PlaceAnnotations(at)); err != nil {
		return fmt.Errorf("cannot note on PersistentVolume %s that its volume is at %s: %w", pv.Name, at, err)
	}
	return nil
}
