package provisioner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
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

// annotate writes annotations on a PersistentVolume.
func (p *Provisioner) annotate(ctx context.Context, name string, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		// Maps of strings always encode.
		panic(err)
	}
	_, err = p.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// recordPlace notes on a PersistentVolume where its volume was found, before the
// volume is removed: whoever goes on then knows that "not found" means gone.
func (p *Provisioner) recordPlace(ctx context.Context, name string, at backends.Place) error {
	if err := p.annotate(ctx, name, placeAnnotations(at)); err != nil {
		return fmt.Errorf("cannot note on PersistentVolume %s that its volume is at %s: %w", name, at, err)
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
