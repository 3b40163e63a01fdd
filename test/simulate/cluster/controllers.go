// Package cluster is what Kubernetes does with claims: its own controllers.
package cluster

import (
	"context"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/volume/persistentvolume"
	"k8s.io/kubernetes/pkg/controller/volume/pvcprotection"
	"k8s.io/kubernetes/pkg/controller/volume/pvprotection"
)

// Start starts the controllers of kube-controller-manager that bind, release and protect
// volumes, until the context ends.
func Start(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	binder, err := persistentvolume.NewController(ctx, persistentvolume.ControllerParameters{
		KubeClient: client, SyncPeriod: 15 * time.Second, EnableDynamicProvisioning: true,
		VolumeInformer: core.PersistentVolumes(), ClaimInformer: core.PersistentVolumeClaims(),
		ClassInformer: factory.Storage().V1().StorageClasses(), PodInformer: core.Pods(), NodeInformer: core.Nodes(),
	})
	if err != nil {
		return err
	}
	claims, err := pvcprotection.NewPVCProtectionController(klog.FromContext(ctx), core.PersistentVolumeClaims(), core.Pods(), client)
	if err != nil {
		return err
	}
	volumes, err := pvprotection.NewPVProtectionController(klog.FromContext(ctx), core.PersistentVolumes(), client)
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	go binder.Run(ctx)
	go claims.Run(ctx, 1)
	go volumes.Run(ctx, 1)
	return nil
}
