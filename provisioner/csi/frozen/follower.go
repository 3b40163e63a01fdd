package frozen

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// Filesystems are those of the node's volumes.
type Filesystems interface {
	// Freeze freezes the filesystems of those of some volumes that the node has, and keeps
	// it from getting the others, for at most a time. The error is a Refusal, or any other.
	// After ctx, nothing stays frozen.
	Freeze(ctx context.Context, volumes []string, atMost time.Duration) (Hold, error)
	// Recover thaws what an earlier process has left frozen.
	Recover(ctx context.Context) error
}

// Hold are filesystems that are frozen.
type Hold interface {
	// Thaw thaws them. Its error says why they did not all stay frozen until now.
	Thaw() error
	// Ended is closed when they are not frozen any more.
	Ended() <-chan struct{}
}

// FollowerOptions configure a Follower.
type FollowerOptions struct {
	// Leases are those of the program's namespace.
	Leases coordinationclient.LeaseInterface
	// Node is the name of the Node object.
	Node        string
	Filesystems Filesystems
	Logger      *slog.Logger
	// Pause is the time between two attempts to reach the API server, or to thaw what is
	// left; zero means 2 s.
	Pause time.Duration
}

// Follower does what the leader orders on one node.
type Follower struct {
	FollowerOptions
	// lease is what was last seen of the Lease, and done the last order that was seen.
	lease *coordinationv1.Lease
	done  string
	// held is nil unless something is frozen, since began.
	held  Hold
	began time.Time
	// owed is an answer that was not written yet.
	owed *Answer
}

// NewFollower makes a Follower.
func NewFollower(options FollowerOptions) *Follower {
	options.Pause = cmp.Or(options.Pause, 2*time.Second)
	return &Follower{FollowerOptions: options}
}

// Recover thaws what an earlier process of the plugin has left frozen. It returns when
// nothing is, or ctx ends.
func (f *Follower) Recover(ctx context.Context) {
	for {
		err := f.Filesystems.Recover(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		f.Logger.Error("filesystems that were left frozen cannot be thawed, so their pods wait", "error", err)
		f.wait(ctx)
	}
}

// Run follows the Lease until the context ends, and then thaws what is frozen. What was
// ordered before this process began is not done: nobody waits for it any more.
func (f *Follower) Run(ctx context.Context) {
	defer func() {
		if f.held != nil {
			f.lose("the node plugin was stopped")
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswer)
			defer cancel()
			f.answer(stopping)
		}
	}()
	for first := true; ctx.Err() == nil; {
		if err := f.read(ctx, first); err != nil {
			f.Logger.Debug("orders to freeze filesystems cannot be read", "error", err)
			f.wait(ctx)
			continue
		}
		first = false
		f.follow(ctx)
		f.wait(ctx)
	}
}

// restarted is the Message of an order that an earlier process should have done.
const restarted = "the node plugin was restarted"

const (
	// requestLimit bounds a request to the API server, except the watch.
	requestLimit = 10 * time.Second
	// lastAnswer bounds how long a stopped plugin tries to tell that it has thawed.
	lastAnswer = 3 * time.Second
)

func (f *Follower) get(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	return f.Leases.Get(ctx, LeaseName(f.Node), metav1.GetOptions{})
}

// wait pauses, but not beyond the end of a hold.
func (f *Follower) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-f.ended():
		f.lose("")
	case <-time.After(f.Pause):
	}
}

// ended returns what is closed when a hold ends; nil if there is none.
func (f *Follower) ended() <-chan struct{} {
	if f.held == nil {
		return nil
	}
	return f.held.Ended()
}

// read reads the Lease, and does what it says, unless the plugin has just begun.
func (f *Follower) read(ctx context.Context, first bool) error {
	lease, err := f.get(ctx)
	if apierrors.IsNotFound(err) {
		f.see(ctx, nil)
		return nil
	}
	if err != nil {
		return err
	}
	if order := OrderOf(lease); first && order.ID != "" && AnswerOf(lease).ID != order.ID {
		f.lease, f.done = lease, order.ID
		f.owe(Answer{ID: order.ID, State: Lost, Message: restarted})
		f.answer(ctx)
		return nil
	}
	f.see(ctx, lease)
	return nil
}

// follow does what changes of the Lease say, until the API server ends the watch. The watch
// begins with what is there, since the API server soon forgets the version of a Lease that
// nobody changes.
func (f *Follower) follow(ctx context.Context) {
	changes, err := f.Leases.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, LeaseName(f.Node)).String()})
	if err != nil {
		f.Logger.Debug("orders to freeze filesystems cannot be followed", "error", err)
		return
	}
	defer changes.Stop()
	for {
		// An answer that could not be written is written again.
		var again <-chan time.Time
		if f.owed != nil {
			again = time.After(f.Pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.ended():
			f.lose("")
			f.answer(ctx)
		case <-again:
			f.answer(ctx)
		case change, open := <-changes.ResultChan():
			if !open || change.Type == watch.Error {
				return
			}
			lease, ok := change.Object.(*coordinationv1.Lease)
			if !ok || lease.Name != LeaseName(f.Node) || f.isOlder(lease) {
				continue
			}
			if change.Type == watch.Deleted {
				lease = nil
			}
			f.see(ctx, lease)
		}
	}
}

// isOlder reports whether a Lease is older than what was last seen, with which a watch may
// begin.
func (f *Follower) isOlder(lease *coordinationv1.Lease) bool {
	if f.lease == nil {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(lease.ResourceVersion, f.lease.ResourceVersion)
	return err == nil && order < 0
}

// see does what the Lease says; nil means that there is none.
func (f *Follower) see(ctx context.Context, lease *coordinationv1.Lease) {
	f.lease = lease
	if lease == nil {
		f.lose("the Lease is deleted")
		f.owed = nil
		return
	}
	order := OrderOf(lease)
	switch {
	case order.ID == f.done && order.Thaw:
		f.thaw()
	case order.ID != f.done:
		f.lose("another order has come") // Nobody waits for the earlier one.
		f.done = order.ID
		answer := AnswerOf(lease)
		switch answered := answer.ID == order.ID; {
		case order.ID == "", answered && answer.State != Frozen:
			return
		case answered:
			f.owe(Answer{ID: order.ID, State: Lost, Message: restarted})
		case order.Thaw:
			f.owe(Answer{ID: order.ID, State: Lost, Message: "the order was not seen in time"})
		default:
			f.freeze(ctx, order)
		}
	}
	f.answer(ctx)
}

func (f *Follower) freeze(ctx context.Context, order Order) {
	f.began = time.Now()
	held, err := f.Filesystems.Freeze(ctx, order.Volumes, order.AtMost)
	if err == nil {
		f.held = held
		f.owe(Answer{ID: order.ID, State: Frozen})
		return
	}
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		refusal = &Refusal{Reason: Failed, Text: err.Error()}
	}
	f.Logger.Warn("filesystems are not frozen", "volume", refusal.Volume, "reason", string(refusal.Reason), "error", refusal.Text)
	f.owe(Answer{ID: order.ID, State: Refused, Reason: refusal.Reason, Volume: refusal.Volume, Message: refusal.Text})
}

// thaw ends a hold because the leader wants it.
func (f *Follower) thaw() {
	if f.held == nil {
		return
	}
	answer := Answer{ID: f.done, State: Thawed}
	if err := f.held.Thaw(); err != nil {
		answer.State, answer.Message = Lost, err.Error()
	}
	f.end(answer)
}

// lose ends a hold for which the leader has not asked; an empty text means that the hold
// says why.
func (f *Follower) lose(why string) {
	if f.held == nil {
		return
	}
	answer := Answer{ID: f.done, State: Lost, Message: why}
	if err := f.held.Thaw(); err != nil && why == "" {
		answer.Message = err.Error()
	}
	f.end(answer)
}

func (f *Follower) end(answer Answer) {
	answer.Pause = time.Since(f.began)
	f.held = nil
	level := slog.LevelInfo
	if answer.State == Lost {
		level = slog.LevelWarn
	}
	f.Logger.Log(context.Background(), level, "filesystems are thawed", "order", answer.ID, "pause", answer.Pause.Round(time.Millisecond).String(), "state", string(answer.State), "reason", answer.Message)
	f.owe(answer)
}

func (f *Follower) owe(answer Answer) { f.owed = &answer }

// answer writes the answer that is owed, if any.
func (f *Follower) answer(ctx context.Context) {
	if f.owed == nil || f.lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	written, err := f.Leases.Update(ctx, Write(f.lease, *f.owed), metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		// The leader was faster.
		if now, getErr := f.get(ctx); getErr == nil && OrderOf(now).ID == f.owed.ID {
			written, err = f.Leases.Update(ctx, Write(now, *f.owed), metav1.UpdateOptions{})
		}
	}
	if err != nil {
		f.Logger.Debug("the answer to an order to freeze filesystems cannot be written", "error", err)
		return
	}
	f.lease, f.owed = written, nil
}
