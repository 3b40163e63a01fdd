package attach

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// A node is lost with a volume if the volume is detached from it while its kubelet
// still lists it as in use. Kubernetes does that to a node that is not ready, or is
// tainted out-of-service, without telling the driver. The kubelet takes a volume off
// the list only when it is unstaged. So this code looks only at the list, the ID of the
// node's boot, and whether the Node object exists; nothing on the node reports.

// lost holds what a term knows of the volumes that nodes were lost with. The notes on
// the volumes outlast the term.
type lost struct {
	mu sync.Mutex
	// notes are by the node's name and the volume's ID.
	notes map[string]map[string]lostVolume
	// loaded are the backends whose volumes were read for notes, with the places to
	// which they led then.
	loaded map[string]cinder.Place
	// clean are VolumeAttachments whose node had unstaged the volume when the
	// detachment was first requested. A kubelet stages nothing for a VolumeAttachment
	// that is being deleted, but lists the volume again for the next pod.
	clean map[types.UID]bool
	// gates keep volumes of a place from being attached to a node while a note is made
	// that it is lost: the addresses of volumes that are taken from it are not free
	// before that note.
	gates map[passage]*sync.RWMutex
}

// passage is the way of a place's volumes to a node.
type passage struct {
	from cinder.Place
	to   string // a node's name
}

func newLost() *lost {
	return &lost{notes: map[string]map[string]lostVolume{}, loaded: map[string]cinder.Place{}, clean: map[types.UID]bool{}, gates: map[passage]*sync.RWMutex{}}
}

// gate returns the gate between a place and a node.
func (l *lost) gate(from cinder.Place, node string) *sync.RWMutex {
	l.mu.Lock()
	defer l.mu.Unlock()
	way := passage{from, node}
	if l.gates[way] == nil {
		l.gates[way] = &sync.RWMutex{}
	}
	return l.gates[way]
}

func (l *lost) isClean(attachment types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clean[attachment]
}

// setClean remembers that a node had unstaged a volume when its detachment was
// requested.
func (l *lost) setClean(attachment types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clean[attachment] = true
}

// isClean reports whether a VolumeAttachment's node had unstaged the volume when the
// detachment was first requested, in this term or an earlier one.
func (e *Engine) isClean(a *storagev1.VolumeAttachment) bool {
	return a != nil && (e.lost.isClean(a.UID) || a.Annotations[record.AnnotationUnstaged] == "true")
}

// setClean also records that for the next leader. A detachment may outlast a term, and
// by then the kubelet may list the volume again for the next pod, which waits for this
// very detachment.
func (e *Engine) setClean(ctx context.Context, a *storagev1.VolumeAttachment) {
	if a == nil {
		return
	}
	e.lost.setClean(a.UID)
	if a.Annotations[record.AnnotationUnstaged] == "true" {
		return
	}
	patch := fmt.Sprintf(`{"metadata": {"uid": %q, "annotations": {%q: "true"}}}`, a.UID, record.AnnotationUnstaged)
	_, err := e.Client.StorageV1().VolumeAttachments().Patch(ctx, a.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		e.Logger.Warn("Could not record on a VolumeAttachment that its node has unstaged the volume; if the leader changes before the volume is detached, the node may be treated as lost", "volumeAttachment", a.Name, "error", err)
	}
}

func (l *lost) isLoaded(backend string, at cinder.Place) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	where, loaded := l.loaded[backend]
	return loaded && where == at
}

// lostVolume is a note, with what is needed to end it.
type lostVolume struct {
	stamps.Unclean
	key string
	// backend is the one by whose name nodes know the volume. Other backends may show
	// the volume, too, and this one may have left the policy.
	backend string
	target  backends.Target
	tenant  string
}

func (v lostVolume) handle() wire.Handle {
	return wire.Handle{Backend: v.backend, ID: v.target.VolumeID}
}

// add adds a note that this term makes. It waits until no volume of the place is being
// attached to the node.
func (l *lost) add(node string, v lostVolume) {
	gate := l.gate(v.target.Place, node)
	gate.Lock()
	defer gate.Unlock()
	l.keep(node, v)
}

// keep adds a note that exists already.
func (l *lost) keep(node string, v lostVolume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.notes[node] == nil {
		l.notes[node] = map[string]lostVolume{}
	}
	l.notes[node][v.target.VolumeID] = v
}

func (l *lost) drop(node, volumeID string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.notes[node], volumeID)
	if len(l.notes[node]) == 0 {
		delete(l.notes, node)
	}
}

// of returns the volumes that a node was lost with, in order.
func (l *lost) of(node string) []lostVolume {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.notes[node]), func(a, b lostVolume) int { return cmp.Compare(a.target.VolumeID, b.target.VolumeID) })
}

// nodes returns the nodes that were lost with volumes, in order.
func (l *lost) nodes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(maps.Keys(l.notes))
}

// know reads the notes and records on a backend's volumes, unless that was done for the
// place to which it leads now. What this term wrote is known anyway.
func (e *Engine) know(ctx context.Context, volumes Volumes, backend string) error {
	if e.lost.isLoaded(backend, volumes.Place()) {
		return nil
	}
	if !e.AttachmentsKnown() {
		return fmt.Errorf("the VolumeAttachments are not read yet, so it is not known which volumes the nodes have")
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return fmt.Errorf("it is not known yet which nodes were lost with volumes: %w", err)
	}
	waiting := e.waiting()
	for _, v := range all {
		if !stamps.IsCSI(v) {
			continue
		}
		name := e.nameFor(v, backend)
		e.keepPlaces(v, name, waiting[stamps.Of(v).PV])
		if name != backend && e.lost.isLoaded(name, volumes.Place()) {
			continue // the note may have ended since this listing
		}
		for key, note := range stamps.UncleanOf(v) {
			stamp := stamps.Of(v)
			e.lost.keep(note.Node, lostVolume{note, key, name, backends.Target{VolumeID: v.ID, Stamp: stamp, Place: volumes.Place()}, stamp.Tenant})
		}
	}
	e.lost.mu.Lock()
	defer e.lost.mu.Unlock()
	e.lost.loaded[backend] = volumes.Place()
	return nil
}

// nameFor returns the backend that the PersistentVolume of a volume names, by which
// nodes know the volume, because all backends of a project show the same volumes.
// Without a PersistentVolume, it returns the backend that shows the volume.
func (e *Engine) nameFor(v cinder.Volume, shownBy string) string {
	object, exists, err := e.PersistentVolumes.GetByKey(stamps.Of(v).PV)
	pv, ok := object.(*corev1.PersistentVolume)
	if err != nil || !exists || !ok || !record.IsCSI(pv) {
		return shownBy
	}
	if handle, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle); err == nil && handle.ID == v.ID {
		return handle.Backend
	}
	return shownBy
}

// nodeState is the part of a Node that shows whether the node has let go of volumes.
type nodeState struct {
	exists bool
	boot   string
	// inUse are the IDs of the driver's volumes that the node lists as in use.
	inUse map[string]bool
	// off means that an administrator has declared the node off.
	off bool
}

// lookAt reads a Node from the API server.
func (e *Engine) lookAt(ctx context.Context, name string) (nodeState, error) {
	node, err := e.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nodeState{}, nil
	}
	if err != nil {
		return nodeState{}, fmt.Errorf("cannot tell which volumes node %s uses: %w", name, err)
	}
	return stateOf(node), nil
}

func stateOf(node *corev1.Node) nodeState {
	state := nodeState{
		exists: true,
		boot:   stamps.BootKey(node.Status.NodeInfo.BootID),
		inUse:  map[string]bool{},
		off:    slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService }),
	}
	for _, name := range node.Status.VolumesInUse {
		if handle, ours := handleInUse(name); ours {
			state.inUse[handle.ID] = true
		}
	}
	return state
}

// letGo reports whether a node has let go of a volume that it was lost with.
func (n nodeState) letGo(volumeID string, note stamps.Unclean) bool {
	return !n.exists || !n.inUse[volumeID] || note.Boot != "" && n.boot != "" && n.boot != note.Boot
}

// inUseName, followed by a handle, is kubelet's name for a volume of the driver.
const inUseName = "kubernetes.io/csi/" + wire.DriverName + "^"

// handleInUse returns the volume of the driver that a name in a node's status stands
// for.
func handleInUse(name corev1.UniqueVolumeName) (wire.Handle, bool) {
	text, ours := strings.CutPrefix(string(name), inUseName)
	handle, err := wire.ParseHandle(text)
	return handle, ours && err == nil
}

// quarantine is what keeps a node from getting volumes of one backend.
type quarantine struct {
	// elsewhere are the IDs of the volumes that the node was lost with, but that the
	// backend does not show.
	elsewhere map[string]bool
	// refusal is why the node gets no volume; nil if it may get one.
	refusal error
}

// quarantine looks whether a node may write to volumes that were taken from it: the
// array may give their addresses to other volumes, and the node's kernel would not
// notice. What counts is where those volumes are, not the backend by whose name they
// were attached: another backend of the same project may show them, whether or not the
// first one has answered in this term, or is still in the policy. It costs no request
// for a node that was never lost.
func (e *Engine) quarantine(ctx context.Context, volumes Volumes, backend, node string) quarantine {
	q := quarantine{elsewhere: map[string]bool{}}
	if !e.NodesKnown() {
		q.refusal = fmt.Errorf("the Nodes are not read yet, so it is not known whether node %s still uses volumes that are gone", node)
		return q
	}
	var notes []lostVolume
	for _, v := range e.lost.of(node) {
		here, err := e.isHere(ctx, volumes, backend, v)
		switch {
		case err != nil:
			q.refusal = fmt.Errorf("cannot tell whether backend %s shows volume %s, which node %s was lost with: %w", backend, v.handle(), node, err)
			return q
		case here:
			notes = append(notes, v)
		default:
			q.elsewhere[v.target.VolumeID] = true
		}
	}
	leftovers := slices.DeleteFunc(e.leftovers(node), func(handle wire.Handle) bool { return !e.mayLeadTo(handle.Backend, backend, volumes.Place()) })
	if len(notes) == 0 && len(leftovers) == 0 {
		return q
	}
	state, err := e.lookAt(ctx, node)
	if err != nil {
		q.refusal = err
		return q
	}
	for _, v := range notes {
		if state.letGo(v.target.VolumeID, v.Unclean) {
			if err := e.forget(ctx, e.holder(v, volumes), node, state, v); err != nil {
				q.refusal = err
				return q
			}
		} else if q.refusal == nil {
			q.refusal = unclean("node %s was lost with volume %s and may still write to it, so it gets no volume of backend %s until its kubelet has released that volume, it has rebooted, or its Node object is deleted", node, v.handle(), backend)
		}
	}
	for _, handle := range leftovers {
		if q.refusal == nil && state.exists && state.inUse[handle.ID] {
			q.refusal = unclean("node %s still uses volume %s, which no PersistentVolume names any more, so it gets no volume of backend %s until its kubelet has released that volume or the node has rebooted", node, handle, backend)
		}
	}
	return q
}

// isHere reports whether a backend shows a volume that a node was lost with. Two
// addresses may lead to one project, so only Cinder can tell then.
func (e *Engine) isHere(ctx context.Context, volumes Volumes, backend string, v lostVolume) (bool, error) {
	at, here := v.target.Place, volumes.Place()
	switch {
	case v.backend == backend, !at.IsKnown(), at == here:
		return true, nil
	case at.Project != here.Project:
		return false, nil
	}
	_, found, err := volumes.Find(e.OnBehalfOf(ctx, v.tenant), v.target.VolumeID)
	return found, err
}

// mayLeadTo reports whether a backend may be another name of the project that one leads
// to, as far as that is known. The volume in question is gone, so Cinder cannot tell.
func (e *Engine) mayLeadTo(other, backend string, here cinder.Place) bool {
	if other == backend {
		return true
	}
	volumes, err := e.Volumes(other)
	return err != nil || !volumes.Place().IsKnown() || volumes.Place().Project == here.Project
}

// holder returns the backend that ends a note: the one by whose name the volume is
// known, as long as it leads to the volume, because it also attaches and detaches it.
func (e *Engine) holder(v lostVolume, otherwise Volumes) Volumes {
	if own, err := e.Volumes(v.backend); err == nil && own.Place() == v.target.Place {
		return own
	}
	return otherwise
}

// forget ends a note about a node that has let go of the volume.
func (e *Engine) forget(ctx context.Context, volumes Volumes, node string, state nodeState, v lostVolume) error {
	if state.letGo(v.target.VolumeID, stamps.Unclean{}) {
		// If the volume's detachment is still to come, only this moment may show that it
		// was unstaged.
		e.setClean(ctx, e.detachment(v.target.Stamp.PV, node))
	}
	err := volumes.ForgetUnclean(e.OnBehalfOf(ctx, v.tenant), v.target, v.key)
	if err != nil && !cinder.IsKind(err, backends.KindElsewhere) && !cinder.IsKind(err, backends.KindNotOurs) {
		return err
	}
	e.lost.drop(node, v.target.VolumeID)
	e.Logger.Info("A lost node has released a volume", "node", node, "backend", v.backend, "volume", v.target.VolumeID)
	return nil
}

// leftovers returns volumes that a node uses according to the cache, but that are
// deleted, together with the notes on them. No pod can ask for them, so the node must
// have had them before.
func (e *Engine) leftovers(name string) []wire.Handle {
	object, exists, err := e.Nodes.GetByKey(name)
	node, ok := object.(*corev1.Node)
	if err != nil || !exists || !ok {
		return nil
	}
	var left []wire.Handle
	for _, inUse := range node.Status.VolumesInUse {
		if handle, ours := handleInUse(inUse); ours && len(record.ByHandle(e.PersistentVolumes, wire.DriverName, handle.String())) == 0 {
			left = append(left, handle)
		}
	}
	return left
}

// admit returns the check that Publish makes before it creates an attachment of a
// volume for a node.
func (e *Engine) admit(volume wire.Handle, node string, known quarantine) func(context.Context, map[string]stamps.Unclean) ([]string, error) {
	return func(ctx context.Context, notes map[string]stamps.Unclean) (ended []string, err error) {
		if known.refusal != nil {
			return nil, known.refusal
		}
		if slices.ContainsFunc(e.lost.of(node), func(v lostVolume) bool { return !known.elsewhere[v.target.VolumeID] }) {
			return nil, &controller.Failure{Kind: string(cinder.KindConflict), Message: fmt.Sprintf("node %s has just been lost with another volume", node)}
		}
		own := wire.NodeKey(node)
		if _, noted := notes[own]; noted {
			// The node has let go since then, or it would be in quarantine. If it lists
			// the volume, that is because it is about to get it.
			ended = append(ended, own)
		}
		if e.Rules(volume.Backend).FencedByInitiator {
			return ended, nil
		}
		for _, key := range slices.Sorted(maps.Keys(notes)) {
			if key == own {
				continue
			}
			note := notes[key]
			state, err := e.lookAt(ctx, note.Node)
			switch {
			case err != nil:
				return nil, err
			case state.letGo(volume.ID, note):
				ended = append(ended, key)
			case state.off:
				// The volume moves, and the node stays in quarantine until it is seen
				// to have let go.
			default:
				return nil, unclean("volume %s was detached from node %s while it was in use there, and that node may still write to it (csi.fencing: export); it can be attached to node %s once the kubelet of %s has released it, %s has rebooted, its Node object is deleted, or it is off and tainted %s",
					volume, note.Node, node, note.Node, note.Node, corev1.TaintNodeOutOfService)
			}
		}
		return ended, nil
	}
}

// seeClean looks at a node as soon as a volume is to be detached from it, and remembers
// whether it has unstaged the volume. By the time the backend answers, the kubelet may
// list the volume again for the next pod, which waits for the detachment, while the
// detachment would wait for the release.
func (e *Engine) seeClean(ctx context.Context, volume wire.Handle, of source, node string) {
	asked := e.detachment(of.target.Stamp.PV, node)
	if asked == nil || e.isClean(asked) {
		return
	}
	// If this fails, or the node uses the volume, that is reported once the backend
	// answers.
	if state, err := e.lookAt(ctx, node); err == nil && state.letGo(volume.ID, stamps.Unclean{}) {
		e.setClean(ctx, asked)
	}
}

// stillUses returns the check that Unpublish makes before it takes a volume from a
// node. If the array does not keep nodes out, the volume stays attached to a node that
// still uses it: otherwise its address would be free for any other volume, on any node,
// and the lost node would write into that volume. stillUses calls clean for nodes that
// do not use it.
func (e *Engine) stillUses(volumes Volumes, volume wire.Handle, of source, clean func(node string)) func(ctx context.Context, node, key string, noted stamps.Unclean) (stamps.Unclean, bool, error) {
	return func(ctx context.Context, node, key string, noted stamps.Unclean) (stamps.Unclean, bool, error) {
		if wire.NodeKey(node) != key {
			// The node record had no room for the whole name.
			if node = e.nodeOf(key); node == "" {
				return stamps.Unclean{}, false, nil
			}
		}
		asked := e.detachment(of.target.Stamp.PV, node)
		if e.isClean(asked) {
			clean(node)
			return stamps.Unclean{}, false, nil
		}
		state, err := e.lookAt(ctx, node)
		if err != nil {
			return stamps.Unclean{}, false, err
		}
		if state.letGo(volume.ID, noted) {
			e.setClean(ctx, asked)
			clean(node)
			return stamps.Unclean{}, false, nil
		}
		note := stamps.Unclean{Node: node, Boot: state.boot}
		if noted.Boot != "" {
			note = noted // names the boot in which the node was lost
		}
		// The volume has just been read, so it is where the backend leads now, whether or
		// not its PersistentVolume records that.
		target := of.target
		target.Place = volumes.Place()
		e.lost.add(node, lostVolume{note, key, volume.Backend, target, of.tenant})
		if !state.off && !e.Rules(volume.Backend).FencedByInitiator {
			return note, true, unclean("node %s still uses volume %s and may write to it (csi.fencing: export), so the volume stays attached until the kubelet of %s releases it, %s reboots, its Node object is deleted, or it is off and tainted %s",
				node, volume, node, node, corev1.TaintNodeOutOfService)
		}
		e.Logger.Warn("Detaching a volume from a node that still uses it", "volume", volume.String(), "persistentVolume", of.target.Stamp.PV, "node", node, "outOfService", state.off)
		return note, true, nil
	}
}

func unclean(format string, arguments ...any) error {
	return &controller.Failure{Kind: controller.Unclean, Message: fmt.Sprintf(format, arguments...)}
}
