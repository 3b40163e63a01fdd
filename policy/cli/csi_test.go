package cli

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// csiPolicy has one backend for native volumes and for those of the CSI driver.
const csiPolicy = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
- name: gold
  auth: {noauth: {endpoint: "http://cinder:8776/v3"}}
  connector: {nodeLabels: {storage: gold}}
tenants:
- name: team-a
  namespaces: [team-a]
  classes:
  - storageClasses: [fast-csi]
    backends: [gold]
    mode: csi
  - storageClasses: [fast]
    backends: [gold]
`

func load(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestExplanationNamesTheModeCSI(t *testing.T) {
	file := write(t, csiPolicy)
	got := run("", "explain", "--policy", file, "-n", "team-a", "--storage-class", "fast-csi", "--size", "1Gi", "--access-mode", "RWOP")
	for _, line := range []string{
		"    mode               csi, attached to each node that uses it by the CSI driver standalone-cinder.openstack.org\n",
		"           connector: each node's own, nodes with storage=gold\n",
		"           fencing: export, a volume stays attached to a lost node until that node is clean, rebooted, deleted or tainted out-of-service\n",
	} {
		if !strings.Contains(got.stdout, line) {
			t.Errorf("no line %q in\n%s", line, got.stdout)
		}
	}
	if strings.Contains(got.stdout, "note:") || got.err != nil {
		t.Errorf("error %v\n%s", got.err, got.stdout)
	}
	got = run("", "explain", "--policy", file, "-n", "team-a", "--storage-class", "fast", "--size", "1Gi", "--access-mode", "RWOP")
	if note := "note: ReadWriteOncePod needs a CSI source: a native volume has none unless the backend's mapping makes one; in mode csi, every volume has one\n"; !strings.Contains(got.stdout, note) {
		t.Errorf("no %q in\n%s", note, got.stdout)
	}
	if strings.Contains(got.stdout, "\n    mode ") || strings.Contains(got.stdout, "fencing") {
		t.Errorf("a native volume:\n%s", got.stdout)
	}
	file = write(t, strings.Replace(csiPolicy, "tenants:\n", "  csi: {fencing: initiator, maxVolumesPerNode: 16}\ntenants:\n", 1))
	got = run("", "explain", "--policy", file, "-n", "team-a", "--storage-class", "fast-csi", "--size", "1Gi")
	if want := "           fencing: initiator, a volume of a lost node can be attached to another node at once\n            at most 16 volumes on a node\n"; !strings.Contains(got.stdout, want) {
		t.Errorf("no %q in\n%s", want, got.stdout)
	}
}

// TestExplanationSaysWhenATypeMustHaveMultiattach: the policy grants the claim, and Cinder
// alone knows whether several nodes can have the volume.
func TestExplanationSaysWhenATypeMustHaveMultiattach(t *testing.T) {
	const needs = " needs a volume type with multiattach; whether the type has it is known when the volume is created\n"
	file := write(t, csiPolicy)
	for name, test := range map[string]struct {
		class, mode string
		more        []string
		note        string
	}{
		"many readers":                {class: "fast-csi", mode: "ROX", note: "note: in mode csi, ReadOnlyMany" + needs},
		"many writers":                {class: "fast-csi", mode: "RWX", more: []string{"--volume-mode", "Block"}, note: "note: ReadWriteMany" + needs},
		"many writers in mode native": {class: "fast", mode: "RWX", more: []string{"--volume-mode", "Block"}, note: "note: ReadWriteMany" + needs},
		"many readers in mode native": {class: "fast", mode: "ROX"},
		"one writer":                  {class: "fast-csi", mode: "RWO"},
		"many readers and one writer": {class: "fast-csi", mode: "ROX", more: []string{"--access-mode", "RWO"}, note: "note: in mode csi, ReadOnlyMany and ReadWriteOnce cannot be combined, so such a claim is denied; name one of them\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got := run("", append([]string{"explain", "--policy", file, "-n", "team-a", "--storage-class", test.class, "--size", "1Gi", "--access-mode", test.mode}, test.more...)...)
			if got.err != nil || !strings.Contains(got.stdout, test.note) || test.note == "" && strings.Contains(got.stdout, "note:") {
				t.Errorf("error %v, want %q in\n%s", got.err, test.note, got.stdout)
			}
		})
	}
}

// TestExplanationSaysThatTheModeDependsOnTheBackend: it does so if the rule has no
// mode.
func TestExplanationSaysThatTheModeDependsOnTheBackend(t *testing.T) {
	file := write(t, strings.Replace(strings.Replace(csiPolicy, "tenants:\n", `- name: silver
  mode: csi
  auth: {noauth: {endpoint: "http://silver:8776/v3"}}
tenants:
`, 1), "[fast]\n    backends: [gold]", "[fast]\n    backends: [silver, gold]", 1))
	got := run("", "explain", "--policy", file, "-n", "team-a", "--storage-class", "fast", "--size", "1Gi", "--access-mode", "RWOP")
	for _, note := range []string{
		"note: the mode depends on the backend that takes the volume: csi on silver, native on gold\n",
		"note: ReadWriteOncePod needs a CSI source: a native volume has none unless the backend's mapping makes one; in mode csi, every volume has one\n",
	} {
		if !strings.Contains(got.stdout, note) {
			t.Errorf("no %q in\n%s", note, got.stdout)
		}
	}
	got = run("", "explain", "--policy", file, "-n", "team-a", "--storage-class", "fast-csi", "--size", "1Gi")
	if strings.Contains(got.stdout, "note:") || got.err != nil {
		t.Errorf("error %v\n%s", got.err, got.stdout)
	}
}

func TestStorageClassOfTheDriverIsExplained(t *testing.T) {
	manifests := `{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: fast}, provisioner: standalone-cinder.openstack.org}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: team-a}, spec: {storageClassName: fast, resources: {requests: {storage: 1Gi}}}}
`
	got := run(manifests, "explain", "--policy", write(t, csiPolicy), "-")
	want := "denied: UnsupportedMode: StorageClass fast names the CSI driver standalone-cinder.openstack.org as its provisioner, but tenants[0].classes[1] makes native volumes on backend gold; give the rule mode: csi, or name the program itself as the provisioner\n"
	if !strings.Contains(got.stdout, want) || strings.Contains(got.stdout, "belongs to the provisioner") {
		t.Errorf("explained:\n%s", got.stdout)
	}
}

func TestPolicyTestsKnowModes(t *testing.T) {
	dir := t.TempDir()
	writeTo(t, dir, "policy.yaml", csiPolicy)
	file := writeTo(t, dir, "tests.yaml", `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
policy: policy.yaml
tests:
- name: csi
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, provisioner: standalone-cinder.openstack.org}
  expect: {volume: {mode: csi}}
- name: native
  claim: {namespace: team-a, storageClass: fast, size: 1Gi}
  expect: {volume: {mode: native}}
- name: the driver's name without the mode
  claim: {namespace: team-a, storageClass: fast, size: 1Gi, provisioner: standalone-cinder.openstack.org}
  expect: {denied: UnsupportedMode}
- name: a native source
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, source: {tenant: team-a, backend: gold}}
  expect: {denied: UnsupportedMode, message: no UUID is recorded}
- name: a native source whose filesystem is recorded
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, source: {tenant: team-a, backend: gold, filesystemKnown: true}}
  expect: {backends: [gold]}
- name: a source in mode csi
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, source: {tenant: team-a, backend: gold, mode: csi}}
  expect: {backends: [gold]}
- name: not encrypted
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi}
  expect: {volume: {encrypted: false}}
- name: a source that nodes encrypt
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, source: {tenant: team-a, backend: gold, mode: csi, encrypted: true}}
  expect: {denied: SourceNotAllowed, message: is encrypted by nodes}
- name: it should be encrypted
  claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi}
  expect: {volume: {encrypted: true}}
- name: wrong
  claim: {namespace: team-a, storageClass: fast, size: 1Gi}
  expect: {volume: {mode: csi}}
`)
	got := run("", "test", file)
	if want := "        - volume.mode: csi\n        + volume.mode: native\n"; !strings.Contains(got.stdout, "8 passed, 2 failed") || !strings.Contains(got.stdout, want) ||
		!strings.Contains(got.stdout, "        - volume.encrypted: true\n        + volume.encrypted: false\n") {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}
}

func TestClusterIsAskedForTheDriverOnlyInModeCSI(t *testing.T) {
	for name, test := range map[string]struct {
		policy string
		has    *review.CSI
		asks   bool
		want   []string
	}{
		"native": {policy: good},
		"ready":  {policy: csiPolicy, has: &review.CSI{Driver: true, Nodes: 2}, asks: true},
		"nothing is there": {csiPolicy, &review.CSI{}, true, []string{
			"(%s:13): the policy uses mode csi, but the cluster has no CSIDriver standalone-cinder.openstack.org; add the csi component of the manifests, or csi.enabled of the chart\n",
			"(%s:13): the policy uses mode csi, but no node has the driver standalone-cinder.openstack.org registered, so no pod can use such a volume; look at the pods of the DaemonSet standalone-cinder-node\n",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			options := clusterWith(review.Existing{})
			options.ReadCSI = func(context.Context, string) (*review.CSI, error) { asked = true; return test.has, nil }
			file := write(t, test.policy)
			got := runWith(options, "", "check", file, "--kubeconfig", "prod.conf")
			if asked != test.asks || got.err != nil || strings.Contains(got.stdout, "DriverMissing") != (test.want != nil) {
				t.Errorf("asked %v, error %v\n%s", asked, got.err, got.stdout)
			}
			for _, want := range test.want {
				if want = strings.ReplaceAll(want, "%s", file); !strings.Contains(got.stdout, want) {
					t.Errorf("no %q in\n%s", want, got.stdout)
				}
			}
		})
	}
	options := clusterWith(review.Existing{})
	options.ReadCSI = func(context.Context, string) (*review.CSI, error) { return nil, errors.New("no answer") }
	got := runWith(options, "", "check", write(t, csiPolicy), "--kubeconfig", "prod.conf")
	if message(got.err) != "cannot say whether the cluster is ready for mode csi: no answer" || ExitCode(got.err) != ExitUsage {
		t.Errorf("error %v", got.err)
	}
}

func TestPendingClaimsOfOnePodAreToldWhatTheyNeed(t *testing.T) {
	claims := []review.Claim{
		{Request: policy.Request{Namespace: "team-a", StorageClass: "fast", Bytes: 1 << 30}, Name: "native", ClassExists: true, OnePod: true},
		{Request: policy.Request{Namespace: "team-a", StorageClass: "fast-csi", Bytes: 1 << 30}, Name: "csi", ClassExists: true, OnePod: true},
	}
	found := review.Of(load(t, csiPolicy), review.Existing{Claims: claims}).Findings
	want := []string{
		"the claim gets 1 GiB from backend gold for tenant team-a (tenants[0].classes[0])",
		"the claim gets 1 GiB from backend gold for tenant team-a (tenants[0].classes[1]); it has the access mode ReadWriteOncePod, which needs a CSI source: the backend's mapping may make one, and in mode csi every volume has one",
	}
	if len(found) != 2 || found[0].Message != want[0] || found[1].Message != want[1] {
		t.Errorf("found %+v", found)
	}
}

// TestExplanationKnowsAVolumeAttributesClass gives the class on the command line,
// among the manifests, and in tests of a policy.
func TestExplanationKnowsAVolumeAttributesClass(t *testing.T) {
	file := write(t, strings.Replace(csiPolicy, "    mode: csi\n", "    mode: csi\n    volumeTypes: [ssd]\n", 1))
	explain := func(manifest string, arguments ...string) string {
		t.Helper()
		return run(manifest, append([]string{"explain", "--policy", file, "-n", "team-a"}, arguments...)...).stdout
	}
	const claim = `{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: team-a}, spec: {storageClassName: fast-csi, volumeAttributesClassName: quick, resources: {requests: {storage: 1Gi}}}}
---
`
	const class = "{apiVersion: storage.k8s.io/v1, kind: VolumeAttributesClass, metadata: {name: quick}, driverName: standalone-cinder.openstack.org, parameters: {type: ssd}}\n"
	flags := []string{"--storage-class", "fast-csi", "--size", "1Gi", "--attribute"}
	for name, test := range map[string]struct{ got, want string }{
		"by a flag":      {explain("", append(flags, "type=ssd")...), "type               ssd"},
		"not listed":     {explain("", append(flags, "type=hdd")...), `denied: ParameterNotAllowed: a VolumeAttributesClass asks for volumes of type "hdd", which tenants[0].classes[0].volumeTypes does not list`},
		"by a manifest":  {explain(claim+class, "-"), "type               ssd (set by the VolumeAttributesClass)\n"},
		"none of it":     {explain(claim, "-"), `denied: VolumeAttributesClassNotFound: VolumeAttributesClass "quick" does not exist`},
		"the reason why": {explain(claim, "-"), "note: the manifests have no VolumeAttributesClass quick: assuming that it does not exist\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(test.got, test.want) {
				t.Errorf("no %q in\n%s", test.want, test.got)
			}
		})
	}
	ruled := write(t, strings.Replace(csiPolicy, "    mode: csi\n", "    mode: csi\n    volumeType: hdd\n    volumeTypes: [ssd]\n", 1))
	out := run("", append([]string{"explain", "--policy", ruled, "-n", "team-a"}, append(flags, "type=ssd")...)...).stdout
	if want := "type               ssd (set by the VolumeAttributesClass)\n"; !strings.Contains(out, want) {
		t.Errorf("no %q in\n%s", want, out)
	}
	tests := write(t, `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
tests:
  - name: a listed type
    claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, attributes: {type: ssd}}
    expect: {volume: {type: ssd}}
  - name: another type
    claim: {namespace: team-a, storageClass: fast-csi, size: 1Gi, attributes: {type: hdd}}
    expect: {denied: ParameterNotAllowed}
  - name: a native rule
    claim: {namespace: team-a, storageClass: fast, size: 1Gi, attributes: {type: ssd}}
    expect: {denied: UnsupportedVolumeAttributesClass}
`)
	if out := run("", "test", "--policy", file, tests); out.err != nil {
		t.Errorf("%v\n%s", out.err, out.stdout)
	}
}
