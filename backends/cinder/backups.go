package cinder

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// The operations that change a backup, as named in metrics.
const (
	OperationBackupUpdate = "backup.update"
	OperationBackupCreate = "backup.create"
	OperationBackupDelete = "backup.delete"
)

// Microversions of backups: the first with metadata on them, and the first that creates a
// volume from one (Block Storage API, microversion history, 3.43 and 3.47).
const (
	microversionBackupMetadata = 43
	microversionRestore        = 47
)

// MetadataSourceBackup is the key that Cinder writes on a volume whose content it restored
// from a backup of another volume, after it has replaced all of the volume's metadata with
// that of the other one (restore_backup in cinder/backup/manager.py, put_metadata in
// cinder/backup/driver.py).
const MetadataSourceBackup = "src_backup_id"

// NewBackup is a request for a backup of a volume as one of its snapshots shows it.
type NewBackup struct {
	Name        string            `json:"name"`
	VolumeID    string            `json:"volume_id"`
	SnapshotID  string            `json:"snapshot_id"`
	Incremental bool              `json:"incremental"`
	Metadata    map[string]string `json:"metadata"`
}

// backupDocument is a backup in the API's JSON form.
type backupDocument struct {
	snapshotDocument
	Incremental   jsonstream.Flag `json:"is_incremental"`
	HasDependents jsonstream.Flag `json:"has_dependent_backups"`
	FailReason    jsonstream.Text `json:"fail_reason"`
}

func backupsOf(r *requests) objects[Snapshot] {
	of := snapshotsOf(r)
	of.noun, of.minor, of.what, of.read = "backup", microversionBackupMetadata, "metadata on backups", readBackup
	return of
}

// readBackup decodes a backup, as readVolume does a volume.
func readBackup(decode func(document any) error, keep func(key string) bool) (b Snapshot, odd bool, err error) {
	var d backupDocument
	if err := decode(&d); err != nil {
		return Snapshot{}, false, err
	}
	b, odd = d.snapshot(keep)
	b.Incremental, b.HasDependents, b.FailReason = d.Incremental.Value, d.HasDependents.Value, sentence(d.FailReason.Value)
	return b, odd || d.Incremental.Odd || d.HasDependents.Odd, nil
}

// CreateBackup requests a backup; it returns before the backup is available, which may
// take hours. Cinder accepts a second backup of the same name, so the caller must look
// before it creates. It refuses an incremental backup without an available earlier one.
func (c backupClient) CreateBackup(ctx context.Context, wanted NewBackup) (Snapshot, error) {
	for _, id := range []string{wanted.VolumeID, wanted.SnapshotID} {
		if err := c.checkID(OperationBackupCreate, id); err != nil {
			return Snapshot{}, err
		}
	}
	id, err := c.createNamed(ctx, OperationBackupCreate, wanted.Name, wanted)
	if err != nil {
		return Snapshot{}, err
	}
	return Snapshot{ID: id, Name: wanted.Name, VolumeID: wanted.VolumeID, Status: StatusCreating, Metadata: maps.Clone(wanted.Metadata), Incremental: wanted.Incremental}, nil
}

// Backup reads one backup, as Volume does.
func (c backupClient) Backup(ctx context.Context, id string) (Snapshot, error) { return c.get(ctx, id) }

// ListBackups lists backups, as ListVolumes does.
func (c backupClient) ListBackups(ctx context.Context, query Query, yield func(page []Snapshot) (more bool)) error {
	return c.list(ctx, query, yield)
}

// DeleteBackup requests a backup's deletion, which is complete when the backup is gone.
// Cinder refuses it while incremental backups depend on the backup. Without a backup
// service, it answers that the service could not be found.
func (c backupClient) DeleteBackup(ctx context.Context, id string) error {
	err := c.about(ctx, id, request{operation: OperationBackupDelete, method: http.MethodDelete, path: []string{"backups", id}, codes: []int{http.StatusAccepted}})
	return altered(err, func(e *Error) {
		if e.Kind == KindNotFound && !strings.Contains(e.Message, id) {
			e.Kind = KindConflict
		}
	})
}

// UpdateBackupMetadata writes metadata on a backup; other keys stay. Cinder can only
// replace all of it, so this takes two requests.
func (c backupClient) UpdateBackupMetadata(ctx context.Context, id string, metadata map[string]string) error {
	b, err := c.Backup(ctx, id)
	if err != nil {
		return WithoutEffect(err)
	}
	all := make(map[string]string, len(b.Metadata)+len(metadata))
	maps.Copy(all, b.Metadata)
	maps.Copy(all, metadata)
	return c.about(ctx, id, request{operation: OperationBackupUpdate, method: http.MethodPut, path: []string{"backups", id}, minor: c.minor, body: map[string]any{"backup": map[string]any{"metadata": all}}, codes: []int{http.StatusOK}})
}

// needs returns an error unless the endpoint offers a microversion.
func (c *requests) needs(ctx context.Context, operation string, minor int, what string) error {
	newest, err := c.MaxMicroversion(ctx)
	if err == nil && newest < minor {
		err = &Error{Backend: c.backend, Operation: operation, Kind: KindInvalid, Message: fmt.Sprintf("Cinder must offer microversion 3.%d, for %s; it offers 3.%d", minor, what, newest)}
	}
	return WithoutEffect(err)
}
