package frozen

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// node is a node with filesystems, whose plugin follows its Lease. It is a Filesystems.
type node struct {
	*testing.T
	client *fake.Clientset

	mu sync.Mutex
	// refuses is why nothing can be frozen, and broken why nothing can be recovered.
	refuses, broken error
	frozen          []string
	hold            *hold
	// freezes counts what was frozen.
	freezes int
}

type hold struct {
	node  *node
	ended chan struct{}
	once  sync.Once
	err   error
}

func (h *hold) Thaw() error {
	h.end(nil)
	return h.err
}
func (h *hold) Ended() <-chan struct{} { return h.ended }

func (h *hold) end(why error) {
	h.once.Do(func() {
		h.node.mu.Lock()
		defer h.node.mu.Unlock()
		h.node.frozen, h.err = nil, why
		close(h.ended)
	})
}

func (n *node) Freeze(_ context.Context, volumes []string, atMost time.Duration) (Hold, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuses != nil {
		return nil, n.refuses
	}
	if n.frozen != nil {
		n.Error("something is frozen twice")
	}
	h := &hold{node: n, ended: make(chan struct{})}
	n.frozen, n.hold = volumes, h
	n.freezes++
	time.AfterFunc(atMost, func() { h.end(errors.New("time is up")) })
	return h, nil
}

func (n *node) Recover(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.broken
}

func (n *node) isFrozen() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen
}

func newNode(t *testing.T) *node {
	n := &node{T: t, client: fake.NewClientset()}
	// The API server refuses changes of an older version.
	var mu sync.Mutex
	version, now := 0, ""
	n.client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		change, ok := action.(clienttesting.UpdateAction)
		if !ok {
			return false, nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		lease := change.GetObject().(*coordinationv1.Lease)
		if action.GetVerb() == "update" && lease.ResourceVersion != now {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, lease.Name, errors.New("changed"))
		}
		version++
		now = strconv.Itoa(version)
		lease.ResourceVersion = now
		return false, nil, nil
	})
	return n
}

// start starts the plugin, and returns what stops it.
func (n *node) start() (stop func()) {
	ctx, cancel := context.WithCancel(n.Context())
	f := NewFollower(FollowerOptions{Leases: n.client.CoordinationV1().Leases("ns"), Node: "n1", Filesystems: n, Logger: slog.New(slog.DiscardHandler)})
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Recover(ctx)
		f.Run(ctx)
	}()
	synctest.Wait()
	return func() {
		cancel()
		<-done
	}
}

// order writes an order, as the leader does.
func (n *node) order(o Order) {
	n.Helper()
	leases := n.client.CoordinationV1().Leases("ns")
	lease, err := leases.Get(n.Context(), LeaseName("n1"), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(n.Context(), Write(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: LeaseName("n1")}}, o), metav1.CreateOptions{})
	} else if err == nil {
		_, err = leases.Update(n.Context(), Write(lease, o), metav1.UpdateOptions{})
	}
	if err != nil {
		n.Fatal(err)
	}
	synctest.Wait()
}

// answers checks the answer.
func (n *node) answers(id string, state State, message string) {
	n.Helper()
	synctest.Wait()
	lease, err := n.client.CoordinationV1().Leases("ns").Get(n.Context(), LeaseName("n1"), metav1.GetOptions{})
	if err != nil {
		n.Fatal(err)
	}
	if a := AnswerOf(lease); a.ID != id || a.State != state || a.Message != message {
		n.Errorf("the answer is %+v", a)
	}
	if frozen := n.isFrozen(); (state == Frozen) != (frozen != nil) {
		n.Errorf("frozen are %q", frozen)
	}
}

var volumes = []string{"gold/86a25cac-e84c-4ef1-816f-76fcd478cebd", "gold/0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"}

func order(id string) Order { return Order{ID: id, Volumes: volumes, AtMost: 10 * time.Second} }

func thaw(id string) Order { return Order{ID: id, Thaw: true} }

// TestANodeFollowsItsLease: each case is what happens after the plugin has started.
func TestANodeFollowsItsLease(t *testing.T) {
	for name, do := range map[string]func(n *node, stop func()){
		"frozen and thawed": func(n *node, _ func()) {
			for _, id := range []string{"a", "b"} {
				n.order(order(id))
				n.answers(id, Frozen, "")
				if !slices.Equal(n.isFrozen(), volumes) {
					n.Errorf("frozen are %q", n.isFrozen())
				}
				time.Sleep(2 * time.Second)
				n.order(thaw(id))
				n.answers(id, Thawed, "")
			}
			lease, _ := n.client.CoordinationV1().Leases("ns").Get(n.Context(), LeaseName("n1"), metav1.GetOptions{})
			if a := AnswerOf(lease); a.Pause != 2*time.Second {
				n.Errorf("the pause is %s", a.Pause)
			}
		},
		"refused": func(n *node, _ func()) {
			n.refuses = Refuse(Raw, volumes[0], "it is raw")
			n.order(order("a"))
			n.answers("a", Refused, "it is raw")
		},
		"failed": func(n *node, _ func()) {
			n.refuses = errors.New("no disk")
			n.order(order("a"))
			n.answers("a", Refused, "no disk")
		},
		"time is up": func(n *node, _ func()) {
			n.order(order("a"))
			time.Sleep(10 * time.Second)
			n.answers("a", Lost, "time is up")
			n.order(thaw("a"))
			n.answers("a", Lost, "time is up")
		},
		"another order comes": func(n *node, _ func()) {
			n.order(order("a"))
			n.order(order("b"))
			n.answers("b", Frozen, "")
			n.order(thaw("a")) // An earlier leader's.
			n.answers("a", Lost, "the order was not seen in time")
		},
		"the plugin is stopped": func(n *node, stop func()) {
			n.order(order("a"))
			stop()
			n.answers("a", Lost, "the node plugin was stopped")
		},
		"the Lease is deleted": func(n *node, _ func()) {
			n.order(order("a"))
			if err := n.client.CoordinationV1().Leases("ns").Delete(n.Context(), LeaseName("n1"), metav1.DeleteOptions{}); err != nil {
				n.Error(err)
			}
			synctest.Wait()
			if n.isFrozen() != nil {
				n.Error("it stays frozen")
			}
		},
		"the plugin was not there": func(n *node, stop func()) {
			stop()
			n.order(order("a"))
			defer n.start()()
			n.answers("a", Lost, "the node plugin was restarted")
			n.order(order("b"))
			n.answers("b", Frozen, "")
		},
		"the plugin is killed": func(n *node, stop func()) {
			n.order(order("a"))
			silent := true
			n.client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return silent, nil, errors.New("no answer")
			})
			stop() // It says nothing.
			silent = false
			defer n.start()()
			n.answers("a", Lost, "the node plugin was restarted")
		},
		"the API server does not answer": func(n *node, _ func()) {
			var silent atomic.Bool
			silent.Store(true)
			n.client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
				lease := action.(clienttesting.UpdateAction).GetObject().(*coordinationv1.Lease)
				return silent.Load() && AnswerOf(lease).ID != "", nil, errors.New("no answer")
			})
			n.order(order("a"))
			time.Sleep(time.Second)
			silent.Store(false)
			time.Sleep(2 * time.Second)
			n.answers("a", Frozen, "")
		},
		"nonsense is ordered": func(n *node, _ func()) {
			n.order(Order{ID: strings.Repeat("x", 1000), Volumes: volumes, AtMost: time.Second})
			n.order(Order{})
			n.order(Order{ID: "a", Volumes: make([]string, 1000), AtMost: time.Second})
			if n.freezes != 0 {
				n.Error("something was frozen")
			}
			n.order(Order{ID: "b", Volumes: []string{"", "x", volumes[0]}, AtMost: time.Hour})
			n.answers("b", Frozen, "")
			time.Sleep(Longest)
			n.answers("b", Lost, "time is up")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				stop := n.start()
				defer func() {
					stop()
					if n.isFrozen() != nil {
						t.Error("something is left frozen")
					}
				}()
				do(n, stop)
			})
		})
	}
}

// TestThePluginBeginsByThawing: it tries until nothing is left, and takes no order before.
func TestThePluginBeginsByThawing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.broken = errors.New("the disk is dead")
		defer n.start()()
		n.order(order("a"))
		if n.freezes != 0 {
			t.Error("it was frozen although something is left")
		}
		n.mu.Lock()
		n.broken = nil
		n.mu.Unlock()
		time.Sleep(3 * time.Second)
		n.order(order("b"))
		n.answers("b", Frozen, "")
	})
}

// TestAFollowerDoesNotAskOverAndOver: the API server soon forgets the version of a Lease that
// rarely changes, may end each watch at once, and may begin one with what was before.
func TestAFollowerDoesNotAskOverAndOver(t *testing.T) {
	forgotten := func(version string) watch.Interface {
		if version == "" {
			return nil
		}
		w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
		w.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410})
		return w
	}
	ended := func(string) watch.Interface { return watch.NewEmptyWatch() }
	for name, test := range map[string]struct {
		watching func(version string) watch.Interface
		most     int32
	}{
		"the version is forgotten": {forgotten, 1},
		"watches end at once":      {ended, 31},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t)
				n.order(order("a"))
				var requests atomic.Int32
				n.client.PrependWatchReactor("leases", func(action clienttesting.Action) (bool, watch.Interface, error) {
					if requests.Add(1) > 100 {
						return true, nil, errors.New("enough")
					}
					w := test.watching(action.(clienttesting.WatchActionImpl).ListOptions.ResourceVersion)
					return w != nil, w, nil
				})
				defer n.start()()
				time.Sleep(time.Minute)
				if count := requests.Load(); count > test.most {
					t.Errorf("%d watches in a minute", count)
				}
				n.order(order("b"))
				time.Sleep(3 * time.Second)
				n.answers("b", Frozen, "")
			})
		})
	}
}

// TestAnOldVersionOfALeaseIsNoOrder: a watch may begin with one.
func TestAnOldVersionOfALeaseIsNoOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.order(Order{})
		n.order(order("a"))
		old, err := n.client.CoordinationV1().Leases("ns").Get(t.Context(), LeaseName("n1"), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.order(Order{})
		n.client.PrependWatchReactor("leases", func(clienttesting.Action) (bool, watch.Interface, error) {
			w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
			w.Add(old)
			return true, w, nil
		})
		defer n.start()()
		if n.freezes != 0 {
			t.Error("an order that is over was done")
		}
	})
}

// TestForgedAnswersAreBounded: a node may write anything into its own.
func TestForgedAnswersAreBounded(t *testing.T) {
	for text, want := range map[string]Answer{
		"":  {},
		"{": {},
		`{"id":"a","state":"thawed","pauseNanoseconds":-1}`:                                         {ID: "a", State: Thawed, Reason: Failed},
		`{"id":"a","reason":"other","volume":"x y","message":"a\nb"}`:                               {ID: "a", Reason: Failed, Message: "a b"},
		`{"id":"a","reason":"raw","volume":"gold/86a25cac-e84c-4ef1-816f-76fcd478cebd"}`:            {ID: "a", Reason: Raw, Volume: volumes[0]},
		`{"id":"a","message":"` + strings.Repeat("x", 1000) + `","pauseNanoseconds":9000000000000}`: {ID: "a", Reason: Failed, Message: strings.Repeat("x", maxText) + "...", Pause: 2 * Longest},
	} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationAnswer: text}}}
		if got := AnswerOf(lease); got != want {
			t.Errorf("%.60q is read as %+v", text, got)
		}
	}
}
