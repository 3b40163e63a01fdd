package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Schedule takes a snapshot of each volume of a rule again and again.
type Schedule struct {
	// Name is part of the snapshots' names.
	Name string `json:"name"`
	// Every is the time between two snapshots of a volume, in whole minutes.
	Every time.Duration `json:"every"`
	// Keep is how many good snapshots of a volume stay, at least 1.
	Keep int64 `json:"keep"`
	// SnapshotClass names a VolumeSnapshotClass; empty means the default one of the volume's
	// driver. For groups it names a VolumeGroupSnapshotClass.
	SnapshotClass string `json:"snapshotClass,omitempty"`
	// As is what the schedule makes; empty means AsSnapshot.
	As ScheduleKind `json:"as,omitempty"`
	// OnRequest leaves out claims that do not request the schedule by their label.
	OnRequest bool `json:"onRequest,omitempty"`
}

// ScheduleKind is what a schedule makes.
type ScheduleKind string

// AsSnapshot makes VolumeSnapshots, each of one claim, and AsBackup those of a class that makes
// backups. AsGroup makes VolumeGroupSnapshots, each of the claims of one namespace with the
// same value of a label.
const (
	AsSnapshot ScheduleKind = "snapshot"
	AsBackup   ScheduleKind = "backup"
	AsGroup    ScheduleKind = "group"
)

// ScheduleKinds returns what schedules can make.
func ScheduleKinds() []string { return []string{string(AsSnapshot), string(AsBackup), string(AsGroup)} }

// IsOfGroups reports whether the schedule makes VolumeGroupSnapshots.
func (s Schedule) IsOfGroups() bool { return s.As == AsGroup }

// Period returns Every as one would write it.
func (s Schedule) Period() string {
	if s.Every%time.Hour == 0 {
		return fmt.Sprintf("%dh", s.Every/time.Hour)
	}
	return fmt.Sprintf("%dm", s.Every/time.Minute)
}

// The bounds of schedules. A volume has few of them, and each snapshot is an object.
const (
	ShortestSchedule = time.Minute
	LongestSchedule  = 366 * 24 * time.Hour
	MostKept         = 1000
	MostSchedules    = 10
)

// SchedulesOf returns the schedules for the volume of a claim of a StorageClass: those of the
// tenant's rule that hold for all claims, and those that the claim requests, which are
// separated by dots.
func (t *Tenant) SchedulesOf(storageClass, requested string) []Schedule {
	c := t.rule(storageClass)
	if c == nil {
		return nil
	}
	names := strings.Split(requested, ".")
	return slices.DeleteFunc(slices.Clone(c.Protect), func(s Schedule) bool {
		return s.OnRequest && !slices.Contains(names, s.Name)
	})
}

func (v *validator) validateProtect(path string, t *Tenant, c *Class) {
	if n := len(c.Protect); n > MostSchedules {
		v.Errorf(path, "has %d schedules, and a rule can have at most %d", n, MostSchedules)
	}
	validateUnique(v.Document, path, len(c.Protect), func(i int) string { return c.Protect[i].Name }, "snapshots are told apart by it")
	snapshots, backups := int64(0), int64(0)
	for i, s := range c.Protect {
		at := document.Element(path, i)
		validateName(v.Document, at, s.Name, "schedule")
		switch every := document.Child(at, "every"); {
		case !v.Has(every):
			v.Errorf(every, "is missing; say how often to take a snapshot, such as 6h")
		case s.Every < ShortestSchedule || s.Every > LongestSchedule || s.Every%time.Minute != 0:
			v.Errorf(every, "must be whole minutes, at least 1m and at most 8784h, a year")
		}
		switch keep := document.Child(at, "keep"); {
		case !v.Has(keep):
			v.Errorf(keep, "is missing; say how many snapshots of a volume to keep")
		case s.Keep < 1 || s.Keep > MostKept:
			v.Errorf(keep, "must be at least 1 and at most %d; the last good snapshot always stays", MostKept)
		}
		if s.SnapshotClass != "" && len(validation.IsDNS1123Subdomain(s.SnapshotClass)) > 0 {
			v.Errorf(document.Child(at, "snapshotClass"), "%q cannot be the name of a VolumeSnapshotClass", s.SnapshotClass)
		}
		switch as := document.Child(at, "as"); {
		case s.IsOfGroups():
			v.validateGroupSchedule(at, t, c, s)
		case s.As == AsBackup:
			if !c.Backups {
				v.Errorf(as, "the rule grants no backups; add backups: true to it")
			}
			if s.SnapshotClass == "" {
				v.Errorf(document.Child(at, "snapshotClass"), "is missing; name a VolumeSnapshotClass with type: backup")
			}
			backups += max(s.Keep, 0)
			continue
		case s.As != "" && s.As != AsSnapshot:
			v.Errorf(as, "unknown kind %q%s", s.As, document.DidYouMean(string(s.As), ScheduleKinds(), "use one of"))
		}
		snapshots += max(s.Keep, 0)
	}
	v.warnOfSchedules(path, "snapshots", snapshots, named[*int64]{document.Child(c.path, "quota.snapshots"), c.Quota.Snapshots}, named[*int64]{"the tenant's quota.snapshots", t.Quota.Snapshots})
	v.warnOfSchedules(path, "backups", backups, named[*int64]{document.Child(c.path, "quota.backups"), c.Quota.Backups}, named[*int64]{"the tenant's quota.backups", t.Quota.Backups})
}

// warnOfSchedules warns of quotas that cannot hold what schedules keep of one volume.
func (v *validator) warnOfSchedules(path, what string, kept int64, quotas ...named[*int64]) {
	for _, quota := range quotas {
		// An old one is deleted when a newer one is good.
		if quota.value != nil && kept > 0 && *quota.value < kept+1 {
			v.Warnf(path, "the schedules keep %d %s of one volume and need room for another while it is taken, but %s allows %d; raise it, or keep fewer", kept, what, quota.key, *quota.value)
		}
	}
}

// validateGroupSchedule checks what only schedules of groups need. The claims of a group may
// have several rules.
func (v *validator) validateGroupSchedule(at string, t *Tenant, c *Class, s Schedule) {
	if !c.Groups {
		v.Errorf(document.Child(at, "as"), "the rule grants no VolumeGroupSnapshots; add groups: true to it")
	}
	if s.SnapshotClass == "" {
		v.Errorf(document.Child(at, "snapshotClass"), "is missing; name the VolumeGroupSnapshotClass of the groups")
	}
	for i := range t.Classes {
		other := &t.Classes[i]
		if other == c {
			return
		}
		for j, same := range other.Protect {
			if same.IsOfGroups() && same.Name == s.Name && same != s {
				first := document.Element(document.Child(other.path, "protect"), j)
				v.Errorf(at, "differs from %s (%s), which has the same name, and a group may have claims of both rules; make them equal, or name them differently", first, v.LineOf(first))
			}
		}
	}
}
