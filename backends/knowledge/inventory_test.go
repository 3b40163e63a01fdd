package knowledge

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// name is an entry that has nothing but an ID.
type name string

func (n name) State() (string, cinder.Status, time.Time) { return string(n), "", time.Time{} }

// owned is an entry with an owner.
type owned struct{ id, owner string }

func (o owned) State() (string, cinder.Status, time.Time) { return o.id, "", time.Time{} }

// entry is an entry that may change.
type entry struct {
	ID, Status string
	Metadata   map[string]string
}

func (e *entry) State() (string, cinder.Status, time.Time) { return e.ID, "", time.Time{} }

// TestListingDoesNotBringBackWhatIsGone: its pages may be older than what
// happened before its end.
func TestListingDoesNotBringBackWhatIsGone(t *testing.T) {
	var later func()
	inventory := NewInventory(Entries[name]{
		List: func(_ context.Context, yield func([]name) bool) error {
			yield([]name{"gone", "kept"})
			later()
			return nil
		},
		Owner: func(id name) string { return "uid-of-" + string(id) },
		Share: func(id name, _ map[string]string) name { return id },
	})
	later = func() { inventory.Forget("gone") }
	all, err := inventory.All(t.Context(), time.Time{})
	if err != nil || len(all) != 1 || all[0] != "kept" || len(inventory.Listed("uid-of-gone")) > 0 || len(inventory.Listed("uid-of-kept")) != 1 {
		t.Errorf("the listing has %q (%v)", all, err)
	}
	// The next one shows it again: the answer that it is gone was wrong.
	later = func() {}
	if all, err = inventory.All(t.Context(), time.Now()); err != nil || len(all) != 2 {
		t.Errorf("the listing has %q (%v)", all, err)
	}
}

// TestListingAgainTakesNoMemoryForWhatIsTheSame: a term lists everything again for
// every audit.
func TestListingAgainTakesNoMemoryForWhatIsTheSame(t *testing.T) {
	statuses := map[string]string{"same": "in-use", "changed": "available", "twin-1": "available", "twin-2": "available", "gone": "in-use"}
	var during func()
	inventory := NewInventory(Entries[*entry]{
		List: func(_ context.Context, yield func([]*entry) bool) error {
			var page []*entry
			for id, status := range statuses {
				page = append(page, &entry{ID: id, Status: status, Metadata: map[string]string{"key": id}})
			}
			yield(page)
			yield(page) // again, after a new login
			if during != nil {
				during()
			}
			return nil
		},
		Owner: func(e *entry) string { return "uid-of-" + strings.Split(e.ID, "-")[0] },
		Share: func(e *entry, _ map[string]string) *entry { return e },
	})
	list := func(want string) map[string]*entry {
		t.Helper()
		all, err := inventory.All(t.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		byID, names := map[string]*entry{}, []string{}
		for _, e := range all {
			byID[e.ID] = e
			names = append(names, e.ID+" "+e.Status)
		}
		if got := strings.Join(names, ", "); got != want {
			t.Errorf("the listing has %s; want %s", got, want)
		}
		return byID
	}
	before := list("changed available, gone in-use, same in-use, twin-1 available, twin-2 available")
	statuses["changed"] = "in-use"
	during = func() { inventory.Forget("gone") }
	after := list("changed in-use, same in-use, twin-1 available, twin-2 available")
	if before["same"] != after["same"] || before["changed"] == after["changed"] {
		t.Error("what is the same was not kept, or what has changed was")
	}
	inventory.Forget("twin-1")
	inventory.Forget("never seen")
	if found, err := inventory.Find(t.Context(), "uid-of-twin", func(*entry) bool { return true }, time.Time{}); err != nil || len(found) != 1 || found[0].ID != "twin-2" {
		t.Errorf("found %v (%v)", found, err)
	}
	during = nil
	list("changed in-use, gone in-use, same in-use, twin-1 available, twin-2 available")
}

// TestEntryThatChangesHandsDuringAListing: a listing that begins again after a new
// login may show an entry under the stamp of another owner, or without one.
func TestEntryThatChangesHandsDuringAListing(t *testing.T) {
	inventory := NewInventory(Entries[owned]{
		List: func(_ context.Context, yield func([]owned) bool) error {
			yield([]owned{{"1", "before"}, {"2", "before"}, {"3", "before"}})
			yield([]owned{{"1", "after"}, {"2", "before"}, {"3", ""}}) // again, after a new login
			return nil
		},
		Owner: func(e owned) string { return e.owner },
		Share: func(e owned, _ map[string]string) owned { return e },
	})
	if all, err := inventory.All(t.Context(), time.Time{}); err != nil || !slices.Equal(all, []owned{{"1", "after"}, {"2", "before"}}) {
		t.Errorf("the listing has %v (%v)", all, err)
	}
	inventory.Forget("1")
	inventory.Forget("2")
	if owners := inventory.Owners(); len(owners) != 0 {
		t.Errorf("%q own what is gone", owners)
	}
}

// TestListingThatWasCutOffShowsNothing: it does not know what went away after
// the last caller stopped waiting, and another listing may have ended before
// it.
func TestListingThatWasCutOffShowsNothing(t *testing.T) {
	shown := []name{"1", "2"}
	listed, resumed, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	first := true
	inventory := NewInventory(Entries[name]{
		List: func(_ context.Context, yield func([]name) bool) error {
			yield(shown)
			if first {
				first = false
				close(listed)
				<-resumed
			}
			return nil
		},
		Owner: func(id name) string { return "uid-of-" + string(id) },
		Share: func(id name, _ map[string]string) name { return id },
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		if all, err := inventory.All(ctx, time.Time{}); err == nil {
			t.Errorf("the listing has %q although nobody waited for its end", all)
		}
	}()
	<-listed
	cutOff := inventory.loading
	leave()
	<-ended
	inventory.Forget("1")
	shown = []name{"2", "3"}
	if all, err := inventory.All(t.Context(), time.Time{}); err != nil || !slices.Equal(all, []name{"2", "3"}) {
		t.Errorf("the listing has %q (%v)", all, err)
	}
	close(resumed)
	<-cutOff.done
	if all, err := inventory.All(t.Context(), time.Time{}); err != nil || !slices.Equal(all, []name{"2", "3"}) {
		t.Errorf("after the end of one that was cut off, the listing has %q (%v)", all, err)
	}
}
