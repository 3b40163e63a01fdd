package sample

import "testing"

func TestSampleHasEveryKind(t *testing.T) {
	t.Setenv(Variable, "3")
	s := New(t)
	for _, kind := range []string{"create", "reserve", "record", "attach"} {
		taken := 0
		for range 6 {
			if s.Takes(kind) {
				taken++
			}
		}
		if taken != 2 {
			t.Errorf("%d of 6 cases of %q are taken, want 2", taken, kind)
		}
	}
}

func TestWithoutTheVariableEveryCaseRuns(t *testing.T) {
	t.Setenv(Variable, "")
	s := New(t)
	for range 5 {
		if !s.Takes("create") {
			t.Error("a case is left out")
		}
	}
}
