package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// BinaryVariable names the environment variable that names a prebuilt
	// binary to be used as it is. With it, neither the repository nor a Go
	// toolchain is needed.
	BinaryVariable = "CONTROLPLANE_BINARY"

	// MinorVariable names the environment variable that picks a minor of
	// Kubernetes, such as 1.35.
	MinorVariable = "KUBERNETES"
)

// sourceDir contains a nested module for each minor, in a directory of its
// name, relative to the repository's root.
const sourceDir = "test/controlplane/binaries"

// Binary returns the path of the one file that is etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler by its first argument.
//
// It is of the minor that KUBERNETES names or else, of those under binaries,
// the newest whose modules can be downloaded; log is told which could not. One
// that does not compile is an error.
//
// It is built into bin/controlplane-MINOR under the root of the repository that
// the working directory is in, unless what is there was built from the same
// sources, by the same Go release and for the same platform. Building takes
// minutes the first time; log is told so. Processes that need it at the same
// time build it once. If the environment has CONTROLPLANE_BINARY, then that is
// the path and nothing is chosen or built.
func Binary(ctx context.Context, log io.Writer) (path string, err error) {
	if path := os.Getenv(BinaryVariable); path != "" {
		return executable(BinaryVariable, path)
	}
	root, err := repositoryRoot()
	if err != nil {
		return "", fmt.Errorf("control plane's binary: %w", err)
	}
	sources := filepath.Join(root, sourceDir)
	minors, err := choose(sources, os.Getenv(MinorVariable))
	if err != nil {
		return "", fmt.Errorf("control plane's binary: %w", err)
	}
	path, err = firstServed(ctx, log, sources, minors, filepath.Join(root, "bin"), goCommand)
	if err != nil {
		return "", fmt.Errorf("control plane's binary: %w", err)
	}
	return path, nil
}

// executable returns the file that an environment variable names.
func executable(variable, path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", variable, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", variable, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("%s: %s is not an executable file", variable, path)
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
		_, err := os.Stat(filepath.Join(dir, sourceDir))
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

// choose returns the minors to be tried, in this order: the wanted one alone
// or, if none is wanted, all that have a module in sources, the newest first.
func choose(sources, wanted string) ([]string, error) {
	modules, err := filepath.Glob(filepath.Join(sources, "*", "go.mod"))
	if err != nil {
		return nil, err
	}
	var known []string
	for _, module := range modules {
		known = append(known, filepath.Base(filepath.Dir(module)))
	}
	slices.SortFunc(known, func(a, b string) int { return slices.Compare(numbers(b), numbers(a)) })
	switch {
	case len(known) == 0:
		return nil, fmt.Errorf("%s holds no module", sources)
	case wanted == "":
		return known, nil
	case !slices.Contains(known, wanted):
		return nil, fmt.Errorf("%s=%s: no control plane of that minor is offered: use one of %s, or leave it unset for the newest",
			MinorVariable, wanted, strings.Join(known, ", "))
	}
	return []string{wanted}, nil
}

// numbers returns the numbers in a minor's name; other parts count as 0.
func numbers(minor string) []int {
	var all []int
	for part := range strings.SplitSeq(minor, ".") {
		number, _ := strconv.Atoi(part)
		all = append(all, number)
	}
	return all
}

// firstServed returns the path of the binary of the first minor whose modules
// can be downloaded, or that is built already.
func firstServed(ctx context.Context, log io.Writer, sources string, minors []string, binDir string, tools toolchain) (string, error) {
	var failed []error
	for i, minor := range minors {
		path, err := buildOnce(ctx, log, filepath.Join(sources, minor), binDir, tools)
		refused, ok := errors.AsType[*refusedError](err)
		if !ok {
			return path, err
		}
		failed = append(failed, err)
		if i+1 < len(minors) {
			fmt.Fprintf(log, "controlplane: Kubernetes %s cannot be downloaded (%s), so %s is tried\n", minor, refused, minors[i+1])
		}
	}
	return "", fmt.Errorf("%w\nif this machine reaches the module proxy, pick another minor by %s or name a built binary in %s",
		errors.Join(failed...), MinorVariable, BinaryVariable)
}

// refusedError means that modules could not be downloaded, which says nothing
// about whether they would compile.
type refusedError struct {
	// module is the first of them, as path@version, and reason the go command's
	// message.
	module, reason string
	count          int
}

func (e *refusedError) Error() string {
	if e.count > 1 {
		return fmt.Sprintf("%d modules, such as %s: %s", e.count, e.module, e.reason)
	}
	return e.module + ": " + e.reason
}

// toolchain is what a build needs.
type toolchain struct {
	// fetch downloads what the module in source needs to be compiled. If that
	// is what fails, then the error is a refusedError.
	fetch func(ctx context.Context, source string) error
	// compile compiles the module in source, of that Kubernetes version, into
	// target.
	compile func(ctx context.Context, source, version, target string) error
}

// goCommand is the toolchain of the PATH.
var goCommand = toolchain{fetch: goFetch, compile: goBuild}

// buildOnce returns the path of the built binary in binDir, which it builds if
// there is none that fits the sources. The name of their directory is the
// minor.
func buildOnce(ctx context.Context, log io.Writer, source, binDir string, tools toolchain) (string, error) {
	wanted, version, err := sourceKey(source)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(binDir, 0o755); err != nil {
		return "", err
	}
	name := "controlplane-" + filepath.Base(source)
	path := filepath.Join(binDir, name)
	lock, err := waitLock(ctx, path+".lock", func() {
		fmt.Fprintf(log, "controlplane: waiting for another process that builds bin/%s\n", name)
	})
	if err != nil {
		return "", err
	}
	defer lock.unlock()

	// The key is written last and removed first, so that an interrupted build
	// is repeated.
	keyPath := path + ".key"
	if built, err := os.ReadFile(keyPath); err == nil && string(built) == wanted {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	fmt.Fprintf(log, "controlplane: building etcd and Kubernetes %s into bin/%s: usually 5 minutes the first time, 15 seconds once compiled\n", version, name)
	if err := tools.fetch(ctx, source); err != nil {
		return "", fmt.Errorf("download what %s needs: %w", source, err)
	}
	if err := os.Remove(keyPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	// A program that still runs from the old file keeps it, since the new file
	// takes its name by a rename.
	target := path + ".new"
	if err := tools.compile(ctx, source, version, target); err != nil {
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

// sourceKey returns a digest of all that decides what comes out of a build, and
// the version of Kubernetes that goes in.
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
	fmt.Fprintln(digest, buildArguments(version, "", "."))
	return hex.EncodeToString(digest.Sum(nil)), version, nil
}

// kubernetesVersion returns the version of k8s.io/kubernetes that a go.mod
// requires, such as v1.36.1.
func kubernetesVersion(gomod []byte) (string, error) {
	match := regexp.MustCompile(`(?m)^(?:require)?\s+k8s\.io/kubernetes (v\d+\.\d+\.\d+\S*)`).FindSubmatch(gomod)
	if match == nil {
		return "", errors.New("no version of k8s.io/kubernetes is required")
	}
	return string(match[1]), nil
}

// buildArguments returns the go command's arguments.
func buildArguments(version, target, packagePath string) []string {
	return []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", LinkerFlags(version), "-o", target, packagePath}
}

// LinkerFlags returns the linker's flags for a program of Kubernetes of a version such as
// v1.36.1. Without them the API server calls itself v0.0.0-master+$Format..., which clients
// that parse it choke on.
func LinkerFlags(version string) string {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s",
		"k8s.io/component-base/version.", version, parts[0], parts[1])
}

// goBuild compiles.
func goBuild(ctx context.Context, source, version, target string) error {
	_, err := RunGo(ctx, source, buildArguments(version, target, ".")...)
	return err
}

// goFetch downloads exactly what compiling needs.
func goFetch(ctx context.Context, source string) error {
	// To list packages with what they import, the go command needs their
	// sources, yet compiles none of them.
	_, listing := RunGo(ctx, source, "list", "-deps", ".")
	if listing == nil || ctx.Err() != nil {
		return listing
	}
	// That output is for people. A request for the archives themselves also
	// answers programs.
	output, err := RunGo(ctx, source, "mod", "download", "-json")
	if err == nil || ctx.Err() != nil {
		return listing
	}
	if refused := refusals(output); refused != nil {
		return refused
	}
	return listing
}

// refusals reads the answer of go mod download -json, and is nil if something
// other than a download failed.
func refusals(answer []byte) *refusedError {
	var first *refusedError
	for decoder := json.NewDecoder(bytes.NewReader(answer)); ; {
		var module struct{ Path, Version, Error string }
		if err := decoder.Decode(&module); err != nil {
			return first
		}
		switch {
		case module.Error == "":
		case strings.Contains(module.Error, "SECURITY ERROR"):
			// It was downloaded, and differs from what go.sum records. That
			// must not go unnoticed.
			return nil
		case first == nil:
			name, reason := module.Path+"@"+module.Version, strings.Join(strings.Fields(module.Error), " ")
			first = &refusedError{module: name, reason: strings.TrimPrefix(reason, name+": "), count: 1}
		default:
			first.count++
		}
	}
}

// RunGo runs the go command of the PATH on the module in source and returns
// its standard output.
func RunGo(ctx context.Context, source string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Dir = source
	// GOFLAGS and a workspace may well be meant for the module around this one.
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off",
		"GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	var output, complaint bytes.Buffer
	command.Stdout, command.Stderr = &output, &complaint
	// The signal goes to the compilers, too. An interrupted go command removes
	// its temporary files; a killed one leaves gigabytes.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = 10 * time.Second
	err := command.Run()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("go %s in %s: %w", arguments[0], source, ctx.Err())
	case errors.Is(err, exec.ErrNotFound):
		err = fmt.Errorf("go %s in %s: %w: install Go or name a built binary in %s", arguments[0], source, err, BinaryVariable)
	case err != nil:
		text := complaint.Bytes()
		err = fmt.Errorf("go %s in %s: %w:\n%s", arguments[0], source, err, bytes.TrimSpace(text[max(0, len(text)-logTailBytes):]))
	}
	return output.Bytes(), err
}
