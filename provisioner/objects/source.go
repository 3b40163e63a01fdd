package objects

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// CopyFinalizer keeps a claim while its content is copied: otherwise, deleting the source
// of a pending claim would delete the content that the claim waits for. It serves the
// same purpose as provisioner.storage.kubernetes.io/cloning-protection, which the
// standard external-provisioner would remove on its own terms.
const CopyFinalizer = Prefix + "content-is-copied"

// Source is the content that a claim requests.
type Source struct {
	// Decided is the policy's view of the source.
	Decided policy.Source
	// Content is what Cinder copies.
	Content backends.Source
	// FilesystemUUIDs are the recorded UUIDs that the content's filesystem may have.
	FilesystemUUIDs []string
	// NeverFormat means that the content may be data that no probe recognizes, because
	// the program did not create its volume for the CSI driver.
	NeverFormat bool
	// Encrypted is that of wire.Volume.
	Encrypted string
}

// SourceReader reads a source's objects from caches, a listing or the API server. Its
// errors are the API server's.
type SourceReader interface {
	Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error)
	PersistentVolume(name string) (*corev1.PersistentVolume, error)
}

// SourceOf finds the content of a data source, or explains why it cannot be used. An
// empty cluster matches any.
func SourceOf(claim *corev1.PersistentVolumeClaim, named *admission.DataSource, cluster string, from SourceReader) (*Source, *policy.Denial, error) {
	described := fmt.Sprintf("claim %s/%s", claim.Namespace, named.Name)
	deny := func(reason policy.Reason, format string, arguments ...any) (*Source, *policy.Denial, error) {
		return nil, &policy.Denial{Reason: reason, Message: described + ", whose content this claim asks for, " + fmt.Sprintf(format, arguments...)}, nil
	}
	if named.Name == claim.Name {
		return deny(policy.SourceNotFound, "is this claim itself")
	}
	source, err := from.Claim(claim.Namespace, named.Name)
	switch {
	case apierrors.IsNotFound(err):
		return deny(policy.SourceNotFound, "does not exist")
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read %s, whose content this claim asks for: %w", described, err)
	case source.DeletionTimestamp != nil && !slices.Contains(source.Finalizers, CopyFinalizer):
		return deny(policy.SourceNotFound, "is being deleted")
	case source.Status.Phase != corev1.ClaimBound || source.Spec.VolumeName == "":
		return deny(policy.SourceNotReady, "is not bound yet")
	}
	pv, err := from.PersistentVolume(source.Spec.VolumeName)
	switch {
	case apierrors.IsNotFound(err):
		return deny(policy.SourceNotReady, "is bound to PersistentVolume %s, which does not exist", source.Spec.VolumeName)
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read PersistentVolume %s of %s: %w", source.Spec.VolumeName, described, err)
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != source.UID:
		return deny(policy.SourceNotReady, "names PersistentVolume %s, which is bound to another claim", pv.Name)
	case !IsOurs(pv):
		return deny(policy.SourceNotOurs, "is served by PersistentVolume %s, which this program did not make", pv.Name)
	}
	origin, err := OriginOf(pv)
	if err != nil {
		return deny(policy.SourceNotOurs, "has an unusable PersistentVolume: %s", err.Error())
	}
	if cluster != "" && origin.Cluster != cluster {
		return deny(policy.SourceNotOurs, "is served by PersistentVolume %s of cluster %q", pv.Name, origin.Cluster)
	}
	target := origin.Target()
	found := &Source{
		Decided: policy.Source{
			Name: described, Tenant: origin.Tenant, Backend: origin.Backend,
			SizeGiB: SizeGiB(pv), VolumeMode: modeOf(pv),
		},
		Content:         backends.Source{Volume: &target},
		FilesystemUUIDs: filesystemUUIDs(pv, origin.VolumeID),
		NeverFormat:     NeverFormat(pv),
		Encrypted:       EncryptedOf(pv),
	}
	found.Decided.Encrypted = found.Encrypted != ""
	found.Decided.FilesystemKnown = len(found.FilesystemUUIDs) > 0
	if origin.CSI {
		found.Decided.Mode = policy.ModeCSI
	}
	return found, nil, nil
}

func modeOf(pv *corev1.PersistentVolume) policy.VolumeMode {
	if pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return policy.Block
	}
	return policy.Filesystem
}
