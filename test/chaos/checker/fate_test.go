package checker

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func request(endpoint cindersim.Endpoint, operation, volume string, at time.Time) cindersim.Entry {
	return cindersim.Entry{Time: at, Request: cindersim.Request{Endpoint: endpoint, Operation: operation, VolumeID: volume}}
}

func TestCameTooLateLooksWhetherTheVolumeWasBeingTakenAway(t *testing.T) {
	const asked, kept = 10 * time.Second, 20 * time.Second
	for _, c := range []struct {
		name      string
		asked     time.Duration // zero means never
		at        time.Duration
		volume    string
		operation string
		endpoint  cindersim.Endpoint
		want      bool
	}{
		{"disconnected before", asked, 15 * time.Second, "v1", "action.os-terminate_connection", cindersim.Cinder, true},
		{"deleted before", asked, 15 * time.Second, "v1", "volume.delete", cindersim.Cinder, true},
		{"its attachment deleted before", asked, 15 * time.Second, "v1", "attachment.delete", cindersim.Cinder, true},
		{"disconnected right after, by a request on its way", asked, kept + time.Second, "v1", "action.os-terminate_connection", cindersim.Cinder, true},
		{"disconnected after", asked, kept + 3*time.Second, "v1", "action.os-terminate_connection", cindersim.Cinder, false},
		{"disconnected after a slow network", asked, kept + 3*time.Second, "v1", "action.os-terminate_connection", cindersim.Noauth, true},
		{"disconnected long after", asked, kept + 21*time.Second, "v1", "action.os-terminate_connection", cindersim.Noauth, false},
		{"looked at before", asked, 15 * time.Second, "v1", "volume.get", cindersim.Cinder, false},
		{"another volume", asked, 15 * time.Second, "v2", "volume.delete", cindersim.Cinder, false},
		{"an earlier attempt to connect it was undone", asked, 5 * time.Second, "v1", "attachment.delete", cindersim.Cinder, false},
		{"of a claim that stays", 0, 15 * time.Second, "v1", "volume.delete", cindersim.Cinder, false},
		{"kept before its claim was to go", 25 * time.Second, 26 * time.Second, "v1", "volume.delete", cindersim.Noauth, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var at time.Time
			if c.asked > 0 {
				at = noon.Add(c.asked)
			}
			fate := Fate{PV: PV{VolumeID: "v1"}, Kept: noon.Add(kept)}
			if got := CameTooLate(fate, at, []cindersim.Entry{request(c.endpoint, c.operation, c.volume, noon.Add(c.at))}); got != c.want {
				t.Errorf("too late: %t, want %t", got, c.want)
			}
		})
	}
}

func TestDisconnectedFindsWhatWasTakenFromNodes(t *testing.T) {
	pv := PV{Name: "pvc-u1", ClaimUID: "u1", VolumeID: "v1"}
	use := NodeUse{Node: "n", PV: pv, From: noon.Add(10 * time.Second), Until: noon.Add(20 * time.Second), Released: "unmounts them"}
	found := []Finding{{FromNode, "PersistentVolume pvc-u1",
		"volume.delete at 12:00:15.000, although node n used volume v1 from 12:00:10.000 until 12:00:20.000 (unmounts them)", "v1", "u1"}}
	for _, c := range []struct {
		name  string
		asked time.Duration // zero means never
		taken []time.Duration
		want  []Finding
	}{
		{"while it was used", 11 * time.Second, []time.Duration{15 * time.Second, 16 * time.Second}, found},
		{"after the node had released it", 11 * time.Second, []time.Duration{21 * time.Second}, nil},
		{"before it was used", 5 * time.Second, []time.Duration{8 * time.Second, 15 * time.Second}, nil},
		{"by a request that was on its way", 5 * time.Second, []time.Duration{11 * time.Second, 15 * time.Second}, nil},
		{"of a claim that was to go before", 5 * time.Second, []time.Duration{15 * time.Second}, found},
		{"of a claim that went after", 16 * time.Second, []time.Duration{15 * time.Second}, nil},
		{"of a claim that stays", 0, []time.Duration{15 * time.Second}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var journal []cindersim.Entry
			for _, at := range c.taken {
				journal = append(journal, request(cindersim.Cinder, "volume.delete", "v1", noon.Add(at)))
			}
			asked := func(uid string) time.Time {
				if c.asked == 0 || uid != "u1" {
					return time.Time{}
				}
				return noon.Add(c.asked)
			}
			if got := Disconnected([]NodeUse{use}, asked, journal); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// keptByHand returns the fate of the sound state's first PersistentVolume.
func keptByHand(change func(*Fate)) map[string]Fate {
	f := Fate{PV: sound().PVs[0], Kept: noon}
	change(&f)
	return map[string]Fate{"pvc-u1": f}
}

func TestCourseKnowsWhatTheCampaignDidByHand(t *testing.T) {
	gone := func(because string) []Finding {
		return []Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; " + because, "v1", "u1"}}
	}
	always, never := func(Fate) bool { return true }, func(Fate) bool { return false }
	for _, c := range []struct {
		name    string
		fates   map[string]Fate
		tooLate func(Fate) bool
		shown   string // how the object still shows: "", "Delete", "Retain"
		want    []Finding
	}{
		{"nothing", nil, never, "Delete", nil},
		{"kept", keptByHand(func(*Fate) {}), never, "Retain", gone("its reclaim policy was changed to Retain")},
		{"kept, which the watch does not show yet", keptByHand(func(*Fate) {}), never, "Delete", gone("its reclaim policy was changed to Retain")},
		{"being kept, which nobody has acknowledged yet", keptByHand(func(f *Fate) { f.Keeping, f.Kept = true, time.Time{} }), never, "Retain", nil},
		{"kept too late", keptByHand(func(*Fate) {}), always, "Retain", nil},
		{"kept, then freed", keptByHand(func(f *Fate) { f.Freed = true }), never, "Delete", nil},
		{"kept, then freed, which the watch does not show yet", keptByHand(func(f *Fate) { f.Freed = true }), never, "Retain", nil},
		{"retained by its class", nil, always, "Retain", gone("it is to be retained")},
		{"kept and removed", keptByHand(func(f *Fate) { f.Removed = true }), never, "", gone("its PersistentVolume was deleted by hand")},
		{"removed too late", keptByHand(func(f *Fate) { f.Removed = true }), always, "", nil},
		{"removed before it was bound", keptByHand(func(f *Fate) { f.Removed, f.Kept = true, time.Time{} }), never, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			course := NewCourse(host)
			course.Look(sampleOf(sound()))
			next := sampleOf(sound())
			next.Asked = func(uid string) bool { return uid == "u1" }
			next.Volumes = next.Volumes[1:]
			next.Fates, next.TooLate = c.fates, c.tooLate
			switch c.shown {
			case "":
				next.PVs = next.PVs[1:]
			case "Retain":
				next.PVs[0].Retain = true
			}
			course.Look(next)
			course.Look(next)
			if got := course.Findings(); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

// TestCourseExcusesVolumesWhoseRecordWentBeforeTheirUse: a volume that was
// never in use does not show that it was once recorded.
func TestCourseExcusesVolumesWhoseRecordWentBeforeTheirUse(t *testing.T) {
	for _, c := range []struct {
		removed bool
		want    int
	}{{true, 0}, {false, 1}} {
		course := NewCourse(host)
		next := sampleOf(sound())
		next.Asked = func(uid string) bool { return uid == "u1" }
		next.Volumes, next.PVs = next.Volumes[1:], next.PVs[1:]
		next.Fates = keptByHand(func(f *Fate) { f.Removed = c.removed })
		course.Look(next)
		if got := course.Findings(); len(got) != c.want {
			t.Errorf("removed %t: found %+v, want %d", c.removed, got, c.want)
		}
	}
}

// TestCourseExcusesOneChangeOfMind: a request that once came too late may come
// in time later.
func TestCourseExcusesOneChangeOfMind(t *testing.T) {
	course := NewCourse(host)
	next := sampleOf(sound())
	next.Asked = func(uid string) bool { return uid == "u1" }
	next.Volumes = next.Volumes[1:]
	next.TooLate = func(f Fate) bool { return f.Kept.Equal(noon) }
	next.Fates = keptByHand(func(*Fate) {})
	course.Look(next)
	if got := course.Findings(); len(got) > 0 {
		t.Fatalf("found %+v although it came too late", got)
	}
	next.Fates = keptByHand(func(f *Fate) { f.Kept = noon.Add(time.Minute) })
	course.Look(next)
	if got := course.Findings(); len(got) != 1 {
		t.Errorf("found %+v, want the volume that was kept in time", got)
	}
}

// TestASecondObjectDecidesWhatBecomesOfTheVolume: a claim that was pending when
// its PersistentVolume was removed gets another one of the same name, for the
// same volume.
func TestASecondObjectDecidesWhatBecomesOfTheVolume(t *testing.T) {
	for _, c := range []struct {
		name   string
		second func(pv *PV)
		want   []Finding
	}{
		{"its volume goes with it", func(*PV) {}, nil},
		{"its volume stays", func(pv *PV) { pv.Retain = true },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; it is to be retained", "v1", "u1"}}},
		{"it is the first one", func(pv *PV) { pv.UID = "object-1" },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; its PersistentVolume was deleted by hand", "v1", "u1"}}},
		{"it was made before", func(pv *PV) { pv.Created = noon.Add(-time.Second) },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; its PersistentVolume was deleted by hand", "v1", "u1"}}},
		{"it records another volume", func(pv *PV) { pv.VolumeID = "v9" }, []Finding{
			{Duplicate, "PersistentVolume pvc-u1", "names volume v9 and named v1 before", "v9", "u1"},
			{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; its PersistentVolume was deleted by hand", "v1", "u1"},
		}},
		{"it records another volume, elsewhere", func(pv *PV) { pv.VolumeID, pv.Place = "v9", "elsewhere" },
			[]Finding{{WronglyDeleted, "PersistentVolume pvc-u1", "volume v1 is gone; its PersistentVolume was deleted by hand", "v1", "u1"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := sound().PVs[0]
			first.UID, first.Created = "object-1", noon
			second := first
			second.UID = "object-2"
			c.second(&second)
			fate := Fate{PV: first, Kept: noon, Removed: true}

			course := NewCourse(host)
			look := func(change func(*Sample)) {
				s := sampleOf(sound())
				s.PVs[0], s.Fates = first, map[string]Fate{"pvc-u1": fate}
				s.Volumes = append(s.Volumes, stamped("v9", "u1"))
				change(&s)
				course.Look(s)
			}
			look(func(*Sample) {})
			look(func(s *Sample) { s.PVs = s.PVs[1:] })
			fate = fate.SeenWith(second)
			look(func(s *Sample) { s.PVs[0] = second })
			fate = fate.SeenWith(second)
			look(func(s *Sample) {
				s.Asked = func(uid string) bool { return uid == "u1" }
				s.PVs, s.Volumes = s.PVs[1:], s.Volumes[1:]
			})
			if got := course.Findings(); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func TestEndingKnowsWhatTheCampaignDidByHand(t *testing.T) {
	orphaned := func(s *State) { s.Claims, s.PVs = s.Claims[1:], s.PVs[1:] }
	leaked := []Finding{
		{Leaked, "volume v1 (pvc-u1, in-use)", "no PersistentVolume names it; its claim is gone", "v1", "u1"},
		{Kind: LeakedSecret, Object: "Secret pvc-u1-credentials", Text: "PersistentVolume pvc-u1 does not exist", ClaimUID: "u1"},
	}
	always, never := func(Fate) bool { return true }, func(Fate) bool { return false }
	for _, c := range []struct {
		name    string
		plant   func(s *State)
		fates   map[string]Fate
		tooLate func(Fate) bool
		want    []Finding
	}{
		{"removed by hand", orphaned, keptByHand(func(f *Fate) { f.Removed = true }), never, nil},
		{"removed before it was bound", orphaned, keptByHand(func(f *Fate) { f.Removed, f.Kept = true, time.Time{} }), never, leaked},
		{"freed again", orphaned, keptByHand(func(f *Fate) { f.Freed = true }), never, leaked},
		{"removed, and recorded by a second object since", orphaned, keptByHand(func(f *Fate) { f.Removed, f.Replaced = true, true }), never, leaked},
		{"another volume than the one that was recorded", func(s *State) {
			orphaned(s)
			s.Volumes[0], s.Secrets = stamped("v9", "u1"), nil
		}, keptByHand(func(f *Fate) { f.Removed = true }), never,
			[]Finding{{Leaked, "volume v9 (pvc-u1, in-use)", "no PersistentVolume names it; its claim is gone", "v9", "u1"}}},
		{"the second records another volume", func(s *State) { s.Volumes = append(s.Volumes, stamped("v9", "u1")) },
			keptByHand(func(f *Fate) { f.Removed, f.PV.VolumeID = true, "v9" }), never,
			[]Finding{{Duplicate, "volume v9 (pvc-u1, in-use)", "PersistentVolume pvc-u1 names volume v1", "v9", "u1"}}},
		{"the second records another volume, elsewhere", func(s *State) { s.Volumes = append(s.Volumes, stamped("v9", "u1")) },
			keptByHand(func(f *Fate) { f.Removed, f.PV.VolumeID, f.PV.Place = true, "v9", "elsewhere" }), never, nil},
		{"kept too late", func(s *State) { s.PVs[0].Retain, s.Claims, s.Volumes = true, s.Claims[1:], s.Volumes[1:] }, keptByHand(func(*Fate) {}), always, nil},
		{"kept in time", func(s *State) { s.PVs[0].Retain, s.Claims, s.Volumes = true, s.Claims[1:], s.Volumes[1:] }, keptByHand(func(*Fate) {}), never,
			[]Finding{{Lost, "PersistentVolume pvc-u1", "volume v1 does not exist", "v1", "u1"}}},
		{"removed, and does not go", func(s *State) { s.PVs[0].Retain, s.PVs[0].Deleting, s.Claims = true, true, s.Claims[1:] }, keptByHand(func(f *Fate) { f.Removed = true }), never,
			[]Finding{{Stuck, "PersistentVolume pvc-u1", "its claim is gone and it is still there; volume v1 (pvc-u1, in-use)", "v1", "u1"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := sound()
			c.plant(&s)
			s.Fates, s.TooLate = c.fates, c.tooLate
			if got := Ending(s); !slices.Equal(got, c.want) {
				t.Errorf("found\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func TestEndingAtKeepsToItsPlaces(t *testing.T) {
	s := sound()
	s.PVs = slices.Clone(s.PVs)
	s.Claims = []Claim{{UID: "u5", Namespace: "a", Name: "data-5"}, {UID: "u7", Namespace: "a", Name: "data-7", ToldQuota: true}}
	s.Volumes = slices.Clone(s.Volumes)
	s.Volumes[0].Project = "other" // its claim is gone
	s.PVs = append(s.PVs, PV{Name: "pvc-u6", ClaimUID: "u6", VolumeID: "v6", Place: "home"})
	away, found := stamped("v9", "u9"), stamped("v10", "u10")
	away.Project, found.Project = "other", "home"
	s.PVs = append(s.PVs, PV{Name: "pvc-u10", ClaimUID: "u10", VolumeID: "v10", Place: "other"})
	s.Volumes = append(s.Volumes, stamped("v8", "u8"), away, found)
	s.Foreign = maps.Clone(s.Foreign)
	s.Foreign["f9"] = cindersim.Volume{ID: "f9"}
	s.Secrets = append(s.Secrets, Secret{"pvc-u9-credentials", "pvc-u9"})
	want := []Finding{
		{Leaked, "volume v9 (pvc-u9, in-use)", "no PersistentVolume names it; its claim is gone", "v9", "u9"},
		{Stuck, "PersistentVolume pvc-u1", "its claim is gone and it is still there; volume v1 (pvc-u1, in-use)", "v1", "u1"},
		{Stuck, "claim a/data-5", "is pending though the policy grants it and there is room", "", "u5"},
	}
	if got := EndingAt(s, func(place string) bool { return place == "other" }); !slices.Equal(got, want) {
		t.Errorf("found\n%+v\nwant\n%+v", got, want)
	}
}
