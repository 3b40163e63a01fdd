package integration

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// shortLease makes a follower take over from a killed leader within seconds. A
// busy machine can still delay a renewal for longer, so a test that does not
// kill its leader must expect another one.
var shortLease = []string{"--lease-duration=5s", "--renew-deadline=4s", "--retry-period=500ms"}

func TestOneOfThreeReplicasProvisions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "three", cindersim.Options{})
	replicas := w.startThree()
	leader := w.leader(replicas)
	for i := range 5 {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	_, err := suite.WaitBound(w.ctx, "three-a", 5)
	w.must(err)
	leaders := 0
	for _, replica := range replicas {
		if replica.Leads(w.ctx) {
			leaders++
		}
	}
	if leaders != 1 || !leader.Leads(w.ctx) {
		t.Errorf("%d replicas lead", leaders)
	}
	for i, replica := range replicas {
		for _, path := range []string{"/healthz", "/readyz", "/metrics", "/"} {
			if status, _, err := replica.Get(w.ctx, path); err != nil || status != 200 {
				t.Errorf("replica %d answers %s with %d, %v", i, path, status, err)
			}
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "three-a"))
	w.noResidue()
}

//tier:oldest
//tier:outage
func TestKilledLeaderLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "kill", cindersim.Options{CreateDelay: time.Second, Latency: 20 * time.Millisecond})
	replicas := w.startThree(shortLease...)
	leader := w.leader(replicas)
	const claims = 50
	for i := range claims {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n < claims/3 {
			return fmt.Sprintf("only %d volumes were begun", n), nil
		}
		return "", nil
	}))
	leader.Kill()
	_, err := suite.WaitBound(w.ctx, "kill-a", claims)
	w.must(err)
	if n := len(w.sim.Volumes()); n != claims {
		t.Errorf("%d volumes for %d claims", n, claims)
	}
	w.must(suite.DeleteClaims(w.ctx, "kill-a"))
	w.noResidue()
}

//tier:oldest
//tier:outage
func TestStoppedLeaderHandsOver(t *testing.T) {
	t.Parallel()
	// Volumes take long, so that the leader is stopped while it waits for them.
	w := newWorld(t, "hand", cindersim.Options{CreateDelay: 4 * time.Second})
	replicas := w.startThree()
	leader := w.leader(replicas)
	const claims = 20
	for i := range claims {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n < claims {
			return fmt.Sprintf("only %d volumes were begun", n), nil
		}
		return "", nil
	}))
	stopping, cancel := context.WithTimeout(w.ctx, 25*time.Second)
	defer cancel()
	w.must(leader.Stop(stopping))
	lease, err := suite.Client.CoordinationV1().Leases(harness.Namespace).Get(w.ctx, "test.example-hand", metav1.GetOptions{})
	w.must(err)
	if holder := lease.Spec.HolderIdentity; holder != nil && *holder != "" && lease.Spec.LeaseDurationSeconds != nil && *lease.Spec.LeaseDurationSeconds > 1 {
		// Another replica may already hold the lease; the ended one must not.
		if next := w.leader(replicas); next == leader {
			t.Errorf("the lease is still held by %s", *holder)
		}
	}
	_, err = suite.WaitBound(w.ctx, "hand-a", claims)
	w.must(err)
	if n := len(w.sim.Volumes()); n != claims {
		t.Errorf("%d volumes for %d claims", n, claims)
	}
	events, err := suite.Client.CoreV1().Events("hand-a").List(w.ctx, metav1.ListOptions{})
	w.must(err)
	for _, event := range events.Items {
		if event.Reason == "ProvisioningFailed" {
			t.Errorf("handing over wrote an event: %s", event.Message)
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "hand-a"))
	w.noResidue()
}

// longLease would not expire during a test.
var longLease = []string{"--lease-duration=20m", "--renew-deadline=10m", "--retry-period=500ms"}

// TestDeadLeaderIsReplacedBeforeItsLeaseExpires: a pod's status proves that the leader is
// dead, while a pod that is gone, or that Kubernetes gave up with its node, proves nothing.
func TestDeadLeaderIsReplacedBeforeItsLeaseExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "dead", cindersim.Options{})
	replicas := w.startThree(longLease...)
	leader := w.leader(replicas)
	w.claim("a", "before", "gold", "1Gi")
	_, err := suite.WaitBound(w.ctx, "dead-a", 1)
	w.must(err)
	dead, err := suite.Leader(w.ctx, w.provisioner)
	w.must(err)
	w.must(leader.Signal(syscall.SIGSTOP))
	w.claim("a", "after", "gold", "1Gi")
	lost := corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeLost", Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByPodGC"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "standalone-cinder", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated"}}}}}
	w.must(suite.ReportPod(w.ctx, w.provisioner, dead, lost))
	w.must(suite.Client.CoreV1().Pods(harness.Namespace).Delete(w.ctx, wiring.PodOf(dead), *metav1.NewDeleteOptions(0)))
	w.must(suite.ReportPod(w.ctx, w.provisioner, dead, harness.Ended("another process")))
	if holder, err := suite.Leader(w.ctx, w.provisioner); err != nil || holder != dead {
		t.Fatalf("%s holds the lease of a process that is only paused, %v", holder, err)
	}
	leader.Kill()
	w.must(suite.ReportPod(w.ctx, w.provisioner, dead, harness.Ended(dead)))
	reported := time.Now()
	_, err = suite.WaitBound(w.ctx, "dead-a", 2)
	w.must(err)
	t.Logf("a claim is Bound %s after the leader's end was reported", time.Since(reported).Round(10*time.Millisecond))
	if next := w.leader(replicas); next == leader {
		t.Error("nobody has replaced the dead leader")
	}
	w.must(suite.Client.CoreV1().Pods(harness.Namespace).Delete(w.ctx, wiring.PodOf(dead), *metav1.NewDeleteOptions(0)))
	w.must(suite.DeleteClaims(w.ctx, "dead-a"))
	w.noResidue()
}

// TestRestartedContainerLeadsBeforeTheLeaseOfItsPredecessorExpires: there may be one
// replica only. It waits for reads that lag, unless the other had changed nothing.
func TestRestartedContainerLeadsBeforeTheLeaseOfItsPredecessorExpires(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]string{"atwork": "", "atrest": " settled after 2s"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, name, cindersim.Options{})
			start := func() *harness.Replica {
				replica, err := suite.StartReplica(w.ctx, harness.ReplicaOptions{
					Policy: w.policy, Clouds: w.clouds, Provisioner: w.provisioner, Arguments: longLease, Environment: []string{"POD_NAME=" + name},
				})
				w.must(err)
				w.Cleanup(replica.Kill)
				return replica
			}
			first := start()
			w.leader([]*harness.Replica{first})
			dead, err := suite.Leader(w.ctx, w.provisioner)
			w.must(err)
			first.Kill()
			w.must(suite.ReportPod(w.ctx, w.provisioner, dead, harness.Ended(dead+mark)))
			start()
			started := time.Now()
			w.claim("a", "data", "gold", "1Gi")
			_, err = suite.WaitBound(w.ctx, name+"-a", 1)
			w.must(err)
			t.Logf("a claim is Bound %s after the process was started again", time.Since(started).Round(10*time.Millisecond))
			w.must(suite.Client.CoreV1().Pods(harness.Namespace).Delete(w.ctx, wiring.PodOf(dead), *metav1.NewDeleteOptions(0)))
			w.must(suite.DeleteClaims(w.ctx, name+"-a"))
			w.noResidue()
		})
	}
}

//tier:outage
func TestPausedLeaderChangesNothingUntilItLeadsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pause", cindersim.Options{CreateDelay: 500 * time.Millisecond})
	replicas := w.startThree(shortLease...)
	leader := w.leader(replicas)
	const claims = 20
	for i := range claims {
		w.claim("a", fmt.Sprintf("data-%d", i), "gold", "1Gi")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if n := len(w.sim.Volumes()); n < 3 {
			return fmt.Sprintf("only %d volumes were begun", n), nil
		}
		return "", nil
	}))
	w.must(leader.Signal(syscall.SIGSTOP))
	_, err := suite.WaitBound(w.ctx, "pause-a", claims)
	w.must(err)
	w.must(leader.Signal(syscall.SIGCONT))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if leader.Leads(w.ctx) {
			return "the paused replica still believes that it leads", nil
		}
		return "", nil
	}))
	if n := len(w.sim.Volumes()); n != claims {
		t.Errorf("%d volumes for %d claims", n, claims)
	}

	// A replica can lead more than once: the others go, the paused one is left.
	for _, replica := range replicas {
		if replica != leader {
			replica.Kill()
		}
	}
	w.claim("a", "again", "gold", "1Gi")
	_, err = suite.WaitBound(w.ctx, "pause-a", claims+1)
	w.must(err)
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if !leader.Leads(w.ctx) {
			return "a claim was bound and nobody leads", nil
		}
		return "", nil
	}))
	w.must(suite.DeleteClaims(w.ctx, "pause-a"))
	w.noResidue()
}

func (w *world) startThree(arguments ...string) []*harness.Replica {
	w.Helper()
	replicas := make([]*harness.Replica, 3)
	for i := range replicas {
		replicas[i] = w.start(arguments...)
	}
	return replicas
}

// leader waits until one of the replicas leads.
func (w *world) leader(replicas []*harness.Replica) *harness.Replica {
	w.Helper()
	var leader *harness.Replica
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		for _, replica := range replicas {
			if replica.Leads(w.ctx) {
				leader = replica
				return "", nil
			}
		}
		return "no replica leads", nil
	}))
	return leader
}
