package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// krewManifest is the name of the file with which krew, kubectl's manager of plugins,
// installs the plugin: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
const krewManifest = "cinder.yaml"

// writeKrewManifest describes the plugin's archives for krew.
func writeKrewManifest(s source, out string, archives map[target]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: cinder
spec:
  version: %s
  homepage: %s
  shortDescription: Ask the Cinder provisioner about claims and quotas
  description: |
    Says why a claim, pod, PersistentVolume or snapshot of standalone-cinder waits, and
    what a tenant uses of its quotas; checks, explains and applies its policy; imports,
    moves and lists its volumes.
  platforms:
`, s.version, homepage)
	for _, t := range s.targets() {
		if t.program != plugin {
			continue
		}
		path := archives[t]
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name := filepath.Base(path)
		fmt.Fprintf(&b, `    - selector:
        matchLabels: {os: %s, arch: %s}
      uri: %s/releases/download/%s/%s
      sha256: %x
      files:
        - {from: "*/*", to: .}
      bin: %s
`, t.system, t.architecture, homepage, s.version, name, sha256.Sum256(content), t.executable())
	}
	return os.WriteFile(filepath.Join(out, krewManifest), []byte(b.String()), 0o644)
}
