package checker

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

const (
	cluster = "chaos-1"
	host    = "standalone-cinder"
)

// stamped returns a volume of ours, connected and in use.
func stamped(id, uid string) cindersim.Volume {
	return cindersim.Volume{
		ID: id, Name: "pvc-" + uid, Status: inUse, SizeGiB: 1, Project: "project",
		Metadata: map[string]string{StampCluster: cluster, StampClaimUID: uid, StampPV: "pvc-" + uid, StampTenant: "a", StampStorageClass: "fast"},
		Attachments: []cindersim.Attachment{
			{ID: "attachment-" + id, Host: host},
		},
		Export: cindersim.Export{Present: true, ConnectedHosts: []string{host}},
	}
}

// sound returns a state without faults: a bound claim, a pending one that is
// denied, a retained volume without a claim, and two foreign volumes.
func sound() State {
	foreign := cindersim.Volume{ID: "f1", Name: "pvc-u1", Status: available}
	half := stamped("f2", "u1")
	half.Metadata[StampPV] = "pvc-another"
	kept := stamped("v3", "u3")
	return State{
		Cluster: cluster,
		Host:    host,
		Claims: []Claim{
			{UID: "u1", Namespace: "a", Name: "data-1", Bound: true},
			{UID: "u2", Namespace: "a", Name: "data-2", Denial: "no room", Explained: true},
		},
		PVs: []PV{
			{Name: "pvc-u1", ClaimUID: "u1", VolumeID: "v1", Target: "iqn.x:volume-v1", Secret: "pvc-u1-credentials", Attachment: "attachment-v1"},
			{Name: "pvc-u3", ClaimUID: "u3", VolumeID: "v3", Retain: true},
		},
		Volumes: []cindersim.Volume{stamped("v1", "u1"), kept, foreign, half},
		Secrets: []Secret{{Name: "pvc-u1-credentials", PV: "pvc-u1"}},
		Foreign: map[string]cindersim.Volume{"f1": foreign, "f2": half},
	}
}

func TestEndingFindsWhatIsPlanted(t *testing.T) {
	for _, c := range []struct {
		name  string
		plant func(s *State)
		want  []Finding
	}{
		{"nothing", func(*State) {}, nil},
		{"a leaked volume of a claim that is gone", func(s *State) { s.Volumes = append(s.Volumes, stamped("v9", "u9")) },
			[]Finding{{Leaked, "volume v9 (pvc-u9, in-use)", "no PersistentVolume names it; its claim is gone", "v9", "u9"}}},
		{"a leaked volume of a claim that is pending", func(s *State) { s.Volumes = append(s.Volumes, stamped("v9", "u2")) },
			[]Finding{{Leaked, "volume v9 (pvc-u2, in-use)", "no PersistentVolume names it; its claim is pending", "v9", "u2"}}},
		{"two leaked volumes of one claim", func(s *State) { s.Volumes = append(s.Volumes, stamped("v8", "u9"), stamped("v9", "u9")) },
			[]Finding{
				{Leaked, "volume v8 (pvc-u9, in-use)", "no PersistentVolume names it; its claim is gone", "v8", "u9"},
				{Duplicate, "volume v9 (pvc-u9, in-use)", "another volume of this claim, and no PersistentVolume", "v9", "u9"},
			}},
		{"a second volume of a bound claim", func(s *State) { s.Volumes = append(s.Volumes, stamped("v9", "u1")) },
			[]Finding{{Duplicate, "volume v9 (pvc-u1, in-use)", "PersistentVolume pvc-u1 names volume v1", "v9", "u1"}}},
		{"another cluster's volume", func(s *State) {
			v := stamped("v9", "u9")
			v.Metadata[StampCluster] = "another"
			s.Volumes = append(s.Volumes, v)
		}, nil},
		{"an empty volume instead of content", func(s *State) { s.Claims[0].IsCopy = true },
			[]Finding{{Lost, "claim a/data-1", "asked for the content of another and got an empty volume", "", "u1"}}},
		{"a copy", func(s *State) { s.Claims[0].IsCopy, s.Volumes[0].SourceID = true, "v7" }, nil},
		{"a deleted claim that a pending one copies", func(s *State) { s.Claims[0].Asked, s.Claims[1].Copies = true, "u1" }, nil},
		{"a lost volume", func(s *State) { s.Volumes = s.Volumes[1:] },
			[]Finding{{Lost, "PersistentVolume pvc-u1", "volume v1 does not exist", "v1", "u1"}}},
		{"a PersistentVolume that was saved late, under an earlier leader", func(s *State) {
			s.Volumes, s.PVs[1].Created = slices.Delete(s.Volumes, 1, 2), time.Unix(100, 0)
			s.DeletionRequestedAt, s.LedSince = func(string) time.Time { return time.Unix(100, 5e8) }, time.Unix(101, 0)
		}, nil},
		{"a PersistentVolume that was saved late, under this leader", func(s *State) {
			s.Volumes, s.PVs[1].Created = slices.Delete(s.Volumes, 1, 2), time.Unix(100, 0)
			s.DeletionRequestedAt, s.LedSince = func(string) time.Time { return time.Unix(100, 5e8) }, time.Unix(99, 0)
		}, []Finding{{Lost, "PersistentVolume pvc-u3", "volume v3 does not exist", "v3", "u3"}}},
		{"a lost volume that was to be retained", func(s *State) { s.Volumes = slices.Delete(s.Volumes, 1, 2) },
			[]Finding{{Lost, "PersistentVolume pvc-u3", "volume v3 does not exist", "v3", "u3"}}},
		{"a volume of another PersistentVolume", func(s *State) { s.Volumes[0].Metadata[StampPV] = "pvc-x" },
			[]Finding{{Lost, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, in-use) is not stamped for it", "v1", "u1"}}},
		{"another volume's target", func(s *State) { s.PVs[0].Target = "iqn.x:volume-v7" },
			[]Finding{{Lost, "PersistentVolume pvc-u1", "target iqn.x:volume-v7 is not that of volume v1", "v1", "u1"}}},
		{"a lost Secret", func(s *State) { s.Secrets = nil },
			[]Finding{{Lost, "PersistentVolume pvc-u1", "Secret pvc-u1-credentials does not exist", "v1", "u1"}}},
		{"a leaked Secret", func(s *State) { s.Secrets = append(s.Secrets, Secret{"pvc-u9-credentials", "pvc-u9"}) },
			[]Finding{{LeakedSecret, "Secret pvc-u9-credentials", "PersistentVolume pvc-u9 does not exist", "", "u9"}}},
		{"one volume under two names", func(s *State) {
			s.PVs = append(s.PVs, PV{Name: "pvc-u2", ClaimUID: "u2", VolumeID: "v1"})
		}, []Finding{
			{Duplicate, "PersistentVolume pvc-u2", "names volume v1, and so does PersistentVolume pvc-u1", "v1", "u2"},
			{Lost, "PersistentVolume pvc-u2", "volume v1 (pvc-u1, in-use) is not stamped for it", "v1", "u2"},
		}},
		{"a bound claim without a PersistentVolume", func(s *State) { s.PVs, s.Volumes, s.Secrets = s.PVs[1:], s.Volumes[1:], nil },
			[]Finding{{Lost, "claim a/data-1", "is bound and its PersistentVolume is gone", "", "u1"}}},
		{"a PersistentVolume that does not go", func(s *State) { s.Claims = s.Claims[1:] },
			[]Finding{{Stuck, "PersistentVolume pvc-u1", "its claim is gone and it is still there; volume v1 (pvc-u1, in-use)", "v1", "u1"}}},
		{"a claim that got what it wants", func(s *State) { s.Claims[0].WantsGiB, s.Volumes[0].SizeGiB, s.PVs[0].GiB = 2, 2, 2 }, nil},
		{"a claim that wants more", func(s *State) { s.Claims[0].WantsGiB, s.PVs[0].GiB = 2, 1 },
			[]Finding{{Stuck, "claim a/data-1", "wants 2 GiB, and volume v1 (pvc-u1, in-use) has 1, though the policy grants it and there is room", "v1", "u1"}}},
		{"a claim that was told why it cannot have more", func(s *State) {
			s.Claims[0].WantsGiB, s.Claims[0].GrowthDenial, s.Claims[0].GrowthExplained, s.PVs[0].GiB = 2, "no room", true, 1
		}, nil},
		{"a claim that was not told why it cannot have more", func(s *State) { s.Claims[0].WantsGiB, s.Claims[0].GrowthDenial, s.PVs[0].GiB = 2, "no room", 1 },
			[]Finding{{Stuck, "claim a/data-1", "wants 2 GiB, and volume v1 (pvc-u1, in-use) has 1, and no event says why; it would be: no room", "v1", "u1"}}},
		{"a PersistentVolume that did not grow", func(s *State) { s.Claims[0].WantsGiB, s.Volumes[0].SizeGiB, s.PVs[0].GiB = 2, 2, 1 },
			[]Finding{{Stuck, "claim a/data-1", "has a PersistentVolume of 1 GiB still, and volume v1 (pvc-u1, in-use) has 2", "v1", "u1"}}},
		{"a PersistentVolume larger than its volume", func(s *State) { s.Claims[0].WantsGiB, s.PVs[0].GiB = 1, 2 },
			[]Finding{{Lost, "claim a/data-1", "has a PersistentVolume of 2 GiB, and volume v1 (pvc-u1, in-use) has 1", "v1", "u1"}}},
		{"a claim that does not go", func(s *State) { s.Claims[0].Asked = true },
			[]Finding{{Stuck, "claim a/data-1", "is deleted and does not go", "", "u1"}}},
		{"a pending claim that there is room for", func(s *State) { s.Claims[1].Denial = "" },
			[]Finding{{Stuck, "claim a/data-2", "is pending though the policy grants it and there is room", "", "u2"}}},
		{"a denial without an event", func(s *State) { s.Claims[1].Explained = false },
			[]Finding{{Stuck, "claim a/data-2", "is pending and no event says why; it would be: no room", "", "u2"}}},
		{"a volume short of its last step", func(s *State) { s.Volumes[0].Status = attaching },
			[]Finding{{Stuck, "PersistentVolume pvc-u1", "its claim a/data-1 is bound and volume v1 (pvc-u1, attaching) is not in use", "v1", "u1"}}},
		{"a volume attached twice", func(s *State) {
			s.Volumes[0].Attachments = append(s.Volumes[0].Attachments, cindersim.Attachment{ID: "x"})
		}, []Finding{{Stuck, "PersistentVolume pvc-u1", "its claim a/data-1 is bound and volume v1 (pvc-u1, in-use) has 2 attachments", "v1", "u1"}}},
		{"another attachment than the recorded one", func(s *State) { s.Volumes[0].Attachments[0].ID = "attachment-x" },
			[]Finding{{Stuck, "PersistentVolume pvc-u1", "its claim a/data-1 is bound and volume v1 (pvc-u1, in-use) has attachment attachment-x in place of attachment-v1", "v1", "u1"}}},
		{"a volume that no node can reach", func(s *State) { s.Volumes[0].Export.ConnectedHosts = nil },
			[]Finding{{Stuck, "PersistentVolume pvc-u1", "its claim a/data-1 is bound and volume v1 (pvc-u1, in-use) is not connected", "v1", "u1"}}},
		{"a foreign volume that was changed", func(s *State) { s.Volumes[2].Status = "deleting" },
			[]Finding{{Touched, "volume f1 (pvc-u1, available)", "Status was available and is deleting", "f1", ""}}},
		{"a foreign volume that is gone", func(s *State) { s.Volumes = slices.Delete(s.Volumes, 2, 3) },
			[]Finding{{Touched, "volume f1 (pvc-u1, available)", "it is gone", "f1", ""}}},
		{"half a stamp that was touched", func(s *State) { s.Volumes[3].Attachments = nil },
			[]Finding{{Touched, "volume f2 (pvc-u1, in-use)", "Attachments was [{ID:attachment-f2 Status: Instance: Host:standalone-cinder Mountpoint: Mode: AttachedAt:0001-01-01 00:00:00 +0000 UTC Connector:map[] Connection:map[] MadeByAttachmentAPI:false}] and is []", "f2", ""}}},
		{"a volume that was given away", func(s *State) {
			s.Volumes[0].Metadata[StampCluster] = "another"
			s.Foreign["v1"] = s.Volumes[0]
			s.Claims = s.Claims[1:] // its PersistentVolume can never be deleted
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sound()
			c.plant(&s)
			if got := Ending(s); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func sampleOf(s State) Sample {
	bound := map[string]bool{}
	for _, claim := range s.Claims {
		bound[claim.UID] = claim.Bound
	}
	return Sample{PVs: s.PVs, Bound: bound, Volumes: s.Volumes, Foreign: s.Foreign, Asked: func(string) bool { return false }}
}

func TestCourseFindsWhatIsPlanted(t *testing.T) {
	asked := func(uids ...string) func(string) bool {
		return func(uid string) bool { return slices.Contains(uids, uid) }
	}
	for _, c := range []struct {
		name  string
		plant func(s *Sample)
		want  []Finding
	}{
		{"nothing", func(*Sample) {}, nil},
		{"a volume that was deleted", func(s *Sample) { s.Volumes = s.Volumes[1:] },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; its claim was not deleted", "v1", "u1"}}},
		{"a volume whose claim was deleted", func(s *Sample) { s.Volumes, s.Asked = s.Volumes[1:], asked("u1") }, nil},
		{"a volume that is being deleted", func(s *Sample) { s.Volumes[0].Status = "deleting" },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, deleting) was in use; its claim was not deleted", "v1", "u1"}}},
		{"a volume that is being retyped", func(s *Sample) { s.Volumes[0].Status = retyping }, nil},
		{"a volume that was disconnected while it was retyped", func(s *Sample) { s.Volumes[0].Status, s.Volumes[0].Attachments = retyping, nil },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, retyping) was disconnected; its claim was not deleted", "v1", "u1"}}},
		{"a volume that was detached", func(s *Sample) { s.Volumes[0].Attachments = nil },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, in-use) was disconnected; its claim was not deleted", "v1", "u1"}}},
		{"a volume whose export was removed", func(s *Sample) { s.Volumes[0].Export.Present = false },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, in-use) was disconnected; its claim was not deleted", "v1", "u1"}}},
		{"a retained volume whose claim is gone", func(s *Sample) { s.Volumes[1].Status, s.Asked = available, asked("u3") },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u3", "volume v3 (pvc-u3, available) was in use; it is to be retained", "v3", "u3"}}},
		{"a retained volume that is gone with its PersistentVolume", func(s *Sample) {
			s.PVs, s.Volumes = s.PVs[:1], slices.Delete(s.Volumes, 1, 2)
		}, []Finding{{WronglyDeleted, "PersistentVolume pvc-u3", "volume v3 is gone; it is to be retained", "v3", "u3"}}},
		{"a second volume recorded for a claim", func(s *Sample) {
			s.PVs = slices.Clone(s.PVs)
			s.PVs[0].VolumeID = "v7"
			s.Volumes = append(s.Volumes, stamped("v7", "u1"))
		}, []Finding{{Duplicate, "PersistentVolume pvc-u1", "names volume v7 and named v1 before", "v7", "u1"}}},
		{"a foreign volume that was renamed", func(s *Sample) { s.Volumes[2].Name = "mine" },
			[]Finding{{Touched, "volume f1 (pvc-u1, available)", "Name was pvc-u1 and is mine", "f1", ""}}},
		{"a volume that was given away", func(s *Sample) {
			s.Foreign = maps.Clone(s.Foreign)
			s.Foreign["v1"], s.Asked = s.Volumes[0], asked("u1")
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			course := NewCourse(host)
			course.Look(sampleOf(sound()))
			next := sampleOf(sound())
			c.plant(&next)
			course.Look(next)
			course.Look(next)
			if got := course.Findings(); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// TestCourseTellsLateRecordsFromDeletedVolumes: if a late request saves a
// PersistentVolume while its volume is undone, nothing is lost; an object older
// than the last sight of its volume is lost.
func TestCourseTellsLateRecordsFromDeletedVolumes(t *testing.T) {
	last := time.Date(2026, 11, 21, 15, 22, 44, 700, time.UTC)
	gone := []Finding{{WronglyDeleted, "PersistentVolume pvc-u9", "volume v9 is gone; it is to be retained", "v9", "u9"}}
	disconnected := []Finding{{WronglyDeleted, "PersistentVolume pvc-u9", "volume v9 (pvc-u9, available) lost its reservation; it is to be retained", "v9", "u9"}}
	for _, c := range []struct {
		name    string
		created time.Time
		used    bool
		asked   bool
		left    bool // half undone: only disconnected
		want    []Finding
	}{
		{"saved later", last.Truncate(time.Second).Add(time.Second), false, true, false, nil},
		{"saved before", last.Truncate(time.Second), false, true, false, gone},
		{"in use once", last.Truncate(time.Second).Add(time.Second), true, true, false, gone},
		{"of a claim that stays", last.Truncate(time.Second).Add(time.Second), false, false, false, gone},
		{"saved after the disconnection", last.Truncate(time.Second).Add(time.Second), false, true, true, nil},
		{"saved before the disconnection", last.Truncate(time.Second), false, true, true, disconnected},
	} {
		t.Run(c.name, func(t *testing.T) {
			course := NewCourse(host)
			before := sampleOf(sound())
			volume := stamped("v9", "u9")
			if before.At = last; !c.used {
				volume.Status = attaching
			}
			before.Volumes = append(slices.Clone(before.Volumes), volume)
			if c.used {
				before.PVs = append(slices.Clone(before.PVs), PV{Name: "pvc-u9", ClaimUID: "u9", VolumeID: "v9"})
			}
			course.Look(before)
			after := sampleOf(sound())
			after.At, after.Asked = last.Add(2*time.Second), func(string) bool { return c.asked }
			if c.left {
				volume.Status = available
				after.Volumes = append(slices.Clone(after.Volumes), volume)
			}
			after.PVs = append(slices.Clone(after.PVs), PV{Name: "pvc-u9", ClaimUID: "u9", VolumeID: "v9", Retain: true, Created: c.created})
			course.Look(after)
			course.Look(after)
			if got := course.Findings(); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// TestCourseFollowsAVolumeToItsUse: a volume that was never seen in use may be
// on its way there, but only there.
func TestCourseFollowsAVolumeToItsUse(t *testing.T) {
	for _, c := range []struct {
		status string
		want   []Finding
	}{
		{attaching, nil},
		{inUse, nil},
		{available, []Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, available) lost its reservation; its claim was not deleted", "v1", "u1"}}},
		{"error", []Finding{{Unusable, "PersistentVolume pvc-u1", "its claim is bound and volume v1 (pvc-u1, error) failed", "v1", "u1"}}},
		{"deleting", []Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 (pvc-u1, deleting); its claim was not deleted", "v1", "u1"}}},
	} {
		course := NewCourse(host)
		s := sampleOf(sound())
		s.Volumes[0].Status = c.status
		course.Look(s)
		if got := course.Findings(); !slices.Equal(got, c.want) {
			t.Errorf("%s: found %+v, want %+v", c.status, got, c.want)
		}
	}
}
