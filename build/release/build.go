package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	program  = "standalone-cinder"
	homepage = "https://github.com/standalone-cinder/standalone-cinder"
	// imageDirectory is the OCI layout that the archive of the image contains.
	imageDirectory = "image"
	// checksums lists every file but itself and its signature.
	checksums = "checksums.txt"
)

// platforms lists the architectures; the operating system is always Linux.
var platforms = []string{"amd64", "arm64"}

// build writes a release into an empty directory. The checksums come last: a
// directory without them is incomplete. Their signature follows, if there is a signer.
func build(ctx context.Context, s source, out string, by *signer) error {
	if entries, err := os.ReadDir(out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: remove it first", out)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	notices, err := readNotices(ctx, s)
	if err != nil {
		return err
	}
	binaries := map[string]string{}
	for _, architecture := range platforms {
		path := filepath.Join(out, s.artifact("-linux-"+architecture))
		if err := compile(ctx, s, architecture, path); err != nil {
			return err
		}
		if err := errors.Join(writeArchive(s, path, notices), writeSBOM(s, path)); err != nil {
			return err
		}
		binaries[architecture] = path
	}
	if err := errors.Join(writeImage(s, out, binaries, notices), packageChart(ctx, s, out)); err != nil {
		return err
	}
	if err := writeChecksums(out); err != nil || by == nil {
		return err
	}
	return by.sign(out, s.artifact("-image"))
}

// artifact returns the name of a file of the release.
func (s source) artifact(suffix string) string {
	return program + "-" + s.version + suffix
}

// compile builds the binary of one platform. It pins every setting that the
// environment or the path of the checkout could change. The linker sets the version,
// because the go command's own record is missing in an archive of the source, and
// changes with files that are not committed.
func compile(ctx context.Context, s source, architecture, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X main.commit=%s", s.version, s.commit)
	_, err = run(ctx, s.directory, []string{
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + architecture, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOFIPS140=off",
	}, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", to, ".")
	return err
}

// writeChecksums lists every file, in the form that sha256sum -c reads. The
// image's directory is left out, since its archive has the same content.
func writeChecksums(out string) error {
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		content, err := os.ReadFile(filepath.Join(out, entry.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), entry.Name())
	}
	return os.WriteFile(filepath.Join(out, checksums), []byte(lines.String()), 0o644)
}
