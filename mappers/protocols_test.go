package mappers_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands"
)

// TestNewProtocolNeedsOneEntry registers a protocol that does not exist, and
// checks that everything else in the program knows it.
func TestNewProtocolNeedsOneEntry(t *testing.T) {
	protocols := mappers.WithNewcomer()
	file := func(name, content string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	policyOf := func(mapping string) string {
		return file("policy.yaml", "apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\nclusterID: prod\n"+
			"backends:\n  - name: gold\n    auth: {cloud: gold}\n    mapping:\n      newcomer: "+mapping+"\ntenants: []\n")
	}
	connection := file("connection.json", `{"driver_volume_type": "newcomer", "data": {"disk_path": "/dev/newcomer/1"}}`)
	policy := func() *cobra.Command {
		return policycli.NewCommand(policycli.Options{Protocols: protocols.Describe()})
	}
	connectionMap := func() *cobra.Command { return commands.NewMapCommand(protocols) }
	run := func(command *cobra.Command, arguments ...string) string {
		var output bytes.Buffer
		command.SetOut(&output)
		command.SetErr(&output)
		command.SetArgs(arguments)
		if err := command.Execute(); err != nil {
			output.WriteString(err.Error())
		}
		return output.String()
	}
	expect := func(what, output, want string) {
		t.Helper()
		if !strings.Contains(output, want) {
			t.Errorf("%s: no %q in\n%s", what, want, output)
		}
	}

	expect("policy check of the native form", run(policy(), "check", policyOf("{as: native}")), "good: 1 backend")
	expect("policy check of a name of its vocabulary", run(policy(), "check", policyOf(`{as: csi, driver: a.example.org, volumeHandle: "{{ .newcomer.disk }}"}`)), "good: 1 backend")
	expect("policy check of another name", run(policy(), "check", policyOf(`{as: csi, driver: a.example.org, volumeHandle: "{{ .newcomer.disc }}"}`)), "unknown value .newcomer.disc; the known names are disk")
	expect("policy check of a misspelled field", run(policy(), "check", policyOf(`{as: csi, driver: a.example.org, attributes: {disk: "{{ .connection.disk_pat }}"}}`)), "did you mean connection.disk_path?")
	expect("map's help", run(connectionMap(), "--help"), "iser, newcomer, rbd")
	expect("map without a policy", run(connectionMap(), connection), "path: /dev/newcomer/1")
	expect("map with a template", run(connectionMap(), "--policy", policyOf(`{as: csi, driver: a.example.org, volumeHandle: "{{ .newcomer.disk }}"}`), connection), "volumeHandle: /dev/newcomer/1")

	var schema struct {
		Definitions struct {
			Backend struct {
				Properties struct {
					Mapping struct{ Properties map[string]any }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(run(policy(), "schema")), &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Definitions.Backend.Properties.Mapping.Properties["newcomer"] == nil {
		t.Error("the schema of policy files does not list the protocol")
	}

	registry, err := mappers.New(mappers.Options{SecretNamespace: testNamespace, Protocols: protocols})
	if err != nil {
		t.Fatal(err)
	}
	metrics := provisioner.NewMetrics(prometheus.NewRegistry(), registry.Protocols())
	for protocol, want := range map[string]string{"newcomer": "newcomer", "stranger": "other", "": ""} {
		if label := metrics.ProtocolLabel(protocol); label != want {
			t.Errorf("metrics label %q as %q", protocol, label)
		}
	}
}
