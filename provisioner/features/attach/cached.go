package attach

import (
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/bound"
)

// Cached returns the fields of a VolumeAttachment that the program reads from its cache. It
// keeps more of the driver's own than of others. The Engine's tests see no more either.
func Cached(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	kept := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: a.Name, UID: a.UID, ResourceVersion: a.ResourceVersion},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: a.Spec.NodeName, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: a.Spec.Source.PersistentVolumeName}},
	}
	if a.Spec.Attacher == wire.DriverName {
		kept.Spec.Attacher = wire.DriverName
		kept.CreationTimestamp, kept.DeletionTimestamp = a.CreationTimestamp, a.DeletionTimestamp
		kept.Status.AttachError, kept.Status.DetachError = bounded(a.Status.AttachError), bounded(a.Status.DetachError)
		kept.Status.Attached, kept.Status.AttachmentMetadata = a.Status.Attached, wire.OnlyTaken(a.Status.AttachmentMetadata)
		// It says by which ID the node was registered when the volume was attached.
		if id, has := a.Annotations[AnnotationNodeID]; has {
			kept.Annotations = map[string]string{AnnotationNodeID: id}
		}
	}
	return kept
}

func bounded(failure *storagev1.VolumeError) *storagev1.VolumeError {
	if failure == nil {
		return nil
	}
	return &storagev1.VolumeError{Message: bound.Message(failure.Message)}
}
