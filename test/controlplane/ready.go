package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// waitForControllers waits until the controllers do what a test takes for
// granted: the default namespace has its service account and the
// certificates' ConfigMap, and a claim gets bound.
func (c *ControlPlane) waitForControllers(ctx context.Context) error {
	i := slices.IndexFunc(c.processes, func(p *process) bool { return p.name == "kube-controller-manager" })
	controllerManager := c.processes[i]

	if c.options.runs(controllerServiceAccount) {
		err := controllerManager.waitReady(ctx, func(ctx context.Context) error {
			_, err := c.client.CoreV1().ServiceAccounts(meta.NamespaceDefault).Get(ctx, "default", meta.GetOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	if c.options.runs(controllerRootCAPublisher) {
		err := controllerManager.waitReady(ctx, func(ctx context.Context) error {
			_, err := c.client.CoreV1().ConfigMaps(meta.NamespaceDefault).Get(ctx, "kube-root-ca.crt", meta.GetOptions{})
			return err
		})
		if err != nil {
			return err
		}
	}
	if c.options.runs(controllerVolumeBinder) {
		return c.bindProbe(ctx, controllerManager)
	}
	return nil
}

// probeName is the name of a claim and its volume that exist while Start waits.
const probeName = "controlplane-start-probe"

// bindProbe has a claim bound and takes it away again. Nothing less shows that
// the binder runs and is allowed to do its work: it has no health check of its
// own.
func (c *ControlPlane) bindProbe(ctx context.Context, binder *process) error {
	// A start that was cut off may have left its probe in a kept directory.
	if err := c.removeProbe(ctx, binder); err != nil {
		return fmt.Errorf("clear the probe of the binder: %w", err)
	}
	claims, volumes := c.client.CoreV1().PersistentVolumeClaims(meta.NamespaceDefault), c.client.CoreV1().PersistentVolumes()
	volume, claim := staticVolume(probeName, meta.NamespaceDefault, probeName)
	if _, err := volumes.Create(ctx, volume, meta.CreateOptions{}); err != nil {
		return fmt.Errorf("probe of the binder: %w", err)
	}
	// A claim that names a volume which the binder does not know yet is looked
	// at again only at the binder's next resync, 15 s later. That the volume is
	// Available shows that the binder knows it.
	err := binder.waitReady(ctx, func(ctx context.Context) error {
		volume, err := volumes.Get(ctx, probeName, meta.GetOptions{})
		if err == nil && volume.Status.Phase != core.VolumeAvailable {
			err = fmt.Errorf("volume %s is %s", probeName, volume.Status.Phase)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("probe of the binder: %w", err)
	}
	if _, err := claims.Create(ctx, claim, meta.CreateOptions{}); err != nil {
		return fmt.Errorf("probe of the binder: %w", err)
	}
	err = binder.waitReady(ctx, func(ctx context.Context) error {
		claim, err := claims.Get(ctx, probeName, meta.GetOptions{})
		if err == nil && claim.Status.Phase != core.ClaimBound {
			err = fmt.Errorf("claim %s is %s", probeName, claim.Status.Phase)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("probe of the binder: %w", err)
	}
	if err := c.removeProbe(ctx, binder); err != nil {
		return fmt.Errorf("remove the probe of the binder: %w", err)
	}
	return nil
}

// removeProbe removes the probe's claim and volume and waits until they are
// gone.
func (c *ControlPlane) removeProbe(ctx context.Context, binder *process) error {
	// The finalizers are taken off here, as the controllers that would do so
	// need not be among those that run.
	unprotect := []byte(`{"metadata":{"finalizers":null}}`)
	claims, volumes := c.client.CoreV1().PersistentVolumeClaims(meta.NamespaceDefault), c.client.CoreV1().PersistentVolumes()
	err := binder.waitReady(ctx, func(ctx context.Context) error {
		_, err := claims.Patch(ctx, probeName, types.MergePatchType, unprotect, meta.PatchOptions{})
		if err == nil {
			err = claims.Delete(ctx, probeName, meta.DeleteOptions{})
		}
		return gone(err)
	})
	if err != nil {
		return err
	}
	return binder.waitReady(ctx, func(ctx context.Context) error {
		_, err := volumes.Patch(ctx, probeName, types.MergePatchType, unprotect, meta.PatchOptions{})
		if err == nil {
			err = volumes.Delete(ctx, probeName, meta.DeleteOptions{})
		}
		return gone(err)
	})
}

// gone turns the answer to a request about an object into whether it is gone.
func gone(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return errors.New("the object still exists")
	default:
		return err
	}
}

// staticVolume returns a volume made for one claim, and that claim. Nothing
// stands behind it.
func staticVolume(name, namespace, claimName string) (*core.PersistentVolume, *core.PersistentVolumeClaim) {
	size := core.ResourceList{core.ResourceStorage: resource.MustParse("1Gi")}
	modes := []core.PersistentVolumeAccessMode{core.ReadWriteOnce}
	noClass := ""
	volume := &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Spec: core.PersistentVolumeSpec{
			AccessModes:                   modes,
			Capacity:                      size,
			ClaimRef:                      &core.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: namespace, Name: claimName},
			PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: core.PersistentVolumeSource{
				ISCSI: &core.ISCSIPersistentVolumeSource{TargetPortal: "127.0.0.1:3260", IQN: "iqn.2010-10.org.openstack:" + name, Lun: 1},
			},
		},
	}
	claim := &core.PersistentVolumeClaim{
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: claimName},
		Spec: core.PersistentVolumeClaimSpec{
			AccessModes:      modes,
			Resources:        core.VolumeResourceRequirements{Requests: size},
			StorageClassName: &noClass,
			VolumeName:       name,
		},
	}
	return volume, claim
}
