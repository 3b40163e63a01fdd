package schema

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

var update = flag.Bool("update", false, "write the schema file")

// protocols returns the protocols that the program supports.
func protocols() mapping.Protocols { return mappers.BuiltIn().Describe() }

// testdata finds the policies that the tests of policy.Parse read.
func testdata(t testing.TB, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../testdata", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no policies in testdata/%s: %v", dir, err)
	}
	named := map[string]string{}
	for _, file := range files {
		named[strings.TrimSuffix(filepath.Base(file), ".yaml")] = file
	}
	return named
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// schemaFile is where editors find the schema.
const schemaFile = "../../policy.schema.json"

func TestSchemaFileIsUpToDate(t *testing.T) {
	if *update {
		if err := os.WriteFile(schemaFile, JSON(protocols()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(JSON(protocols())) {
		t.Errorf("%s is stale; run: go test ./policy/schema -run TestSchemaFileIsUpToDate -update", filepath.Base(schemaFile))
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(JSON(protocols()))))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("policy.schema.json", document); err != nil {
		t.Fatal(err)
	}
	// Compiling also validates the schema against that of draft 7.
	compiled, err := compiler.Compile("policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// plain turns a YAML value into a JSON value, as editors do. A schema cannot
// judge what JSON cannot express, or what has no end.
func plain(n *yaml.Node, left *int) (any, bool) {
	if *left--; *left < 0 {
		return nil, false
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return plain(n.Content[0], left)
	case yaml.AliasNode:
		return plain(n.Alias, left)
	case yaml.MappingNode:
		m := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			value, ok := plain(n.Content[i+1], left)
			if _, twice := m[n.Content[i].Value]; !ok || twice || n.Content[i].Kind != yaml.ScalarNode {
				return nil, false
			}
			m[n.Content[i].Value] = value
		}
		return m, true
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			value, ok := plain(item, left)
			if !ok {
				return nil, false
			}
			list = append(list, value)
		}
		return list, true
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!bool":
		return n.Value == "true", true
	case "!!int", "!!float":
		if _, err := strconv.ParseFloat(n.Value, 64); err == nil && n.Value != ".inf" {
			return json.Number(n.Value), true
		}
	}
	return n.Value, true
}

// single reads a file of one document that has only values that JSON has, too.
func single(data []byte) (any, bool) {
	decoder := yaml.NewDecoder(strings.NewReader(string(data)))
	var first, second yaml.Node
	if decoder.Decode(&first) != nil || !errors.Is(decoder.Decode(&second), io.EOF) {
		return nil, false
	}
	left := 10_000
	return plain(&first, &left)
}

func TestSchemaAcceptsGoodPolicies(t *testing.T) {
	compiled := compileSchema(t)
	files := testdata(t, "good")
	files["example"] = "../../config.example.yaml"
	for name, file := range files {
		value, ok := single(read(t, file))
		if !ok {
			t.Errorf("%s cannot be read", name)
		} else if err := compiled.Validate(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// beyondSchema are bad policies whose mistakes are all in how values go
// together, which only Parse finds.
var beyondSchema = map[string]string{
	"overlaps": "patterns of two tenants",
}

// TestSchemaRefusesBadPolicies: whatever an editor can read of the bad policies,
// it must mark as wrong, too, unless the mistake is beyond a schema.
func TestSchemaRefusesBadPolicies(t *testing.T) {
	compiled := compileSchema(t)
	judged := 0
	for name, file := range testdata(t, "bad") {
		value, ok := single(read(t, file))
		if !ok {
			continue
		}
		judged++
		err := compiled.Validate(value)
		switch beyond := beyondSchema[name] != ""; {
		case err == nil && !beyond:
			t.Errorf("the schema accepts %s", name)
		case err != nil && beyond:
			t.Errorf("the schema can express %s after all", name)
		}
	}
	if judged < 15 {
		t.Errorf("only %d of the bad policies were judged", judged)
	}
}

// schemaMistakes are single changes to a good policy, each of which both the
// schema and Parse must refuse.
var schemaMistakes = map[string][2]string{
	"another version":               {"apiVersion: standalone-cinder.openstack.org/v1alpha1", "apiVersion: v1"},
	"another kind":                  {"kind: Policy", "kind: PolicyTest"},
	"a cluster's id":                {"clusterID: Cluster_1.eu", "clusterID: -eu"},
	"an unknown key":                {"clusterID: Cluster_1.eu", "clusterIds: x"},
	"an empty value":                {"clusterID: Cluster_1.eu", "clusterID: \"\""},
	"null":                          {"clusterID: Cluster_1.eu", "clusterID:"},
	"a size without unit":           {"min: 1.5Gi", "min: 1"},
	"a size of nothing":             {"min: 1.5Gi", "min: 0Gi"},
	"a size of no kind":             {"min: 1.5Gi", "min: 1GB"},
	"own metadata":                  {"owner: platform", "Standalone-cinder.openstack.org/x: platform"},
	"Cinder's metadata":             {"owner: platform", "readonly: platform"},
	"a blank":                       {"owner: platform", "owner: \" platform\""},
	"a number as metadata":          {"owner: platform", "owner: 4711"},
	"an interface":                  {"interface: internal", "interface: Internal"},
	"a workflow":                    {"workflow: attachment", "workflow: none"},
	"a negative limit":              {"limits: {volumes: 100,", "limits: {volumes: -1,"},
	"a fraction of a volume":        {"limits: {volumes: 100,", "limits: {volumes: 1.5,"},
	"a number in quotes":            {"limits: {volumes: 100,", "limits: {volumes: \"100\","},
	"no concurrency":                {"concurrency: 4", "concurrency: 0"},
	"a negative rate":               {"requestsPerSecond: 2.5", "requestsPerSecond: -2.5"},
	"a duration without unit":       {"create: 1m30s", "create: 90"},
	"a duration of no kind":         {"create: 1m30s", "create: 1d"},
	"no time":                       {"create: 1m30s", "create: 0s"},
	"a negative time":               {"create: 1m30s", "create: -1s"},
	"no time between audits":        {"interval: 30m", "interval: 0s"},
	"no grace":                      {"grace: 1h", "grace: -1h"},
	"delete perhaps":                {"delete: true", "delete: yes please"},
	"a node's label":                {"nodeLabels: {storage: fc}", "nodeLabels: {storage: f c}"},
	"a node's label's key":          {"nodeLabels: {storage: fc}", "nodeLabels: {-storage: fc}"},
	"a host":                        {"host: node.example", "host: node example"},
	"an initiator with a slash":     {"iqn.2026-01.com.example:all", "iqn.2026-01.com.example:all/eu"},
	"an initiator":                  {"iqn.2026-01.com.example:all", "iqn.2026-01.com.example"},
	"an address":                    {"ip: 192.0.2.1", "ip: 192.0.2.256"},
	"a port name":                   {"50:01:43:80:12:34:56:7A", "50:01:43:80:12:34:56"},
	"an NVMe name":                  {"nqn.2014-08.org.nvmexpress:uuid:2c1f6a35-6f4c-4a59-8d1c-0d9f4be2a001", "nqn"},
	"no name":                       {"- name: inherits\n    auth: {cloud: one}", "- auth: {cloud: one}"},
	"a name":                        {"- name: inherits\n    auth: {cloud: one}", "- name: In_herits\n    auth: {cloud: one}"},
	"no way to log in":              {"auth: {cloud: one}", "auth: {}"},
	"two ways to log in":            {"auth: {cloud: one}", "auth: {cloud: one, environment: true}"},
	"no environment":                {"environment: true", "environment: false"},
	"an endpoint":                   {"http://cinder:8776/v3", "ftp://cinder:8776/v3"},
	"an endpoint with a password":   {"http://cinder:8776/v3", "http://user:secret@cinder:8776/v3"},
	"no endpoint":                   {`noauth: {endpoint: "http://cinder:8776/v3"}`, "noauth: {user: x}"},
	"a colon":                       {"user: provisioner", "user: \"a:b\""},
	"suspended perhaps":             {"suspended: true", "suspended: \"true\""},
	"a protocol":                    {"iscsi: {as: native, fsType: xfs, readOnly: false, omitInitiatorName: true}", "iSCSI: {as: csi, driver: x}"},
	"native without a source":       {"widget: {as: csi, driver: widget.example, attributes: {}}", "widget: {as: native}"},
	"csi without a driver":          {"widget: {as: csi, driver: widget.example, attributes: {}}", "widget: {as: csi}"},
	"flexVolume without a driver":   {"        driver: example/nfs-image\n", ""},
	"csi driver of no kind":         {"driver: widget.example", "driver: Widget driver"},
	"FlexVolume driver of no kind":  {"driver: example/nfs-image", "driver: nfs-image"},
	"FlexVolume with discard":       {"driver: example/nfs-image", "driver: example/nfs-image\n        discard: true"},
	"an interface of a file":        {"interface: offload.1", "interface: ../offload"},
	"an interface elsewhere":        {"widget: {as: csi, driver: widget.example", "widget: {as: csi, interface: default, driver: widget.example"},
	"wwid elsewhere":                {"iser: {as: native, interface: offload.1", "iser: {as: native, wwid: \"{{ .connection.wwn }}\""},
	"a Secret's type":               {"type: example.org/nvme", "type: not a type"},
	"a Secret's key":                {"data: {key: ", "data: {\"a b\": "},
	"a Secret without data":         {"          data: {key: \"{{ .connection.auth_password | default \\\"\\\" }}\"}\n", ""},
	"an unknown reference":          {"references: [nodeStageSecretRef]", "references: [nodeStage]"},
	"a Secret with native":          {"iser: {as: native, interface: offload.1", "iser: {as: native, secret: {data: {a: b}}"},
	"a Secret with ceph-csi":        {"clusterID: ceph-1", "clusterID: ceph-1\n        secret: {data: {a: b}}"},
	"ceph-csi or another driver":    {"clusterID: ceph-1", "clusterID: ceph-1\n        volumeHandle: \"{{ .rbd.image }}\""},
	"csi with options":              {"widget: {as: csi, driver: widget.example, attributes: {}}", "widget: {as: csi, driver: x, options: {}}"},
	"native with a driver":          {"iscsi: {as: native, fsType: xfs, readOnly: false, omitInitiatorName: true}", "iscsi: {as: native, driver: x}"},
	"Ceph's keys for others":        {"widget: {as: csi, driver: widget.example, attributes: {}}", "widget: {as: csi, driver: x, clusterID: y}"},
	"rbd without a cluster":         {"        clusterID: ceph-1\n", ""},
	"an unknown kind of source":     {"widget: {as: csi,", "widget: {as: CSI,"},
	"a Secret without namespace":    {"nodeStageSecretRef: {name: ceph.admin, namespace: ceph}", "nodeStageSecretRef: {name: ceph.admin}"},
	"a Secret's name":               {"nodeStageSecretRef: {name: ceph.admin, namespace: ceph}", "nodeStageSecretRef: {name: Ceph, namespace: ceph}"},
	"a capital letter":              {`namespaces: [a, "a-*", "*-of-a"]`, "namespaces: [A]"},
	"a question mark":               {`namespaces: [a, "a-*", "*-of-a"]`, `namespaces: ["a?"]`},
	"two stars":                     {`namespaces: [a, "a-*", "*-of-a"]`, `namespaces: ["a**"]`},
	"a dot in a namespace":          {`namespaces: [a, "a-*", "*-of-a"]`, `namespaces: [a.b]`},
	"no namespaces":                 {`namespaces: [a, "a-*", "*-of-a"]`, `namespaces: []`},
	"a namespace that is no list":   {`namespaces: [a, "a-*", "*-of-a"]`, `namespaces: a`},
	"a label's value":               {"matchLabels: {tenant: a,", "matchLabels: {tenant: a b,"},
	"a label's key":                 {"matchLabels: {tenant: a,", "matchLabels: {-tenant: a,"},
	"an operator":                   {"operator: In,", "operator: in,"},
	"In without values":             {"operator: In, values: [eu, us]", "operator: In"},
	"DoesNotExist with values":      {"operator: DoesNotExist", "operator: DoesNotExist, values: [x]"},
	"a quota with a unit":           {"quota: {volumes: 0, gigabytes: 10,", "quota: {volumes: 0, gigabytes: 10Gi,"},
	"a negative quota":              {"quota: {volumes: 0, gigabytes: 10,", "quota: {volumes: -1, gigabytes: 10,"},
	"a tenant of no concurrency":    {"limits: {concurrency: 20,", "limits: {concurrency: 0,"},
	"a tenant of too much":          {"limits: {concurrency: 20,", "limits: {concurrency: 100001,"},
	"a tenant's negative rate":      {"requestsPerSecond: 0.5}", "requestsPerSecond: -0.5}"},
	"a tenant that never gets on":   {"requestsPerSecond: 0.5}", "requestsPerSecond: 0.005}"},
	"a backend's limit of a tenant": {"limits: {concurrency: 20,", "limits: {volumes: 20,"},
	"a restorer without a quota":    {"    quota: {gigabytes: 100}\n", ""},
	"a restorer's other quota":      {"quota: {gigabytes: 100}", "quota: {snapshots: 100}"},
	"a restorer of a pattern":       {"namespaces: [velero]", `namespaces: [velero, "velero-*"]`},
	"a restorer by labels":          {"namespaces: [velero]", "namespaces: [velero]\n    namespaceSelector: {matchLabels: {backup: velero}}"},
	"a populator without anything":  {"- {namespace: forklift}", "- {}"},
	"a populator's pattern":         {"- {namespace: forklift}", `- {namespace: "forklift-*"}`},
	"a populator's other name":      {"- {namespace: forklift}", "- {namespace: Forklift}"},
	"a populator's tenant":          {"- {namespace: forklift}", "- {namespace: forklift, tenant: all-keys}"},
	"no StorageClass":               {`storageClasses: [fast.ssd, "*.gold"]`, "storageClasses: []"},
	"a StorageClass":                {`storageClasses: [fast.ssd, "*.gold"]`, "storageClasses: [fast..ssd]"},
	"no backend":                    {"backends: [inherits, own]", "backends: []"},
	"a volume type with blanks":     {`volumeType: "High Performance"`, `volumeType: "ssd "`},
	"a zone without nodes":          {"{topology.kubernetes.io/zone: rack-a}", "{}"},
	"a zone's label":                {"{topology.kubernetes.io/zone: rack-a}", "{topology.kubernetes.io/zone: rack a}"},
	"a zone without a name":         {"{name: az2, nodeLabels", "{nodeLabels"},
	"a pick":                        {"pick: spread", "pick: last"},
	"a zone with a tab":             {"availabilityZone: az 1", `availabilityZone: "az\t1"`},
	"a filesystem":                  {"fsType: btrfs", "fsType: ext5"},
	"a tenant without any rule":     {"    classes:\n      - storageClasses: [plain]\n        backends: [noauth, environment, default-project]", "    classes: []"},
	"a tenant without any selector": {"    namespaceSelector: {matchExpressions: [{key: tenant, operator: NotIn, values: [a]}, {key: tenant, operator: Exists}]}\n", ""},
}

func TestSchemaAndParseRefuseTheSame(t *testing.T) {
	compiled := compileSchema(t)
	everything := string(read(t, "../testdata/good/everything.yaml"))
	for name, change := range schemaMistakes {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(everything, change[0]) {
				t.Fatalf("everything.yaml has no %q", change[0])
			}
			bad := strings.Replace(everything, change[0], change[1], 1)
			if _, err := policy.Parse([]byte(bad), "p.yaml", protocols()); err == nil {
				t.Error("Parse accepts it")
			}
			value, ok := single([]byte(bad))
			if !ok {
				t.Fatal("it is not YAML")
			}
			if err := compiled.Validate(value); err == nil {
				t.Error("the schema accepts it")
			}
		})
	}
}

// TestSchemaPatternsAreUnderstoodByEditors: ECMAScript has other flags and
// groups than Go, so only what both have may be used.
func TestSchemaPatternsAreUnderstoodByEditors(t *testing.T) {
	foreign := regexp.MustCompile(`\(\?[^:]|\\[AzQEC]|\\p|\[\[:`)
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if pattern, ok := v["pattern"].(string); ok && foreign.MatchString(pattern) {
				t.Errorf("pattern %s", pattern)
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	var document any
	if err := json.Unmarshal(JSON(protocols()), &document); err != nil {
		t.Fatal(err)
	}
	walk(document)
}
