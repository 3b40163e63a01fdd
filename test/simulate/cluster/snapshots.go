package cluster

import (
	"context"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	controller "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

// StartSnapshots starts the snapshot-controller, with its defaults and VolumeGroupSnapshots, until the context ends.
func StartSnapshots(ctx context.Context, client kubernetes.Interface, snapshots snapshotclient.Interface) {
	const resync = 15 * time.Minute
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 5*time.Minute)
	}
	core, factory := informers.NewSharedInformerFactory(client, resync), snapshotinformers.NewSharedInformerFactory(snapshots, resync)
	of, groups := factory.Snapshot().V1(), factory.Groupsnapshot().V1()
	c := controller.NewCSISnapshotCommonController(snapshots, client, of.VolumeSnapshots(), of.VolumeSnapshotContents(), of.VolumeSnapshotClasses(),
		groups.VolumeGroupSnapshots(), groups.VolumeGroupSnapshotContents(), groups.VolumeGroupSnapshotClasses(),
		core.Core().V1().PersistentVolumeClaims(), core.Core().V1().PersistentVolumes(), nil, metrics.NewMetricsManager(), resync,
		limiter(), limiter(), limiter(), limiter(), false, false, true)
	factory.Start(ctx.Done())
	core.Start(ctx.Done())
	go c.Run(10, ctx.Done(), nil)
}
