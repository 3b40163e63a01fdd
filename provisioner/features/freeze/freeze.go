// Package freeze freezes the filesystems of several volumes on all nodes that use them, so
// that snapshots of these volumes, taken one after another, show one moment.
//
// The leader orders it in a Lease of each node, and the node's plugin answers there (package
// frozen). Nobody trusts that anything stays frozen: a plugin thaws by itself after a
// while, and says afterwards whether it had to. So only Thaw tells whether the snapshots
// that were taken before it show one moment.
package freeze

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/frozen"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

const (
	// answerWithin is how long a node plugin may take to do what is ordered.
	answerWithin = 10 * time.Second
	// look is the time between two looks for an answer.
	look = 100 * time.Millisecond
)

// Uses tells which nodes use a volume; *nodeuse.Tracker implements it.
type Uses interface {
	// Users and Attachments are read after the call.
	Users(ctx context.Context, v nodeuse.Volume) ([]string, error)
	Attachments(ctx context.Context, pv string) ([]nodeuse.Attachment, error)
}

// Gate keeps volumes from being attached to nodes.
type Gate interface {
	// Close returns false if the volume is just being attached.
	Close(volume wire.Handle) bool
	Open(volume wire.Handle)
}

// Options configure a Freezer.
type Options struct {
	Client kubernetes.Interface
	// Namespace is the program's.
	Namespace string
	Uses      Uses
	Gate      Gate
	Logger    *slog.Logger
}

// Freezer freezes filesystems for one term.
type Freezer struct {
	Options
	mu sync.Mutex
	// busy are the nodes that have an order.
	busy map[string]bool
}

// New makes the Freezer of one term.
func New(options Options) *Freezer { return &Freezer{Options: options, busy: map[string]bool{}} }

// Reason is why volumes cannot be frozen.
type Reason string

const (
	// Raw means that a raw block volume is in use.
	Raw Reason = "raw"
	// Native means that a volume is in mode native.
	Native Reason = "native"
	// Silent means that the plugin of a node that has the volume does not answer.
	Silent Reason = "silent"
	// Busy means that the volume or its node is in the middle of something else.
	Busy Reason = "busy"
	// Foreign means that somebody else has frozen the filesystem.
	Foreign Reason = "foreign"
	// Failed means anything else.
	Failed Reason = "failed"
)

// Refusal is why volumes are not frozen.
type Refusal struct {
	Reason Reason
	// PersistentVolume and Node may be empty.
	PersistentVolume, Node string
	// ordered means that nodes were told to freeze something.
	ordered bool
	text    string
}

// Error returns a sentence.
func (r *Refusal) Error() string { return r.text }

// MayHaveStoppedPods reports whether something may have been frozen for a while.
func (r *Refusal) MayHaveStoppedPods() bool { return r.ordered }

func refuse(reason Reason, pv, node, format string, values ...any) error {
	return &Refusal{Reason: reason, PersistentVolume: pv, Node: node, text: fmt.Sprintf(format, values...)}
}

// Hold are volumes whose filesystems are frozen.
type Hold struct {
	freezer *Freezer
	id      string
	// nodes have the order, and closed are the volumes whose gates are closed.
	nodes  []*corev1.Node
	closed []wire.Handle

	once sync.Once
	err  error
}

// Freeze freezes the filesystems of volumes on all nodes that use them. When it returns,
// everything that pods have written is on the disks, and nothing more is written to any of
// them until Thaw, which must be called, or for at most a time. The error is a Refusal if
// the volumes cannot be frozen now.
func (f *Freezer) Freeze(ctx context.Context, volumes []*corev1.PersistentVolume, atMost time.Duration) (_ *Hold, err error) {
	h := &Hold{freezer: f, id: rand.Text()}
	defer func() {
		if err != nil {
			h.release()
		}
	}()
	handles := map[string]string{} // names of PersistentVolumes
	for _, pv := range volumes {
		source := pv.Spec.CSI
		if source == nil || source.Driver != wire.DriverName {
			// No gate is in the way of a pod that uses it meanwhile.
			return nil, refuse(Native, pv.Name, "", "the volume of PersistentVolume %s is in mode native, so nobody can freeze its filesystem; use a class with the consistency array or none", pv.Name)
		}
		handle, err := wire.ParseHandle(source.VolumeHandle)
		if err != nil {
			return nil, fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
		}
		if handles[handle.String()] != "" {
			continue
		}
		// Before anybody is asked which nodes have it.
		if !f.Gate.Close(handle) {
			return nil, refuse(Busy, pv.Name, "", "the volume of PersistentVolume %s is just being attached to a node", pv.Name)
		}
		h.closed = append(h.closed, handle)
		handles[handle.String()] = pv.Name
	}
	if len(handles) > frozen.MaxVolumes {
		return nil, refuse(Failed, "", "", "%d volumes are too many to be frozen at once; %d can be", len(handles), frozen.MaxVolumes)
	}
	usedBy, err := f.nodesOf(ctx, volumes)
	if err != nil {
		return nil, err
	}
	used := map[string]*corev1.Node{}
	for i, pv := range volumes {
		nodes := usedBy[i]
		switch {
		case len(nodes) == 0:
		case pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock:
			return nil, refuse(Raw, pv.Name, nodes[0].Name, "the volume of PersistentVolume %s is a raw block volume, and in use on node %s: it has no filesystem to freeze", pv.Name, nodes[0].Name)
		}
		for _, node := range nodes {
			// The others would wait for it, frozen.
			if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
			}) {
				return nil, refuse(Silent, pv.Name, node.Name, "node %s, which uses the volume of PersistentVolume %s, is not Ready", node.Name, pv.Name)
			}
			used[node.Name] = node
		}
	}
	nodes := slices.SortedFunc(maps.Values(used), func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	if node := f.take(nodes); node != "" {
		return nil, refuse(Busy, "", node, "other volumes are just frozen on node %s", node)
	}
	h.nodes = nodes
	order := frozen.Order{ID: h.id, Volumes: slices.Sorted(maps.Keys(handles)), AtMost: atMost}
	if err := h.each(ctx, func(ctx context.Context, node *corev1.Node) error {
		answer, err := f.order(ctx, node, order, frozen.Frozen, frozen.Refused, frozen.Lost)
		switch {
		case err != nil:
			return err
		case answer.State == frozen.Frozen:
			return nil
		}
		pv, which := handles[answer.Volume], "filesystems"
		if pv != "" {
			which = "the filesystem of PersistentVolume " + pv
		}
		return refuse(Reason(answer.Reason), pv, node.Name, "node %s has not frozen %s: %s", node.Name, which, answer.Message)
	}); err != nil {
		// Nobody waits for that: without it, they thaw by themselves.
		_ = h.each(context.WithoutCancel(ctx), func(ctx context.Context, node *corev1.Node) error {
			_, err := f.order(ctx, node, frozen.Order{ID: h.id, Thaw: true})
			return err
		})
		var refusal *Refusal
		if errors.As(err, &refusal) {
			refusal.ordered = true
		}
		return nil, err
	}
	return h, nil
}

// nodesOf returns the nodes that may have each of some volumes. It asks for all at once,
// since the answers come from the same listings.
func (f *Freezer) nodesOf(ctx context.Context, volumes []*corev1.PersistentVolume) ([][]*corev1.Node, error) {
	nodes, errs := make([][]*corev1.Node, len(volumes)), make([]error, len(volumes))
	var group sync.WaitGroup
	for i, pv := range volumes {
		group.Go(func() { nodes[i], errs[i] = f.nodesOfOne(ctx, pv) })
	}
	group.Wait()
	return nodes, errors.Join(errs...)
}

func (f *Freezer) nodesOfOne(ctx context.Context, pv *corev1.PersistentVolume) ([]*corev1.Node, error) {
	volume := nodeuse.VolumeOf(pv)
	volume.UID = "" // What the tracker learns of boots is about released volumes.
	names, err := f.Uses.Users(ctx, volume)
	if err != nil {
		return nil, err
	}
	attachments, err := f.Uses.Attachments(ctx, pv.Name)
	if err != nil {
		return nil, err
	}
	for _, attachment := range attachments {
		names = append(names, attachment.Node)
	}
	var nodes []*corev1.Node
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		node, err := f.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && staged.IsOff(node) {
			continue // By which an operator says that the machine is gone, or off.
		}
		if err != nil {
			return nil, fmt.Errorf("cannot tell which nodes use the volume of PersistentVolume %s: %w", pv.Name, err)
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// take reserves nodes, all or none. It returns one that is not free.
func (f *Freezer) take(nodes []*corev1.Node) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, node := range nodes {
		if f.busy[node.Name] {
			return node.Name
		}
	}
	for _, node := range nodes {
		f.busy[node.Name] = true
	}
	return ""
}

// Thaw thaws everything. It returns nil if all filesystems stayed frozen from when Freeze
// returned until Thaw was called, and no volume was attached to a node meanwhile: then
// snapshots that were taken in between show one moment. It works although ctx has ended, and
// a second call returns the same.
func (h *Hold) Thaw(ctx context.Context) error {
	h.once.Do(func() {
		defer h.release()
		h.err = h.thaw(context.WithoutCancel(ctx))
	})
	return h.err
}

func (h *Hold) thaw(ctx context.Context) error {
	return h.each(ctx, func(ctx context.Context, node *corev1.Node) error {
		answer, err := h.freezer.order(ctx, node, frozen.Order{ID: h.id, Thaw: true}, frozen.Thawed, frozen.Lost, frozen.Refused)
		if err != nil {
			return err
		}
		if answer.State != frozen.Thawed {
			return fmt.Errorf("filesystems did not stay frozen on node %s: %s", node.Name, answer.Message)
		}
		h.freezer.Logger.Info("Filesystems were frozen on a node", "node", node.Name, "pause", answer.Pause.Round(time.Millisecond).String())
		return nil
	})
}

// release lets volumes be attached again, and nodes freeze others.
func (h *Hold) release() {
	for _, volume := range h.closed {
		h.freezer.Gate.Open(volume)
	}
	h.freezer.mu.Lock()
	defer h.freezer.mu.Unlock()
	for _, node := range h.nodes {
		delete(h.freezer.busy, node.Name)
	}
}

// each does something with all nodes at once, and returns the first error.
func (h *Hold) each(ctx context.Context, do func(ctx context.Context, node *corev1.Node) error) error {
	errs := make([]error, len(h.nodes))
	var group sync.WaitGroup
	for i, node := range h.nodes {
		group.Go(func() { errs[i] = do(ctx, node) })
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// order writes an order into a node's Lease, and waits for an answer that is in one of some
// states, if any.
func (f *Freezer) order(ctx context.Context, node *corev1.Node, order frozen.Order, states ...frozen.State) (frozen.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	leases := f.Client.CoordinationV1().Leases(f.Namespace)
	name, written := frozen.LeaseName(node.Name), false
	for {
		lease, err := leases.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && order.Thaw:
			return frozen.Answer{}, fmt.Errorf("the Lease %s was deleted", name)
		case apierrors.IsNotFound(err) && !written:
			_, err = leases.Create(ctx, frozen.Write(frozen.LeaseOf(f.Namespace, node), order), metav1.CreateOptions{})
			written = err == nil
		case err != nil:
		case !written && order.Thaw && frozen.OrderOf(lease).ID != order.ID:
			return frozen.Answer{}, fmt.Errorf("somebody else has written another order into the Lease %s", name)
		case !written:
			_, err = leases.Update(ctx, frozen.Write(lease, order), metav1.UpdateOptions{})
			written = err == nil
		case len(states) == 0:
			return frozen.Answer{}, nil
		default:
			if answer := frozen.AnswerOf(lease); answer.ID == order.ID && slices.Contains(states, answer.State) {
				return answer, nil
			}
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && ctx.Err() == nil {
			return frozen.Answer{}, fmt.Errorf("the node plugin of %s cannot be told what to freeze: %w", node.Name, err)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return frozen.Answer{}, ctx.Err()
			}
			return frozen.Answer{}, refuse(Silent, "", node.Name, "the node plugin of %s does not answer", node.Name)
		case <-time.After(look):
		}
	}
}
