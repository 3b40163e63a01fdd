package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

const (
	// development is the version of a checkout without a tag.
	development = "v0.0.0-dev"
	// noCommit is the commit of sources that are not a git checkout.
	noCommit = "unknown"
)

// isVersion is a semantic version with a v. Build metadata (+...) is not
// allowed in the tag of an image.
var isVersion = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// source is what a release is built from. Nothing else goes into the result,
// except modules of the versions in go.sum and the Go toolchain.
type source struct {
	directory string
	version   string
	// commit ends in -dirty if the checkout has changes that are not committed.
	commit string
	// time is the modification time of every file of the release.
	time time.Time
	// plugins are the platforms of the kubectl plugin, as SYSTEM/ARCHITECTURE.
	plugins []string
}

// readSource asks git for what is not given. $SOURCE_DATE_EPOCH replaces the
// time of the commit.
func readSource(ctx context.Context, directory, version string) (source, error) {
	directory, err := filepath.Abs(directory)
	if err != nil {
		return source{}, err
	}
	s := source{directory: directory, version: version, commit: noCommit}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	// In an unpacked archive, git might answer for a repository that encloses
	// it.
	if _, err := os.Stat(filepath.Join(directory, ".git")); err == nil {
		if err := s.askGit(ctx, &epoch); err != nil {
			return source{}, err
		}
	}
	if s.version == "" {
		s.version = development
	}
	if !isVersion.MatchString(s.version) {
		return source{}, fmt.Errorf("version %q is not of the form v1.2.3 or v1.2.3-rc.1", s.version)
	}
	if epoch == "" {
		return source{}, fmt.Errorf("%s is not a git checkout, so it has no commit time: set SOURCE_DATE_EPOCH to the time of the release, in seconds since 1970", directory)
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return source{}, fmt.Errorf("SOURCE_DATE_EPOCH is %q, not a number of seconds since 1970", epoch)
	}
	s.time = time.Unix(seconds, 0).UTC()
	return s, nil
}

// askGit fills in the commit and, where they are empty, version and epoch.
func (s *source) askGit(ctx context.Context, epoch *string) error {
	git := func(arguments ...string) (string, error) {
		output, err := run(ctx, s.directory, nil, "git", arguments...)
		return strings.TrimSpace(string(output)), err
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	changes, err := git("status", "--porcelain")
	if err != nil {
		return err
	}
	dirty := ""
	if changes != "" {
		dirty = "-dirty"
	}
	s.commit = commit + dirty
	if s.version == "" {
		// Without a tag, git fails.
		if described, err := git("describe", "--tags", "--match", "v[0-9]*"); err == nil {
			s.version = described + dirty
		}
	}
	if *epoch == "" {
		*epoch, err = git("log", "-1", "--format=%ct")
	}
	return err
}

// run runs a program with additional environment variables and returns its
// standard output.
func run(ctx context.Context, directory string, variables []string, name string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir, command.Env = directory, append(os.Environ(), variables...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arguments, " "), err, &stderr)
	}
	return stdout.Bytes(), nil
}
