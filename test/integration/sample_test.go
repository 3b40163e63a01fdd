package integration

import (
	"hash/fnv"
	"os"
	"strconv"
	"testing"
)

// sample picks cases of a crash matrix. CRASH_SAMPLE=3 runs a third of them, the
// same ones every time, and of every kind of step with three cases or more at least
// one. Without it, all cases run.
type sample struct {
	every int
	seen  map[string]int
}

func newSample(t *testing.T) *sample {
	t.Helper()
	s := &sample{every: 1, seen: map[string]int{}}
	if text := os.Getenv("CRASH_SAMPLE"); text != "" {
		every, err := strconv.Atoi(text)
		if err != nil || every < 1 {
			t.Fatalf("CRASH_SAMPLE=%s is no number of 1 or more", text)
		}
		s.every = every
	}
	return s
}

// takes reports whether the next case of a kind is in the sample. Kinds begin at
// different cases, so that a sample has every mishap at some step.
func (s *sample) takes(kind string) bool {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(kind))
	n := s.seen[kind]
	s.seen[kind]++
	return (n+int(hash.Sum32()%uint32(s.every)))%s.every == 0
}

func TestSampleHasEveryKind(t *testing.T) {
	t.Setenv("CRASH_SAMPLE", "3")
	s := newSample(t)
	for _, kind := range []string{"create", "reserve", "record", "attach"} {
		taken := 0
		for range 6 {
			if s.takes(kind) {
				taken++
			}
		}
		if taken != 2 {
			t.Errorf("%d of 6 cases of %q are taken, want 2", taken, kind)
		}
	}
}
