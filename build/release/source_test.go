package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// checkout returns a repository with one commit, dated 2026-11-22.
func checkout(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	t.Setenv("SOURCE_DATE_EPOCH", "")
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a",
		"GIT_COMMITTER_EMAIL": "a@example.org", "GIT_COMMITTER_DATE": "2026-11-22T10:00:00Z",
	} {
		t.Setenv(name, value)
	}
	write(t, filepath.Join(directory, "file"), "1")
	git(t, directory, "init", "--quiet")
	git(t, directory, "add", ".")
	git(t, directory, "commit", "--quiet", "--message", "first")
	return directory
}

func git(t *testing.T, directory string, arguments ...string) string {
	t.Helper()
	output, err := run(t.Context(), directory, nil, "git", arguments...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(output))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestVersionCommitAndTimeComeFromTheCheckout(t *testing.T) {
	directory := checkout(t)
	commit := git(t, directory, "rev-parse", "HEAD")
	expect := func(given, version, commit, at string) {
		t.Helper()
		s, err := readSource(t.Context(), directory, given)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.time.Format("2006-01-02T15:04:05Z"); s.version != version || s.commit != commit || got != at {
			t.Errorf("version %q of commit %s at %s, want %q, %s and %s", s.version, s.commit, got, version, commit, at)
		}
	}
	expect("", "v0.0.0-dev", commit, "2026-11-22T10:00:00Z")
	expect("v0.1.0", "v0.1.0", commit, "2026-11-22T10:00:00Z")
	git(t, directory, "tag", "not-a-version")
	expect("", "v0.0.0-dev", commit, "2026-11-22T10:00:00Z")
	git(t, directory, "tag", "v0.2.0")
	expect("", "v0.2.0", commit, "2026-11-22T10:00:00Z")
	write(t, filepath.Join(directory, "file"), "2")
	expect("", "v0.2.0-dirty", commit+"-dirty", "2026-11-22T10:00:00Z")
	git(t, directory, "commit", "--quiet", "--all", "--message", "second")
	second := git(t, directory, "rev-parse", "HEAD")
	expect("", "v0.2.0-1-g"+git(t, directory, "rev-parse", "--short", "HEAD"), second, "2026-11-22T10:00:00Z")
	write(t, filepath.Join(directory, "new"), "1")
	expect("v0.3.0", "v0.3.0", second+"-dirty", "2026-11-22T10:00:00Z")
	t.Setenv("SOURCE_DATE_EPOCH", "1")
	expect("v0.3.0", "v0.3.0", second+"-dirty", "1970-01-01T00:00:01Z")
}

// TestArchiveInsideAnotherRepositoryIsNotThatRepository: the sources may have
// been unpacked anywhere.
func TestArchiveInsideAnotherRepositoryIsNotThatRepository(t *testing.T) {
	inside := filepath.Join(checkout(t), "unpacked")
	if err := os.Mkdir(inside, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := readSource(t.Context(), inside, "v0.1.0"); err == nil || !strings.Contains(err.Error(), "set SOURCE_DATE_EPOCH") {
		t.Errorf("error %v, expected advice about SOURCE_DATE_EPOCH", err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	if s, err := readSource(t.Context(), inside, ""); err != nil || s.version != development || s.commit != "unknown" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestVersionsThatTagsAndChartsCannotHaveAreRefused(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "0")
	for version, valid := range map[string]bool{
		"v0.1.0": true, "v1.0.0-rc.1": true, "v0.2.0-1-gabc": true,
		"0.1.0": false, "v0.1": false, "v0.1.0+meta": false, "v01.1.0": false, "latest": false, "v0.1.0 -X main.x=y": false, "v0.1.0-": false,
	} {
		if _, err := readSource(t.Context(), t.TempDir(), version); (err == nil) != valid {
			t.Errorf("version %q: error %v", version, err)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "today")
	if _, err := readSource(t.Context(), t.TempDir(), "v0.1.0"); err == nil {
		t.Error("SOURCE_DATE_EPOCH=today is accepted")
	}
}

// TestNothingIsMixedWithAnEarlierRelease: files left over in the directory
// would get into the checksums.
func TestNothingIsMixedWithAnEarlierRelease(t *testing.T) {
	out := t.TempDir()
	write(t, filepath.Join(out, "checksums.txt"), "")
	if err := build(t.Context(), source{}, out, nil); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("error %v", err)
	}
}
