package cluster

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/rpc"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/attacher"
	"github.com/kubernetes-csi/external-attacher/v4/pkg/controller"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	csitrans "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	_ "github.com/standalone-cinder/standalone-cinder/test/simulate/cluster/gates" // before Kubernetes' own
)

// Attach is one process of the external-attacher: it attaches volumes by the driver
// behind a socket until the connection is lost, as the real one exits then, or the context
// ends.
func Attach(ctx context.Context, client kubernetes.Interface, dial func(context.Context) (net.Conn, error)) error {
	ctx, exit := context.WithCancel(ctx)
	defer exit()
	var dialed atomic.Bool
	connection, err := grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dialed.Swap(true) {
				exit()
			}
			return dial(ctx)
		}))
	if err != nil {
		return err
	}
	defer connection.Close()
	const timeout = 90 * time.Second
	if err := rpc.ProbeForever(ctx, connection, timeout); err != nil {
		return err
	}
	driver, err := rpc.GetDriverName(ctx, connection)
	if err != nil {
		return err
	}
	can, err := rpc.GetControllerCapabilities(ctx, connection)
	if err != nil {
		return err
	}
	bounded := timeout
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	volumes, storage := factory.Core().V1().PersistentVolumes(), factory.Storage().V1()
	handler := controller.NewCSIHandler(client, driver, attacher.NewAttacher(connection), attacher.NewVolumeLister(connection, 0),
		volumes.Lister(), storage.CSINodes().Lister(), storage.VolumeAttachments().Lister(), &bounded,
		can[csi.ControllerServiceCapability_RPC_PUBLISH_READONLY], can[csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER], csitrans.New(), "ext4")
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Second, 5*time.Minute)
	}
	of := controller.NewCSIAttachController(klog.FromContext(ctx), client, driver, handler, storage.VolumeAttachments(), volumes, limiter(), limiter(),
		can[csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES], 10*time.Second)
	factory.Start(ctx.Done())
	of.Run(ctx, 10, nil)
	return ctx.Err()
}
