package nodeuse

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

func iscsi() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", UID: "pv-uid-1"}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
			TargetPortal: "10.0.0.1:3260", IQN: "iqn.2010-10.org.openstack:volume-1", Lun: 1, Portals: []string{"10.0.0.2:3260"},
		}},
	}}
}

func csi() *corev1.PersistentVolume {
	pv := iscsi()
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "rbd.csi.ceph.com", VolumeHandle: "volume-1"}}
	return pv
}

const iscsiName = "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2010-10.org.openstack:volume-1:1"

// TestNamesAreThoseOfKubelet: they were taken from kubelet's plugins, release 1.36.
func TestNamesAreThoseOfKubelet(t *testing.T) {
	lun := int32(3)
	for _, c := range []struct {
		name   string
		source corev1.PersistentVolumeSource
		want   string
	}{
		{"iscsi", iscsi().Spec.PersistentVolumeSource,
			iscsiName + " mounted/iscsi/10.0.0.1:3260-iqn.2010-10.org.openstack:volume-1-lun-1"},
		{"fibre channel by ports", corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"50060e801049cfd1", "50060e801049cfd2"}, Lun: &lun}},
			"kubernetes.io/fc/[50060e801049cfd1 50060e801049cfd2]:3 mounted/fc/50060e801049cfd1-50060e801049cfd2-lun-3"},
		{"fibre channel by volume", corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{"3600508b400105e210000900000490000"}}},
			"kubernetes.io/fc/[3600508b400105e210000900000490000] mounted/fc/3600508b400105e210000900000490000"},
		{"csi", csi().Spec.PersistentVolumeSource, "kubernetes.io/csi/rbd.csi.ceph.com^volume-1"},
		{"flex", corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "example.org/nvme"}}, "example.org/nvme/pvc-1"},
		{"nfs is never attached", corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "nfs", Path: "/"}}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			pv := iscsi()
			pv.Spec.PersistentVolumeSource = c.source
			var got []string
			for _, name := range Names(pv) {
				got = append(got, string(name))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

type change func(*corev1.Node)

func inUse(name string) change {
	return func(node *corev1.Node) {
		node.Status.VolumesInUse = append(node.Status.VolumesInUse, corev1.UniqueVolumeName(name))
	}
}

func attached(name string) change {
	return func(node *corev1.Node) {
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(name)})
	}
}

func outOfService(node *corev1.Node) {
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "node.kubernetes.io/out-of-service", Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute})
}

func node(name string, changes ...change) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"}}}
	inUse("kubernetes.io/iscsi/10.0.0.1:3260:another:1")(n)
	for _, change := range changes {
		change(n)
	}
	return n
}

func attachment(pv, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-" + node}, Spec: storagev1.VolumeAttachmentSpec{
		NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
	}}
}

// tracker makes a Tracker over an API server with the objects and, if caches is set,
// complete caches with the same objects.
func tracker(t *testing.T, caches bool, objects ...runtime.Object) (*Tracker, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objects...)
	options := Options{Client: client}
	if caches {
		options.Caches = &Caches{
			Nodes:       cache.NewIndexer(cache.MetaNamespaceKeyFunc, NodeIndexers()),
			Attachments: cache.NewIndexer(cache.MetaNamespaceKeyFunc, AttachmentIndexers()),
			Synced:      func() bool { return true },
		}
		for _, object := range objects {
			store := options.Caches.Nodes
			if _, ok := object.(*storagev1.VolumeAttachment); ok {
				store = options.Caches.Attachments
			}
			if err := store.Add(object); err != nil {
				t.Fatal(err)
			}
		}
	}
	return New(options), client
}

// TestAStagedVolumeIsInUse: the node's plugin reports it, whatever its kubelet lists.
func TestAStagedVolumeIsInUse(t *testing.T) {
	ours := csi()
	ours.Spec.CSI.Driver, ours.Spec.CSI.VolumeHandle = wire.DriverName, "gold/volume-1"
	const mounted = "iscsi/10.0.0.1:3260-iqn.2010-10.org.openstack:volume-1-lun-1"
	machine := staged.Machine{SystemUUID: "uuid-1", Boot: "boot-1"}
	here := func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "uuid-1" }
	booted := func(n *corev1.Node) { n.Status.NodeInfo.BootID = "boot-2" }
	for name, c := range map[string]struct {
		volume, mount string // reported
		pv            *corev1.PersistentVolume
		node          *corev1.Node
		uses          bool
	}{
		"staged":                          {"gold/volume-1", "", ours, node("n1", here), true},
		"another volume":                  {"gold/volume-2", "", ours, node("n1", here), false},
		"rebooted":                        {"gold/volume-1", "", ours, node("n1", here, booted), false},
		"off":                             {"gold/volume-1", "", ours, node("n1", here, outOfService), false},
		"of a node that is gone":          {"gold/volume-1", "", ours, node("n2", here), false},
		"kubelet has mounted it":          {"", mounted, iscsi(), node("n1", here), true},
		"kubelet has mounted another one": {"", mounted + "1", iscsi(), node("n1", here), false},
		"mounted before a reboot":         {"", mounted, iscsi(), node("n1", here, booted), false},
		"mounted on a node that is off":   {"", mounted, iscsi(), node("n1", here, outOfService), false},
	} {
		t.Run(name, func(t *testing.T) {
			pv := c.pv
			lease := staged.Report{Machine: machine, Volumes: []string{c.volume}, Mounts: []string{c.mount}, Written: time.Now()}.Lease("ns", "n1")
			tracker, client := tracker(t, true, c.node)
			reports := cache.NewIndexer(cache.MetaNamespaceKeyFunc, ReportIndexers())
			if err := errors.Join(reports.Add(lease), client.Tracker().Add(lease)); err != nil {
				t.Fatal(err)
			}
			tracker.options.Caches.Reports, tracker.options.Caches.Namespace = reports, "ns"
			var want []string
			if c.uses {
				want = []string{"n1"}
			}
			for _, ask := range []func() ([]string, error){
				func() ([]string, error) { return tracker.Known(VolumeOf(pv)) },
				func() ([]string, error) { return tracker.Users(t.Context(), VolumeOf(pv)) },
			} {
				if got, err := ask(); err != nil || !slices.Equal(got, want) {
					t.Errorf("used by %q (%v), want %q", got, err, want)
				}
			}
			client.PrependReactor("list", "leases", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no right") })
			if _, err := tracker.Users(t.Context(), VolumeOf(pv)); err == nil {
				t.Error("the reports are not read, and the volume is free")
			}
			if _, err := tracker.Users(t.Context(), VolumeOf(&corev1.PersistentVolume{})); err != nil {
				t.Errorf("a volume that is never attached needs no reports: %v", err)
			}
		})
	}
}

func TestNodesThatUseAVolume(t *testing.T) {
	released := iscsi()
	released.Annotations = map[string]string{AnnotationReleasedBy: " lost-1,lost-2 "}
	for _, c := range []struct {
		name    string
		pv      *corev1.PersistentVolume
		objects []runtime.Object
		want    string
	}{
		{"none", iscsi(), []runtime.Object{node("a"), node("b")}, ""},
		{"no nodes at all", iscsi(), nil, ""},
		{"one that mounts it", iscsi(), []runtime.Object{node("a"), node("b", inUse(iscsiName))}, "b"},
		{"one to which the controller has it attached", iscsi(), []runtime.Object{node("a", attached(iscsiName))}, "a"},
		{"several, sorted", iscsi(), []runtime.Object{node("b", inUse(iscsiName), attached(iscsiName)), node("a", inUse(iscsiName))}, "a b"},
		{"out of service", iscsi(), []runtime.Object{node("a", inUse(iscsiName), outOfService), node("b", inUse(iscsiName))}, "b"},
		{"an operator vouches for it", released, []runtime.Object{node("lost-1", inUse(iscsiName)), node("lost-2", inUse(iscsiName))}, ""},
		{"an operator vouches for another", released, []runtime.Object{node("a", inUse(iscsiName)), node("lost-2", inUse(iscsiName))}, "a"},
		{"attached by a CSI driver", csi(), []runtime.Object{node("a"), attachment("pvc-1", "a"), attachment("pvc-2", "b")}, "a"},
		{"attached to a node that is gone", csi(), []runtime.Object{attachment("pvc-1", "a")}, ""},
		{"attached to a node out of service", csi(), []runtime.Object{node("a", outOfService), attachment("pvc-1", "a")}, ""},
		{"in use by a CSI driver", csi(), []runtime.Object{node("a", inUse("kubernetes.io/csi/rbd.csi.ceph.com^volume-1"))}, "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, caches := range []bool{true, false} {
				tracker, _ := tracker(t, caches, c.objects...)
				users, err := tracker.Users(t.Context(), VolumeOf(c.pv))
				if got := strings.Join(users, " "); err != nil || got != c.want {
					t.Errorf("caches %t: got %q, %v, want %q", caches, got, err, c.want)
				}
				known, err := tracker.Known(VolumeOf(c.pv))
				if got := strings.Join(known, " "); err != nil || caches && got != c.want || !caches && got != "" {
					t.Errorf("caches %t: known %q, %v, want %q", caches, got, err, c.want)
				}
			}
		})
	}
}

// TestVolumesWithoutTheirPersistentVolumeAreRecognized: drivers build their own names
// from the ID, or from the name of the PersistentVolume.
func TestVolumesWithoutTheirPersistentVolumeAreRecognized(t *testing.T) {
	lost := Volume{PV: "pvc-1", MayAttach: true, ID: "4b8b277f-e890-44b4-907e-d5ed893d27d6"}
	for _, c := range []struct {
		name, inUse, want string
	}{
		{"its target contains its ID", "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2010-10.org.openstack:volume-4b8b277f-e890-44b4-907e-d5ed893d27d6:1", "a"},
		{"its handle contains its ID", "kubernetes.io/csi/rbd.csi.ceph.com^volume-4b8b277f-e890-44b4-907e-d5ed893d27d6", "a"},
		{"its name is the PersistentVolume's", "example.org/nvme/pvc-1", "a"},
		{"another", "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2010-10.org.openstack:volume-0e0f8987:1", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracker, _ := tracker(t, true, node("a", inUse(c.inUse)), node("b"))
			users, err := tracker.Users(t.Context(), lost)
			if got := strings.Join(users, " "); err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestLateWatchIsNotBelieved: the cache shows nothing yet, but the API server
// does.
func TestLateWatchIsNotBelieved(t *testing.T) {
	tracker, client := tracker(t, true)
	if err := client.Tracker().Add(node("a", inUse(iscsiName))); err != nil {
		t.Fatal(err)
	}
	if known, err := tracker.Known(VolumeOf(iscsi())); err != nil || len(known) > 0 {
		t.Errorf("known: %v, %v", known, err)
	}
	users, err := tracker.Users(t.Context(), VolumeOf(iscsi()))
	if err != nil || !slices.Equal(users, []string{"a"}) {
		t.Errorf("users: %v, %v", users, err)
	}
}

// TestNodeThatWasStartedAnewHasLetGo: this is not so if the use was first seen during
// the current boot.
func TestNodeThatWasStartedAnewHasLetGo(t *testing.T) {
	using := node("a", inUse(iscsiName), attached(iscsiName))
	tracker, client := tracker(t, true, using)
	ask := func(want string) {
		t.Helper()
		users, err := tracker.Users(t.Context(), VolumeOf(iscsi()))
		if got := strings.Join(users, " "); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	ask("a")
	ask("a")
	again := using.DeepCopy()
	again.Status.NodeInfo.BootID = "boot-2"
	if err := client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), again, ""); err != nil {
		t.Fatal(err)
	}
	ask("")
	tracker.Forget(iscsi().UID)
	ask("a")
}

func TestUnreadableNodesProveNothing(t *testing.T) {
	tracker, client := tracker(t, false)
	client.PrependReactor("list", "nodes", func(ktesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	if _, err := tracker.Users(t.Context(), VolumeOf(iscsi())); err == nil || !strings.Contains(err.Error(), "cannot tell whether a node still uses the volume of PersistentVolume pvc-1: cannot list the nodes: forbidden") {
		t.Errorf("the answer is %v", err)
	}
}

func TestAttachmentsThatAreNotReadProveNothing(t *testing.T) {
	tracker, _ := tracker(t, true)
	tracker.options.Caches.Synced = func() bool { return false }
	if _, err := tracker.Users(t.Context(), VolumeOf(csi())); err == nil || !strings.Contains(err.Error(), "the VolumeAttachments are not read yet") {
		t.Errorf("the answer is %v", err)
	}
	if users, err := tracker.Users(t.Context(), VolumeOf(iscsi())); err != nil || len(users) > 0 {
		t.Errorf("a volume that no CSI driver serves: %v, %v", users, err)
	}
}

// TestOneReadingServesAllWhoWait: it never serves a caller that asked after it began.
func TestOneReadingServesAllWhoWait(t *testing.T) {
	var mu sync.Mutex
	readings := 0
	began, finish := make(chan struct{}, 10), make(chan struct{})
	s := shared[int]{read: func(context.Context) (int, error) {
		mu.Lock()
		readings++
		number := readings
		mu.Unlock()
		began <- struct{}{}
		<-finish
		return number, nil
	}}
	answers := make(chan int, 10)
	ask := func() {
		number, err := s.get(t.Context())
		if err != nil {
			t.Error(err)
		}
		answers <- number
	}
	go ask()
	<-began
	for range 5 {
		go ask()
	}
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.next != nil
	})
	time.Sleep(10 * time.Millisecond) // lets the others ask, too
	close(finish)
	var got []int
	for range 6 {
		got = append(got, <-answers)
	}
	slices.Sort(got)
	if got[0] != 1 || got[1] != 2 || got[5] > 3 {
		t.Errorf("the readings that answered: %v", got)
	}
}

func TestReadingThatTakesLongIsNotWaitedForLonger(t *testing.T) {
	finish := make(chan struct{})
	defer close(finish)
	s := shared[int]{read: func(context.Context) (int, error) { <-finish; return 0, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.get(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the answer is %v", err)
	}
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come")
		}
	}
}
