package cindercontract

import (
	"context"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Groups is what the readings need of /groups.
type Groups interface {
	GroupSnapshots
	CreateGroup(ctx context.Context, wanted cinder.NewGroup) (cinder.Group, error)
	Group(ctx context.Context, id string) (cinder.Group, error)
	ListGroups(ctx context.Context, query cinder.Query, yield func(page []cinder.Group) bool) error
	AddToGroup(ctx context.Context, id string, volumes []string) error
	RemoveFromGroup(ctx context.Context, id string, volumes []string) error
	RenameGroup(ctx context.Context, id, name string) error
	DeleteGroup(ctx context.Context, id string) error
}

// GroupSnapshots is what they need of /group_snapshots and /group_types.
type GroupSnapshots interface {
	GroupTypes(ctx context.Context) ([]cinder.GroupType, error)
	CreateGroupSnapshot(ctx context.Context, groupID, name, description string) (cinder.GroupSnapshot, error)
	GroupSnapshot(ctx context.Context, id string) (cinder.GroupSnapshot, error)
	ListGroupSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.GroupSnapshot) bool) error
	ListGroupedSnapshots(ctx context.Context, query cinder.Query, yield func(page []cinder.Snapshot) bool) error
	DeleteGroupSnapshot(ctx context.Context, id string) error
}

// groupReadings check what belongs to groups and their snapshots.
var groupReadings = map[string]func(*subject){
	"a group is answered before it is done, listed, renamed and deleted": func(s *subject) {
		s.create(s.Type)
		made, name := s.newGroup()
		if made.Status != cinder.StatusCreating || made.Name != name {
			s.t.Errorf("the new group is %+v", made)
		}
		g := s.settledGroup(made.ID)
		if g.Status != cinder.StatusAvailable || g.Name != name || g.Description != "of the contract" || g.CreatedAt.IsZero() || len(g.Volumes) != 0 {
			s.t.Errorf("later the group is %+v", g)
		}
		for _, size := range []int{1, 1000} {
			listed := 0
			s.must(s.Groups.ListGroups(s.ctx, cinder.Query{PageSize: size}, func(page []cinder.Group) bool {
				for _, other := range page {
					if other.ID == g.ID && other.Description == g.Description {
						listed++
					}
				}
				return true
			}))
			if listed != 1 {
				s.t.Errorf("in pages of %d, it is listed %d times", size, listed)
			}
		}
		s.must(s.Groups.RenameGroup(s.ctx, g.ID, name+"-again"))
		if g = s.settledGroup(g.ID); g.Name != name+"-again" || g.Status != cinder.StatusAvailable {
			s.t.Errorf("renamed, the group is %+v", g)
		}
		s.must(s.Groups.DeleteGroup(s.ctx, g.ID))
		if g = s.settledGroup(g.ID); g.ID != "" {
			s.t.Errorf("after its deletion, the group is %+v", g)
		}
		if err := s.Groups.DeleteGroup(s.ctx, made.ID); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("deleting it again: %v", err)
		}
	},
	"a volume in a group is in no other, and is neither deleted nor retyped": func(s *subject) {
		s.create(s.Type)
		g := s.group(s.id)
		if !slices.Equal(g.Volumes, []string{s.id}) {
			s.t.Errorf("the group is %+v", g)
		}
		other := s.group()
		s.refuses("joining another group", s.Groups.AddToGroup(s.ctx, other.ID, []string{s.id}), "already in group "+g.ID)
		s.refuses("leaving another group", s.Groups.RemoveFromGroup(s.ctx, other.ID, []string{s.id}), "not in the group")
		s.refuses("deleting the group", s.Groups.DeleteGroup(s.ctx, g.ID), "still contains volumes")
		if err := s.Cinder.DeleteVolume(s.ctx, s.id); !cinder.IsKind(err, cinder.KindConflict) {
			s.t.Errorf("deleting the volume: %v", err)
		}
		if s.OtherType != "" {
			if err := s.Cinder.RetypeVolume(s.ctx, s.id, s.OtherType, false); err == nil {
				s.t.Error("the volume can be retyped")
			}
		}
		s.must(s.Groups.RemoveFromGroup(s.ctx, g.ID, []string{s.id}))
		if g = s.settledGroup(g.ID); len(g.Volumes) != 0 || g.Status != cinder.StatusAvailable {
			s.t.Errorf("after the volume has left, the group is %+v", g)
		}
	},
	"an update names no more volumes than Cinder's schema has room for": func(s *subject) {
		s.create(s.Type)
		g := s.group()
		many := slices.Repeat([]string{unknown}, cinder.MostInGroupUpdate)
		s.refuses("as many as fit", s.Groups.AddToGroup(s.ctx, g.ID, many), "cannot be found")
		err := s.Groups.AddToGroup(s.ctx, g.ID, append(many, unknown))
		if !cinder.IsKind(err, cinder.KindInvalid) || strings.Contains(err.Error(), "cannot be found") {
			s.t.Errorf("one more: %v", err)
		}
	},
	"a group snapshot outlives the volumes' time in the group, and its snapshots go only with it": func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
		g := s.group(s.id)
		made, err := s.Groups.CreateGroupSnapshot(s.ctx, g.ID, "contract", "of the contract")
		s.must(err)
		s.grouped = append(s.grouped, made.ID)
		taken := s.settledGroupSnapshot(made.ID)
		if made.Status != cinder.StatusCreating || taken.Status != cinder.StatusAvailable || taken.GroupID != g.ID || taken.Description != "of the contract" || taken.CreatedAt.IsZero() {
			s.t.Errorf("made is %+v, later read %+v", made, taken)
		}
		s.must(s.Groups.RemoveFromGroup(s.ctx, g.ID, []string{s.id}))
		s.settledGroup(g.ID)
		var members []cinder.Snapshot
		s.must(s.Groups.ListGroupedSnapshots(s.ctx, cinder.Query{PageSize: 1000}, func(page []cinder.Snapshot) bool {
			for _, one := range page {
				if one.GroupSnapshotID == taken.ID {
					members = append(members, one)
				}
			}
			return true
		}))
		if len(members) != 1 || members[0].VolumeID != s.id || members[0].Status != cinder.StatusAvailable || len(members[0].Metadata) != 0 {
			s.t.Fatalf("its snapshots are %+v", members)
		}
		s.must(s.Cinder.UpdateSnapshotMetadata(s.ctx, members[0].ID, map[string]string{"mark": "1"}))
		if err := s.Cinder.DeleteSnapshot(s.ctx, members[0].ID); !cinder.IsKind(err, cinder.KindConflict) {
			s.t.Errorf("deleting its snapshot: %v", err)
		}
		s.refuses("deleting the group", s.Groups.DeleteGroup(s.ctx, g.ID), "has existing snapshots")
		s.must(s.Cinder.Detach(s.ctx, s.id, ""))
		s.copied(cinder.NewVolume{SnapshotID: members[0].ID, SizeGiB: 1})
		s.must(s.Groups.DeleteGroupSnapshot(s.ctx, taken.ID))
		if left := s.settledGroupSnapshot(taken.ID); left.ID != "" {
			s.t.Errorf("after its deletion, it is %+v", left)
		}
		if left := s.settledSnapshot(members[0].ID); left.ID != "" {
			s.t.Errorf("after its deletion, its snapshot is %+v", left)
		}
		s.must(s.Groups.DeleteGroup(s.ctx, g.ID))
		if left := s.settledGroup(g.ID); left.ID != "" {
			s.t.Errorf("after its deletion, the group is %+v", left)
		}
	},
	"a group's type must exist, and its specs are for administrators": func(s *subject) {
		if _, err := s.Groups.CreateGroup(s.ctx, cinder.NewGroup{Name: "contract", Type: "none", VolumeTypes: []string{s.Type}}); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("a group of no type: %v", err)
		}
		if _, err := s.Groups.CreateGroupSnapshot(s.ctx, unknown, "contract", ""); !cinder.IsKind(err, cinder.KindNotFound) {
			s.t.Errorf("a snapshot of no group: %v", err)
		}
		types, err := s.Groups.GroupTypes(s.ctx)
		s.must(err)
		i := slices.IndexFunc(types, func(t cinder.GroupType) bool { return t.Name == s.GroupType })
		if i < 0 {
			s.t.Fatalf("the group types are %+v", types)
		}
		if consistent, known := types[i].IsConsistent(); known == s.Member || consistent == s.Member {
			s.t.Errorf("the group type is %+v", types[i])
		}
	},
}

// refuses checks that Cinder refused a request, and why.
func (s *subject) refuses(what string, err error, why string) {
	s.t.Helper()
	if !cinder.IsKind(err, cinder.KindConflict) || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(why)) {
		s.t.Errorf("%s: %v, want %q", what, err, why)
	}
}

func (s *subject) newGroup() (made cinder.Group, name string) {
	s.t.Helper()
	v, err := s.Cinder.Volume(s.ctx, s.id)
	s.must(err)
	name = newName()
	made, err = s.Groups.CreateGroup(s.ctx, cinder.NewGroup{Name: name, Description: "of the contract", Type: s.GroupType, VolumeTypes: []string{s.Type}, Zone: v.Zone})
	s.must(err)
	s.groups = append(s.groups, made.ID)
	return made, name
}

// group makes a group with volumes in it.
func (s *subject) group(volumes ...string) cinder.Group {
	s.t.Helper()
	made, _ := s.newGroup()
	g := s.settledGroup(made.ID)
	if g.Status != cinder.StatusAvailable {
		s.t.Fatalf("the group is %+v", g)
	}
	if len(volumes) > 0 {
		s.must(s.Groups.AddToGroup(s.ctx, g.ID, volumes))
		g = s.settledGroup(g.ID)
	}
	return g
}

func (s *subject) settledGroup(id string) cinder.Group {
	s.t.Helper()
	return settledAs(s, s.Groups.Group, id)
}

func (s *subject) settledGroupSnapshot(id string) cinder.GroupSnapshot {
	s.t.Helper()
	return settledAs(s, s.Groups.GroupSnapshot, id)
}

// removeGroups removes what is left of the subject's groups.
func (s *subject) removeGroups() {
	if s.Groups == nil {
		return
	}
	for _, id := range s.groups {
		if g := s.settledGroup(id); len(g.Volumes) > 0 {
			_ = s.Groups.RemoveFromGroup(s.ctx, id, g.Volumes)
			s.settledGroup(id)
		}
	}
	removeAll(s, s.Groups.GroupSnapshot, s.Groups.DeleteGroupSnapshot, s.grouped)
	removeAll(s, s.Groups.Group, s.Groups.DeleteGroup, s.groups)
}
