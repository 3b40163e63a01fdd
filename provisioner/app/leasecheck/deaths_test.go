package leasecheck

import (
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
		want    End
	}{
		"its container has ended":            {status: status(corev1.PodRunning, terminated("containerd://1", "pod_1"), corev1.ContainerState{}), want: End{Proven: true}},
		"its container was started again":    {status: status(corev1.PodRunning, running, terminated("containerd://1", "pod_1")), want: End{Proven: true}},
		"the pod has ended":                  {status: status(corev1.PodFailed, terminated("containerd://1", "pod_1"), corev1.ContainerState{}), want: End{Proven: true}},
		"reads show all that it changed":     {status: status(corev1.PodRunning, terminated("containerd://1", "pod_1 settled after 2s"), corev1.ContainerState{}), want: End{Proven: true, Settled: true}},
		"reads may lag for longer":           {status: status(corev1.PodRunning, terminated("containerd://1", "pod_1 settled after 1s"), corev1.ContainerState{})},
		"its log was cut off":                {status: status(corev1.PodRunning, terminated("containerd://1", "pod_1 settled aft"), corev1.ContainerState{})},
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
			if got := endOf(pod, "pod_1", 2*time.Second); got != test.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestLeaseOfAProcessThatHasEndedCountsAsReleased, and its last change may have been just
// before, unless its end shows otherwise.
func TestLeaseOfAProcessThatHasEndedCountsAsReleased(t *testing.T) {
	at := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		end        End
		released   bool
		lastChange time.Time
	}{
		"nothing is known":           {End{}, false, at},
		"it has ended":               {End{Proven: true}, true, at},
		"it had changed nothing new": {End{Proven: true, Settled: true}, true, time.Unix(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			holder, seconds := "pod_1", int32(15)
			client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}})
			ends := map[string]End{holder: test.end}
			lock := &Lock{now: func() time.Time { return at }, Timeout: time.Minute, Turns: func() {}, EndOf: func(identity string) End { return ends[identity] }, LeaseLock: resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: "next"},
			}}
			record, _, err := lock.Get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if released := record.HolderIdentity == ""; released != test.released {
				t.Errorf("held by %q", record.HolderIdentity)
			}
			if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "next", LeaseDurationSeconds: 15}); err != nil {
				t.Fatal(err)
			}
			if got := lock.LastChange(); !got.Equal(test.lastChange) {
				t.Errorf("the last change was at %s", got)
			}
		})
	}
	t.Run("another took the lease since", func(t *testing.T) {
		dead, other, seconds := "pod_1", "pod_2", int32(15)
		client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &dead, LeaseDurationSeconds: &seconds}})
		lock := &Lock{now: func() time.Time { return at }, Timeout: time.Minute, Turns: func() {}, LeaseLock: resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: "next"},
		}, EndOf: func(identity string) End { return End{Proven: identity == dead, Settled: identity == dead} }}
		if _, _, err := lock.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		leases := client.CoordinationV1().Leases("own")
		lease, err := leases.Get(t.Context(), "lease", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.Spec.HolderIdentity = &other
		if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := lock.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "next", LeaseDurationSeconds: 15}); err != nil {
			t.Fatal(err)
		}
		if got := lock.LastChange(); !got.Equal(at) {
			t.Errorf("the last change was at %s", got)
		}
	})
}
