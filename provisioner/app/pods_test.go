package app

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// TestPodsOfOneInstallation: not those of another in the same namespace, nor those that
// have ended; the images of sidecars do not count.
func TestPodsOfOneInstallation(t *testing.T) {
	pod := func(name, installation, image string, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{labelOfInstallation: installation}},
			Spec: corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{
				{Name: "csi-attacher", Image: "attacher:v4"}, {Name: containerOfPods, Image: image},
			}},
			Status: status,
		}
	}
	ready := corev1.PodStatus{
		Phase:             corev1.PodRunning,
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{RestartCount: 2}, {RestartCount: 1}},
	}
	got := podsOf([]corev1.Pod{
		pod("b", "one", "program:v2", corev1.PodStatus{Phase: corev1.PodPending}),
		pod("a", "one", "program:v1", ready),
		pod("other", "two", "program:v0", ready),
		pod("evicted", "one", "program:v0", corev1.PodStatus{Phase: corev1.PodFailed}),
	}, "a")
	want := []statusreport.Pod{
		{Name: "a", Node: "node-1", Image: "program:v1", Ready: true, Restarts: 3},
		{Name: "b", Node: "node-1", Image: "program:v2"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
