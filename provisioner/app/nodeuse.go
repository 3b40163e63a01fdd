package app

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// nodeCaches are the process's caches of nodes and attachments. They show when a node
// releases a volume. A replica starts without waiting for them: if the account may not
// watch them, it still provisions, and retries deletions from time to time.
type nodeCaches struct {
	factory            informers.SharedInformerFactory
	nodes, attachments cache.SharedIndexInformer
	// csiNodes shows the nodes on which the CSI driver is registered; nil without the
	// driver.
	csiNodes cache.SharedIndexInformer
	// reports shows what node plugins report that they have staged; nil without the
	// driver.
	reports cache.SharedIndexInformer
	// namespace is the program's, which has the reports.
	namespace string
}

func newNodeCaches(client kubernetes.Interface, namespace string, withCSI bool) (*nodeCaches, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(onlyUse))
	n := &nodeCaches{
		factory:     factory,
		namespace:   namespace,
		nodes:       factory.Core().V1().Nodes().Informer(),
		attachments: factory.Storage().V1().VolumeAttachments().Informer(),
	}
	if withCSI {
		n.csiNodes = factory.Storage().V1().CSINodes().Informer()
		n.reports = factory.InformerFor(&coordinationv1.Lease{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return coordinationinformers.NewFilteredLeaseInformer(client, namespace, resync, cache.Indexers{}, func(options *metav1.ListOptions) {
				options.LabelSelector = labels.SelectorFromSet(staged.Labels()).String()
			})
		})
	}
	if n.reports != nil {
		if err := n.reports.AddIndexers(nodeuse.ReportIndexers()); err != nil {
			return nil, err
		}
	}
	if err := n.nodes.AddIndexers(nodeuse.NodeIndexers()); err != nil {
		return nil, err
	}
	return n, n.attachments.AddIndexers(nodeuse.AttachmentIndexers())
}

func (n *nodeCaches) caches() *nodeuse.Caches {
	caches := &nodeuse.Caches{
		Nodes:       n.nodes.GetIndexer(),
		Attachments: n.attachments.GetIndexer(),
		Namespace:   n.namespace,
		Synced:      func() bool { return n.nodes.HasSynced() && n.attachments.HasSynced() },
	}
	if n.reports != nil {
		caches.Reports = n.reports.GetIndexer()
	}
	return caches
}

// labelsOf returns the labels of a node in the cache.
func (n *nodeCaches) labelsOf(name string) (map[string]string, bool) {
	object, ok, err := n.nodes.GetIndexer().GetByKey(name)
	if !ok || err != nil {
		return nil, false
	}
	return object.(*corev1.Node).Labels, true
}

// onlyUse keeps only those fields of nodes and attachments that nodeuse reads, the
// labels and marks of nodes, and the IDs by which the CSI driver is registered on nodes. The list
// of images alone makes up most of a Node.
func onlyUse(object any) (any, error) {
	switch object := object.(type) {
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: object.Name, UID: object.UID, ResourceVersion: object.ResourceVersion, CreationTimestamp: object.CreationTimestamp, Labels: object.Labels, Annotations: nodemark.Only(object.Annotations)},
			Spec:       corev1.NodeSpec{Taints: object.Spec.Taints},
			Status: corev1.NodeStatus{
				VolumesInUse:    object.Status.VolumesInUse,
				VolumesAttached: object.Status.VolumesAttached,
				NodeInfo:        corev1.NodeSystemInfo{BootID: object.Status.NodeInfo.BootID, SystemUUID: object.Status.NodeInfo.SystemUUID, MachineID: object.Status.NodeInfo.MachineID},
				Conditions:      onlyReady(object.Status.Conditions),
			},
		}, nil
	case *storagev1.VolumeAttachment:
		return attach.Cached(object), nil
	case *storagev1.CSINode:
		return onlyDriver(object), nil
	}
	return object, nil
}

// onlyReady keeps whether a node is Ready, without the times that change with every
// heartbeat.
func onlyReady(all []corev1.NodeCondition) []corev1.NodeCondition {
	for _, condition := range all {
		if condition.Type == corev1.NodeReady {
			return []corev1.NodeCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	return nil
}
