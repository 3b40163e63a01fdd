package objects

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// SnapshotReader reads snapshots from caches or the API server. Its errors are the API
// server's.
type SnapshotReader interface {
	VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error)
	VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error)
}

// SnapshotSourceOf finds the snapshot of a data source, or explains why it cannot be
// used. Both objects must name each other, because tenants write one of them.
func SnapshotSourceOf(claim *corev1.PersistentVolumeClaim, named *admission.DataSource, driver, cluster string, from SnapshotReader) (*Source, *policy.Denial, error) {
	described := fmt.Sprintf("VolumeSnapshot %s/%s", claim.Namespace, named.Name)
	deny := func(reason policy.Reason, format string, arguments ...any) (*Source, *policy.Denial, error) {
		return nil, &policy.Denial{Reason: reason, Message: described + ", whose content this claim asks for, " + fmt.Sprintf(format, arguments...)}, nil
	}
	snapshot, err := from.VolumeSnapshot(claim.Namespace, named.Name)
	switch {
	case apierrors.IsNotFound(err):
		return deny(policy.SourceNotFound, "does not exist")
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read %s, whose content this claim asks for: %w", described, err)
	case snapshot.DeletionTimestamp != nil:
		return deny(policy.SourceNotFound, "is being deleted")
	case snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil || snapshot.Status.ReadyToUse == nil || !*snapshot.Status.ReadyToUse:
		return deny(policy.SourceNotReady, "is not ready yet")
	}
	name := *snapshot.Status.BoundVolumeSnapshotContentName
	content, err := from.VolumeSnapshotContent(name)
	switch {
	case apierrors.IsNotFound(err):
		return deny(policy.SourceNotReady, "names VolumeSnapshotContent %s, which does not exist", name)
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read VolumeSnapshotContent %s of %s: %w", name, described, err)
	case content.Spec.VolumeSnapshotRef.UID != snapshot.UID || content.Spec.VolumeSnapshotRef.Namespace != snapshot.Namespace:
		return deny(policy.SourceNotOurs, "names VolumeSnapshotContent %s, which is another's", name)
	case content.Spec.Driver != driver && !IsCSISnapshot(content) || !IsSnapshotRecorded(content) && ImportedHandleOf(content) == "" && GroupOf(content) == "":
		return deny(policy.SourceNotOurs, "has VolumeSnapshotContent %s, which this program did not make", name)
	case !IsSnapshotRecorded(content):
		return deny(policy.SourceNotReady, "has VolumeSnapshotContent %s, whose snapshot this program has not taken up; the events on the VolumeSnapshot say why", name)
	case content.DeletionTimestamp != nil:
		return deny(policy.SourceNotFound, "has VolumeSnapshotContent %s, which is being deleted", name)
	}
	origin, err := SnapshotOriginOf(content)
	switch {
	case err != nil:
		return deny(policy.SourceNotOurs, "has an unusable record: %s", err.Error())
	case origin.Cluster != cluster:
		return deny(policy.SourceNotOurs, "has VolumeSnapshotContent %s of cluster %q", name, origin.Cluster)
	case origin.SnapshotID == "" || content.Status.RestoreSize == nil:
		return deny(policy.SourceNotReady, "has VolumeSnapshotContent %s, whose snapshot is not ready", name)
	}
	const gib = 1 << 30
	size := *content.Status.RestoreSize
	mode := policy.Filesystem
	if source := content.Spec.SourceVolumeMode; source != nil && *source == corev1.PersistentVolumeBlock {
		mode = policy.Block
	}
	target := origin.Target()
	found := &Source{
		Decided: policy.Source{Name: described, IsSnapshot: true, IsBackup: origin.Backup != "", Tenant: origin.Tenant, Backend: origin.Backend, SizeGiB: size/gib + min(size%gib, 1), VolumeMode: mode},
		Content: backends.Source{Snapshot: &target}, FilesystemUUIDs: origin.FilesystemUUIDs,
		NeverFormat: origin.NeverFormat || !IsCSISnapshot(content), Encrypted: origin.Encrypted,
	}
	found.Decided.Encrypted = found.Encrypted != ""
	found.Decided.FilesystemKnown = len(found.FilesystemUUIDs) > 0
	// The driver does not mount copies of an existing snapshot with an unknown
	// filesystem.
	if IsCSISnapshot(content) && (ImportedHandleOf(content) == "" || found.Decided.FilesystemKnown) {
		found.Decided.Mode = policy.ModeCSI
	}
	return found, nil, nil
}
