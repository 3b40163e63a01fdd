// Package move moves the volume of a claim to another backend, of the same Cinder or of
// another one, in mode csi. A second claim gets a volume there, a pod that has both copies
// and compares, and the two claims swap their volumes. So the former volume stays until
// somebody deletes the second claim, and everything in between is what the tenant sees:
// a claim, and a pod.
//
// The pod is also the lock. It is made with a scheduling gate; while it is there, nobody else
// moves or swaps either volume. Only then is everything checked that the copy depends on, and
// the gate removed.
//
// A copy is worth nothing if somebody has written meanwhile. Every pod of the namespace is
// watched from before the copy until both volumes are reserved at Cinder for the swap, and
// any other pod that names one of the claims ends the copy, or takes the swap back. A run
// that did not see all of that makes the copy anew.
package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
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
	// PersistentVolume is the name of the claim's, and At is where its volume is.
	PersistentVolume string
	At               wire.Handle
	claim            *corev1.PersistentVolumeClaim
	pv               *corev1.PersistentVolume
	// encrypted means that the volume is, and byNodes that nodes encrypt the copy.
	encrypted, byNodes bool
	class              *storagev1.StorageClass
	// begun is a swap with the copy that an earlier run has begun; nil if none has.
	begun *swap.Plan
}

const formerSuffix = "-former"

// Former is the name of the second claim, which keeps the former volume in the end.
func (p *Plan) Former() string { return p.Claim + formerSuffix }

// ClaimOf returns the claim that moves, by its own name or that of the second claim.
func ClaimOf(name string) string { return strings.TrimSuffix(name, formerSuffix) }

// swapOf is the swap of a claim's volume with its copy.
func (p *Plan) swapOf() swap.Request {
	return swap.Request{Namespace: p.Namespace, Claims: [2]string{p.Claim, p.Former()}}
}

// podName is the name of the copying pod, so that only one works on a claim.
func (p *Plan) podName() string { return swap.CopyPod(string(p.claim.UID)) }

// isCopyOf reports whether a claim was made for a copy of another one's volume.
func isCopyOf(second, of *corev1.PersistentVolumeClaim) bool {
	return second.Annotations[objects.AnnotationCopyOf] == string(of.UID) && second.Labels[objects.LabelCopy] != ""
}

func refused(format string, arguments ...any) error {
	return &swap.RefusedError{Problems: []string{fmt.Sprintf(format, arguments...)}}
}

// busy is a refusal that passes.
func busy(format string, arguments ...any) error {
	return &swap.RefusedError{Problems: []string{fmt.Sprintf(format, arguments...)}, Busy: true}
}

// swapper returns what swaps a volume with its copy. Without the volumes that were copied, it
// only looks, and ends what an earlier run has begun.
func (m *Mover) swapper(copied *[2]wire.Handle) *swap.Swapper {
	swapper := m.Swapper
	swapper.Copy = &swap.Copy{Volumes: copied, Complete: func(context.Context) error { return errors.New("the copy is not known to be complete") }}
	return &swapper
}

// Plan checks everything that can be checked without a change. A *swap.RefusedError lists
// what prevents the move.
func (m *Mover) Plan(ctx context.Context, request Request) (*Plan, error) {
	p := &Plan{Request: request}
	movable, refusal := m.swapper(nil).Movable(ctx, p.Namespace, p.Claim)
	if movable.PersistentVolume == nil {
		return nil, refusal
	}
	p.claim, p.pv, p.encrypted = movable.Claim, movable.PersistentVolume, movable.Encrypted
	p.PersistentVolume = p.pv.Name
	var err error
	if p.At, err = objects.LocationOf(p.pv); err != nil {
		return nil, err
	}
	if p.begun, err = m.begun(ctx, p); err != nil || p.begun != nil {
		return p, err
	}
	if p.Done = p.At.Backend == p.Backend; p.Done {
		return p, nil
	}
	pod, err := m.Swapper.Client.CoreV1().Pods(p.Namespace).Get(ctx, p.podName(), metav1.GetOptions{})
	switch owner := metav1.GetControllerOf(p.claim); {
	case err == nil && !podrun.IsReplaceable(pod):
		return nil, busy("pod %s/%s of another run copies the volume of claim %s; wait for its end, or delete the pod", pod.Namespace, pod.Name, p.Claim)
	case refusal != nil:
		return nil, refusal
	case owner != nil && owner.Kind == "Pod":
		return nil, refused("claim %s/%s is an ephemeral volume of pod %s, and goes with it", p.Namespace, p.Claim, owner.Name)
	case !slices.ContainsFunc(p.pv.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool { return mode != corev1.ReadOnlyMany }):
		return nil, refused("claim %s/%s is ReadOnlyMany only, so no pod could write the copy", p.Namespace, p.Claim)
	case p.claim.Labels[objects.LabelCopy] != "":
		return nil, refused("claim %s/%s was made by a move itself; delete it when its data is not needed", p.Namespace, p.Claim)
	case len(p.Former()) > 253:
		return nil, refused("no claim can be named %s, which is too long", p.Former())
	}
	p.StorageClass = cmp.Or(p.StorageClass, p.pv.Spec.StorageClassName)
	p.class, err = m.Swapper.Client.StorageV1().StorageClasses().Get(ctx, p.StorageClass, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, refused("StorageClass %q does not exist; name one with --storage-class", p.StorageClass)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read StorageClass %q: %w", p.StorageClass, err)
	}
	return p, m.decide(ctx, p)
}

// begun returns the swap of the volume with its copy that an earlier run has begun; nil if none
// has. A swap with another claim is an error.
func (m *Mover) begun(ctx context.Context, p *Plan) (*swap.Plan, error) {
	intents := p.pv.Annotations[swap.AnnotationIntent]
	second, err := m.Swapper.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, p.Former(), metav1.GetOptions{})
	if err == nil && isCopyOf(second, p.claim) && second.Spec.VolumeName != "" {
		var pv *corev1.PersistentVolume
		if pv, err = m.Swapper.Client.CoreV1().PersistentVolumes().Get(ctx, second.Spec.VolumeName, metav1.GetOptions{}); err == nil {
			intents += pv.Annotations[swap.AnnotationIntent] // the last that an ended swap leaves
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if intents == "" {
		return nil, nil
	}
	return m.swapper(nil).Plan(ctx, p.swapOf())
}

// decide asks the policy whether the claim may have a volume of the backend, and whether a
// new claim would get it there.
func (m *Mover) decide(ctx context.Context, p *Plan) error {
	namespace, err := m.Swapper.Client.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read namespace %s, whose labels may determine its tenant: %w", p.Namespace, err)
	}
	asked := objects.RequestOf(p.second(), p.class, namespace.Labels)
	made := m.Swapper.Policy.Decide(asked)
	var problems []string
	refuse := func(format string, arguments ...any) { problems = append(problems, fmt.Sprintf(format, arguments...)) }
	if held := m.Swapper.Policy.DecideHolder(objects.RequestToHold(p.Namespace, p.Claim, namespace.Labels, p.pv), p.Backend); held.Denial != nil {
		refuse("claim %s could not have a volume of backend %s: %s: %s", p.Claim, p.Backend, held.Denial.Reason, held.Denial.Message)
	}
	if kept := m.Swapper.Policy.DecideHolder(asked, p.At.Backend); kept.Denial != nil {
		refuse("claim %s could not keep the former volume: %s: %s", p.Former(), kept.Denial.Reason, kept.Denial.Message)
	}
	p.byNodes = made.Volume.Encrypt != nil
	backend, _ := m.Swapper.Policy.Backend(p.Backend)
	switch {
	case p.class.Provisioner != m.Swapper.ProvisionerName && p.class.Provisioner != policy.CSIDriver:
		refuse("StorageClass %s is of another provisioner, %s", p.StorageClass, p.class.Provisioner)
	case backend != nil && backend.Suspended:
		refuse("backend %s is suspended, so no new claim gets a volume there", p.Backend)
	case made.Denial != nil:
		refuse("a new claim of StorageClass %s is denied: %s: %s", p.StorageClass, made.Denial.Reason, made.Denial.Message)
	case !slices.Contains(made.Backends, p.Backend):
		refuse("a new claim of StorageClass %s gets no volume on backend %s; add it to the rule, or name another StorageClass", p.StorageClass, p.Backend)
	case !slices.Contains(made.CSI, p.Backend):
		refuse("a new claim of StorageClass %s is not in mode csi on backend %s", p.StorageClass, p.Backend)
	case !objects.IsBlockVolume(p.pv) && made.Volume.FSType != p.pv.Spec.CSI.FSType:
		refuse("a new claim of StorageClass %s has filesystem %s, and this one %s", p.StorageClass, made.Volume.FSType, p.pv.Spec.CSI.FSType)
	case p.byNodes && slices.ContainsFunc(p.pv.Spec.AccessModes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany
	}):
		refuse("several nodes may have the volume of claim %s at once, and none of them makes the LUKS header of a new one; name a StorageClass whose rule has no encrypt", p.Claim)
	case p.encrypted && p.waits():
		refuse("claim %s is encrypted, and whether claim %s would be is not known before the copying pod begins; name a StorageClass with volumeBindingMode Immediate", p.Claim, p.Former())
	case made.Backends[0] != p.Backend:
		refuse("a new claim of StorageClass %s goes to backend %s before %s; set suspended: true on that one, change the order of the rule, or name another StorageClass", p.StorageClass, made.Backends[0], p.Backend)
	}
	if len(problems) > 0 {
		return &swap.RefusedError{Problems: problems}
	}
	return nil
}

// waits reports whether the second claim is bound only when its pod is scheduled.
func (p *Plan) waits() bool {
	mode := p.class.VolumeBindingMode
	return mode != nil && *mode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Describe says what the move does.
func (p *Plan) Describe() string {
	switch {
	case p.begun != nil:
		return fmt.Sprintf("a swap that an earlier run has begun with claim %s/%s and its copy is ended first", p.Namespace, p.Claim)
	case p.Done:
		return fmt.Sprintf("claim %s/%s has volume %s; nothing to do", p.Namespace, p.Claim, p.At)
	}
	text := fmt.Sprintf("claim %s/%s gets a copy of volume %s on backend %s, and claim %s, of StorageClass %s, keeps that volume",
		p.Namespace, p.Claim, p.At, p.Backend, p.Former(), p.StorageClass)
	if warning := p.Warning(); warning != "" {
		text += "; " + warning
	}
	return text
}

// Warning says what is to be heeded; empty if nothing.
func (p *Plan) Warning() string {
	if p.byNodes && objects.EncryptedOf(p.pv) == "" {
		return "nodes encrypt the copy, so it has no backups, and only claims whose rule has encrypt can be made from it"
	}
	return ""
}

// second is the claim that gets the copy.
func (p *Plan) second() *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Former(),
			Labels: map[string]string{objects.LabelCopy: objects.CopyPartial}, Annotations: map[string]string{objects.AnnotationCopyOf: string(p.claim.UID)},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &p.StorageClass, AccessModes: p.claim.Spec.AccessModes, VolumeMode: p.claim.Spec.VolumeMode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: p.pv.Spec.Capacity[corev1.ResourceStorage]}},
		},
	}
}

// Apply moves the volume, and returns where it is then. After an error, it may be run again.
func (m *Mover) Apply(ctx context.Context, p *Plan, say func(string)) (wire.Handle, error) {
	c := &copying{Mover: m, Plan: p, pods: podrun.Runner{
		Client: m.Swapper.Client, Namespace: p.Namespace, Pause: m.Pause, Patience: m.Patience, Say: say, Logs: true, Container: containerName,
	}}
	if err := c.aloneAtIt(ctx); p.Done && err != nil {
		return p.At, nil // that run will tidy up
	} else if err != nil {
		return wire.Handle{}, err
	}
	if p.begun != nil {
		err := m.swapper(nil).EndEarlier(ctx, p.begun)
		if err == nil {
			c.Plan, err = m.Plan(ctx, p.Request)
		}
		if err != nil {
			return wire.Handle{}, err
		}
	}
	if c.Done {
		return c.At, c.tidy(ctx)
	}
	if err := c.makeSecond(ctx); err != nil {
		return wire.Handle{}, err
	}
	at, err := c.run(ctx)
	if refusal, isRefused := errors.AsType[*swap.RefusedError](err); err != nil && !c.swaps && (!isRefused || refusal.Busy) {
		err = fmt.Errorf("%w (claim %s, which gets the copy, stays for the next run; to give up, delete it)", err, c.Former())
	}
	return at, err
}

// makeSecond makes the claim that gets the copy, unless an earlier run has.
func (c *copying) makeSecond(ctx context.Context) error {
	claims := c.Swapper.Client.CoreV1().PersistentVolumeClaims(c.Namespace)
	second, err := claims.Get(ctx, c.Former(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // A full quota denies to make one even if it is there.
		second, err = claims.Create(ctx, c.Plan.second(), metav1.CreateOptions{})
		c.isFresh = err == nil
	}
	if err != nil {
		return fmt.Errorf("cannot make claim %s/%s for the copy: %w", c.Namespace, c.Former(), err)
	}
	c.second = second
	return c.takes(second)
}

// takes refuses a claim with the name of the second one, unless it was made for the same.
func (p *Plan) takes(second *corev1.PersistentVolumeClaim) error {
	switch class := objects.ClassName(second); {
	case !isCopyOf(second, p.claim):
		return refused("claim %s/%s exists, and was not made for a copy of this one; delete it if it is not needed", p.Namespace, second.Name)
	case second.DeletionTimestamp != nil:
		return busy("claim %s/%s of an earlier move is being deleted; wait until it is gone", p.Namespace, second.Name)
	case class != p.StorageClass:
		return refused("claim %s/%s, which an earlier run has made, is of StorageClass %s instead of %s; delete it if its data is not needed, or run the command as before", p.Namespace, second.Name, class, p.StorageClass)
	}
	return nil
}

// tidy ends what a run has left that was killed after the claim had its new volume.
func (c *copying) tidy(ctx context.Context) error {
	client := c.Swapper.Client.CoreV1()
	second, err := client.PersistentVolumeClaims(c.Namespace).Get(ctx, c.Former(), metav1.GetOptions{})
	if err == nil && isCopyOf(second, c.claim) && second.Labels[objects.LabelCopy] != objects.CopyFormer {
		c.second = second
		err = c.labelFormer(ctx)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	pod, err := client.Pods(c.Namespace).Get(ctx, c.podName(), metav1.GetOptions{})
	if err == nil && podrun.IsReplaceable(pod) && pod.Labels[objects.LabelCopy] == string(c.claim.UID) {
		return c.pods.Remove(ctx, pod)
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// Try has the API server say whether it would take what a move makes: rights, quotas and Pod
// Security are checked.
func (m *Mover) Try(ctx context.Context, p *Plan) error {
	if p.Done || p.begun != nil {
		return nil
	}
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	client := m.Swapper.Client.CoreV1()
	second, err := client.PersistentVolumeClaims(p.Namespace).Get(ctx, p.Former(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if second, err = client.PersistentVolumeClaims(p.Namespace).Create(ctx, p.second(), dry); err != nil {
			return fmt.Errorf("cannot make claim %s/%s for the copy: %w", p.Namespace, p.Former(), err)
		}
	case err != nil:
		return err
	default:
		if err := p.takes(second); err != nil {
			return err
		}
	}
	if _, err := client.Pods(p.Namespace).Create(ctx, (&copying{Mover: m, Plan: p, second: second}).pod(), dry); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("cannot make a pod in namespace %s for the copy: %w", p.Namespace, err)
	}
	return nil
}
