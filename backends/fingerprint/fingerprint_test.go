package fingerprint

import "testing"

// TestFingerprintsStay: volumes carry fingerprints from earlier releases.
func TestFingerprintsStay(t *testing.T) {
	for _, c := range []struct {
		values []any
		want   string
	}{
		{[]any{"1 GiB"}, "05ddebe6c94c00cc4fbc99f6"},
		{[]any{struct{ Region string }{"one"}, []string{"a"}, nil}, "5aec48e33a9e6e73e3d75314"},
	} {
		if got := Of(c.values...); got != c.want {
			t.Errorf("the fingerprint of %v is %s, want %s", c.values, got, c.want)
		}
	}
}
