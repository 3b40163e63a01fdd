// Package retype gives the volumes of claims another volume type: for a command that
// runs beside the leader with the rights of an operator, and for the CSI driver if a
// claim's VolumeAttributesClass asks for it. Native volumes have no such class.
package retype

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Volumes are the volumes of one backend; backends.Snapshots implements it.
type Volumes interface {
	Look(ctx context.Context, target backends.Target) (cinder.Volume, cinder.Place, error)
	HasType(ctx context.Context, volumeType string) (bool, error)
	Retype(ctx context.Context, target backends.Target, volumeType string, mayMigrate bool) (cinder.Volume, error)
	SnapshotsOf(ctx context.Context, volumeID string) (names []string, err error)
}

// Retyper changes the types of volumes.
type Retyper struct {
	Client kubernetes.Interface
	Policy *policy.Policy
	// Volumes returns an error if no backend of that name is configured.
	Volumes         func(backend string) (Volumes, error)
	ProvisionerName string
	Cluster         string
}

// Request is what an operator asks for.
type Request struct {
	Namespace, Claim string
	// Type is the name of the new type.
	Type string
	// Migrate lets Cinder copy the volume to another storage, which only a volume of mode
	// csi that is attached nowhere survives.
	Migrate bool

	// byClass means that a VolumeAttributesClass asks for it, and any tenant may name
	// one.
	byClass bool
}

// Plan is a change that nothing prevents, as far as can be known before trying.
type Plan struct {
	PersistentVolume string
	Volume           cinder.Volume
	Backend          string
	Type             string
	// Done means that the volume already has the type.
	Done     bool
	Warnings []string

	volumes Volumes
	target  backends.Target
	// mayMigrate lets Cinder copy the volume.
	mayMigrate bool
}

// Plan finds the claim's volume and checks everything that can be checked without a
// change. It considers only a volume that a PersistentVolume of this program and this
// cluster records, and whose stamp says so, too.
func (r *Retyper) Plan(ctx context.Context, request Request) (*Plan, error) {
	name := request.Namespace + "/" + request.Claim
	claim, err := r.Client.CoreV1().PersistentVolumeClaims(request.Namespace).Get(ctx, request.Claim, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("claim %s does not exist", name)
	case err != nil:
		return nil, fmt.Errorf("cannot read claim %s: %w", name, err)
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Errorf("claim %s is being deleted", name)
	case claim.Status.Phase != corev1.ClaimBound:
		return nil, fmt.Errorf("claim %s is not bound; its volume will get the type that the rule and the StorageClass give", name)
	case slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany):
		return nil, refuse("claim %s has the access mode ReadWriteMany, for which its volume needs its current type", name)
	}
	pv, origin, err := r.volumeOf(ctx, claim)
	if err != nil {
		return nil, err
	}
	if origin.CSI && slices.Contains(claim.Spec.AccessModes, corev1.ReadOnlyMany) {
		// Each node has its own attachment, which requires the type's multiattach
		// property.
		return nil, refuse("claim %s has the access mode ReadOnlyMany, for which its volume needs its current type", name)
	}
	if request.Migrate && !origin.CSI {
		return nil, refuse("PersistentVolume %s is native, so it records for good how its present storage is reached; move the claim to mode csi first", pv.Name)
	}
	plan := &Plan{PersistentVolume: pv.Name, Backend: origin.Backend, Type: request.Type, target: origin.Target(), mayMigrate: request.Migrate}
	plan.target.Permit = r.stillBound(pv, claim)
	if err := r.decide(ctx, plan, claim, origin, request.byClass); err != nil {
		return nil, err
	}
	if plan.volumes, err = r.Volumes(origin.Backend); err != nil {
		return nil, err
	}
	if plan.Volume, _, err = plan.volumes.Look(ctx, plan.target); err != nil {
		return nil, err
	}
	switch v := plan.Volume; {
	case v.ID == "":
		return nil, fmt.Errorf("volume %s of claim %s no longer exists at backend %s", origin.VolumeID, name, origin.Backend)
	case !plan.target.Stamp.Owns(v):
		return nil, fmt.Errorf("volume %s does not carry the stamp of claim %s; it is not touched", v.ID, name)
	case v.Type == request.Type:
		plan.Done = true
	case v.Status != cinder.StatusAvailable && v.Status != cinder.StatusInUse && v.Status != cinder.StatusRetyping:
		return nil, &refusal{cinder.KindConflict, fmt.Sprintf("volume %s is %s; only an available volume, or one in use, can get another type", v.ID, v.Status)}
	case request.Migrate && v.Status == cinder.StatusInUse:
		return nil, &refusal{cinder.KindConflict, fmt.Sprintf("volume %s is in use, and Cinder cannot copy it then; stop the pods that use claim %s, and wait until it is available", v.ID, name)}
	case !request.byClass: // which is changed at once, and then Cinder knows
		switch has, err := plan.volumes.HasType(ctx, request.Type); {
		case err != nil:
			plan.Warnings = append(plan.Warnings, fmt.Sprintf("whether there is a volume type %q cannot be read: %s", request.Type, err))
		case !has:
			return nil, refuse("backend %s: there is no volume type %q, or the project may not use it", origin.Backend, request.Type)
		}
	}
	if request.Migrate && !plan.Done {
		return plan, plan.mustHaveNoSnapshots(ctx)
	}
	return plan, nil
}

// mustHaveNoSnapshots refuses a volume that Cinder would not copy.
func (p *Plan) mustHaveNoSnapshots(ctx context.Context) error {
	snapshots, err := p.volumes.SnapshotsOf(ctx, p.Volume.ID)
	switch {
	case err != nil:
		p.Warnings = append(p.Warnings, fmt.Sprintf("whether the volume has snapshots, with which Cinder copies none, cannot be read: %s", err))
	case len(snapshots) > 0:
		return refuse("volume %s has snapshots, such as %s, and Cinder copies no volume with snapshots; delete them first", p.Volume.ID, snapshots[0])
	}
	return nil
}

// volumeOf returns the claim's PersistentVolume and what it records.
func (r *Retyper) volumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, objects.Origin, error) {
	pv, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, objects.Origin{}, fmt.Errorf("cannot read PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	if pv.Annotations[objects.AnnotationProvisionedBy] != r.ProvisionerName {
		return nil, objects.Origin{}, fmt.Errorf("PersistentVolume %s was not made by %s", pv.Name, r.ProvisionerName)
	}
	origin, err := objects.OriginOf(pv)
	switch {
	case err != nil:
	case origin.Historic:
		err = fmt.Errorf("PersistentVolume %s was made by the historic provisioner, so nothing proves whose volume it names; import the volume first", pv.Name)
	case origin.Cluster != r.Cluster:
		err = fmt.Errorf("PersistentVolume %s was made for cluster %q, but this is %q", pv.Name, origin.Cluster, r.Cluster)
	case pv.DeletionTimestamp != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		err = fmt.Errorf("PersistentVolume %s does not belong to claim %s/%s, or is being deleted", pv.Name, claim.Namespace, claim.Name)
	}
	return pv, origin, err
}

// decide asks the policy.
func (r *Retyper) decide(ctx context.Context, plan *Plan, claim *corev1.PersistentVolumeClaim, origin objects.Origin, byClass bool) error {
	namespace, err := r.Client.CoreV1().Namespaces().Get(ctx, claim.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot read namespace %s, whose labels may determine its tenant: %w", claim.Namespace, err)
	}
	class, err := r.Client.StorageV1().StorageClasses().Get(ctx, objects.ClassName(claim), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		class = nil
	case err != nil:
		return fmt.Errorf("cannot read StorageClass %s: %w", objects.ClassName(claim), err)
	}
	request := objects.RequestOf(claim, class, namespace.Labels)
	decide := r.Policy.DecideRetype
	if byClass {
		decide = r.Policy.DecideModification
	}
	decision := decide(request, policy.Holding{Tenant: origin.Tenant, Backend: origin.Backend}, plan.Type)
	if decision.Denial != nil {
		return refuse("the policy denies it: %s: %s", decision.Denial.Reason, decision.Denial.Message)
	}
	if class := claim.Status.CurrentVolumeAttributesClassName; class != nil && *class != "" && !byClass {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("claim %s/%s keeps the VolumeAttributesClass %s, which may name another type", claim.Namespace, claim.Name, *class))
	}
	if asked := request.Parameters["type"]; asked != "" && asked != plan.Type {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("StorageClass %s asks for volumes of type %q, and new claims still get that", class.Name, asked))
	}
	return nil
}

// stillBound checks at the API server, just before the request to Cinder, whether the
// volume is still the claim's.
func (r *Retyper) stillBound(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) func(context.Context, cinder.Volume) error {
	return func(ctx context.Context, _ cinder.Volume) error {
		live, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && (live.UID != pv.UID || live.DeletionTimestamp != nil || live.Spec.ClaimRef == nil || live.Spec.ClaimRef.UID != claim.UID):
			return fmt.Errorf("PersistentVolume %s was deleted or bound to another claim in the meantime", pv.Name)
		case err != nil:
			return fmt.Errorf("cannot tell whether PersistentVolume %s still exists: %w", pv.Name, err)
		}
		return nil
	}
}

// Apply changes the type, and returns the volume as it is afterwards.
func (r *Retyper) Apply(ctx context.Context, plan *Plan) (cinder.Volume, error) {
	if plan.Done {
		return plan.Volume, nil
	}
	return plan.volumes.Retype(ctx, plan.target, plan.Type, plan.mayMigrate)
}

// RetypeVolume gives the volume of a PersistentVolume the type that the
// VolumeAttributesClass of its claim names.
func (r *Retyper) RetypeVolume(ctx context.Context, pv *corev1.PersistentVolume, volumeType string) error {
	if pv.Spec.ClaimRef == nil {
		return fmt.Errorf("PersistentVolume %s is bound to no claim", pv.Name)
	}
	plan, err := r.Plan(ctx, Request{Namespace: pv.Spec.ClaimRef.Namespace, Claim: pv.Spec.ClaimRef.Name, Type: volumeType, byClass: true})
	switch {
	case err != nil:
		return err
	case plan.PersistentVolume != pv.Name:
		return fmt.Errorf("PersistentVolume %s does not belong to claim %s/%s", pv.Name, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
	}
	_, err = r.Apply(ctx, plan)
	return err
}

// refusal says why a volume does not get a type.
type refusal struct {
	kind    cinder.Kind
	message string
}

// refuse makes the refusal of a type that the volume cannot have.
func refuse(format string, arguments ...any) error {
	return &refusal{cinder.KindInvalid, fmt.Sprintf(format, arguments...)}
}

func (r *refusal) Error() string { return r.message }

// FailureKind returns the kind of the failure for the CSI driver.
func (r *refusal) FailureKind() string { return string(r.kind) }
