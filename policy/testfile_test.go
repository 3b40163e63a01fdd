package policy

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

const goodTests = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
policy: policies/p.yaml
tests:
  - name: one
    claim:
      namespace: a
      namespaceLabels: {stage: test, kubernetes.io/metadata.name: forged}
      storageClass: fast
      parameters: {type: ssd}
      size: 1.5Gi
      limit: 2Gi
      volumeMode: Block
    used:
      - {tenant: a, volumes: 1, gigabytes: 2, snapshots: 3}
    expect:
      tenant: a
      rule: tenants[0].classes[0]
      backends: [gold]
      volume: {sizeGiB: 2, type: ssd, availabilityZone: az1, fsType: xfs, metadata: {"cost center": ""}}
  - name: two
    claim: {namespace: b, storageClass: fast, size: 1Gi}
    expect: {denied: NoMatchingTenant, message: belongs to no tenant}
`

func TestParseTests(t *testing.T) {
	f, err := ParseTests([]byte(goodTests), "dir/t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := f.ResolvePolicy(); got != "dir/policies/p.yaml" {
		t.Errorf("policy %s", got)
	}
	got := f.Tests[0].Claim.Request()
	want := Request{
		Namespace:       "a",
		NamespaceLabels: map[string]string{"stage": "test", "kubernetes.io/metadata.name": "a"},
		StorageClass:    "fast",
		Parameters:      map[string]string{"type": "ssd"},
		Bytes:           3 << 29,
		LimitBytes:      2 << 30,
		VolumeMode:      Block,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	for path, want := range map[string]int{"": 5, "expect.tenant": 17, "expect.volume.type": 20, "expect.denied": 17} {
		if got := f.Line(0, path); got != want {
			t.Errorf("line of %q: %d, want %d", path, got, want)
		}
	}
	placed, err := ParseTests([]byte(strings.Replace(goodTests, "claim: {namespace: b,", "claim: {namespace: b, name: data-0, nodeLabels: {rack: a}, allowedTopologies: [{rack: [a, b]}],", 1)), "t.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := placed.Tests[1].Claim.Request()
	if r.Claim != "data-0" || !reflect.DeepEqual(r.Topologies, []Topology{{"rack": {"a", "b"}}}) || r.Node == nil || r.Node.Labels["rack"] != "a" {
		t.Errorf("the request is %+v", r)
	}
	if got := f.Line(1, "expect.message"); got != 23 {
		t.Errorf("line %d", got)
	}
}

func TestMistakesInTests(t *testing.T) {
	tests := map[string]struct{ from, to, want string }{
		"another kind":           {"kind: PolicyTest", "kind: Policy", `2:7: kind: must be PolicyTest, not "Policy"`},
		"an unknown key":         {"rule: tenants", "rulle: tenants", `18:7: tests[0].expect.rulle: unknown key "rulle"; did you mean "rule"?`},
		"no name":                {"name: one\n    ", "", "5:5: tests[0].name: is missing; say in a few words what the test shows"},
		"one name twice":         {"name: two", "name: one", `21:11: tests[1].name: tests[0] (line 5) is already called "one", and results name tests by it; give each a different name`},
		"no namespace":           {"namespace: b, ", "", "22:12: tests[1].claim.namespace: is missing; name the namespace of the claim"},
		"no StorageClass":        {"b, storageClass: fast,", "b,", "22:12: tests[1].claim.storageClass: is missing; name the StorageClass of the claim"},
		"no size":                {", size: 1Gi", "", "22:12: tests[1].claim.size: is missing; give the size that the claim asks for, such as 10Gi"},
		"a size without unit":    {"size: 1Gi", "size: 1", "22:53: tests[1].claim.size: 1 has no unit; write it like 100Gi or 1Ti"},
		"a label":                {"stage: test", "stage: a b", `8:32: tests[0].claim.namespaceLabels.stage: "a b" cannot be a label's value; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit`},
		"a claim's name":         {"claim: {namespace: b,", "claim: {namespace: b, name: A_b,", `22:33: tests[1].claim.name: "A_b" cannot be the name of a claim`},
		"a node's label":         {"claim: {namespace: b,", "claim: {namespace: b, nodeLabels: {rack: a b},", `22:46: tests[1].claim.nodeLabels.rack: "a b" cannot be a label's value; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit`},
		"an empty topology":      {"claim: {namespace: b,", "claim: {namespace: b, allowedTopologies: [{}],", `22:47: tests[1].claim.allowedTopologies[0]: is empty, so it allows no node; name labels with their values`},
		"a label without values": {"claim: {namespace: b,", "claim: {namespace: b, allowedTopologies: [{rack: []}],", `22:54: tests[1].claim.allowedTopologies[0].rack: the list is empty, so it allows no node; name values of the label`},
		"a volume mode":          {"Block", "block", `13:19: tests[0].claim.volumeMode: unknown volume mode "block"; did you mean "Block"?`},
		"used by nobody":         {"tenant: a, volumes", "volumes", "15:9: tests[0].used[0]: exactly one of tenant, rule, backend must be given, not none"},
		"used by two":            {"tenant: a, volumes", "tenant: a, rule: b, volumes", "15:9: tests[0].used[0]: exactly one of tenant, rule, backend must be given, not tenant and rule"},
		"less than nothing used": {"gigabytes: 2", "gigabytes: -2", "15:44: tests[0].used[0].gigabytes: must not be negative"},
		"nothing expected":       {"{denied: NoMatchingTenant, message: belongs to no tenant}", "{}", "23:13: tests[1].expect: expects nothing; give at least tenant, rule, backends or volume, or denied with a reason"},
		"no expectation":         {"    expect: {denied: NoMatchingTenant, message: belongs to no tenant}\n", "", "21:5: tests[1].expect: expects nothing; give at least tenant, rule, backends or volume, or denied with a reason"},
		"a reason":               {"NoMatchingTenant", "NoTenant", `23:22: tests[1].expect.denied: unknown reason "NoTenant"; the reasons are AmbiguousTenant, BackendNotGranted, BackendsSuspended, BackupNotGranted, ClaimLimitTooSmall, GroupNotGranted, ImportNotGranted, ImportedSnapshotNotFound, ImportedVolumeNotFound, InvalidClaim, NoMatchingClass, NoMatchingTenant, NoPopulatedClaim, NodeNotReached, OtherTenant, ParameterInvalid, ParameterNotAllowed, QuotaExceeded, SourceNotAllowed, SourceOnOtherBackend and 6 more`},
		"nobody's behalf":        {"claim: {namespace: b,", "claim: {namespace: b, populates: {name: data},", "22:38: tests[1].claim.populates.namespace: is missing; name the namespace of the claim that the populator fills"},
		"a kind of source":       {"claim: {namespace: b,", "claim: {namespace: b, source: {kind: Snapshot, tenant: a, backend: gold},", `22:42: tests[1].claim.source.kind: unknown kind of source "Snapshot"; the kinds are PersistentVolumeClaim, VolumeSnapshot`},
		"a message alone":        {"denied: NoMatchingTenant, ", "", "23:23: tests[1].expect.message: is allowed only with denied; add denied with a reason, or remove it"},
		"denied with a volume":   {"denied: NoMatchingTenant", "denied: NoMatchingTenant, volume: {type: x}", "23:48: tests[1].expect.volume: volume cannot be combined with denied: a denied claim has none; remove one of them"},
		"denied with backends":   {"denied: NoMatchingTenant", "denied: NoMatchingTenant, backends: [x]", "23:50: tests[1].expect.backends: backends cannot be combined with denied: a denied claim has none; remove one of them"},
		"no backends":            {"backends: [gold]", "backends: []", "19:17: tests[0].expect.backends: the list is empty; name backends, or write denied: BackendsSuspended if none is left"},
		"a volume of nothing":    {"sizeGiB: 2", "sizeGiB: 0", "20:25: tests[0].expect.volume.sizeGiB: must be at least 1, the smallest volume that Cinder creates"},
		"a filesystem":           {"fsType: xfs", "fsType: zfs", `20:70: tests[0].expect.volume.fsType: "zfs" is not a filesystem that can be created on a volume; did you mean "xfs"?`},
		"no claim":               {"    claim: {namespace: b, storageClass: fast, size: 1Gi}\n", "", "21:5: tests[1]: has neither claim nor snapshot; give what the policy should decide about"},
		"claim and snapshot":     {"size: 1Gi}", "size: 1Gi}\n    snapshot: {namespace: b, storageClass: fast, backend: gold}", "21:5: tests[1]: claim and snapshot are both given; a test is about one of them"},
		"no backend":             {"claim: {namespace: b, storageClass: fast, size: 1Gi}", "snapshot: {namespace: b, storageClass: fast}", "22:15: tests[1].snapshot.backend: is missing; name the backend that has the volume"},
		"a snapshot's volume":    {"claim: {namespace: b, storageClass: fast, size: 1Gi}\n    expect: {denied: NoMatchingTenant, message: belongs to no tenant}", "snapshot: {namespace: b, storageClass: fast, backend: gold}\n    expect: {volume: {type: ssd}}", "23:22: tests[1].expect.volume: a snapshot makes no volume; remove it"},
		"a second document":      {"  - name: two", "---\n  - name: two", "21:1: a second YAML document begins here; a policy test file holds exactly one"},
		"nothing":                {goodTests, "", "1:1: the file is empty; a policy test begins with apiVersion: standalone-cinder.openstack.org/v1alpha1"},
		"too much":               {goodTests, strings.Repeat("#\n", MaxFileSize/2) + "#", " the file is larger than 1 MiB; split it"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(goodTests, test.from) {
				t.Fatalf("no %q", test.from)
			}
			f, err := ParseTests([]byte(strings.Replace(goodTests, test.from, test.to, 1)), "t.yaml")
			var mistakes ErrorList
			if f != nil || !errors.As(err, &mistakes) || err.Error() != "t.yaml:"+test.want {
				t.Errorf("\n got %v\nwant t.yaml:%s", err, test.want)
			}
		})
	}
}

// FuzzParseTests looks for test files that crash the reader, or that it accepts
// although they say nothing.
func FuzzParseTests(f *testing.F) {
	f.Add([]byte(goodTests))
	for _, text := range []string{"", "{", "kind: PolicyTest\ntests: [null]", "tests:\n- expect: {volume: []}", "tests: [{used: [{}]}]"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := ParseTests(data, "t.yaml")
		if err != nil {
			var mistakes ErrorList
			if file != nil || !errors.As(err, &mistakes) || len(mistakes) == 0 {
				t.Fatalf("ParseTests = %v, %v", file, err)
			}
			return
		}
		for i, test := range file.Tests {
			if test.Name == "" || test.Claim.Namespace == "" || file.Line(i, "") < 1 {
				t.Fatalf("accepted %+v", test)
			}
		}
	})
}
