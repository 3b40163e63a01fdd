package native

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

// volume is one that a node has mounted.
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

// read returns a claim with its PersistentVolume, and refuses those of others.
func (r *runner) read(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	claim, err := r.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case errors.As(err, new(*url.Error)):
		return nil, nil, fmt.Errorf("%w: %w", errNoCluster, err)
	case apierrors.IsNotFound(err):
		return nil, nil, errors.New("there is no such claim; give its namespace with -n")
	case err != nil:
		return nil, nil, withRights(err)
	case claim.Status.Phase != corev1.ClaimBound:
		return nil, nil, fmt.Errorf("it is %s, so it has no volume; see kubectl cinder why %s -n %s", claim.Status.Phase, name, namespace)
	}
	pv, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, nil, withRights(err)
	}
	switch ref := pv.Spec.ClaimRef; {
	case ref == nil || ref.UID != claim.UID:
		return nil, nil, fmt.Errorf("PersistentVolume %s belongs to another claim, so its volume is left alone", pv.Name)
	case !objects.IsOurs(pv):
		return nil, nil, fmt.Errorf("PersistentVolume %s belongs to another provisioner, or lost its annotation %s, so its volume is left alone; see kubectl cinder why pv/%[1]s", pv.Name, objects.AnnotationVolume)
	}
	return claim, pv, nil
}

// growing returns a volume whose filesystem can, and must, grow on a node now.
func (r *runner) growing(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (*volume, error) {
	if objects.IsBlock(claim) {
		return nil, errors.New("it is a raw block volume, which has no filesystem; rescan its disks on the node, and let its program read the size again")
	}
	if pv.Spec.CSI != nil {
		return nil, fmt.Errorf("PersistentVolume %s is one of CSI driver %s, whose filesystem the kubelet has the driver grow when a pod uses it, so there is nothing to do", pv.Name, pv.Spec.CSI.Driver)
	}
	if _, err := disksOf(pv); err != nil {
		return nil, err
	}
	wanted, has, size := storage(claim.Spec.Resources.Requests), storage(claim.Status.Capacity), storage(pv.Spec.Capacity)
	switch {
	case wanted.Cmp(size) > 0:
		return nil, fmt.Errorf("it asks for %s, and its volume still has %s; see kubectl cinder why %s -n %s", wanted.String(), size.String(), claim.Name, claim.Namespace)
	case size.Cmp(has) <= 0:
		return nil, fmt.Errorf("it already has the %s of its volume, so there is no growth to confirm; if its filesystem is smaller, as that of a larger copy, run resize2fs DEVICE or xfs_growfs MOUNTPOINT on the node", has.String())
	}
	return r.mounted(ctx, claim, pv)
}

// mounted returns a volume that a node has mounted.
func (r *runner) mounted(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (*volume, error) {
	disks, err := disksOf(pv)
	if err != nil {
		return nil, err
	}
	users, err := r.usersOf(ctx, claim)
	if err != nil {
		return nil, err
	}
	v := &volume{claim: claim, size: storage(pv.Spec.Capacity)}
	v.Growth = wire.Growth{PersistentVolume: pv.Name, Disks: disks, Bytes: v.size.Value()}
	var nodes []string
	for _, user := range users {
		if user.node != "" {
			nodes, v.Pods = append(nodes, user.node), append(v.Pods, user.uid)
		}
	}
	slices.Sort(nodes)
	switch nodes = slices.Compact(nodes); len(nodes) {
	case 0:
		return nil, errors.New("no pod on a node uses it, so its filesystem is not mounted; start a pod that uses it")
	case 1:
		v.node = nodes[0]
		return v, nil
	}
	return nil, fmt.Errorf("pods use it on the nodes %s; wait until one node is left", strings.Join(nodes, ", "))
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
	}
	return nil, fmt.Errorf("PersistentVolume %s is neither an iSCSI nor a Fibre Channel volume; the pods on the nodes find only these", pv.Name)
}

// user is a pod that uses a claim; node is empty until the pod has one.
type user struct{ name, uid, node string }

// usersOf lists the pods that use a claim.
func (r *runner) usersOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]user, error) {
	users, err := paging.List(ctx, "the pods of namespace "+claim.Namespace, r.Client.CoreV1().Pods(claim.Namespace).List, func(page *corev1.PodList) (users []user) {
		for i := range page.Items {
			if pod := &page.Items[i]; objects.Uses(pod, claim) {
				users = append(users, user{pod.Name, string(pod.UID), pod.Spec.NodeName})
			}
		}
		return users
	})
	return users, withRights(err)
}
