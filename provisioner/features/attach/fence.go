package attach

import (
	"context"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
)

// forbidTries is how often a Lease is read again because something else has written it.
const forbidTries = 30

// Fence takes the volumes of a node that does not answer, although Kubernetes has not
// detached them yet.
type Fence struct{ engine *Engine }

// FenceOf returns the fence of an engine.
func FenceOf(e *Engine) Fence { return Fence{e} }

// IsFenced reports whether the array keeps a node out of a backend's volume that was
// detached from it.
func (f Fence) IsFenced(volume wire.Handle) bool {
	return f.engine.Rules(f.engine.backendOf(volume)).FencedByInitiator
}

// Bar keeps a node from getting volumes, and Unbar ends that. The node's mark says the same
// to the next leader.
func (f Fence) Bar(node string) { f.engine.unsettled.bar(node, true) }

// Unbar ends what Bar began.
func (f Fence) Unbar(node string) { f.engine.unsettled.bar(node, false) }

// Take ends the attachment of a volume to a node of which nothing is heard, in the boot
// that was lost. Before, it forbids the node to stage the volume with that attachment:
// the VolumeAttachment still says that it may. Take does nothing, and returns false, if
// the node is heard of again.
func (f Fence) Take(ctx context.Context, volume wire.Handle, name, boot string) (taken bool, err error) {
	e := f.engine
	if !e.Gate.Close(volume) {
		return false, fmt.Errorf("volume %s is just being attached or detached", volume)
	}
	defer e.Gate.Open(volume)
	if !e.Attachments.Known() {
		return false, fmt.Errorf("the VolumeAttachments are not read yet, so it is not known which nodes have volume %s", volume)
	}
	volumes, of, err := e.attached(ctx, volume)
	if err != nil {
		return false, err
	}
	v, _, err := volumes.Find(ctx, of.at.ID)
	if err != nil {
		return false, err
	}
	silent, has, err := f.forbid(ctx, v, volume, name, boot)
	// The volumes of a node are taken at the same time, and forbidden in one Lease.
	for tries := 1; tries < forbidTries && apierrors.IsConflict(err); tries++ {
		silent, has, err = f.forbid(ctx, v, volume, name, boot)
	}
	if err != nil || !silent {
		return false, err
	}
	if has {
		// Before its address is free.
		e.unsettled.take(name, volume)
	}
	attached := slices.ContainsFunc(e.attachmentsOf(of.target.Stamp.PV), func(a *storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == name && a.Status.Attached
	})
	e.Logger.Warn("Taking a volume from a node that does not answer", "volume", volume.String(), "node", name)
	err = e.detaching.end(ctx, volumes, volume, of, backends.UnpublishRequest{
		Node: name, Key: wire.NodeKey(name), Others: e.detaching.keysThatStay(of.target.Stamp.PV, volume, name), Attached: has || attached,
	})
	return err == nil, err
}

// forbid forbids a node to stage a volume that is about to be taken from it, unless it is
// heard of again; has means that it may have the volume staged.
func (f Fence) forbid(ctx context.Context, v cinder.Volume, volume wire.Handle, name, boot string) (silent, has bool, err error) {
	e := f.engine
	lease, err := e.lost.liveReport(ctx, name)
	if err != nil {
		return false, false, fmt.Errorf("cannot tell what node %s has staged: %w", name, err)
	}
	if lease == nil {
		return false, false, fmt.Errorf("the node plugin of %s has not reported what it has staged, so it cannot be told to stage nothing more", name)
	}
	node, err := e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, false, fmt.Errorf("cannot tell whether node %s is back: %w", name, err)
	}
	if !nodemark.IsSilent(node) || node.Status.NodeInfo.BootID != boot || !f.IsFenced(volume) {
		return false, false, nil
	}
	return true, staged.Of(lease).Has(volume.String(), node), e.lost.forbidAnyway(ctx, v, volume, name, lease)
}
