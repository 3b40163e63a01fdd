package checker

import (
	"maps"
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// withMoved returns a sound state with two more volumes: one that was made for claim u7
// of tenant d and went to claim u8 of tenant e, and one that stays with its claim.
func withMoved() State {
	s := sound()
	moved, other := stamped("v7", "u7"), stamped("v9", "u9")
	maps.Copy(moved.Metadata, map[string]string{StampReboundTo: "u8", StampTenant: "e", StampNamespace: "e", StampClaim: "moved-8", "costcenter": "1", "owner": ""})
	maps.Copy(other.Metadata, map[string]string{StampTenant: "d", StampNamespace: "d", StampClaim: "moved-9"})
	s.Claims = append(s.Claims,
		Claim{UID: "u8", Namespace: "e", Name: "moved-8", Bound: true, Tenant: "e", Metadata: map[string]string{"costcenter": "1", "owner": ""}},
		Claim{UID: "u9", Namespace: "d", Name: "moved-9", Bound: true, Tenant: "d"})
	s.PVs = append(s.PVs,
		PV{Name: "pvc-u7", ClaimUID: "u7", Holder: "u8", ReboundTo: "u8", Tenant: "e", VolumeID: "v7"},
		PV{Name: "pvc-u9", ClaimUID: "u9", Holder: "u9", Tenant: "d", VolumeID: "v9"})
	s.Volumes = append(s.Volumes, moved, other)
	s.Counted = map[string]*policy.Usage{"d": {Volumes: 1, Gigabytes: 1}, "e": {Volumes: 1, Gigabytes: 1}, "f": {}}
	return s
}

func TestEndingFindsWhatIsPlantedAmongMovedVolumes(t *testing.T) {
	claims, pvs, volumes := len(sound().Claims), len(sound().PVs), len(sound().Volumes)
	wrong := func(text string) []Finding {
		return []Finding{{Miscounted, "PersistentVolume pvc-u7", "claim e/moved-8 (u8) of tenant e has it, and the " + text, "v7", "u7"}}
	}
	stamp := func(key, value string) func(*State) {
		return func(s *State) { s.Volumes[volumes].Metadata[key] = value }
	}
	for _, c := range []struct {
		name  string
		plant func(*State)
		want  []Finding
	}{
		{"nothing", func(*State) {}, nil},
		{"a record of the claim that the volume was made for", func(s *State) { s.PVs[pvs].ReboundTo = "" }, wrong(`claim of its record is "", not "u8"`)},
		{"a record of an earlier claim", func(s *State) { s.PVs[pvs].ReboundTo = "u6" }, wrong(`claim of its record is "u6", not "u8"`)},
		{"a record of the earlier tenant", func(s *State) { s.PVs[pvs].Tenant = "d" }, wrong(`tenant of its record is "d", not "e"`)},
		{"a stamp of the claim that the volume was made for", stamp(StampReboundTo, ""), wrong(`claim of its volume is "", not "u8"`)},
		{"a stamp of the earlier namespace", stamp(StampNamespace, "d"), wrong(`namespace of its volume is "d", not "e"`)},
		{"a stamp of the earlier name", stamp(StampClaim, "moved-7"), wrong(`claim's name of its volume is "moved-7", not "moved-8"`)},
		{"what the earlier tenant is charged by", stamp("owner", "d"), wrong(`owner of its volume is "d", not ""`)},
		{"a stamp of the earlier tenant", stamp(StampTenant, "d"), append(wrong(`tenant of its volume is "d", not "e"`),
			Finding{Kind: Miscounted, Object: "tenant d", Text: "the leader counts 1 volumes of 1 GiB, and Cinder has 2 of 2 GiB"},
			Finding{Kind: Miscounted, Object: "tenant e", Text: "the leader counts 1 volumes of 1 GiB, and Cinder has 0 of 0 GiB"})},
		{"a stamp of a claim that a volume never had", func(s *State) { s.Volumes[volumes+1].Metadata[StampReboundTo] = "u8" },
			[]Finding{{Miscounted, "PersistentVolume pvc-u9", `claim d/moved-9 (u9) of tenant d has it, and the claim of its volume is "u8", not ""`, "v9", "u9"}}},
		{"a volume that counts twice", func(s *State) { s.Counted["d"].Volumes = 2 },
			[]Finding{{Kind: Miscounted, Object: "tenant d", Text: "the leader counts 2 volumes of 1 GiB, and Cinder has 1 of 1 GiB"}}},
		{"a volume that counts for too little", func(s *State) { s.Counted["e"].Gigabytes = 0 },
			[]Finding{{Kind: Miscounted, Object: "tenant e", Text: "the leader counts 1 volumes of 0 GiB, and Cinder has 1 of 1 GiB"}}},
		{"a leader that does not say what it counts", func(s *State) { s.Counted["e"] = nil },
			[]Finding{{Kind: Miscounted, Object: "tenant e", Text: "no leader says what it counts"}}},
		{"a claim that is denied", func(s *State) { s.Claims[claims].Tenant, s.PVs[pvs].Tenant = "", "d" }, nil},
		{"a PersistentVolume that is reserved for a claim", func(s *State) {
			s.PVs[pvs].Holder, s.PVs[pvs].Retain = "", true
			s.Claims = slices.Delete(s.Claims, claims, claims+1)
		}, nil},
		{"a claim that is gone", func(s *State) { s.Claims = slices.Delete(s.Claims, claims, claims+1) },
			[]Finding{{Stuck, "PersistentVolume pvc-u7", "its claim is gone and it is still there; volume v7 (pvc-u7, in-use)", "v7", "u7"}}},
		{"a claim that lost its PersistentVolume", func(s *State) {
			s.PVs, s.Volumes = slices.Delete(s.PVs, pvs, pvs+1), slices.Delete(s.Volumes, volumes, volumes+1)
			s.Counted["e"] = &policy.Usage{}
		}, []Finding{{Lost, "claim e/moved-8", "is bound and its PersistentVolume is gone", "", "u8"}}},
		{"a volume of its own for a claim that got another one's", func(s *State) {
			s.Volumes, s.PVs = append(s.Volumes, stamped("v8", "u8")), append(s.PVs, PV{Name: "pvc-u8", ClaimUID: "u8", Holder: "u8", Tenant: "e", VolumeID: "v8"})
			maps.Copy(s.Volumes[len(s.Volumes)-1].Metadata, map[string]string{StampTenant: "e", StampNamespace: "e", StampClaim: "moved-8", "costcenter": "1"})
			s.Counted["e"] = &policy.Usage{Volumes: 2, Gigabytes: 2}
		}, []Finding{{Duplicate, "PersistentVolume pvc-u7", "belongs to the same claim as PersistentVolume pvc-u8", "v7", "u7"}}},
		{"a claim that wants more", func(s *State) { s.Claims[claims].WantsGiB, s.PVs[pvs].GiB = 2, 1 },
			[]Finding{{Stuck, "claim e/moved-8", "wants 2 GiB, and volume v7 (pvc-u7, in-use) has 1, though the policy grants it and there is room", "v7", "u8"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := withMoved()
			c.plant(&s)
			if got := Ending(s); !slices.Equal(got, c.want) {
				t.Errorf("got\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// TestElsewhereOnlyVolumesThereCount: what the leader counts can only be right when all
// backends lead home.
func TestElsewhereOnlyVolumesThereCount(t *testing.T) {
	s := withMoved()
	s.Counted["d"].Volumes, s.PVs[len(s.PVs)-2].Tenant, s.PVs[len(s.PVs)-2].Place = 5, "d", "http://elsewhere"
	if got := EndingAt(s, func(place string) bool { return place == "http://elsewhere" }); len(got) != 1 || got[0].VolumeID != "v7" {
		t.Errorf("found elsewhere: %+v", got)
	}
	if got := EndingAt(s, func(string) bool { return false }); len(got) != 0 {
		t.Errorf("found at another place: %+v", got)
	}
}

func TestCourseFindsWhatIsPlantedAmongMovedVolumes(t *testing.T) {
	pvs, volumes := len(sound().PVs), len(sound().Volumes)
	asked := func(uids ...string) func(string) bool {
		return func(uid string) bool { return slices.Contains(uids, uid) }
	}
	own := PV{Name: "pvc-u8", ClaimUID: "u8", Holder: "u8", VolumeID: "v8"}
	for _, c := range []struct {
		name  string
		plant func(*Sample)
		want  []Finding
	}{
		{"nothing", func(*Sample) {}, nil},
		{"the claim that the volume was made for is deleted", func(s *Sample) { s.Asked = asked("u7") }, nil},
		{"the volume went with the claim that it was made for", func(s *Sample) {
			s.Asked, s.Volumes = asked("u7"), slices.Delete(s.Volumes, volumes, volumes+1)
		}, []Finding{{WronglyDeleted, "PersistentVolume pvc-u7", "volume v7 is gone; its claim was not deleted", "v7", "u7"}}},
		{"the volume went with the claim that had it", func(s *Sample) {
			s.Asked, s.Volumes = asked("u7", "u8"), slices.Delete(s.Volumes, volumes, volumes+1)
		}, nil},
		{"the claim also has a volume of its own", func(s *Sample) {
			s.PVs, s.Volumes = append(s.PVs, own), append(s.Volumes, stamped("v8", "u8"))
		}, []Finding{{Duplicate, "PersistentVolume pvc-u8", "was made for a claim that got PersistentVolume pvc-u7", "v8", "u8"}}},
		{"the claim got a volume of its own before", func(s *Sample) {
			s.PVs = append(slices.Delete(s.PVs, pvs, pvs+1), own)
			s.Volumes = []cindersim.Volume{stamped("v8", "u8"), s.Volumes[0], s.Volumes[1], s.Volumes[2], s.Volumes[3], s.Volumes[volumes+1]}
		}, []Finding{{Duplicate, "PersistentVolume pvc-u8", "was made for a claim that got PersistentVolume pvc-u7", "v8", "u8"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			course := NewCourse(host)
			course.Look(sampleOf(withMoved()))
			next := sampleOf(withMoved())
			c.plant(&next)
			course.Look(next)
			course.Look(next)
			if got := course.Findings(); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}
