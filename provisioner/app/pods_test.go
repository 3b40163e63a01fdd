package app

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

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

// TestEvictedPodsHideNoOthers: the API server keeps thousands of them, and lists them by name.
func TestEvictedPodsHideNoOthers(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		list, selector := &corev1.PodList{}, action.(clienttesting.ListAction).GetListRestrictions().Fields
		limit := action.(clienttesting.ListActionImpl).ListOptions.Limit
		for n := range 60 {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%02d", n), Labels: map[string]string{"app.kubernetes.io/name": "standalone-cinder", "app.kubernetes.io/component": "provisioner"}}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}
			if n == 59 {
				pod.Status.Phase = corev1.PodRunning
			}
			if selector.Matches(fields.Set{"status.phase": string(pod.Status.Phase)}) && int64(len(list.Items)) < limit {
				list.Items = append(list.Items, pod)
			}
		}
		return true, list, nil
	})
	p := &pods{replica: &replica{client: client, identity: "p-59_1"}}
	p.look(t.Context())
	if got := p.result(false); len(got) != 1 || got[0].Name != "p-59" {
		t.Errorf("got %+v", got)
	}
}
