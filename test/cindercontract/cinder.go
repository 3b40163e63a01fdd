package cindercontract

import (
	"context"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Cinder is all that the program uses of Cinder.
type Cinder interface {
	Volumes
	Changes
	Snapshots
	Backups
	Actions
	Attachments
	// Place returns where the volumes live; it never changes.
	Place() cinder.Place
	// Now returns the time by Cinder's clock.
	Now() time.Time
}

// Volumes is what the table needs of /volumes and /messages.
type Volumes interface {
	Metadata
	CreateVolume(ctx context.Context, request cinder.NewVolume) (cinder.Volume, error)
	Volume(ctx context.Context, id string) (cinder.Volume, error)
	ListVolumes(ctx context.Context, query cinder.Query, yield func(page []cinder.Volume) bool) error
	DeleteVolume(ctx context.Context, id string) error
	ForceDeleteVolume(ctx context.Context, id string) error
	FailureReason(ctx context.Context, id string) string
}

// Metadata is what the table needs of a volume's metadata.
type Metadata interface {
	// ReplaceMetadata replaces all metadata, and removes the description.
	ReplaceMetadata(ctx context.Context, id string, metadata map[string]string) error
	// UpdateMetadata writes metadata; other keys stay.
	UpdateMetadata(ctx context.Context, id string, metadata map[string]string) error
	// DeleteMetadata deletes one key, which must have no slash.
	DeleteMetadata(ctx context.Context, id, key string) error
}

// Changes has the volume actions that change a volume's size and type.
type Changes interface {
	// ExtendVolume requests a larger size; inUse is whether the volume is in use.
	ExtendVolume(ctx context.Context, id string, sizeGiB int64, inUse bool) error
	// RetypeVolume requests another type.
	RetypeVolume(ctx context.Context, id, volumeType string, mayMigrate bool) error
	// VolumeType reads a volume type by its ID.
	VolumeType(ctx context.Context, id string) (cinder.VolumeType, error)
}

// Snapshots is what the table needs of /snapshots.
type Snapshots interface {
	CreateSnapshot(ctx context.Context, request cinder.NewSnapshot) (cinder.Snapshot, error)
	Snapshot(ctx context.Context, id string) (cinder.Snapshot, error)
	ListSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error
	DeleteSnapshot(ctx context.Context, id string) error
	// UpdateSnapshotMetadata writes metadata; other keys stay.
	UpdateSnapshotMetadata(ctx context.Context, id string, metadata map[string]string) error
}

// Backups is what the readings need of /backups.
type Backups interface {
	CreateBackup(ctx context.Context, request cinder.NewBackup) (cinder.Snapshot, error)
	Backup(ctx context.Context, id string) (cinder.Snapshot, error)
	ListBackups(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error
	DeleteBackup(ctx context.Context, id string) error
	// UpdateBackupMetadata writes metadata; other keys stay.
	UpdateBackupMetadata(ctx context.Context, id string, metadata map[string]string) error
}

// Actions is the volume actions that connect a volume by the workflow
// reserve.
type Actions interface {
	Reserve(ctx context.Context, id string) error
	Unreserve(ctx context.Context, id string) error
	InitializeConnection(ctx context.Context, id string, connector cinder.Connector) ([]byte, error)
	TerminateConnection(ctx context.Context, id string, connector cinder.Connector) error
	Attach(ctx context.Context, id, host string, readOnly bool) error
	Detach(ctx context.Context, id, attachmentID string) error
}

// Attachments is what the table needs of /attachments, which connect a
// volume by the workflow attachment.
type Attachments interface {
	// Workflow returns how to connect new volumes: reserve or attachment.
	Workflow(ctx context.Context) (cinder.Workflow, error)
	// OffersAttachments returns an error if the endpoint lacks what the other
	// methods need, whatever workflow new volumes are connected by.
	OffersAttachments(ctx context.Context) error
	CreateAttachment(ctx context.Context, volumeID string, connector cinder.Connector, readOnly bool) (attachmentID string, document []byte, err error)
	Attachments(ctx context.Context, volumeID string) ([]cinder.Attachment, error)
	AttachmentDocument(ctx context.Context, attachmentID string) (document []byte, err error)
	CompleteAttachment(ctx context.Context, attachmentID string) error
	DeleteAttachment(ctx context.Context, attachmentID string) error
}
