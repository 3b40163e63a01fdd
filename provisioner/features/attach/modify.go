package attach

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Types changes the types of volumes for the VolumeAttributesClasses of claims, within
// the policy; *retype.Retyper implements it. If an error has the method FailureKind,
// that tells the controller the kind of the failure.
type Types interface {
	RetypeVolume(ctx context.Context, pv *corev1.PersistentVolume, volumeType string) error
}

// Retype implements controller.Modifier.
func (e *Engine) Retype(ctx context.Context, volume wire.Handle, volumeType string) error {
	of, err := e.volumeOf(volume)
	if err != nil {
		return Failure(err)
	}
	if err := e.Types().RetypeVolume(e.OnBehalfOf(ctx, of.tenant), of.pv, volumeType); err != nil {
		return Failure(err)
	}
	e.Logger.Info("Changed the type of a volume", "volume", volume.String(), "persistentVolume", of.pv.Name, "tenant", of.tenant, "type", volumeType)
	return nil
}
