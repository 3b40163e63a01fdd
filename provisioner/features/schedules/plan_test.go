package schedules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// dawn is a turn of the claim "c1" every six hours, and the minute after it is not.
func dawn() time.Time {
	return turnOf("c1", 6*time.Hour, time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
}

func taken(name string, at time.Time, state string) *snapshotv1.VolumeSnapshot {
	ready, now := state != "waits", metav1.NewTime(at.Add(time.Minute))
	s := &snapshotv1.VolumeSnapshot{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at)}, Status: &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &ready}}
	switch state {
	case "new":
		s.Status = nil
	case "deleting":
		s.DeletionTimestamp = &now
	}
	return s
}

// shots describes VolumeSnapshots of the claim "c1" by the schedule "daily".
func shots(taken []*snapshotv1.VolumeSnapshot) (all []*shot) {
	for _, s := range taken {
		one := shotOf(s)
		one.series, one.holds = series{data(), "daily"}, []string{"c1"}
		all = append(all, one)
	}
	return all
}

func data() target { return target{namespace: "team-a", claim: "data", uid: "c1"} }

func TestWhatIsDue(t *testing.T) {
	turn := dawn()
	name := "data-daily-" + turn.Format("20060102-1504")
	ago := func(turns int) time.Time { return turn.Add(time.Duration(-turns) * 6 * time.Hour) }
	for title, c := range map[string]struct {
		taken   []*snapshotv1.VolumeSnapshot
		since   time.Time
		take    string
		expired string
	}{
		"the first one":                                {nil, ago(3), name, ""},
		"none before a claim's first turn":             {nil, turn.Add(time.Second), "", ""},
		"the turn was taken":                           {[]*snapshotv1.VolumeSnapshot{taken("b", turn, "good")}, ago(3), "", ""},
		"it was taken later than its turn":             {[]*snapshotv1.VolumeSnapshot{taken("b", turn.Add(time.Hour), "good")}, ago(3), "", ""},
		"the last turn's is there":                     {[]*snapshotv1.VolumeSnapshot{taken("b", ago(1), "good")}, ago(3), name, ""},
		"it is being taken":                            {[]*snapshotv1.VolumeSnapshot{taken("b", turn, "new")}, ago(3), "", ""},
		"an earlier one is not ready":                  {[]*snapshotv1.VolumeSnapshot{taken("b", ago(1), "waits")}, ago(3), "", ""},
		"the clock of the API server is behind":        {[]*snapshotv1.VolumeSnapshot{taken(name, turn.Add(-time.Second), "good")}, ago(3), "", ""},
		"somebody deletes this turn's":                 {[]*snapshotv1.VolumeSnapshot{taken("b", turn, "deleting")}, ago(3), "", ""},
		"more are good than stay":                      {[]*snapshotv1.VolumeSnapshot{taken("a", ago(2), "good"), taken("c", turn, "good"), taken("b", ago(1), "good")}, ago(3), "", "a"},
		"the oldest stays until the newest is good":    {[]*snapshotv1.VolumeSnapshot{taken("a", ago(2), "good"), taken("b", ago(1), "good"), taken("c", turn, "new")}, ago(3), "", ""},
		"one that is being deleted protects no longer": {[]*snapshotv1.VolumeSnapshot{taken("a", ago(2), "good"), taken("b", ago(1), "good"), taken("c", turn, "deleting")}, ago(3), "", ""},
	} {
		t.Run(title, func(t *testing.T) {
			of := &protected{target: data(), since: c.since}
			p := planOf(of, policy.Schedule{Name: "daily", Every: 6 * time.Hour, Keep: 2}, shots(c.taken), nil, turn.Add(time.Minute))
			var expired []string
			for _, one := range p.expired {
				expired = append(expired, one.name)
			}
			if p.take != c.take || strings.Join(expired, " ") != c.expired {
				t.Errorf("takes %q and deletes %q, want %q and %q", p.take, expired, c.take, c.expired)
			}
		})
	}
}

func TestTurnsAreSpreadAndRegular(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claim := rapid.StringN(1, 40, 40).Draw(t, "claim")
		every := time.Duration(rapid.IntRange(1, 600_000).Draw(t, "minutes")) * time.Minute
		now := time.Unix(rapid.Int64Range(1_700_000_000, 4_000_000_000).Draw(t, "now"), 0)
		turn := turnOf(claim, every, now)
		if turn.After(now) || now.Sub(turn) >= every+time.Minute || !turnOf(claim, every, turn).Equal(turn) || !turnOf(claim, every, turn.Add(-time.Second)).Equal(turn.Add(-every)) {
			t.Errorf("the last turn every %s at %s is %s", every, now, turn)
		}
	})
	minutes := map[int]int{}
	for i := range 600 {
		minutes[turnOf(fmt.Sprint("claim-", i), time.Hour, dawn()).Minute()]++
	}
	if len(minutes) < 50 {
		t.Errorf("600 claims have their turns in %d minutes of an hour", len(minutes))
	}
}

func TestNamesFitAndDiffer(t *testing.T) {
	long := strings.Repeat("a", 253)
	names := map[string]target{}
	for _, of := range []target{
		{namespace: "n", claim: long, uid: "uid-1"}, {namespace: "n", claim: long, uid: "uid-2"}, {namespace: "n", claim: "db", uid: "uid-3"},
		{namespace: "n", group: "db2"}, {namespace: "n", group: "DB"}, {namespace: "n", group: "D_B"}, {namespace: "n", group: "d..b"}, {namespace: "n", group: strings.Repeat("a", 63)},
	} {
		name := nameOf(of, strings.Repeat("s", 63), dawn())
		if other, there := names[name]; there || len(validation.IsDNS1123Subdomain(name)) > 0 {
			t.Errorf("%s has the name %q, and %s", of, name, other)
		}
		names[name] = of
	}
}

// TestAGroupThatHasWhatNewerOnesLackStays: somebody may have deleted a claim by accident, or
// made it anew.
func TestAGroupThatHasWhatNewerOnesLackStays(t *testing.T) {
	of := target{namespace: "team-a", group: "db"}
	for name, test := range map[string]struct {
		volumes []string // of the groups, the oldest first, separated by spaces
		expired string
	}{
		"all have the same":              {[]string{"a b", "b a", "a b"}, "0"},
		"a claim has come":               {[]string{"a", "a b", "a b", "a b"}, "0 1"},
		"a claim has gone":               {[]string{"a b", "a", "a", "a", "a"}, "1 2"},
		"a claim was made anew":          {[]string{"a b", "a b", "a c", "a c", "a c"}, "2"},
		"one is not known to have any":   {[]string{"a", "a", "", ""}, ""},
		"the oldest is not known either": {[]string{"", "a", "a", "a"}, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			var all []*shot
			for i, volumes := range test.volumes {
				all = append(all, &shot{series: series{of, "daily"}, name: fmt.Sprint(i), created: dawn().Add(time.Duration(i) * time.Hour), ready: true, holds: strings.Fields(volumes)})
			}
			var expired []string
			for _, one := range planOf(&protected{target: of}, policy.Schedule{Name: "daily", Every: 24 * time.Hour, Keep: 2}, all, nil, dawn().Add(9*time.Hour)).expired {
				expired = append(expired, one.name)
			}
			if got := strings.Join(expired, " "); got != test.expired {
				t.Errorf("deletes %q, want %q", got, test.expired)
			}
		})
	}
}

// TestTheLastGoodSnapshotStays plays months of a schedule: snapshots that fail, take long or
// are deleted by their tenant, processes that end between two requests, leaders that look
// late, and a policy that keeps more or fewer.
func TestTheLastGoodSnapshotStays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := policy.Schedule{Name: "daily", Every: time.Duration(rapid.IntRange(1, 3000).Draw(t, "minutes")) * time.Minute, Keep: rapid.Int64Range(1, 5).Draw(t, "keep")}
		began := dawn()
		now := began
		of := &protected{target: data(), since: began}
		var all []*shot
		good := func() []*shot {
			return slices.DeleteFunc(slices.Clone(all), func(one *shot) bool { return !one.ready })
		}
		names := map[string]bool{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(1, int64(s.Every)*3).Draw(t, "later")))
			switch step := rapid.SampledFrom([]string{"look", "look", "look", "ready", "tenant deletes", "keep"}).Draw(t, "step"); {
			case step == "ready" && len(all) > 0:
				all[len(all)-1].ready = true
			case step == "tenant deletes" && len(all) > 0:
				i := rapid.IntRange(0, len(all)-1).Draw(t, "which")
				all = slices.Delete(all, i, i+1)
			case step == "keep":
				s.Keep = rapid.Int64Range(1, 5).Draw(t, "keep")
			case step == "look":
				p := planOf(of, s, all, nil, now)
				before := good()
				if p.take != "" && rapid.Bool().Draw(t, "killed before the creation") {
					p.take, p.expired = "", nil
				}
				if p.take != "" {
					if slices.ContainsFunc(all, func(one *shot) bool { return one.name == p.take || !one.ready }) {
						t.Fatalf("%s is taken again, or while another is", p.take)
					}
					names[p.take] = true
					all = append(all, shots([]*snapshotv1.VolumeSnapshot{taken(p.take, now, "new")})...)
				}
				for _, one := range p.expired[:rapid.IntRange(0, len(p.expired)).Draw(t, "killed after some deletions")] {
					i := slices.Index(all, one)
					if newer := len(slices.DeleteFunc(good(), func(other *shot) bool {
						return !other.created.After(one.created)
					})); int64(newer) < s.Keep || !one.ready {
						t.Fatalf("%s is deleted, and %d newer ones are good", one.name, newer)
					}
					all = slices.Delete(all, i, i+1)
				}
				if left := good(); len(before) > 0 && len(left) == 0 || len(before) > 0 && before[len(before)-1] != left[len(left)-1] {
					t.Fatalf("of %d good ones the last is gone", len(before))
				}
			}
		}
	})
}

// TestClocksThatDiffer: the leader's and the API server's.
func TestClocksThatDiffer(t *testing.T) {
	s := policy.Schedule{Name: "daily", Every: time.Hour, Keep: 1}
	began := turnOf("c1", time.Hour, time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC))
	of := &protected{target: data(), since: began.Add(-24 * time.Hour)}
	for title, c := range map[string]struct{ leader, server func(hour int) time.Duration }{
		"the API server is ahead": {func(int) time.Duration { return 0 }, func(int) time.Duration { return 5 * time.Hour }},
		"the API server was ahead": {func(int) time.Duration { return 0 }, func(hour int) time.Duration {
			if hour < 3 {
				return 5 * time.Hour
			}
			return 0
		}},
		"the API server is behind": {func(int) time.Duration { return 0 }, func(int) time.Duration { return -5 * time.Hour }},
		"the leader is ahead":      {func(int) time.Duration { return 5 * time.Hour }, func(int) time.Duration { return 0 }},
		"the leader is behind":     {func(int) time.Duration { return -5 * time.Hour }, func(int) time.Duration { return 0 }},
		"the leader was ahead by a year": {func(hour int) time.Duration {
			if hour < 3 {
				return 366 * 24 * time.Hour
			}
			return 0
		}, func(int) time.Duration { return 0 }},
	} {
		t.Run(title, func(t *testing.T) {
			var all []*shot
			made := 0
			var last *shot
			for minute := range 12 * 60 {
				now := began.Add(time.Duration(minute) * time.Minute)
				p := planOf(of, s, all, nil, now.Add(c.leader(minute/60)))
				for _, old := range p.expired {
					if old == last {
						t.Fatalf("the newest is deleted after %d minutes", minute)
					}
					all = slices.DeleteFunc(all, func(one *shot) bool { return one == old })
				}
				if p.take != "" {
					made++
					last = shots([]*snapshotv1.VolumeSnapshot{taken(p.take, now.Add(c.server(minute/60)), "good")})[0]
					all = append(all, last)
				}
			}
			if made < 12 || made > 13 {
				t.Errorf("%d were taken in 12 hours", made)
			}
		})
	}
}
