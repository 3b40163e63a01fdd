package grow

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// templateName is the name of the PodTemplate in deploy/. The admission policy there
// compares the pods with it.
const templateName = "grow"

const (
	// deletionLimit bounds the wait for the end of a pod that is deleted.
	deletionLimit = 45 * time.Second
	// statusLimit bounds the wait for the running program.
	statusLimit = 2 * time.Minute
)

// grower grows the filesystem of one claim.
type grower struct {
	client kubernetes.Interface
	// namespace is where the pods run.
	namespace string
	timeout   time.Duration
	pause     time.Duration
	say       func(string)
}

func (g *grower) grow(ctx context.Context, namespace, name string) error {
	ctx, end := context.WithTimeout(ctx, g.timeout)
	defer end()
	v, err := g.read(ctx, namespace, name)
	if err != nil {
		return err
	}
	started, err := g.start(ctx, v)
	if err != nil {
		return err
	}
	g.say(fmt.Sprintf("pod %s/%s grows it on node %s", g.namespace, started.Name, v.node))
	grown, err := g.result(ctx, v, started)
	// The command may have been told to stop.
	stays := g.remove(context.WithoutCancel(ctx), started)
	if err == nil {
		// What has grown is confirmed even if the pod stays.
		g.say(fmt.Sprintf("grew the %s filesystem on %s (%s) of node %s to %s", grown.Filesystem, grown.Device, strings.Join(grown.Paths, ", "), v.node, v.size.String()))
		err = g.confirm(ctx, v)
	}
	return errors.Join(err, stays)
}

// result waits for the pod, and returns what it says if the filesystem has grown.
func (g *grower) result(ctx context.Context, v *volume, started *corev1.Pod) (grown wire.Grown, err error) {
	pod, err := g.ended(ctx, started)
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
func (g *grower) start(ctx context.Context, v *volume) (*corev1.Pod, error) {
	template, err := g.client.CoreV1().PodTemplates(g.namespace).Get(ctx, templateName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s has no PodTemplate %s: the component node-grow is not installed there (Helm: nodeGrow.enabled); install it, or give --pod-namespace", g.namespace, templateName)
	}
	if err != nil {
		return nil, withRights(err)
	}
	if len(template.Template.Spec.Containers) != 1 {
		return nil, fmt.Errorf("PodTemplate %s/%s has %d containers instead of one; install the component node-grow of this version", g.namespace, templateName, len(template.Template.Spec.Containers))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: templateName + "-" + string(v.claim.UID), Labels: template.Template.Labels}, Spec: template.Template.Spec}
	pod.Spec.NodeName = v.node
	container := &pod.Spec.Containers[0]
	container.Args = slices.Concat(container.Args, v.Arguments())
	// Whether there is a pod to delete must be known, even if the command is told to stop.
	created, err := g.client.CoreV1().Pods(g.namespace).Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return created, err
	}
	other, err := g.client.CoreV1().Pods(g.namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, err
	case !objects.IsFinished(other):
		return nil, fmt.Errorf("pod %s/%s of another call has been working on it since %s; wait for it, or delete the pod", g.namespace, pod.Name, other.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	// A call that was killed has left it.
	if err := g.remove(ctx, other); err != nil {
		return nil, err
	}
	return g.client.CoreV1().Pods(g.namespace).Create(context.WithoutCancel(ctx), pod, metav1.CreateOptions{})
}

// ended waits for the end of a pod, and says what it waits for.
func (g *grower) ended(ctx context.Context, of *corev1.Pod) (*corev1.Pod, error) {
	told := ""
	for {
		pod, err := g.client.CoreV1().Pods(g.namespace).Get(ctx, of.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			return nil, err
		case err == nil && pod.UID != of.UID:
			return nil, fmt.Errorf("pod %s/%s was deleted, and replaced by another", g.namespace, of.Name)
		case err == nil && objects.IsFinished(pod):
			return pod, nil
		case err == nil && len(pod.Status.ContainerStatuses) == 1:
			if waits := pod.Status.ContainerStatuses[0].State.Waiting; waits != nil && waits.Reason != told {
				told = waits.Reason
				g.say("the pod waits: " + strings.TrimSpace(waits.Reason+" "+waits.Message))
			}
		}
		if err := g.wait(ctx); err != nil {
			return nil, fmt.Errorf("the pod has not ended on node %s (%s): %w", of.Spec.NodeName, cmp.Or(told, "it has not begun, or works"), err)
		}
	}
}

// remove deletes a pod, and waits until it is gone.
func (g *grower) remove(ctx context.Context, pod *corev1.Pod) error {
	ctx, end := context.WithTimeout(ctx, deletionLimit)
	defer end()
	pods := g.client.CoreV1().Pods(g.namespace)
	err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	for err == nil {
		var now *corev1.Pod
		if now, err = pods.Get(ctx, pod.Name, metav1.GetOptions{}); err == nil && now.UID != pod.UID {
			return nil
		}
		if err == nil {
			err = g.wait(ctx)
		}
	}
	// A conflict means that another pod has the name.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("pod %s/%s is not deleted; delete it once its node answers: %w", g.namespace, pod.Name, err)
}

// confirm records the size on the claim, and waits until the running program has seen it.
func (g *grower) confirm(ctx context.Context, v *volume) error {
	claims := g.client.CoreV1().PersistentVolumeClaims(v.claim.Namespace)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": v.claim.UID, "annotations": map[string]string{objects.AnnotationFilesystemGrown: v.size.String()},
	}})
	if err == nil {
		_, err = claims.Patch(ctx, v.claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("the filesystem has grown, but its size is not recorded; run the command again: %w", err)
	}
	ctx, end := context.WithTimeout(ctx, statusLimit)
	defer end()
	for {
		claim, err := claims.Get(ctx, v.claim.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && claim.UID != v.claim.UID:
			return errors.New("the filesystem has grown, but meanwhile the claim was deleted, or replaced by another")
		case err == nil:
			if has := storage(claim.Status.Capacity); has.Cmp(v.size) >= 0 {
				g.say(fmt.Sprintf("claim %s/%s has %s", claim.Namespace, claim.Name, has.String()))
				return nil
			}
		}
		if stopped := g.wait(ctx); stopped != nil {
			return fmt.Errorf("the filesystem has grown, and the claim records it, but its status does not show %s yet; see kubectl cinder why %s -n %s: %w", v.size.String(), v.claim.Name, v.claim.Namespace, errors.Join(err, stopped))
		}
	}
}

func (g *grower) wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(g.pause):
		return nil
	}
}
