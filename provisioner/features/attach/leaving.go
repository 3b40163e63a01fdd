package attach

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// ReasonWrongNodeID is the reason of events about a node whose ID names another node.
const ReasonWrongNodeID = "WrongNodeID"

// detaching finds the nodes that a volume is to be detached from, and those that keep it.
type detaching struct{ *Engine }

// leaving returns the names of the nodes that a volume is to be detached from. The node
// itself has written the ID in the call into its CSINode, so that ID decides only if
// nothing else is known. Kubernetes detaches the VolumeAttachments that are being
// deleted, and a node cannot write those.
func (e detaching) leaving(ctx context.Context, pv, nodeID string) ([]string, error) {
	if !e.Attachments.Known() {
		return nil, fmt.Errorf("the VolumeAttachments are not read yet, so it is not known from which node the volume is detached")
	}
	named, mistake := wire.ParseNodeID(nodeID)
	attachments := e.attachmentsOf(pv)
	hasNamed := slices.ContainsFunc(attachments, func(a *storagev1.VolumeAttachment) bool { return a.Spec.NodeName == named.Name })
	var nodes []string
	var staying string
	for _, a := range attachments {
		node, ends := a.Spec.NodeName, a.DeletionTimestamp != nil
		if !hasNamed || (node == named.Name) != ends {
			// The cache may be late if this is the node that the call names, or if no
			// VolumeAttachment is that node's and it may have named another one. If it
			// is another node whose VolumeAttachment ends, the cache may be out of
			// date.
			var err error
			if ends, err = e.ends(ctx, a); err != nil {
				return nil, err
			}
		}
		switch {
		case ends && !slices.Contains(nodes, node):
			nodes = append(nodes, node)
		case node == named.Name && !ends:
			staying = a.Name
		}
	}
	slices.Sort(nodes)
	switch {
	case len(nodes) > 0:
		if staying != "" || mistake != nil || !slices.Contains(nodes, named.Name) {
			e.reportWrongID(nodes, nodeID)
		}
		return nodes, nil
	case staying != "":
		return nil, damaged("VolumeAttachment %s still asks for the volume on node %s, so it is not detached there", staying, named.Name)
	case mistake != nil:
		// Never guess: this could be another node's attachment.
		return nil, &controller.Failure{Kind: string(cinder.KindInvalid), Message: mistake.Error()}
	}
	return []string{named.Name}, nil
}

// attachmentsOf returns the driver's VolumeAttachments of a PersistentVolume in the cache.
func (e *Engine) attachmentsOf(pv string) []*storagev1.VolumeAttachment {
	var found []*storagev1.VolumeAttachment
	for a := range e.Attachments.All() {
		if isOf(a, pv) {
			found = append(found, a)
		}
	}
	return found
}

// isOf reports whether a VolumeAttachment is the driver's and is of a PersistentVolume.
func isOf(a *storagev1.VolumeAttachment, pv string) bool {
	return a.Spec.Attacher == wire.DriverName && a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == pv
}

// ends reports whether a VolumeAttachment is being deleted or is gone, according to the
// API server.
func (e detaching) ends(ctx context.Context, cached *storagev1.VolumeAttachment) (bool, error) {
	now, err := e.Client.StorageV1().VolumeAttachments().Get(ctx, cached.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot tell whether VolumeAttachment %s is being deleted: %w", cached.Name, err)
	}
	return now.DeletionTimestamp != nil, nil
}

// reportWrongID reports nodes that were to be detached under an ID that is not theirs.
func (e detaching) reportWrongID(nodes []string, nodeID string) {
	for _, node := range nodes {
		csiNode := e.CSINodes.Get(node)
		if csiNode == nil {
			continue
		}
		if id, has := nodeIDOf(csiNode); !has || id != nodeID {
			continue
		}
		message := fmt.Sprintf("A volume is being detached from node %s, but that node is registered with the driver as %.300q; unless somebody edited its CSINode by hand, treat the node as compromised", node, nodeID)
		e.Logger.Warn("A node's ID names another node", "node", node, "nodeID", nodeID)
		e.Recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, corev1.EventTypeWarning, ReasonWrongNodeID, message)
	}
}

// keysThatStay returns the keys of the other nodes to which Kubernetes has attached a
// volume, and from which it is not detaching it, or whose detachment is owed.
func (e detaching) keysThatStay(pv string, volume wire.Handle, node string) []string {
	var keys []string
	for _, a := range e.attachmentsOf(pv) {
		if a.Spec.NodeName != node && a.DeletionTimestamp == nil && a.Status.Attached {
			keys = append(keys, wire.NodeKey(a.Spec.NodeName))
		}
	}
	for _, owing := range e.unsettled.owedBy(volume) {
		if owing != node {
			keys = append(keys, wire.NodeKey(owing))
		}
	}
	return keys
}

// end ends the attachment of a volume to a node that has let go of it, or that the volume
// is taken from. Without a node, it ends all.
func (e detaching) end(ctx context.Context, volumes Volumes, volume wire.Handle, of source, from backends.UnpublishRequest) error {
	// The node needs the credentials no longer, and afterwards nobody may ask for this
	// detachment again.
	if err := e.drop(ctx, of.target.Stamp.PV, from.Node); err != nil {
		return err
	}
	if err := volumes.Unpublish(e.OnBehalfOf(ctx, of.tenant), of.target, from); err != nil {
		return err
	}
	e.unsettled.paid(from.Node, volume)
	e.unsettled.unlock(from.Node, volume)
	e.places.leave(place{of.at.Backend, from.Node}, volume.String())
	e.Logger.Info("Detached a volume", "volume", volume.String(), "persistentVolume", of.target.Stamp.PV, "node", from.Node)
	return nil
}
