package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTestsOfATierAreFound(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte("package a\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("// TestA waits.\n//\n//tier:outage\n//tier:oldest\nfunc TestA(t *testing.T) {}\n\nfunc TestB(t *testing.T) {}\n\n//tier:matrix\nfunc TestC(t *testing.T) {}\n")
	if got, err := find(dir, []string{"outage", "oldest", "matrix"}); err != nil || !slices.Equal(got, []string{"TestA", "TestC"}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := find(dir, []string{"apart"}); err == nil {
		t.Error("an empty tier would select every test or none")
	}
	write("//tier:outages\nfunc TestA(t *testing.T) {}\n")
	if _, err := find(dir, []string{"outage"}); err == nil {
		t.Error("a misspelled tier is not noticed")
	}
}
