package knowledge

import (
	"context"
	"testing"
	"time"
)

// TestListingDoesNotBringBackWhatIsGone: its pages are older than its end.
func TestListingDoesNotBringBackWhatIsGone(t *testing.T) {
	var later func()
	inventory := NewInventory(Entries[string]{
		List: func(_ context.Context, yield func([]string) bool) error {
			yield([]string{"gone", "kept"})
			later()
			return nil
		},
		Owner: func(id string) string { return "uid-of-" + id },
		Born:  func(id string) (string, time.Time) { return id, time.Time{} },
		Share: func(id string, _ map[string]string) string { return id },
	})
	later = func() { inventory.Forget("gone") }
	all, err := inventory.All(t.Context())
	if err != nil || len(all) != 1 || all[0] != "kept" || inventory.Knows("uid-of-gone") || !inventory.Knows("uid-of-kept") {
		t.Errorf("the listing has %q (%v)", all, err)
	}
	// The next one shows it again: the answer that it is gone was wrong.
	later = func() {}
	if all, err = inventory.AllAfter(t.Context(), time.Now()); err != nil || len(all) != 2 {
		t.Errorf("the listing has %q (%v)", all, err)
	}
}
