package rebind

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// planner collects all that prevents a move, so that an operator need not find out one
// by one.
type planner struct {
	*Rebinder
	*Plan
	problems []string
}

func (p *planner) refuse(format string, arguments ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, arguments...))
}

func (p *planner) warn(format string, arguments ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, arguments...))
}

// Plan checks everything that can be checked without a change. A *RefusedError lists what
// prevents the move.
func (r *Rebinder) Plan(ctx context.Context, request Request) (*Plan, error) {
	p := &planner{Rebinder: r, Plan: &Plan{Request: request}}
	if err := p.findPersistentVolume(ctx); err != nil {
		return nil, err
	}
	for _, look := range []func(context.Context) error{p.findHolder, p.findClaim, p.decide, p.checkClass, p.checkUse, p.checkVolume} {
		if err := look(ctx); err != nil {
			return nil, err
		}
	}
	if len(p.problems) > 0 {
		return nil, &RefusedError{p.problems}
	}
	p.describe()
	return p.Plan, nil
}

// findPersistentVolume accepts only a PersistentVolume whose volume the leader can stamp.
func (p *planner) findPersistentVolume(ctx context.Context) error {
	pv, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, p.PersistentVolume, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return refused("PersistentVolume %s does not exist; its volume may: see volume list, and import it", p.PersistentVolume)
	case err != nil:
		return fmt.Errorf("cannot read PersistentVolume %s: %w", p.PersistentVolume, err)
	case !objects.IsOurs(pv) && pv.Annotations[objects.HistoricIdentity] != "":
		return refused("PersistentVolume %s was made by the historic provisioner, so its volume has no stamp; import the volume for the claim", pv.Name)
	case pv.Annotations[objects.AnnotationProvisionedBy] != p.ProvisionerName:
		return refused("PersistentVolume %s was not made by %s", pv.Name, p.ProvisionerName)
	}
	if p.origin, err = objects.OriginOf(pv); err != nil {
		return refused("%s", err.Error())
	}
	p.pv = pv
	if p.origin.Cluster != p.Cluster {
		p.refuse("PersistentVolume %s was made for cluster %q, but this is %q", pv.Name, p.origin.Cluster, p.Cluster)
	}
	if pv.DeletionTimestamp != nil {
		p.refuse("PersistentVolume %s is being deleted; to keep its volume, set the reclaim policy to Retain, wait until the object is gone, and import the volume", pv.Name)
	}
	switch phase := pv.Status.Phase; phase {
	case corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased:
	default:
		p.refuse("PersistentVolume %s is %q, neither Available nor Bound nor Released", pv.Name, phase)
	}
	switch kept := wanted(pv); kept {
	case corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain:
	default:
		p.refuse("the annotation %s of PersistentVolume %s must be Delete or Retain, not %q", AnnotationReclaimPolicy, pv.Name, kept)
	}
	return nil
}

// findHolder finds the claim that has the PersistentVolume.
func (p *planner) findHolder(ctx context.Context) error {
	ref := p.pv.Spec.ClaimRef
	if ref == nil {
		return nil
	}
	holder, err := p.claimAt(ctx, ref.Namespace, ref.Name)
	switch {
	case err != nil || holder == nil:
		return err
	case ref.UID != "" && holder.UID != ref.UID:
		return nil // another one that has only the name
	case holder.Spec.VolumeName != "" && holder.Spec.VolumeName != p.pv.Name:
		return nil // it has a volume of its own, which must not be deleted with it
	case nameOf(holder) == p.to():
		return nil
	case ref.UID == "":
		p.refuse("PersistentVolume %s is reserved for claim %s, which exists, and may be bound to it at any time", p.pv.Name, nameOf(holder))
		return nil
	}
	p.holder = holder
	return nil
}

// claimAt returns a claim; nil if it does not exist.
func (r *Rebinder) claimAt(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim, err := r.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read claim %s/%s: %w", namespace, name, err)
	}
	return claim, nil
}

// findClaim finds the claim that gets the PersistentVolume, or makes the one that will be
// created.
func (p *planner) findClaim(ctx context.Context) error {
	claim, err := p.claimAt(ctx, p.Namespace, p.Claim)
	if err != nil {
		return err
	}
	if claim == nil {
		p.claim = newClaim(p.pv, p.Namespace, p.Claim)
		return nil
	}
	p.claim, p.moved = claim, isFor(p.pv, claim)
	name := p.to()
	switch {
	case claim.DeletionTimestamp != nil:
		p.refuse("claim %s is being deleted; wait until it is gone", name)
	case claim.Status.Phase == corev1.ClaimLost:
		p.refuse("claim %s has lost its PersistentVolume and cannot be bound again; delete it", name)
	case p.moved:
		return nil // Kubernetes no longer compares the two
	case claim.Spec.VolumeName == "":
		p.refuse("claim %s exists and does not name a PersistentVolume, so a new volume is made for it; delete it, or create it with spec.volumeName: %s", name, p.pv.Name)
	case claim.Spec.VolumeName != p.pv.Name:
		p.refuse("claim %s is for PersistentVolume %s", name, claim.Spec.VolumeName)
	}
	p.compare()
	return nil
}

// newClaim returns a claim that fits a PersistentVolume.
func newClaim(pv *corev1.PersistentVolume, namespace, name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:               pv.Spec.AccessModes,
			VolumeMode:                pv.Spec.VolumeMode,
			StorageClassName:          &pv.Spec.StorageClassName,
			VolumeAttributesClassName: pv.Spec.VolumeAttributesClassName,
			VolumeName:                pv.Name,
			Resources:                 corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: pv.Spec.Capacity[corev1.ResourceStorage]}},
		},
	}
}

// compare checks whether an existing claim fits the PersistentVolume. Kubernetes binds a
// claim to a PersistentVolume that names it without a comparison (syncUnboundClaim in
// pkg/controller/volume/persistentvolume of Kubernetes).
func (p *planner) compare() {
	claim, pv, name := p.claim.Spec, p.pv.Spec, p.to()
	if class := objects.ClassName(p.claim); class != pv.StorageClassName {
		p.refuse("claim %s has StorageClass %q, but PersistentVolume %s has %q", name, class, p.pv.Name, pv.StorageClassName)
	}
	if asked, has := claim.Resources.Requests[corev1.ResourceStorage], pv.Capacity[corev1.ResourceStorage]; asked.Cmp(has) > 0 {
		p.refuse("claim %s requests %s, but PersistentVolume %s has %s; request less, and grow the claim once it is bound", name, asked.String(), p.pv.Name, has.String())
	}
	if objects.IsBlock(p.claim) != objects.IsBlockVolume(p.pv) {
		p.refuse("claim %s and PersistentVolume %s have different volume modes", name, p.pv.Name)
	}
	for _, mode := range claim.AccessModes {
		if !slices.Contains(pv.AccessModes, mode) {
			p.refuse("claim %s has the access mode %s, but PersistentVolume %s does not", name, mode, p.pv.Name)
		}
	}
	if asked, has := ptr.Deref(claim.VolumeAttributesClassName, ""), ptr.Deref(pv.VolumeAttributesClassName, ""); asked != has {
		p.refuse("claim %s has VolumeAttributesClass %q, but PersistentVolume %s has %q; change it once the claim is bound", name, asked, p.pv.Name, has)
	}
	if claim.Selector != nil {
		selector, err := metav1.LabelSelectorAsSelector(claim.Selector)
		if err != nil || !selector.Matches(labels.Set(p.pv.Labels)) {
			p.refuse("the selector of claim %s does not select PersistentVolume %s", name, p.pv.Name)
		}
	}
	if claim.DataSource != nil || claim.DataSourceRef != nil || p.claim.Annotations[admission.CloneAnnotation] != "" {
		p.refuse("claim %s asks for the content of another object, but PersistentVolume %s has its own", name, p.pv.Name)
	}
	if objects.AsksForImport(p.claim) {
		p.refuse("claim %s asks for the import of a volume (annotation %s)", name, objects.AnnotationImport)
	}
}

// decide asks the policy as the leader will. It does not ask about quotas: the volume is
// there, and counts wherever it goes.
func (p *planner) decide(ctx context.Context) error {
	if p.rebound() {
		return nil
	}
	namespace, err := p.Client.CoreV1().Namespaces().Get(ctx, p.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
		p.refuse("namespace %s does not exist, or is being deleted", p.Namespace)
		return nil
	case err != nil:
		return fmt.Errorf("cannot read namespace %s, whose labels may determine its tenant: %w", p.Namespace, err)
	}
	p.decision = p.Policy.DecideHolder(objects.RequestToHold(p.Namespace, p.Claim, namespace.Labels, p.pv), p.origin.Backend)
	if denial := p.decision.Denial; denial != nil {
		p.refuse("the policy denies it: %s: %s", denial.Reason, denial.Message)
	}
	return nil
}

// checkClass warns of what an operator may not expect of the PersistentVolume.
func (p *planner) checkClass(ctx context.Context) error {
	name := p.pv.Spec.StorageClassName
	if p.moved || name == "" {
		return nil
	}
	class, err := p.Client.StorageV1().StorageClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		p.warn("StorageClass %s does not exist, so the claim cannot grow", name)
		return nil
	case err != nil:
		return fmt.Errorf("cannot read StorageClass %s: %w", name, err)
	}
	byDefault := class.ReclaimPolicy == nil || *class.ReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	if byDefault && wanted(p.pv) == corev1.PersistentVolumeReclaimRetain {
		p.warn("PersistentVolume %s keeps the reclaim policy Retain, although StorageClass %s has Delete", p.pv.Name, name)
	}
	return nil
}

// checkUse checks whether anything still uses the claim that has the PersistentVolume. A
// claim that the operator deletes is only reported.
func (p *planner) checkUse(ctx context.Context) error {
	if p.moved {
		return nil
	}
	if p.holder != nil {
		var err error
		if p.users, err = p.podsOf(ctx, p.holder); err != nil {
			return err
		}
	}
	nodes, err := p.usersOf(ctx, p.pv)
	if err != nil {
		return err
	}
	report := p.warn
	if p.deletes() {
		report = p.refuse
	}
	if len(p.users) > 0 {
		report("pod %s uses claim %s; stop it first", strings.Join(p.users, ", "), nameOf(p.holder))
	}
	if nodes != "" {
		report("%s", nodes)
	}
	return nil
}

// rebound reports whether the leader has stamped the volume for the claim.
func (p *Plan) rebound() bool { return p.moved && objects.HolderOf(p.pv) == p.claim.UID }

// deletes reports whether the move deletes the claim that has the PersistentVolume.
func (p *Plan) deletes() bool {
	return p.holder != nil && p.DeleteClaim && p.holder.DeletionTimestamp == nil
}

// podsOf lists the pods that use a claim or wait for a node to use it on.
func (r *Rebinder) podsOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]string, error) {
	pods, err := paging.List(ctx, "the pods of namespace "+claim.Namespace, r.Client.CoreV1().Pods(claim.Namespace).List, func(page *corev1.PodList) (using []string) {
		for i := range page.Items {
			if objects.Uses(&page.Items[i], claim) {
				using = append(using, page.Items[i].Name)
			}
		}
		return using
	})
	slices.Sort(pods)
	return pods, err
}

// usersOf says which nodes still use a PersistentVolume; empty if none does.
func (r *Rebinder) usersOf(ctx context.Context, pv *corev1.PersistentVolume) (string, error) {
	nodes, err := r.Nodes.Users(ctx, nodeuse.VolumeOf(pv))
	if err != nil {
		return "", err
	}
	if len(nodes) > 0 {
		return fmt.Sprintf("node %s still uses the volume of PersistentVolume %s", strings.Join(nodes, ", "), pv.Name), nil
	}
	attachments, err := r.Nodes.Attachments(ctx, pv.Name)
	if err != nil || len(attachments) == 0 {
		return "", err
	}
	var named []string
	for _, attachment := range attachments {
		named = append(named, attachment.String())
	}
	return fmt.Sprintf("VolumeAttachment %s still attaches the volume of PersistentVolume %s", strings.Join(named, ", "), pv.Name), nil
}

// checkVolume reads the volume at Cinder: a deletion may have begun.
func (p *planner) checkVolume(ctx context.Context) error {
	if p.moved {
		return nil
	}
	problem, err := p.problemOfVolume(ctx, p.origin)
	if problem != "" {
		p.refuse("%s", problem)
	}
	return err
}

// problemOfVolume says why a volume cannot be used any more; empty if it can.
func (r *Rebinder) problemOfVolume(ctx context.Context, origin objects.Origin) (string, error) {
	volumes, err := r.Volumes(origin.Backend)
	if err != nil {
		return err.Error(), nil
	}
	target := origin.Target()
	v, _, err := volumes.Look(ctx, target)
	switch {
	case cinder.IsKind(err, backends.KindElsewhere):
		return cinder.TextOf(err), nil
	case err != nil:
		return "", err
	case v.ID == "":
		return fmt.Sprintf("volume %s no longer exists at backend %s", origin.VolumeID, origin.Backend), nil
	case !target.Stamp.Owns(v):
		return fmt.Sprintf("volume %s is stamped %s, not for PersistentVolume %s", v.ID, stamps.Of(v).Describe(), origin.PVName), nil
	case v.Status == cinder.StatusDeleting || v.Status == cinder.StatusErrorDeleting:
		return fmt.Sprintf("volume %s is %s", v.ID, v.Status), nil
	case !origin.CSI && (v.Status == cinder.StatusAvailable || v.Status == cinder.StatusDetaching):
		// Nodes would look for it where the storage may show another volume by now.
		return fmt.Sprintf("volume %s is %s: a deletion that was stopped has disconnected it; delete PersistentVolume %s with the reclaim policy Retain, and import the volume for the claim", v.ID, v.Status, origin.PVName), nil
	}
	return "", nil
}

// describe lists the changes to come.
func (p *planner) describe() {
	step := func(format string, arguments ...any) { p.Steps = append(p.Steps, fmt.Sprintf(format, arguments...)) }
	pv, policyNow := p.pv, p.pv.Spec.PersistentVolumeReclaimPolicy
	if !p.moved {
		if policyNow != corev1.PersistentVolumeReclaimRetain {
			step("set the reclaim policy of PersistentVolume %s from %s to Retain, and note %s in its annotation %s", pv.Name, policyNow, wanted(pv), AnnotationReclaimPolicy)
		}
		// What the API server refuses is known before the other claim is gone.
		create := func() {
			if p.claim.UID == "" {
				step("create claim %s, which names PersistentVolume %s (%s, StorageClass %s)", p.to(), pv.Name, pv.Spec.Capacity.Storage().String(), pv.Spec.StorageClassName)
			}
		}
		switch {
		case p.holder == nil:
			create()
		case p.holder.DeletionTimestamp != nil:
			create()
			step("wait until claim %s, which is being deleted, is gone", nameOf(p.holder))
		case p.DeleteClaim:
			create()
			step("delete claim %s, and wait until it is gone", nameOf(p.holder))
		default:
			step("stop until you have deleted claim %s (%s) and run this command again; with --delete-claim, it deletes the claim", nameOf(p.holder), deletion(p.holder))
			create()
		}
		step("bind PersistentVolume %s to claim %s (spec.claimRef) once no node uses it", pv.Name, p.to())
	}
	if !p.moved || pv.Status.Phase != corev1.VolumeBound || p.claim.Status.Phase != corev1.ClaimBound {
		step("wait until both are Bound")
	}
	if !p.rebound() {
		step("wait until the leader has stamped volume %s for the claim, %s", p.origin.VolumeID, p.counts())
	}
	if after := wanted(pv); pv.Annotations[AnnotationReclaimPolicy] != "" || after != corev1.PersistentVolumeReclaimRetain && !p.moved {
		step("set the reclaim policy of PersistentVolume %s to %s, as it was", pv.Name, after)
	}
	p.Done = len(p.Steps) == 0
}

// counts says for which tenant the volume counts afterwards.
func (p *planner) counts() string {
	size := fmt.Sprintf("%d GiB", objects.SizeGiB(p.pv))
	if p.origin.Tenant == p.decision.Tenant {
		return fmt.Sprintf("which still counts for tenant %s (%s, %s)", p.origin.Tenant, size, p.decision.Rule)
	}
	return fmt.Sprintf("which then counts for tenant %s (%s, %s) instead of tenant %s, who loses it with its data", p.decision.Tenant, size, p.decision.Rule, p.origin.Tenant)
}
