package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// unknown is what SPDX calls a value about which a document says nothing.
const unknown = "NOASSERTION"

// writeSBOM describes a binary, by what the linker recorded in it, in a file next
// to it.
func writeSBOM(s source, binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	document, err := describe(s, filepath.Base(binary), sha256.Sum256(content), info)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Write(document, &b, json.Indent("  "), json.EscapeHTML(false)); err != nil {
		return err
	}
	return os.WriteFile(binary+".spdx.json", b.Bytes(), 0o644)
}

// describe lists the program, its modules and Go's standard library. The
// namespace identifies the document: every binary has its own.
func describe(s source, name string, digest [sha256.Size]byte, info *debug.BuildInfo) (*spdx.Document, error) {
	main := newPackage(info.Main.Path, s.version, "APPLICATION")
	main.PackageFileName = name
	main.PackageHomePage = homepage
	if s.commit != noCommit {
		main.PackageDownloadLocation = "git+" + homepage + "@" + strings.TrimSuffix(s.commit, "-dirty")
	}
	main.PackageLicenseConcluded, main.PackageLicenseDeclared = "Apache-2.0", "Apache-2.0"
	main.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(digest[:])}}

	// The purl type golang gives the standard library this name.
	library := newPackage("stdlib", strings.TrimPrefix(info.GoVersion, "go"), "LIBRARY")
	library.PackageLicenseConcluded, library.PackageLicenseDeclared = "BSD-3-Clause", "BSD-3-Clause"

	packages := []*spdx.Package{main, library}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		dependency := newPackage(module.Path, module.Version, "LIBRARY")
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(module.Sum, "h1:"))
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("%s records the sum %q of %s, expected h1: and a SHA-256", name, module.Sum, module.Path)
		}
		dependency.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: hex.EncodeToString(sum)}}
		dependency.PackageComment = "The checksum is that of go.sum (h1), which covers the list of the module's files and their hashes."
		packages = append(packages, dependency)
	}

	relationships := []*spdx.Relationship{{RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: reference(main), Relationship: common.TypeRelationshipDescribe}}
	for _, dependency := range packages[1:] {
		relationships = append(relationships, &spdx.Relationship{RefA: reference(main), RefB: reference(dependency), Relationship: common.TypeRelationshipDependsOn})
	}
	return &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: fmt.Sprintf("%s/sbom/%s-%x", homepage, url.PathEscape(name), digest),
		CreationInfo: &spdx.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: program + "-release"}},
			Created:  s.time.Format(time.RFC3339),
		},
		Packages:      packages,
		Relationships: relationships,
	}, nil
}

// isNotOfIdentifiers matches what an SPDX identifier must not contain.
var isNotOfIdentifiers = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newPackage(name, version, purpose string) *spdx.Package {
	return &spdx.Package{
		PackageName:             name,
		PackageSPDXIdentifier:   common.ElementID("Package-" + isNotOfIdentifiers.ReplaceAllString(name+"-"+version, "-")),
		PackageVersion:          version,
		PackageDownloadLocation: unknown,
		PackageLicenseConcluded: unknown,
		PackageLicenseDeclared:  unknown,
		PackageCopyrightText:    unknown,
		PrimaryPackagePurpose:   purpose,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL,
			Locator: "pkg:golang/" + name + "@" + url.QueryEscape(version),
		}},
	}
}

func reference(p *spdx.Package) common.DocElementID {
	return common.DocElementID{ElementRefID: p.PackageSPDXIdentifier}
}
