package freeze

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/frozen"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// cluster has three nodes with plugins, and the leader's Freezer.
type cluster struct {
	*testing.T
	client *fake.Clientset
	nodes  map[string]*node

	mu sync.Mutex
	// users are the nodes that use a volume, and attachments those to which it is
	// attached, by PersistentVolume.
	users, attachments map[string][]string
	closed             map[wire.Handle]bool
}

// node is a node with a plugin.
type node struct {
	mu      sync.Mutex
	frozen  []string
	atMost  time.Duration
	refuses error
	lose    func(why error)
	stop    func()
}

func (n *node) has() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.frozen
}

func (n *node) Recover(context.Context) error { return nil }

func (n *node) Freeze(_ context.Context, volumes []string, atMost time.Duration) (frozen.Hold, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuses != nil {
		return nil, n.refuses
	}
	h := &held{ended: make(chan struct{})}
	n.frozen, n.atMost = volumes, atMost
	n.lose = func(why error) {
		h.once.Do(func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.frozen, h.err = nil, why
			close(h.ended)
		})
	}
	h.lose = n.lose
	time.AfterFunc(atMost, func() { h.lose(errors.New("time is up")) })
	return h, nil
}

type held struct {
	once  sync.Once
	ended chan struct{}
	lose  func(error)
	err   error
}

func (h *held) Thaw() error {
	h.lose(nil)
	return h.err
}
func (h *held) Ended() <-chan struct{} { return h.ended }

func (c *cluster) Users(_ context.Context, v nodeuse.Volume) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.UID != "" {
		c.Error("the tracker learns the boots of nodes")
	}
	return slices.Clone(c.users[v.PV]), nil
}

func (c *cluster) Attachments(_ context.Context, pv string) (all []nodeuse.Attachment, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.attachments[pv] {
		all = append(all, nodeuse.Attachment{Node: node})
	}
	return all, nil
}

func (c *cluster) Close(volume wire.Handle) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.closed[volume]
	c.closed[volume] = true
	return !was
}

func (c *cluster) Open(volume wire.Handle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.closed, volume)
}

func (c *cluster) use(pv string, nodes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users[pv] = nodes
}

// frozen returns the nodes that have anything frozen.
func (c *cluster) frozen() (names []string) {
	synctest.Wait()
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if c.nodes[name].has() != nil {
			names = append(names, name)
		}
	}
	return names
}

func newCluster(t *testing.T) *cluster {
	c := &cluster{T: t, client: fake.NewClientset(), nodes: map[string]*node{}, users: map[string][]string{}, attachments: map[string][]string{}, closed: map[wire.Handle]bool{}}
	var mu sync.Mutex
	version, versions := 0, map[string]string{}
	c.client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		change, ok := action.(clienttesting.UpdateAction)
		if !ok {
			return false, nil, nil
		}
		mu.Lock()
		defer mu.Unlock()
		lease := change.GetObject().(*coordinationv1.Lease)
		if action.GetVerb() == "update" && lease.ResourceVersion != versions[lease.Name] {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, lease.Name, errors.New("changed"))
		}
		version++
		lease.ResourceVersion = strconv.Itoa(version)
		versions[lease.Name] = lease.ResourceVersion
		return false, nil, nil
	})
	for _, name := range []string{"n1", "n2", "n3"} {
		if _, err := c.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-" + "x"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		n := &node{}
		c.nodes[name] = n
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		follower := frozen.NewFollower(frozen.FollowerOptions{Leases: c.client.CoordinationV1().Leases("ns"), Node: name, Filesystems: n, Logger: slog.New(slog.DiscardHandler)})
		go func() {
			defer close(done)
			follower.Run(ctx)
		}()
		n.stop = func() {
			cancel()
			<-done
		}
	}
	synctest.Wait()
	return c
}

func (c *cluster) freezer() *Freezer {
	return New(Options{Client: c.client, Namespace: "ns", Uses: c, Gate: c, AtMost: 10 * time.Second, Logger: slog.New(slog.DiscardHandler)})
}

func volume(name string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: handleOf(name)},
	}}}
}

func handleOf(name string) string {
	return "gold/86a25cac-e84c-4ef1-816f-76fcd478ceb" + name[len(name)-1:]
}

func native(name string) *corev1.PersistentVolume {
	pv := volume(name)
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "10.0.0.1:3260", IQN: "iqn.x", Lun: 1}}
	return pv
}

func raw(name string) *corev1.PersistentVolume {
	pv := volume(name)
	pv.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	return pv
}

// TestSnapshotsBetweenFreezeAndThawShowOneMoment unless Thaw says otherwise. Each case does
// something in between.
func TestSnapshotsBetweenFreezeAndThawShowOneMoment(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(c *cluster)
		want string // what Thaw says
	}{
		"nothing happens":         {func(*cluster) { time.Sleep(5 * time.Second) }, ""},
		"time is up on the nodes": {func(*cluster) { time.Sleep(11 * time.Second) }, "filesystems did not stay frozen on node n1: time is up"},
		"one thaws by itself":     {func(c *cluster) { c.nodes["n2"].lose(errors.New("its guard was killed")) }, "on node n2: its guard was killed"},
		"a plugin is stopped":     {func(c *cluster) { c.nodes["n2"].stop() }, "on node n2: the node plugin was stopped"},
		"another leader freezes, too": {func(c *cluster) {
			_, _ = c.freezer().Freeze(c.Context(), []*corev1.PersistentVolume{volume("pv-a")})
		}, ""},
		"another leader freezes on n1": {func(c *cluster) {
			c.open()
			c.must(c.freezer().Freeze(c.Context(), []*corev1.PersistentVolume{volume("pv-a")}))
		}, "somebody else has written another order"},
		"a Lease is deleted": {func(c *cluster) {
			_ = c.client.CoordinationV1().Leases("ns").Delete(c.Context(), frozen.LeaseName("n2"), metav1.DeleteOptions{})
		}, "the Lease frozen-volumes.n2 was deleted"},
		"an unused volume waits outside": {func(c *cluster) { c.use("pv-c", "n3") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newCluster(t)
				k.use("pv-a", "n1")
				k.use("pv-b", "n1", "n2")
				f := k.freezer()
				// pv-c is used nowhere.
				thaw, err := f.Freeze(t.Context(), []*corev1.PersistentVolume{volume("pv-a"), volume("pv-b"), volume("pv-c")})
				if err != nil {
					t.Fatal(err)
				}
				if got := k.frozen(); !slices.Equal(got, []string{"n1", "n2"}) {
					t.Errorf("frozen are %q", got)
				}
				if got, want := k.nodes["n1"].has(), []string{handleOf("pv-a"), handleOf("pv-b"), handleOf("pv-c")}; !slices.Equal(got, want) {
					t.Errorf("node n1 was told of %q", got)
				}
				if atMost := k.nodes["n1"].atMost; len(k.closed) != 3 || atMost != 10*time.Second {
					t.Errorf("closed are %v, for at most %s", k.closed, atMost)
				}
				c.do(k)
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				for range 2 {
					if err := thaw(ctx); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
						t.Errorf("the error is %v", err)
					}
				}
				if len(k.closed) > 0 {
					t.Errorf("left closed are %v", k.closed)
				}
				time.Sleep(time.Minute)
				if left := k.frozen(); len(left) > 0 {
					t.Errorf("left frozen are %q", left)
				}
				thaw, err = f.Freeze(t.Context(), []*corev1.PersistentVolume{volume("pv-c")})
				if err == nil {
					err = thaw(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
				for _, n := range k.nodes {
					n.stop()
				}
			})
		})
	}
}

// open opens all gates, as if another process led.
func (c *cluster) open() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.closed)
}

func (c *cluster) must(_ func(context.Context) error, err error) {
	c.Helper()
	if err != nil {
		c.Error(err)
	}
}

// TestWhatIsNotFrozen: nothing else of the group stays frozen, and nothing stays closed.
func TestWhatIsNotFrozen(t *testing.T) {
	a, b := volume("pv-a"), volume("pv-b")
	for name, c := range map[string]struct {
		prepare func(c *cluster)
		volumes []*corev1.PersistentVolume
		want    string
		ordered bool
	}{
		"a raw volume in use": {nil, []*corev1.PersistentVolume{a, raw("pv-b")}, "the volume of PersistentVolume pv-b is a raw block volume, and in use on node n2: it has no filesystem to freeze", false},
		// It may get used, and be released again, without anybody noticing.
		"a native volume":         {nil, []*corev1.PersistentVolume{a, native("pv-e")}, "the volume of PersistentVolume pv-e is in mode native, so nobody can freeze its filesystem; use a class with the consistency array or none", false},
		"a node without a plugin": {func(c *cluster) { c.nodes["n2"].stop() }, []*corev1.PersistentVolume{a, b}, "the node plugin of n2 does not answer", true},
		"a node that is not Ready": {func(c *cluster) {
			lost := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}}
			_, _ = c.client.CoreV1().Nodes().Update(c.Context(), lost, metav1.UpdateOptions{})
		}, []*corev1.PersistentVolume{a, b}, "node n2, which uses the volume of PersistentVolume pv-b, is not Ready", false},
		"a volume that others froze": {func(c *cluster) { c.nodes["n2"].refuses = frozen.Refuse(frozen.Foreign, handleOf("pv-b"), "others") }, []*corev1.PersistentVolume{a, b}, "node n2 has not frozen the filesystem of PersistentVolume pv-b: others", true},
		"a volume being attached":    {func(c *cluster) { c.Close(wire.Handle{Backend: "gold", ID: handleOf("pv-b")[len("gold/"):]}) }, []*corev1.PersistentVolume{a, b}, "the volume of PersistentVolume pv-b is just being attached to a node", false},
		"a node that freezes others": {func(c *cluster) {}, []*corev1.PersistentVolume{b, volume("pv-d")}, "other volumes are just frozen on node n3", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newCluster(t)
				k.use("pv-a", "n1")
				k.use("pv-c", "n3")
				k.use("pv-d", "n3")
				k.attachments["pv-b"] = []string{"n2"}
				f := k.freezer()
				f.AtMost = 20 * time.Second
				thaw, err := f.Freeze(t.Context(), []*corev1.PersistentVolume{volume("pv-c")})
				k.must(thaw, err)
				closed := len(k.closed)
				if c.prepare != nil {
					c.prepare(k)
				}
				if name == "a volume being attached" {
					closed++
				}
				_, err = f.Freeze(t.Context(), c.volumes)
				var refusal *Refusal
				if !errors.As(err, &refusal) || refusal.Error() != c.want || refusal.MayHaveStoppedPods() != c.ordered {
					t.Errorf("the error is %+v", err)
				}
				if len(k.closed) != closed {
					t.Errorf("left closed are %v", k.closed)
				}
				time.Sleep(time.Second)
				if left := k.frozen(); !slices.Equal(left, []string{"n3"}) {
					t.Errorf("left frozen are %q", left)
				}
				if err := thaw(t.Context()); err != nil && name != "a node without a plugin" { // which took too long
					t.Error(err)
				}
				for _, n := range k.nodes {
					n.stop()
				}
			})
		})
	}
}

// TestANodeThatIsOffHasNothingToFreeze: by an administrator's word, or because its Node is
// deleted.
func TestANodeThatIsOffHasNothingToFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newCluster(t)
		k.attachments["pv-a"] = []string{"n1", "gone"}
		off := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}}}
		if _, err := k.client.CoreV1().Nodes().Update(t.Context(), off, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		thaw, err := k.freezer().Freeze(t.Context(), []*corev1.PersistentVolume{volume("pv-a")})
		k.must(thaw, err)
		if got := k.frozen(); len(got) > 0 {
			t.Errorf("frozen are %q", got)
		}
		if err := thaw(t.Context()); err != nil {
			t.Error(err)
		}
		for _, n := range k.nodes {
			n.stop()
		}
	})
}
