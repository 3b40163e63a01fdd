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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const testVersion = "v0.9.0-rc.1"

// TestRelease builds two releases, from checkouts at different places, and reads
// back the first.
func TestRelease(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	s := source{directory: root, version: testVersion, commit: strings.Repeat("12", 20), time: time.Unix(1795341600, 0).UTC()}
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
		if len(first) < 12 {
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
	for _, architecture := range platforms {
		binary := filepath.Join(out, s.artifact("-linux-"+architecture))
		t.Run("binary of "+architecture, func(t *testing.T) { checkBinary(t, binary, s, root) })
		t.Run("archive of "+architecture, func(t *testing.T) { checkArchive(t, binary) })
		t.Run("SBOM of "+architecture, func(t *testing.T) { checkSBOM(t, binary, s) })
	}
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

func checkBinary(t *testing.T, binary string, s source, root string) {
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, program := range file.Progs {
		if program.Type == elf.PT_INTERP {
			t.Error("the binary needs a dynamic linker")
		}
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
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
	if !strings.HasSuffix(binary, runtime.GOARCH) {
		return
	}
	checkPrintedVersion(t, binary, s)
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

func checkArchive(t *testing.T, binary string) {
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
	want, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(files[top+program], want) {
		t.Error("the program in the archive is not the binary next to it")
	}
	for name, text := range map[string]string{
		"LICENSE": "Apache License", "README.md": "# standalone-cinder",
		noticesName: "==== github.com/gophercloud/gophercloud/v2 ",
	} {
		if !bytes.Contains(files[top+name], []byte(text)) {
			t.Errorf("%s of the archive does not contain %q", name, text)
		}
	}
	if !bytes.Contains(files[top+noticesName], []byte("==== The Go standard library: LICENSE")) {
		t.Error("the license of Go is missing")
	}
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
	file, err := os.Open(filepath.Join(out, program+"-"+strings.TrimPrefix(testVersion, "v")+".tgz"))
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
