package backends

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/keyedmutex"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// Cinder takes the snapshots of several volumes at one moment while they are in a group. The
// volumes are in it only for that time: Cinder neither deletes nor retypes a volume in a
// group, and lets it be in no other. The group must stay as long as its group snapshot, and
// counts in the project's quota of groups. The stamp in the descriptions of both leads every
// later attempt to them.

// GroupSpec is the group snapshot that a VolumeGroupSnapshot wants.
type GroupSpec struct {
	Name  string // derived from the VolumeGroupSnapshot's UID
	Stamp stamps.Group
	// Type is a group type of Cinder whose snapshots show one moment.
	Type string
	// Members are its snapshots. All have the same Place.
	Members []SnapshotSpec
	// Permit is called before every request that leads to new snapshots.
	Permit func(ctx context.Context) error

	// sources are the members' volumes that were read, by ID.
	sources map[string]cinder.Volume
}

// GroupTarget is a group snapshot to remove, with the proof that it may be removed.
type GroupTarget struct {
	Stamp stamps.Group
	Place cinder.Place
	// MayGo reports whether a snapshot that was recorded may go. Others always may. Without
	// it, a group with any recorded snapshot stays as it is.
	MayGo func(s cinder.Snapshot) bool
	// Permit is that of a SnapshotTarget.
	Permit func(ctx context.Context) error
}

// groups owns the groups at an endpoint.
type groups struct {
	*endpoint
	groups *stock[cinder.Group]
	// taken are the group snapshots, and snapshots owns what they consist of.
	taken     *stock[cinder.GroupSnapshot]
	snapshots *snapshots
	locks     *keyedmutex.Mutex
}

type groupRequests interface {
	CreateGroup(ctx context.Context, wanted cinder.NewGroup) (cinder.Group, error)
	Group(ctx context.Context, id string) (cinder.Group, error)
	ListGroups(ctx context.Context, query cinder.Query, yield func(page []cinder.Group) bool) error
	AddToGroup(ctx context.Context, id string, volumes []string) error
	RemoveFromGroup(ctx context.Context, id string, volumes []string) error
	RenameGroup(ctx context.Context, id, name string) error
	DeleteGroup(ctx context.Context, id string) error
	GroupTypes(ctx context.Context) ([]cinder.GroupType, error)
}

type groupSnapshotRequests interface {
	CreateGroupSnapshot(ctx context.Context, groupID, name, description string) (cinder.GroupSnapshot, error)
	GroupSnapshot(ctx context.Context, id string) (cinder.GroupSnapshot, error)
	ListGroupSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.GroupSnapshot) bool) error
	ListGroupedSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error
	DeleteGroupSnapshot(ctx context.Context, id string) error
}

func newGroups(l *Lifecycle, at *endpoint, of *snapshots) *groups {
	e := &groups{endpoint: at, snapshots: of, locks: l.locks}
	e.groups = newStock(l, at, kindOf("group", "VolumeGroupSnapshot", groupRequests.Group, groupRequests.ListGroups))
	e.taken = newStock(l, at, kindOf("group snapshot", "VolumeGroupSnapshot", groupSnapshotRequests.GroupSnapshot, groupSnapshotRequests.ListGroupSnapshots))
	return e
}

// TakeGroup takes the group snapshot that a VolumeGroupSnapshot wants, or goes on with that
// of an earlier attempt, until all of its snapshots are available and stamped. It returns
// them in the order of the members. If Cinder refuses for good, nothing is left.
func (l Snapshots) TakeGroup(ctx context.Context, spec GroupSpec) ([]cinder.Snapshot, error) {
	return serialized(ctx, l.Lifecycle, spec.Stamp.Key(), func(at *owners) ([]cinder.Snapshot, error) { return at.groups.take(ctx, spec) })
}

func (e *groups) take(ctx context.Context, spec GroupSpec) ([]cinder.Snapshot, error) {
	spec.sources = map[string]cinder.Volume{}
	g, taken, err := e.look(ctx, spec)
	if err != nil {
		return nil, err
	}
	if here := e.place(); here != spec.Members[0].Place {
		return nil, e.elsewhere("the group snapshot was to be taken at %s, but the backend points to %s", spec.Members[0].Place, here)
	}
	if g, taken, err = e.request(ctx, g, taken, spec); err == nil && taken.Status == cinder.StatusCreating {
		taken, _, err = e.taken.watcher.Await(ctx, taken.ID, taken.Status, e.timeouts().Create)
	}
	if err == nil && taken.Status != cinder.StatusAvailable {
		err = e.failure(KindVolumeFailed, "group snapshot %s is %s; see the log of cinder-volume", taken.ID, cinderStatus(taken.Status))
	}
	if err == nil {
		g, err = e.leave(ctx, g, g.Volumes, nil)
	}
	var all []cinder.Snapshot
	if err == nil {
		all, err = e.stampMembers(ctx, taken, spec)
	}
	if isFinal(err) || taken.ID == "" && cinder.IsKind(err, cinder.KindConflict) {
		err = e.discard(ctx, g, err) // no volume waits in the group for another attempt
	}
	return all, err
}

func cinderStatus(status cinder.Status) string {
	if status == "" {
		return "gone"
	}
	return string(status)
}

// isFinal reports whether Cinder will certainly not take the group snapshot now.
func isFinal(err error) bool {
	for _, kind := range []cinder.Kind{KindVolumeFailed, cinder.KindOverQuota, cinder.KindInvalid, cinder.KindNotFound, cinder.KindForbidden, KindNotOurs} {
		if cinder.IsKind(err, kind) {
			return true
		}
	}
	return false
}

// look finds the group of an earlier attempt, and its group snapshot. It removes what late
// requests made besides. The zero Group means that there is provably none.
func (e *groups) look(ctx context.Context, spec GroupSpec) (g cinder.Group, taken cinder.GroupSnapshot, err error) {
	all, err := e.list(ctx)
	if err != nil {
		return g, taken, err
	}
	ours := slices.DeleteFunc(slices.Clone(all), func(g cinder.Group) bool { return stamps.OfGroup(g.Description) != spec.Stamp })
	if len(ours) == 0 {
		return g, taken, e.mustBeFree(all, spec)
	}
	existing, err := e.snapshotsIn(ctx, ours...)
	if err != nil {
		return g, taken, err
	}
	// A recorded one was handed out; otherwise every leader keeps the oldest.
	slices.SortFunc(existing, func(a, b groupSnapshot) int {
		if a.isRecorded() != b.isRecorded() {
			return map[bool]int{true: -1, false: 1}[a.isRecorded()]
		}
		return a.CreatedAt.Compare(b.CreatedAt)
	})
	slices.SortFunc(ours, func(a, b cinder.Group) int { return a.CreatedAt.Compare(b.CreatedAt) })
	g = ours[0]
	if len(existing) > 0 {
		taken = existing[0].GroupSnapshot
		g = ours[slices.IndexFunc(ours, func(g cinder.Group) bool { return g.ID == taken.GroupID })]
		for _, other := range existing[1:] {
			if other.GroupID != g.ID {
				continue
			}
			if other.isRecorded() {
				return g, taken, e.failure(KindRecorded, "group snapshots %s and %s of one VolumeGroupSnapshot were both recorded; keep one and delete the other by hand", taken.ID, other.ID)
			}
			e.logger.Warn("Removing a duplicate group snapshot of one VolumeGroupSnapshot", "id", other.ID, "kept", taken.ID)
			if err := e.removeSnapshot(ctx, other, nil); err != nil {
				return g, taken, err
			}
		}
	}
	for _, other := range ours {
		if other.ID == g.ID {
			continue
		}
		e.logger.Warn("Removing a duplicate group of one VolumeGroupSnapshot", "id", other.ID, "kept", g.ID)
		if _, err := e.remove(ctx, other, nil, nil); err != nil {
			return g, taken, err
		}
	}
	g, gone, err := e.settle(ctx, g)
	if gone {
		return cinder.Group{}, cinder.GroupSnapshot{}, err
	}
	if err == nil && g.Status != cinder.StatusAvailable && taken.ID == "" {
		err = e.discard(ctx, g, e.failure(KindVolumeFailed, "group %s is %s; see the log of cinder-volume", g.ID, g.Status))
	}
	return g, taken, err
}

// discard removes a group, unless any of its snapshots was handed out, because of an error,
// which it returns.
func (e *groups) discard(ctx context.Context, g cinder.Group, because error) error {
	if g.ID == "" {
		return because
	}
	if _, err := e.remove(ctx, g, nil, nil); err != nil {
		return fmt.Errorf("%w; group %s cannot be removed now: %w", because, g.ID, err)
	}
	return because
}

// mustBeFree returns an error if a member's volume is in a group.
func (e *groups) mustBeFree(all []cinder.Group, spec GroupSpec) error {
	for _, g := range all {
		for _, m := range spec.Members {
			switch id := m.Source.VolumeID; {
			case !slices.Contains(g.Volumes, id):
			case spec.Stamp.SameCluster(stamps.OfGroup(g.Description)):
				return e.failure(cinder.KindConflict, "volume %s is in group %s of another VolumeGroupSnapshot, whose snapshots are being taken; waiting for that", id, g.ID)
			default:
				return e.foreign(id, g)
			}
		}
	}
	return nil
}

func (e *groups) foreign(volumeID string, g cinder.Group) error {
	return e.failure(KindNotOurs, "volume %s is in group %s (%q), which this program did not make, and a volume can be in one group only; take it out there: cinder --os-volume-api-version 3.13 group-update --remove-volumes %s %s",
		volumeID, g.ID, g.Name, volumeID, g.ID)
}

// list lists all groups of the project, with their volumes.
func (e *groups) list(ctx context.Context) ([]cinder.Group, error) {
	return everyOne(ctx, e.groups, cinder.Query{}, func(cinder.Group) bool { return true })
}

// everyOne lists all objects that are wanted, each once: a new login restarts the listing.
func everyOne[T cinder.Object](ctx context.Context, of *stock[T], query cinder.Query, isWanted func(T) bool) (all []T, err error) {
	seen := map[string]bool{}
	query.PageSize = 1000
	err = of.list(ctx, query, func(page []T) bool {
		for _, object := range page {
			if id := cinder.IDOf(object); !seen[id] && isWanted(object) {
				seen[id] = true
				all = append(all, object)
			}
		}
		return true
	})
	return all, err
}

// groupSnapshot is a group snapshot with its snapshots.
type groupSnapshot struct {
	cinder.GroupSnapshot
	members []cinder.Snapshot
}

func (g groupSnapshot) isRecorded() bool { return slices.ContainsFunc(g.members, stamps.WasRecorded) }

// isNeeded reports whether any of its snapshots was handed out, and not given back.
func (g groupSnapshot) isNeeded() bool { return slices.ContainsFunc(g.members, isNeeded) }

func isNeeded(s cinder.Snapshot) bool { return stamps.WasRecorded(s) && !stamps.IsUnneeded(s) }

// snapshotsIn lists the group snapshots of groups, with all of their snapshots.
func (e *groups) snapshotsIn(ctx context.Context, of ...cinder.Group) (found []groupSnapshot, err error) {
	all, err := everyOne(ctx, e.taken, cinder.Query{}, func(taken cinder.GroupSnapshot) bool {
		return slices.ContainsFunc(of, func(g cinder.Group) bool { return g.ID == taken.GroupID })
	})
	if err != nil || len(all) == 0 {
		return nil, err
	}
	for _, taken := range all {
		found = append(found, groupSnapshot{GroupSnapshot: taken})
	}
	err = e.listMembers(ctx, func(s cinder.Snapshot) bool {
		if i := slices.IndexFunc(found, func(g groupSnapshot) bool { return g.ID == s.GroupSnapshotID }); i >= 0 {
			found[i].members = append(found[i].members, s)
		}
		return true
	})
	return found, err
}

// listMembers lists snapshots with their group snapshots, the newest first.
func (e *groups) listMembers(ctx context.Context, yield func(cinder.Snapshot) (more bool)) error {
	return listForAll(ctx, e.session, func(ctx context.Context, client groupSnapshotRequests) error {
		return client.ListGroupedSnapshots(ctx, cinder.Query{PageSize: 1000, Keep: stamps.IsOurKey}, func(page []cinder.Snapshot) bool {
			for _, s := range page {
				if !yield(s) {
					return false
				}
			}
			return true
		})
	})
}

// request requests the group snapshot unless there is one.
func (e *groups) request(ctx context.Context, g cinder.Group, taken cinder.GroupSnapshot, spec GroupSpec) (cinder.Group, cinder.GroupSnapshot, error) {
	if taken.ID != "" {
		return g, taken, nil
	}
	var volumes []cinder.Volume
	var missing []string
	for _, m := range spec.Members {
		v, err := e.sourceOf(ctx, m, spec)
		if err != nil {
			return g, taken, err
		}
		if volumes = append(volumes, v); slices.Contains(g.Volumes, v.ID) {
			continue
		}
		if v.Status != cinder.StatusAvailable && v.Status != cinder.StatusInUse {
			return g, taken, e.failure(cinder.KindConflict, "volume %s is %s, and cannot join a group; waiting for that operation to finish", v.ID, v.Status)
		}
		missing = append(missing, v.ID)
	}
	var err error
	if g.ID == "" {
		g, err = e.create(ctx, spec, volumes)
	}
	if err == nil {
		g, err = e.update(ctx, g, missing, true, permissionOf(ctx, spec.Permit))
	}
	if err != nil {
		return g, taken, err
	}
	err = change(ctx, e.session, permissionOf(ctx, spec.Permit), func(ctx context.Context, client groupSnapshotRequests) (err error) {
		taken, err = client.CreateGroupSnapshot(ctx, g.ID, spec.Name, spec.Stamp.Description())
		return err
	})
	if err == nil {
		e.expect(taken.ID, "")
	}
	return g, taken, err
}

// sourceOf reads the volume of a member, once in an attempt.
func (e *groups) sourceOf(ctx context.Context, m SnapshotSpec, spec GroupSpec) (cinder.Volume, error) {
	v, known := spec.sources[m.Source.VolumeID]
	if known {
		return v, nil
	}
	v, err := e.existing(ctx, m.Source)
	if err == nil {
		spec.sources[v.ID] = v
	}
	return v, err
}

// create makes the group, which has no volumes yet.
func (e *groups) create(ctx context.Context, spec GroupSpec, volumes []cinder.Volume) (cinder.Group, error) {
	wanted := cinder.NewGroup{Name: spec.Name, Description: spec.Stamp.Description(), Type: spec.Type, Zone: volumes[0].Zone}
	for _, v := range volumes {
		switch {
		case v.Type == "":
			return cinder.Group{}, e.failure(cinder.KindInvalid, "volume %s has no volume type, and only volumes with a type can be in a group", v.ID)
		case v.Zone != wanted.Zone:
			return cinder.Group{}, e.failure(cinder.KindInvalid, "volumes %s and %s are in the availability zones %s and %s, and a group is in one", volumes[0].ID, v.ID, wanted.Zone, v.Zone)
		case !slices.Contains(wanted.VolumeTypes, v.Type):
			wanted.VolumeTypes = append(wanted.VolumeTypes, v.Type)
		}
	}
	if err := e.mustBeConsistent(ctx, spec.Type); err != nil {
		return cinder.Group{}, err
	}
	of := fmt.Sprintf("a group of type %q for volumes of type %s", spec.Type, strings.Join(wanted.VolumeTypes, ", "))
	var g cinder.Group
	err := change(ctx, e.session, permissionOf(ctx, spec.Permit), func(ctx context.Context, client groupRequests) (err error) {
		g, err = client.CreateGroup(ctx, wanted)
		return err
	})
	if err != nil {
		return cinder.Group{}, fmt.Errorf("cannot make %s: %w", of, err)
	}
	e.expect(g.ID, "")
	made, _, err := e.groups.watcher.Await(ctx, g.ID, g.Status, e.timeouts().Create)
	switch {
	case err != nil:
		return g, err
	case made.Status != cinder.StatusAvailable:
		return g, e.failure(KindVolumeFailed, "Cinder found no storage for %s; use another group type, or a VolumeGroupSnapshotClass with the consistency filesystem or none; see the logs of cinder-scheduler and cinder-volume", of)
	}
	return made, nil
}

// mustBeConsistent returns an error if Cinder shows that a group type is not consistent.
func (e *groups) mustBeConsistent(ctx context.Context, groupType string) error {
	var all []cinder.GroupType
	err := read(ctx, e.session, func(ctx context.Context, client groupRequests) (err error) {
		all, err = client.GroupTypes(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range all {
		if consistent, known := t.IsConsistent(); (t.Name == groupType || t.ID == groupType) && known && !consistent {
			return e.failure(cinder.KindInvalid, "group type %q has no spec consistent_group_snapshot_enabled=\"<is> True\", so its snapshots would not show one moment; name another in groupType of the VolumeGroupSnapshotClass", groupType)
		}
	}
	return nil
}

// update has volumes join or leave a group that is available.
func (e *groups) update(ctx context.Context, g cinder.Group, volumes []string, join bool, permitted permission) (cinder.Group, error) {
	for some := range slices.Chunk(volumes, cinder.MostInGroupUpdate) {
		err := change(ctx, e.session, permitted, func(ctx context.Context, client groupRequests) error {
			if join {
				return client.AddToGroup(ctx, g.ID, some)
			}
			return client.RemoveFromGroup(ctx, g.ID, some)
		})
		if join && err != nil && strings.Contains(err.Error(), "not local to this node") {
			return g, e.failure(cinder.KindInvalid, "Cinder has placed the group on another storage than volumes %s; take the snapshots of volumes of one storage, whose volume type no other storage has", strings.Join(some, ", "))
		}
		if err != nil {
			return g, err
		}
		isBefore := func(g cinder.Group) bool { return slices.Contains(g.Volumes, some[0]) != join }
		after, gone, err := e.groups.awaitEnd(ctx, g.ID, cinder.StatusUpdating, e.timeouts().Create, isBefore)
		switch {
		case err != nil:
			return g, stuck(err, g)
		case gone || after.Status != cinder.StatusAvailable || isBefore(after):
			return g, e.failure(KindVolumeFailed, "the storage failed to change the volumes of group %s, which is %s; Cinder may have set the status of these volumes to error, which an OpenStack administrator must repair: %s", g.ID, cinderStatus(after.Status), strings.Join(some, ", "))
		}
		g = after
	}
	return g, nil
}

// leave has volumes leave a group.
func (e *groups) leave(ctx context.Context, g cinder.Group, volumes []string, permitted permission) (cinder.Group, error) {
	if len(volumes) == 0 {
		return g, nil
	}
	if g.Status == cinder.StatusError {
		// Otherwise Cinder lets no volume out.
		err := change(ctx, e.session, permitted, func(ctx context.Context, client groupRequests) error {
			return client.RenameGroup(ctx, g.ID, g.Name+" (failed)")
		})
		if err != nil {
			return g, err
		}
	}
	return e.update(ctx, g, volumes, false, permitted)
}

// settle waits until Cinder has finished what it does with a group.
func (e *groups) settle(ctx context.Context, g cinder.Group) (after cinder.Group, gone bool, err error) {
	switch g.Status {
	case cinder.StatusCreating, cinder.StatusUpdating:
		after, gone, err = e.groups.watcher.Await(ctx, g.ID, g.Status, e.timeouts().Create)
		return after, gone, stuck(err, g)
	case cinder.StatusDeleting:
		return e.groups.awaitGone(ctx, g.ID, false)
	}
	return g, false, nil
}

// stuck adds the remedy to the error of a group that Cinder does not finish.
func stuck(err error, g cinder.Group) error {
	if !cinder.IsKind(err, KindTimeout) {
		return err
	}
	return fmt.Errorf("%w; if Cinder no longer works on it, an OpenStack administrator must run: cinder --os-volume-api-version 3.20 reset-state --type group --state available %s", err, g.ID)
}

// stampMembers stamps the snapshots of a group snapshot, which Cinder makes without metadata,
// and returns them in the order of the members.
func (e *groups) stampMembers(ctx context.Context, taken cinder.GroupSnapshot, spec GroupSpec) ([]cinder.Snapshot, error) {
	found := map[string]cinder.Snapshot{} // by volume
	err := e.listMembers(ctx, func(s cinder.Snapshot) bool {
		if s.GroupSnapshotID == taken.ID {
			found[s.VolumeID] = s
		}
		return len(found) < len(spec.Members)
	})
	if err != nil {
		return nil, err
	}
	var all []cinder.Snapshot
	for _, m := range spec.Members {
		s := found[m.Source.VolumeID]
		switch {
		case s.Status != cinder.StatusAvailable || stamps.IsUnneeded(s):
			return nil, e.failure(KindVolumeFailed, "the snapshot of volume %s in group snapshot %s is %s", m.Source.VolumeID, taken.ID, cinderStatus(s.Status))
		case stamps.OfSnapshot(s).Cluster != "" && !m.Stamp.Owns(s):
			return nil, e.snapshots.snapshotNotOurs(s, m.Stamp)
		case !m.Stamp.Owns(s):
			if s.Metadata, err = e.stampMember(ctx, s, m, taken, spec); err != nil {
				return nil, err
			}
		}
		all = append(all, s)
	}
	return all, nil
}

// unstamped returns the volumes of which a group snapshot of the cluster has a snapshot
// without a stamp, as a set.
func (e *groups) unstamped(ctx context.Context) (map[string]bool, error) {
	volumes := map[string]bool{}
	all, err := e.list(ctx)
	if cinder.IsKind(err, cinder.KindInvalid) || cinder.IsKind(err, cinder.KindForbidden) {
		return volumes, nil // this Cinder is too old for groups, or forbids them
	}
	ours := slices.DeleteFunc(all, func(g cinder.Group) bool { return stamps.OfGroup(g.Description).Cluster != e.cluster })
	if err != nil || len(ours) == 0 {
		return volumes, err
	}
	existing, err := e.snapshotsIn(ctx, ours...)
	for _, taken := range existing {
		for _, s := range taken.members {
			if stamps.OfSnapshot(s).Cluster == "" {
				volumes[s.VolumeID] = true
			}
		}
	}
	return volumes, err
}

func (e *groups) stampMember(ctx context.Context, s cinder.Snapshot, m SnapshotSpec, taken cinder.GroupSnapshot, spec GroupSpec) (map[string]string, error) {
	source, err := e.sourceOf(ctx, m, spec)
	if err != nil {
		return nil, err
	}
	metadata := m.metadata()
	metadata[stamps.KeyGroupSnapshot] = taken.ID
	stamps.InheritEncryption(metadata, source.Metadata)
	return metadata, e.snapshots.writeMetadata(ctx, nil, s.ID, metadata)
}
