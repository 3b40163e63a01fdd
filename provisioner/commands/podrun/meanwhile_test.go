package podrun

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

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
