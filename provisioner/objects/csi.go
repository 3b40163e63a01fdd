package objects

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/paging"
)

// ProtocolCSI replaces the protocol in records and metrics of a volume that the CSI
// driver attaches: its protocol is known only when a node gets the volume.
const ProtocolCSI = "csi"

// IsCSI reports whether a PersistentVolume belongs to this program's CSI driver,
// regardless of its author.
func IsCSI(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == wire.DriverName
}

// IsServed reports whether a provisioner named by a StorageClass or a claim is this
// program, under its own name or that of its CSI driver.
func IsServed(named, provisionerName string) bool {
	return named == provisionerName || named == wire.DriverName
}

// DriverOf returns the CSI driver's name if a StorageClass names it as its provisioner.
func DriverOf(class *storagev1.StorageClass) string {
	if class.Provisioner == wire.DriverName {
		return class.Provisioner
	}
	return ""
}

// NodeSecretName returns the name of the Secret from which nodes read the credentials of
// a CSI volume. Attaching the volume writes its entries.
func NodeSecretName(pvName string) string { return pvName + "-node" }

// CSIVolume is a volume for the CSI driver.
type CSIVolume struct {
	PVName, Backend, VolumeID string
	// SecretNamespace is where the program keeps its Secrets.
	SecretNamespace string
	AccessModes     []corev1.PersistentVolumeAccessMode
	// Block is set for raw block volumes, for which FSType has no meaning.
	Block  bool
	FSType string
	// FilesystemUUIDs are those that a copy, or an imported volume, may have.
	FilesystemUUIDs []string
	// NeverFormat means that the volume must never be formatted: it was imported, or it
	// is a copy of an imported or native volume. Its data may begin with zeros.
	NeverFormat bool
	// Encrypted is that of wire.Volume.
	Encrypted string
	// MultiAttach is the volume's attribute at Cinder.
	MultiAttach bool
}

// MapCSI returns a CSI PersistentVolume's description of its volume. The connection is
// mapped later, when a node gets the volume, and so is whether nodes can open an encrypted
// volume. The error is a *mappers.Refusal.
func MapCSI(v CSIVolume) (mappers.Result, error) {
	if err := mappers.CheckVolume(false, v.MultiAttach, v.AccessModes, v.Block); err != nil {
		return mappers.Result{}, err
	}
	if err := mappers.CheckAccessModesForCSI(v.AccessModes); err != nil {
		return mappers.Result{}, err
	}
	if slices.Contains(v.AccessModes, corev1.ReadOnlyMany) && !v.MultiAttach {
		return mappers.Result{}, mappers.NeedsMultiAttach(corev1.ReadOnlyMany)
	}
	readOnly := AllReadOnly(v.AccessModes)
	source := &corev1.CSIPersistentVolumeSource{
		Driver:             wire.DriverName,
		VolumeHandle:       wire.Handle{Backend: v.Backend, ID: v.VolumeID}.String(),
		ReadOnly:           readOnly,
		NodeStageSecretRef: &corev1.SecretReference{Namespace: v.SecretNamespace, Name: NodeSecretName(v.PVName)},
	}
	// Of a raw volume, they say whether it may get a LUKS header, and which one a copy has.
	source.VolumeAttributes = wire.Volume{FilesystemUUIDs: v.FilesystemUUIDs, NeverFormat: v.NeverFormat, Encrypted: v.Encrypted}.Context()
	if !v.Block {
		source.FSType = v.FSType
	}
	return mappers.Result{
		Source:   corev1.PersistentVolumeSource{CSI: source},
		Secret:   &mappers.Secret{Namespace: v.SecretNamespace, Name: source.NodeStageSecretRef.Name, Type: corev1.SecretTypeOpaque},
		ReadOnly: readOnly,
	}, nil
}

// FilesystemUUIDsOf returns the UUIDs that the filesystem of a copy of a
// PersistentVolume's volume may have; none if they are not recorded.
func FilesystemUUIDsOf(pv *corev1.PersistentVolume, volumeID string) []string {
	if IsBlockVolume(pv) {
		return nil
	}
	return filesystemUUIDs(pv, volumeID)
}

// NeverFormat reports whether a copy of a PersistentVolume's volume must never be
// formatted. A native volume holds a filesystem that the program did not create, or other
// data.
func NeverFormat(pv *corev1.PersistentVolume) bool {
	return !IsCSI(pv) || VolumeContextOf(pv).NeverFormat
}

// EncryptedOf returns what a PersistentVolume says in wire.Volume.Encrypted; empty if nodes
// do not encrypt its volume by a rule of the policy.
func EncryptedOf(pv *corev1.PersistentVolume) string {
	if !IsCSI(pv) {
		return ""
	}
	return VolumeContextOf(pv).Encrypted
}

// IsBlockVolume reports whether a PersistentVolume is a raw block device.
func IsBlockVolume(pv *corev1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// filesystemUUIDs returns the UUIDs that the filesystem of a copy of a PersistentVolume's
// volume may have: the volume's own and those of its sources. For a native volume, they
// are known only if an administrator recorded them.
func filesystemUUIDs(pv *corev1.PersistentVolume, volumeID string) []string {
	if !IsCSI(pv) {
		return recordedUUIDs(pv.Annotations)
	}
	return append([]string{volumeID}, VolumeContextOf(pv).FilesystemUUIDs...)
}

// recordedUUIDs reads AnnotationFilesystemUUIDs. Only administrators write it on
// PersistentVolumes and VolumeSnapshotContents. Values that are not UUIDs are ignored, so
// that the driver does not mount copies by them.
func recordedUUIDs(annotations map[string]string) []string {
	var uuids []string
	for text := range strings.SplitSeq(annotations[AnnotationFilesystemUUIDs], ",") {
		if id, err := uuid.Parse(strings.TrimSpace(text)); err == nil && id != uuid.Nil {
			uuids = append(uuids, id.String())
		}
	}
	return uuids
}

// handleVolume returns the volume that a PersistentVolume of the CSI driver names;
// empty if it names none.
func handleVolume(pv *corev1.PersistentVolume) string {
	if !IsCSI(pv) {
		return ""
	}
	// An unreadable handle names no volume.
	handle, _ := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
	return handle.ID
}

// ReadCSI reads whether a cluster is set up for mode csi.
func ReadCSI(ctx context.Context, client kubernetes.Interface) (*review.CSI, error) {
	var has review.CSI
	_, err := client.StorageV1().CSIDrivers().Get(ctx, wire.DriverName, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	has.Driver = err == nil
	nodes, err := paging.List(ctx, "CSINodes", client.StorageV1().CSINodes().List, func(page *storagev1.CSINodeList) []storagev1.CSINode { return page.Items })
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		if slices.ContainsFunc(nodes[i].Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == wire.DriverName }) {
			has.Nodes++
		}
	}
	return &has, nil
}
