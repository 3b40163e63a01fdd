package random

import (
	"regexp"
	"testing"
)

func TestOneSeedGivesTheSameAgain(t *testing.T) {
	first, again, other := New(7), New(7), New(8)
	for range 3 {
		id := first.UUID()
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) {
			t.Errorf("%s is no random UUID", id)
		}
		if repeated, different := again.UUID(), other.UUID(); repeated != id || different == id {
			t.Errorf("seed 7 gives %s and %s, seed 8 %s", id, repeated, different)
		}
	}
	if a, b := first.Secret(20), again.Secret(20); a != b || len(a) != 20 {
		t.Errorf("the secrets are %q and %q", a, b)
	}
	if a, b := first.Hex(), again.Hex(); a != b || len(a) != 32 {
		t.Errorf("the IDs of Keystone are %q and %q", a, b)
	}
}
