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
	// AtMost is how long filesystems stay frozen at most.
	AtMost time.Duration
	Logger *slog.Logger
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

// Refusal is why volumes are not frozen.
type Refusal struct {
	// ordered means that nodes were told to freeze something.
	ordered bool
	text    string
}

// Error returns a sentence.
func (r *Refusal) Error() string { return r.text }

// MayHaveStoppedPods reports whether something may have been frozen for a while.
func (r *Refusal) MayHaveStoppedPods() bool { return r.ordered }

func refuse(format string, values ...any) error {
	return &Refusal{text: fmt.Sprintf(format, values...)}
}

// hold are volumes whose filesystems are, or are to be, frozen.
type hold struct {
	*Freezer
	id string
	// pvs are the names of their PersistentVolumes, by handle.
	pvs map[string]string
	// nodes have the order, and closed are the volumes whose gates are closed.
	nodes  []*corev1.Node
	closed []wire.Handle

	once sync.Once
	err  error
}

// Freeze freezes the filesystems of volumes on all nodes that use them. When it returns,
// everything that pods have written is on the disks, and nothing more is written to any of
// them until thaw, which must be called, or for at most Options.AtMost. The error is a
// Refusal if the volumes cannot be frozen now.
//
// thaw thaws everything. It returns nil if all filesystems stayed frozen until it was
// called, and no volume was attached to a node meanwhile: then snapshots that were taken in
// between show one moment. It works although its context has ended, and a second call
// returns the same.
func (f *Freezer) Freeze(ctx context.Context, volumes []*corev1.PersistentVolume) (thaw func(context.Context) error, err error) {
	h := &hold{Freezer: f, id: rand.Text(), pvs: map[string]string{}}
	defer func() {
		if err != nil {
			h.release()
		}
	}()
	if err := h.close(volumes); err != nil {
		return nil, err
	}
	nodes, err := f.usersOf(ctx, volumes)
	if err != nil {
		return nil, err
	}
	if node := f.take(nodes); node != "" {
		return nil, refuse("other volumes are just frozen on node %s", node)
	}
	h.nodes = nodes
	if err := h.each(ctx, h.freeze); err != nil {
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
	return h.thaw, nil
}

// close keeps all volumes from being attached to more nodes.
func (h *hold) close(volumes []*corev1.PersistentVolume) error {
	for _, pv := range volumes {
		source := pv.Spec.CSI
		if source == nil || source.Driver != wire.DriverName {
			// No gate is in the way of a pod that uses it meanwhile.
			return refuse("the volume of PersistentVolume %s is in mode native, so nobody can freeze its filesystem; use a class with the consistency array or none", pv.Name)
		}
		handle, err := wire.ParseHandle(source.VolumeHandle)
		if err != nil {
			return fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
		}
		if h.pvs[handle.String()] != "" {
			continue
		}
		// Before anybody is asked which nodes have it.
		if !h.Gate.Close(handle) {
			return refuse("the volume of PersistentVolume %s is just being attached to a node", pv.Name)
		}
		h.closed = append(h.closed, handle)
		h.pvs[handle.String()] = pv.Name
	}
	if len(h.pvs) > frozen.MaxVolumes {
		return refuse("%d volumes are too many to be frozen at once; %d can be", len(h.pvs), frozen.MaxVolumes)
	}
	return nil
}

// freeze has one node freeze the filesystems.
func (h *hold) freeze(ctx context.Context, node *corev1.Node) error {
	order := frozen.Order{ID: h.id, Volumes: slices.Sorted(maps.Keys(h.pvs)), AtMost: h.AtMost}
	answer, err := h.order(ctx, node, order, frozen.Frozen, frozen.Refused, frozen.Lost)
	if err != nil || answer.State == frozen.Frozen {
		return err
	}
	which := "filesystems"
	if pv := h.pvs[answer.Volume]; pv != "" {
		which = "the filesystem of PersistentVolume " + pv
	}
	return refuse("node %s has not frozen %s: %s", node.Name, which, answer.Message)
}

// usersOf returns the nodes that may have any of some volumes.
func (f *Freezer) usersOf(ctx context.Context, volumes []*corev1.PersistentVolume) ([]*corev1.Node, error) {
	usedBy, err := f.nodesOf(ctx, volumes)
	if err != nil {
		return nil, err
	}
	used := map[string]*corev1.Node{}
	for i, pv := range volumes {
		nodes := usedBy[i]
		if len(nodes) > 0 && pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock {
			return nil, refuse("the volume of PersistentVolume %s is a raw block volume, and in use on node %s: it has no filesystem to freeze", pv.Name, nodes[0].Name)
		}
		for _, node := range nodes {
			// The others would wait for it, frozen.
			if slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue
			}) {
				return nil, refuse("node %s, which uses the volume of PersistentVolume %s, is not Ready", node.Name, pv.Name)
			}
			used[node.Name] = node
		}
	}
	return slices.SortedFunc(maps.Values(used), func(a, b *corev1.Node) int { return cmp.Compare(a.Name, b.Name) }), nil
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

// thaw is the function that Freeze returns.
func (h *hold) thaw(ctx context.Context) error {
	h.once.Do(func() {
		defer h.release()
		h.err = h.each(context.WithoutCancel(ctx), h.thawOn)
	})
	return h.err
}

func (h *hold) thawOn(ctx context.Context, node *corev1.Node) error {
	answer, err := h.order(ctx, node, frozen.Order{ID: h.id, Thaw: true}, frozen.Thawed, frozen.Lost, frozen.Refused)
	if err != nil {
		return err
	}
	if answer.State != frozen.Thawed {
		return fmt.Errorf("filesystems did not stay frozen on node %s: %s", node.Name, answer.Message)
	}
	h.Logger.Info("Filesystems were frozen on a node", "node", node.Name, "pause", answer.Pause.Round(time.Millisecond).String())
	return nil
}

// release lets volumes be attached again, and nodes freeze others.
func (h *hold) release() {
	for _, volume := range h.closed {
		h.Gate.Open(volume)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, node := range h.nodes {
		delete(h.busy, node.Name)
	}
}

// each does something with all nodes at once, and returns the first error.
func (h *hold) each(ctx context.Context, do func(ctx context.Context, node *corev1.Node) error) error {
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
			return frozen.Answer{}, refuse("the node plugin of %s does not answer", node.Name)
		case <-time.After(look):
		}
	}
}
