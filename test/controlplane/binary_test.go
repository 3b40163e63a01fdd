package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// moduleSource returns a directory that looks like the nested module of a
// minor.
func moduleSource(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "1.36")
	writeModule(t, dir, "v1.36.1")
	return dir
}

func writeModule(t *testing.T, dir, version string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"go.mod":  "module example.org/binaries\n\nrequire (\n\tk8s.io/kubernetes " + version + "\n)\n",
		"go.sum":  "sums\n",
		"main.go": "package main\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// builder is a toolchain that counts its builds, each of which makes a file
// that says which one it was.
type builder struct {
	count atomic.Int32
	err   error
}

func (b *builder) tools() toolchain { return toolchain{fetch: fetched, compile: b.compile} }

// fetched finds everything downloaded.
func fetched(context.Context, string) error { return nil }

func (b *builder) compile(_ context.Context, _, version, target string) error {
	number := b.count.Add(1)
	if b.err != nil {
		return b.err
	}
	return os.WriteFile(target, []byte(version+" build "+fmt.Sprint(number)), 0o700)
}

func mustBuild(t *testing.T, source, binDir string, b *builder) string {
	t.Helper()
	path, err := buildOnce(t.Context(), &bytes.Buffer{}, source, binDir, b.tools())
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestBinaryIsBuiltAnewOnlyWhenItsSourcesChange(t *testing.T) {
	for _, changed := range []string{"go.mod", "go.sum", "main.go"} {
		t.Run(changed, func(t *testing.T) {
			source, binDir, b := moduleSource(t), filepath.Join(t.TempDir(), "bin"), &builder{}
			for range 2 {
				if got, want := mustBuild(t, source, binDir, b), "v1.36.1 build 1"; got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
			}
			file := filepath.Join(source, changed)
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, append(content, "// changed\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, want := mustBuild(t, source, binDir, b), "v1.36.1 build 2"; got != want {
				t.Errorf("after a change: got %q, want %q", got, want)
			}
		})
	}
}

func TestBinaryThatIsMissingIsBuiltAnew(t *testing.T) {
	source, binDir, b := moduleSource(t), t.TempDir(), &builder{}
	mustBuild(t, source, binDir, b)
	if err := os.Remove(filepath.Join(binDir, "controlplane-1.36")); err != nil {
		t.Fatal(err)
	}
	if got, want := mustBuild(t, source, binDir, b), "v1.36.1 build 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBuildThatFailsIsMadeAgain(t *testing.T) {
	source, binDir := moduleSource(t), t.TempDir()
	mustBuild(t, source, binDir, &builder{})
	if err := os.WriteFile(filepath.Join(source, "main.go"), []byte("package broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &builder{err: errors.New("does not compile")}
	for want := int32(1); want <= 2; want++ {
		_, err := buildOnce(t.Context(), &bytes.Buffer{}, source, binDir, b.tools())
		if !errors.Is(err, b.err) {
			t.Errorf("got %v, want %v", err, b.err)
		}
		if got := b.count.Load(); got != want {
			t.Errorf("built %d times, want %d", got, want)
		}
	}
	// The earlier sources do not count as built either, since by then it is not
	// known what the file contains.
	b.err = nil
	if got, want := mustBuild(t, source, binDir, b), "v1.36.1 build 3"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProcessesThatNeedTheBinaryAtOnceBuildItOnce(t *testing.T) {
	source, binDir := moduleSource(t), t.TempDir()
	var builds, inside atomic.Int32
	gate := make(chan struct{})
	compile := func(_ context.Context, _, _, target string) error {
		builds.Add(1)
		if inside.Add(1) > 1 {
			t.Error("two builds at once")
		}
		defer inside.Add(-1)
		<-gate
		return os.WriteFile(target, nil, 0o700)
	}
	const others = 3
	waiting := make(chan struct{}, others)
	var group sync.WaitGroup
	for range others + 1 {
		group.Go(func() {
			_, err := buildOnce(t.Context(), writerFunc(func(line string) {
				if strings.Contains(line, "waiting for another process") {
					waiting <- struct{}{}
				}
			}), source, binDir, toolchain{fetch: fetched, compile: compile})
			if err != nil {
				t.Error(err)
			}
		})
	}
	// Locks of two open files exclude each other whether or not one process
	// holds both, so goroutines stand for processes here.
	for range others {
		<-waiting
	}
	close(gate)
	group.Wait()
	if got := builds.Load(); got != 1 {
		t.Errorf("built %d times, want once", got)
	}
}

type writerFunc func(line string)

func (f writerFunc) Write(p []byte) (int, error) {
	f(string(p))
	return len(p), nil
}

func TestWaitForAnotherBuildEndsWithItsContext(t *testing.T) {
	source, binDir := moduleSource(t), t.TempDir()
	lock, taken, err := tryLock(filepath.Join(binDir, "controlplane-1.36.lock"))
	if err != nil || !taken {
		t.Fatalf("lock: %v, %v", taken, err)
	}
	defer lock.unlock()
	ctx, cancel := context.WithCancel(t.Context())
	_, err = buildOnce(ctx, writerFunc(func(string) { cancel() }), source, binDir, (&builder{}).tools())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestBuildSaysWhatItDoesInOneLine(t *testing.T) {
	var log bytes.Buffer
	for range 2 {
		if _, err := buildOnce(t.Context(), &log, moduleSource(t), t.TempDir(), (&builder{}).tools()); err != nil {
			t.Fatal(err)
		}
		const want = "controlplane: building etcd and Kubernetes v1.36.1 into bin/controlplane-1.36: usually 5 minutes the first time, 15 seconds once compiled\n"
		if log.String() != want {
			t.Errorf("got %q, want %q", &log, want)
		}
		log.Reset()
	}
}

func TestPrebuiltBinaryIsUsedAsItIs(t *testing.T) {
	dir := t.TempDir()
	program, plain, missing := filepath.Join(dir, "program"), filepath.Join(dir, "plain"), filepath.Join(dir, "missing")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, path, wantErr string }{
		{"program", program, ""},
		{"not executable", plain, "CONTROLPLANE_BINARY: " + plain + " is not an executable file"},
		{"directory", dir, "CONTROLPLANE_BINARY: " + dir + " is not an executable file"},
		{"missing", missing, "CONTROLPLANE_BINARY: stat " + missing + ": no such file or directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv(BinaryVariable, test.path)
			path, err := Binary(t.Context(), writerFunc(func(line string) { t.Errorf("logged %q", line) }))
			var message string
			if err != nil {
				message = err.Error()
			}
			if message != test.wantErr {
				t.Errorf("got %q, want %q", message, test.wantErr)
			}
			if test.wantErr == "" && path != test.path {
				t.Errorf("got %s, want %s", path, test.path)
			}
		})
	}
}

func TestOutsideTheRepositoryTheErrorNamesTheRemedy(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv(BinaryVariable, "")
	_, err := Binary(t.Context(), &bytes.Buffer{})
	want := "control plane's binary: no directory from " + dir +
		" upwards holds test/controlplane/binaries: run inside the repository or name a built binary in CONTROLPLANE_BINARY"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestBuildFailureCarriesTheCompilersWords(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":  "module example.org/binaries\n\ngo 1.26\n",
		"main.go": "package main\n\nfunc main() { undefinedHere() }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := goBuild(t.Context(), dir, "v1.36.1", filepath.Join(dir, "out"))
	if err == nil || !strings.Contains(err.Error(), "undefined: undefinedHere") {
		t.Errorf("got %v", err)
	}
}

func TestKubernetesVersionIsReadFromTheRequirement(t *testing.T) {
	for _, test := range []struct{ name, gomod, want string }{
		{"in a block", "require (\n\tk8s.io/component-base v0.36.1\n\tk8s.io/kubernetes v1.36.1\n)\n", "v1.36.1"},
		{"on a line", "require k8s.io/kubernetes v1.37.0-rc.1\n", "v1.37.0-rc.1"},
		{"a replacement is no requirement", "replace k8s.io/kubernetes => k8s.io/kubernetes v1.36.1\n", ""},
		{"nothing", "module x\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := kubernetesVersion([]byte(test.gomod))
			if got != test.want || (err != nil) != (test.want == "") {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

// TestNestedModulesTakeAllOfKubernetesFromOneRelease: a staging module left at
// another release compiles more often than not, and then misbehaves.
func TestNestedModulesTakeAllOfKubernetesFromOneRelease(t *testing.T) {
	minors, err := choose("binaries", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, minor := range minors {
		t.Run(minor, func(t *testing.T) { checkModule(t, minor) })
	}
}

func checkModule(t *testing.T, minor string) {
	gomod, err := os.ReadFile(filepath.Join("binaries", minor, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version, err := kubernetesVersion(gomod)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version, "v"+minor+".") {
		t.Errorf("the module of %s requires Kubernetes %s", minor, version)
	}
	staging := strings.Replace(version, "v1.", "v0.", 1)
	replacements := regexp.MustCompile(`(?m)^\s+(k8s\.io/\S+) => (\S+) (\S+)$`).FindAllStringSubmatch(string(gomod), -1)
	replaced := map[string]bool{}
	for _, r := range replacements {
		if r[1] != r[2] || r[3] != staging {
			t.Errorf("%s is replaced by %s %s, want itself at %s", r[1], r[2], r[3], staging)
		}
		replaced[r[1]] = true
	}
	// Those modules under k8s.io that have releases of their own.
	own := map[string]bool{"k8s.io/kubernetes": true, "k8s.io/klog/v2": true, "k8s.io/utils": true, "k8s.io/kube-openapi": true, "k8s.io/system-validators": true, "k8s.io/gengo/v2": true}
	for _, r := range regexp.MustCompile(`(?m)^\s+(k8s\.io/\S+) v`).FindAllStringSubmatch(string(gomod), -1) {
		if !own[r[1]] && !replaced[r[1]] {
			t.Errorf("%s is required but not replaced", r[1])
		}
	}
	if len(replaced) == 0 {
		t.Error("no replacement found")
	}
}
