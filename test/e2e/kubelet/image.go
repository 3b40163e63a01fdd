package kubelet

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
)

// The images. Nothing serves them, so pods must ask for imagePullPolicy Never.
const (
	// ProgramImage is this repository's program, as a release has it.
	ProgramImage = "images.example/standalone-cinder:e2e"
	// WorkloadImage is the program in workload, which also keeps the namespaces of
	// every pod.
	WorkloadImage = "images.example/workload:e2e"
)

// images builds both images as archives in a directory. root is that of the repository.
func images(ctx context.Context, root, directory string) error {
	for _, of := range []struct {
		image, program, packagePath, user string
		arguments                         []string
	}{
		{ProgramImage, "standalone-cinder", ".", "65532:65532", []string{"run"}},
		{WorkloadImage, "workload", "./test/e2e/kubelet/workload", "65532:65532", []string{"pause"}},
	} {
		scratch, err := os.MkdirTemp("", "standalone-cinder-image-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(scratch) }()
		binary := filepath.Join(scratch, of.program)
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", binary, of.packagePath)
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", of.program, err, output)
		}
		archive, err := archiveOf(of.image, binary, of.user, of.arguments)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(directory, of.program+".tar"), archive, 0o600); err != nil {
			return err
		}
	}
	return nil
}

const (
	mediaTypeManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaTypeConfig   = "application/vnd.oci.image.config.v1+json"
	mediaTypeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// descriptor is OCI's reference to a blob.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// archiveOf returns an OCI layout of one image with one file.
func archiveOf(image, binary, user string, arguments []string) ([]byte, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(binary)
	layer, err := tarball(file{name, program, 0o755})
	if err != nil {
		return nil, err
	}
	files := []file{{"oci-layout", []byte(`{"imageLayoutVersion": "1.0.0"}`), 0o644}}
	blob := func(mediaType string, content []byte) descriptor {
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		files = append(files, file{path.Join("blobs/sha256", digest), content, 0o644})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
	}
	document := func(mediaType string, content any) (descriptor, error) {
		encoded, err := json.Marshal(content)
		return blob(mediaType, encoded), err
	}
	layers := blob(mediaTypeLayer, layer)
	config, err := document(mediaTypeConfig, map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"User": user, "Entrypoint": []string{"/" + name}, "Cmd": arguments},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layers.Digest}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := document(mediaTypeManifest, map[string]any{
		"schemaVersion": 2, "mediaType": mediaTypeManifest, "config": config, "layers": []descriptor{layers},
	})
	if err != nil {
		return nil, err
	}
	manifest.Annotations = map[string]string{"io.containerd.image.name": image}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return nil, err
	}
	return tarball(append(files, file{"index.json", index, 0o644})...)
}

type file struct {
	name    string
	content []byte
	mode    int64
}

func tarball(files ...file) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content))}); err != nil {
			return nil, err
		}
		if _, err := io.Copy(w, bytes.NewReader(f.content)); err != nil {
			return nil, err
		}
	}
	return archive.Bytes(), w.Close()
}
