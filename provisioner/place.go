package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// placeAnnotations record where a volume lives.
func placeAnnotations(at backends.Place) map[string]string {
	if !at.IsKnown() {
		return nil
	}
	return map[string]string{annotationEndpoint: at.Endpoint, annotationProject: at.Project}
}

// placeOf reads where a volume lives; zero if that was never recorded.
func placeOf(pv *corev1.PersistentVolume) backends.Place {
	if pv.Annotations[annotationEndpoint] == "" {
		return backends.Place{}
	}
	return backends.NewPlace(pv.Annotations[annotationEndpoint], pv.Annotations[annotationProject])
}

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

// finalizer keeps the object of a PersistentVolume whose volume could not be
// brought into use, or marked, yet. Were the object removed by hand, no later
// leader could tell the volume from one that nobody was ever given.
const finalizer = annotationPrefix + "not-in-use-yet"

// keepObject puts the finalizer on a PersistentVolume that is to be kept. The
// library keeps the others.
func (p *Provisioner) keepObject(ctx context.Context, pv *corev1.PersistentVolume) error {
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete || pv.DeletionTimestamp != nil || slices.Contains(pv.Finalizers, finalizer) {
		return nil
	}
	return p.setFinalizers(ctx, pv, append(slices.Clone(pv.Finalizers), finalizer))
}

// letObjectGo takes the finalizer off, if it is there.
func (p *Provisioner) letObjectGo(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !slices.Contains(pv.Finalizers, finalizer) {
		return nil
	}
	return p.setFinalizers(ctx, pv, slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == finalizer }))
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
func (p *Provisioner) recordPlace(ctx context.Context, pv *corev1.PersistentVolume, at backends.Place) error {
	if err := p.annotate(ctx, pv, placeAnnotations(at)); err != nil {
		return fmt.Errorf("cannot note on PersistentVolume %s that its volume is at %s: %w", pv.Name, at, err)
	}
	return nil
}

// withRemedy says what to do about a volume that does not exist where its
// backend leads, and may exist elsewhere. Other errors stay as they are.
func withRemedy(err error, origin Origin) error {
	var failed *backends.Error
	if !errors.As(err, &failed) || failed.Kind != backends.KindElsewhere {
		return err
	}
	return fmt.Errorf("%w; its PersistentVolume stays; %s", err, origin.Remedy(failed.Place))
}

// Remedy is what an operator can do about a volume that does not exist where its
// backend leads, and may exist elsewhere.
func (o Origin) Remedy(present backends.Place) string {
	return fmt.Sprintf("put the configuration and credentials of backend %s back to what they were, or, "+
		"if the volume is certainly gone, run: kubectl annotate pv %s --overwrite %s=%s %s=%s",
		o.Backend, o.PVName, annotationEndpoint, present.Endpoint, annotationProject, present.Project)
}
