package objects

import (
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// Annotations of a PersistentVolume. Deletion reads nothing else, so it works even when
// the volume's original rule, tenant or StorageClass is gone.
const (
	Prefix            = "standalone-cinder.openstack.org/"
	AnnotationVolume  = Prefix + "volume-id"
	AnnotationBackend = Prefix + "backend"
	// AnnotationEndpoint and AnnotationProject record where the volume lives: the same
	// backend may point elsewhere tomorrow.
	AnnotationEndpoint = Prefix + "endpoint"
	AnnotationProject  = Prefix + "project-id"
	AnnotationTenant   = Prefix + "tenant"
	AnnotationRule     = Prefix + "rule"
	AnnotationProtocol = Prefix + "protocol"
	// AnnotationConnector is the connector as JSON: a connection must be terminated with
	// the connector that initialized it.
	AnnotationConnector = Prefix + "connector"
	AnnotationCluster   = Prefix + "cluster"
	// AnnotationAttachment shows operators the volume's attachment at Cinder; deletion
	// asks Cinder itself.
	AnnotationAttachment = Prefix + "attachment-id"
	// AnnotationClaimUID is the UID of the claim that the volume was created for; see
	// MadeFor.
	AnnotationClaimUID = Prefix + "claim-uid"
	// AnnotationReboundTo is the UID of the claim that got the volume later; see HolderOf.
	AnnotationReboundTo = Prefix + "rebound-to"
	AnnotationRevision  = Prefix + "policy-revision"
	// AnnotationSecret names the volume's own Secret, or the one that it shares with
	// other volumes of its backend; absent if there is none.
	AnnotationSecret          = Prefix + "secret"
	AnnotationSecretNamespace = Prefix + "secret-namespace"
	// AnnotationSecretUID is the UID of a Secret that no other volume shares. Such a
	// Secret is deleted by its UID, without being read.
	AnnotationSecretUID = Prefix + "secret-uid"
	// AnnotationProvisionedBy is written by the library.
	AnnotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
)

// AnnotationFilesystemGrown holds the size of the volume. An operator writes it on a
// claim after growing its filesystem on the node.
const AnnotationFilesystemGrown = Prefix + "filesystem-grown"

// AnnotationCopyOf is on a claim that kubectl cinder to-csi or volume move made: the UID of the
// claim that it is a copy of. On a PersistentVolume, it says that the volume has nothing but a
// copy, of volume move, and may be copied over. The change that gives the PersistentVolume
// another volume removes it.
const AnnotationCopyOf = Prefix + "copy-of"

// LabelCopy is on a claim that volume move makes, where its value tells people what the claim's
// volume is, and on the copying pod, where it is the UID of the claim that is copied.
const LabelCopy = Prefix + "copy"

// The values of LabelCopy on claims. They prove nothing.
const (
	CopyPartial = "partial"
	CopyFormer  = "former"
)

// AnnotationVolumeName is the name that a caller of the CSI driver gave its volume. The
// claim made for the call has it.
const AnnotationVolumeName = Prefix + "volume-name"

// AnnotationSnapshotName is the name that a caller of the CSI driver gave its snapshot.
// The VolumeSnapshot made for the call has it.
const AnnotationSnapshotName = Prefix + "snapshot-name"

// Annotations of the historic provisioner, and the connector that it used.
const (
	HistoricIdentity = "standaloneCinderProvisionerIdentity"
	HistoricVolume   = "cinderVolumeId"
)

// HistoricConnector returns the connector that the historic provisioner used for
// every volume.
func HistoricConnector() cinder.Connector {
	return cinder.Connector{Host: "localhost", IP: "127.0.0.1", Initiator: "iqn.2018-01.io.k8s:a13fc3d1cc22"}
}

// Finalizer keeps the PersistentVolume of a volume that could not yet be brought into
// use, or marked. If an operator deleted the object by hand, later leaders could not
// distinguish the volume from one that was never handed out.
const Finalizer = Prefix + "not-in-use-yet"

// HistoricClone is the annotation that asked the historic provisioner for a copy of
// another claim, in any namespace.
const HistoricClone = admission.CloneAnnotation

// Annotations that name the provisioner of a claim; ProvisionerOf reads them.
const (
	AnnotationStorageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	AnnotationBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
)

// LabelManagedBy marks the program's Secrets and TenantStatuses, so that it never touches
// another.
const (
	LabelManagedBy  = "app.kubernetes.io/managed-by"
	ManagedBy       = "standalone-cinder"
	AnnotationForPV = Prefix + "persistent-volume"
)

// AnnotationContentDigest identifies the content of a TenantStatus, so that a new leader
// need not read and write all of them.
const AnnotationContentDigest = Prefix + "content-digest"

// AnnotationSharedBy marks a Secret shared by a backend's volumes, with the backend's
// name. A single volume's Secret never carries it.
const AnnotationSharedBy = Prefix + "shared-by-backend"

// AnnotationUnneededSince says when a leader found that nothing needs a shared Secret,
// in RFC 3339. Whoever needs the Secret after that takes it off.
const AnnotationUnneededSince = Prefix + "unneeded-since"
