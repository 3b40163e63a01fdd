package attach

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
)

// Kubernetes detaches a volume from a node that does not answer, and asks nobody whether
// the node still uses it. The node's plugin says so, in its report (package staged). The
// detachment is answered all the same, since nothing would come of refusing it. But as
// long as the node may write to the volume, the attachment stays at Cinder: it is owed.
// So no other node gets the volume, nothing gets its address at the array, and the node
// itself gets the same attachment again.
//
// See docs/decisions.md, "Owed detachments and node reports".
//
// If the array keeps the node out, or an administrator has declared the node off, the
// volume is taken from the node at once. Its address may then lead to another volume, so
// the node gets nothing more before it has let go.

// unsettled holds what a term knows of volumes that nodes have not let go of. The reports
// of the nodes and the records of their attachments outlast the term.
type unsettled struct {
	mu sync.Mutex
	// owed are detachments that are still to be done, each with the time of the next
	// attempt.
	owed map[onNode]time.Time
	// taken are the volumes that this term took from nodes that may write to them. The
	// caches may show that later.
	taken map[onNode]bool
	// locked are the volumes that this term has handed out as taken, and the nodes that
	// got them. VolumeAttachments say so later.
	locked map[onNode]bool
	// barred are the nodes that this term takes out of service. The cache may show that
	// later.
	barred map[string]bool
}

// onNode is a volume on a node.
type onNode struct {
	node   string
	volume wire.Handle
}

func newUnsettled() *unsettled {
	return &unsettled{owed: map[onNode]time.Time{}, taken: map[onNode]bool{}, locked: map[onNode]bool{}, barred: map[string]bool{}}
}

// owe notes that a volume is to be detached from a node when the node has let go of it.
func (u *unsettled) owe(node string, volume wire.Handle) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, has := u.owed[onNode{node, volume}]; !has {
		u.owed[onNode{node, volume}] = time.Time{}
	}
}

// take notes that a volume is being taken from a node that may still write to it.
func (u *unsettled) take(node string, volume wire.Handle) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.taken[onNode{node, volume}] = true
}

// bar notes whether a node is being taken out of service.
func (u *unsettled) bar(node string, barred bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if barred {
		u.barred[node] = true
	} else {
		delete(u.barred, node)
	}
}

func (u *unsettled) isBarred(node string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.barred[node]
}

// paid notes that a volume is detached from a node, or wanted there again.
func (u *unsettled) paid(node string, volume wire.Handle) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.owed, onNode{node, volume})
}

// lock notes whether a node maps a volume so that it keeps out all others.
func (u *unsettled) lock(node string, volume wire.Handle, locked bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if locked {
		u.locked[onNode{node, volume}] = true
	} else {
		delete(u.locked, onNode{node, volume})
	}
}

func (u *unsettled) isLocked(node string, volume wire.Handle) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.locked[onNode{node, volume}]
}

// unlock notes that a volume is detached from a node, or from all if the name is empty.
func (u *unsettled) unlock(node string, volume wire.Handle) {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.locked, func(at onNode, _ bool) bool { return at.volume == volume && (node == "" || at.node == node) })
}

// over notes that a node has let go of a volume that was taken from it.
func (u *unsettled) over(node string, volume wire.Handle) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.taken, onNode{node, volume})
}

// takenFrom returns the volumes that were taken from a node, in order.
func (u *unsettled) takenFrom(node string) []wire.Handle {
	u.mu.Lock()
	defer u.mu.Unlock()
	var volumes []wire.Handle
	for at := range u.taken {
		if at.node == node {
			volumes = append(volumes, at.volume)
		}
	}
	slices.SortFunc(volumes, byName)
	return volumes
}

// takenFromAny returns the nodes from which a volume was taken.
func (u *unsettled) takenFromAny(volume wire.Handle) []string { return nodesOf(u, u.taken, volume) }

// owedBy returns the nodes from which a volume is still to be detached.
func (u *unsettled) owedBy(volume wire.Handle) []string { return nodesOf(u, u.owed, volume) }

func nodesOf[V any](u *unsettled, noted map[onNode]V, volume wire.Handle) (nodes []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for at := range noted {
		if at.volume == volume {
			nodes = append(nodes, at.node)
		}
	}
	return nodes
}

// due returns the owed detachments that may be tried, in any order, and the taken volumes,
// which may be over. Each failed attempt is followed by a pause.
func (u *unsettled) due(now time.Time) (owed, taken []onNode) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for at, next := range u.owed {
		if !now.Before(next) {
			owed = append(owed, at)
		}
	}
	return owed, slices.Collect(maps.Keys(u.taken))
}

func (u *unsettled) postpone(at onNode, until time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, has := u.owed[at]; has {
		u.owed[at] = until
	}
}

// lostNodes decides whether a volume may be taken from a node that may write to it.
type lostNodes struct{ *Engine }

// mayWrite asks the API server whether a node may still write to a volume. It also
// returns the Lease with the node's report, and the Node if the answer depended on it. A
// node that has never reported may have staged anything.
func (e lostNodes) mayWrite(ctx context.Context, volume wire.Handle, name string) (lease *coordinationv1.Lease, node *corev1.Node, may bool, err error) {
	if lease, err = e.liveReport(ctx, name); err != nil {
		return nil, nil, false, fmt.Errorf("cannot tell whether node %s has unstaged volume %s: %w", name, volume, err)
	}
	if lease != nil && !slices.Contains(staged.Of(lease).Volumes, volume.String()) {
		return lease, nil, false, nil
	}
	node, err = e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil, false, nil
	}
	if err != nil {
		return nil, nil, false, fmt.Errorf("cannot tell whether node %s has unstaged volume %s: %w", name, volume, err)
	}
	return lease, node, lease == nil || staged.Of(lease).Has(volume.String(), node), nil
}

// mayBeTaken reports whether a volume may be taken from a node that may write to it.
// With fencing by initiator the array keeps the node out, but a Ready node has not lost
// the volume: it only has not unstaged it yet.
func (e lostNodes) mayBeTaken(volume wire.Handle, node *corev1.Node) bool {
	return staged.IsOff(node) || e.Rules(e.backendOf(volume)).FencedByInitiator && !nodemark.IsReady(node)
}

// letsGo reports whether a volume may be detached from a node. If the node may still
// write to the volume, and it may not be taken, letsGo notes that the detachment is owed.
func (e lostNodes) letsGo(ctx context.Context, volume wire.Handle, name string) (bool, error) {
	lease, node, may, err := e.mayWrite(ctx, volume, name)
	switch {
	case err != nil:
		return false, err
	case !may:
		err := e.forbid(ctx, volume, name, lease)
		return err == nil, err
	case !e.mayBeTaken(volume, node):
		e.unsettled.owe(name, volume)
		return false, nil
	}
	// Before its address is free.
	e.unsettled.take(name, volume)
	e.Logger.Warn("Taking a volume from a node that may still write to it", "volume", volume.String(), "node", name, "outOfService", staged.IsOff(node))
	return true, nil
}

// forbid keeps a node from staging a volume that is about to be detached from it. Its
// kubelet may have seen the VolumeAttachment before the node paused, and stage the volume
// when the node goes on. If Kubernetes detached the volume in an orderly way, the kubelet
// is done with it.
func (e lostNodes) forbid(ctx context.Context, volume wire.Handle, name string, lease *coordinationv1.Lease) error {
	if lease == nil {
		return nil
	}
	if !e.Nodes.Known() {
		return fmt.Errorf("the Nodes are not read yet, so it is not known whether node %s may be about to stage volume %s", name, volume)
	}
	node := e.Nodes.Get(name)
	if node == nil || nodemark.IsReady(node) && !slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(wire.KubeletName(wire.DriverName, volume.String()))) {
		return nil
	}
	at, err := e.locate(volume)
	if err != nil {
		return err
	}
	volumes, err := e.Volumes(at.Backend)
	if err != nil {
		return err
	}
	v, _, err := volumes.Find(ctx, at.ID)
	if err != nil {
		return err
	}
	return e.forbidAnyway(ctx, v, volume, name, lease)
}

// forbidAnyway keeps a node from staging a volume with the attachments that it has at Cinder.
func (e lostNodes) forbidAnyway(ctx context.Context, v cinder.Volume, volume wire.Handle, name string, lease *coordinationv1.Lease) error {
	ended := slices.DeleteFunc(e.attachmentsOfNode(v, name), func(id string) bool { return slices.Contains(staged.Of(lease).Ended, id) })
	if len(ended) == 0 {
		return nil
	}
	if _, err := e.Client.CoordinationV1().Leases(e.Namespace).Update(ctx, staged.End(lease, ended...), metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("cannot tell node %s that volume %s is detached from it: %w", name, volume, err)
	}
	return nil
}

// attachmentsOfNode returns the attachments of a volume that may have been handed out to a
// node: the recorded one, and completed ones that no record of another node names, since
// the record may have been lost.
func (e lostNodes) attachmentsOfNode(v cinder.Volume, name string) []string {
	records := stamps.NodeRecordsOf(v)
	var found []string
	if id := records[wire.NodeKey(name)].AttachmentID; id != "" {
		found = append(found, id)
	}
	for _, a := range v.Attachments {
		if !records.Name(a.ID) && (a.Host == "" && a.ServerID == "" || a.Host == stamps.NodeHost(name, e.Cluster)) {
			found = append(found, a.ID)
		}
	}
	return found
}

// mayNotStage reports whether forbid has ended an attachment of a node. The detachment that
// was to follow may have failed.
func (e lostNodes) mayNotStage(ctx context.Context, node, attachment string) (bool, error) {
	lease, err := e.liveReport(ctx, node)
	if err != nil {
		return false, fmt.Errorf("cannot tell whether node %s may stage with attachment %s: %w", node, attachment, err)
	}
	return lease != nil && slices.Contains(staged.Of(lease).Ended, attachment), nil
}

func endedBefore(volume wire.Handle, node string) error {
	return &controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("the attachment of volume %s to node %s was being ended when the node did not answer; it is made anew", volume, node)}
}

// barred returns why a node may get no new attachment: it has a volume staged that
// Kubernetes has detached from it, so its kernel may write to an address that leads to
// another volume by now. It holds for all backends, since addresses are the array's. It
// also holds while Kubernetes is attaching that volume to the node again: what is staged
// is of an earlier attachment.
func (e lostNodes) barred(ctx context.Context, wanted wire.Handle, name string) error {
	if !e.Nodes.Known() || !e.Reports.Known() || !e.Attachments.Known() {
		return fmt.Errorf("the Nodes, VolumeAttachments and reports of node plugins are not read yet, so it is not known whether node %s still uses volumes that were taken from it", name)
	}
	node := e.Nodes.Get(name)
	if node == nil {
		return nil
	}
	if e.unsettled.isBarred(name) || nodemark.Bars(node) {
		return unclean("node %s does not answer and is taken out of service, so it gets no volume until it is back and has let go of what it had", name)
	}
	if left := e.unsettled.takenFrom(name); len(left) > 0 {
		return stagedBefore(name, left[0])
	}
	report, reported := e.report(name)
	if !reported {
		lease, err := e.liveReport(ctx, name)
		if err == nil && lease == nil {
			return unclean("the node plugin of %s has not reported which volumes it has staged, so the node gets none; the log of the plugin on %s says why", name, name)
		}
		if err == nil {
			err = fmt.Errorf("the report of the node plugin of %s is not read yet", name)
		}
		return err
	}
	attachments := e.attachmentsOn(name)
	for _, text := range report.Volumes {
		volume, err := wire.ParseHandle(text)
		if err != nil || !report.Has(text, node) || allowsStaging(attachments[onNode{name, volume}]) && volume != wanted {
			continue
		}
		if volume == wanted {
			return unclean("node %s still has volume %s staged from an earlier attachment, which is gone, so it gets the volume again only when %s", name, volume, staged.Ended(name))
		}
		// The caches may show the report before the VolumeAttachment.
		if a, err := e.liveAttachment(ctx, volume, name); err != nil || !allowsStaging(a) {
			return cmp.Or(err, stagedBefore(name, volume))
		}
	}
	return nil
}

func stagedBefore(node string, volume wire.Handle) error {
	return unclean("node %s has volume %s staged, which Kubernetes has detached from it, so it gets no other volume until %s", node, volume, staged.Ended(node))
}

// release decides for a Publish whether another node, to which the volume is attached at
// Cinder, may lose it.
func (e lostNodes) release(ctx context.Context, pv string, volume wire.Handle, name string, to wire.Node) (bool, error) {
	if e.attachmentsOn(name)[onNode{name, volume}] != nil {
		return false, nil
	}
	if a, err := e.liveAttachment(ctx, volume, name); err != nil || a != nil {
		return false, err
	}
	lets, err := e.letsGo(ctx, volume, name)
	if err != nil || lets {
		return lets, err
	}
	return false, unclean("volume %s is still staged on node %s, from which Kubernetes has detached it, and that node may write to it; node %s gets it once %s", volume, name, to.Name, staged.Ended(name))
}

// takenByLock reports whether a volume was taken from another node that may still write to
// it. Ceph keeps that node out for good only if its client is dead: one that lives gets the
// lock of the image back as soon as the next node has unmapped it. So the volume is
// handed out only if an administrator has declared the other node off.
func takenByLock(e *Engine, volume wire.Handle, to string) (taken bool, err error) {
	if !e.Nodes.Known() || !e.Reports.Known() {
		return false, fmt.Errorf("the Nodes and the reports of node plugins are not read yet, so it is not known whether another node may write to volume %s", volume)
	}
	holders := e.unsettled.takenFromAny(volume)
	for lease := range e.Reports.All() {
		if staged.Of(lease).Has(volume.String(), e.Nodes.Get(staged.NodeOf(lease.Name))) {
			holders = append(holders, staged.NodeOf(lease.Name))
		}
	}
	for _, name := range holders {
		if name == to {
			continue
		}
		node := e.Nodes.Get(name)
		report, reported := e.report(name)
		if node != nil && !staged.IsOff(node) && (!reported || report.Has(volume.String(), node)) {
			return false, unclean("volume %s is still staged on node %s, from which Kubernetes has detached it, and Ceph keeps that node out only as long as another one has the image mapped; node %s gets it once %s", volume, name, to, staged.Ended(name))
		}
		taken = true
	}
	return taken, nil
}

// keepsOut reports whether a node may have mapped a volume so that no other client can
// write to it.
func keepsOut(e *Engine, node string, volume wire.Handle) bool {
	a := e.attachmentsOn(node)[onNode{node, volume}]
	return e.unsettled.isLocked(node, volume) || a != nil && wire.IsTaken(a.Status.AttachmentMetadata)
}

// Changeable returns the PersistentVolume of a volume whose content Cinder can change. Where
// a volume was taken by a lock, the next node has its image mapped so that no other client
// can write to it, and a request to Cinder that needs the image ends with the volume in
// error_extending, or the snapshot in error.
func Changeable(e *Engine, volume wire.Handle) (*corev1.PersistentVolume, error) {
	if !e.Attachments.Known() {
		return nil, fmt.Errorf("the VolumeAttachments are not read yet, so it is not known whether volume %s was taken from a lost node", volume)
	}
	for a := range e.Attachments.All() {
		if !wire.IsTaken(a.Status.AttachmentMetadata) && !e.unsettled.isLocked(a.Spec.NodeName, volume) {
			continue
		}
		if handle, ours := e.handleOf(a); ours && handle == volume {
			return nil, unclean("volume %s was taken from a lost node, so node %s has its image mapped in a way that keeps out Cinder, too; the volume can grow and be snapshotted once the lost node has let go of it and the pods on node %s have ended and started again", volume, a.Spec.NodeName, a.Spec.NodeName)
		}
	}
	of, err := e.volumeOf(volume)
	return of.pv, err
}

// liveAttachment asks the API server for the VolumeAttachment of a volume and a node; nil
// if there is none.
func (e lostNodes) liveAttachment(ctx context.Context, volume wire.Handle, node string) (*storagev1.VolumeAttachment, error) {
	a, err := e.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(volume, node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether volume %s is attached to node %s: %w", volume, node, err)
	}
	return a, nil
}

// allowsStaging reports whether a VolumeAttachment tells its node to stage the volume; nil
// does not.
func allowsStaging(a *storagev1.VolumeAttachment) bool { return a != nil && a.Status.Attached }

// liveReport asks the API server for the Lease with a node's report; nil if there is none.
func (e lostNodes) liveReport(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	lease, err := e.Client.CoordinationV1().Leases(e.Namespace).Get(ctx, staged.LeaseName(node), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return lease, err
}

// report returns the report of a node in the cache.
func (e *Engine) report(node string) (staged.Report, bool) {
	lease := e.Reports.Get(e.Namespace + "/" + staged.LeaseName(node))
	if lease == nil {
		return staged.Report{}, false
	}
	return staged.Of(lease), true
}

// attachmentsOn returns the VolumeAttachments of a node in the cache, or of all nodes if the
// name is empty.
func (e *Engine) attachmentsOn(node string) map[onNode]*storagev1.VolumeAttachment {
	found := map[onNode]*storagev1.VolumeAttachment{}
	for a := range e.Attachments.All() {
		if node == "" || a.Spec.NodeName == node {
			if handle, ours := e.handleOf(a); ours {
				found[onNode{a.Spec.NodeName, handle}] = a
			}
		}
	}
	return found
}

func unclean(format string, arguments ...any) error {
	return &controller.Failure{Kind: controller.Unclean, Message: fmt.Sprintf(format, arguments...)}
}

// justTaken is the failure of an attachment during which a volume was taken from the
// node: the new attachment may have the address of that volume.
func justTaken(node string) error {
	return &controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("another volume has just been taken from node %s, which may still write to it", node)}
}
