package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdxlib"
)

// checkSBOM reads the document back, and compares it with the binary and with
// go.sum. The library checks the relationships; what else SPDX 2.3 demands is
// checked here.
func checkSBOM(t *testing.T, binary string, s source) {
	text, err := os.ReadFile(binary + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	document, err := json.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(document); err != nil {
		t.Error(err)
	}
	if document.SPDXVersion != "SPDX-2.3" || document.DataLicense != "CC0-1.0" || document.SPDXIdentifier != "DOCUMENT" ||
		!strings.HasPrefix(document.DocumentNamespace, "https://") || document.CreationInfo.Created != "2026-11-22T10:00:00Z" {
		t.Errorf("header %s, %s, %s, %s, %s", document.SPDXVersion, document.DataLicense, document.SPDXIdentifier, document.DocumentNamespace, document.CreationInfo.Created)
	}
	described, err := spdxlib.GetDescribedPackageIDs(document)
	if err != nil || len(described) != 1 {
		t.Fatalf("the document describes %v: %v", described, err)
	}

	packages := map[string]*spdx.Package{}
	identifier := regexp.MustCompile(`^[A-Za-z0-9.-]+$`)
	identifiers := map[string]bool{}
	for _, p := range document.Packages {
		id := string(p.PackageSPDXIdentifier)
		if !identifier.MatchString(id) || identifiers[id] {
			t.Errorf("identifier %q is malformed or not unique", id)
		}
		identifiers[id] = true
		packages[p.PackageName] = p
		if p.FilesAnalyzed || p.PackageDownloadLocation == "" || p.PackageLicenseDeclared == "" || p.PackageVersion == "" {
			t.Errorf("%s lacks what SPDX demands: %+v", p.PackageName, p)
		}
		if want := "pkg:golang/" + p.PackageName + "@" + strings.ReplaceAll(p.PackageVersion, "+", "%2B"); len(p.PackageExternalReferences) != 1 || p.PackageExternalReferences[0].Locator != want {
			t.Errorf("%s has the references %+v, want %s", p.PackageName, p.PackageExternalReferences, want)
		}
	}

	content, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	main := packages[info.Main.Path]
	if main == nil || main.PackageSPDXIdentifier != described[0] || main.PackageVersion != s.version || main.PackageFileName != filepath.Base(binary) {
		t.Fatalf("the described package is %+v", main)
	}
	if digest := sha256.Sum256(content); len(main.PackageChecksums) != 1 || main.PackageChecksums[0].Value != hex.EncodeToString(digest[:]) {
		t.Errorf("checksums %v are not that of the binary", main.PackageChecksums)
	}
	if library := packages["stdlib"]; library == nil || "go"+library.PackageVersion != info.GoVersion {
		t.Errorf("the standard library is %+v, want that of %s", library, info.GoVersion)
	}
	sums, err := os.ReadFile(filepath.Join("..", "..", "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if len(document.Packages) != len(info.Deps)+2 || len(info.Deps) < 20 {
		t.Errorf("%d packages for %d modules", len(document.Packages), len(info.Deps))
	}
	for _, module := range info.Deps {
		p := packages[module.Path]
		if p == nil || p.PackageVersion != module.Version || len(p.PackageChecksums) != 1 {
			t.Errorf("module %s %s is described as %+v", module.Path, module.Version, p)
			continue
		}
		sum, err := hex.DecodeString(p.PackageChecksums[0].Value)
		if line := module.Path + " " + module.Version + " h1:" + base64.StdEncoding.EncodeToString(sum) + "\n"; err != nil || !bytes.Contains(sums, []byte(line)) {
			t.Errorf("go.sum has no line %s", line)
		}
	}
}

// TestModulesWithoutSumAreNotDescribed: a module that is replaced by a directory
// has no sum, and no place where others find it.
func TestModulesWithoutSumAreNotDescribed(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Path: "example.org/main"}, Deps: []*debug.Module{
		{Path: "example.org/a", Version: "v1.0.0", Replace: &debug.Module{Path: "../a"}}}}
	if _, err := describe(source{version: "v0.1.0"}, "main", [sha256.Size]byte{}, info); err == nil || !strings.Contains(err.Error(), "../a") {
		t.Errorf("error %v", err)
	}
}
