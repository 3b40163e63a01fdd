package app

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

const (
	// lookAtPods is how often a leader lists the program's pods for its report.
	lookAtPods = 10 * time.Second
	// maxPods bounds the list.
	maxPods = 50
	// labelsOfPods are those that deploy/ gives the pods, and containerOfPods is the
	// container that runs the program there. labelOfInstallation tells installations in
	// one namespace apart.
	labelsOfPods        = "app.kubernetes.io/name=standalone-cinder,app.kubernetes.io/component=provisioner"
	containerOfPods     = "standalone-cinder"
	labelOfInstallation = "app.kubernetes.io/instance"
)

// pods knows the pods that run the program, so that a report shows a rollout that does not
// end. It is a feature of a term: one replica asks for all.
type pods struct {
	*replica
	last atomic.Pointer[[]statusreport.Pod]
}

// Run lists the pods until the context ends.
func (p *pods) Run(ctx context.Context) {
	wait.UntilWithContext(ctx, p.look, lookAtPods)
}

// look lists the pods once. A list that fails shows nothing instead of what was true before.
func (p *pods) look(ctx context.Context) {
	ctx, end := context.WithTimeout(ctx, lookAtPods)
	defer end()
	// Thousands of evicted pods may be left, and would fill the list.
	list, err := p.client.CoreV1().Pods(p.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelsOfPods, FieldSelector: "status.phase!=Succeeded,status.phase!=Failed", Limit: maxPods})
	if err != nil {
		p.last.Store(nil)
		return
	}
	found := podsOf(list.Items, wiring.PodOf(p.identity))
	p.last.Store(&found)
}

// podsOf describes the pods of the installation to which a pod belongs.
func podsOf(all []corev1.Pod, own string) []statusreport.Pod {
	var installation string
	for _, pod := range all {
		if pod.Name == own {
			installation = pod.Labels[labelOfInstallation]
		}
	}
	var found []statusreport.Pod
	for _, pod := range all {
		if pod.Labels[labelOfInstallation] != installation || objects.IsFinished(&pod) {
			continue
		}
		one := statusreport.Pod{Name: pod.Name, Node: pod.Spec.NodeName, Ending: pod.DeletionTimestamp != nil, Created: inSeconds(pod.CreationTimestamp.Time)}
		for _, container := range pod.Spec.Containers {
			if container.Name == containerOfPods {
				one.Image = container.Image
			}
		}
		for _, condition := range pod.Status.Conditions {
			one.Ready = one.Ready || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		}
		for _, container := range pod.Status.ContainerStatuses {
			one.Restarts += container.RestartCount
		}
		found = append(found, one)
	}
	slices.SortFunc(found, func(x, y statusreport.Pod) int { return strings.Compare(x.Name, y.Name) })
	return found
}

// result returns the pods that were seen last; none for those who ask about a part of the
// cluster.
func (p *pods) result(selected bool) []statusreport.Pod {
	if last := p.last.Load(); last != nil && !selected {
		return *last
	}
	return nil
}
