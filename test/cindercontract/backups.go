package cindercontract

import (
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// backupReadings check what belongs to backups. Each backs up a volume in use.
var backupReadings = map[string]func(*subject){
	"a backup is made from a snapshot, which it needs until then, and deleted": func(s *subject) {
		made := s.backup(false)
		if snapshot, err := s.Cinder.Snapshot(s.ctx, s.taken[0]); err != nil || snapshot.Status != cinder.StatusBackingUp && snapshot.Status != cinder.StatusAvailable {
			s.t.Errorf("the snapshot is %s (%v)", snapshot.Status, err)
		}
		if made.Status != cinder.StatusCreating {
			s.t.Errorf("the new backup has status %s", made.Status)
		}
		read := s.settledBackup(made.ID)
		if read.Status != cinder.StatusAvailable || read.Name != made.Name || read.VolumeID != s.id || read.SizeGiB != 1 || read.Metadata["purpose"] != "contract" || read.CreatedAt.IsZero() || read.Incremental || read.HasDependents {
			s.t.Errorf("created backup %+v, later read %+v", made, read)
		}
		if snapshot := s.settledSnapshot(s.taken[0]); snapshot.Status != cinder.StatusAvailable {
			s.t.Errorf("after the backup, the snapshot is %s", snapshot.Status)
		}
		if v, _ := s.settled(); v.Status != cinder.StatusInUse {
			s.t.Errorf("after the backup, the volume is %s", v.Status)
		}
		s.must(s.Cinder.DeleteBackup(s.ctx, made.ID))
		if left := s.settledBackup(made.ID); left.ID != "" {
			s.t.Errorf("after its deletion the backup is %s", left.Status)
		}
		if err := s.Cinder.DeleteBackup(s.ctx, made.ID); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("deleting it again: %v", err)
		}
	},
	"metadata is added to a backup's, and lasts": func(s *subject) {
		id := s.settledBackup(s.backup(false).ID).ID
		s.must(s.Cinder.UpdateBackupMetadata(s.ctx, id, map[string]string{"standalone-cinder.openstack.org/mark": "1"}))
		read := s.settledBackup(id)
		if read.Metadata["standalone-cinder.openstack.org/mark"] != "1" || read.Metadata["purpose"] != "contract" || read.Status != cinder.StatusAvailable {
			s.t.Errorf("after the update the backup is %+v", read)
		}
		if err := s.Cinder.UpdateBackupMetadata(s.ctx, unknown, map[string]string{"mark": "1"}); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("of a backup that does not exist: %v", err)
		}
	},
	"a backup is listed, and filters hide it": func(s *subject) {
		id := s.settledBackup(s.backup(false).ID).ID
		s.isIn(s.Cinder.ListBackups, id)
	},
	"an incremental backup depends on an earlier one": func(s *subject) {
		s.attached()
		wanted := s.newBackup(true)
		if _, err := s.Cinder.CreateBackup(s.ctx, wanted); !cinder.IsKind(err, cinder.KindConflict) {
			s.t.Errorf("without an earlier one: %v", err)
		}
		full := s.backup(false)
		s.settledBackup(full.ID)
		next := s.settledBackup(s.backup(true).ID)
		if next.Status != cinder.StatusAvailable || !next.Incremental {
			s.t.Errorf("the incremental backup is %+v", next)
		}
		if read := s.settledBackup(full.ID); !read.HasDependents {
			s.t.Errorf("the full backup is %+v", read)
		}
		if err := s.Cinder.DeleteBackup(s.ctx, full.ID); !cinder.IsKind(err, cinder.KindConflict) {
			s.t.Errorf("deleting the full one first: %v", err)
		}
		s.must(s.Cinder.DeleteBackup(s.ctx, next.ID))
		s.settledBackup(next.ID)
		s.must(s.Cinder.DeleteBackup(s.ctx, full.ID))
		if left := s.settledBackup(full.ID); left.ID != "" {
			s.t.Errorf("in the end, the full one is %s", left.Status)
		}
	},
	"a volume has the content of a backup, its own name and description, and the metadata of the other": func(s *subject) {
		id := s.settledBackup(s.backup(false).ID).ID
		s.must(s.Cinder.DeleteSnapshot(s.ctx, s.taken[0]))
		s.settledSnapshot(s.taken[0])
		request := cinder.NewVolume{Name: newName(), Description: "made for a claim", BackupID: id, SizeGiB: 2, Type: s.Type, Metadata: map[string]string{"purpose": "restored"}}
		made, err := s.Cinder.CreateVolume(s.ctx, request)
		s.must(err)
		other := &subject{Target: s.Target, t: s.t, ctx: s.ctx, id: made.ID}
		defer other.cleanUp()
		v, _ := other.settled()
		if v.Status != cinder.StatusAvailable || v.SizeGiB != 2 || v.Name != request.Name || v.Description != request.Description || v.Metadata["purpose"] != "contract" || v.Metadata[cinder.MetadataSourceBackup] != id {
			s.t.Errorf("the volume is %+v", v)
		}
		s.must(s.Cinder.ReplaceMetadata(s.ctx, made.ID, map[string]string{"purpose": "restored"}))
		if v, _ = other.settled(); v.Metadata["purpose"] != "restored" || v.Metadata[cinder.MetadataSourceBackup] != "" || v.Description != "" {
			s.t.Errorf("after its metadata was replaced, the volume is %+v", v)
		}
		if b := s.settledBackup(id); b.Status != cinder.StatusAvailable {
			s.t.Errorf("after the restore, the backup is %s", b.Status)
		}
	},
	"a backup's volume must exist, and a volume's backup": func(s *subject) {
		s.create(s.Type)
		if _, err := s.Cinder.CreateBackup(s.ctx, cinder.NewBackup{Name: "contract", VolumeID: s.id, SnapshotID: unknown}); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("of a snapshot that does not exist: %v", err)
		}
		if _, err := s.Cinder.CreateVolume(s.ctx, cinder.NewVolume{Name: "contract", BackupID: unknown, SizeGiB: 1}); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("from a backup that does not exist: %v", err)
		}
	},
}

// attached creates a volume that is in use, if there is none.
func (s *subject) attached() {
	s.t.Helper()
	if s.id == "" {
		s.create(s.Type)
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
	}
}

// newBackup returns a request for a backup, with a snapshot of its own.
func (s *subject) newBackup(incremental bool) cinder.NewBackup {
	s.t.Helper()
	// Cinder compares the times of snapshots in seconds.
	time.Sleep(min(s.Poll*10, 1100*time.Millisecond))
	snapshot := s.settledSnapshot(s.snapshot().ID)
	return cinder.NewBackup{Name: newName(), VolumeID: s.id, SnapshotID: snapshot.ID, Incremental: incremental, Metadata: map[string]string{"purpose": "contract"}}
}

// backup makes a backup of the volume.
func (s *subject) backup(incremental bool) cinder.Snapshot {
	s.t.Helper()
	s.attached()
	made, err := s.Cinder.CreateBackup(s.ctx, s.newBackup(incremental))
	s.must(err)
	s.backups = append(s.backups, made.ID)
	return made
}

// settledBackup waits until Cinder has finished its own work, and returns the backup; the
// zero Snapshot if it is gone.
func (s *subject) settledBackup(id string) cinder.Snapshot {
	s.t.Helper()
	return settledAs(s, s.Cinder.Backup, id)
}
