package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const testVersion = "v0.9.0-rc.1"

// TestRelease builds two releases, from checkouts at different places, and reads
// back the first.
func TestRelease(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	s := source{directory: root, version: testVersion, commit: strings.Repeat("12", 20), time: time.Unix(1795341600, 0).UTC(), plugins: strings.Split(pluginPlatforms, ",")}
	out := t.TempDir()
	by, public := newSigner(t)
	if err := build(t.Context(), s, out, by); err != nil {
		t.Fatal(err)
	}
	elsewhere := s
	elsewhere.directory = copyOf(t, root)
	again := t.TempDir()
	if err := build(t.Context(), elsewhere, again, by); err != nil {
		t.Fatal(err)
	}

	t.Run("is reproducible", func(t *testing.T) {
		first, second := contents(t, out), contents(t, again)
		if len(first) < 23 {
			t.Errorf("a release has only %d files", len(first))
		}
		for _, name := range slices.Sorted(maps.Keys(first)) {
			if !bytes.Equal(first[name], second[name]) {
				t.Errorf("%s differs between two builds", name)
			}
			delete(second, name)
		}
		for name := range second {
			t.Errorf("only the second build has %s", name)
		}
	})
	t.Run("checksums", func(t *testing.T) { checkChecksums(t, out) })
	t.Run("signature", func(t *testing.T) { checkSignature(t, out, public) })
	t.Run("signature of the image", func(t *testing.T) { checkImageSignature(t, out, s.artifact("-image"), public) })
	for _, target := range s.targets() {
		binary := filepath.Join(out, s.binary(target))
		t.Run("archive of "+filepath.Base(binary), func(t *testing.T) { binary = checkArchive(t, binary, target) })
		t.Run("binary "+filepath.Base(binary), func(t *testing.T) { checkBinary(t, binary, target, s, root) })
		t.Run("SBOM of "+filepath.Base(binary), func(t *testing.T) { checkSBOM(t, binary, s) })
	}
	t.Run("registry", func(t *testing.T) { checkPush(t, out, s) })
	t.Run("krew", func(t *testing.T) { checkKrew(t, out, s) })
	t.Run("image", func(t *testing.T) { checkImage(t, out, s) })
	t.Run("chart", func(t *testing.T) { checkChart(t, out) })
}

// copyOf copies what a release is built from.
func copyOf(t *testing.T, root string) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "a longer path", "than before")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, name):
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(directory, name), 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(directory, name), content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return directory
}

// contents returns the files of a directory and of those below it.
func contents(t *testing.T, directory string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(directory), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files[path], err = os.ReadFile(filepath.Join(directory, path))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func checkChecksums(t *testing.T, out string) {
	text, err := os.ReadFile(filepath.Join(out, "checksums.txt"))
	if err != nil {
		t.Fatal(err)
	}
	listed := string(text)
	for name, content := range contents(t, out) {
		if strings.HasPrefix(name, "checksums.txt") || strings.HasSuffix(name, ".pub") || strings.Contains(name, ".cosign.") || strings.HasPrefix(name, imageDirectory+"/") {
			continue
		}
		line := fmt.Sprintf("%x  %s\n", sha256.Sum256(content), name)
		if !strings.Contains(listed, line) {
			t.Errorf("checksums.txt does not have %s", line)
		}
		listed = strings.Replace(listed, line, "", 1)
	}
	if listed != "" {
		t.Errorf("checksums.txt lists what does not exist:\n%s", listed)
	}
}

// The largest binaries. Either would grow by half if the linker could drop no methods, as
// with text/template.
const (
	largestProgram = 50 << 20
	largestPlugin  = 40 << 20
)

func checkBinary(t *testing.T, binary string, of target, s source, root string) {
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if largest := map[bool]int{true: largestPlugin, false: largestProgram}[of.program == plugin]; len(content) > largest {
		t.Errorf("%s has %d bytes, more than %d", of.program, len(content), largest)
	}
	if of.system == "linux" {
		file, err := elf.NewFile(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range file.Progs {
			if program.Type == elf.PT_INTERP {
				t.Error("the binary needs a dynamic linker")
			}
		}
	}
	toolchain, err := run(t.Context(), root, nil, "go", "env", "GOROOT", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range append(strings.Fields(string(toolchain)), root) {
		if bytes.Contains(content, []byte(place+"/")) {
			t.Errorf("the binary contains %s, a place of the machine that built it", place)
		}
	}
	if of.system == runtime.GOOS && of.architecture == runtime.GOARCH {
		checkPrintedVersion(t, binary, s)
	}
}

// checkPrintedVersion runs a binary of this machine's platform.
func checkPrintedVersion(t *testing.T, binary string, s source) {
	t.Helper()
	printed, err := exec.CommandContext(t.Context(), binary, "version").Output()
	want := fmt.Sprintf("standalone-cinder %s (commit %s, %s, linux/%s)\n", s.version, s.commit, runtime.Version(), runtime.GOARCH)
	if err != nil || string(printed) != want {
		t.Errorf("version printed %q, %v; want %q", printed, err, want)
	}
}

// checkArchive unpacks the archive of a binary, and returns where the binary is then, with its
// SBOM beside it.
func checkArchive(t *testing.T, binary string, of target) (unpacked string) {
	compressed, err := os.ReadFile(binary + ".tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	uncompressed, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, uncompressed)
	top := filepath.Base(binary) + "/"
	if of.program == program {
		want, err := os.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(files[top+program], want) {
			t.Error("the program in the archive is not the binary next to it")
		}
	}
	for name, text := range map[string]string{
		"LICENSE": "Apache License", "README.md": "# standalone-cinder",
		noticesName: "==== github.com/gophercloud/gophercloud/v2 ",
	} {
		if !bytes.Contains(files[top+name], []byte(text)) {
			t.Errorf("%s of the archive does not contain %q", name, text)
		}
	}
	for _, text := range []string{"==== The Go standard library: LICENSE", "==== github.com/inconshreveable/mousetrap "} {
		if !bytes.Contains(files[top+noticesName], []byte(text)) {
			t.Errorf("%s has no %q", noticesName, text)
		}
	}
	bill, err := os.ReadFile(binary + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	directory, err := os.MkdirTemp("", "release-")
	if err != nil {
		t.Fatal(err)
	}
	unpacked = filepath.Join(directory, filepath.Base(binary))
	for path, content := range map[string][]byte{unpacked: files[top+of.executable()], unpacked + ".spdx.json": bill} {
		if err := os.WriteFile(path, content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return unpacked
}

// checkPush pushes to a registry on this machine, and installs from there as far as Helm can
// without a cluster: the image has the digest of the release, and the chart names the image.
func checkPush(t *testing.T, out string, s source) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	place := strings.TrimPrefix(server.URL, "http://") + "/storage"
	if err := push(t.Context(), s, out, place); err != nil {
		t.Fatal(err)
	}
	digest, err := os.ReadFile(filepath.Join(out, s.artifact("-image.digest")))
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(place + "/" + program + ":" + s.version)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pushed.Digest(); err != nil || got.String() != strings.TrimSpace(string(digest)) {
		t.Errorf("the registry has the image %s (%v), want %s", got, err, digest)
	}
	if err := validate.Index(pushed); err != nil {
		t.Error(err)
	}
	rendered, err := runHelm(t.Context(), s, nil, "template", "oci://"+place+"/charts/"+program, "--version", strings.TrimPrefix(s.version, "v"), "--plain-http",
		"--set", "policy.existingConfigMap=policy", "--set", "image.repository="+place+"/"+program)
	if err != nil {
		t.Fatal(err)
	}
	if want := "image: " + place + "/" + program + ":" + s.version + "\n"; !strings.Contains(string(rendered), want) {
		t.Errorf("the chart from the registry has no line %q", want)
	}
}

// krew is the plugin manager that reads the manifest.
const krew = "sigs.k8s.io/krew/cmd/krew@v0.4.3"

// checkKrew installs the plugin with krew, from the archive of this platform.
func checkKrew(t *testing.T, out string, s source) {
	root := t.TempDir()
	archive := s.binary(target{program: plugin, system: runtime.GOOS, architecture: runtime.GOARCH}) + ".tar.gz"
	_, err := run(t.Context(), out, []string{"KREW_ROOT=" + root, "GOFLAGS=-mod=mod", "GOWORK=off"},
		"go", "run", krew, "install", "--manifest", krewManifest, "--archive", archive)
	if err != nil {
		t.Fatal(err)
	}
	checkPrintedVersion(t, filepath.Join(root, "bin", plugin), s)
}

// untar reads an archive. Each file must belong to root and be writable by
// nobody else.
func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for reader := tar.NewReader(r); ; {
		header, err := reader.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Uid != 0 || header.Gid != 0 || header.Mode&0o022 != 0 {
			t.Errorf("%s belongs to %d:%d with mode %o", header.Name, header.Uid, header.Gid, header.Mode)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

func checkChart(t *testing.T, out string) {
	file, err := os.Open(filepath.Join(out, source{version: testVersion}.chart()))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	uncompressed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, uncompressed)
	for _, line := range []string{"version: 0.9.0-rc.1", "appVersion: 0.9.0-rc.1"} {
		if chart := files[program+"/Chart.yaml"]; !slices.Contains(strings.Split(string(chart), "\n"), line) {
			t.Errorf("Chart.yaml has no line %q:\n%s", line, chart)
		}
	}
	// The chart must pull the image from the repository that the image is named
	// for.
	if values := files[program+"/values.yaml"]; !bytes.Contains(values, []byte("\n  repository: "+repository+"\n")) {
		t.Errorf("the chart's image is not from %s", repository)
	}
}
