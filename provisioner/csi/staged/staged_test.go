package staged

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	broken bool
	client *fake.Clientset
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
		Leases: n.client.CoordinationV1().Leases("ns"), Namespace: "ns", Node: "n1", Machine: Machine{SystemUUID: uuid, Boot: "boot-1"},
		Volumes: n.volumes, Logger: slog.New(slog.DiscardHandler), Pause: time.Millisecond,
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

// TestAVolumeIsReportedBeforeItIsStaged: and until nothing of it is left.
func TestAVolumeIsReportedBeforeItIsStaged(t *testing.T) {
	n := newNode()
	r := n.reporter("ab-1")
	must(t, r.Staging(t.Context(), "gold/v1"))
	n.wants(t, "gold/v1")
	n.set("gold/v1", true)
	r.Changed("gold/v1")
	must(t, r.update(t.Context()))
	n.wants(t, "gold/v1")
	must(t, r.Staging(t.Context(), "gold/v2"))
	n.wants(t, "gold/v1", "gold/v2")
	// Staging it fails without a state file.
	r.Changed("gold/v2")
	must(t, r.update(t.Context()))
	n.wants(t, "gold/v1")
	n.set("gold/v1", false)
	must(t, r.update(t.Context()))
	n.wants(t)
	// Nothing has changed.
	n.client.ClearActions()
	must(t, r.update(t.Context()))
	if actions := n.client.Actions(); len(actions) > 0 {
		t.Errorf("requests %v", actions)
	}
}

// TestNothingIsStagedUnreported: without an answer from the API server.
func TestNothingIsStagedUnreported(t *testing.T) {
	n := newNode()
	r := n.reporter("ab-1")
	silent := true
	n.client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		return silent, nil, errors.New("no answer")
	})
	err := r.Staging(t.Context(), "gold/v1")
	if want := "volume gold/v1 is not staged, because the report of the staged volumes cannot be written: no answer"; err == nil || err.Error() != want {
		t.Errorf("the error is %v", err)
	}
	r.Changed("gold/v1")
	silent = false
	n.broken = true
	if err := r.Staging(t.Context(), "gold/v1"); err == nil {
		t.Error("it is staged although the state files cannot be read")
	}
	n.broken = false
	must(t, r.Staging(t.Context(), "gold/v1"))
	n.wants(t, "gold/v1")
}

// TestAnotherMachinesReportIsNotReplaced: it may still write to its volumes.
func TestAnotherMachinesReportIsNotReplaced(t *testing.T) {
	n := newNode()
	must(t, n.reporter("ab-1").Staging(t.Context(), "gold/v1"))
	err := n.reporter("ab-2").Staging(t.Context(), "gold/v9")
	if err == nil || !strings.Contains(err.Error(), "Lease staged-volumes.n1 says that another machine, ab-1, has 1 volumes staged under the name of node n1") {
		t.Errorf("the error is %v", err)
	}
	n.wants(t, "gold/v1")
	// It has unstaged them.
	first := n.reporter("ab-1")
	must(t, first.update(t.Context()))
	must(t, n.reporter("ab-2").Staging(t.Context(), "gold/v9"))
	n.wants(t, "gold/v9")
	// The first one's next report finds the Lease changed.
	if err := first.Staging(t.Context(), "gold/v1"); err != nil && !strings.Contains(err.Error(), "another machine") {
		t.Errorf("the error is %v", err)
	}
}

// TestADeletedReportIsWrittenAgain: with everything that is staged.
func TestADeletedReportIsWrittenAgain(t *testing.T) {
	n := newNode()
	r := n.reporter("ab-1")
	n.set("gold/v1", true)
	must(t, r.update(t.Context()))
	must(t, n.client.CoordinationV1().Leases("ns").Delete(t.Context(), "staged-volumes.n1", metav1.DeleteOptions{}))
	must(t, r.Staging(t.Context(), "gold/v2"))
	n.wants(t, "gold/v1", "gold/v2")
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
	for i := range 20 {
		group.Go(func() {
			volume := fmt.Sprintf("gold/v%02d", i)
			if err := r.Staging(ctx, volume); err != nil {
				t.Error(err)
			}
			if !slices.Contains(n.reported(t), volume) {
				t.Errorf("%s is not reported", volume)
			}
			n.set(volume, i%2 == 0)
			r.Changed(volume)
		})
	}
	group.Wait()
	for deadline := time.Now().Add(10 * time.Second); len(n.reported(t)) != 10; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("reported %q", n.reported(t))
		}
	}
	cancel()
	<-done
}
