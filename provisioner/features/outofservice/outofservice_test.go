package outofservice

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodemark"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

const own = "storage"

// cluster is an API server with nodes, and a storage that ends attachments.
type cluster struct {
	*testing.T
	client  *fake.Clientset
	nodes   cache.Store
	claims  cache.Indexer
	volumes cache.Indexer
	events  *eventrecord.FakeRecorder
	metrics *Metrics

	mu sync.Mutex
	// done has what happened, in order.
	done []string
	// broken is why attachments do not end; heard means that the node answers again.
	broken error
	heard  bool
	// stuck is a volume whose attachment does not end.
	stuck string
	// meanwhile runs when the first attachment ends.
	meanwhile func()
	// renewed has how long ago the kubelets of nodes have renewed their Leases. All others
	// renew them unless Kubernetes hears nothing of them.
	renewed map[string]time.Duration
}

func newCluster(t *testing.T, existing ...runtime.Object) *cluster {
	c := &cluster{
		T: t, client: fake.NewClientset(existing...), nodes: cache.NewStore(cache.MetaNamespaceKeyFunc), events: eventrecord.NewFakeRecorder(100),
		claims: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), volumes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}),
		metrics: NewMetrics(prometheus.NewRegistry()),
	}
	c.client.PrependReactor("patch", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.note("patch " + action.(clienttesting.PatchAction).GetName())
		return false, nil, nil
	})
	c.client.PrependReactor("list", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() != corev1.NamespaceNodeLease {
			return false, nil, nil
		}
		return true, c.kubelets(), nil
	})
	for _, object := range existing {
		var err error
		switch object := object.(type) {
		case *corev1.Node:
			err = c.nodes.Add(object)
		case *corev1.PersistentVolume:
			err = c.volumes.Add(object)
		case *corev1.PersistentVolumeClaim:
			err = c.claims.Add(object)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (c *cluster) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = append(c.done, what)
}

// kubelets returns the Leases of kubelets.
func (c *cluster) kubelets() *coordinationv1.LeaseList {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, seconds := &coordinationv1.LeaseList{}, int32(40)
	for _, object := range c.nodes.List() {
		node := object.(*corev1.Node)
		age, set := c.renewed[node.Name]
		if !set && nodemark.IsSilent(node) {
			age = time.Minute
		}
		list.Items = append(list.Items, coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: coordinationv1.LeaseSpec{
			LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: time.Now().Add(-age)},
		}})
	}
	return list
}

// steps returns what happened so far.
func (c *cluster) steps() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.done)
}

func (c *cluster) IsFenced(volume wire.Handle) bool { return volume.Backend == "gold" }
func (c *cluster) Bar(node string)                  { c.note("bar " + node) }
func (c *cluster) Unbar(string)                     {}

func (c *cluster) Take(_ context.Context, volume wire.Handle, node, boot string) (bool, error) {
	c.note("take " + volume.String() + " from " + node + " of " + boot)
	c.mu.Lock()
	meanwhile := c.meanwhile
	c.meanwhile = nil
	c.mu.Unlock()
	if meanwhile != nil {
		meanwhile()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if volume.String() == c.stuck {
		return false, errors.New("error_detaching")
	}
	return !c.heard && c.broken == nil, c.broken
}

// term starts a term, and returns what ends it.
func (c *cluster) term(share int) (end func()) {
	controller := New(Options{
		Namespace: own, Client: c.client, Attachments: c, Nodes: c.nodes, NodesKnown: func() bool { return true },
		Claims: corelisters.NewPersistentVolumeClaimLister(c.claims), Volumes: corelisters.NewPersistentVolumeLister(c.volumes), Share: share,
		Recorder: c.events, Metrics: c.metrics, Logger: slog.New(slog.DiscardHandler), Board: parking.NewBoard(), Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
	})
	ctx, cancel := context.WithCancel(c.Context())
	over := make(chan struct{})
	go func() { controller.Run(ctx); close(over) }()
	watching := make(chan struct{})
	go func() { // the watch of Nodes
		defer close(watching)
		for ctx.Err() == nil {
			all, err := c.client.CoreV1().Nodes().List(context.Background(), metav1.ListOptions{})
			if err == nil {
				var items []any
				for i := range all.Items {
					items = append(items, &all.Items[i])
				}
				_ = c.nodes.Replace(items, "")
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-over; <-watching }
}

// becomes changes a Node.
func (c *cluster) becomes(name string, change ...func(*corev1.Node)) {
	node, err := c.client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	node = node.DeepCopy()
	for _, one := range change {
		one(node)
	}
	if _, err := c.client.CoreV1().Nodes().Update(c.Context(), node, metav1.UpdateOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) node(name string) *corev1.Node {
	node, err := c.client.CoreV1().Nodes().Get(c.Context(), name, metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return node
}

// state describes a Node by its mark and the program's taint.
func (c *cluster) state(name string) string {
	node, said := c.node(name), ""
	if mark, marked := nodemark.Of(node); marked {
		said = string(mark.State) + " " + mark.Boot
	}
	if nodemark.HasTaint(node) {
		said += " tainted"
	}
	return said
}

// said returns the events so far.
func (c *cluster) said() string {
	var all []string
	for {
		select {
		case event := <-c.events.Events:
			all = append(all, event)
		default:
			return strings.Join(all, "\n")
		}
	}
}

func condition(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	}
}

var (
	silent = condition(corev1.ConditionUnknown)
	ready  = condition(corev1.ConditionTrue)
)

func boot(id string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.NodeInfo.BootID = id }
}

func byAPerson(n *corev1.Node) {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
}

func machine(name string, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "b1", SystemUUID: "uuid-of-" + name}}}
	ready(n)
	for _, one := range change {
		one(n)
	}
	return n
}

func report(node string, volumes ...string) runtime.Object {
	return staged.Report{Machine: staged.Machine{SystemUUID: "uuid-of-" + node, Boot: "b1"}, Volumes: volumes}.Lease(own, node)
}

func volume(name, handle string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: handle},
	}}}
}

func claim(name, pv string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv}}
}

func attachment(pv, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "of-" + pv + "-" + node}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: wire.DriverName, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
	}}
}

func pod(name, node, owner string, change func(*corev1.Pod), volumes ...corev1.Volume) *corev1.Pod {
	yes := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: corev1.PodSpec{NodeName: node, Volumes: volumes}}
	if owner != "" {
		version, kind, other := strings.Cut(owner, " ")
		if !other {
			version, kind = map[string]string{"Job": "batch/v1", "Node": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1"}[owner], owner
		}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: "x", Controller: &yes}}
	}
	if change != nil {
		change(p)
	}
	return p
}

func source(name string, of corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: of}
}

func ofClaim(name string) corev1.Volume {
	return source("data", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
}

var scratch = source("scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})

// lost is a cluster of which node n1 has a volume in a pod, one that is only attached, one
// that its status names and one that is only staged.
func lost(more ...runtime.Object) []runtime.Object {
	return append([]runtime.Object{
		machine("n1", silent, func(n *corev1.Node) {
			n.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(wire.KubeletName(wire.DriverName, "gold/v3"))}
		}), machine("n2"), machine("n3"), report("n1", "gold/v1", "gold/v4"),
		volume("pv1", "gold/v1"), volume("pv2", "gold/v2"), claim("data", "pv1"), attachment("pv1", "n1"), attachment("pv2", "n1"), attachment("pv5", "n2"),
		pod("db-0", "n1", "StatefulSet", nil, ofClaim("data"), scratch),
	}, more...)
}

func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// TestAttachmentsEndBeforeTheTaint: whatever the node has, wherever that is written.
func TestAttachmentsEndBeforeTheTaint(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCluster(t, lost()...)
		end := c.term(10)
		defer end()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if got := c.state("n1"); got != "taken b1 tainted" {
			t.Fatalf("the node is %q: %s", got, c.said())
		}
		steps := c.steps()
		if steps[0] != "bar n1" || steps[1] != "patch n1" || steps[len(steps)-1] != "patch n1" {
			t.Errorf("the steps are %q", steps)
		}
		taken := slices.DeleteFunc(steps, func(s string) bool { return !strings.HasPrefix(s, "take ") })
		slices.Sort(taken)
		if want := []string{"take gold/v1 from n1 of b1", "take gold/v2 from n1 of b1", "take gold/v3 from n1 of b1", "take gold/v4 from n1 of b1"}; !slices.Equal(taken, want) {
			t.Errorf("taken were %q", taken)
		}
		if said := c.said(); !strings.Contains(said, "NodeTakenOutOfService Node n1 does not answer. Its 4 volumes were taken") {
			t.Errorf("the events are %q", said)
		}
		if n := testutil.ToFloat64(c.metrics.taints.WithLabelValues("set")); n != 1 {
			t.Errorf("%v taints are counted", n)
		}
	})
}

// TestWhatKeepsANodeInService: each case adds to a node that would be taken out of service.
func TestWhatKeepsANodeInService(t *testing.T) {
	local := func(v corev1.VolumeSource) runtime.Object { return pod("p", "n1", "ReplicaSet", nil, source("x", v)) }
	inUse := func(name string) runtime.Object {
		return machine("n1", silent, func(n *corev1.Node) {
			n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: corev1.UniqueVolumeName(name)}}
		})
	}
	foreign := attachment("pv1", "n1")
	foreign.Name, foreign.Spec.Attacher = "foreign", "rbd.csi.ceph.com"
	tolerates := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	longSeconds := int64(1 << 40)
	forLong := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeOutOfService, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &longSeconds}}
	}
	controlsNothing := func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }
	ofCeph := attachment("pv2", "n1")
	ofCeph.Name, ofCeph.Status.AttachmentMetadata = "ceph", map[string]string{"protocol": "rbd"}
	many := machine("n1", silent)
	for n := range staged.MaxEnded {
		many.Status.VolumesInUse = append(many.Status.VolumesInUse, corev1.UniqueVolumeName(wire.KubeletName(wire.DriverName, fmt.Sprintf("gold/x%d", n))))
	}
	mirror := func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }
	over := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	nfs := source("nfs", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}})
	hostPV := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "host"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{}}}}
	iscsi := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "native"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}}}
	mounted := staged.Report{Machine: staged.Machine{SystemUUID: "uuid-of-n1", Boot: "b1"}, Mounts: []string{"iscsi/x"}}.Lease(own, "n1")
	for name, c := range map[string]struct {
		more []runtime.Object
		// without names objects of lost that are left out.
		without string
		reason  Reason
		why     string
	}{
		"nothing":                  {},
		"a pod without storage":    {more: []runtime.Object{pod("p", "n1", "ReplicaSet", nil)}},
		"a pod of its own":         {more: []runtime.Object{pod("p", "n1", "", nil, scratch)}},
		"a pod of a job":           {more: []runtime.Object{pod("p", "n1", "Job", nil, scratch)}},
		"a directory of the node":  {more: []runtime.Object{local(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}})}},
		"a secret, projected":      {more: []runtime.Object{local(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}})}},
		"a local PersistentVolume": {more: []runtime.Object{hostPV, claim("local", "host"), pod("p", "n1", "ReplicaSet", nil, ofClaim("local"))}},
		"a pod that has ended":     {more: []runtime.Object{pod("p", "n1", "StatefulSet", over, nfs)}},
		"a pod elsewhere":          {more: []runtime.Object{pod("p", "n2", "StatefulSet", nil, nfs)}},
		"a DaemonSet with NFS":     {more: []runtime.Object{pod("p", "n1", "DaemonSet", nil, nfs)}},
		"a static pod":             {more: []runtime.Object{pod("p", "n1", "Node", mirror, nfs)}},
		"a pod that may have twins, and tolerates the taint": {more: []runtime.Object{pod("p", "n1", "ReplicaSet", tolerates, scratch)}},
		// Anything that deletes it starts a twin.
		"a pod that must be alone, and tolerates the taint": {more: []runtime.Object{pod("p", "n1", "StatefulSet", tolerates, scratch)}, reason: Identity, why: "pod a/p must not run twice"},
		"NFS of a pod that tolerates the taint":             {more: []runtime.Object{pod("p", "n1", "ReplicaSet", tolerates, nfs)}, reason: Volume, why: "pod a/p has volume nfs, of a kind"},
		"a volume of a pod that tolerates the taint":        {more: []runtime.Object{claim("more", "pv2"), pod("p", "n1", "ReplicaSet", tolerates, ofClaim("more"))}, reason: Volume, why: "would lose its claim more"},
		"a volume of a pod that tolerates it for long":      {more: []runtime.Object{claim("more", "pv2"), pod("p", "n1", "ReplicaSet", forLong, ofClaim("more"))}, reason: Volume, why: "would lose its claim more"},
		"a pod of another group's Job":                      {more: []runtime.Object{pod("p", "n1", "batch.volcano.sh/v1alpha1 Job", nil, scratch)}, reason: Identity, why: "pod a/p must not run twice"},
		"NFS of another group's DaemonSet":                  {more: []runtime.Object{pod("p", "n1", "example.org/v1 DaemonSet", nil, nfs)}, reason: Volume, why: "pod a/p has volume nfs, of a kind"},
		"a pod with an owner that is no controller":         {more: []runtime.Object{pod("p", "n1", "example.org/v1 Cluster", controlsNothing, scratch)}, reason: Identity, why: "pod a/p must not run twice"},
		"an image of Ceph":                                  {more: []runtime.Object{ofCeph}, reason: Volume, why: "attached to it is volume gold/v2 of Ceph"},
		"more volumes than can be forbidden":                {without: "n1", more: []runtime.Object{many}, reason: Volume, why: "it has or names 1027 volumes"},
		"NFS":                                               {more: []runtime.Object{pod("p", "n1", "ReplicaSet", nil, nfs)}, reason: Volume, why: "pod a/p has volume nfs, of a kind that the program does not know"},
		"an inline volume of a driver":                      {more: []runtime.Object{local(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "x"}})}, reason: Volume, why: "pod a/p has volume x, of a kind"},
		"a claim that nobody knows":                         {more: []runtime.Object{pod("p", "n1", "ReplicaSet", nil, ofClaim("none"))}, reason: Volume, why: "claim none of pod a/p has no object"},
		"a claim that is not bound":                         {more: []runtime.Object{claim("new", ""), pod("p", "n1", "ReplicaSet", nil, ofClaim("new"))}, reason: Volume, why: "claim new of pod a/p has no PersistentVolume"},
		"a native volume":                                   {more: []runtime.Object{iscsi, claim("old", "native"), pod("p", "n1", "ReplicaSet", nil, ofClaim("old"))}, reason: Volume, why: "claim old of pod a/p has PersistentVolume native, which is not of this program's driver"},
		"an ephemeral claim without a fence":                {more: []runtime.Object{volume("open", "open/v9"), claim("p-tmp", "open"), pod("p", "n1", "ReplicaSet", nil, source("tmp", corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}))}, reason: Volume, why: "claim p-tmp of pod a/p has volume open/v9, and its backend does not say fencing: initiator"},
		"an attachment without a fence":                     {more: []runtime.Object{volume("open", "open/v9"), attachment("open", "n1")}, reason: Volume, why: "attached to it is volume open/v9, and its backend does not say"},
		"an attachment that nobody knows":                   {more: []runtime.Object{attachment("gone", "n1")}, reason: Volume, why: "names PersistentVolume gone, which is not known"},
		"another driver's attachment":                       {more: []runtime.Object{foreign}, reason: Volume, why: "a volume of the driver rbd.csi.ceph.com is attached to it (VolumeAttachment foreign)"},
		"a native volume in the status":                     {without: "n1", more: []runtime.Object{inUse("kubernetes.io/iscsi/x")}, reason: Volume, why: "its status names the volume kubernetes.io/iscsi/x, which is not"},
		"an open volume in the status":                      {without: "n1", more: []runtime.Object{inUse(wire.KubeletName(wire.DriverName, "open/v9"))}, reason: Volume, why: "its status names volume open/v9, and its backend"},
		"a native mount":                                    {without: "staged-volumes.n1", more: []runtime.Object{mounted}, reason: Volume, why: "its kubelet has mounted the native volume iscsi/x"},
		"an open volume that is staged":                     {without: "staged-volumes.n1", more: []runtime.Object{report("n1", "open/v9")}, reason: Volume, why: "its node plugin has staged volume open/v9, and its backend"},
		"no report":                                         {without: "staged-volumes.n1", reason: Unreported, why: "its node plugin has not reported"},
		"no boot":                                           {without: "n1", more: []runtime.Object{machine("n1", silent, boot(""))}, reason: Unreported, why: "no boot ID"},
		"a StatefulSet's pod without a volume":              {more: []runtime.Object{pod("p", "n1", "StatefulSet", nil, scratch)}, reason: Identity, why: "pod a/p must not run twice"},
		"a pod of an unknown controller":                    {more: []runtime.Object{pod("p", "n1", "Cluster", nil, scratch)}, reason: Identity, why: "pod a/p must not run twice"},
		"a volume of a pod that stays":                      {more: []runtime.Object{claim("more", "pv2"), pod("p", "n1", "DaemonSet", nil, ofClaim("more"))}, reason: Volume, why: "pod a/p stays on the node in spite of the taint, and would lose its claim more"},
		"another node that is silent":                       {without: "n2", more: []runtime.Object{machine("n2", silent)}, reason: Share, why: "2 of 3 nodes are not Ready, have not renewed their Lease or are out of service, more than the 1"},
		"another node that is not Ready":                    {without: "n2", more: []runtime.Object{machine("n2", condition(corev1.ConditionFalse))}, reason: Share, why: "2 of 3 nodes"},
		"another node that a person tainted":                {without: "n3", more: []runtime.Object{machine("n3", silent, byAPerson), machine("n4")}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects := slices.DeleteFunc(lost(), func(o runtime.Object) bool {
					return c.without != "" && o.(metav1.Object).GetName() == c.without
				})
				w := newCluster(t, append(objects, c.more...)...)
				end := w.term(10)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				counted := 0.0
				if c.reason != "" {
					counted = testutil.ToFloat64(w.metrics.refused.WithLabelValues(string(c.reason)))
				}
				end()
				said, state := w.said(), w.state("n1")
				if c.reason == "" {
					if state != "taken b1 tainted" {
						t.Errorf("the node is %q, and said is %q", state, said)
					}
					return
				}
				if state != "" || len(w.steps()) > 0 {
					t.Errorf("the node is %q after %q", state, w.steps())
				}
				if !strings.Contains(said, "NodeNotTakenOutOfService Node n1") || !strings.Contains(said, c.why) || strings.Count(said, "Node n1") != 1 {
					t.Errorf("the events are %q, want one that says %q", said, c.why)
				}
				if counted == 0 {
					t.Errorf("nothing is counted for %s", c.reason)
				}
			})
		})
	}
}

// TestANodeThatIsHeardOfAgain gets no taint, however far it came.
func TestANodeThatIsHeardOfAgain(t *testing.T) {
	for name, c := range map[string]struct {
		heard bool
		back  []func(*corev1.Node)
		want  string
	}{
		"while an attachment ends":         {true, []func(*corev1.Node){ready}, "returned b1"},
		"after the attachments ended":      {false, []func(*corev1.Node){ready}, "returned b1"},
		"not Ready, but alive":             {false, []func(*corev1.Node){condition(corev1.ConditionFalse)}, "returned b1"},
		"rebooted":                         {false, []func(*corev1.Node){ready, boot("b2")}, ""},
		"or a person knows that it is off": {false, []func(*corev1.Node){byAPerson}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newCluster(t, lost()...)
				w.heard = c.heard
				w.meanwhile = func() { w.becomes("n1", c.back...) }
				end := w.term(10)
				defer end()
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if got := w.state("n1"); got != c.want {
					t.Errorf("the node is %q, want %q", got, c.want)
				}
				if said := w.said(); strings.Contains(said, "NodeReturnedWithoutVolumes") != (c.want != "") {
					t.Errorf("the events are %q", said)
				}
			})
		})
	}
}

// TestAPodThatCameMeanwhile: what a node has is read again after its attachments have
// ended, before the taint.
func TestAPodThatCameMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newCluster(t, lost()...)
		w.meanwhile = func() {
			_, err := w.client.CoreV1().Pods("a").Create(t.Context(), pod("late", "n1", "ReplicaSet", nil, source("nfs", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}})), metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
			}
		}
		end := w.term(10)
		defer end()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := w.state("n1"); got != "taking b1" {
			t.Errorf("the node is %q", got)
		}
		if err := w.client.CoreV1().Pods("a").Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := w.state("n1"); got != "taken b1 tainted" {
			t.Errorf("the node is %q", got)
		}
	})
}

// TestTheWayBack: the taint goes when the node has nothing left, and only the program's own.
func TestTheWayBack(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newCluster(t, lost()...)
		end := w.term(10)
		step := func(want string, change ...func(*corev1.Node)) {
			t.Helper()
			w.becomes("n1", change...)
			time.Sleep(70 * time.Second)
			synctest.Wait()
			if got := w.state("n1"); got != want {
				t.Fatalf("the node is %q, want %q", got, want)
			}
		}
		step("taken b1 tainted")
		step("taken b1 tainted", condition(corev1.ConditionFalse))
		step("taken b1 tainted", ready) // It still has volumes.
		if _, err := w.client.CoordinationV1().Leases(own).Update(t.Context(), staged.Report{Machine: staged.Machine{SystemUUID: "uuid-of-n1", Boot: "b1"}}.Lease(own, "n1"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		step("returned b1")
		step("returned b1", silent)
		end()
		end = w.term(10) // whoever leads
		step("returned b1")
		w.said()
		step("", ready, boot("b2"))
		step("taken b2 tainted", silent)
		step("", ready, boot("b3"))
		step("taken b3 tainted", silent)
		// A person decides otherwise.
		step("taken b3", func(n *corev1.Node) { n.Spec.Taints = nil })
		step("returned b3", ready)
		step("", boot("b4"))
		step("", silent, byAPerson)
		step("", ready)
		end()
		if !staged.IsOff(w.node("n1")) {
			t.Error("a person's taint is gone")
		}
		if n := testutil.ToFloat64(w.metrics.taints.WithLabelValues("removed")); n != 2 {
			t.Errorf("%v removals are counted", n)
		}
	})
}

// TestOneNodeAMinute: whoever leads, and however long Cinder did not answer before.
func TestOneNodeAMinute(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := lost()
		for n := range 20 {
			objects = append(objects, machine(fmt.Sprintf("other-%d", n)))
		}
		w := newCluster(t, objects...)
		end := w.term(10)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := w.state("n1"); got != "taken b1 tainted" {
			t.Fatalf("the first is %q", got)
		}
		w.becomes("n2", silent)
		end()
		end = w.term(10)
		defer end()
		time.Sleep(40 * time.Second)
		synctest.Wait()
		if got := w.state("n2"); got != "" {
			t.Errorf("the second is %q within a minute", got)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		// It has a volume that nobody knows.
		if got := w.state("n2"); got != "" {
			t.Errorf("the second is %q", got)
		}
		if err := w.client.StorageV1().VolumeAttachments().Delete(t.Context(), "of-pv5-n2", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := w.state("n2"); got != "taken b1 tainted" {
			t.Errorf("the second is %q: %s", got, w.said())
		}
		// Three of 23 are more than a tenth.
		w.becomes("n3", silent)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := w.state("n3"); got != "" || !strings.Contains(w.said(), "3 of 23 nodes are not Ready, have not renewed their Lease or are out of service, more than the 2") {
			t.Errorf("the third is %q", got)
		}
	})
}

// TestNodesThatFallSilentOneAfterAnother: in an outage of the control plane, the nodes do so
// within 15 s, as their last heartbeats were seen.
func TestNodesThatFallSilentOneAfterAnother(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newCluster(t, lost()...)
		w.renewed = map[string]time.Duration{"n1": 50 * time.Second, "n2": 42 * time.Second, "n3": 40 * time.Second}
		end := w.term(10)
		defer end()
		time.Sleep(15 * time.Second)
		w.becomes("n2", silent)
		w.becomes("n3", silent)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := w.state("n1"); got != "" || len(w.steps()) > 0 {
			t.Errorf("the first is %q after %q", got, w.steps())
		}
	})
}

// TestAMarkDoesNotStopTheOthers: a node can write any mark on itself.
func TestAMarkDoesNotStopTheOthers(t *testing.T) {
	for name, forge := range map[string]func(w *cluster){
		"of the future": func(w *cluster) {
			w.becomes("n2", marked(nodemark.Returned, time.Now().AddDate(70, 0, 0)))
		},
		"again and again": func(w *cluster) {
			for range 30 {
				w.becomes("n2", marked(nodemark.Returned, time.Now()))
				time.Sleep(5 * time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newCluster(t, lost()...)
				forge(w)
				end := w.term(10)
				defer end()
				go forge(w)
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				if got := w.state("n1"); got != "taken b1 tainted" {
					t.Errorf("the node is %q: %s", got, w.said())
				}
			})
		})
	}
}

func marked(state nodemark.State, since time.Time) func(*corev1.Node) {
	return func(n *corev1.Node) { nodemark.Set(n, nodemark.Mark{State: state, Boot: "b1", Since: since}) }
}

// TestATaintWhoseMarkIsLost is removed as if the mark were there.
func TestATaintWhoseMarkIsLost(t *testing.T) {
	for name, damage := range map[string]func(*corev1.Node){
		"removed":  nodemark.Remove,
		"damaged":  func(n *corev1.Node) { n.Annotations[nodemark.Annotation] = "x" },
		"of later": marked(nodemark.Returned, time.Now()),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newCluster(t, lost()...)
				end := w.term(10)
				defer end()
				time.Sleep(30 * time.Second)
				w.becomes("n1", damage, ready)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				// It has volumes.
				if node := w.node("n1"); !nodemark.HasTaint(node) || !nodemark.Bars(node) {
					t.Fatalf("the node has the taints %v, and is barred: %t", node.Spec.Taints, nodemark.Bars(node))
				}
				if _, err := w.client.CoordinationV1().Leases(own).Update(t.Context(), report("n1").(*coordinationv1.Lease), metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if got := w.state("n1"); got != "returned b1" {
					t.Errorf("the node is %q", got)
				}
			})
		})
	}
}

// TestOneVolumeThatCannotBeTaken: the others are not taken again and again meanwhile, and an
// event says that it fails.
func TestOneVolumeThatCannotBeTaken(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		objects := lost()
		for n := range 200 {
			objects = append(objects, volume(fmt.Sprintf("more-%d", n), fmt.Sprintf("gold/more-%d", n)), attachment(fmt.Sprintf("more-%d", n), "n1"))
		}
		w := newCluster(t, objects...)
		w.stuck = "gold/more-77"
		end := w.term(10)
		defer end()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if got := w.state("n1"); got != "taking b1" {
			t.Errorf("the node is %q", got)
		}
		taken := map[string]int{}
		for _, step := range w.steps() {
			taken[step]++
		}
		for step, times := range taken {
			if strings.HasPrefix(step, "take ") && times > 1 && !strings.Contains(step, w.stuck) {
				t.Fatalf("%d times: %s", times, step)
			}
		}
		if said := w.said(); strings.Count(said, "NodeNotTakenOutOfService") != 1 || !strings.Contains(said, "its volumes cannot be taken from it") {
			t.Errorf("the events are %q", said)
		}
		w.mu.Lock()
		w.stuck = ""
		w.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got, said := w.state("n1"), w.said(); got != "taken b1 tainted" || !strings.Contains(said, "Its 204 volumes were taken") {
			t.Errorf("the node is %q, and said is %q", got, said)
		}
	})
}

// TestANodeThatNamesMoreAndMore: it can write its own status while Kubernetes hears nothing of
// its kubelet, and must not keep the only worker.
func TestANodeThatNamesMoreAndMore(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newCluster(t, lost()...)
		var named atomic.Int64
		var more func()
		more = func() {
			n := named.Add(1)
			w.mu.Lock()
			w.meanwhile = more
			w.mu.Unlock()
			time.Sleep(time.Second)
			_, err := w.client.CoordinationV1().Leases(own).Update(context.Background(), report("n1", fmt.Sprintf("gold/forged-%d", n)).(*coordinationv1.Lease), metav1.UpdateOptions{})
			if err != nil {
				t.Error(err)
			}
		}
		w.meanwhile = more
		end := w.term(10)
		time.Sleep(5 * time.Minute)
		w.becomes("n3", marked(nodemark.Taken, time.Now()), func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{nodemark.Taint()} }, boot("b2"))
		time.Sleep(time.Minute)
		if got := w.state("n3"); got != "" {
			t.Errorf("another node, which is back, is %q", got)
		}
		w.mu.Lock()
		w.meanwhile = nil
		w.mu.Unlock()
		end()
	})
}

// TestAnOutageCostsFewRequests: neither silent nodes nor refused ones are read again and again
// where the cache tells enough.
func TestAnOutageCostsFewRequests(t *testing.T) {
	count := func(w *cluster, verb, resource string) (n int) {
		for _, action := range w.client.Actions() {
			if action.Matches(verb, resource) {
				n++
			}
		}
		return n
	}
	t.Run("of all nodes", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			var objects []runtime.Object
			for n := range 300 {
				objects = append(objects, machine(fmt.Sprintf("n%d", n), silent))
			}
			w := newCluster(t, objects...)
			w.events = eventrecord.NewFakeRecorder(10_000)
			end := w.term(10)
			time.Sleep(time.Minute)
			for n := range 100 { // They return one by one.
				w.becomes(fmt.Sprintf("n%d", n), ready)
				time.Sleep(time.Second)
			}
			synctest.Wait()
			end()
			// One that returns just now may be read.
			if n := count(w, "get", "nodes") - 100; n > 20 {
				t.Errorf("%d Nodes are read", n)
			}
			if n := strings.Count(w.said(), "NodeNotTakenOutOfService"); n > 300 || n < 200 {
				t.Errorf("%d events tell of it", n)
			}
		})
	})
	t.Run("of a node that is left alone", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			w := newCluster(t, lost(pod("p", "n1", "ReplicaSet", nil, source("nfs", corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}})))...)
			end := w.term(10)
			time.Sleep(time.Minute)
			synctest.Wait()
			end()
			if n := count(w, "list", "volumeattachments"); n > 0 || !strings.Contains(w.said(), "has volume nfs") {
				t.Errorf("all VolumeAttachments are listed %d times", n)
			}
		})
	})
}

// TestFailuresAreRepeated: no attachment is skipped, and the taint waits for all.
func TestFailuresAreRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		w := newCluster(t, lost()...)
		w.broken = errors.New("Cinder does not answer")
		end := w.term(10)
		defer end()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := w.state("n1"); got != "taking b1" {
			t.Errorf("the node is %q", got)
		}
		if n := testutil.ToFloat64(w.metrics.refused.WithLabelValues(string(Failing))); n != 1 {
			t.Errorf("%v nodes are counted", n)
		}
		w.mu.Lock()
		w.broken = nil
		w.mu.Unlock()
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := w.state("n1"); got != "taken b1 tainted" {
			t.Errorf("the node is %q", got)
		}
	})
}

func TestMost(t *testing.T) {
	for _, c := range []struct{ nodes, percent, want int }{{1, 10, 0}, {2, 10, 0}, {3, 10, 1}, {19, 10, 1}, {20, 10, 2}, {2, 50, 1}, {100, 1, 1}, {5, 100, 5}} {
		if got := Most(c.nodes, c.percent); got != c.want {
			t.Errorf("of %d nodes and %d %%: %d, want %d", c.nodes, c.percent, got, c.want)
		}
	}
}

// TestKubeletsLeasesShowWhoseTheTroubleIs: in an outage of the control plane, the first node
// that is not Ready looks like a lost one for up to 15 s, but no kubelet renews its Lease.
func TestKubeletsLeasesShowWhoseTheTroubleIs(t *testing.T) {
	const old = 40 * time.Second
	for name, c := range map[string]struct {
		renewed map[string]time.Duration
		// later holds from when the first volume is taken.
		later map[string]time.Duration
		state string
		why   string
	}{
		"others renew":                   {state: "taken b1 tainted"},
		"others renewed in time":         {renewed: map[string]time.Duration{"n2": 20 * time.Second, "n3": 19 * time.Second}, state: "taken b1 tainted"},
		"clocks differ little":           {renewed: map[string]time.Duration{"n2": -5 * time.Second}, state: "taken b1 tainted"},
		"no other renews":                {renewed: map[string]time.Duration{"n2": old, "n3": old}, why: "3 of 3 nodes are not Ready, have not renewed"},
		"another does not renew":         {renewed: map[string]time.Duration{"n2": old}, why: "2 of 3 nodes"},
		"this clock is late":             {renewed: map[string]time.Duration{"n2": -6 * time.Second}, why: "2 of 3 nodes"},
		"it is given up early":           {renewed: map[string]time.Duration{"n1": 25 * time.Second, "n2": 15 * time.Second, "n3": 18 * time.Second}, why: "its kubelet's Lease has not expired"},
		"the node itself renews":         {renewed: map[string]time.Duration{"n1": time.Second}, why: "it is kube-controller-manager that does not see it"},
		"none renews after it has begun": {later: map[string]time.Duration{"n2": old, "n3": old}, state: "taking b1", why: "3 of 3 nodes"},
		"it renews after it has begun":   {later: map[string]time.Duration{"n1": 0}, state: "taking b1", why: "it is kube-controller-manager"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				w := newCluster(t, lost()...)
				w.renewed = c.renewed
				if c.later != nil {
					w.meanwhile = func() {
						w.mu.Lock()
						defer w.mu.Unlock()
						w.renewed = c.later
					}
				}
				end := w.term(10)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				if got := w.state("n1"); got != c.state && !strings.HasPrefix(got, c.state+" ") || c.state == "" && got != "" {
					t.Errorf("the node is %q, want %q", got, c.state)
				}
				if said := w.said(); !strings.Contains(said, c.why) || strings.Contains(said, ReasonNotTaken) != (c.why != "") {
					t.Errorf("the events are %q, want %q", said, c.why)
				}
				// It goes on when all is well.
				w.mu.Lock()
				w.renewed = nil
				w.mu.Unlock()
				time.Sleep(4 * time.Second)
				synctest.Wait()
				if got := w.state("n1"); got != "taken b1 tainted" {
					t.Errorf("at last, the node is %q", got)
				}
				end()
			})
		})
	}
}

// TestTheLeasesOfKubeletsMustBeKnown: without them, nothing is taken.
func TestTheLeasesOfKubeletsMustBeKnown(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCluster(t, lost()...)
		c.client.PrependReactor("list", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.GetNamespace() == corev1.NamespaceNodeLease, nil, errors.New("forbidden")
		})
		end := c.term(100)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		end()
		if got := c.state("n1"); got != "" || len(c.steps()) > 0 {
			t.Errorf("the node is %q after %q", got, c.steps())
		}
		if said := c.said(); !strings.Contains(said, "as the log of the program says") {
			t.Errorf("the events are %q", said)
		}
	})
}

// TestManyLostNodesAskForTheLeasesOnce: when a rack is lost, or clocks differ, hundreds of nodes
// would each list the Leases of thousands.
func TestManyLostNodesAskForTheLeasesOnce(t *testing.T) {
	for name, c := range map[string]struct {
		renewed time.Duration
		most    int
	}{
		"while one is taken after another":      {most: 5},
		"while the others' Leases are not told": {renewed: time.Minute, most: 60},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				objects, renewed := lost(), map[string]time.Duration{}
				for i := range 40 {
					objects = append(objects, machine(fmt.Sprintf("rack-%d", i), silent))
				}
				for i := range 80 {
					name := fmt.Sprintf("other-%d", i)
					objects, renewed[name] = append(objects, machine(name)), c.renewed
				}
				w, asked := newCluster(t, objects...), 0
				w.renewed = renewed
				w.client.PrependReactor("list", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
					if action.GetNamespace() == corev1.NamespaceNodeLease {
						asked++
					}
					return false, nil, nil
				})
				end := w.term(50)
				time.Sleep(59 * time.Second)
				synctest.Wait()
				end()
				if asked > c.most {
					t.Errorf("the Leases were listed %d times in a minute, want %d at most", asked, c.most)
				}
			})
		})
	}
}
