package imports

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// Plan finds the volume and checks everything that can be checked without a change. An
// error that is a *RefusedError, or comes from the state of the volume, says what
// prevents the import.
func (i *Importer) Plan(ctx context.Context, r Request) (*Plan, error) {
	v, err := i.find(ctx, r.Volume)
	switch {
	case err != nil:
		return nil, err
	case r.OnlyID && v.ID != r.Volume:
		return nil, refused("backend %s has no volume with the ID %q in its project; that of volume %s is only a name", i.Backend.Name, r.Volume, v.ID)
	}
	plan := &Plan{Volume: v, reclaim: r.ReclaimPolicy, given: r.FilesystemUUIDs}
	if plan.Class, err = i.findClass(ctx, r.StorageClass); err != nil {
		return nil, err
	}
	if err := i.findClaim(ctx, plan, r); err != nil {
		return nil, err
	}
	return i.check(ctx, plan)
}

// PlanForTenant checks an import for a claim that asks for a volume of the backend.
// wanted is how the claim names the volume. contested means that another party reserved
// the volume during an earlier run.
func (i *Importer) PlanForTenant(ctx context.Context, claim *corev1.PersistentVolumeClaim, v cinder.Volume, wanted string, contested bool) (*Plan, error) {
	plan := &Plan{Volume: v, Claim: claim, wanted: wanted, contested: contested, reclaim: corev1.PersistentVolumeReclaimRetain}
	var err error
	if plan.Class, err = i.findClass(ctx, objects.ClassName(claim)); err != nil {
		return nil, err
	}
	if err := admissible(plan); err != nil {
		return nil, err
	}
	return i.check(ctx, plan)
}

// check checks whether anything prevents the import of a volume for a claim.
func (i *Importer) check(ctx context.Context, plan *Plan) (*Plan, error) {
	v := plan.Volume
	var err error
	if plan.objects, err = i.objects(ctx); err != nil {
		return nil, err
	}
	if err := i.checkPersistentVolumes(ctx, plan); err != nil || plan.Done {
		return plan, err
	}
	if err := i.decide(ctx, plan); err != nil {
		return nil, err
	}
	if err := i.checkRivals(plan); err != nil {
		return nil, err
	}
	stamp := i.stamp(plan)
	if err := i.Volumes.Importable(v, stamp, i.Connector, i.isCSI(plan)); err != nil {
		return nil, err
	}
	switch other := stamps.Of(v); {
	case other.Cluster == "" && other.PV != "":
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("the metadata of volume %s names claim %s/%s and PersistentVolume %s, perhaps of another cluster; make sure that nothing there needs it", v.ID, other.Namespace, other.Claim, other.PV))
	case other.Cluster != "" && !stamp.Holds(v):
		if err := i.checkUnclaimed(ctx, v); err != nil {
			return nil, err
		}
	}
	if err := i.checkMode(ctx, plan); err != nil {
		return nil, err
	}
	plan.describe(i)
	return plan, nil
}

// find finds a volume by its ID or its name.
func (i *Importer) find(ctx context.Context, volume string) (cinder.Volume, error) {
	all, err := i.Volumes.All(ctx)
	if err != nil {
		return cinder.Volume{}, err
	}
	return findOne(all, "volume", "backend "+i.Backend.Name, volume, func(v cinder.Volume) (string, string) { return v.ID, v.Name })
}

func (i *Importer) findClass(ctx context.Context, name string) (*storagev1.StorageClass, error) {
	class, err := read(ctx, i, i.Caches.Classes, name, i.Client.StorageV1().StorageClasses().Get)
	switch {
	case apierrors.IsNotFound(err):
		return nil, refused("StorageClass %q does not exist", name)
	case err != nil:
		return nil, fmt.Errorf("cannot read StorageClass %s: %w", name, err)
	case !objects.IsServed(class.Provisioner, i.ProvisionerName):
		return nil, refused("StorageClass %s belongs to the provisioner %q, not to %q", name, class.Provisioner, i.ProvisionerName)
	}
	return class, nil
}

// findClaim reads the claim, or makes the one that will be created. An existing claim
// must already wait for the PersistentVolume, because the program may be provisioning a
// volume for any other claim.
func (i *Importer) findClaim(ctx context.Context, plan *Plan, r Request) error {
	name := objects.ImportedPVName(plan.Volume.ID)
	claim, err := i.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Claim, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		plan.Claim = newClaim(plan, r)
		return admissible(plan)
	case err != nil:
		return fmt.Errorf("cannot read claim %s/%s: %w", r.Namespace, r.Claim, err)
	case claim.DeletionTimestamp != nil:
		return refused("claim %s/%s is being deleted; wait until it is gone", r.Namespace, r.Claim)
	case claim.Spec.VolumeName == "":
		return refused("claim %s/%s exists and does not name a PersistentVolume, so a new volume is made for it; delete it, or create it with spec.volumeName: %s", r.Namespace, r.Claim, name)
	case claim.Spec.VolumeName != name:
		return refused("claim %s/%s is for PersistentVolume %s, not for %s", r.Namespace, r.Claim, claim.Spec.VolumeName, name)
	case objects.ProvisionerOf(claim) != "":
		// Kubernetes wrote this while the claim did not yet name a PersistentVolume. A
		// volume of the claim may exist, and both would count as one.
		return refused("claim %s/%s named PersistentVolume %s only after a new volume had been requested for it; delete it, and create it anew without the annotation %s", r.Namespace, r.Claim, name, objects.AnnotationStorageProvisioner)
	case claim.Status.Phase == corev1.ClaimLost:
		return refused("claim %s/%s has lost its PersistentVolume and cannot be bound again; delete it", r.Namespace, r.Claim)
	case objects.ClassName(claim) != r.StorageClass:
		return refused("claim %s/%s has StorageClass %q, not %q", r.Namespace, r.Claim, objects.ClassName(claim), r.StorageClass)
	}
	plan.Claim = claim
	return admissible(plan)
}

// newClaim returns the claim that an import creates.
func newClaim(plan *Plan, r Request) *corev1.PersistentVolumeClaim {
	size := cmp.Or(r.Size, resource.NewQuantity(plan.Volume.SizeGiB<<30, resource.BinarySI))
	mode := cmp.Or(r.VolumeMode, corev1.PersistentVolumeFilesystem)
	modes := r.AccessModes
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      modes,
			VolumeMode:       &mode,
			StorageClassName: &plan.Class.Name,
			VolumeName:       objects.ImportedPVName(plan.Volume.ID),
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *size}},
		},
	}
}

// admissible checks the claim itself, before the policy.
func admissible(plan *Plan) error {
	claim := plan.Claim
	if claim.Spec.DataSource != nil || claim.Spec.DataSourceRef != nil {
		return refused("claim %s/%s asks for the content of another object; an imported volume has its own", claim.Namespace, claim.Name)
	}
	if denial := admission.Refusal(claim, plan.Class.Parameters); denial != nil {
		return refused("%s: %s", denial.Reason, denial.Message)
	}
	if plan.Volume.Encrypted {
		return refused("volume %s is encrypted by Cinder, and such volumes cannot be imported", plan.Volume.ID)
	}
	if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteMany) && !plan.Volume.MultiAttach {
		return refused("claim %s/%s has the access mode ReadWriteMany, but volume %s does not allow several hosts (multiattach)", claim.Namespace, claim.Name, plan.Volume.ID)
	}
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if has := plan.Volume.SizeGiB << 30; policy.Bytes(requested) > has {
		return refused("claim %s/%s requests %s, but volume %s has %d GiB; extend it first, or request less", claim.Namespace, claim.Name, requested.String(), plan.Volume.ID, plan.Volume.SizeGiB)
	}
	return nil
}

// decide asks the policy about a claim of the volume's size, because that is what the
// namespace gets.
func (i *Importer) decide(ctx context.Context, plan *Plan) error {
	claim := plan.Claim
	namespace, err := read(ctx, i, i.Caches.Namespaces, claim.Namespace, i.Client.CoreV1().Namespaces().Get)
	switch {
	case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
		return refused("namespace %s does not exist, or is being deleted", claim.Namespace)
	case err != nil:
		return fmt.Errorf("cannot read namespace %s, whose labels may determine its tenant: %w", claim.Namespace, err)
	}
	request := objects.RequestOf(claim, plan.Class, namespace.Labels)
	request.Bytes = plan.Volume.SizeGiB << 30
	if plan.wanted != "" {
		asked := existing(plan.Volume, plan.wanted)
		request.Import = &asked
	}
	plan.Decision = i.Policy.Decide(request)
	switch {
	case plan.Decision.Denial != nil && plan.wanted != "":
		return refusedBy(plan.Decision.Denial)
	case plan.Decision.Denial != nil && plan.Decision.Denial.Reason == policy.VolumeAttributesClassNotFound:
		return refused("claim %s/%s names a VolumeAttributesClass, and an imported volume keeps its type; create the claim without it, and name the class when the claim is bound", claim.Namespace, claim.Name)
	case plan.Decision.Denial != nil:
		return refused("the policy denies claim %s/%s of %d GiB: %s: %s", claim.Namespace, claim.Name, plan.Volume.SizeGiB, plan.Decision.Denial.Reason, plan.Decision.Denial.Message)
	case !slices.Contains(plan.Decision.Backends, i.Backend.Name):
		return refused("%s grants claim %s/%s only volumes of backend %s, not of %s", plan.Decision.Rule, claim.Namespace, claim.Name, strings.Join(plan.Decision.Backends, ", "), i.Backend.Name)
	}
	if err := plan.checkEncryption(); err != nil {
		return err
	}
	if fixed := plan.Decision.Volume.AvailabilityZone; fixed != "" && fixed != plan.Volume.Zone {
		return refused("volume %s is in availability zone %q, but claims of StorageClass %s in namespace %s get volumes in %q (%s, or the StorageClass's parameter)",
			plan.Volume.ID, plan.Volume.Zone, plan.Class.Name, claim.Namespace, fixed, plan.Decision.Rule)
	}
	plan.nodeLabels = i.Backend.Connector.NodeLabels
	if placement, mapped := plan.Decision.PlacementOn(i.Backend.Name); mapped {
		zone, usable := placement.Zone(plan.Volume.Zone)
		if !usable {
			return refused("volume %s is in availability zone %q, but on backend %s claim %s/%s can use only %s; see the zones of the backend in the policy, and the allowedTopologies of StorageClass %s",
				plan.Volume.ID, plan.Volume.Zone, i.Backend.Name, claim.Namespace, claim.Name, strings.Join(placement.Names(), ", "), plan.Class.Name)
		}
		plan.nodeLabels = zone.NodeLabels
	}
	if wanted := plan.Decision.Volume.Type; wanted != "" && wanted != plan.Volume.Type {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("%s asks for volumes of type %q, but this one has type %q, which it keeps", plan.Decision.Rule, wanted, plan.Volume.Type))
	}
	return nil
}

// checkPersistentVolumes refuses a volume that a PersistentVolume of any provisioner
// names. If it is the PersistentVolume of this claim, nothing is left to do.
func (i *Importer) checkPersistentVolumes(ctx context.Context, plan *Plan) error {
	own, err := read(ctx, i, i.Caches.PersistentVolumes, plan.pvName(), i.Client.CoreV1().PersistentVolumes().Get)
	naming := slices.DeleteFunc(objects.Naming(plan.objects.PersistentVolumes, plan.Volume.ID), func(pv *corev1.PersistentVolume) bool { return pv.Name == plan.pvName() })
	switch {
	case err == nil:
		naming = append(naming, own)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", plan.pvName(), err)
	}
	for _, pv := range naming {
		switch {
		case i.isRecord(pv, plan.Claim, plan.Volume):
			plan.Done, plan.PersistentVolume = true, pv
			plan.warnFilesystem(pv)
			if has := pv.Spec.PersistentVolumeReclaimPolicy; has != plan.reclaim {
				plan.Warnings = append(plan.Warnings, fmt.Sprintf("PersistentVolume %s has the reclaim policy %s, not %s; to change it, run: kubectl patch pv %s -p '{\"spec\":{\"persistentVolumeReclaimPolicy\":\"%s\"}}'",
					pv.Name, has, plan.reclaim, pv.Name, plan.reclaim))
			}
		default:
			return refused("PersistentVolume %s names volume %s; if nothing needs it, set its persistentVolumeReclaimPolicy to Retain, and delete its claim and then the object", pv.Name, plan.Volume.ID)
		}
	}
	return nil
}

// isRecord reports whether a PersistentVolume is the one that this import makes.
func (i *Importer) isRecord(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim, v cinder.Volume) bool {
	ref := pv.Spec.ClaimRef
	return pv.Name == objects.ImportedPVName(v.ID) && pv.Annotations[objects.AnnotationVolume] == v.ID && pv.Annotations[objects.AnnotationCluster] == i.Cluster &&
		pv.DeletionTimestamp == nil && claim.UID != "" && ref != nil && ref.UID == claim.UID
}

// checkRivals refuses a volume that another claim waits for.
func (i *Importer) checkRivals(plan *Plan) error {
	var others []string
	for _, other := range objects.ClaimsFor(plan.objects.Claims, plan.pvName()) {
		if other.Namespace != plan.Claim.Namespace || other.Name != plan.Claim.Name {
			others = append(others, other.Namespace+"/"+other.Name)
		}
	}
	switch {
	case len(others) > 0 && plan.wanted != "":
		// They may belong to another tenant, so they are not named.
		return refused("another claim waits for volume %s", plan.Volume.ID)
	case len(others) > 0:
		return refused("claim %s waits for the same volume (spec.volumeName: %s); delete the claim that should not get it", strings.Join(others, ", "), plan.pvName())
	}
	return nil
}

// checkUnclaimed refuses a volume with a stamp of this cluster as long as Kubernetes
// has the claim or the PersistentVolume that it was stamped for, or a node uses it by
// the name of that PersistentVolume. A restored backup carries the stamp of the volume
// that it copies; it is free if the claim has that volume.
func (i *Importer) checkUnclaimed(ctx context.Context, v cinder.Volume) error {
	stamp := stamps.Of(v)
	pv, err := read(ctx, i, i.Caches.PersistentVolumes, stamp.PV, i.Client.CoreV1().PersistentVolumes().Get)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("cannot tell whether PersistentVolume %s exists: %w", stamp.PV, err)
	case stamps.IsCopy(v) && objects.IsOurs(pv) && !objects.Names(pv, v.ID):
		return nil
	default:
		return refused("volume %s is stamped for PersistentVolume %s, which exists", v.ID, stamp.PV)
	}
	claim, err := read(ctx, i, i.Caches.Claims, stamp.Namespace+"/"+stamp.Claim, i.Client.CoreV1().PersistentVolumeClaims(stamp.Namespace).Get)
	switch {
	case err == nil && string(claim.UID) == stamp.Holder():
		return refused("volume %s is stamped for claim %s/%s, which exists", v.ID, stamp.Namespace, stamp.Claim)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether claim %s/%s exists: %w", stamp.Namespace, stamp.Claim, err)
	}
	// Once the stamp is replaced, nothing shows under which name a node may still be
	// using the volume.
	return i.checkNodes(ctx, v.ID, nodeuse.Volume{PV: stamp.PV, ID: v.ID, MayAttach: true})
}

// describe lists the changes to come.
func (p *Plan) describe(i *Importer) {
	step := func(format string, arguments ...any) { p.Steps = append(p.Steps, fmt.Sprintf(format, arguments...)) }
	if p.Claim.UID == "" {
		step("create claim %s/%s, which waits for PersistentVolume %s", p.Claim.Namespace, p.Claim.Name, p.PersistentVolume.Name)
	}
	if !i.stamp(p).Holds(p.Volume) {
		step("stamp volume %s (%s, %d GiB) for that claim, tenant %s%s", p.Volume.ID, p.Volume.Name, p.Volume.SizeGiB, p.Decision.Tenant, map[bool]string{true: ", in mode csi"}[i.isCSI(p)])
	}
	if i.isCSI(p) {
		step("write the Secret %s/%s, which is empty until a node gets the volume", i.Namespace, objects.NodeSecretName(p.PersistentVolume.Name))
	} else {
		step("reserve and connect the volume for %s, by the workflow of backend %s", i.Connector.Host, i.Backend.Name)
		step("write the Secret %s/%s, if the connection has credentials of its own", i.Namespace, objects.SecretName(p.PersistentVolume.Name))
	}
	step("create PersistentVolume %s with the reclaim policy %s, and annotate the claim", p.PersistentVolume.Name, p.reclaim)
}
