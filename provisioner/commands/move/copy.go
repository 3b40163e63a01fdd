package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// copying is one move, from the copy to the swap.
type copying struct {
	*Mover
	*Plan
	pods   podrun.Runner
	users  *users
	second *corev1.PersistentVolumeClaim
}

// run copies the volume, and swaps it with its copy.
func (c *copying) run(ctx context.Context) (err error) {
	pod, err := c.pods.Start(ctx, c.pod())
	if err != nil {
		return err
	}
	// It stays until the swap: its events say how far the pods were seen. One that has ended
	// has no volumes.
	defer func() { err = errors.Join(err, c.pods.Remove(context.WithoutCancel(ctx), pod)) }()
	c.pods.Say(fmt.Sprintf("pod %s/%s copies the volume", pod.Namespace, pod.Name))
	ended, err := c.pods.Ended(ctx, pod)
	if err != nil {
		return err
	}
	var copied wire.Copied
	said, why := podrun.Said(ended)
	notJSON := json.Unmarshal([]byte(said), &copied)
	switch {
	case notJSON == nil && copied.Error != "":
		return fmt.Errorf("the volume is not copied: %s", copied.Error)
	case notJSON != nil || ended.Status.Phase != corev1.PodSucceeded:
		return errors.New(why)
	}
	c.pods.Say(fmt.Sprintf("copied and compared %d files, %d MiB", copied.Files, copied.Bytes>>20))
	if err := c.bound(ctx); err != nil {
		return err
	}
	if err := c.checkBackend(ctx); err != nil {
		return err
	}
	return c.swap(ctx, pod)
}

// pod copies the volume of one claim to that of the other. It is root with what a copy of
// owners, modes and devices takes, and nothing else.
func (c *copying) pod() *corev1.Pod {
	container := corev1.Container{
		Name: "copy", Image: c.Image, Args: []string{"node", "copy", "--result-file=/dev/termination-log", fmt.Sprintf("--mib-per-second=%d", c.MiBPerSecond)},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP"}},
		},
	}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
	}
	for path, claim := range map[string]string{wire.CopyFrom: c.Claim, wire.CopyTo: c.former()} {
		name := path[1:]
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
		if objects.IsBlockVolume(c.pv) {
			container.VolumeDevices = append(container.VolumeDevices, corev1.VolumeDevice{Name: name, DevicePath: path})
		} else {
			container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: path == wire.CopyFrom})
		}
	}
	spec.Containers = []corev1.Container{container}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: c.podName(),
			Labels: map[string]string{"app.kubernetes.io/name": "standalone-cinder", "app.kubernetes.io/component": "copy"}, Annotations: map[string]string{annotationRun: c.users.run},
		},
		Spec: spec,
	}
}

// bound waits until the second claim is bound.
func (c *copying) bound(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, c.Patience)
	defer end()
	for {
		now, err := c.Swapper.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.second.Name, metav1.GetOptions{})
		switch {
		case err != nil:
			return fmt.Errorf("cannot read claim %s/%s: %w", c.Namespace, c.second.Name, err)
		case now.UID != c.second.UID || now.DeletionTimestamp != nil:
			return refused(false, "claim %s/%s was deleted meanwhile", c.Namespace, c.second.Name)
		case now.Status.Phase == corev1.ClaimBound:
			c.second = now
			return nil
		}
		if c.pods.Wait(ctx) != nil {
			return fmt.Errorf("claim %s/%s is not bound; kubectl cinder why %s -n %s says why", c.Namespace, c.second.Name, c.second.Name, c.Namespace)
		}
	}
}

// checkBackend checks where the volume of the second claim is.
func (c *copying) checkBackend(ctx context.Context) error {
	pv, err := c.Swapper.Client.CoreV1().PersistentVolumes().Get(ctx, c.second.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read PersistentVolume %s: %w", c.second.Spec.VolumeName, err)
	}
	if at := pv.Annotations[objects.AnnotationBackend]; at != c.Backend {
		return refused(false, "claim %s/%s got a volume on backend %s instead of %s; delete the claim", c.Namespace, c.second.Name, at, c.Backend)
	}
	return nil
}

// swap swaps the volumes, once both are detached, unless a pod has used one of them.
func (c *copying) swap(ctx context.Context, pod *corev1.Pod) error {
	swapper := c.Swapper
	swapper.BeforeCommit = func(ctx context.Context) error {
		if err := c.users.onlyUser(ctx, pod); err != nil {
			return err
		}
		// From here on, the second claim may have the only data.
		label := fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": {%q: %q}}}`, c.second.UID, swap.LabelCopy, swap.CopyFormer)
		_, err := swapper.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.second.Name, types.MergePatchType, label, metav1.PatchOptions{})
		return err
	}
	patience := time.Now().Add(c.Patience)
	for {
		plan, err := swapper.Plan(ctx, c.swapOf())
		if err == nil {
			return swapper.Apply(ctx, plan)
		}
		// The nodes may not have let go yet.
		if refusal, ok := errors.AsType[*swap.RefusedError](err); !ok || !refusal.Busy || time.Now().After(patience) {
			return err
		}
		if problem := errors.Join(c.users.err(), c.pods.Wait(ctx)); problem != nil {
			return problem
		}
	}
}
