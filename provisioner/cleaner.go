package provisioner

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
)

// Unrecorded removes volumes of one backend that no PersistentVolume names;
// *backends.Lifecycle does.
type Unrecorded interface {
	RemoveUnrecorded(ctx context.Context, volumeID string, stamp backends.Stamp, connector backends.Connector) error
}

// Cleaner removes what is provably nobody's. What it is told may be minutes
// old, so that it asks the API server itself before each removal; what the
// volume says of itself is checked by the backend.
type Cleaner struct {
	Client  kubernetes.Interface
	Cluster string
	// Namespace is where the volumes' Secrets are.
	Namespace string
	// Volumes gives a backend's volumes and the connector they are connected to.
	Volumes func(backend string) (Unrecorded, backends.Connector, error)
}

// RemoveVolume removes a volume, and the Secret that was made with it, unless a
// PersistentVolume names the volume or a claim may still get it.
func (c Cleaner) RemoveVolume(ctx context.Context, backend, volumeID string, stamp backends.Stamp) error {
	if stamp.Cluster != c.Cluster || stamp.PV != pvNameFor(stamp.ClaimUID) {
		return fmt.Errorf("volume %s: its stamp is not one that this program wrote for this cluster", volumeID)
	}
	pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, stamp.PV, metav1.GetOptions{})
	absent := apierrors.IsNotFound(err)
	switch {
	case absent:
		gone, err := isClaimGone(ctx, c.Client, stamp)
		if err != nil {
			return err
		}
		if !gone {
			return fmt.Errorf("volume %s: claim %s/%s may still get it", volumeID, stamp.Namespace, stamp.Claim)
		}
	case err != nil:
		return fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", stamp.PV, err)
	case !namesAnother(pv, volumeID):
		return fmt.Errorf("volume %s: PersistentVolume %s exists and may be its", volumeID, stamp.PV)
	}
	volumes, connector, err := c.Volumes(backend)
	if err != nil {
		return err
	}
	if absent { // else the Secret is that of the volume which is recorded
		if err := deleteOwnSecret(ctx, c.Client, c.Namespace, stamp.PV); err != nil {
			return err
		}
	}
	return volumes.RemoveUnrecorded(ctx, volumeID, stamp, connector)
}

// RemoveSecret removes the Secret of a PersistentVolume that does not exist.
func (c Cleaner) RemoveSecret(ctx context.Context, pvName string) error {
	recorded, err := isRecorded(ctx, c.Client, pvName)
	if err != nil {
		return err
	}
	if recorded {
		return fmt.Errorf("the Secret of PersistentVolume %s: that exists", pvName)
	}
	return deleteOwnSecret(ctx, c.Client, c.Namespace, pvName)
}

// namesAnother says that a PersistentVolume of ours names another volume than
// this.
func namesAnother(pv *corev1.PersistentVolume, volumeID string) bool {
	origin, err := originOf(pv)
	return err == nil && isOurs(pv) && origin.VolumeID != volumeID
}
