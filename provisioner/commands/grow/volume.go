package grow

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// volume is one whose filesystem is to grow.
type volume struct {
	claim *corev1.PersistentVolumeClaim
	// size is what the filesystem shall have: the PersistentVolume's.
	size resource.Quantity
	// node is where it is mounted.
	node string
	wire.Growth
}

// errNoCluster means that no API server answers.
var errNoCluster = errors.New("no connection to the cluster")

// withRights adds to an error about missing rights how to get them.
func withRights(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; bind the Role and the ClusterRoles of the component node-grow to this account", err)
	}
	return err
}

// read finds the volume of a claim, and refuses one whose filesystem cannot, or need not,
// grow on a node now.
func (g *grower) read(ctx context.Context, namespace, name string) (*volume, error) {
	claim, err := g.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case errors.As(err, new(*url.Error)):
		return nil, fmt.Errorf("%w: %w", errNoCluster, err)
	case apierrors.IsNotFound(err):
		return nil, errors.New("there is no such claim; give its namespace with -n")
	case err != nil:
		return nil, withRights(err)
	case claim.Status.Phase != corev1.ClaimBound:
		return nil, fmt.Errorf("it is %s, so it has no volume; see kubectl cinder why %s -n %s", claim.Status.Phase, name, namespace)
	case objects.IsBlock(claim):
		return nil, errors.New("it is a raw block volume, which has no filesystem; rescan its disks on the node, and let its program read the size again")
	}
	pv, err := g.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, withRights(err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != claim.UID || !objects.IsOurs(pv) {
		return nil, fmt.Errorf("PersistentVolume %s belongs to another claim, or to another provisioner, so its filesystem is left alone", pv.Name)
	}
	disks, err := disksOf(pv)
	if err != nil {
		return nil, err
	}
	wanted, has, size := storage(claim.Spec.Resources.Requests), storage(claim.Status.Capacity), storage(pv.Spec.Capacity)
	switch {
	case wanted.Cmp(size) > 0:
		return nil, fmt.Errorf("it asks for %s, and its volume still has %s; see kubectl cinder why %s -n %s", wanted.String(), size.String(), name, namespace)
	case size.Cmp(has) <= 0:
		return nil, fmt.Errorf("it already has the %s of its volume, so there is no growth to confirm; if its filesystem is smaller, as that of a larger copy, run resize2fs DEVICE or xfs_growfs MOUNTPOINT on the node", has.String())
	}
	node, pods, err := g.usersOf(ctx, claim)
	return &volume{claim, size, node, wire.Growth{PersistentVolume: pv.Name, Disks: disks, Pods: pods, Bytes: size.Value()}}, err
}

func storage(list corev1.ResourceList) resource.Quantity { return list[corev1.ResourceStorage] }

// disksOf returns by what a node can tell that a disk is the volume's.
func disksOf(pv *corev1.PersistentVolume) ([]string, error) {
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.ISCSI != nil:
		return []string{wire.DiskAt(source.ISCSI.IQN, int(source.ISCSI.Lun))}, nil
	case source.FC != nil && source.FC.Lun != nil && len(source.FC.TargetWWNs) > 0:
		var disks []string
		for _, port := range source.FC.TargetWWNs {
			disks = append(disks, wire.DiskAt(port, int(*source.FC.Lun)))
		}
		return disks, nil
	case source.FC != nil && len(source.FC.WWIDs) > 0:
		var disks []string
		for _, wwid := range source.FC.WWIDs {
			disks = append(disks, strings.ToLower(wwid))
		}
		return disks, nil
	case source.CSI != nil:
		return nil, fmt.Errorf("PersistentVolume %s is one of CSI driver %s, whose filesystem the kubelet has the driver grow when a pod uses it, so there is nothing to do", pv.Name, source.CSI.Driver)
	}
	return nil, fmt.Errorf("PersistentVolume %s is neither an iSCSI nor a Fibre Channel volume; only the filesystems of these are grown this way", pv.Name)
}

// usersOf returns the only node whose pods use a claim, and the UIDs of these pods.
func (g *grower) usersOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (node string, pods []string, err error) {
	nodes, err := paging.List(ctx, "the pods of namespace "+claim.Namespace, g.client.CoreV1().Pods(claim.Namespace).List, func(page *corev1.PodList) (nodes []string) {
		for i := range page.Items {
			if pod := &page.Items[i]; pod.Spec.NodeName != "" && objects.Uses(pod, claim) {
				nodes, pods = append(nodes, pod.Spec.NodeName), append(pods, string(pod.UID))
			}
		}
		return nodes
	})
	slices.Sort(nodes)
	switch nodes = slices.Compact(nodes); {
	case err != nil:
		return "", nil, withRights(err)
	case len(nodes) == 0:
		return "", nil, errors.New("no pod on a node uses it, and only a mounted filesystem can grow; start a pod that uses it")
	case len(nodes) > 1:
		return "", nil, fmt.Errorf("pods use it on the nodes %s; a filesystem can grow only where it alone is mounted, so wait until one node is left", strings.Join(nodes, ", "))
	}
	return nodes[0], pods, nil
}
