package imports

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// Apply carries out a plan. It may be interrupted anywhere; a new plan continues from
// what was done. Its warnings are added to those of the plan.
func (i *Importer) Apply(ctx context.Context, plan *Plan) (*corev1.PersistentVolume, error) {
	if plan.Done {
		if plan.wanted == "" && plan.Claim.Annotations[objects.AnnotationImported] == "" {
			i.noteImported(ctx, plan)
		}
		return plan.PersistentVolume, nil
	}
	if err := i.keepClaim(ctx, plan); err != nil {
		return nil, err
	}
	if i.isCSI(plan) {
		// The names by which nodes know the volume do not depend on the connection.
		if err := i.checkNodes(ctx, plan.Volume.ID, i.useOf(plan.PersistentVolume, plan.Volume)); err != nil {
			return nil, err
		}
	}
	connected, err := i.Volumes.Import(ctx, backends.Import{
		VolumeID:        plan.Volume.ID,
		Stamp:           i.stamp(plan),
		Metadata:        plan.Decision.Volume.Metadata,
		Connector:       i.Connector,
		ReadOnly:        objects.AllReadOnly(plan.Claim.Spec.AccessModes),
		Block:           objects.IsBlock(plan.Claim),
		Unclaimed:       i.checkUnclaimed,
		Granted:         i.granted(plan),
		Unattended:      plan.wanted != "",
		Contested:       plan.contested,
		CSI:             i.isCSI(plan),
		FilesystemUUIDs: plan.recordUUIDs(),
	})
	var refusal *RefusedError
	switch {
	case errors.As(err, &refusal) && plan.wanted != "":
		// The volume is no longer granted, but may have been reserved already.
		return nil, i.cancel(ctx, plan, cinder.Place{}, err)
	case err != nil:
		return nil, err
	}
	mapped, pv, err := i.mapVolume(plan, connected)
	if err == nil {
		err = plan.checkHandle(pv)
	}
	if err != nil {
		return nil, i.cancel(ctx, plan, connected.Place, err)
	}
	plan.Warnings = append(plan.Warnings, mapped.Warnings...)
	if err := i.checkNodes(ctx, plan.Volume.ID, i.useOf(pv, plan.Volume)); err != nil {
		return nil, err
	}
	if mapped.Secret != nil {
		if _, err := i.Secrets.Keep(ctx, pv.Name, i.Backend.Name, *mapped.Secret, connected.Fresh); err != nil {
			return nil, err
		}
	}
	if err := i.checkClaim(ctx, plan); err != nil {
		return nil, err
	}
	saved, err := i.save(ctx, plan, pv)
	if err != nil {
		return nil, err
	}
	if plan.wanted == "" {
		i.noteImported(ctx, plan)
	}
	return saved, nil
}

// granted returns a check of a tenant's volume, because somebody may have renamed it,
// or changed its metadata or stamp. An operator may import any.
func (i *Importer) granted(plan *Plan) func(cinder.Volume) error {
	return func(v cinder.Volume) error {
		if plan.wanted == "" || plan.Decision.Import.Grants(existing(v, plan.wanted)) && !IsForeign(v, i.Cluster, i.ClusterUID, plan.Decision.Tenant) {
			return nil
		}
		return refusedBy(policy.NoSuchVolume(plan.Decision.Rule, plan.wanted))
	}
}

// IsForeign reports whether a volume carries the stamp of another cluster or tenant.
func IsForeign(v cinder.Volume, cluster, clusterUID, tenant string) bool {
	stamp := stamps.Of(v)
	return stamp.Cluster != "" && (stamp.Cluster != cluster || stamp.ClusterUID != "" && stamp.ClusterUID != clusterUID || stamp.Tenant != tenant)
}

// existing describes a volume to the policy.
func existing(v cinder.Volume, wanted string) policy.Existing {
	return policy.Existing{Wanted: wanted, Name: v.Name, Type: v.Type, Metadata: v.Metadata}
}

// keepClaim creates the claim, unless it exists, and then looks for others that wait
// for the volume. Of two imports at the same time, each creates its claim before it
// looks, so at least one of them sees the other.
func (i *Importer) keepClaim(ctx context.Context, plan *Plan) error {
	claims := i.Client.CoreV1().PersistentVolumeClaims(plan.Claim.Namespace)
	created := false
	if plan.Claim.UID == "" {
		claim, err := claims.Create(ctx, plan.Claim, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("cannot create claim %s/%s: %w", plan.Claim.Namespace, plan.Claim.Name, err)
		}
		plan.Claim, created = claim, true
	}
	var err error
	if plan.objects, err = i.objects(ctx); err != nil {
		return err
	}
	err = i.checkRivals(plan)
	var rival *RefusedError
	if !created || !errors.As(err, &rival) {
		return err
	}
	removal := claims.Delete(ctx, plan.Claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &plan.Claim.UID}})
	if removal != nil && !apierrors.IsNotFound(removal) {
		return fmt.Errorf("%w (claim %s/%s, which was created for this import, cannot be deleted: %s)", err, plan.Claim.Namespace, plan.Claim.Name, removal.Error())
	}
	return err
}

// noteImported makes Kubernetes bind the claim now, rather than when it next looks at
// the claim.
func (i *Importer) noteImported(ctx context.Context, plan *Plan) {
	if err := objects.NoteImported(ctx, i.Client, plan.Claim, plan.Volume.ID); err != nil {
		plan.Warnings = append(plan.Warnings, fmt.Sprintf("%s; the claim may be bound a minute later", err))
	}
}

// mapVolume returns how nodes reach the volume, by its connection or by the CSI driver,
// and the PersistentVolume.
func (i *Importer) mapVolume(plan *Plan, connected backends.Connected) (mapped mappers.Result, pv *corev1.PersistentVolume, err error) {
	protocol := objects.ProtocolCSI
	if i.isCSI(plan) {
		mapped, err = i.mapCSI(plan, connected.Volume)
	} else {
		mapped, protocol, err = i.mapConnection(plan, connected)
	}
	if err != nil {
		return mappers.Result{}, nil, i.refusalError(err)
	}
	return mapped, i.record(plan, connected, protocol, mapped), nil
}

// refusalError names the backend of a volume that cannot be mapped.
func (i *Importer) refusalError(err error) error {
	var refusal *mappers.Refusal
	if errors.As(err, &refusal) {
		return objects.RefusalError(i.Backend.Name, refusal)
	}
	return err
}

// record makes the PersistentVolume as the running program and its library would.
func (i *Importer) record(plan *Plan, connected backends.Connected, protocol string, mapped mappers.Result) *corev1.PersistentVolume {
	class := plan.Class.DeepCopy()
	class.ReclaimPolicy = &plan.reclaim
	provisioned := objects.Provisioned{
		Name: objects.ImportedPVName(plan.Volume.ID), Claim: plan.Claim, Class: class, Cluster: i.Cluster,
		Tenant: plan.Decision.Tenant, Rule: plan.Decision.Rule, Revision: i.Policy.Revision(),
		Backend: i.Backend.Name, Connector: &i.Connector, NodeLabels: plan.nodeLabels,
		Connected: connected, Protocol: protocol, Mapped: mapped, SecretNamespace: i.Namespace,
	}
	if i.isCSI(plan) {
		provisioned.Connector = nil
	}
	pv := objects.NewPersistentVolume(provisioned)
	pv.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"}
	pv.Annotations[objects.AnnotationProvisionedBy] = i.ProvisionerName
	pv.Spec.StorageClassName = class.Name
	pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: plan.Claim.Namespace, Name: plan.Claim.Name, UID: plan.Claim.UID}
	return pv
}

func (i *Importer) mapConnection(plan *Plan, connected backends.Connected) (mapped mappers.Result, protocol string, err error) {
	connection, err := mappers.ParseConnection(connected.Document)
	if err != nil {
		return mappers.Result{}, "", err
	}
	request := objects.MapClaimRequest(connection, plan.pvName(), i.Connector, plan.Claim, connected.Volume)
	request.FSType = plan.Decision.Volume.FSType
	request.MountOptions = plan.Class.MountOptions
	request.Backend = i.Backend.Name
	request.Mappings = i.Backend.Mapping
	request.Tenant = plan.Decision.Tenant
	mapped, err = i.Mappers.Map(request)
	return mapped, connection.Protocol(), err
}

// checkHandle refuses a volume that nodes would take for another one.
func (plan *Plan) checkHandle(pv *corev1.PersistentVolume) error {
	if taken := objects.OtherByHandle(plan.objects.PersistentVolumes, pv.Spec.PersistentVolumeSource, pv.Name); taken != "" {
		return mappers.HandleTaken(pv.Annotations[objects.AnnotationProtocol], pv.Spec.CSI, taken)
	}
	return nil
}

// checkNodes refuses a volume that a node still uses, because another node would mount
// it while the first one writes.
func (i *Importer) checkNodes(ctx context.Context, volumeID string, use nodeuse.Volume) error {
	look := func() ([]string, error) { return i.Nodes.Users(ctx, use) }
	if i.onlyCached {
		look = func() ([]string, error) { return i.Nodes.Known(use) }
	}
	users, err := look()
	if err == nil && len(users) > 0 {
		err = refused("node %s still uses volume %s; run the command again when it has unmounted it", strings.Join(users, ", "), volumeID)
	}
	return err
}

// checkClaim refuses to record a volume for a claim that was deleted while the volume
// was being connected. The PersistentVolume would be released at once, and with the
// reclaim policy Delete, the volume would be removed.
func (i *Importer) checkClaim(ctx context.Context, plan *Plan) error {
	claim, err := i.Client.CoreV1().PersistentVolumeClaims(plan.Claim.Namespace).Get(ctx, plan.Claim.Name, metav1.GetOptions{})
	switch {
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether claim %s/%s still exists: %w", plan.Claim.Namespace, plan.Claim.Name, err)
	case err != nil || claim.UID != plan.Claim.UID || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != plan.Claim.Spec.VolumeName:
		return refused("claim %s/%s was deleted during the import; run the command again if you still want to import the volume", plan.Claim.Namespace, plan.Claim.Name)
	}
	return nil
}

// save creates the PersistentVolume. If it exists already, it must be that of the same
// import.
func (i *Importer) save(ctx context.Context, plan *Plan, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	pvs := i.Client.CoreV1().PersistentVolumes()
	saved, err := pvs.Create(ctx, pv, metav1.CreateOptions{})
	switch {
	case err == nil:
		return saved, nil
	case !apierrors.IsAlreadyExists(err):
		return nil, fmt.Errorf("cannot create PersistentVolume %s: %w", pv.Name, err)
	}
	existing, err := pvs.Get(ctx, pv.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read PersistentVolume %s: %w", pv.Name, err)
	case !i.isRecord(existing, plan.Claim, plan.Volume):
		return nil, refused("PersistentVolume %s exists, and is not for claim %s/%s", pv.Name, plan.Claim.Namespace, plan.Claim.Name)
	}
	return existing, nil
}

// cancel disconnects a volume that cannot be used. The volume stays stamped, so it can
// be imported again when the cause is gone. If another run of this import has recorded
// the volume, or may have, the volume stays connected, because pods may use it.
func (i *Importer) cancel(ctx context.Context, plan *Plan, at cinder.Place, cause error) error {
	_, err := i.Client.CoreV1().PersistentVolumes().Get(ctx, objects.ImportedPVName(plan.Volume.ID), metav1.GetOptions{})
	switch {
	case err == nil:
		return cause
	case apierrors.IsNotFound(err):
		err = i.Volumes.CancelImport(ctx, backends.Target{VolumeID: plan.Volume.ID, Stamp: i.stamp(plan), Connector: i.Connector, Place: at})
	}
	if err != nil && !cinder.IsKind(err, backends.KindNotOurs) {
		return fmt.Errorf("%w (the volume cannot be disconnected again: %s)", cause, err.Error())
	}
	return cause
}
