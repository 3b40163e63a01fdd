// Package move moves the volume of a claim to another backend, of the same Cinder or of
// another one, in mode csi. A second claim gets a volume there, a pod that has both copies
// and compares, and the two claims swap their volumes. So the former volume stays until
// somebody deletes the second claim, and everything in between is what the tenant sees:
// a claim, and a pod.
//
// A copy is worth nothing if somebody has written meanwhile. Every pod of the namespace is
// watched from before the copy until both volumes are reserved at Cinder for the swap, and
// any other pod that names one of the claims takes the swap back. A run that did not see
// all of that makes the copy anew.
package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Mover moves volumes.
type Mover struct {
	Swapper swap.Swapper
	// Image is that of the program, which the copying pods run.
	Image string
	// MiBPerSecond bounds each copy; 0 for no bound.
	MiBPerSecond int
	// Patience is how long to wait for a claim to be bound, a pod to start, and a volume to be
	// detached, and Pause how often to look.
	Patience, Pause time.Duration
}

// Request is what an operator asks for.
type Request struct {
	Namespace, Claim string
	// Backend is where the volume goes.
	Backend string
	// StorageClass is that of the second claim; empty for the claim's own.
	StorageClass string
}

// Plan is a move that nothing prevents, as far as can be known before any change.
type Plan struct {
	Request
	// Done means that the claim has a volume on the backend.
	Done bool
	// At is where the claim's volume is.
	At    wire.Handle
	claim *corev1.PersistentVolumeClaim
	pv    *corev1.PersistentVolume
	class *storagev1.StorageClass
}

// former is the name of the second claim, which keeps the former volume in the end.
func (p *Plan) former() string { return p.Claim + "-former" }

func refused(busy bool, format string, arguments ...any) error {
	return &swap.RefusedError{Problems: []string{fmt.Sprintf(format, arguments...)}, Busy: busy}
}

// Plan checks everything that can be checked without a change. A *swap.RefusedError lists
// what prevents the move.
func (m *Mover) Plan(ctx context.Context, request Request) (*Plan, error) {
	p := &Plan{Request: request}
	var err error
	if p.claim, p.pv, err = m.Swapper.Movable(ctx, p.Namespace, p.Claim); p.pv == nil {
		return nil, err
	}
	at, damaged := objects.LocationOf(p.pv)
	if damaged != nil {
		return nil, damaged
	}
	isSwapping := p.pv.Annotations[swap.AnnotationIntent] != ""
	p.At, p.Done = at, at.Backend == p.Backend && !isSwapping
	switch owner := metav1.GetControllerOf(p.claim); {
	case p.Done:
		return p, nil
	case err != nil:
		return nil, err
	case owner != nil && owner.Kind == "Pod":
		return nil, refused(false, "claim %s/%s is an ephemeral volume of pod %s, and goes with it", p.Namespace, p.Claim, owner.Name)
	case !slices.ContainsFunc(p.pv.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool { return mode != corev1.ReadOnlyMany }):
		return nil, refused(false, "claim %s/%s is ReadOnlyMany only, so no pod could write the copy", p.Namespace, p.Claim)
	case p.claim.Labels[swap.LabelCopy] != "":
		return nil, refused(false, "claim %s/%s was made by a move itself; delete it when its data is not needed", p.Namespace, p.Claim)
	case len(p.former()) > 253:
		return nil, refused(false, "no claim can be named %s, which is too long", p.former())
	}
	if p.StorageClass == "" && p.claim.Spec.StorageClassName != nil {
		p.StorageClass = *p.claim.Spec.StorageClassName
	}
	if p.class, err = m.Swapper.Client.StorageV1().StorageClasses().Get(ctx, p.StorageClass, metav1.GetOptions{}); err != nil {
		return nil, fmt.Errorf("cannot read StorageClass %q: %w", p.StorageClass, err)
	}
	if isSwapping {
		return p, nil // granted and copied before
	}
	return p, m.decide(ctx, p)
}

// decide asks the policy whether the claim may have a volume of the backend, and whether a
// new claim would get it there.
func (m *Mover) decide(ctx context.Context, p *Plan) error {
	namespace, err := m.Swapper.Client.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read namespace %s, whose labels may determine its tenant: %w", p.Namespace, err)
	}
	var problems []string
	if held := m.Swapper.Policy.DecideHolder(objects.RequestToHold(p.Namespace, p.Claim, namespace.Labels, p.pv), p.Backend); held.Denial != nil {
		problems = append(problems, fmt.Sprintf("the claim may not have a volume of backend %s: %s: %s", p.Backend, held.Denial.Reason, held.Denial.Message))
	}
	switch made := m.Swapper.Policy.Decide(objects.RequestOf(p.second(), p.class, namespace.Labels)); {
	case made.Denial != nil:
		problems = append(problems, fmt.Sprintf("a new claim of StorageClass %s is denied: %s: %s", p.StorageClass, made.Denial.Reason, made.Denial.Message))
	case !slices.Contains(made.CSI, p.Backend):
		problems = append(problems, fmt.Sprintf("a new claim of StorageClass %s is not in mode csi on backend %s", p.StorageClass, p.Backend))
	case made.Backends[0] != p.Backend:
		problems = append(problems, fmt.Sprintf("a new claim of StorageClass %s goes to backend %s before %s; set suspended: true on that one, change the order of the rule, or name another StorageClass", p.StorageClass, made.Backends[0], p.Backend))
	}
	if len(problems) > 0 {
		return &swap.RefusedError{Problems: problems}
	}
	return nil
}

// Describe says what the move does.
func (p *Plan) Describe() string {
	if p.Done {
		return fmt.Sprintf("claim %s/%s has volume %s; nothing to do", p.Namespace, p.Claim, p.At)
	}
	return fmt.Sprintf("claim %s/%s gets a copy of volume %s on backend %s, and claim %s, of StorageClass %s, keeps that volume",
		p.Namespace, p.Claim, p.At, p.Backend, p.former(), p.StorageClass)
}

// second is the claim that gets the copy.
func (p *Plan) second() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.former(),
			Labels: map[string]string{swap.LabelCopy: swap.CopyPartial}, Annotations: map[string]string{objects.AnnotationCopyOf: string(p.claim.UID)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &p.StorageClass, AccessModes: p.claim.Spec.AccessModes, VolumeMode: p.claim.Spec.VolumeMode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: p.pv.Spec.Capacity[corev1.ResourceStorage]}},
		},
	}
}

// Apply moves the volume. After an error, it may be run again; what it leaves is the second
// claim.
func (m *Mover) Apply(ctx context.Context, p *Plan, say func(string)) error {
	if p.Done {
		return m.tidy(ctx, p)
	}
	second, err := m.secondClaim(ctx, p)
	if err != nil {
		return err
	}
	c := &copying{
		Mover: m, Plan: p, second: second,
		pods: podrun.Runner{Client: m.Swapper.Client, Namespace: p.Namespace, Pause: m.Pause, Patience: m.Patience, Say: say, Logs: true},
	}
	// A claim that waits for its pod is bound only then. Otherwise it is better to know before
	// the copy what prevents the swap.
	if immediate := p.class.VolumeBindingMode == nil || *p.class.VolumeBindingMode == storagev1.VolumeBindingImmediate; immediate || second.Status.Phase == corev1.ClaimBound {
		if err := c.bound(ctx); err != nil {
			return err
		}
		if done, err := m.finish(ctx, second, p.swapOf()); done || err != nil {
			return err
		}
		if err := c.checkBackend(ctx); err != nil {
			return err
		}
	}
	if c.users, err = watchUsers(ctx, m.Swapper.Client, p.claim, second); err != nil {
		return err
	}
	defer c.users.stop()
	// A node that has the volume may still write what a pod left.
	if _, _, err := m.Swapper.Movable(ctx, p.Namespace, p.Claim); err != nil {
		return err
	}
	return c.run(ctx)
}

// tidy ends what a run has left that was killed after the claim had its new volume.
func (m *Mover) tidy(ctx context.Context, p *Plan) error {
	client := m.Swapper.Client.CoreV1()
	second, err := client.PersistentVolumeClaims(p.Namespace).Get(ctx, p.former(), metav1.GetOptions{})
	if err == nil && isCopyOf(second, p.claim) && second.Status.Phase == corev1.ClaimBound {
		_, err = m.finish(ctx, second, p.swapOf())
	}
	if _, isRefused := errors.AsType[*swap.RefusedError](err); err != nil && !isRefused && !apierrors.IsNotFound(err) {
		return err // that a new swap is refused does not matter
	}
	pod, err := client.Pods(p.Namespace).Get(ctx, p.podName(), metav1.GetOptions{})
	if err == nil && pod.Annotations[annotationRun] != "" {
		pods := podrun.Runner{Client: m.Swapper.Client, Namespace: p.Namespace, Pause: m.Pause}
		err = pods.Remove(ctx, pod)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// swapOf is the swap of a claim's volume with its copy.
func (p *Plan) swapOf() swap.Request {
	return swap.Request{Namespace: p.Namespace, Claims: [2]string{p.Claim, p.former()}}
}

// podName is the name of the copying pod, so that only one works on a claim.
func (p *Plan) podName() string { return "copy-" + string(p.claim.UID) }

// isCopyOf reports whether a claim was made for a copy of another one's volume.
func isCopyOf(second, of *corev1.PersistentVolumeClaim) bool {
	return second.Annotations[objects.AnnotationCopyOf] == string(of.UID) && second.Labels[swap.LabelCopy] != ""
}

// swapper looks at a swap with a copy, and never commits one.
func (m *Mover) swapper() *swap.Swapper {
	swapper := m.Swapper
	swapper.BeforeCommit = func(context.Context) error { return errors.New("the copy is not known to be complete") }
	return &swapper
}

// secondClaim returns the claim that gets the copy, and makes it if there is none.
func (m *Mover) secondClaim(ctx context.Context, p *Plan) (*corev1.PersistentVolumeClaim, error) {
	claims := m.Swapper.Client.CoreV1().PersistentVolumeClaims(p.Namespace)
	second, err := claims.Create(ctx, p.second(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		second, err = claims.Get(ctx, p.former(), metav1.GetOptions{})
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot make claim %s/%s for the copy: %w", p.Namespace, p.former(), err)
	case !isCopyOf(second, p.claim):
		return nil, refused(false, "claim %s/%s exists, and was not made for a copy of this one; rename or delete it", p.Namespace, second.Name)
	case second.DeletionTimestamp != nil:
		return nil, refused(true, "claim %s/%s of an earlier move is being deleted", p.Namespace, second.Name)
	}
	return second, nil
}

// finish ends a swap that an earlier run has begun. It reports whether nothing is left to do.
func (m *Mover) finish(ctx context.Context, second *corev1.PersistentVolumeClaim, request swap.Request) (done bool, err error) {
	plan, err := m.swapper().Plan(ctx, request)
	if err == nil {
		err = m.swapper().EndEarlier(ctx, plan)
	}
	if err == nil {
		plan, err = m.swapper().Plan(ctx, request)
	}
	switch refusal, isRefused := errors.AsType[*swap.RefusedError](err); {
	case err == nil && plan.Done:
		return true, nil
	case err != nil && (!isRefused || !refusal.Busy): // a copying pod may have the volumes
		return false, err
	case second.Labels[swap.LabelCopy] != swap.CopyPartial:
		return false, refused(false, "claim %s/%s has been swapped with this one before, so it may have the only data; delete it if it is not needed", second.Namespace, second.Name)
	}
	return false, nil
}
