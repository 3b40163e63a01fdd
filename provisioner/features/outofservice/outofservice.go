// Package outofservice takes nodes out of service that do not answer, where the operator
// lets it: it ends the attachments of the node at the array, which keeps the node out of
// its volumes from then on, and only then tells Kubernetes by the taint
// node.kubernetes.io/out-of-service that the pods of the node may start elsewhere, and
// deletes those that Kubernetes then evicts (eviction.go). When the node is back and has let go of everything, it removes the taint, if it set it.
//
// Nothing here proves that the machine is off: it may run, cut off from the control plane.
// So it decides by what the pods of the node use, and leaves alone any node of which the
// array does not keep out all (inventory.go).
//
// See docs/decisions.md, "Owed detachments and node reports".
package outofservice

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/backoff"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// The reasons of events about Nodes.
const (
	ReasonTaken    = "NodeTakenOutOfService"
	ReasonNotTaken = "NodeNotTakenOutOfService"
	ReasonCutShort = "NodeReturnedWithoutVolumes"
	ReasonBack     = "NodeBackInService"
)

const (
	// lookEvery is how often the cache of Nodes is looked through.
	lookEvery = time.Second
	// failsFor is how long attempts at a node fail before an event says so.
	failsFor = time.Minute
	// lookAgain is the time between two attempts at a node that is left alone, or that is
	// not clean yet.
	lookAgain = 10 * time.Second
	// Pause is the time between two nodes that are taken out of service.
	Pause = time.Minute
	// DefaultShare is the largest percentage of the nodes that may be out of service or
	// not Ready.
	DefaultShare = 10
)

// Attachments ends the attachments of nodes.
type Attachments interface {
	// IsFenced reports whether the array keeps a node out of a backend's volume that was
	// detached from it.
	IsFenced(volume wire.Handle) bool
	// Bar keeps a node from getting volumes until Unbar.
	Bar(node string)
	Unbar(node string)
	// Take ends the attachment of a volume to a node, and returns true; or false if the
	// node is heard of again.
	Take(ctx context.Context, volume wire.Handle, node, boot string) (taken bool, err error)
}

// Options configure a Controller.
type Options struct {
	// Namespace has the Leases in which node plugins report.
	Namespace   string
	Client      kubernetes.Interface
	Attachments Attachments
	// Nodes is the cache of Nodes; NodesKnown reports whether it shows all.
	Nodes      cache.Store
	NodesKnown func() bool
	Claims     corelisters.PersistentVolumeClaimLister
	Volumes    corelisters.PersistentVolumeLister
	// Share is the largest percentage of the nodes that may be out of service or not Ready
	// for a node to be taken out of service.
	Share int
	// Pause is the time between two of them; zero means Pause.
	Pause time.Duration

	Recorder eventrecord.EventRecorder
	Metrics  *Metrics
	Logger   *slog.Logger
	// Board is the term's.
	Board *parking.Board

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait for.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound
}

// Controller works for one term.
type Controller struct {
	Options
	loop *worker.Loop[string]
	// leases are the Leases of kubelets when they were last read. Only the worker uses them.
	leases map[string]coordinationv1.LeaseSpec
	read   time.Time

	mu sync.Mutex
	// seen has what this term knows of nodes that need attention.
	seen map[string]*seen
	// begun is when this term last began to take a node out of service, and last when it
	// had done so.
	begun, last time.Time
	// started is when the term began.
	started time.Time
}

// seen is a node that needs attention.
type seen struct {
	// next is when to attempt it again.
	next time.Time
	// reason is why it is left alone, and told what an event said of that.
	reason Reason
	told   string
	// failing is when the attempts began to fail.
	failing time.Time
	// taken are the volumes that this term took from the node while it had the mark takenBy.
	taken   map[wire.Handle]bool
	takenBy string
}

// New makes the Controller of one term.
func New(options Options) *Controller {
	options.Pause = cmp.Or(options.Pause, Pause)
	c := &Controller{Options: options, seen: map[string]*seen{}, started: time.Now()}
	c.loop = worker.New(worker.Options[string]{
		// One at a time.
		Name: "lost nodes", Workers: 1, Do: c.do,
		Describe: func(node string) string { return "the worker that takes node " + node + " out of service" },
		Board:    options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return c
}

// Run works until the context ends.
func (c *Controller) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { c.loop.Run(ctx) })
	defer c.Metrics.forget()
	defer group.Wait()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		c.look(time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// look queues the nodes that need attention, according to the cache.
func (c *Controller) look(now time.Time) {
	if !c.NodesKnown() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	present := map[string]bool{}
	for _, object := range c.Nodes.List() {
		node, ok := object.(*corev1.Node)
		if !ok || !needsAttention(node) {
			continue
		}
		present[node.Name] = true
		of := c.seen[node.Name]
		if of == nil {
			of = &seen{}
			c.seen[node.Name] = of
		}
		if !now.Before(of.next) {
			of.next = now.Add(lookAgain)
			c.loop.Add(node.Name)
		}
	}
	refusals := map[Reason]int{}
	for name, of := range c.seen {
		if !present[name] {
			delete(c.seen, name)
			c.Attachments.Unbar(name)
			continue
		}
		if of.reason != "" {
			refusals[of.reason]++
		}
	}
	c.Metrics.show(refusals)
}

// needsAttention reports whether there may be something to do about a node.
func needsAttention(node *corev1.Node) bool {
	mark, marked := nodemark.Of(node)
	switch {
	case !marked:
		return nodemark.IsSilent(node) && !hasTaint(node)
	case mark.State == nodemark.Returned:
		return nodemark.IsSilent(node) && !hasTaint(node) || mark.Boot != node.Status.NodeInfo.BootID
	case mark.State == nodemark.Taken:
		return nodemark.IsReady(node)
	}
	return true
}

// hasTaint reports whether a node is out of service, whoever said so.
func hasTaint(node *corev1.Node) bool { return staged.IsOff(node) || nodemark.HasTaint(node) }

// do makes an attempt at a node.
func (c *Controller) do(ctx context.Context, a *worker.Attempt[string]) worker.Outcome {
	refusal, err := c.attempt(ctx, a.Key)
	if ctx.Err() != nil {
		return worker.Outcome{}
	}
	if err != nil {
		c.Logger.Warn("A node that does not answer cannot be taken out of service yet, or put back", "node", a.Key, "error", err)
		c.refuse(a.Key, &Refusal{Failing, "the last attempt failed: " + err.Error()})
		return worker.Outcome{Retry: &backoff.Delay{Outcome: "failed", First: 500 * time.Millisecond, Most: 15 * time.Second}}
	}
	c.refuse(a.Key, refusal)
	return worker.Outcome{Done: true}
}

// refuse notes why a node is left alone, and says so once in an event; nil if it is not.
func (c *Controller) refuse(node string, refusal *Refusal) {
	c.mu.Lock()
	of := c.seen[node]
	if of == nil {
		of = &seen{next: time.Now().Add(lookAgain)}
		c.seen[node] = of
	}
	tell := of.becomes(refusal, time.Now())
	c.mu.Unlock()
	if tell != "" {
		c.Logger.Warn("A node does not answer, and is not taken out of service", "node", node, "reason", refusal.Reason, "why", tell)
		c.event(node, corev1.EventTypeWarning, ReasonNotTaken, fmt.Sprintf("Node %s does not answer, but the program does not take it out of service: %s. If the machine is off, say so by the taint (docs/how-to/lost-node.md#recover)", node, tell))
	}
}

// becomes notes why a node is left alone; nil if it is not. It returns what is to be told of
// that, empty if nothing.
func (s *seen) becomes(refusal *Refusal, now time.Time) (tell string) {
	if refusal == nil {
		s.reason, s.told, s.failing = "", "", time.Time{}
		return ""
	}
	before := s.reason
	s.reason, tell = refusal.Reason, refusal.Why
	switch {
	case refusal.Reason == Failing:
		// A failure is repeated with other words, and becomes a success soon.
		if before != Failing {
			s.failing = now
		}
		if now.Sub(s.failing) < failsFor {
			return ""
		}
		tell = "its volumes cannot be taken from it, as the log of the program says"
	case refusal.Reason == Share && before == Share:
		return "" // only the numbers differ
	}
	if s.told == tell {
		return ""
	}
	s.told = tell
	return tell
}

// soon brings a node back before lookAgain.
func (c *Controller) soon(node string, after time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.seen[node]; of != nil {
		of.next = time.Now().Add(after)
	}
}

// event writes an event about a Node. Like kubelet, it uses the name as the UID.
func (c *Controller) event(node, kind, reason, message string) {
	c.Recorder.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, kind, reason, message)
}
