package kubelet

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnArchiveIsAnImage(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "workload")
	if err := os.WriteFile(binary, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	archive, err := Image{
		Name: WorkloadImage, Files: map[string]string{"bin/workload": binary}, Links: map[string]string{"bin/sh": "workload"},
		Entrypoint: []string{"/bin/workload"}, Arguments: []string{"pause"},
	}.archive()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(files[header.Name])
		if digest, isBlob := strings.CutPrefix(header.Name, "blobs/sha256/"); isBlob && digest != hex.EncodeToString(sum[:]) {
			t.Errorf("%s is not what its name says", header.Name)
		}
	}
	read := func(name string, into any) {
		t.Helper()
		if err := json.Unmarshal(files[name], into); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	blob := func(d descriptor) string { return path.Join("blobs/sha256", strings.TrimPrefix(d.Digest, "sha256:")) }
	var index struct{ Manifests []descriptor }
	read("index.json", &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != WorkloadImage {
		t.Fatalf("the index is %+v", index)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(blob(index.Manifests[0]), &manifest)
	var config struct {
		Config struct{ Entrypoint, Cmd []string }
	}
	read(blob(manifest.Config), &config)
	if got := strings.Join(append(config.Config.Entrypoint, config.Config.Cmd...), " "); got != "/bin/workload pause" {
		t.Errorf("the image runs %q", got)
	}
	layer := tar.NewReader(bytes.NewReader(files[blob(manifest.Layers[0])]))
	for _, want := range []string{"tmp/ 1777 ", "bin/workload 755 ", "bin/sh 777 workload"} {
		header, err := layer.Next()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%s %o %s", header.Name, header.Mode, header.Linkname); got != want {
			t.Errorf("the layer has %q, want %q", got, want)
		}
	}
}
