package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// withProtect returns a policy with schedules.
func withProtect(protect, quota string) string {
	return fmt.Sprintf(`apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends: [{name: gold, auth: {environment: true}}]
tenants:
  - name: team-a
    namespaces: [team-a]
    quota: {%s}
    classes:
      - {storageClasses: [fast], backends: [gold], protect: %s}
      - {storageClasses: [other], backends: [gold]}
`, quota, protect)
}

func TestSchedulesHoldForTheRuleOrOnRequest(t *testing.T) {
	p := mustParse(t, withProtect("[{name: daily, every: 24h, keep: 7}, {name: hourly, every: 1h, keep: 2, onRequest: true, snapshotClass: cheap}, {name: often, every: 5m, keep: 1, onRequest: true}]", ""))
	tenant, _ := p.Tenant("team-a")
	for name, test := range map[string]struct {
		class, requested string
		want             []string
	}{
		"of every claim":     {"fast", "", []string{"daily"}},
		"requested":          {"fast", "hourly", []string{"daily", "hourly"}},
		"several":            {"fast", "often.hourly", []string{"daily", "hourly", "often"}},
		"unknown":            {"fast", "weekly", []string{"daily"}},
		"part of a name":     {"fast", "hour", []string{"daily"}},
		"of another rule":    {"other", "hourly", nil},
		"without any rule":   {"none", "hourly", nil},
		"requested for free": {"fast", "daily", []string{"daily"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range tenant.SchedulesOf(test.class, test.requested) {
				got = append(got, s.Name)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	if got := tenant.SchedulesOf("fast", "hourly")[1]; got != (Schedule{Name: "hourly", Every: time.Hour, Keep: 2, SnapshotClass: "cheap", OnRequest: true}) {
		t.Errorf("got %+v", got)
	}
}

func TestPeriodsAreShort(t *testing.T) {
	for every, want := range map[time.Duration]string{time.Minute: "1m", time.Hour: "1h", 90 * time.Minute: "90m", 24 * time.Hour: "24h"} {
		if got := (Schedule{Every: every}).Period(); got != want {
			t.Errorf("%s is written %s, want %s", every, got, want)
		}
	}
}

func TestMistakesInSchedules(t *testing.T) {
	for protect, want := range map[string]string{
		"[{every: 1h, keep: 1}]":                                          `protect[0].name: is missing; give the schedule a name`,
		"[{name: Daily, every: 1h, keep: 1}]":                             `protect[0].name: "Daily" cannot be the name of a schedule`,
		"[{name: a.b, every: 1h, keep: 1}]":                               `protect[0].name: "a.b" cannot be the name of a schedule`,
		"[{name: a, every: 1h, keep: 1}, {name: a, every: 2h, keep: 1}]":  `protect[1].name: tenants[0].classes[0].protect[0] (line 9) is already called "a", and snapshots are told apart by it; give each a different name`,
		"[{name: a, keep: 1}]":                                            `protect[0].every: is missing; say how often to take a snapshot, such as 6h`,
		"[{name: a, every: 30s, keep: 1}]":                                `protect[0].every: must be whole minutes`,
		"[{name: a, every: 90s, keep: 1}]":                                `protect[0].every: must be whole minutes`,
		"[{name: a, every: 9000h, keep: 1}]":                              `protect[0].every: must be whole minutes`,
		"[{name: a, every: -1h, keep: 1}]":                                `protect[0].every: must be whole minutes`,
		"[{name: a, every: 1h}]":                                          `protect[0].keep: is missing; say how many snapshots of a volume to keep`,
		"[{name: a, every: 1h, keep: 0}]":                                 `protect[0].keep: must be at least 1 and at most 1000; the last good snapshot always stays`,
		"[{name: a, every: 1h, keep: 1001}]":                              `protect[0].keep: must be at least 1 and at most 1000`,
		"[{name: a, every: 1h, keep: 1, snapshotClass: A_B}]":             `protect[0].snapshotClass: "A_B" cannot be the name of a VolumeSnapshotClass`,
		"[{name: a, every: 1h, keep: 1, as: clone}]":                      `protect[0].as: unknown kind "clone"; use one of backup, group, snapshot`,
		"[{name: a, every: 1h, keep: 1, as: group, snapshotClass: b}]":    `protect[0].as: the rule grants no VolumeGroupSnapshots; add groups: true to it`,
		"[{name: a, every: 1h, keep: 1, as: backup, snapshotClass: b}]":   `protect[0].as: the rule grants no backups; add backups: true to it`,
		"[{name: a, every: 1h, keep: 1, as: backup}], backups: true":      `protect[0].snapshotClass: is missing; name a VolumeSnapshotClass with type: backup`,
		"[{name: a, every: 1h, keep: 1, as: group}], groups: true":        `protect[0].snapshotClass: is missing; name the VolumeGroupSnapshotClass of the groups`,
		"[" + strings.Repeat("{name: a, every: 1h, keep: 1}, ", 11) + "]": `protect: has 11 schedules, and a rule can have at most 10`,
	} {
		if _, err := Parse([]byte(withProtect(protect, "")), "policy.yaml", nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", protect, err, want)
		}
	}
}

// TestRulesAgreeOnSchedulesOfGroups: a group may have claims of several rules of a tenant.
func TestRulesAgreeOnSchedulesOfGroups(t *testing.T) {
	for other, want := range map[string]string{
		"{name: a, every: 1h, keep: 2, as: group, snapshotClass: b}": "",
		"{name: b, every: 2h, keep: 2, as: group, snapshotClass: b}": "",
		"{name: a, every: 2h, keep: 2}":                              "",
		"{name: a, every: 2h, keep: 2, as: group, snapshotClass: b}": "tenants[0].classes[1].protect[0]: differs from tenants[0].classes[0].protect[0] (line 9), which has the same name",
	} {
		text := strings.Replace(withProtect("[{name: a, every: 1h, keep: 2, as: group, snapshotClass: b}], groups: true", ""), "[other], backends: [gold]", "[other], backends: [gold], groups: true, protect: ["+other+"]", 1)
		_, err := Parse([]byte(text), "policy.yaml", nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", other, err, want)
		}
	}
}

// TestQuotasHaveRoomForSchedules: the next snapshot is taken before the oldest goes.
func TestQuotasHaveRoomForSchedules(t *testing.T) {
	const protect = "[{name: a, every: 1h, keep: 3}, {name: b, every: 24h, keep: 4}]"
	for quota, warns := range map[string]bool{"": false, "snapshots: 8": false, "snapshots: 7": true} {
		p := mustParse(t, withProtect(protect, quota))
		got := strings.Contains(fmt.Sprint(p.Warnings), "the schedules keep 7 snapshots of one volume and need room for another while it is taken, but the tenant's quota.snapshots allows")
		if got != warns {
			t.Errorf("with %q: warnings %v", quota, p.Warnings)
		}
	}
}
