package leasecheck

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func TestOnlyTheKubeletProvesTheEndOfAProcess(t *testing.T) {
	terminated := func(id, message string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, ContainerID: id, Message: message}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	status := func(phase corev1.PodPhase, now, last corev1.ContainerState) corev1.PodStatus {
		return corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "csi-attacher"}, {Name: "standalone-cinder", State: now, LastTerminationState: last}}}
	}
	deleted := metav1.NewTime(time.Unix(0, 0))
	for name, test := range map[string]struct {
		status  corev1.PodStatus
		deleted *metav1.Time
		want    bool
	}{
		"its container has ended":            {status: status(corev1.PodRunning, terminated("containerd://1", "pod_1"), corev1.ContainerState{}), want: true},
		"its container was started again":    {status: status(corev1.PodRunning, running, terminated("containerd://1", "pod_1")), want: true},
		"the pod has ended":                  {status: status(corev1.PodFailed, terminated("containerd://1", "pod_1"), corev1.ContainerState{}), want: true},
		"it runs":                            {status: status(corev1.PodRunning, running, corev1.ContainerState{})},
		"an earlier process has ended":       {status: status(corev1.PodRunning, running, terminated("containerd://0", "pod_0"))},
		"the process did not sign":           {status: status(corev1.PodRunning, running, terminated("containerd://1", ""))},
		"the kubelet lost the container":     {status: status(corev1.PodFailed, terminated("", "The container could not be located when the pod was terminated"), corev1.ContainerState{})},
		"the container has no ID":            {status: status(corev1.PodFailed, terminated("", "pod_1"), corev1.ContainerState{})},
		"the node was lost":                  {status: status(corev1.PodFailed, running, corev1.ContainerState{})},
		"the pod of a lost node was deleted": {status: status(corev1.PodRunning, running, corev1.ContainerState{}), deleted: &deleted},
		"nothing is known":                   {},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: test.deleted}, Status: test.status}
			if got := provesEnd(pod, "pod_1"); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestTerminationLogIsSignedByTheFirstProcessOnly(t *testing.T) {
	for name, test := range map[string]struct {
		pid    int
		exists bool
		want   string
	}{
		"first of its namespace":   {1, true, "pod_1"},
		"beside others":            {7, true, "of a shell that was here before"},
		"outside of any container": {1, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "termination-log")
			if test.exists {
				if err := os.WriteFile(path, []byte("of a shell that was here before"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := SignTerminationLog(path, test.pid, "pod_1"); err != nil {
				t.Fatal(err)
			}
			content, err := os.ReadFile(path)
			if string(content) != test.want || (err == nil) != test.exists {
				t.Errorf("it has %q, %v", content, err)
			}
		})
	}
}

// TestLeaseOfAProcessThatHasEndedCountsAsReleased, and its last change may have been just
// before.
func TestLeaseOfAProcessThatHasEndedCountsAsReleased(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	holder, seconds := "pod_1", int32(15)
	for name, ended := range map[string]string{"the holder": "pod_1", "another": "pod_0"} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}})
			lock := &Lock{now: func() time.Time { return at }, Timeout: time.Minute, Turns: func() {}, HasEnded: func(identity string) bool { return identity == ended }, LeaseLock: resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: "next"},
			}}
			record, _, err := lock.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if released := record.HolderIdentity == ""; released != (ended == holder) {
				t.Errorf("held by %q", record.HolderIdentity)
			}
			if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "next", LeaseDurationSeconds: 15}); err != nil {
				t.Fatal(err)
			}
			if got := lock.LastChange(); !got.Equal(at) {
				t.Errorf("the last change was at %s", got)
			}
		})
	}
}
