// Package sample picks some of very many cases.
package sample

import (
	"hash/fnv"
	"os"
	"strconv"
	"testing"
)

// Variable is the environment variable that says how many cases run: 3 means one
// in three. Without it, all do.
const Variable = "FAULT_SAMPLE"

// Sample picks cases, the same ones every time, and at least one of every kind that
// has enough cases for that.
type Sample struct {
	every int
	seen  map[string]int
}

// New reads the environment.
func New(t *testing.T) *Sample {
	t.Helper()
	s := &Sample{every: 1, seen: map[string]int{}}
	if text := os.Getenv(Variable); text != "" {
		every, err := strconv.Atoi(text)
		if err != nil || every < 1 {
			t.Fatalf("%s=%s is no number of 1 or more", Variable, text)
		}
		s.every = every
	}
	return s
}

// Takes reports whether the next case of a kind is picked. Kinds begin at different
// cases, so that a case that all kinds have at the same position is picked for some
// kind.
func (s *Sample) Takes(kind string) bool {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(kind))
	n := s.seen[kind]
	s.seen[kind]++
	return (n+int(hash.Sum32()%uint32(s.every)))%s.every == 0
}
