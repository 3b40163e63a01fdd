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
	plugin   = "kubectl-cinder"
	homepage = "https://github.com/standalone-cinder/standalone-cinder"
	// imageDirectory is the OCI layout that the archive of the image contains.
	imageDirectory = "image"
	// checksums lists every file but itself and its signature.
	checksums = "checksums.txt"
)

// platforms lists the architectures of the program and its image; the operating system is
// always Linux.
var platforms = []string{"amd64", "arm64"}

// target is a binary of the release.
type target struct{ program, pkg, system, architecture string }

// pluginPlatforms are those of the kubectl plugin, which runs on machines of people.
const pluginPlatforms = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"

// targets returns the binaries of the program, and those of the plugin.
func (s source) targets() []target {
	var all []target
	for _, architecture := range platforms {
		all = append(all, target{program, ".", "linux", architecture})
	}
	for _, platform := range s.plugins {
		system, architecture, _ := strings.Cut(platform, "/")
		all = append(all, target{plugin, "./cmd/" + plugin, system, architecture})
	}
	return all
}

// executable is the name of the program in an archive.
func (t target) executable() string {
	if t.system == "windows" {
		return t.program + ".exe"
	}
	return t.program
}

// environment pins every setting that the environment could change.
func (t target) environment() []string {
	return []string{
		"CGO_ENABLED=0", "GOOS=" + t.system, "GOARCH=" + t.architecture, "GOAMD64=v1", "GOARM64=v8.0",
		"GOFLAGS=-mod=readonly", "GOWORK=off", "GOFIPS140=off",
	}
}

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
	archives := map[target]string{}
	for _, t := range s.targets() {
		path := filepath.Join(out, s.binary(t))
		if err := compile(ctx, s, t, path); err != nil {
			return err
		}
		archives[t] = path + ".tar.gz"
		if err := errors.Join(writeArchive(s, t, path, notices), writeSBOM(s, path)); err != nil {
			return err
		}
		if t.program == program {
			binaries[t.architecture] = path
		} else if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := errors.Join(writeImage(s, out, binaries, notices), packageChart(ctx, s, out), writeKrewManifest(s, out, archives)); err != nil {
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

// binary returns the name of a binary of the release.
func (s source) binary(t target) string {
	return t.program + "-" + s.version + "-" + t.system + "-" + t.architecture
}

// compile builds a binary, the same at every path of the checkout. The linker sets the version,
// because the go command's own record is missing in an archive of the source, and
// changes with files that are not committed.
func compile(ctx context.Context, s source, t target, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	flags := fmt.Sprintf("-s -w -buildid= -X main.version=%s -X main.commit=%s", s.version, s.commit)
	_, err = run(ctx, s.directory, t.environment(), "go", "build", "-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", to, t.pkg)
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
