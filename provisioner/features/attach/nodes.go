package attach

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// admits returns an error unless a node is registered as it says, and has a name for
// arrays that no other node has: an array would take both for one, and show a volume to
// either. It returns the node without the names that others have, and says which those
// are. Cinder's drivers read port names in several forms, but only one of them is
// accepted.
func (e *Engine) admits(node wire.Node) (wire.Node, doubles, error) {
	if !e.CSINodes.Known() {
		return node, nil, fmt.Errorf("the CSINodes are not read yet, so it is not known whether another node has the names of node %s", node.Name)
	}
	want, err := node.NodeID()
	if err != nil {
		return node, nil, &controller.Failure{Kind: controller.NodeUnknown, Message: err.Error()}
	}
	if name, of := malformed(node); of != "" {
		return node, nil, &controller.Failure{Kind: controller.NodeUnknown, Message: fmt.Sprintf("node %s is registered with %q, which is not %s; restart its node plugin", node.Name, name, of)}
	}
	registered := false
	twins, shared := map[kind]string{}, map[kind]string{}
	for csiNode := range e.CSINodes.All() {
		id, has := nodeIDOf(csiNode)
		if !has {
			continue
		}
		other, err := wire.ParseNodeID(id)
		if err != nil {
			continue
		}
		if csiNode.Name == node.Name {
			// Compare without the fields of later releases.
			known, err := other.NodeID()
			registered = err == nil && known == want
			continue
		}
		for of, name := range node.SharedNames(other) {
			if twins[of] == "" || csiNode.Name < twins[of] {
				twins[of], shared[of] = csiNode.Name, name
			}
		}
	}
	if !registered {
		return node, nil, &controller.Failure{Kind: controller.NodeUnknown, Message: fmt.Sprintf("node %s is not registered with the driver under this ID; its CSINode says what it is registered with", node.Name)}
	}
	found := doubles{}
	for _, of := range slices.Sorted(maps.Keys(twins)) {
		first, second := min(node.Name, twins[of]), max(node.Name, twins[of])
		found[of] = fmt.Sprintf("Nodes %s and %s identify themselves to the storage by the same %s name, %s, so neither gets a volume by %s; give one of them a unique name, and restart its node plugin", first, second, of, shared[of], of)
		for _, name := range []string{first, second} {
			// Like kubelet, which does not know the UID of its node either, use the name as
			// the UID.
			e.Recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: types.UID(name)}, corev1.EventTypeWarning, ReasonDuplicateInitiator, found[of])
		}
	}
	alone := found.without(node)
	if len(found) > 0 && alone.InitiatorName == "" && alone.HostNQN == "" && len(alone.PortNames) == 0 {
		return node, nil, &controller.Failure{Kind: controller.DuplicateInitiator, Message: found.String()}
	}
	return alone, found, nil
}

// isAskedFor returns an error if VolumeAttachments ask for the volume, but none for this
// node. The node of another one may have registered under this node's ID for a moment:
// nothing would ever detach what this node got. A volume without VolumeAttachments is
// attached for whoever calls: other orchestrators have none. Then asked is false. It
// costs no request unless the cache is late.
func (e *Engine) isAskedFor(ctx context.Context, pv string, to controller.PublishRequest) (asked bool, err error) {
	if e.isAttached(pv, to.Node.Name) {
		return true, nil
	}
	of := func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == to.Node.Name }
	live, err := e.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(to.Volume, to.Node.Name), metav1.GetOptions{})
	if err == nil && isOf(live, pv) && of(live) {
		return true, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("cannot tell whether volume %s is to be attached to node %s: %w", to.Volume, to.Node.Name, err)
	}
	all, err := paging.List(ctx, "VolumeAttachments", e.Client.StorageV1().VolumeAttachments().List, func(page *storagev1.VolumeAttachmentList) []storagev1.VolumeAttachment {
		return slices.DeleteFunc(page.Items, func(a storagev1.VolumeAttachment) bool { return !isOf(&a, pv) })
	})
	if err != nil {
		return false, fmt.Errorf("cannot tell whether volume %s is to be attached to node %s: %w", to.Volume, to.Node.Name, err)
	}
	if asked = slices.ContainsFunc(all, func(a storagev1.VolumeAttachment) bool { return of(&a) }); asked || len(all) == 0 {
		return asked, nil
	}
	return false, damaged("VolumeAttachments ask for PersistentVolume %s, but none for node %s, so the volume is not attached there; another node may have used its ID", pv, to.Node.Name)
}

// attachmentName returns the name that kube-controller-manager gives to the
// VolumeAttachment of a volume and a node (pkg/volume/csi/csi_attacher.go).
func attachmentName(volume wire.Handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(volume.String()+wire.DriverName+node)))
}

var (
	iscsiName = regexp.MustCompile(`^(?i:iqn|eui|naa)\.[A-Za-z0-9.:_-]+$`)
	nvmeName  = regexp.MustCompile(`^nqn\.[A-Za-z0-9.:_-]+$`)
	portName  = regexp.MustCompile(`^[0-9a-f]*$`)
)

// malformed returns a name of a node that no plugin would register, and what kind of
// name it is; of is empty if all names are well-formed. Cinder's drivers write names
// into commands and files.
func malformed(node wire.Node) (name, of string) {
	switch {
	case node.InitiatorName != "" && !iscsiName.MatchString(node.InitiatorName):
		return node.InitiatorName, "an iSCSI name"
	case node.HostNQN != "" && !nvmeName.MatchString(node.HostNQN):
		return node.HostNQN, "an NVMe name"
	}
	for _, name := range slices.Concat(node.PortNames, node.NodeNames) {
		if !portName.MatchString(name) {
			return name, "the name of a Fibre Channel port"
		}
	}
	return "", ""
}

// nodeIDOf returns the ID of a node with the driver.
func nodeIDOf(csiNode *storagev1.CSINode) (id string, has bool) {
	for _, driver := range csiNode.Spec.Drivers {
		if driver.Name == wire.DriverName {
			return driver.NodeID, true
		}
	}
	return "", false
}

// detachment returns the VolumeAttachment whose deletion asks to detach a volume from a
// node, as far as the cache shows it; otherwise nil.
func (e *Engine) detachment(pv, node string) *storagev1.VolumeAttachment {
	for _, a := range e.attachmentsOf(pv) {
		if a.Spec.NodeName == node && a.DeletionTimestamp != nil {
			return a
		}
	}
	return nil
}

// nodeOf returns the name of the node with a key; empty if the cluster has no such
// node.
func (e *Engine) nodeOf(key string) string {
	for node := range e.Nodes.All() {
		if wire.NodeKey(node.Name) == key {
			return node.Name
		}
	}
	return ""
}
