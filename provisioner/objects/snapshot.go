package objects

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// AnnotationStorageClass is the StorageClass of a snapshot's volume, by which a rule's
// quota counts. On a VolumeSnapshotContent for an existing snapshot, its author names the
// StorageClass whose rule grants the snapshot, unless the snapshot's stamp does.
const AnnotationStorageClass = Prefix + "storage-class"

// AnnotationSnapshotUID is the UID of the VolumeSnapshot for which the program wrote the
// other annotations. Backup programs copy all of them to their own contents, where they
// prove nothing.
const AnnotationSnapshotUID = Prefix + "snapshot-uid"

// AnnotationFilesystemUUIDs lists, on a snapshot's content, the UUIDs that its filesystem
// may have: the volume may be gone when the snapshot is restored. On a native volume's
// PersistentVolume, an administrator records them so that copies can be in mode csi.
const AnnotationFilesystemUUIDs = Prefix + "filesystem-uuids"

// AnnotationNeverFormat is on the content of a snapshot whose volume was imported, is a
// raw block device, or is unknown. With any value, it keeps the CSI driver from
// formatting a volume restored from the snapshot.
const AnnotationNeverFormat = Prefix + "never-format"

// AnnotationEncrypted is on the content of a snapshot whose volume nodes encrypt by a rule
// of the policy, with what wire.Volume.Encrypted of the volume's PersistentVolume says.
const AnnotationEncrypted = Prefix + "encrypted"

// AnnotationBackup is on the content of a backup, with what policy.Backup says of it. It is
// written before the first request, as the place is.
const AnnotationBackup = Prefix + "backup"

// LabelProtect is on claims that request schedules of their rule, with the schedules' names.
const LabelProtect = Prefix + "protect"

// LabelProtectGroup is on claims of which schedules take VolumeGroupSnapshots: those of one
// namespace with the same value are one group. The VolumeGroupSnapshots have it, too.
const LabelProtectGroup = Prefix + "protect-group"

// LabelSchedule, with the schedule's name, and LabelClaimUID are on VolumeSnapshots that a
// schedule of the policy made, with LabelManagedBy. One that lacks any is its author's: no
// schedule deletes it, and the admission policy of the manifests would not let it.
const (
	LabelSchedule = Prefix + "schedule"
	LabelClaimUID = AnnotationClaimUID
)

// ScheduleLabels returns the labels of a VolumeSnapshot that a schedule makes of a claim.
func ScheduleLabels(schedule string, claim types.UID) map[string]string {
	return map[string]string{LabelManagedBy: ManagedBy, LabelSchedule: schedule, LabelClaimUID: string(claim)}
}

// ScheduleOf returns which schedule made a VolumeSnapshot with these labels, and of which
// claim; empty if none did.
func ScheduleOf(labels map[string]string) (schedule string, claim types.UID) {
	if labels[LabelManagedBy] != ManagedBy || labels[LabelSchedule] == "" || labels[LabelClaimUID] == "" {
		return "", ""
	}
	return labels[LabelSchedule], types.UID(labels[LabelClaimUID])
}

// GroupScheduleLabels returns the labels of a VolumeGroupSnapshot that a schedule makes of a
// group of claims.
func GroupScheduleLabels(schedule, group string) map[string]string {
	return map[string]string{LabelManagedBy: ManagedBy, LabelSchedule: schedule, LabelProtectGroup: group}
}

// GroupScheduleOf returns which schedule made a VolumeGroupSnapshot with these labels, and of
// which group; empty if none did.
func GroupScheduleOf(labels map[string]string) (schedule, group string) {
	if labels[LabelManagedBy] != ManagedBy || labels[LabelSchedule] == "" || labels[LabelProtectGroup] == "" {
		return "", ""
	}
	return labels[LabelSchedule], labels[LabelProtectGroup]
}

// Names shared with the snapshot-controller and its sidecars.
const (
	// SnapshotFinalizer keeps a VolumeSnapshotContent until its snapshot is removed or
	// given up.
	SnapshotFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// AnnotationSnapshotBeingDeleted is written on a content whose VolumeSnapshot is
	// being deleted.
	AnnotationSnapshotBeingDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	// AnnotationDefaultSnapshotClass marks the default VolumeSnapshotClass of a driver.
	AnnotationDefaultSnapshotClass = "snapshot.storage.kubernetes.io/is-default-class"
)

// TakenUpFinalizer keeps a CSI content that a user created for an existing snapshot. The
// sidecar requests the deletion only of a snapshot named in the status, and the program
// may die, or the sidecar overwrite the status, before it does.
const TakenUpFinalizer = Prefix + "taken-up"

// SnapshotContentName returns the name under which the snapshot-controller looks for a
// VolumeSnapshot's content.
func SnapshotContentName(snapshot types.UID) string { return "snapcontent-" + string(snapshot) }

// ImportedSnapshotContentName returns the name of the content that the import command
// creates for an existing snapshot. The API server then guarantees that there is only
// one.
func ImportedSnapshotContentName(snapshotID string) string {
	return "imported-" + strings.ReplaceAll(snapshotID, ":", "-") // a backup's ID has one
}

// SnapshotName returns the name of a VolumeSnapshot's snapshot at Cinder.
func SnapshotName(snapshot types.UID) string { return "snapshot-" + string(snapshot) }

// SnapshotOrigin is what a VolumeSnapshotContent records about its snapshot.
type SnapshotOrigin struct {
	Content string
	// SnapshotID is empty until the snapshot is ready.
	SnapshotID string
	VolumeID   string
	Backend    string
	Place      cinder.Place
	Tenant     string
	Cluster    string
	// StorageClass is the volume's.
	StorageClass string
	// Namespace, Name and UID are the VolumeSnapshot's.
	Namespace string
	Name      string
	UID       types.UID
	// FilesystemUUIDs are the recorded UUIDs that the filesystem may have.
	FilesystemUUIDs []string
	// NeverFormat means that a volume restored from the snapshot must never be formatted;
	// see Source.
	NeverFormat bool
	// Encrypted is that of wire.Volume.
	Encrypted string
	// Backup is how the backup is made; empty if it is a snapshot.
	Backup policy.Backup
	// Group is the UID of the VolumeGroupSnapshot that the snapshot belongs to; empty
	// without one. Then Name and UID are derived from it; see MemberUID.
	Group types.UID
}

// Stamp returns the stamp that the snapshot must carry.
func (o SnapshotOrigin) Stamp() stamps.Snapshot {
	return stamps.Snapshot{
		Cluster: o.Cluster, Namespace: o.Namespace, Snapshot: o.Name, SnapshotUID: string(o.UID), Content: o.Content,
		Tenant: o.Tenant, StorageClass: o.StorageClass, Group: string(o.Group),
	}
}

// Target returns what the backend needs to remove the snapshot, including its part of the
// proof.
func (o SnapshotOrigin) Target() backends.SnapshotTarget {
	return backends.SnapshotTarget{SnapshotID: o.SnapshotID, Stamp: o.Stamp(), Place: o.Place}
}

// Annotations returns the annotations that record the origin on a content.
func (o SnapshotOrigin) Annotations() map[string]string {
	annotations := map[string]string{
		AnnotationVolume: o.VolumeID, AnnotationBackend: o.Backend, AnnotationTenant: o.Tenant, AnnotationCluster: o.Cluster,
		AnnotationStorageClass: o.StorageClass, AnnotationSnapshotUID: string(o.UID),
	}
	maps.Copy(annotations, PlaceAnnotations(o.Place))
	if len(o.FilesystemUUIDs) > 0 {
		annotations[AnnotationFilesystemUUIDs] = strings.Join(o.FilesystemUUIDs, ",")
	}
	if o.NeverFormat {
		annotations[AnnotationNeverFormat] = "true"
	}
	if o.Encrypted != "" {
		annotations[AnnotationEncrypted] = o.Encrypted
	}
	if o.Backup != "" {
		annotations[AnnotationBackup] = string(o.Backup)
	}
	return annotations
}

// IsCSISnapshot reports whether a content is for the CSI driver's sidecar. Contents with
// the provisioner's name belong to this program.
func IsCSISnapshot(content *snapshotv1.VolumeSnapshotContent) bool {
	return content.Spec.Driver == wire.DriverName
}

// snapshotID returns Cinder's ID of the snapshot that a content names by a handle. The
// CSI driver's handles also name the backend.
func snapshotID(content *snapshotv1.VolumeSnapshotContent, handle *string) string {
	if handle == nil {
		return ""
	}
	if IsCSISnapshot(content) {
		if parsed, err := wire.ParseHandle(*handle); err == nil {
			return parsed.ID
		}
	}
	return *handle
}

// IsSnapshotRecorded reports whether this program wrote or annotated the content for its
// VolumeSnapshot.
func IsSnapshotRecorded(content *snapshotv1.VolumeSnapshotContent) bool {
	recordedFor, marked := content.Annotations[AnnotationSnapshotUID]
	switch {
	case content.Annotations[AnnotationVolume] == "":
		return false
	case content.Spec.Source.SnapshotHandle == nil:
		return true // its name fits only one VolumeSnapshot
	case !marked:
		// Earlier versions wrote no such annotation, and served only contents with the
		// provisioner's name, whose status no other program writes.
		return !IsCSISnapshot(content) && SnapshotHandleOf(content) != ""
	}
	return recordedFor != "" && recordedFor == string(content.Spec.VolumeSnapshotRef.UID)
}

// IsSnapshotReady reports whether a content's status names a usable snapshot.
func IsSnapshotReady(content *snapshotv1.VolumeSnapshotContent) bool {
	return SnapshotHandleOf(content) != "" && content.Status.ReadyToUse != nil && *content.Status.ReadyToUse
}

// SnapshotHandleOf returns the recorded ID of a content's snapshot; empty if there is
// none yet.
func SnapshotHandleOf(content *snapshotv1.VolumeSnapshotContent) string {
	if content.Status == nil {
		return ""
	}
	return snapshotID(content, content.Status.SnapshotHandle)
}

// ImportedHandleOf returns the ID of a content's existing snapshot; empty for a new
// snapshot.
func ImportedHandleOf(content *snapshotv1.VolumeSnapshotContent) string {
	return snapshotID(content, content.Spec.Source.SnapshotHandle)
}

// SnapshotHandle is the CSI driver's name for a snapshot: its backend and ID.
type SnapshotHandle = wire.Handle

// ImportedHandle reads the handle of a content's existing snapshot. Without the CSI
// driver's name, it names no backend. The error addresses the content's author.
func ImportedHandle(content *snapshotv1.VolumeSnapshotContent) (SnapshotHandle, error) {
	text := *content.Spec.Source.SnapshotHandle
	handle, err := wire.ParseHandle(text)
	switch {
	case IsCSISnapshot(content) && err != nil:
		return SnapshotHandle{}, fmt.Errorf("spec.source.snapshotHandle of VolumeSnapshotContent %s: %w, which is what the CSI driver %s needs; create the content anew", content.Name, err, content.Spec.Driver)
	case IsCSISnapshot(content):
		return handle, nil
	case err == nil:
		return SnapshotHandle{}, fmt.Errorf("spec.source.snapshotHandle of VolumeSnapshotContent %s: with the driver %s, it is only the ID of the snapshot, %s; create the content anew, or with the driver %s", content.Name, content.Spec.Driver, handle.ID, wire.DriverName)
	}
	return SnapshotHandle{ID: text}, nil
}

// SnapshotHandlesOf returns the IDs of the snapshots that a content names.
func SnapshotHandlesOf(content *snapshotv1.VolumeSnapshotContent) []string {
	var handles []string
	for _, handle := range []string{SnapshotHandleOf(content), ImportedHandleOf(content)} {
		if handle != "" && !slices.Contains(handles, handle) {
			handles = append(handles, handle)
		}
	}
	return handles
}

// SnapshotOriginOf reads the annotations back. It names what is missing instead of
// guessing, because a deletion may follow.
func SnapshotOriginOf(content *snapshotv1.VolumeSnapshotContent) (SnapshotOrigin, error) {
	annotations := content.Annotations
	reference := content.Spec.VolumeSnapshotRef
	origin := recordedOrigin(annotations)
	origin.Content, origin.SnapshotID = content.Name, SnapshotHandleOf(content)
	origin.Namespace, origin.Name, origin.UID, origin.Group = reference.Namespace, reference.Name, SnapshotOwner(content), GroupOf(content)
	damaged := func(format string, arguments ...any) error {
		return &DamagedError{fmt.Sprintf("VolumeSnapshotContent %s: ", content.Name) + fmt.Sprintf(format, arguments...) + "; nothing is deleted until it is fixed"}
	}
	if key := missingOf(annotations); key != "" {
		return origin, damaged("annotation %s is missing", key)
	}
	switch isBackup := backends.IsBackup(cmp.Or(ImportedHandleOf(content), origin.SnapshotID)); {
	case origin.Backup != "" && !slices.Contains(policy.Backups(), origin.Backup):
		return origin, damaged("annotation %s is %.60q", AnnotationBackup, origin.Backup)
	case ImportedHandleOf(content)+origin.SnapshotID != "" && isBackup != (origin.Backup != ""):
		return origin, damaged("annotation %s does not fit the snapshot handle", AnnotationBackup)
	case ImportedHandleOf(content) != "" && origin.UID == "":
		return origin, damaged("spec.volumeSnapshotRef.uid is missing")
	case !IsSnapshotRecorded(content):
		return origin, damaged("its annotations were not written for the VolumeSnapshot with the UID %s", origin.UID)
	case ImportedHandleOf(content) == "" && origin.Content != SnapshotContentName(origin.UID):
		return origin, damaged("its name does not fit spec.volumeSnapshotRef.uid %q", origin.UID)
	}
	return origin, nil
}

// recordedOrigin reads what Annotations wrote.
func recordedOrigin(annotations map[string]string) SnapshotOrigin {
	origin := SnapshotOrigin{
		VolumeID: annotations[AnnotationVolume], Backend: annotations[AnnotationBackend], Tenant: annotations[AnnotationTenant],
		Cluster: annotations[AnnotationCluster], StorageClass: annotations[AnnotationStorageClass], FilesystemUUIDs: recordedUUIDs(annotations),
		Encrypted: annotations[AnnotationEncrypted], Backup: policy.Backup(annotations[AnnotationBackup]),
	}
	_, origin.NeverFormat = annotations[AnnotationNeverFormat]
	if endpoint := annotations[AnnotationEndpoint]; endpoint != "" {
		origin.Place = cinder.NewPlace(endpoint, annotations[AnnotationProject])
	}
	return origin
}

// missingOf returns the first annotation that every record needs and this one lacks.
func missingOf(annotations map[string]string) string {
	for _, key := range []string{AnnotationVolume, AnnotationBackend, AnnotationEndpoint, AnnotationCluster} {
		if annotations[key] == "" {
			return key
		}
	}
	return ""
}

// NewSnapshotContent returns the content of a new snapshot.
func NewSnapshotContent(origin SnapshotOrigin, class *snapshotv1.VolumeSnapshotClass, mode *corev1.PersistentVolumeMode) *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: origin.Content, Annotations: origin.Annotations(), Finalizers: []string{SnapshotFinalizer}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot",
				Namespace: origin.Namespace, Name: origin.Name, UID: origin.UID,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeSnapshotClassName: &class.Name,
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &origin.VolumeID}, SourceVolumeMode: mode,
		},
	}
}

// NewImportedSnapshotContent returns the content of an existing snapshot. The
// VolumeSnapshot need not exist yet; the snapshot-controller adds its UID.
func NewImportedSnapshotContent(snapshotID, namespace, name, driver, storageClass string, deletion snapshotv1.DeletionPolicy, mode *corev1.PersistentVolumeMode) *snapshotv1.VolumeSnapshotContent {
	var annotations map[string]string
	if storageClass != "" {
		annotations = map[string]string{AnnotationStorageClass: storageClass}
	}
	return &snapshotv1.VolumeSnapshotContent{
		TypeMeta:   metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshotContent"},
		ObjectMeta: metav1.ObjectMeta{Name: ImportedSnapshotContentName(snapshotID), Annotations: annotations},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot", Namespace: namespace, Name: name},
			DeletionPolicy:    deletion, Driver: driver,
			Source: snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: &snapshotID}, SourceVolumeMode: mode,
		},
	}
}

// SnapshotStatus returns the status of a content whose snapshot is ready.
func SnapshotStatus(s cinder.Snapshot, handle string) *snapshotv1.VolumeSnapshotContentStatus {
	created, size, ready := s.CreatedAt.UnixNano(), s.SizeGiB<<30, true
	return &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle, CreationTime: &created, ReadyToUse: &ready, RestoreSize: &size}
}

// WithSnapshotRemedy adds the remedy to an error about a snapshot that does not exist
// where its backend points, but may exist elsewhere. Other errors stay as they are.
func WithSnapshotRemedy(err error, origin SnapshotOrigin) error {
	var failed *cinder.Error
	if !errors.As(err, &failed) || failed.Kind != backends.KindElsewhere {
		return err
	}
	return fmt.Errorf("%w; its VolumeSnapshotContent stays; %s", err, origin.Remedy(failed.Place))
}

// Remedy returns the remedy for a snapshot that does not exist where its backend points,
// but may exist elsewhere.
func (o SnapshotOrigin) Remedy(present cinder.Place) string {
	return fmt.Sprintf("put the configuration and credentials of backend %s back to what they were, or, "+
		"if the snapshot is certainly gone, run: kubectl annotate volumesnapshotcontent %s --overwrite %s=%s %s=%s",
		o.Backend, o.Content, AnnotationEndpoint, present.Endpoint, AnnotationProject, present.Project)
}
