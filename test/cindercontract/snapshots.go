package cindercontract

import (
	"context"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// snapshotReadings check what belongs to snapshots, and to volumes with the
// content of another.
var snapshotReadings = map[string]func(*subject){
	"a snapshot is answered before it is done, and deleted": func(s *subject) {
		s.create(s.Type)
		made := s.snapshot()
		if made.Status != cinder.StatusCreating {
			s.t.Errorf("the new snapshot has status %s", made.Status)
		}
		read := s.settledSnapshot(made.ID)
		if read.Status != cinder.StatusAvailable || read.Name != made.Name || read.VolumeID != s.id || read.SizeGiB != 1 || read.Metadata["purpose"] != "contract" || read.CreatedAt.IsZero() {
			s.t.Errorf("created snapshot %+v, later read %+v", made, read)
		}
		s.must(s.Cinder.DeleteSnapshot(s.ctx, made.ID))
		if left := s.settledSnapshot(made.ID); left.ID != "" {
			s.t.Errorf("after its deletion the snapshot is %s", left.Status)
		}
		if err := s.Cinder.DeleteSnapshot(s.ctx, made.ID); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("deleting it again: %v", err)
		}
	},
	"metadata is added to a snapshot's, and lasts": func(s *subject) {
		s.create(s.Type)
		id := s.settledSnapshot(s.snapshot().ID).ID
		s.must(s.Cinder.UpdateSnapshotMetadata(s.ctx, id, map[string]string{"mark": "1"}))
		read := s.settledSnapshot(id)
		if read.Metadata["mark"] != "1" || read.Metadata["purpose"] != "contract" || read.Status != cinder.StatusAvailable {
			s.t.Errorf("after the update the snapshot is %+v", read)
		}
		if err := s.Cinder.UpdateSnapshotMetadata(s.ctx, unknown, map[string]string{"mark": "1"}); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("of a snapshot that does not exist: %v", err)
		}
	},
	"a snapshot is listed, and filters hide it": func(s *subject) {
		s.create(s.Type)
		id := s.settledSnapshot(s.snapshot().ID).ID
		s.isIn(s.Cinder.ListSnapshots, id)
	},
	"a volume has the content of another, which it may exceed": func(s *subject) {
		s.create(s.Type)
		s.copied(cinder.NewVolume{SourceVolumeID: s.id, SizeGiB: 2})
	},
	"a volume has the content of one in use": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
		copied := s.copied(cinder.NewVolume{SourceVolumeID: s.id, SizeGiB: 1})
		if _, marked := copied.Metadata[cinder.MetadataReadOnly]; marked {
			s.t.Error("the copy has the mark of its source")
		}
	},
	"a volume has the content of a snapshot": func(s *subject) {
		s.create(s.Type)
		s.copied(cinder.NewVolume{SnapshotID: s.settledSnapshot(s.snapshot().ID).ID, SizeGiB: 2})
	},
	"a volume is at least as large as its source": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.ExtendVolume(s.ctx, s.id, 2, false))
		s.settled()
		id := s.settledSnapshot(s.snapshot().ID).ID
		for name, request := range map[string]cinder.NewVolume{
			"a volume":   {SourceVolumeID: s.id, SizeGiB: 1},
			"a snapshot": {SnapshotID: id, SizeGiB: 1},
		} {
			request.Name = newName()
			if _, err := s.Cinder.CreateVolume(s.ctx, request); !cinder.IsKind(err, cinder.KindInvalid) {
				s.t.Errorf("smaller than %s: %v", name, err)
			}
		}
	},
	"a source must exist": func(s *subject) {
		for name, request := range map[string]cinder.NewVolume{
			"a volume":   {SourceVolumeID: unknown, SizeGiB: 1},
			"a snapshot": {SnapshotID: unknown, SizeGiB: 1},
		} {
			request.Name = newName()
			if _, err := s.Cinder.CreateVolume(s.ctx, request); !cinder.IsKind(err, cinder.KindNotFound) {
				s.t.Errorf("%s that does not exist: %v", name, err)
			}
		}
	},
}

// isIn checks in which lists something of the volume is.
func (s *subject) isIn(list func(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error, id string) {
	s.t.Helper()
	for _, test := range []struct {
		name  string
		query cinder.Query
		want  bool
	}{
		{"all", cinder.Query{PageSize: 1000}, true},
		{"all, in pages of one", cinder.Query{PageSize: 1}, true},
		{"those of its volume", cinder.Query{VolumeID: s.id, PageSize: 1000}, true},
		{"those of another volume", cinder.Query{VolumeID: unknown, PageSize: 1000}, false},
		{"those in deletion", cinder.Query{Status: cinder.StatusDeleting, PageSize: 1000}, false},
	} {
		listed := false
		s.must(list(s.ctx, test.query, func(page []cinder.Snapshot) bool {
			listed = listed || slices.ContainsFunc(page, func(other cinder.Snapshot) bool { return other.ID == id && other.Metadata["purpose"] == "contract" })
			return true
		}))
		if listed != test.want {
			s.t.Errorf("in the list of %s: %t", test.name, listed)
		}
	}
}

// snapshot takes a snapshot of the volume.
func (s *subject) snapshot() cinder.Snapshot {
	s.t.Helper()
	made, err := s.Cinder.CreateSnapshot(s.ctx, cinder.NewSnapshot{
		Name: newName(), VolumeID: s.id, Metadata: map[string]string{"purpose": "contract"},
	})
	s.must(err)
	s.taken = append(s.taken, made.ID)
	return made
}

// settledSnapshot waits until Cinder has finished its own work, and returns the
// snapshot; the zero Snapshot if it is gone.
func (s *subject) settledSnapshot(id string) cinder.Snapshot {
	s.t.Helper()
	return settledAs(s, s.Cinder.Snapshot, id)
}

// copied creates a volume with the content of another, waits for it and removes
// it.
func (s *subject) copied(request cinder.NewVolume) cinder.Volume {
	s.t.Helper()
	request.Name = newName()
	request.Metadata = map[string]string{"purpose": "copy"}
	made, err := s.Cinder.CreateVolume(s.ctx, request)
	s.must(err)
	other := &subject{Target: s.Target, t: s.t, ctx: s.ctx, id: made.ID}
	defer other.cleanUp()
	v, _ := other.settled()
	if v.Status != cinder.StatusAvailable || v.SizeGiB != request.SizeGiB || v.SourceVolumeID != request.SourceVolumeID || v.SnapshotID != request.SnapshotID || v.Metadata["purpose"] != "copy" {
		s.t.Errorf("the volume is %+v", v)
	}
	return v
}

// snapshots counts the volume's snapshots that exist.
func (s *subject) snapshots() (count int) {
	s.t.Helper()
	for _, id := range s.taken {
		if s.settledSnapshot(id).ID != "" {
			count++
		}
	}
	return count
}
