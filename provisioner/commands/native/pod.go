package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// templateName is the name of the PodTemplate in deploy/. The admission policy there
// compares the pods with it.
const templateName = "grow"

// deletionLimit bounds the wait for the end of a pod that is deleted.
const deletionLimit = 45 * time.Second

// runner runs pods on the nodes where native volumes are mounted.
type runner struct {
	client kubernetes.Interface
	// namespace is where the pods run.
	namespace string
	timeout   time.Duration
	pause     time.Duration
	say       func(string)
}

// grown has a pod grow the volume's filesystem on its node, and returns what the pod says.
// A filesystem that has the size already stays as it is. stays is set if the pod could not
// be deleted.
func (r *runner) grown(ctx context.Context, v *volume) (grown wire.Grown, err, stays error) {
	started, err := r.start(ctx, v)
	if err != nil {
		return wire.Grown{}, err, nil
	}
	r.say(fmt.Sprintf("pod %s/%s works on node %s", r.namespace, started.Name, v.node))
	grown, err = r.result(ctx, v, started)
	// The command may have been told to stop.
	return grown, err, r.remove(context.WithoutCancel(ctx), started)
}

// result waits for the pod, and returns what it says if the filesystem has grown.
func (r *runner) result(ctx context.Context, v *volume, started *corev1.Pod) (grown wire.Grown, err error) {
	pod, err := r.ended(ctx, started)
	if err != nil {
		return wire.Grown{}, err
	}
	var said string
	if all := pod.Status.ContainerStatuses; len(all) == 1 && all[0].State.Terminated != nil {
		said = all[0].State.Terminated.Message
	}
	notJSON := json.Unmarshal([]byte(said), &grown)
	switch {
	case notJSON == nil && grown.Error != "":
		return wire.Grown{}, fmt.Errorf("node %s: %s", v.node, grown.Error)
	case pod.Status.Phase != corev1.PodSucceeded, notJSON != nil:
		return wire.Grown{}, fmt.Errorf("node %s: the pod ended as %s without a result: %s", v.node, pod.Status.Phase, cmp.Or(said, strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message), "it says nothing"))
	case grown.Bytes < v.Bytes:
		return wire.Grown{}, fmt.Errorf("node %s: the device has %d bytes, and the PersistentVolume %d", v.node, grown.Bytes, v.Bytes)
	}
	return grown, nil
}

// start creates the pod. Its name lets only one call at a time work on a claim.
func (r *runner) start(ctx context.Context, v *volume) (*corev1.Pod, error) {
	template, err := r.client.CoreV1().PodTemplates(r.namespace).Get(ctx, templateName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s has no PodTemplate %s: the component node-grow is not installed there (Helm: nodeGrow.enabled); install it, or give --pod-namespace", r.namespace, templateName)
	}
	if err != nil {
		return nil, withRights(err)
	}
	if len(template.Template.Spec.Containers) != 1 {
		return nil, fmt.Errorf("PodTemplate %s/%s has %d containers instead of one; install the component node-grow of this version", r.namespace, templateName, len(template.Template.Spec.Containers))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: templateName + "-" + string(v.claim.UID), Labels: template.Template.Labels}, Spec: template.Template.Spec}
	pod.Spec.NodeName = v.node
	container := &pod.Spec.Containers[0]
	container.Args = slices.Concat(container.Args, v.Arguments())
	// Whether there is a pod to delete must be known, even if the command is told to stop.
	created, err := r.client.CoreV1().Pods(r.namespace).Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
	if err == nil {
		return created, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		// Without an answer, the pod may be there.
		if unanswered, getErr := r.client.CoreV1().Pods(r.namespace).Get(context.WithoutCancel(ctx), pod.Name, metav1.GetOptions{}); getErr == nil {
			err = errors.Join(err, r.remove(context.WithoutCancel(ctx), unanswered))
		}
		return nil, err
	}
	other, err := r.client.CoreV1().Pods(r.namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, err
	case !objects.IsFinished(other):
		return nil, fmt.Errorf("pod %s/%s of another call has been working on it since %s; wait for it, or delete the pod", r.namespace, pod.Name, other.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	// A call that was killed has left it.
	if err := r.remove(ctx, other); err != nil {
		return nil, err
	}
	return r.client.CoreV1().Pods(r.namespace).Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
}

// ended waits for the end of a pod, and says what it waits for.
func (r *runner) ended(ctx context.Context, of *corev1.Pod) (*corev1.Pod, error) {
	told := ""
	for {
		pod, err := r.client.CoreV1().Pods(r.namespace).Get(ctx, of.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return nil, err
		case err == nil && pod.UID != of.UID:
			return nil, fmt.Errorf("pod %s/%s was deleted, and replaced by another", r.namespace, of.Name)
		case err == nil && objects.IsFinished(pod):
			return pod, nil
		case err == nil && len(pod.Status.ContainerStatuses) == 1:
			if waits := pod.Status.ContainerStatuses[0].State.Waiting; waits != nil && waits.Reason != told {
				told = waits.Reason
				r.say("the pod waits: " + strings.TrimSpace(waits.Reason+" "+waits.Message))
			}
		}
		if err := r.wait(ctx); err != nil {
			return nil, fmt.Errorf("the pod has not ended on node %s (%s): %w", of.Spec.NodeName, cmp.Or(told, "it has not begun, or works"), err)
		}
	}
}

// remove deletes a pod, and waits until it is gone.
func (r *runner) remove(ctx context.Context, pod *corev1.Pod) error {
	ctx, end := context.WithTimeout(ctx, deletionLimit)
	defer end()
	pods := r.client.CoreV1().Pods(r.namespace)
	err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	for err == nil {
		var now *corev1.Pod
		if now, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err == nil && now.UID != pod.UID {
			return nil
		}
		if err == nil {
			err = r.wait(ctx)
		}
	}
	// A conflict means that another pod has the name.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("pod %s/%s is not deleted; delete it once its node answers: %w", r.namespace, pod.Name, err)
}

func (r *runner) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.pause):
		return nil
	}
}
