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
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
)

// The images. Nothing serves them, so pods must not ask for imagePullPolicy Always.
const (
	// ProgramImage is this repository's program, as a release has it.
	ProgramImage = "images.example/standalone-cinder:e2e"
	// PreviousImage is an older build of it, from which a test upgrades.
	PreviousImage = "images.example/standalone-cinder:previous"
	// WorkloadImage is the program in workload, which also keeps the namespaces of
	// every pod.
	WorkloadImage = "images.example/workload:e2e"
)

// Image describes an image for the nodes.
type Image struct {
	Name string
	// Files are paths of this machine by paths of the image, without a leading slash.
	// Executable bits stay.
	Files map[string]string
	// Links are targets of symbolic links by their paths, likewise.
	Links map[string]string
	// User, Entrypoint and Arguments are what a pod may override.
	User                  string
	Entrypoint, Arguments []string
}

// programs builds the program and the workload in a directory. root is that of the repository.
func programs(ctx context.Context, root, directory string) ([]Image, error) {
	var images []Image
	for _, of := range []struct {
		image, program, packagePath, argument string
	}{
		{ProgramImage, "standalone-cinder", ".", "run"},
		{WorkloadImage, "workload", "./test/e2e/kubelet/workload", "pause"},
	} {
		binary := filepath.Join(directory, of.program)
		build := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags=-s -w", "-o", binary, of.packagePath)
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if output, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w: %s", of.program, err, output)
		}
		images = append(images, imageOf(of.image, of.program, binary, of.argument))
	}
	return images, nil
}

// Previous returns the image of an older build.
func Previous(binary string) Image {
	return imageOf(PreviousImage, "standalone-cinder", binary, "run")
}

func imageOf(name, program, binary, argument string) Image {
	return Image{
		Name: name, Files: map[string]string{program: binary}, User: "65532:65532",
		Entrypoint: []string{"/" + program}, Arguments: []string{argument},
	}
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

// layer returns the files of an image, and a directory for everybody's temporary ones.
func (i Image) layer() ([]byte, error) {
	files := []file{{name: "tmp/", mode: 0o1777}}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		content, err := os.ReadFile(i.Files[name])
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: name, content: content, mode: 0o755})
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		files = append(files, file{name: name, link: i.Links[name], mode: 0o777})
	}
	return tarball(files...)
}

// archive returns an OCI layout of the image.
func (i Image) archive() ([]byte, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	files := []file{{name: "oci-layout", content: []byte(`{"imageLayoutVersion": "1.0.0"}`), mode: 0o644}}
	blob := func(mediaType string, content []byte) descriptor {
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		files = append(files, file{name: path.Join("blobs/sha256", digest), content: content, mode: 0o644})
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: len(content)}
	}
	document := func(mediaType string, content any) (descriptor, error) {
		encoded, err := json.Marshal(content)
		return blob(mediaType, encoded), err
	}
	layers := blob(mediaTypeLayer, layer)
	config, err := document(mediaTypeConfig, map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"User": i.User, "Entrypoint": i.Entrypoint, "Cmd": i.Arguments, "Env": []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"}},
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
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return nil, err
	}
	return tarball(append(files, file{name: "index.json", content: index, mode: 0o644})...)
}

// file is an entry of an archive: a symbolic link if link is not empty, and a directory if
// the name ends with a slash.
type file struct {
	name    string
	content []byte
	link    string
	mode    int64
}

func tarball(files ...file) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Linkname: f.link}
		if f.link != "" {
			header.Typeflag = tar.TypeSymlink
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.Copy(w, bytes.NewReader(f.content)); err != nil {
			return nil, err
		}
	}
	return archive.Bytes(), w.Close()
}
