package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// zoned is a policy whose rule spreads claims over two backends, one of which maps
// its zones.
const zoned = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: lab
    auth: {cloud: lab}
    zones:
      - {name: az1, nodeLabels: {rack: a}}
      - {name: az2, nodeLabels: {rack: b}}
  - {name: spare, auth: {cloud: spare}}
tenants:
  - name: a
    namespaces: [a]
    classes:
      - {storageClasses: [fast], backends: [lab, spare], pick: spread}
      - {storageClasses: [slow], backends: [lab], availabilityZone: az2}
`

func TestExplainZones(t *testing.T) {
	file := write(t, zoned)
	const (
		lab   = "\n   N. lab    it may take the volume, in availability zone ZONE\n             connector: host standalone-cinder, initiator derived from the cluster's ID\n"
		zone1 = "             zone az1: nodes with rack=a\n"
		zone2 = "             zone az2: nodes with rack=b\n"
	)
	row := func(position, zone, zones string) string {
		return strings.NewReplacer("N.", position, "ZONE", zone).Replace(lab) + zones
	}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"the policy's order": {[]string{"--storage-class", "fast"}, []string{
			"\nnote: the rule has pick: spread, so the order of backends and zones depends on the claim's name, which is not known; --name gives it\n", "backend lab\n", "    availability zone  az1\n", row("1.", "az1", zone1+zone2)}},
		"a replica":      {[]string{"--storage-class", "fast", "--name", "data-web-0"}, []string{"Claim a/data-web-0: 1Gi ", "backend lab\n", "    availability zone  az2\n", row("1.", "az2", zone2+zone1)}},
		"the next one":   {[]string{"--storage-class", "fast", "--name", "data-web-1"}, []string{"backend spare\n", "    availability zone  Cinder's default\n", row("2.", "az2", zone2+zone1)}},
		"one after that": {[]string{"--storage-class", "fast", "--name", "data-web-2"}, []string{"backend lab\n", "    availability zone  az1\n", row("1.", "az1", zone1+zone2)}},
		"a fixed zone":   {[]string{"--storage-class", "slow"}, []string{"    availability zone  az2 (set by the rule)\n", "\n   1. lab  it may take the volume, in availability zone az2\n", "zone az2: nodes with rack=b\n"}},
		"no claim":       {[]string{"--storage-class", "slow", "--name", "A"}, []string{`denied: InvalidClaim: "A" cannot be the name of a claim`}},
	} {
		t.Run(name, func(t *testing.T) {
			out := run("", append([]string{"explain", "--policy", file, "--namespace", "a", "--size", "1Gi"}, c.args...)...)
			for _, want := range c.want {
				if !strings.Contains(out.stdout, want) {
					t.Errorf("no %q in\n%s%v", want, out.stdout, out.err)
				}
			}
		})
	}
	out := run("", "explain", "--policy", file, "--namespace", "a", "--size", "1Gi", "--storage-class", "slow", "--output", "json")
	var answer struct {
		Claims []struct {
			Volume   struct{ AvailabilityZone string }
			Backends []struct {
				Zones []struct {
					Name       string
					NodeLabels map[string]string
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out.stdout), &answer); err != nil {
		t.Fatal(err)
	}
	claim := answer.Claims[0]
	if zones := claim.Backends[0].Zones; claim.Volume.AvailabilityZone != "az2" || len(zones) != 1 || zones[0].Name != "az2" || zones[0].NodeLabels["rack"] != "b" {
		t.Errorf("the answer has %+v", claim)
	}
}

func TestZonesInPolicyTests(t *testing.T) {
	tests := `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
policy: ` + write(t, zoned) + `
tests:
  - name: the zone of the node
    claim: {namespace: a, storageClass: fast, size: 1Gi, nodeLabels: {rack: b}}
    expect: {backends: [lab, spare], volume: {availabilityZone: az2}}
  - name: the zone within the topologies
    claim: {namespace: a, storageClass: fast, size: 1Gi, allowedTopologies: [{rack: [b, c]}]}
    expect: {backends: [lab], volume: {availabilityZone: az2}}
  - name: a replica
    claim: {namespace: a, storageClass: fast, size: 1Gi, name: data-web-1}
    expect: {backends: [spare, lab]}
  - name: a node of no zone
    claim: {namespace: a, storageClass: slow, size: 1Gi, nodeLabels: {rack: c}}
    expect: {denied: NodeNotReached, message: "(zone az2)"}
  - name: topologies without a zone
    claim: {namespace: a, storageClass: slow, size: 1Gi, allowedTopologies: [{rack: [a]}]}
    expect: {denied: UnsupportedTopology}
`
	if out := run(tests, "test", "-"); out.err != nil || !strings.Contains(out.stdout, "5 passed, 0 failed") {
		t.Errorf("%v\n%s", out.err, out.stdout)
	}
	wrong := strings.Replace(tests, "availabilityZone: az2", "availabilityZone: az1", 1)
	if out := run(wrong, "test", "-"); out.err == nil || !strings.Contains(out.stdout, "- volume.availabilityZone: az1\n        + volume.availabilityZone: az2\n") {
		t.Errorf("%v\n%s", out.err, out.stdout)
	}
}

// TestWarningsAboutZones: what the zones of a rule's backends reach together is
// enough.
func TestWarningsAboutZones(t *testing.T) {
	const waits = "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: CLASS}\nprovisioner: openstack.org/standalone-cinder\nvolumeBindingMode: WaitForFirstConsumer\n"
	topologies := func(values string) string {
		return "allowedTopologies: [{matchLabelExpressions: [{key: rack, values: [" + values + "]}]}]\n"
	}
	const note = "note: StorageClass fast has volumeBindingMode: WaitForFirstConsumer, but backend lab of tenants[0].classes[0] exports volumes only to some nodes (backends[0].zones): a claim"
	alone := strings.Replace(zoned, "[lab, spare], pick: spread", "[lab]", 1)
	for name, c := range map[string]struct {
		policy, topologies string
		warned             bool
	}{
		"zones alone":                       {alone, "", true},
		"a backend for every node":          {zoned, "", false},
		"topologies of one zone":            {alone, topologies("a"), false},
		"topologies of both zones":          {alone, topologies("a, b"), false},
		"topologies beyond the zones":       {alone, topologies("a, b, c"), true},
		"topologies beyond the fixed zone":  {strings.Replace(alone, "backends: [lab]}", "backends: [lab], availabilityZone: az1}", 1), topologies("a, b"), true},
		"topologies of the fixed zone":      {strings.Replace(alone, "backends: [lab]}", "backends: [lab], availabilityZone: az1}", 1), topologies("a"), false},
		"zones and a connector with labels": {strings.Replace(alone, "    zones:", "    connector: {nodeLabels: {site: north}}\n    zones:", 1), topologies("a"), true},
	} {
		t.Run(name, func(t *testing.T) {
			out := run(simpleClaim+strings.Replace(waits, "CLASS", "fast", 1)+c.topologies, "explain", "--policy", write(t, c.policy), "-n", "a", "-")
			if got := strings.Contains(out.stdout, note); out.err != nil || got != c.warned {
				t.Errorf("warned: %t, want %t: %v\n%s", got, c.warned, out.err, out.stdout)
			}
		})
	}
}
