package freeze

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// mortal is the client of a leader that dies at one of its requests for Leases, before or
// after it has its effect.
type mortal struct {
	kubernetes.Interface
	left  int
	after bool
}

type mortalCoordination struct {
	coordinationclient.CoordinationV1Interface
	of *mortal
}

type mortalLeases struct {
	coordinationclient.LeaseInterface
	of *mortal
}

func (m *mortal) CoordinationV1() coordinationclient.CoordinationV1Interface {
	return mortalCoordination{m.Interface.CoordinationV1(), m}
}

func (m mortalCoordination) Leases(namespace string) coordinationclient.LeaseInterface {
	return mortalLeases{m.CoordinationV1Interface.Leases(namespace), m.of}
}

var errDead = errors.New("the leader is dead")

func (m mortalLeases) do(request func() (*coordinationv1.Lease, error)) (*coordinationv1.Lease, error) {
	m.of.left--
	if m.of.left < 0 || m.of.left == 0 && !m.of.after {
		return nil, errDead
	}
	lease, err := request()
	if m.of.left == 0 {
		return nil, errDead
	}
	return lease, err
}

func (m mortalLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	return m.do(func() (*coordinationv1.Lease, error) { return m.LeaseInterface.Get(ctx, name, o) })
}

func (m mortalLeases) Create(ctx context.Context, l *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return m.do(func() (*coordinationv1.Lease, error) { return m.LeaseInterface.Create(ctx, l, o) })
}

func (m mortalLeases) Update(ctx context.Context, l *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	return m.do(func() (*coordinationv1.Lease, error) { return m.LeaseInterface.Update(ctx, l, o) })
}

// TestALeaderThatDiesLeavesNothingFrozen: at any request. Nothing that it took for frozen
// counts unless it saw the nodes thaw, and the next leader freezes at once.
func TestALeaderThatDiesLeavesNothingFrozen(t *testing.T) {
	for _, after := range []bool{false, true} {
		reached := true
		for nth := 1; reached; nth++ {
			synctest.Test(t, func(t *testing.T) {
				k := newCluster(t)
				k.use("pv-a", "n1")
				volumes := []*corev1.PersistentVolume{volume("pv-a")}
				client := &mortal{Interface: k.client, left: nth, after: after}
				dies := New(Options{Client: client, Namespace: "ns", Uses: k, Gate: k, AtMost: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)})
				thaw, err := dies.Freeze(t.Context(), volumes)
				if err == nil {
					err = thaw(t.Context())
				}
				reached = client.left <= 0
				if reached != (err != nil) {
					t.Errorf("dead at request %d (after it: %t): %t, but the error is %v", nth, after, reached, err)
				}
				k.open()
				if nth%2 == 0 {
					time.Sleep(10 * time.Second)
					if left := k.frozen(); len(left) > 0 {
						t.Errorf("left frozen are %q", left)
					}
				}
				thaw, err = k.freezer().Freeze(t.Context(), volumes)
				if err == nil {
					err = thaw(t.Context())
				}
				if err != nil {
					t.Errorf("after a death at request %d (after it: %t): %v", nth, after, err)
				}
				if left := k.frozen(); len(left) > 0 {
					t.Errorf("left frozen are %q", left)
				}
				for _, n := range k.nodes {
					n.stop()
				}
			})
			if nth > 30 {
				t.Fatal("freezing takes more than 30 requests")
			}
		}
	}
}
