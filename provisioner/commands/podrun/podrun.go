// Package podrun runs one pod to its end, for a command: what only a node can do.
package podrun

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// deletionLimit bounds the wait for the end of a pod that is deleted.
const deletionLimit = 45 * time.Second

// logEvery is how often the last line of a pod's log is read.
const logEvery = 15 * time.Second

// Runner runs pods with one container in a namespace.
type Runner struct {
	Client    kubernetes.Interface
	Namespace string
	// Pause is how often it looks.
	Pause time.Duration
	// Patience bounds the wait for a pod to begin; 0 for no bound.
	Patience time.Duration
	// Say tells what the pod waits for and, with Logs, what it writes.
	Say  func(string)
	Logs bool
	// Container is the name of the pod's container. Others may put more into the pod.
	Container string
}

// Start creates a pod. Its name lets only one call at a time work on the same thing. A pod that
// a killed call has left is replaced once it has ended, or if it waits for its call to let it
// begin.
func (r *Runner) Start(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pods := r.Client.CoreV1().Pods(r.Namespace)
	other, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, err
	case !contains(other.Labels, pod.Labels):
		return nil, fmt.Errorf("pod %s/%s was not made for this; delete it", r.Namespace, pod.Name)
	case !IsReplaceable(other):
		return nil, fmt.Errorf("pod %s/%s of another call has been working on it since %s; wait for it, or delete the pod", r.Namespace, pod.Name, other.CreationTimestamp.UTC().Format(time.RFC3339))
	default:
		if err := r.Remove(ctx, other); err != nil {
			return nil, err
		}
	}
	// Whether there is a pod to delete must be known, even if the command is told to stop.
	created, err := pods.Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
	if status, ok := errors.AsType[*apierrors.StatusError](err); err == nil || ok && status.ErrStatus.Code < http.StatusInternalServerError {
		return created, err
	}
	// Without an answer, the pod may be there, or one of another call. Annotations tell them apart.
	if unanswered, getErr := pods.Get(context.WithoutCancel(ctx), pod.Name, metav1.GetOptions{}); getErr == nil && contains(unanswered.Annotations, pod.Annotations) {
		err = errors.Join(err, r.Remove(context.WithoutCancel(ctx), unanswered))
	}
	return nil, err
}

// contains reports whether one map has all of another.
func contains(all, some map[string]string) bool {
	for key, value := range some {
		if all[key] != value {
			return false
		}
	}
	return true
}

// IsReplaceable reports whether a pod does nothing, and will not by itself.
func IsReplaceable(pod *corev1.Pod) bool {
	return objects.IsFinished(pod) || len(pod.Spec.SchedulingGates) > 0
}

// Ended waits for the end of a pod, and says what it waits for.
func (r *Runner) Ended(ctx context.Context, of *corev1.Pod) (*corev1.Pod, error) {
	told, node, logged, last := "", of.Spec.NodeName, time.Now(), time.Now() // what it waits for, and since when
	for {
		pod, err := r.Client.CoreV1().Pods(r.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return nil, err
		case err == nil && pod.UID != of.UID:
			return nil, fmt.Errorf("pod %s/%s was deleted, and replaced by another", r.Namespace, of.Name)
		case err == nil && objects.IsFinished(pod):
			return pod, nil
		case err == nil:
			node = pod.Spec.NodeName
			reason, message := r.waitsFor(pod)
			if reason != "" && reason != told {
				told = reason
				r.Say("the pod waits: " + strings.TrimSpace(reason+" "+message))
			}
			switch {
			case reason == "" && pod.Status.Phase == corev1.PodRunning:
				last = time.Now() // it works
			case r.Patience > 0 && time.Since(last) > r.Patience:
				return nil, fmt.Errorf("pod %s/%s has waited for %s: %s", r.Namespace, of.Name, r.Patience, cmp.Or(strings.TrimSpace(reason+" "+message), "nothing says for what"))
			}
			if r.Logs && pod.Status.Phase == corev1.PodRunning && time.Since(logged) > logEvery {
				logged = time.Now()
				r.sayLast(ctx, pod)
			}
		}
		if err := r.Wait(ctx); err != nil {
			return nil, fmt.Errorf("the pod has not ended on node %s (%s): %w", cmp.Or(node, "any"), cmp.Or(told, "it has not begun, or works"), err)
		}
	}
}

// status returns what is known of the pod's own container.
func (r *Runner) status(pod *corev1.Pod) (own corev1.ContainerState) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == r.Container {
			return status.State
		}
	}
	return corev1.ContainerState{}
}

// waitsFor returns why a pod does not run, or does not end.
func (r *Runner) waitsFor(pod *corev1.Pod) (reason, message string) {
	own := r.status(pod)
	for _, other := range pod.Status.ContainerStatuses {
		if own.Terminated != nil && other.State.Running != nil {
			return "its end:", fmt.Sprintf("container %s has ended, and container %s, which somebody put into the pod, has not", r.Container, other.Name)
		}
	}
	switch {
	case pod.DeletionTimestamp != nil:
		return "its node:", fmt.Sprintf("the pod is being deleted, and node %s has not ended it", pod.Spec.NodeName)
	case own.Waiting != nil:
		return own.Waiting.Reason, own.Waiting.Message
	}
	for _, condition := range pod.Status.Conditions {
		// The condition of a gate may outlast it.
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && (condition.Reason != corev1.PodReasonSchedulingGated || len(pod.Spec.SchedulingGates) > 0) {
			return condition.Reason, condition.Message
		}
	}
	return "", ""
}

// sayLast says the last line of a pod's log. That it cannot be read matters to nobody.
func (r *Runner) sayLast(ctx context.Context, pod *corev1.Pod) {
	log, err := r.Client.CoreV1().Pods(r.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: new(int64(1)), LimitBytes: new(int64(1000))}).Stream(ctx)
	if err != nil {
		return
	}
	defer func() { _ = log.Close() }()
	if lines := bufio.NewScanner(log); lines.Scan() {
		r.Say(lines.Text())
	}
}

// Said returns the termination message of a pod, and why it ended without one.
func (r *Runner) Said(pod *corev1.Pod) (message, why string) {
	ended := r.status(pod).Terminated
	if ended != nil {
		message, why = ended.Message, ended.Reason
	}
	return message, fmt.Sprintf("the pod ended as %s without a result: %s", pod.Status.Phase, cmp.Or(message, strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message), why, "it says nothing"))
}

// Remove deletes a pod, and waits until it is gone.
func (r *Runner) Remove(ctx context.Context, pod *corev1.Pod) error {
	ctx, end := context.WithTimeout(ctx, deletionLimit)
	defer end()
	pods := r.Client.CoreV1().Pods(r.Namespace)
	err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	for err == nil {
		var now *corev1.Pod
		if now, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err == nil && now.UID != pod.UID {
			return nil
		}
		if err == nil {
			err = r.Wait(ctx)
		}
	}
	// A conflict means that another pod has the name.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("pod %s/%s is not deleted; delete it once its node answers: %w", r.Namespace, pod.Name, err)
}

// Wait waits for a pause.
func (r *Runner) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.Pause):
		return nil
	}
}
