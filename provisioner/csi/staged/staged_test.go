package staged

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func nodeOn(uuid, id, boot string, made time.Time) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: metav1.NewTime(made)}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{SystemUUID: uuid, MachineID: id, BootID: boot}}}
}

// TestWhatAReportProves: only the same machine's reboot, the Node's deletion and the
// report itself say that a volume is not staged.
func TestWhatAReportProves(t *testing.T) {
	report := Report{Machine: Machine{SystemUUID: "AB-1", MachineID: "m1", Boot: "boot-1"}, Volumes: []string{"gold/v1", "gold/v2"}, Written: noon}
	before, after := noon.Add(-time.Hour), noon.Add(time.Hour)
	for name, c := range map[string]struct {
		volume string
		node   *corev1.Node
		has    bool
	}{
		"the same boot":                          {"gold/v1", nodeOn("ab-1", "m1", "boot-1", before), true},
		"another volume":                         {"gold/v3", nodeOn("ab-1", "m1", "boot-1", before), false},
		"a reboot":                               {"gold/v1", nodeOn("ab-1", "m1", "boot-2", before), false},
		"a kubelet that names no boot":           {"gold/v1", nodeOn("ab-1", "m1", "", before), true},
		"no Node":                                {"gold/v1", nil, false},
		"the Node was made anew":                 {"gold/v1", nodeOn("ab-1", "m1", "boot-1", after), true},
		"another machine":                        {"gold/v1", nodeOn("ab-2", "m2", "boot-7", before), true},
		"another machine with an equal clone ID": {"gold/v1", nodeOn("ab-2", "m1", "boot-7", before), true},
		"another machine and Node":               {"gold/v1", nodeOn("ab-2", "m2", "boot-7", after), false},
		"only the ID of the system is known":     {"gold/v1", nodeOn("", "m1", "boot-2", before), false},
		"no machine is known":                    {"gold/v1", nodeOn("", "", "boot-2", before), true},
	} {
		t.Run(name, func(t *testing.T) {
			if has := Of(report.Lease("ns", "n1")).Has(c.volume, c.node); has != c.has {
				t.Errorf("has it: %t", has)
			}
		})
	}
}

// TestForgedReportsAreBounded: a node may write anything into its own.
func TestForgedReportsAreBounded(t *testing.T) {
	lease := Report{Machine: Machine{Boot: "b"}, Volumes: []string{"gold/v1"}}.Lease("ns", "n1")
	lease.Annotations[AnnotationVolumes] += " nothing gold/" + strings.Repeat("x", 500) + strings.Repeat(" gold/v2", 2*maxVolumes)
	got := Of(lease).Volumes
	if len(got) != maxVolumes || got[0] != "gold/v1" || got[1] != "gold/v2" {
		t.Errorf("%d volumes, first %q", len(got), got[:2])
	}
	lease.Annotations[AnnotationMounts] = "nfs/x iscsi/ iscsi/" + strings.Repeat("x", 500) + strings.Repeat(" iscsi/t-lun-1", 2*maxVolumes)
	if got := Of(lease).Mounts; len(got) != maxVolumes || got[0] != "iscsi/t-lun-1" {
		t.Errorf("%d mounts, first %q", len(got), got[0])
	}
	names := strings.Repeat("a", maxNames)
	for text, want := range map[string]int{
		"gold/v1=a,!b":                    2,
		"gold/v1=" + names:                1,
		"gold/v1=" + names + "a":          0,
		"gold/v3=a":                       0, // it does not report that it has it
		"gold/v1":                         1, // which is no name
		"gold/v1=":                        1,
		"=a":                              0,
		"==== , ! =,=":                    0,
		"gold/v1=a=b":                     1,
		strings.Repeat(" gold/v1=a", 1e4): 1,
		strings.Repeat("x", 1e5):          0,
		"gold/v3=a gold/v1=a\tgold/v2=b":  1,
	} {
		lease.Annotations[AnnotationPassphrases] = text
		if got := Of(lease).Passphrases; len(got["gold/v1"]) != want || len(got) > 2 || got["gold/v3"] != nil || slices.Contains(got["gold/v1"], "b") {
			t.Errorf("%.40q is read as %.200q", text, got)
		}
	}
	lease.Annotations, lease.Spec.HolderIdentity, lease.Spec.RenewTime = nil, nil, nil
	if got := Of(lease); got.Volumes != nil || got.Boot != "" {
		t.Errorf("%+v", got)
	}
	if NodeOf(LeaseName("n1")) != "n1" || NodeOf("openstack.org-standalone-cinder") != "" {
		t.Error("names are not told apart")
	}
}

// node is a node with state files, whose plugin reports.
type node struct {
	mu     sync.Mutex
	files  map[string]bool
	mounts []string
	// broken and unreadable are the state files and the mounts.
	broken, unreadable bool
	client             *fake.Clientset
}

func (n *node) mounted() ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unreadable {
		return nil, errors.New("no table")
	}
	return slices.Clone(n.mounts), nil
}

// mount has kubelet mount just these volumes.
func (n *node) mount(names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mounts = names
}

func (n *node) volumes() ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.broken {
		return nil, errors.New("the disk is gone")
	}
	var all []string
	for volume := range n.files {
		all = append(all, volume)
	}
	return all, nil
}

func (n *node) set(volume string, has bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.files[volume] = true; !has {
		delete(n.files, volume)
	}
}

func newNode() *node { return &node{files: map[string]bool{}, client: fake.NewClientset()} }

func (n *node) reporter(uuid string) *Reporter {
	return NewReporter(ReporterOptions{
		Leases: n.client.CoordinationV1().Leases("ns"), Namespace: "ns", Node: "n1", Machine: Machine{SystemUUID: uuid, Boot: "boot-of-" + uuid},
		Volumes: n.volumes, Mounts: n.mounted, Logger: slog.New(slog.DiscardHandler), Pause: time.Millisecond, Look: time.Millisecond,
	})
}

// stage writes a volume's state file, and reports it.
func (n *node) stage(r *Reporter, volume string) error {
	n.set(volume, true)
	return r.Staging(context.Background(), "attachment-of-"+volume)
}

// guardVersions makes the API server refuse changes of an older Lease than it has.
func (n *node) guardVersions() {
	version := 0
	n.client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		change, ok := action.(clienttesting.UpdateAction)
		if !ok {
			return false, nil, nil
		}
		lease := change.GetObject().(*coordinationv1.Lease)
		if _, updates := action.(clienttesting.UpdateActionImpl); updates && lease.ResourceVersion != strconv.Itoa(version) {
			return true, nil, apierrors.NewConflict(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, lease.Name, errors.New("changed"))
		}
		version++
		lease.ResourceVersion = strconv.Itoa(version)
		return false, nil, nil
	})
}

func (n *node) reported(t *testing.T) []string {
	t.Helper()
	lease, err := n.client.CoordinationV1().Leases("ns").Get(t.Context(), "staged-volumes.n1", metav1.GetOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	return Of(lease).Volumes
}

func (n *node) wants(t *testing.T, volumes ...string) {
	t.Helper()
	if got := n.reported(t); !slices.Equal(got, volumes) {
		t.Errorf("reported %q, want %q", got, volumes)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestTheReportNamesWhatHasAStateFile: before it is staged, and until nothing is left.
func TestTheReportNamesWhatHasAStateFile(t *testing.T) {
	n := newNode()
	r := n.reporter("ab-1")
	must(t, n.stage(r, "gold/v1"))
	n.wants(t, "gold/v1")
	must(t, n.stage(r, "gold/v2"))
	n.wants(t, "gold/v1", "gold/v2")
	n.set("gold/v1", false)
	must(t, r.update(t.Context()))
	n.wants(t, "gold/v2")
	// Nothing has changed.
	n.client.ClearActions()
	must(t, r.update(t.Context()))
	if actions := n.client.Actions(); len(actions) > 0 {
		t.Errorf("requests %v", actions)
	}
}

// TestTwoPluginsOfOneNodeLoseNothing: one of them reads the state files, and then the
// other begins to stage a volume. A real API server refuses what was not read before.
func TestTwoPluginsOfOneNodeLoseNothing(t *testing.T) {
	n := newNode()
	n.guardVersions()
	old, fresh := n.reporter("ab-1"), n.reporter("ab-1")
	must(t, old.update(t.Context()))
	var once sync.Once
	read := fresh.Volumes
	fresh.Volumes = func() ([]string, error) {
		volumes, err := read()
		once.Do(func() { must(t, n.stage(old, "gold/v1")) })
		return volumes, err
	}
	must(t, fresh.Staging(t.Context(), ""))
	n.wants(t, "gold/v1")
	// The other way round.
	must(t, n.stage(fresh, "gold/v2"))
	n.set("gold/v1", false)
	must(t, old.update(t.Context()))
	n.wants(t, "gold/v2")
}

// TestNothingIsStagedUnreported: without an answer from the API server.
func TestNothingIsStagedUnreported(t *testing.T) {
	n := newNode()
	r := n.reporter("ab-1")
	silent := true
	n.client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return silent, nil, errors.New("no answer")
	})
	err := n.stage(r, "gold/v1")
	if want := "nothing is staged, because the report of the staged volumes cannot be written: no answer"; err == nil || err.Error() != want {
		t.Errorf("the error is %v", err)
	}
	silent = false
	n.broken = true
	if err := r.Staging(t.Context(), ""); err == nil {
		t.Error("it is staged although the state files cannot be read")
	}
	n.broken = false
	must(t, r.Staging(t.Context(), ""))
	n.wants(t, "gold/v1")
}

// TestAnotherMachinesReportIsNotReplaced: it may still write to its volumes.
func TestAnotherMachinesReportIsNotReplaced(t *testing.T) {
	n := newNode()
	other := &node{files: map[string]bool{}, client: n.client}
	first, second := n.reporter("ab-1"), other.reporter("ab-2")
	must(t, n.stage(first, "gold/v1"))
	err := other.stage(second, "gold/v9")
	if err == nil || !strings.Contains(err.Error(), "Lease staged-volumes.n1 says that another machine, ab-1, has 1 volumes staged or mounted under the name of node n1") {
		t.Errorf("the error is %v", err)
	}
	n.wants(t, "gold/v1")
	// It has unstaged them.
	n.set("gold/v1", false)
	must(t, first.update(t.Context()))
	must(t, second.Staging(t.Context(), ""))
	n.wants(t, "gold/v9")
}

// TestABootIsOfOneMachine: whatever else is known about it. The IDs may be missing, or the
// ID of the system may be made during the first boot.
func TestABootIsOfOneMachine(t *testing.T) {
	n := newNode()
	must(t, n.stage(n.reporter(""), "gold/v1"))
	must(t, n.stage(n.reporter(""), "gold/v2"))
	n.wants(t, "gold/v1", "gold/v2")
}

// TestALostReportIsWrittenAgain: somebody deleted or emptied it, and the plugin stages
// another volume, or nothing at all.
func TestALostReportIsWrittenAgain(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *node){
		"deleted": func(t *testing.T, n *node) {
			must(t, n.client.CoordinationV1().Leases("ns").Delete(t.Context(), "staged-volumes.n1", metav1.DeleteOptions{}))
		},
		"emptied": func(t *testing.T, n *node) {
			leases := n.client.CoordinationV1().Leases("ns")
			lease, err := leases.Get(t.Context(), "staged-volumes.n1", metav1.GetOptions{})
			must(t, err)
			delete(lease.Annotations, AnnotationVolumes)
			_, err = leases.Update(t.Context(), lease, metav1.UpdateOptions{})
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode()
			r := n.reporter("ab-1")
			must(t, n.stage(r, "gold/v1"))
			lose(t, n)
			must(t, n.stage(r, "gold/v2"))
			n.wants(t, "gold/v1", "gold/v2")

			r.Recheck = 10 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			lose(t, n)
			go r.Run(ctx)
			n.eventually(t, "gold/v1", "gold/v2")
		})
	}
}

// TestReportsOfManyVolumesAtOnce: each is reported before its call returns, and in the
// end the report is true.
func TestReportsOfManyVolumesAtOnce(t *testing.T) {
	n := newNode()
	r := n.reporter("ab-1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	var group sync.WaitGroup
	var left []string
	for i := range 20 {
		volume := fmt.Sprintf("gold/v%02d", i)
		if i%2 == 0 {
			left = append(left, volume)
		}
		group.Go(func() {
			if err := n.stage(r, volume); err != nil {
				t.Error(err)
			}
			if !slices.Contains(n.reported(t), volume) {
				t.Errorf("%s is not reported", volume)
			}
			n.set(volume, i%2 == 0)
			r.Changed()
		})
	}
	group.Wait()
	n.eventually(t, left...)
	cancel()
	<-done
}

// eventually waits until the node reports just these volumes.
func (n *node) eventually(t *testing.T, volumes ...string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !slices.Equal(n.reported(t), volumes); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("reported %q, want %q", n.reported(t), volumes)
		}
	}
}

// TestMountsHaveTheNamesOfKubelet: the paths are those of kubelet's plugins, release 1.36.
func TestMountsHaveTheNamesOfKubelet(t *testing.T) {
	const plugins = "/var/lib/kubelet/plugins/kubernetes.io/"
	for at, want := range map[string]string{
		plugins + "iscsi/iface-default/10.0.0.1:3260-iqn.2010-10.org.openstack:volume-1-lun-1":                          ISCSIMount("10.0.0.1:3260", "iqn.2010-10.org.openstack:volume-1", "1"),
		plugins + "iscsi/iface-10.0.0.1:3260:pvc-1/10.0.0.1:3260-iqn.x:v-lun-10":                                        ISCSIMount("10.0.0.1", "iqn.x:v", "10"),
		plugins + "iscsi/volumeDevices/iface-default/[fd00::1]:3260-iqn.x:v-lun-0/7b1c0d4e-0000-4000-8000-000000000001": ISCSIMount("[fd00::1]:3260", "iqn.x:v", "0"),
		plugins + "fc/50060e801049cfd1-50060e801049cfd2-lun-3":                                                          FCMount([]string{"50060e801049cfd1", "50060e801049cfd2"}, "3", nil),
		plugins + "fc/volumeDevices/3600508b400105e210000900000490000/7b1c0d4e-0000-4000-8000-000000000001":             FCMount(nil, "", []string{"3600508b400105e210000900000490000"}),
		plugins + "csi/rbd.csi.ceph.com/0123/globalmount":                                                               "",
		plugins + "iscsi":               "",
		plugins + "iscsi/iface-default": "",
		"/var/lib/kubelet/pods/7b1c0d4e-0000-4000-8000-000000000001/volumes/kubernetes.io~iscsi/pvc-1": "",
		"/mnt/plugins/kubernetes.io/iscsi/iface-default/10.0.0.1:3260-iqn.x:v-lun-1":                   "",
		plugins + "iscsi/iface-default/10.0.0.1:3260-iqn.x:v lun-1":                                    "",
	} {
		if got := MountAt("/var/lib/kubelet", at); got != want {
			t.Errorf("%s: got %q, want %q", at, got, want)
		}
	}
}

// TestTheReportNamesWhatKubeletHasMounted: the plugin looks at the mounts again and again,
// and those that it cannot read stay reported, even if it was just started.
func TestTheReportNamesWhatKubeletHasMounted(t *testing.T) {
	n := newNode()
	n.mount("iscsi/b-lun-1", "iscsi/a-lun-1", "iscsi/b-lun-1")
	mounted := func(want ...string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			lease, err := n.client.CoordinationV1().Leases("ns").Get(t.Context(), "staged-volumes.n1", metav1.GetOptions{})
			if err == nil && slices.Equal(Of(lease).Mounts, want) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("want %q; %v", want, err)
			}
		}
	}
	run := func() (stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		r := n.reporter("ab-1")
		go func() { defer close(done); r.Run(ctx) }()
		return func() { cancel(); <-done }
	}
	stop := run()
	mounted("iscsi/a-lun-1", "iscsi/b-lun-1")
	n.mount("iscsi/a-lun-1")
	mounted("iscsi/a-lun-1")
	stop()

	n.unreadable = true
	must(t, n.stage(n.reporter("ab-1"), "gold/v1"))
	mounted("iscsi/a-lun-1")
	n.wants(t, "gold/v1")
	n.unreadable = false
	n.mount()
	defer run()()
	mounted()
}

// TestNothingIsStagedWithAnAttachmentThatHasEnded: whether the leader ends it before or
// after the plugin has read the Lease, and whoever writes the Lease meanwhile.
func TestNothingIsStagedWithAnAttachmentThatHasEnded(t *testing.T) {
	end := func(n *node, attachments ...string) {
		leases := n.client.CoordinationV1().Leases("ns")
		lease, err := leases.Get(t.Context(), "staged-volumes.n1", metav1.GetOptions{})
		must(t, err)
		_, err = leases.Update(t.Context(), End(lease, attachments...), metav1.UpdateOptions{})
		must(t, err)
	}
	refused := func(err error, attachment string) {
		t.Helper()
		want := "nothing is staged, because attachment " + attachment + " was ended while this node did not answer; the volume can be staged once Kubernetes has attached it again"
		if err == nil || err.Error() != want {
			t.Errorf("the error is %v", err)
		}
	}
	n := newNode()
	n.guardVersions()
	r := n.reporter("ab-1")
	must(t, n.stage(r, "gold/v0"))
	end(n, "attachment-of-gold/v1")
	refused(n.stage(r, "gold/v1"), "attachment-of-gold/v1")
	n.set("gold/v1", false)
	must(t, n.stage(r, "gold/v2"))
	n.wants(t, "gold/v0", "gold/v2")
	// Another plugin of the node, which has read nothing yet.
	refused(n.stage(n.reporter("ab-1"), "gold/v1"), "attachment-of-gold/v1")
	var many []string
	for i := range 2 * MaxEnded {
		many = append(many, fmt.Sprint(i))
	}
	end(n, many...)
	refused(r.Staging(t.Context(), fmt.Sprint(2*MaxEnded-1)), fmt.Sprint(2*MaxEnded-1))
	if len(r.reported.Ended) != MaxEnded {
		t.Errorf("%d attachments are kept", len(r.reported.Ended))
	}
}
