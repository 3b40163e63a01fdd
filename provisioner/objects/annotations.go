package objects

import (
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// Annotations of a PersistentVolume. Deletion reads nothing else, so it works even when
// the rule, the tenant or the StorageClass that made the volume is gone.
const (
	Prefix            = "standalone-cinder.openstack.org/"
	AnnotationVolume  = Prefix + "volume-id"
	AnnotationBackend = Prefix + "backend"
	// AnnotationEndpoint and AnnotationProject say where the volume lives: the same
	// backend may lead elsewhere tomorrow.
	AnnotationEndpoint = Prefix + "endpoint"
	AnnotationProject  = Prefix + "project-id"
	AnnotationTenant   = Prefix + "tenant"
	AnnotationRule     = Prefix + "rule"
	AnnotationProtocol = Prefix + "protocol"
	// AnnotationConnector is the connector as JSON: terminating a connection takes
	// the same connector that initialized it.
	AnnotationConnector = Prefix + "connector"
	AnnotationCluster   = Prefix + "cluster"
	// AnnotationAttachment shows an operator which attachment at Cinder is the
	// volume's; deletion asks Cinder itself.
	AnnotationAttachment = Prefix + "attachment-id"
	// AnnotationClaimUID is the UID of the claim that the volume was made for; see MadeFor.
	AnnotationClaimUID = Prefix + "claim-uid"
	// AnnotationReboundTo is the UID of the claim that got the volume later; see HolderOf.
	AnnotationReboundTo = Prefix + "rebound-to"
	AnnotationRevision  = Prefix + "policy-revision"
	// AnnotationSecret names the Secret that was made for this volume, or that it
	// shares with other volumes of its backend; absent when there is none.
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

// AnnotationVolumeName is on claims that were made for a caller of the CSI driver. It
// holds the name that the caller gave its volume.
const AnnotationVolumeName = Prefix + "volume-name"

// AnnotationSnapshotName is on VolumeSnapshots that were made for a caller of the CSI
// driver. It holds the name that the caller gave its snapshot.
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

// Finalizer keeps the object of a PersistentVolume whose volume could not yet
// be brought into use, or marked. If an operator removed the object by hand, later
// leaders could not distinguish the volume from one that was never handed out.
const Finalizer = Prefix + "not-in-use-yet"

// HistoricClone is the annotation by which a claim's author asked the historic
// provisioner for a copy of another claim, in any namespace.
const HistoricClone = admission.CloneAnnotation

// Annotations that name the provisioner of a claim; ProvisionerOf reads them.
const (
	AnnotationStorageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	AnnotationBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
)

// LabelManagedBy marks the Secrets that the program made, so that it never
// touches another.
const (
	LabelManagedBy  = "app.kubernetes.io/managed-by"
	ManagedBy       = "standalone-cinder"
	AnnotationForPV = Prefix + "persistent-volume"
)

// AnnotationSharedBy marks a Secret that volumes of a backend share, with the
// backend's name. The Secret of one volume never carries it.
const AnnotationSharedBy = Prefix + "shared-by-backend"

// AnnotationLastImport says which import last wrote a shared Secret, by the name of its
// PersistentVolume, and when. Writing it makes a removal of the Secret fail that was
// decided earlier.
const AnnotationLastImport = Prefix + "last-import"
