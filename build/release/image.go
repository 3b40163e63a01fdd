package main

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	layers "github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// The image, as the chart names it and the Dockerfile builds it.
const (
	repository   = "ghcr.io/standalone-cinder/standalone-cinder"
	user         = "65532:65532"
	authorities  = "etc/ssl/certs/ca-certificates.crt"
	arguments    = "run --policy=/etc/standalone-cinder/policy/policy.yaml"
	description  = "Cinder volumes for Kubernetes clusters that do not run on OpenStack"
	labelsPrefix = "org.opencontainers.image."
)

// writeImage writes the image of all platforms twice, as an OCI layout and as an archive
// of it, and its digest, by which a registry knows it.
func writeImage(s source, out string, binaries map[string]string, notices []byte) error {
	license, err := os.ReadFile(filepath.Join(s.directory, "LICENSE"))
	if err != nil {
		return err
	}
	directory := filepath.Join(out, imageDirectory)
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var docker []dockerImage
	for _, architecture := range platforms {
		binary, err := os.ReadFile(binaries[architecture])
		if err != nil {
			return err
		}
		image, err := newImage(s, architecture, []file{
			{name: "etc/", mode: 0o755}, {name: "etc/ssl/", mode: 0o755}, {name: "etc/ssl/certs/", mode: 0o755},
			{authorities, trustedAuthorities(), 0o644},
			{"LICENSE", license, 0o644}, {noticesName, notices, 0o644},
			{program, binary, 0o755},
		})
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
		described, err := describeForDocker(image, repository+":"+s.version+"-"+architecture)
		if err != nil {
			return err
		}
		docker = append(docker, described)
	}
	index = mutate.Annotations(index, s.labels()).(v1.ImageIndex)

	// The layout has one entry, so that no tool has to be told which one to take.
	path, err := layout.Write(directory, empty.Index)
	if err != nil {
		return err
	}
	// containerd names what it loads by its own annotation; other tools find a
	// tag by OCI's.
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		labelsPrefix + "ref.name":  s.version,
		"io.containerd.image.name": repository + ":" + s.version,
	})); err != nil {
		return err
	}
	list, err := json.Marshal(docker)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(directory, "manifest.json"), list, 0o644); err != nil {
		return err
	}
	archive, err := archiveOf(directory, s.time)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(out, s.artifact("-image.tar")), archive, 0o644),
		os.WriteFile(filepath.Join(out, s.artifact("-image.digest")), []byte(digest.String()+"\n"), 0o644),
	)
}

// newImage makes an image with one layer.
func newImage(s source, architecture string, files []file) (v1.Image, error) {
	content, err := tarball(files, s.time)
	if err != nil {
		return nil, err
	}
	layer, err := layers.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		layers.WithMediaType(types.OCILayer), layers.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: architecture, Created: v1.Time{Time: s.time}, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{User: user, Entrypoint: []string{"/" + program}, Cmd: strings.Fields(arguments), Labels: s.labels()},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer,
		History: v1.History{Created: v1.Time{Time: s.time}, CreatedBy: "make release VERSION=" + s.version}})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, s.labels()).(v1.Image), nil
}

// labels returns the labels of the configuration, which are also the
// annotations of the manifests.
func (s source) labels() map[string]string {
	labels := map[string]string{}
	for name, value := range map[string]string{
		"title": program, "description": description, "licenses": "Apache-2.0", "source": homepage, "url": homepage,
		"version": s.version, "revision": s.commit, "created": s.time.Format(time.RFC3339),
	} {
		labels[labelsPrefix+name] = value
	}
	return labels
}

// dockerImage is an entry of manifest.json. Docker's classic image store reads
// it instead of index.json. It holds one platform per name, so each platform
// has a name of its own here.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func describeForDocker(image v1.Image, tag string) (dockerImage, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return dockerImage{}, err
	}
	blob := func(d v1.Descriptor) string { return "blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex }
	described := dockerImage{Config: blob(manifest.Config), RepoTags: []string{tag}}
	for _, layer := range manifest.Layers {
		described.Layers = append(described.Layers, blob(layer))
	}
	return described, nil
}

// trustedAuthorities returns the roots of Mozilla's program, at the version in
// go.mod. A file of certificates cannot express the limits that the program puts
// on some of them, so those are left out; today there are none. They are a file and
// not linked in, because Go uses linked roots only where it finds no others: those of
// deploy/components/extra-ca would replace them.
func trustedAuthorities() []byte {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // writing to a Buffer cannot fail
		}
	}
	return b.Bytes()
}

// archiveOf archives the files of a directory, sorted by name.
func archiveOf(directory string, at time.Time) ([]byte, error) {
	var files []file
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == directory {
			return err
		}
		name, err := filepath.Rel(directory, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() {
			files = append(files, file{name: name + "/", mode: 0o755})
			return nil
		}
		content, err := os.ReadFile(path)
		files = append(files, file{name, content, 0o644})
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return tarball(files, at)
}
