package native

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// templateName is the name of the PodTemplate in deploy/. The admission policy there
// compares the pods with it.
const templateName = "grow"

// runner runs pods on the nodes where native volumes are mounted.
type runner struct {
	podrun.Runner
	timeout time.Duration
}

// grown has a pod grow the volume's filesystem on its node, and returns what the pod says.
// A filesystem that has the size already stays as it is. stays is set if the pod could not
// be deleted.
func (r *runner) grown(ctx context.Context, v *volume) (grown wire.Grown, err, stays error) {
	started, err := r.start(ctx, v)
	if err != nil {
		return wire.Grown{}, err, nil
	}
	r.Say(fmt.Sprintf("pod %s/%s works on node %s", r.Namespace, started.Name, v.node))
	grown, err = r.result(ctx, v, started)
	// The command may have been told to stop.
	return grown, err, r.Remove(context.WithoutCancel(ctx), started)
}

// result waits for the pod, and returns what it says if the filesystem has grown.
func (r *runner) result(ctx context.Context, v *volume, started *corev1.Pod) (grown wire.Grown, err error) {
	pod, err := r.Ended(ctx, started)
	if err != nil {
		return wire.Grown{}, err
	}
	said, why := r.Said(pod)
	notJSON := json.Unmarshal([]byte(said), &grown)
	switch {
	case notJSON == nil && grown.Error != "":
		return wire.Grown{}, fmt.Errorf("node %s: %s", v.node, grown.Error)
	case pod.Status.Phase != corev1.PodSucceeded, notJSON != nil:
		return wire.Grown{}, fmt.Errorf("node %s: %s", v.node, why)
	case grown.Bytes < v.Bytes:
		return wire.Grown{}, fmt.Errorf("node %s: the device has %d bytes, and the PersistentVolume %d", v.node, grown.Bytes, v.Bytes)
	}
	return grown, nil
}

// start creates the pod.
func (r *runner) start(ctx context.Context, v *volume) (*corev1.Pod, error) {
	template, err := r.Client.CoreV1().PodTemplates(r.Namespace).Get(ctx, templateName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("namespace %s has no PodTemplate %s: the component node-grow is not installed there (Helm: nodeGrow.enabled); install it, or give --pod-namespace", r.Namespace, templateName)
	}
	if err != nil {
		return nil, withRights(err)
	}
	if len(template.Template.Spec.Containers) != 1 {
		return nil, fmt.Errorf("PodTemplate %s/%s has %d containers instead of one; install the component node-grow of this version", r.Namespace, templateName, len(template.Template.Spec.Containers))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: templateName + "-" + string(v.claim.UID), Labels: template.Template.Labels}, Spec: template.Template.Spec}
	pod.Spec.NodeName = v.node
	container := &pod.Spec.Containers[0]
	r.Container = container.Name
	container.Args = slices.Concat(container.Args, v.Arguments())
	return r.Start(ctx, pod)
}
