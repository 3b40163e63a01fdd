package machine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

const (
	oneVolume = "00000000-0000-4000-8000-000000000001"
	oneHandle = "gold/" + oneVolume
)

// running is a machine whose volume is attached to it.
type running struct {
	*Machine
	t      *testing.T
	client *fake.Clientset

	mu   sync.Mutex
	pods []Volume
}

func run(t *testing.T) *running {
	t.Helper()
	r := &running{t: t, client: fake.NewClientset(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "of-pvc-1"}})}
	array := &drivers.Array{Target: "iqn.2026-01.example:array", Portal: "192.0.2.1:3260"}
	r.Machine = New(Options{
		Name: "n1", Storage: NewStorage(array), Namespace: "ns", Wrong: func(volume, text string) { t.Errorf("volume %s: %s", volume, text) },
		Wanted: func() []Volume {
			r.mu.Lock()
			defer r.mu.Unlock()
			return slices.Clone(r.pods)
		},
	})
	r.connect = func(...*link) (kubernetes.Interface, error) { return r.client, nil }
	if _, err := array.Type("x").Connection(drivers.ConnectionRequest{VolumeID: oneVolume, Connector: map[string]any{"host": "n1"}}); err != nil {
		t.Fatal(err)
	}
	about, err := wire.Connection{Protocol: "iscsi", Paths: []wire.Path{{Portal: array.Portal, Target: array.Target, LUN: 1}}, Attachment: "a1"}.PublishContext()
	if err != nil {
		t.Fatal(err)
	}
	pv := "pvc-1"
	if _, err := r.client.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-1"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
		Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: about},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.On(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if harm := r.Harm(); len(harm) > 0 {
			t.Errorf("harm: %q", harm)
		}
	})
	return r
}

func (r *running) want(pods ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = nil
	for _, pod := range pods {
		r.pods = append(r.pods, Volume{PV: "pvc-1", Handle: oneHandle, Secret: "of-pvc-1", Pod: pod, Attachment: "va-1"})
	}
}

// eventually waits until something is so.
func (r *running) eventually(what string, is func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not so: %s\n%s", what, r.Log())
		}
	}
}

// reports returns whether the report, and whether the Node's status, name the volume.
func (r *running) reports() (report, status bool) {
	lease, err := r.client.CoordinationV1().Leases("ns").Get(r.t.Context(), staged.LeaseName("n1"), metav1.GetOptions{})
	if err == nil {
		report = slices.Contains(staged.Of(lease).Volumes, oneHandle)
	}
	node, err := r.client.CoreV1().Nodes().Get(r.t.Context(), "n1", metav1.GetOptions{})
	if err == nil {
		status = slices.Contains(node.Status.VolumesInUse, InUse(oneHandle))
	}
	return report, status
}

func (r *running) says(report, status bool) func() bool {
	return func() bool {
		nowReport, nowStatus := r.reports()
		return nowReport == report && nowStatus == status
	}
}

func (r *running) mounts() bool { return len(r.Storage.Writes([]*Machine{r.Machine})) > 0 }

// TestAPodGetsItsVolumeAndLeavesIt: another pod of the volume gets it as it is, and the
// last one takes everything with it.
func TestAPodGetsItsVolumeAndLeavesIt(t *testing.T) {
	r := run(t)
	r.want("a")
	r.eventually("pod a has it", func() bool { return r.Serves("pvc-1", "a") })
	if report, status := r.reports(); !report || !status {
		t.Errorf("the report names it: %t, the Node's status names it: %t", report, status)
	}
	r.want("b")
	r.eventually("pod b has it", func() bool { return r.Serves("pvc-1", "b") && !r.Serves("pvc-1", "a") })
	r.want()
	r.eventually("it is gone", func() bool { return !r.mounts() && !r.Remembers("pvc-1") })
	r.eventually("nothing names it", r.says(false, false))
	if r.Stages() != 1 {
		t.Errorf("it was staged %d times", r.Stages())
	}
}

// TestALostMachineWritesOn: until it is back, whatever becomes of its pods.
func TestALostMachineWritesOn(t *testing.T) {
	r := run(t)
	r.want("a")
	r.eventually("pod a has it", func() bool { return r.Serves("pvc-1", "a") })
	r.Cut()
	r.want()
	time.Sleep(5 * step)
	if report, _ := r.reports(); !r.mounts() || !report {
		t.Error("it has unstaged the volume")
	}
	r.Reconnect(0)
	r.eventually("it is gone", func() bool { return !r.mounts() })
	r.eventually("nothing names it", r.says(false, false))
}

// TestARestartedKubeletForgetsWhatIsOnlyStaged: the report still names it, and only another
// boot ends that.
func TestARestartedKubeletForgetsWhatIsOnlyStaged(t *testing.T) {
	r := run(t)
	r.want("a")
	r.eventually("pod a has it", func() bool { return r.Serves("pvc-1", "a") })
	r.Cut()
	r.kernel().UnmountByHand(targetOf("pvc-1", "a"))
	r.want()
	if err := r.RestartKubelet(); err != nil {
		t.Fatal(err)
	}
	r.Reconnect(0)
	r.eventually("only the report names it", r.says(true, false))
	if r.Remembers("pvc-1") || !r.mounts() {
		t.Errorf("remembered: %t, mounted: %t", r.Remembers("pvc-1"), r.mounts())
	}
	r.Off()
	if err := r.On(); err != nil {
		t.Fatal(err)
	}
	r.eventually("nothing names it", r.says(false, false))
	r.eventually("the Node shows the other boot", func() bool {
		node, err := r.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && node.Status.NodeInfo.BootID == r.IDs().Boot && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
}

// TestAVolumeIsStagedAlthoughThePluginDies: at each of its first changes.
func TestAVolumeIsStagedAlthoughThePluginDies(t *testing.T) {
	for nth := 1; nth <= 12; nth += 3 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("change %d, after: %t", nth, after), func(t *testing.T) {
				t.Parallel()
				r := run(t)
				r.eventually("the plugin runs", func() bool {
					_, err := r.thePlugin()
					return err == nil
				})
				r.KillPlugin(nth, after, 10*time.Second)
				r.want("a")
				r.eventually("the plugin died", func() bool {
					_, err := r.thePlugin()
					return err != nil
				})
				r.Machine.mu.Lock()
				r.startAt = time.Time{}
				r.Machine.mu.Unlock()
				r.eventually("pod a has it", func() bool { return r.Serves("pvc-1", "a") })
				r.want()
				r.eventually("it is gone", func() bool { return !r.mounts() && !r.Remembers("pvc-1") })
			})
		}
	}
}
