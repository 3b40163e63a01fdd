package library

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// annotationProvisionedBy is the annotation that the library writes.
const annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"

// PersistentVolumes implements typedcorev1.PersistentVolumesGetter.
func (c *core) PersistentVolumes() typedcorev1.PersistentVolumeInterface {
	return &volumes{c.CoreV1Interface.PersistentVolumes(), c.client.Provisioner}
}

// volumes is the client with which the library saves PersistentVolumes.
type volumes struct {
	typedcorev1.PersistentVolumeInterface
	provisioner string
}

// Create writes the program's own name as the provisioner. The library writes the name
// that the StorageClass uses. That may be the CSI driver's, and then several
// installations would take the object for theirs.
func (v *volumes) Create(ctx context.Context, pv *corev1.PersistentVolume, options metav1.CreateOptions) (*corev1.PersistentVolume, error) {
	if by := pv.Annotations[annotationProvisionedBy]; by != "" && by != v.provisioner {
		pv = pv.DeepCopy()
		pv.Annotations[annotationProvisionedBy] = v.provisioner
	}
	return v.PersistentVolumeInterface.Create(ctx, pv, options)
}
