// Package cindercontract defines what every method of Cinder does to a
// volume in each of its states. Three implementations must match this one
// table: the lifecycle's in-memory Cinder, the adapter to OpenStack with the
// simulator, and the adapter with real Cinder (make e2e). So what the
// lifecycle's property tests show with the first is also true for the others.
//
// The test reaches the states with the same methods, so that it needs nothing
// but the interface. States that Cinder shows only for a moment, such as
// creating, are covered by test/contract, which checks requests and answers.
//
// Where a fake and real Cinder differ, the fake is wrong.
package cindercontract

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Target is a Cinder to test against the table.
type Target struct {
	Cinder Cinder
	// Member means that the account is not an administrator. OnlyMember leaves out
	// what an administrator gets the same answers to.
	Member, OnlyMember bool
	// Type is a volume type for any volume, FailingType one whose volumes end
	// in error; without it, the state error is skipped.
	Type, FailingType string
	// OtherType is a type of the same storage, which differs in nothing that matters
	// to an attached volume; without it, changes of a type are skipped.
	OtherType string
	// SharedType is a type whose volumes several hosts may attach; without it, what
	// only they do is skipped.
	SharedType string
	// Groups and GroupType, which is consistent, are for group snapshots; without them, those
	// are skipped.
	Groups    Groups
	GroupType string
	// Backups means that Cinder has a backup service.
	Backups bool
	// Wait bounds the wait for a state; Poll is the time between two reads.
	Wait, Poll time.Duration
}

// connector returns the connector of all volumes.
func connector() cinder.Connector { return connectorOf("node1") }

// connectorOf returns the connector of one host. All have the same initiator.
func connectorOf(host string) cinder.Connector {
	return cinder.Connector{Host: host, Initiator: "iqn.2026-01.example:contract"}
}

// Run tests a target against the table, and against what a table cannot
// express.
func Run(t *testing.T, target Target) {
	t.Helper()
	// These run first, and one after the other: a listing restarts if the
	// volume at which a page was to begin is deleted meanwhile.
	all := []map[string]func(*subject){readings, snapshotReadings}
	if target.Backups {
		all = append(all, backupReadings)
	}
	if target.Groups != nil && target.GroupType != "" {
		all = append(all, groupReadings)
	}
	for _, some := range all {
		for name, judge := range some {
			t.Run(name, func(t *testing.T) { judge(newSubject(t, target)) })
		}
	}
	for _, state := range states {
		for action, want := range table[state.name] {
			if want == never || target.OnlyMember && want.member == nil {
				continue
			}
			t.Run(state.name+"/"+action, func(t *testing.T) {
				t.Parallel()
				s := newSubject(t, target)
				state.reach(s)
				before := s.describe()
				if before != state.looks {
					t.Fatalf("before the action the volume is %q, want %q", before, state.looks)
				}
				err := actions[action](s)
				if target.Member && want.member != nil {
					want = *want.member
				}
				if kind := cinder.KindOf(err); kind != want.kind || err != nil && kind == "" {
					t.Errorf("the error is %v (%q), want kind %q", err, kind, want.kind)
				}
				var failed *cinder.Error
				if errors.As(err, &failed) && failed.EffectUnknown != (want.kind == cinder.KindUnavailable) {
					t.Errorf("effect unknown is %t with %v", failed.EffectUnknown, err)
				}
				if after := s.describe(); after != want.after {
					t.Errorf("after the action the volume is %q, want %q", after, want.after)
				}
			})
		}
	}
}

// TableIsComplete fails the test if a state lacks an action.
func TableIsComplete(t *testing.T) {
	t.Helper()
	for _, state := range states {
		for action := range actions {
			if _, ok := table[state.name][action]; !ok {
				t.Errorf("the table does not say what %s does to a volume that is %s", action, state.name)
			}
		}
	}
}

// subject is one volume under test, and the means to use it.
type subject struct {
	Target
	t   *testing.T
	ctx context.Context
	// id is the volume's ID, attachment that of its last attachment.
	id, attachment string
	// taken are the IDs of its snapshots, backups those of its backups.
	taken, backups []string
	// groups are the IDs of groups that it was in, grouped those of group snapshots.
	groups, grouped []string
}

func newSubject(t *testing.T, target Target) *subject {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*target.Wait)
	s := &subject{Target: target, t: t, ctx: ctx}
	t.Cleanup(func() {
		s.cleanUp()
		cancel()
	})
	return s
}

// newName returns a name that nothing has.
func newName() string { return "contract-" + strings.ToLower(rand.Text()) }

func (s *subject) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// create creates a volume and waits until Cinder has finished.
func (s *subject) create(kind string) cinder.Volume {
	s.t.Helper()
	made, err := s.Cinder.CreateVolume(s.ctx, cinder.NewVolume{
		Name: newName(), SizeGiB: 1, Type: kind, Metadata: map[string]string{"purpose": "contract"},
	})
	s.must(err)
	s.id = made.ID
	s.settled()
	return made
}

// settled waits until Cinder has finished its own work, and returns the volume,
// or none if it is gone.
func (s *subject) settled() (v cinder.Volume, found bool) {
	s.t.Helper()
	v = settledAs(s, s.Cinder.Volume, s.id)
	return v, v.ID != ""
}

// settledAs waits until Cinder has finished its own work on an object, and returns it; zero
// if it is gone.
func settledAs[T cinder.Object](s *subject, readBy func(ctx context.Context, id string) (T, error), id string) (none T) {
	s.t.Helper()
	for deadline := time.Now().Add(s.Wait); ; time.Sleep(s.Poll) {
		found, err := readBy(s.ctx, id)
		if cinder.IsKind(err, cinder.KindNotFound) {
			return none
		}
		s.must(err)
		_, status, _ := found.State()
		switch status {
		case cinder.StatusCreating, "downloading", cinder.StatusDeleting, cinder.StatusDetaching, cinder.StatusExtending, cinder.StatusRetyping, cinder.StatusUpdating, cinder.StatusBackingUp, cinder.StatusBackupRestoring:
		default:
			return found
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s is still %s after %s", id, status, s.Wait)
		}
	}
}

// removeAll removes what is left, the last first: the last may need an earlier one.
func removeAll[T cinder.Object](s *subject, readBy func(ctx context.Context, id string) (T, error), remove func(ctx context.Context, id string) error, ids []string) {
	for _, id := range slices.Backward(ids) {
		if cinder.IDOf(settledAs(s, readBy, id)) != "" {
			_ = remove(s.ctx, id)
			settledAs(s, readBy, id)
		}
	}
}

// describe returns the volume's state as far as it matters to the lifecycle: its
// status, a size other than the one it was created with, the number of snapshots,
// of attachments in its document, those that are listed, and the mark that
// os-attach leaves.
func (s *subject) describe() string {
	s.t.Helper()
	v, found := s.settled()
	if !found {
		return "gone"
	}
	text := string(v.Status)
	if v.SizeGiB != 1 {
		text += fmt.Sprintf(", %d GiB", v.SizeGiB)
	}
	if n := s.snapshots(); n > 0 {
		text += fmt.Sprintf(", %d snapshot", n)
	}
	if n := len(v.Attachments); n > 0 {
		text += fmt.Sprintf(", shows %d", n)
	}
	if listed := s.listed(); len(listed) > 0 {
		text += ", lists " + strings.Join(listed, " and ")
	}
	if _, marked := v.Metadata[cinder.MetadataReadOnly]; marked {
		text += ", marked"
	}
	return text
}

// otherType returns the type to change the volume to.
func (s *subject) otherType() string {
	s.t.Helper()
	if s.OtherType == "" {
		s.t.Skip("no other type of the same storage is known")
	}
	return s.OtherType
}

// itsType returns the type that the volume has.
func (s *subject) itsType() string {
	s.t.Helper()
	if v, found := s.settled(); found {
		return v.Type
	}
	return s.Type
}

// retyped waits for the end of a change of the type, which only the type shows.
func (s *subject) retyped() {
	s.t.Helper()
	if v, _ := s.settled(); v.Type != s.OtherType {
		s.t.Errorf("the type is %q, want %q", v.Type, s.OtherType)
	}
}

func (s *subject) listed() []string {
	s.t.Helper()
	attachments, err := s.Cinder.Attachments(s.ctx, s.id)
	s.must(err)
	var statuses []string
	for _, a := range attachments {
		statuses = append(statuses, string(a.Status))
	}
	slices.Sort(statuses)
	return statuses
}

// cleanUp removes the volume in any state.
func (s *subject) cleanUp() {
	for deadline := time.Now().Add(s.Wait); s.id != "" && time.Now().Before(deadline); time.Sleep(s.Poll) {
		s.removeGroups()
		removeAll(s, s.Cinder.Backup, s.Cinder.DeleteBackup, s.backups)
		removeAll(s, s.Cinder.Snapshot, s.Cinder.DeleteSnapshot, s.taken)
		v, found := s.settled()
		if !found {
			return
		}
		attachments, err := s.Cinder.Attachments(s.ctx, s.id)
		if err != nil {
			s.t.Error(err)
		}
		// The state determines which of these has an effect; only the end
		// counts.
		for _, a := range attachments {
			_ = s.Cinder.DeleteAttachment(s.ctx, a.ID)
		}
		if v.Status != cinder.StatusAvailable {
			_ = s.Cinder.Unreserve(s.ctx, s.id)
		}
		_ = s.Cinder.DeleteVolume(s.ctx, s.id)
	}
	if s.id != "" {
		s.t.Errorf("volume %s could not be removed", s.id)
	}
}
