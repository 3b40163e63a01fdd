package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// BinaryVariable names the environment variable that names a prebuilt binary
// to be used as it is. With it, neither the repository nor a Go toolchain is
// needed.
const BinaryVariable = "CONTROLPLANE_BINARY"

// sourceDir is the nested module of the binary, from the repository's root.
const sourceDir = "test/controlplane/binaries"

// Binary returns the path of the one file that is etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler by its first argument.
//
// It is built into bin/controlplane under the root of the repository that the
// working directory is in, unless what is there was built from the same
// sources, by the same Go release and for the same platform. Building takes
// minutes the first time; log is told so. Processes that need it at the same
// time build it once. If the environment has CONTROLPLANE_BINARY, then that is
// the path and nothing is built.
func Binary(ctx context.Context, log io.Writer) (path string, err error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return prebuilt(path)
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", fmt.Errorf("control plane's binary: %w", err)
	}
	path, err = buildOnce(ctx, log, filepath.Join(root, sourceDir), filepath.Join(root, "bin"), goBuild)
	if err != nil {
		return "", fmt.Errorf("control plane's binary: %w", err)
	}
	return path, nil
}

func prebuilt(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", BinaryVariable, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", BinaryVariable, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("%s: %s is not an executable file", BinaryVariable, path)
	}
	return path, nil
}

// repositoryRoot looks for the sources upwards from the working directory,
// which for a test is its package's directory.
func repositoryRoot() (string, error) {
	working, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := working; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, sourceDir, "go.mod"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no directory from %s upwards holds %s: run inside the repository or name a built binary in %s",
				working, sourceDir, BinaryVariable)
		}
	}
}

// build compiles the module in source, of that Kubernetes version, into target.
type build func(ctx context.Context, source, version, target string) error

// buildOnce returns the path of the built binary in binDir, which it builds if
// there is none that fits the sources.
func buildOnce(ctx context.Context, log io.Writer, source, binDir string, build build) (string, error) {
	wanted, version, err := sourceKey(source)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(binDir, "controlplane")
	lock, err := waitLock(ctx, path+".lock", func() {
		fmt.Fprintln(log, "controlplane: waiting for another process that builds bin/controlplane")
	})
	if err != nil {
		return "", err
	}
	defer lock.unlock()

	// The key is written last and removed first, so a build that is cut off at
	// any point is made again.
	keyPath := path + ".key"
	if built, err := os.ReadFile(keyPath); err == nil && string(built) == wanted {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	fmt.Fprintf(log, "controlplane: building etcd and Kubernetes %s into bin/controlplane: usually 5 minutes the first time, 15 seconds once compiled\n", version)
	if err := os.Remove(keyPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// A program that still runs from the old file keeps it, as the new one
	// takes its name by renaming.
	target := path + ".new"
	if err := build(ctx, source, version, target); err != nil {
		return "", err
	}
	if err := os.Rename(target, path); err != nil {
		return "", err
	}
	if err := os.WriteFile(keyPath, []byte(wanted), 0o644); err != nil {
		return "", err
	}
	return path, nil
}

// sourceKey is a digest of all that decides what comes out of a build, and the
// version of Kubernetes that goes in.
func sourceKey(source string) (key, version string, err error) {
	digest := sha256.New()
	fmt.Fprintln(digest, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", "", err
		}
		if name == "go.mod" {
			if version, err = kubernetesVersion(content); err != nil {
				return "", "", fmt.Errorf("%s: %w", filepath.Join(source, name), err)
			}
		}
		fmt.Fprintf(digest, "%s %d\n%s", name, len(content), content)
	}
	fmt.Fprintln(digest, buildArguments(version, ""))
	return hex.EncodeToString(digest.Sum(nil)), version, nil
}

// kubernetesVersion is the version of k8s.io/kubernetes that a go.mod requires,
// such as v1.36.3.
func kubernetesVersion(gomod []byte) (string, error) {
	match := regexp.MustCompile(`(?m)^(?:require)?\s+k8s\.io/kubernetes (v\d+\.\d+\.\d+\S*)`).FindSubmatch(gomod)
	if match == nil {
		return "", errors.New("no version of k8s.io/kubernetes is required")
	}
	return string(match[1]), nil
}

// buildArguments are those of the go command.
func buildArguments(version, target string) []string {
	numbers := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	// Without these the API server calls itself v0.0.0-master+$Format...,
	// which clients that parse it choke on.
	const variables = "k8s.io/component-base/version."
	flags := fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s",
		variables, version, numbers[0], numbers[1])
	return []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", target, "."}
}

// goBuild runs the go command of the PATH. It satisfies build.
func goBuild(ctx context.Context, source, version, target string) error {
	command := exec.CommandContext(ctx, "go", buildArguments(version, target)...)
	command.Dir = source
	// GOFLAGS and a workspace may well be meant for the module around this one.
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off",
		"GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	// The go command's compilers go down with it. Interrupted, it removes its
	// temporary files; killed, it leaves gigabytes.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = 10 * time.Second
	err := command.Run()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("build %s: %w", source, ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("build %s: %w: install Go or name a built binary in %s", source, err, BinaryVariable)
	case err != nil:
		text := output.Bytes()
		return fmt.Errorf("build %s: %w:\n%s", source, err, bytes.TrimSpace(text[max(0, len(text)-logTailBytes):]))
	}
	return nil
}
