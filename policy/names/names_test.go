package names

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestMatches(t *testing.T) {
	tests := []struct {
		entry, name string
		want        bool
	}{
		{"team-a", "team-a", true},
		{"team-a", "team-ab", false},
		{"team-a", "team", false},
		{"*", "anything", true},
		{"team-a-*", "team-a-dev", true},
		{"team-a-*", "team-a-", true}, // no namespace can have this name
		{"team-a-*", "team-a", false},
		{"team-a*", "team-a", true},
		{"team-a*", "team-ab", true},
		{"team-a*", "my-team-a", false},
		{"*-prod", "shop-prod", true},
		{"*-prod", "shop-prod-2", false},
		{"*-prod", "prod", false},
		{"a*a", "a", false}, // the same a cannot begin and end the name
		{"a*a", "aa", true},
		{"ab*ba", "aba", false},
		{"a*b*c", "abc", true},
		{"a*b*c", "a-b-b-c", true},
		{"a*b*c", "acb", false},
		{"a*b*b", "ab", false},
		{"*a*", "bab", true},
		{"*a*", "bbb", false},
		{"a.b", "a-b", false}, // a dot is no wildcard
	}
	for _, test := range tests {
		if got := Matches(test.entry, test.name); got != test.want {
			t.Errorf("Matches(%q, %q) = %v, want %v", test.entry, test.name, got, test.want)
		}
	}
}

func TestNameMistakes(t *testing.T) {
	tests := []struct {
		entry string
		kind  Kind
		good  bool
	}{
		{"a", Namespace(), true},
		{"0", Namespace(), true},
		{strings.Repeat("a", 63), Namespace(), true},
		{strings.Repeat("a", 63) + "*", Namespace(), true},
		{strings.Repeat("a", 64), Namespace(), false},
		{strings.Repeat("a", 64) + "*", Namespace(), false},
		{strings.Repeat("a", 63) + "*b", Namespace(), false},
		{"*", Namespace(), true},
		{"*a*", Namespace(), true},
		{"a-*", Namespace(), true},
		{"*-*", Namespace(), true},
		{"*-", Namespace(), false},
		{"-*", Namespace(), false},
		{"a.*", Namespace(), false},
		{"", Namespace(), false},
		{"a b", Namespace(), false},
		{"a.b", StorageClass(), true},
		{"a.*", StorageClass(), true},
		{"*.b", StorageClass(), true},
		{"a..*", StorageClass(), false},
		{"a.-*", StorageClass(), false},
		{"a-.*", StorageClass(), false},
		{strings.Repeat("a", 253), StorageClass(), true},
		{strings.Repeat("a", 254), StorageClass(), false},
	}
	for _, test := range tests {
		if mistake := test.kind.Mistake(test.entry); (mistake == "") != test.good {
			t.Errorf("Mistake(%q) = %q, want none: %v", test.entry, mistake, test.good)
		}
	}
}

func TestCommonNames(t *testing.T) {
	tests := []struct{ a, b, want string }{
		{"a", "a", "a"},
		{"a", "b", ""},
		{"*", "*", "x"},
		{"team-*", "team-a-*", "team-a-x"},
		{"team-a-*", "team-b-*", ""},
		{"*-prod", "*-dev", ""},
		{"dev-*", "*-prod", "dev-prod"},
		{"a*b", "b*a", ""},
		{"a*", "*a", "a"},
		{"*-*", "a*", "a-x"},
		{"a*-", "a*", ""}, // nothing may end with a hyphen
		{strings.Repeat("a", 40) + "*", "*" + strings.Repeat("b", 24), ""}, // 64 characters
		{strings.Repeat("a", 40) + "*", "*" + strings.Repeat("b", 23), strings.Repeat("a", 40) + strings.Repeat("b", 23)},
	}
	for _, test := range tests {
		for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}} {
			got, ok := Namespace().Common(pair[0], pair[1])
			if ok != (test.want != "") || ok && got != test.want {
				t.Errorf("Common(%q, %q) = %q, %v, want %q", pair[0], pair[1], got, ok, test.want)
			}
		}
	}
}

// randomPattern returns a short pattern of few different characters, so that
// patterns often overlap.
func randomPattern(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(5) {
		b.WriteByte("ab-*"[r.IntN(4)])
	}
	return b.String()
}

// TestCommonAndCoversAgainstEveryShortName compares both with what trying out
// all names of up to six characters shows.
func TestCommonAndCoversAgainstEveryShortName(t *testing.T) {
	var all []string
	var grow func(prefix string)
	grow = func(prefix string) {
		if Namespace().Valid(prefix) {
			all = append(all, prefix)
		}
		if len(prefix) < 6 {
			for _, c := range "abx-" {
				grow(prefix + string(c))
			}
		}
	}
	grow("")
	r := rand.New(rand.NewPCG(1, 2))
	var overlapping, covering int
	for range 1500 {
		a, b := randomPattern(r), randomPattern(r)
		found, ok := Namespace().Common(a, b)
		if ok && (!Matches(a, found) || !Matches(b, found) || !Namespace().Valid(found)) {
			t.Fatalf("Common(%q, %q) = %q, which is not in common", a, b, found)
		}
		shortest, covered := "", true
		for _, name := range all {
			inA, inB := Matches(a, name), Matches(b, name)
			if inA && inB && (shortest == "" || len(name) < len(shortest)) {
				shortest = name
			}
			covered = covered && (inA || !inB)
		}
		if shortest != "" && (!ok || len(found) != len(shortest)) {
			t.Fatalf("Common(%q, %q) = %q, %v, but %q matches both", a, b, found, ok, shortest)
		}
		if shortest == "" && ok && len(found) <= 6 {
			t.Fatalf("Common(%q, %q) = %q, but no short name matches both", a, b, found)
		}
		if Covers(a, b) && !covered {
			t.Fatalf("Covers(%q, %q), but some name matches only the latter", a, b)
		}
		if ok {
			overlapping++
		}
		if Covers(a, b) {
			covering++
		}
	}
	if overlapping < 100 || covering < 100 {
		t.Errorf("only %d overlapping and %d covering pairs: the patterns are too far apart to test anything", overlapping, covering)
	}
}

func TestCovers(t *testing.T) {
	tests := []struct {
		wide, narrow string
		want         bool
	}{
		{"*", "a", true},
		{"*", "*", true},
		{"a*", "a", true},
		{"a*", "a-*", true},
		{"a-*", "a*", false},
		{"a", "a*", false},
		{"a", "a", true},
		{"*a*", "*ba*", true},
		{"a*c", "a*b*c", true},
		{"a*b*c", "a*c", false},
	}
	for _, test := range tests {
		if got := Covers(test.wide, test.narrow); got != test.want {
			t.Errorf("Covers(%q, %q) = %v, want %v", test.wide, test.narrow, got, test.want)
		}
	}
}
