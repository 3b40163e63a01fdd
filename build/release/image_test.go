package main

import (
	"bytes"
	"crypto/x509"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	layers "github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// checkImage loads the archive in the ways that other tools do.
func checkImage(t *testing.T, out string, s source) {
	archive, err := os.Open(filepath.Join(out, s.artifact("-image.tar")))
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	unpacked := t.TempDir()
	for name, content := range untar(t, archive) {
		path := filepath.Join(unpacked, name)
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		if want, err := os.ReadFile(filepath.Join(out, imageDirectory, name)); !strings.HasSuffix(name, "/") && (err != nil || !bytes.Equal(want, content)) {
			t.Errorf("%s of the archive is not that of the directory: %v", name, err)
		}
	}

	top, err := layout.ImageIndexFromPath(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	// crane pushes a layout with one entry; skopeo and containerd find the entry and
	// its name by annotations.
	if len(entries.Manifests) != 1 || !entries.Manifests[0].MediaType.IsIndex() {
		t.Fatalf("index.json lists %v, expected one index", entries.Manifests)
	}
	entry := entries.Manifests[0]
	if digest, err := os.ReadFile(filepath.Join(out, s.artifact("-image.digest"))); err != nil || string(digest) != entry.Digest.String()+"\n" {
		t.Errorf("the digest is %q (%v), want %s", digest, err, entry.Digest)
	}
	if entry.Annotations["org.opencontainers.image.ref.name"] != testVersion || entry.Annotations["io.containerd.image.name"] != repository+":"+testVersion {
		t.Errorf("index.json names the image %v", entry.Annotations)
	}
	index, err := top.ImageIndex(entry.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != len(platforms) {
		t.Fatalf("the image has %d platforms, want %v", len(manifest.Manifests), platforms)
	}
	for i, architecture := range platforms {
		described := manifest.Manifests[i]
		if described.Platform == nil || described.Platform.String() != "linux/"+architecture {
			t.Errorf("platform %d is %v, want linux/%s", i, described.Platform, architecture)
		}
		image, err := index.Image(described.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkPlatform(t, image, architecture, out, s)
		checkForDocker(t, out, s, architecture, image)
	}
}

// checkPlatform reads the configuration and the layer of one platform.
func checkPlatform(t *testing.T, image v1.Image, architecture, out string, s source) {
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != architecture || !config.Created.Equal(s.time) {
		t.Errorf("the configuration is of %s/%s, created at %s", config.OS, config.Architecture, config.Created)
	}
	if config.Config.User != "65532:65532" || !slices.Equal(config.Config.Entrypoint, []string{"/standalone-cinder"}) ||
		!slices.Equal(config.Config.Cmd, []string{"run", "--policy=/etc/standalone-cinder/policy/policy.yaml"}) {
		t.Errorf("user %q, entry point %q, arguments %q", config.Config.User, config.Config.Entrypoint, config.Config.Cmd)
	}
	for name, want := range map[string]string{
		"title": "standalone-cinder", "licenses": "Apache-2.0", "version": testVersion, "revision": s.commit, "created": "2026-11-22T10:00:00Z",
		"source": "https://github.com/standalone-cinder/standalone-cinder", "description": description,
	} {
		if got := config.Config.Labels["org.opencontainers.image."+name]; got != want {
			t.Errorf("label %s is %q, want %q", name, got, want)
		}
	}

	all, err := image.Layers()
	if err != nil || len(all) != 1 {
		t.Fatalf("%d layers, want 1: %v", len(all), err)
	}
	uncompressed, err := all[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer uncompressed.Close()
	files := untar(t, uncompressed)
	binary, err := os.ReadFile(filepath.Join(out, s.artifact("-linux-"+architecture)))
	if err != nil || !bytes.Equal(files["standalone-cinder"], binary) {
		t.Errorf("the program of the image is not the binary of the release: %v", err)
	}
	if architecture == runtime.GOARCH {
		extracted := filepath.Join(t.TempDir(), "standalone-cinder")
		if err := os.WriteFile(extracted, files["standalone-cinder"], 0o755); err != nil {
			t.Fatal(err)
		}
		checkPrintedVersion(t, extracted, s)
	}
	if !bytes.Contains(files["LICENSE"], []byte("Apache License")) || len(files[noticesName]) == 0 {
		t.Error("the image lacks LICENSE or " + noticesName)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(files["etc/ssl/certs/ca-certificates.crt"]) {
		t.Error("the image has no certificate authorities")
	}
	if n := bytes.Count(files["etc/ssl/certs/ca-certificates.crt"], []byte("BEGIN CERTIFICATE")); n < 100 {
		t.Errorf("the image trusts only %d certificate authorities", n)
	}
}

// checkForDocker loads a platform by manifest.json, as Docker's classic image
// store does.
func checkForDocker(t *testing.T, out string, s source, architecture string, want v1.Image) {
	archive := filepath.Join(out, s.artifact("-image.tar"))
	manifest, err := layers.LoadManifest(func() (io.ReadCloser, error) { return os.Open(archive) })
	if err != nil {
		t.Fatal(err)
	}
	tag := repository + ":" + testVersion + "-" + architecture
	found := slices.IndexFunc(manifest, func(d layers.Descriptor) bool { return slices.Equal(d.RepoTags, []string{tag}) })
	if found < 0 {
		t.Fatalf("manifest.json lists no %s: %+v", tag, manifest)
	}
	digest, err := want.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest[found].Config; got != "blobs/sha256/"+digest.Hex {
		t.Errorf("%s has the configuration %s, want that of %s", tag, got, architecture)
	}
	loaded, err := want.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := loaded[0].Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got := manifest[found].Layers; !slices.Equal(got, []string{"blobs/sha256/" + layer.Hex}) {
		t.Errorf("%s has the layers %v, want %s", tag, got, layer.Hex)
	}
}

// TestDockerfileBuildsTheSameImage: both ways to an image give the same
// configuration and files.
func TestDockerfileBuildsTheSameImage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, final, found := strings.Cut(string(text), "\nFROM scratch\n")
	if !found {
		t.Fatal("the last stage does not begin with FROM scratch")
	}
	for _, line := range []string{
		"USER " + user,
		`ENTRYPOINT ["/` + program + `"]`,
		`CMD ["` + strings.Join(strings.Fields(arguments), `", "`) + `"]`,
	} {
		if !slices.Contains(strings.Split(final, "\n"), line) {
			t.Errorf("the Dockerfile has no line %s", line)
		}
	}
	for _, file := range []string{"/" + program, "/LICENSE", "/" + authorities} {
		if !regexp.MustCompile(`(?m)^COPY .* ` + file + `$`).MatchString(final) {
			t.Errorf("the Dockerfile copies no %s", file)
		}
	}
	labels := source{version: `${VERSION}`, commit: `${COMMIT}`}.labels()
	for name, value := range labels {
		if name != labelsPrefix+"created" && !strings.Contains(final, name+`="`+value+`"`) {
			t.Errorf("the Dockerfile has no label %s=%q", name, value)
		}
	}
}

// TestDockerfileGetsEverySource: .dockerignore names the directories that docker
// sends, and a new one is easily forgotten.
func TestDockerfileGetsEverySource(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := run(t.Context(), root, []string{"GOFLAGS=-mod=readonly", "GOWORK=off"},
		"go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", ".")
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(listed))
	if len(packages) < 20 {
		t.Fatalf("the program has only the packages %v", packages)
	}
	for _, path := range packages {
		below, _ := strings.CutPrefix(path, "github.com/standalone-cinder/standalone-cinder")
		if below == "" {
			continue
		}
		directory := strings.Split(below, "/")[1]
		if !slices.Contains(strings.Split(string(ignored), "\n"), "!"+directory) {
			t.Errorf(".dockerignore keeps %s from the build", directory)
		}
	}
}
