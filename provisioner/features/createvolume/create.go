package createvolume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Create implements controller.Maker. It waits until the hub has provisioned the claim,
// and describes the claim's PersistentVolume. If the caller then writes a
// PersistentVolume for the claim, it finds that it exists.
func (m *Maker) Create(ctx context.Context, wanted controller.Creation) (controller.Created, error) {
	claim, own, err := m.claimOf(ctx, wanted)
	if err != nil {
		return controller.Created{}, err
	}
	described := fmt.Sprintf("claim %s/%s", claim.Namespace, claim.Name)
	denied := false
	pv, made, err := await(ctx, func() (*corev1.PersistentVolume, bool, error) {
		pv, err := m.recordedFor(claim)
		if err != nil || pv == nil || !own {
			return pv, pv != nil, err
		}
		// A trusted caller may next ask for something that requires a bound claim.
		bound, err := m.isBound(ctx, claim, pv)
		return pv, bound, err
	}, func() error {
		why := m.denied(described, claim)
		denied = why != nil
		return why
	})
	switch {
	case denied && own:
		// The caller knows of no volume that it could delete.
		if err := deleteObject(ctx, claim, m.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete); err != nil {
			m.Logger.Warn("Could not delete a claim that was made for a call of the CSI driver", "claim", described, "error", err)
		}
		return controller.Created{}, err
	case err != nil:
		return controller.Created{}, err
	case !made:
		why := "it is being provisioned"
		if waits, does := m.ClaimWaits(claim.Namespace, claim.Name); does && waits.Message != "" {
			why = waits.Message
		}
		return controller.Created{}, failure(conflict, "%s has no volume yet: %s", described, why)
	}
	return createdAs(pv, wanted, described)
}

// isBound reports whether Kubernetes has bound a claim to its PersistentVolume.
// Kubernetes writes this on the PersistentVolume first.
func (m *Maker) isBound(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) (bool, error) {
	if pv.Status.Phase != corev1.VolumeBound {
		return false, nil
	}
	now, err := m.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, failure(conflict, "claim %s/%s is gone", claim.Namespace, claim.Name)
	case err != nil:
		return false, err
	}
	return now.UID == claim.UID && now.Status.Phase == corev1.ClaimBound, nil
}

// claimOf returns the claim that asks for the volume. own means that it was made for a
// trusted caller.
func (m *Maker) claimOf(ctx context.Context, wanted controller.Creation) (claim *corev1.PersistentVolumeClaim, own bool, err error) {
	namespace, name := wanted.Parameters[parameterClaimNamespace], wanted.Parameters[parameterClaim]
	switch {
	case name != "" && namespace != "":
		claim, err := m.existing(ctx, namespace, name, wanted.Name)
		return claim, false, err
	case m.TrustParameters:
		claim, err := m.ownClaim(ctx, wanted)
		return claim, true, err
	}
	return nil, false, failure(invalid, "the request has no parameters %s and %s, so the program cannot tell which claim asks for the volume; external-provisioner sends them with --extra-create-metadata", parameterClaimNamespace, parameterClaim)
}

// existing returns the claim that external-provisioner names. The name of the volume
// proves which claim it means, because another claim may have taken the name.
func (m *Maker) existing(ctx context.Context, namespace, name, volume string) (*corev1.PersistentVolumeClaim, error) {
	claim, err := m.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	switch {
	case err != nil || objects.PVNameOf(claim) != volume:
		return nil, failure(controller.Denied, "no claim %s/%s has the UID at the end of the volume's name, %q", namespace, name, volume)
	case claim.DeletionTimestamp != nil:
		return nil, failure(controller.Denied, "claim %s/%s is being deleted", namespace, name)
	}
	class, err := m.Classes.Get(objects.ClassName(claim))
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err != nil || !m.Serves(class.Provisioner) {
		return nil, failure(controller.Denied, "claim %s/%s has the StorageClass %q, whose provisioner is neither this program nor, if a rule of the policy has mode csi, the driver", namespace, name, objects.ClassName(claim))
	}
	return claim, nil
}

// ownClaim makes the claim for a trusted caller, or finds it.
func (m *Maker) ownClaim(ctx context.Context, wanted controller.Creation) (*corev1.PersistentVolumeClaim, error) {
	claim, err := m.newClaim(ctx, wanted)
	if err != nil {
		return nil, err
	}
	claims := m.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	made, err := claims.Create(ctx, claim, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		if apierrors.IsNotFound(err) {
			return nil, failure(invalid, "namespace %q does not exist", claim.Namespace)
		}
		return made, err
	}
	attributes, err := m.attributesFor(ctx, wanted.Type)
	if err != nil {
		return nil, err
	}
	present, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && present.DeletionTimestamp != nil:
		return nil, failure(conflict, "an earlier volume %q is being deleted", wanted.Name)
	case err != nil:
		return nil, err
	case present.Annotations[objects.AnnotationVolumeName] != wanted.Name:
		return nil, failure(controller.AlreadyExists, "claim %s/%s was not made for a volume of that name", present.Namespace, present.Name)
	case objects.ClassName(present) != objects.ClassName(claim), objects.IsBlock(present) != wanted.Block, !equality.Semantic.DeepEqual(present.Spec.DataSource, claim.Spec.DataSource),
		!slices.ContainsFunc(attributes, isNamedBy(present)),
		!slices.Equal(slices.Sorted(slices.Values(present.Spec.AccessModes)), slices.Sorted(slices.Values(claim.Spec.AccessModes))):
		return nil, failure(controller.AlreadyExists, "the volume %q was requested with another StorageClass, another type, other capabilities or another source", wanted.Name)
	}
	if request := policy.Bytes(present.Spec.Resources.Requests[corev1.ResourceStorage]); request < wanted.Bytes || wanted.AtMost > 0 && request > wanted.AtMost {
		return nil, failure(controller.AlreadyExists, "the volume %q was requested with %d bytes", wanted.Name, request)
	}
	return present, nil
}

// accessModes maps the access modes of a request to those of claims.
var accessModes = map[controller.AccessMode]corev1.PersistentVolumeAccessMode{
	controller.OneNode: corev1.ReadWriteOnce, controller.OnePod: corev1.ReadWriteOncePod, controller.ManyReaders: corev1.ReadOnlyMany, controller.ManyWriters: corev1.ReadWriteMany,
}

// newClaim returns a claim for what a trusted caller wants.
func (m *Maker) newClaim(ctx context.Context, wanted controller.Creation) (*corev1.PersistentVolumeClaim, error) {
	namespace, className := wanted.Parameters[ParameterNamespace], wanted.Parameters[ParameterStorageClass]
	for key := range wanted.Parameters {
		if key != ParameterNamespace && key != ParameterStorageClass {
			return nil, failure(invalid, "unknown parameter %q; only %s and %s are supported", key, ParameterNamespace, ParameterStorageClass)
		}
	}
	if namespace == "" || className == "" {
		return nil, failure(invalid, "the parameters %s and %s are required", ParameterNamespace, ParameterStorageClass)
	}
	class, err := m.Classes.Get(className)
	switch {
	case apierrors.IsNotFound(err):
		return nil, failure(invalid, "StorageClass %q does not exist", className)
	case err != nil:
		return nil, err
	case class.Provisioner != wire.DriverName || !m.Serves(class.Provisioner):
		return nil, failure(invalid, "StorageClass %q does not name the driver as its provisioner, or no rule of the policy has mode csi", className)
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil, failure(invalid, "StorageClass %q waits for a pod (volumeBindingMode), but there will be none", className)
	case class.ReclaimPolicy != nil && *class.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return nil, failure(invalid, "StorageClass %q keeps volumes, so the driver could not delete them", className)
	}
	mode := corev1.PersistentVolumeFilesystem
	if wanted.Block {
		mode = corev1.PersistentVolumeBlock
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: objects.NameForCaller(wanted.Name), Annotations: map[string]string{objects.AnnotationVolumeName: wanted.Name}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &className, VolumeMode: &mode,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(wanted.Bytes, resource.BinarySI)}},
		},
	}
	for _, mode := range wanted.AccessModes {
		claim.Spec.AccessModes = append(claim.Spec.AccessModes, accessModes[mode])
	}
	attributes, err := m.attributesFor(ctx, wanted.Type)
	if err != nil {
		return nil, err
	}
	claim.Spec.VolumeAttributesClassName = attributes[0]
	claim.Spec.DataSource, err = m.sourceOf(ctx, namespace, wanted)
	return claim, err
}

// attributesFor returns the names of the driver's VolumeAttributesClasses with a volume
// type, sorted, because there may be more by the next call. A claim cannot ask for a
// type in any other way. Without a type, the only element is nil.
func (m *Maker) attributesFor(ctx context.Context, volumeType string) ([]*string, error) {
	if volumeType == "" {
		return []*string{nil}, nil
	}
	classes, err := m.Client.StorageV1().VolumeAttributesClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []*string
	for _, class := range classes.Items {
		if class.DriverName == wire.DriverName && len(class.Parameters) == 1 && class.Parameters[policy.AttributesType] == volumeType {
			names = append(names, &class.Name)
		}
	}
	if len(names) == 0 {
		return nil, failure(invalid, "no VolumeAttributesClass of the driver names the type %q", volumeType)
	}
	slices.SortFunc(names, func(a, b *string) int { return strings.Compare(*a, *b) })
	return names, nil
}

// isNamedBy returns a function that reports whether a claim names a class.
func isNamedBy(claim *corev1.PersistentVolumeClaim) func(class *string) bool {
	return func(class *string) bool {
		return equality.Semantic.DeepEqual(class, claim.Spec.VolumeAttributesClassName)
	}
}

// sourceOf returns the source of a volume as a claim of the namespace would name it.
func (m *Maker) sourceOf(ctx context.Context, namespace string, wanted controller.Creation) (*corev1.TypedLocalObjectReference, error) {
	switch {
	case wanted.FromVolume != "":
		for _, pv := range objects.ByHandle(m.PersistentVolumes, wire.DriverName, wanted.FromVolume) {
			if ref := pv.Spec.ClaimRef; ref != nil && ref.Namespace == namespace {
				return &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: ref.Name}, nil
			}
		}
		return nil, failure(notFound, "namespace %s has no volume %q to copy", namespace, wanted.FromVolume)
	case wanted.FromSnapshot != "":
		contents, err := m.SnapshotClient.SnapshotV1().VolumeSnapshotContents().List(ctx, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			for _, content := range contents.Items {
				if content.Status != nil && content.Status.SnapshotHandle != nil && *content.Status.SnapshotHandle == wanted.FromSnapshot && content.Spec.VolumeSnapshotRef.Namespace == namespace {
					group := "snapshot.storage.k8s.io"
					return &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: content.Spec.VolumeSnapshotRef.Name}, nil
				}
			}
		}
		return nil, failure(notFound, "namespace %s has no VolumeSnapshot of a snapshot %q", namespace, wanted.FromSnapshot)
	}
	return nil, nil
}

// recordedFor returns the PersistentVolume that the hub made for a claim; nil if there
// is none yet.
func (m *Maker) recordedFor(claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, err := m.volumeOf(objects.PVNameOf(claim))
	switch {
	case err != nil || pv == nil:
		return nil, err
	case pv.Annotations[objects.AnnotationClaimUID] != string(claim.UID) || pv.Annotations[objects.AnnotationCluster] != m.Cluster:
		return nil, failure(controller.AlreadyExists, "PersistentVolume %s exists, and this program did not make it", pv.Name)
	case !objects.IsCSI(pv):
		return nil, failure(controller.Denied, "claim %s/%s is served by a rule in mode native, without the driver", claim.Namespace, claim.Name)
	case pv.DeletionTimestamp != nil || pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed:
		return nil, failure(conflict, "PersistentVolume %s is being deleted", pv.Name)
	}
	return pv, nil
}

// denied returns an error if the policy denies the claim, unless the cause goes away by
// itself.
func (m *Maker) denied(described string, claim *corev1.PersistentVolumeClaim) error {
	waits, does := m.ClaimWaits(claim.Namespace, claim.Name)
	if !does || !waits.Denied {
		return nil
	}
	switch policy.Reason(waits.Reason) {
	case policy.QuotaExceeded:
		return failure(controller.NoRoom, "%s: %s", described, waits.Message)
	case policy.VolumeTooLarge, policy.VolumeTooSmall, policy.ClaimLimitTooSmall:
		return failure(controller.OutOfRange, "%s: %s", described, waits.Message)
	case policy.SourceNotFound:
		return failure(notFound, "%s: %s", described, waits.Message)
	case policy.SourceNotReady, policy.BackendsSuspended, policy.VolumeAttributesClassNotFound, "StorageClassNotFound":
		return nil
	}
	return failure(controller.Denied, "%s: %s", described, waits.Message)
}

// createdAs describes a PersistentVolume if it is what the caller wants.
func createdAs(pv *corev1.PersistentVolume, wanted controller.Creation, described string) (controller.Created, error) {
	volume, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
	if err != nil {
		return controller.Created{}, failure(controller.Damaged, "PersistentVolume %s: %s", pv.Name, err)
	}
	bytes := objects.SizeGiB(pv) << 30
	block := pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
	switch {
	case bytes < wanted.Bytes || wanted.AtMost > 0 && bytes > wanted.AtMost:
		return controller.Created{}, failure(controller.AlreadyExists, "%s has a volume of %d bytes", described, bytes)
	case block != wanted.Block:
		return controller.Created{}, failure(controller.AlreadyExists, "%s has a volume of the other volumeMode", described)
	}
	return controller.Created{Volume: volume, Bytes: bytes, Context: pv.Spec.CSI.VolumeAttributes}, nil
}

// deletionTime is how long the deletion of an object may take, even if its caller no
// longer waits.
const deletionTime = 5 * time.Second

// deleteObject deletes an object, but not another one of its name.
func deleteObject(ctx context.Context, object metav1.Object, by func(context.Context, string, metav1.DeleteOptions) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deletionTime)
	defer cancel()
	err := by(ctx, object.GetName(), metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.GetUID()))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
