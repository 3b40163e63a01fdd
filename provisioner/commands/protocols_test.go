package commands

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

var updateDocs = flag.Bool("update", false, "rewrite the results that docs/protocols.md shows")

const protocolsDocument = "../../docs/protocols.md"

// example matches a mapping, a connection, and the result.
var example = regexp.MustCompile("(?ms)^```yaml\n(mapping:\n.*?)^```\n\n^```json\n(.*?)^```\n\n^```yaml\n(.*?)^```\n")

// shown returns a mapped connection without the parts that are the same for every
// one.
func shown(t *testing.T, mapped Mapped) string {
	t.Helper()
	spec := mapped.PersistentVolume.Spec
	view := map[string]any{}
	source, err := yaml.Marshal(spec.PersistentVolumeSource)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(source, &view); err != nil {
		t.Fatal(err)
	}
	if len(spec.MountOptions) > 0 {
		view["mountOptions"] = spec.MountOptions
	}
	if mapped.Secret != nil {
		view["secret"] = map[string]any{"type": mapped.Secret.Type, "data": mapped.Secret.Data}
	}
	if len(mapped.Warnings) > 0 {
		view["warnings"] = mapped.Warnings
	}
	text, err := yaml.Marshal(view)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestProtocolExamples runs every mapping that docs/protocols.md shows through
// the policy and the mappers.
func TestProtocolExamples(t *testing.T) {
	text, err := os.ReadFile(protocolsDocument)
	if err != nil {
		t.Fatal(err)
	}
	examples := example.FindAllStringSubmatchIndex(string(text), -1)
	if len(examples) < 9 || strings.Count(string(text), "```json\n") != len(examples) {
		t.Fatalf("%d examples of a mapping, a connection and a result are found; is one of them split?", len(examples))
	}
	protocols := map[string]bool{}
	var rewritten strings.Builder
	end := 0
	for _, at := range examples {
		mapping, document, want := string(text[at[2]:at[3]]), string(text[at[4]:at[5]]), string(text[at[6]:at[7]])
		protocol := strings.Trim(strings.SplitN(mapping, "\n", 3)[1], " :")
		protocols[protocol] = true
		t.Run(fmt.Sprintf("%s line %d", protocol, strings.Count(string(text[:at[0]]), "\n")+1), func(t *testing.T) {
			mapped, refusal, err := Map(MapOptions{
				Protocols:  mappers.BuiltIn(),
				PolicyFile: policyWith(t, mapping), Namespace: "standalone-cinder", AccessMode: "RWO", VolumeMode: "Filesystem",
			}, []byte(document), nil)
			if err != nil || refusal != nil {
				t.Fatal(err, refusal)
			}
			got := shown(t, mapped)
			rewritten.WriteString(string(text[end:at[6]]) + got)
			end = at[7]
			if got != want && !*updateDocs {
				t.Errorf("becomes\n%s\nnot (rewrite it with go test -update)\n%s", got, want)
			}
		})
	}
	for _, protocol := range []string{"iscsi", "fibre_channel", "rbd", "nvmeof", "nfs", "quobyte", "storpool"} {
		if !protocols[protocol] {
			t.Errorf("there is no example for %s", protocol)
		}
	}
	if *updateDocs && !t.Failed() {
		rewritten.WriteString(string(text[end:]))
		if err := os.WriteFile(protocolsDocument, []byte(rewritten.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// policyWith writes a policy of one backend with a mapping.
func policyWith(t *testing.T, mapping string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	content := "apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\nclusterID: prod-eu-1\nbackends:\n  - name: gold\n    auth: {cloud: gold}\n" +
		regexp.MustCompile(`(?m)^`).ReplaceAllString(strings.TrimSuffix(mapping, "\n"), "    ") + "\ntenants: []\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestProtocolsDocumentKnowsTheLanguage: the document explains every function
// and value.
func TestProtocolsDocumentKnowsTheLanguage(t *testing.T) {
	content, err := os.ReadFile(protocolsDocument)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(content), `\|`, "|")
	for _, function := range template.FunctionNames() {
		usage, _, _ := strings.Cut(template.Usage(function), ", or ")
		if !strings.Contains(text, "`"+usage+"`") {
			t.Errorf("the function %s is not explained as `%s`", function, usage)
		}
	}
	described := mappers.BuiltIn().Describe()
	for _, protocol := range described.Mapped() {
		if protocol == "iser" {
			continue // The document explains iscsi, and that iser is the same.
		}
		for root, children := range described.Use(protocol).Roots() {
			if children == nil && !strings.Contains(text, "`."+root+"`") {
				t.Errorf("the value .%s is not explained", root)
			}
			for _, child := range children {
				if !strings.Contains(text, "."+root+"."+child) {
					t.Errorf("the value .%s.%s is not explained", root, child)
				}
			}
		}
	}
}
