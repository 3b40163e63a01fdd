package podrun

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func podOf(phase corev1.PodPhase, states ...corev1.ContainerState) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "copy", UID: "1"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "copy"}}}, Status: corev1.PodStatus{Phase: phase}}
	for i, state := range states {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: []string{"copy", "istio-proxy"}[i], State: state})
	}
	return pod
}

// TestAPodThatWasKilledSaysWhy: the pod that copies has a limit of memory.
func TestAPodThatWasKilledSaysWhy(t *testing.T) {
	_, why := (&Runner{Container: "copy"}).Said(podOf(corev1.PodFailed, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137}}))
	if !strings.Contains(why, "OOMKilled") {
		t.Errorf("%q", why)
	}
}

// TestAPodIsNotAwaitedForASidecar: a namespace whose pods get a sidecar, by a mutating
// webhook, has pods that never end.
func TestAPodIsNotAwaitedForASidecar(t *testing.T) {
	pod := podOf(corev1.PodRunning, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "{}"}}, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	r := Runner{Client: fake.NewClientset(pod), Namespace: "team-a", Pause: time.Millisecond, Patience: 50 * time.Millisecond, Say: func(string) {}, Container: "copy"}
	ctx, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	if _, err := r.Ended(ctx, pod); ctx.Err() != nil {
		t.Errorf("the container has ended, and its pod is awaited for good: %v", err)
	}
}

// TestAPodOfAnotherCallStaysIfNoneCanBeMade: quotas and webhooks deny a pod before the API
// server looks whether there is one.
func TestAPodOfAnotherCallStaysIfNoneCanBeMade(t *testing.T) {
	client := fake.NewClientset(podOf(corev1.PodRunning))
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "copy", nil)
	})
	r := Runner{Client: client, Namespace: "team-a", Pause: time.Millisecond, Say: func(string) {}}
	if _, err := r.Start(t.Context(), podOf("")); err == nil {
		t.Fatal("started")
	}
	if _, err := client.CoreV1().Pods("team-a").Get(t.Context(), "copy", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod of another call worked, and is deleted: %v", err)
	}
}

// TestAPodOfAnotherCallStaysIfNobodyAnswers: two calls begin at once. One makes its pod, and the
// other gets no answer.
func TestAPodOfAnotherCallStaysIfNobodyAnswers(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		if err := client.Tracker().Add(podOf(corev1.PodRunning)); err != nil {
			t.Error(err)
		}
		return true, nil, apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
	})
	r := Runner{Client: client, Namespace: "team-a", Pause: time.Millisecond, Say: func(string) {}}
	ours := podOf("")
	ours.Annotations = map[string]string{"run": "ours"}
	if _, err := r.Start(t.Context(), ours); err == nil {
		t.Fatal("started")
	}
	if _, err := client.CoreV1().Pods("team-a").Get(t.Context(), "copy", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod of another call works, and is deleted: %v", err)
	}
}

// TestAPodWhoseGateIsGoneIsNotSaidToWaitForIt: the scheduler takes a moment to say that a pod has
// no gate any more.
func TestAPodWhoseGateIsGoneIsNotSaidToWaitForIt(t *testing.T) {
	pod := podOf(corev1.PodPending)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated, Message: "Scheduling is blocked due to non-empty scheduling gates"}}
	r := Runner{Client: fake.NewClientset(pod), Namespace: "team-a", Pause: time.Millisecond, Patience: 20 * time.Millisecond, Say: func(text string) { t.Errorf("of a pod without gates, it says: %s", text) }, Container: "copy"}
	_, _ = r.Ended(t.Context(), pod)
}
