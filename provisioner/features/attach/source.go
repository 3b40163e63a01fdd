package attach

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// source says which volume is meant, and whose it is.
type source struct {
	// pv is nil if the PersistentVolume is gone.
	pv *corev1.PersistentVolume
	// at is where the volume is.
	at     wire.Handle
	target backends.Target
	tenant string
}

// volumeOf finds the PersistentVolume of a volume. It must be this program's.
func (e *Engine) volumeOf(volume wire.Handle) (source, error) {
	found := objects.ByHandle(e.PersistentVolumes, wire.DriverName, volume.String())
	switch len(found) {
	case 0:
		return source{}, &controller.Failure{Kind: string(cinder.KindNotFound), Message: fmt.Sprintf("no PersistentVolume has the handle %s", volume)}
	case 1:
		return e.sourceOf(found[0], volume)
	}
	return source{}, damaged("PersistentVolumes %s and %s have one volume handle, %s; remove the one that was made by hand", found[0].Name, found[1].Name, volume)
}

// sourceOf reads what a PersistentVolume records. The stamp on the volume must say the
// same, so a wrong record cannot attach another volume.
func (e *Engine) sourceOf(pv *corev1.PersistentVolume, volume wire.Handle) (source, error) {
	annotations, at := pv.Annotations, volume
	if swapped, err := objects.SwappedOf(pv); err != nil {
		return source{}, damaged("%s", err)
	} else if swapped != nil {
		at = wire.Handle{Backend: annotations[objects.AnnotationBackend], ID: annotations[objects.AnnotationVolume]}
	}
	for key, want := range map[string]string{objects.AnnotationVolume: at.ID, objects.AnnotationBackend: at.Backend, objects.AnnotationCluster: e.Cluster} {
		if annotations[key] != want {
			return source{}, damaged("PersistentVolume %s: annotation %s is %q, expected %q; its volume is neither attached nor detached until it is fixed", pv.Name, key, annotations[key], want)
		}
	}
	claim := string(objects.MadeFor(pv))
	if claim == "" {
		return source{}, damaged("PersistentVolume %s: annotation %s is missing; its volume is neither attached nor detached until it is fixed", pv.Name, objects.AnnotationClaimUID)
	}
	return source{pv: pv, at: at, tenant: annotations[objects.AnnotationTenant], target: backends.Target{
		VolumeID: at.ID, Stamp: stamps.Volume{Cluster: e.Cluster, ClaimUID: claim, PV: pv.Name}, Place: objects.PlaceOf(pv),
	}}, nil
}

// attached finds a volume to detach: by its PersistentVolume, or, if that is gone, by
// the stamp that the volume carries that its handle names.
func (e *Engine) attached(ctx context.Context, volume wire.Handle) (Volumes, source, error) {
	at, err := e.locate(volume)
	if err != nil {
		return nil, source{}, err
	}
	volumes, err := e.Volumes(at.Backend)
	if err != nil {
		return nil, source{}, err
	}
	of, err := e.volumeOf(volume)
	var missing *controller.Failure
	if !errors.As(err, &missing) || missing.Kind != string(cinder.KindNotFound) {
		return volumes, of, err
	}
	v, found, err := volumes.Find(ctx, volume.ID)
	if err != nil {
		return nil, source{}, err
	}
	of = source{at: volume, target: backends.Target{VolumeID: volume.ID}}
	if !found {
		// The backend decides whether that proves anything.
		return volumes, of, nil
	}
	stamp := stamps.Of(v)
	if stamp.Cluster != e.Cluster || stamp.ClaimUID == "" || stamp.PV == "" {
		return nil, source{}, &controller.Failure{Kind: string(backends.KindNotOurs), Message: fmt.Sprintf("volume %s does not carry the stamp of this cluster, so it is not detached", volume.ID)}
	}
	of.target.Stamp, of.tenant = stamp, stamp.Tenant
	return volumes, of, nil
}

func damaged(format string, arguments ...any) error {
	return &controller.Failure{Kind: controller.Damaged, Message: fmt.Sprintf(format, arguments...)}
}
