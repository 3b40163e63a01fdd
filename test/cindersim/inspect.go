package cindersim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Volume is a copy of a volume's state, for tests that bypass the API.
type Volume struct {
	// ID is made from the seed when an added volume has none.
	ID   string
	Name string
	// Description is the volume's description.
	Description string
	// Project is a project's id; an added volume may name it.
	Project string
	User    string
	// SizeGiB of an added volume is 1 when it is not given.
	SizeGiB int
	// Type is a volume type's name; the default type when an added volume has none.
	Type string
	Zone string
	// Host is empty until the scheduler has chosen one. An added volume gets its
	// type's backend unless its status is creating or error.
	Host string
	// Status of an added volume is available when it is not given.
	Status       string
	AttachStatus string
	// Metadata is the user's own; AdminMetadata what os-attach wrote.
	Metadata, AdminMetadata map[string]string
	// SnapshotID, SourceID and BackupID are what its content came from.
	SnapshotID, SourceID, BackupID string
	Snapshots                      int
	Created, Updated               time.Time
	Attachments                    []Attachment
	Export                         Export
	// KeyID is the ID of its key, if its type is encrypted.
	KeyID string
}

// Attachment is a copy of an attachment. Attachments of an added volume keep
// their ids; those without get one.
type Attachment struct {
	ID string
	// Status is reserved, attaching or attached.
	Status              string
	Instance, Host      string
	Mountpoint, Mode    string
	AttachedAt          time.Time
	Connector           map[string]any
	Connection          map[string]any
	MadeByAttachmentAPI bool
}

// Export says whether a volume can be reached, with which credentials, and for
// which connector hosts a connection was initialized and not yet terminated.
type Export struct {
	Present            bool
	Username, Password string
	ConnectedHosts     []string
}

// Snapshot is a copy of a snapshot's state.
type Snapshot struct {
	ID, Name, Project, VolumeID, Status string
	SizeGiB                             int
	Metadata                            map[string]string
	Created                             time.Time
}

func (v *volume) copy() Volume {
	out := Volume{
		ID: v.id, Name: stringOf(v.name), Description: stringOf(v.description), Project: v.project, User: v.user,
		SizeGiB: v.size, Type: v.kind.Name, Zone: v.zone, Host: v.host, Status: v.status, AttachStatus: v.attachStatus,
		Metadata: maps.Clone(v.metadata), AdminMetadata: maps.Clone(v.adminMetadata),
		SnapshotID: v.snapshotID, SourceID: v.sourceID, BackupID: v.backupID, Snapshots: v.snapshots, Created: v.created, Updated: v.updated,
		KeyID: v.keyID,
		Export: Export{
			Present: v.exported, Username: v.username, Password: v.password,
			ConnectedHosts: slices.Sorted(maps.Keys(v.connected)),
		},
	}
	for _, a := range v.attachments {
		out.Attachments = append(out.Attachments, Attachment{
			ID: a.id, Status: a.status, Instance: a.instance, Host: a.host, Mountpoint: a.mountpoint, Mode: a.mode,
			AttachedAt: a.attached, Connector: maps.Clone(a.connector), Connection: maps.Clone(a.connection),
			MadeByAttachmentAPI: a.connection != nil,
		})
	}
	return out
}

// Volumes returns copies of all volumes, oldest first.
func (s *Simulator) Volumes() []Volume {
	s.cloud.lock()
	defer s.cloud.unlock()
	out := make([]Volume, 0, len(s.cloud.order))
	for _, v := range s.cloud.order {
		out = append(out, v.copy())
	}
	return out
}

// Volume returns a copy of one volume.
func (s *Simulator) Volume(id string) (Volume, bool) {
	s.cloud.lock()
	defer s.cloud.unlock()
	v := s.cloud.volumes[id]
	if v == nil {
		return Volume{}, false
	}
	return v.copy(), true
}

// VolumesNamed returns copies of the volumes that have exactly this name, oldest
// first.
func (s *Simulator) VolumesNamed(name string) []Volume {
	return slices.DeleteFunc(s.Volumes(), func(v Volume) bool { return v.Name != name })
}

// Snapshots returns copies of all snapshots, oldest first.
func (s *Simulator) Snapshots() []Snapshot {
	s.cloud.lock()
	defer s.cloud.unlock()
	out := make([]Snapshot, 0, len(s.cloud.snapshots))
	for _, n := range s.cloud.snapshots {
		out = append(out, Snapshot{
			ID: n.id, Name: stringOf(n.name), Project: n.project, VolumeID: n.volumeID, Status: n.status, SizeGiB: n.size,
			Metadata: maps.Clone(n.metadata), Created: n.created,
		})
	}
	slices.SortFunc(out, func(a, b Snapshot) int { return a.Created.Compare(b.Created) })
	return out
}

// Group is a copy of a group's state.
type Group struct {
	ID, Name, Description, Status string
	// Volumes are the IDs of the volumes that are in it, Snapshots those of its group
	// snapshots.
	Volumes, Snapshots []string
}

// Groups returns copies of all groups, oldest first.
func (s *Simulator) Groups() (out []Group) {
	s.cloud.lock()
	defer s.cloud.unlock()
	for _, g := range s.cloud.groups {
		one := Group{ID: g.id, Name: stringOf(g.name), Description: stringOf(g.description), Status: g.status}
		for _, v := range s.cloud.volumesIn(g) {
			one.Volumes = append(one.Volumes, v.id)
		}
		for _, taken := range s.cloud.groupSnapshots {
			if taken.group.id == g.id {
				one.Snapshots = append(one.Snapshots, taken.id)
			}
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Group) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Backup is a copy of a backup's state.
type Backup struct {
	ID, Name, Project, VolumeID, SnapshotID, Parent, Status string
	SizeGiB, Dependents                                     int
	Metadata                                                map[string]string
	Created                                                 time.Time
}

// Backups returns copies of all backups, oldest first.
func (s *Simulator) Backups() []Backup {
	s.cloud.lock()
	defer s.cloud.unlock()
	out := make([]Backup, 0, len(s.cloud.backups))
	for _, b := range s.cloud.backups {
		out = append(out, Backup{
			ID: b.id, Name: stringOf(b.name), Project: b.project, VolumeID: b.volumeID, SnapshotID: b.snapshotID, Parent: b.parent, Status: b.status,
			SizeGiB: b.size, Dependents: b.dependents, Metadata: maps.Clone(b.metadata), Created: b.created,
		})
	}
	slices.SortFunc(out, func(a, b Backup) int { return a.Created.Compare(b.Created) })
	return out
}

// AddSnapshot adds an available snapshot of a volume, bypassing the API and its
// quotas, and returns its ID.
func (s *Simulator) AddSnapshot(of, name string, metadata map[string]string) (string, error) {
	now := s.cloud.lockToChange()
	defer s.cloud.unlock()
	c := s.cloud
	v := c.volumes[of]
	if v == nil {
		return "", fmt.Errorf("add snapshot: there is no volume %s", of)
	}
	n := &snapshot{
		id: c.ids.UUID(), name: &name, project: v.project, user: v.user, volumeID: v.id, kind: v.kind, size: v.size,
		status: statusAvailable, progress: "100%", metadata: maps.Clone(metadata), created: now.UTC(),
	}
	if n.metadata == nil {
		n.metadata = map[string]string{}
	}
	c.snapshots[n.id] = n
	v.snapshots++
	c.chargeSnapshot(n.project, n.kind, 1, n.size)
	return n.id, nil
}

// AddVolume adds a volume exactly as described, bypassing the API and its
// quotas, and returns its ID.
func (s *Simulator) AddVolume(given Volume) (string, error) {
	if id := s.ProjectID(given.Project); id != "" {
		given.Project = id
	}
	given.Project = cmp.Or(given.Project, DefaultNoauthProject)
	now := s.cloud.lockToChange()
	defer s.cloud.unlock()
	c := s.cloud
	if given.ID == "" {
		given.ID = c.ids.UUID()
	}
	if c.volumes[given.ID] != nil {
		return "", fmt.Errorf("add volume: the id %s is taken", given.ID)
	}
	given.Type = cmp.Or(given.Type, c.options.DefaultType)
	kind := c.typeIndex[given.Type]
	if kind == nil {
		return "", fmt.Errorf("add volume: no volume type is named %q", given.Type)
	}
	given.Status = cmp.Or(given.Status, statusAvailable)
	if given.Host == "" && given.Status != statusCreating && given.Status != statusError {
		given.Host = "cinder@" + kind.Backend + "#" + kind.Backend
	}
	given.Zone = cmp.Or(given.Zone, c.options.Zones[0])
	if given.Created.IsZero() {
		given.Created = now
	}
	v := &volume{
		id: given.ID, project: given.Project, user: given.User, size: max(given.SizeGiB, 1), zone: given.Zone, kind: kind,
		status: given.Status, attachStatus: given.AttachStatus, host: given.Host, created: given.Created.UTC(), updated: given.Updated,
		metadata: maps.Clone(given.Metadata), adminMetadata: maps.Clone(given.AdminMetadata), snapshotID: given.SnapshotID,
		sourceID: given.SourceID, exported: given.Export.Present, username: given.Export.Username, password: given.Export.Password,
	}
	if v.keyID = given.KeyID; v.keyID == "" {
		c.newKey(v)
	}
	if given.Name != "" {
		v.name = &given.Name
	}
	if given.Description != "" {
		v.description = &given.Description
	}
	if v.host != "" {
		v.serviceID = c.serviceID(kind.Backend)
	}
	for _, host := range given.Export.ConnectedHosts {
		if v.connected == nil {
			v.connected = make(map[string]bool)
		}
		v.connected[host] = true
	}
	c.insert(v)
	for _, a := range given.Attachments {
		if a.ID == "" {
			a.ID = c.ids.UUID()
		}
		a.Status = cmp.Or(a.Status, attachStatusAttached)
		c.attach(v, &attachment{
			id: a.ID, volumeID: v.id, project: v.project, status: a.Status, instance: a.Instance, host: a.Host,
			mountpoint: a.Mountpoint, mode: cmp.Or(a.Mode, "rw"), attached: a.AttachedAt, created: now, connector: maps.Clone(a.Connector),
			connection: maps.Clone(a.Connection),
		})
		v.attachStatus = cmp.Or(v.attachStatus, a.Status)
	}
	v.attachStatus = cmp.Or(v.attachStatus, attachStatusDetached)
	return v.id, nil
}

// SetVolumeStatus overwrites a volume's status and nothing else.
func (s *Simulator) SetVolumeStatus(id, status string) error {
	return s.change("set the status of", id, func(v *volume, _ time.Time) { v.status = status })
}

// ReplaceVolumeStatus overwrites a volume's status if the current one matches,
// in one step, and reports whether it did.
func (s *Simulator) ReplaceVolumeStatus(id, from, to string) bool {
	return s.changeIf(id, from, func(v *volume) { v.status = to })
}

// ReplaceVolumeMetadata replaces a volume's own metadata if its status matches,
// in one step, and reports whether it did.
func (s *Simulator) ReplaceVolumeMetadata(id, status string, metadata map[string]string) bool {
	return s.changeIf(id, status, func(v *volume) { v.metadata = maps.Clone(metadata) })
}

// SetVolumeMetadata replaces a volume's own metadata.
func (s *Simulator) SetVolumeMetadata(id string, metadata map[string]string) error {
	return s.change("set the metadata of", id, func(v *volume, _ time.Time) { v.metadata = maps.Clone(metadata) })
}

// AddAttachment adds a further attachment to a volume, like two os-attach that
// arrive at once.
func (s *Simulator) AddAttachment(id string, given Attachment) error {
	return s.change("attach", id, func(v *volume, now time.Time) {
		s.cloud.attach(v, &attachment{
			id: s.cloud.ids.UUID(), volumeID: v.id, project: v.project, status: attachStatusAttached, host: given.Host,
			mountpoint: given.Mountpoint, mode: "rw", attached: now, created: now,
		})
	})
}

// RemoveAttachments ends all attachments of a volume, as an administrator might.
func (s *Simulator) RemoveAttachments(id string) error {
	return s.change("detach", id, func(v *volume, now time.Time) {
		v.disconnect(nil)
		v.removeExport()
		for _, a := range slices.Clone(v.attachments) {
			s.cloud.detach(v, a.id, now)
		}
	})
}

// SetSnapshotStatus overwrites a snapshot's status and nothing else.
func (s *Simulator) SetSnapshotStatus(id, status string) error {
	s.cloud.lockToChange()
	defer s.cloud.unlock()
	n := s.cloud.snapshots[id]
	if n == nil {
		return fmt.Errorf("set the status of: there is no snapshot %s", id)
	}
	n.status = status
	return nil
}

// RemoveSnapshot removes a snapshot from the state, as an administrator might.
func (s *Simulator) RemoveSnapshot(id string) error {
	s.cloud.lockToChange()
	defer s.cloud.unlock()
	n := s.cloud.snapshots[id]
	if n == nil {
		return fmt.Errorf("remove: there is no snapshot %s", id)
	}
	s.cloud.destroySnapshot(n)
	return nil
}

// RemoveVolume removes a volume from the state, as an administrator might.
func (s *Simulator) RemoveVolume(id string) error {
	return s.change("remove", id, func(v *volume, _ time.Time) {
		for _, n := range s.cloud.snapshotsOf(v) {
			s.cloud.destroySnapshot(n)
		}
		s.cloud.destroy(v)
	})
}

// changeIf changes a volume that has the status.
func (s *Simulator) changeIf(id, status string, change func(*volume)) bool {
	now := s.cloud.lockToChange()
	defer s.cloud.unlock()
	v := s.cloud.volumes[id]
	if v == nil || v.status != status {
		return false
	}
	change(v)
	v.changed(now)
	v.index()
	return true
}

func (s *Simulator) change(what, id string, change func(*volume, time.Time)) error {
	now := s.cloud.lockToChange()
	defer s.cloud.unlock()
	v := s.cloud.volumes[id]
	if v == nil {
		return fmt.Errorf("%s volume %s: there is none of that id", what, id)
	}
	change(v, now)
	v.changed(now)
	v.index()
	return nil
}
