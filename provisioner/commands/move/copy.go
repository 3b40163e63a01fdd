package move

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const (
	containerName = "copy"
	// gate keeps the pod from its node until everything is checked.
	gate = objects.Prefix + "copy"
)

// copying is one move, from the copy to the swap.
type copying struct {
	*Mover
	*Plan
	pods   podrun.Runner
	second *corev1.PersistentVolumeClaim
	// isFresh means that this run has made the second claim, so its volume is new.
	isFresh bool
	// swaps is set when the second claim may get the former volume.
	swaps bool
}

// A run shows that it lives by a change of its pod, and counts as dead without one. Both are in
// pauses.
const (
	beat     = 3
	lifeless = 10
)

// aloneAtIt fails while another run is at work on the claim. A pod that has ended may be that
// of a run that was killed, or that swaps.
func (c *copying) aloneAtIt(ctx context.Context) error {
	seen := ""
	for i := range lifeless + 1 {
		pod, err := c.Swapper.Client.CoreV1().Pods(c.Namespace).Get(ctx, c.podName(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		now := pod.Annotations[annotationSeen]
		if !podrun.IsReplaceable(pod) || i > 0 && now != seen {
			return busy("pod %s/%s: another run is moving the volume of claim %s; wait for its end, or delete the pod", pod.Namespace, pod.Name, c.Claim)
		}
		seen = now
		if err := c.pods.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// run copies the volume, swaps it with its copy, and returns where the copy is.
func (c *copying) run(ctx context.Context) (at wire.Handle, err error) {
	// A claim that waits for its pod is bound only then.
	if !c.waits() {
		if err := c.bound(ctx); err != nil {
			return at, err
		}
	}
	if c.second.Spec.VolumeName != "" {
		if _, err := c.overwritable(ctx); err != nil {
			return at, err
		}
	}
	pod, err := c.pods.Start(ctx, c.pod())
	if err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, c.pods.Remove(context.WithoutCancel(ctx), pod)) }()
	users, err := watchUsers(ctx, c.Swapper.Client, pod, c.claim, c.second)
	if err != nil {
		return at, err
	}
	defer users.stop()
	if err := c.begin(ctx, pod); err != nil {
		return at, err
	}
	go users.live(beat * c.Pause)
	c.pods.Say(fmt.Sprintf("pod %s/%s copies the volume", pod.Namespace, pod.Name))
	ended, err := c.pods.Ended(users.unlessUsed, pod)
	if used := users.err(); used != nil {
		return at, used
	}
	if err != nil {
		return at, err
	}
	var copied wire.Copied
	said, why := c.pods.Said(ended)
	notJSON := json.Unmarshal([]byte(said), &copied)
	switch {
	case notJSON == nil && copied.Error != "":
		return at, fmt.Errorf("the volume is not copied: %s", copied.Error)
	case notJSON != nil || ended.Status.Phase != corev1.PodSucceeded:
		return at, errors.New(why)
	}
	c.pods.Say(fmt.Sprintf("copied and compared %d files, %d MiB", copied.Files, copied.Bytes>>20))
	return c.swap(ctx, users)
}

// pod copies the volume of one claim to that of the other. It is root with what a copy of
// owners, modes and devices takes, and nothing else. It goes with the second claim, so that it
// clears no other one of that name.
func (c *copying) pod() *corev1.Pod {
	container := corev1.Container{
		Name: containerName, Image: c.Image, Args: []string{"node", "copy", "--result-file=/dev/termination-log", fmt.Sprintf("--mib-per-second=%d", c.MiBPerSecond)},
		Resources: corev1.ResourceRequirements{ // quotas may ask for all of them
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("64Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP"}},
		},
	}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		SchedulingGates: []corev1.PodSchedulingGate{{Name: gate}},
	}
	for path, claim := range map[string]string{wire.CopyFrom: c.Claim, wire.CopyTo: c.Former()} {
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
			Labels: map[string]string{
				"app.kubernetes.io/name": "standalone-cinder", "app.kubernetes.io/component": "copy", objects.LabelCopy: string(c.claim.UID),
				"sidecar.istio.io/inject": "false", // it would not end
			},
			Annotations:     map[string]string{"linkerd.io/inject": "disabled", annotationSeen: rand.Text()},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: c.second.Name, UID: c.second.UID}},
		},
		Spec: spec,
	}
}

// begin checks once more what the copy depends on, now that nobody else can move or swap the
// volumes, and lets the pod begin.
func (c *copying) begin(ctx context.Context, pod *corev1.Pod) error {
	second, err := c.Swapper.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.second.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read claim %s/%s: %w", c.Namespace, c.second.Name, err)
	}
	again, err := c.Mover.Plan(ctx, c.Request)
	switch {
	case err != nil:
		return err
	case second.UID != c.second.UID || again.claim.UID != c.claim.UID || again.At != c.At || again.begun != nil:
		return busy("claims %s/%s and %s have changed since the command began; run it again", c.Namespace, c.Claim, second.Name)
	case again.encrypted && second.Status.Phase != corev1.ClaimBound:
		return busy("claim %s/%s is not bound, so whether its volume is encrypted is not known", c.Namespace, second.Name)
	case second.Status.Phase == corev1.ClaimBound:
		plan, err := c.swapper(nil).Plan(ctx, c.swapOf())
		if refusal, ok := errors.AsType[*swap.RefusedError](err); ok && !refusal.Busy {
			return refused("%s; if that is because of claim %s, delete it: it is only a copy", refusal, second.Name)
		}
		if err != nil {
			return err
		}
		if !plan.IsNew() {
			return busy("the volumes of claims %s/%s and %s have been swapped; run the command again", c.Namespace, c.Claim, second.Name)
		}
		c.second = second
		if _, err := c.secondAt(ctx); err != nil {
			return err
		}
		if err := c.mark(ctx); err != nil {
			return err
		}
	}
	now, err := c.Swapper.Client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(now.Spec.SchedulingGates), func(g corev1.PodSchedulingGate) bool { return g.Name == gate })
	if now.UID != pod.UID || len(others) == len(now.Spec.SchedulingGates) {
		return busy("somebody has let pod %s/%s begin before the command did; run it again", pod.Namespace, pod.Name)
	}
	start, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": now.UID, "resourceVersion": now.ResourceVersion}, "spec": map[string]any{"schedulingGates": others}})
	if err == nil {
		_, err = c.Swapper.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, start, metav1.PatchOptions{})
	}
	return err
}

// overwritable returns the PersistentVolume of the second claim if its volume has nothing but a
// copy. Where nothing says so, it must be new.
func (c *copying) overwritable(ctx context.Context) (*corev1.PersistentVolume, error) {
	pv, err := c.Swapper.Client.CoreV1().PersistentVolumes().Get(ctx, c.second.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot read PersistentVolume %s: %w", c.second.Spec.VolumeName, err)
	}
	if pv.Annotations[objects.AnnotationCopyOf] != string(c.claim.UID) && (!c.isFresh || pv.Annotations[objects.AnnotationSwapped] != "") {
		return nil, refused("claim %s/%s may have more than a copy, such as the former volume of an earlier move; delete it if its data is not needed, and run the command again", c.Namespace, c.second.Name)
	}
	return pv, nil
}

// mark records that the volume of the second claim has nothing but a copy.
func (c *copying) mark(ctx context.Context) error {
	pv, err := c.overwritable(ctx)
	if err != nil || pv.Annotations[objects.AnnotationCopyOf] != "" {
		return err
	}
	mark := fmt.Appendf(nil, `{"metadata": {"uid": %q, "resourceVersion": %q, "annotations": {%q: %q}}}`, pv.UID, pv.ResourceVersion, objects.AnnotationCopyOf, c.claim.UID)
	if _, err := c.Swapper.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, mark, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot mark PersistentVolume %s: %w", pv.Name, err)
	}
	return nil
}

// bound waits until the second claim is bound.
func (c *copying) bound(ctx context.Context) error {
	ctx, end := context.WithTimeout(ctx, c.Patience)
	defer end()
	began, told := time.Now(), ""
	for {
		now, err := c.Swapper.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Get(ctx, c.second.Name, metav1.GetOptions{})
		switch {
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("cannot read claim %s/%s: %w", c.Namespace, c.second.Name, err)
		case err != nil:
		case now.UID != c.second.UID || now.DeletionTimestamp != nil:
			return refused("claim %s/%s was deleted meanwhile", c.Namespace, c.second.Name)
		case now.Status.Phase == corev1.ClaimBound:
			c.second = now
			return nil
		}
		if time.Since(began) > sayAfter {
			if why := c.warning(ctx); why != told {
				told = why
				c.pods.Say(fmt.Sprintf("claim %s waits: %s", c.second.Name, why))
			}
		}
		if c.pods.Wait(ctx) != nil {
			return fmt.Errorf("claim %s/%s is not bound; kubectl cinder why %s -n %s says why", c.Namespace, c.second.Name, c.second.Name, c.Namespace)
		}
	}
}

// sayAfter is how long a claim may wait before its warnings are shown.
const sayAfter = 10 * time.Second

// warning returns the last warning about the second claim. That there is none matters to nobody.
func (c *copying) warning(ctx context.Context) (why string) {
	events, err := c.Swapper.Client.CoreV1().Events(c.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "type=Warning,involvedObject.name=" + c.second.Name})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	last := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return last.Reason + ": " + last.Message
}

// secondAt returns where the volume of the second claim is.
func (c *copying) secondAt(ctx context.Context) (wire.Handle, error) {
	pv, err := c.Swapper.Client.CoreV1().PersistentVolumes().Get(ctx, c.second.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return wire.Handle{}, fmt.Errorf("cannot read PersistentVolume %s: %w", c.second.Spec.VolumeName, err)
	}
	at, err := objects.LocationOf(pv)
	if err == nil && c.byNodes && objects.EncryptedOf(pv) == "" {
		return at, refused("nodes do not encrypt the volume of claim %s/%s, though the rule has encrypt: it is of before that, or the program does not have that policy yet; delete the claim", c.Namespace, c.second.Name)
	}
	if err == nil && at.Backend != c.Backend {
		err = refused("claim %s/%s got a volume on backend %s instead of %s: see its event BackendChosen, or the policy that the program runs with; then delete the claim", c.Namespace, c.second.Name, at.Backend, c.Backend)
	}
	return at, err
}

// swap swaps the volumes, once both are detached, unless a pod has used one of them.
func (c *copying) swap(ctx context.Context, users *users) (at wire.Handle, err error) {
	if err := c.bound(ctx); err != nil {
		return at, err
	}
	if at, err = c.secondAt(ctx); err != nil {
		return at, err
	}
	if err := c.mark(ctx); err != nil {
		return at, err
	}
	swapper := c.swapper(&[2]wire.Handle{c.At, at})
	swapper.Copy.Complete = users.onlyUser
	plan, err := c.detached(ctx, swapper, users)
	if err != nil {
		return at, err
	}
	c.swaps = true
	if err := swapper.Apply(ctx, plan); err != nil {
		return at, err
	}
	return at, c.labelFormer(ctx)
}

// detached waits until no node has one of the volumes any more, and plans the swap.
func (c *copying) detached(ctx context.Context, swapper *swap.Swapper, users *users) (*swap.Plan, error) {
	for patience := time.Now().Add(c.Patience); ; {
		attached := 0
		for _, pv := range []string{c.pv.Name, c.second.Spec.VolumeName} {
			attachments, err := swapper.Nodes.Attachments(ctx, pv)
			if err != nil {
				return nil, err
			}
			attached += len(attachments)
		}
		if attached == 0 || time.Now().After(patience) {
			plan, err := swapper.Plan(ctx, c.swapOf())
			if refusal, ok := errors.AsType[*swap.RefusedError](err); !ok || !refusal.Busy || time.Now().After(patience) {
				return plan, err
			}
		}
		// What a plan reads of the cluster is long.
		for range lifeless {
			if err := errors.Join(users.err(), c.pods.Wait(ctx)); err != nil {
				return nil, err
			}
		}
	}
}

// labelFormer tells people that the second claim has the former volume.
func (c *copying) labelFormer(ctx context.Context) error {
	label := fmt.Appendf(nil, `{"metadata": {"uid": %q, "labels": {%q: %q}}}`, c.second.UID, objects.LabelCopy, objects.CopyFormer)
	if _, err := c.Swapper.Client.CoreV1().PersistentVolumeClaims(c.Namespace).Patch(ctx, c.second.Name, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("the volume was moved, but claim %s/%s cannot be labeled: %w", c.Namespace, c.second.Name, err)
	}
	return nil
}
