package provisioner

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// zones configures a backend whose connector also selects nodes.
const zones = `
    connector: {nodeLabels: {site: north}}
    zones:
      - {name: az1, nodeLabels: {rack: a}}
      - {name: az2, nodeLabels: {rack: b}}`

// zoned returns a fixture whose backend gold maps its zones, with a node in each.
func zoned(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}"+zones)
	f.labelsOfNode = map[string]map[string]string{}
	for _, rack := range []string{"a", "b", "c"} {
		f.labelsOfNode["node-"+rack] = map[string]string{"rack": rack, "site": "north"}
	}
	f.count()
	return f
}

// onNode returns a claim whose pod was scheduled to the named node.
func (f *fixture) onNode(name string) *corev1.PersistentVolumeClaim {
	return f.claim(func(claim *corev1.PersistentVolumeClaim) {
		claim.Annotations[admission.SelectedNodeAnnotation] = name
	})
}

func affinityOf(t *testing.T, pv *corev1.PersistentVolume) string {
	t.Helper()
	if pv == nil || pv.Spec.NodeAffinity == nil {
		return ""
	}
	var labels []string
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, expression := range term.MatchExpressions {
			labels = append(labels, expression.Key+"="+strings.Join(expression.Values, "|"))
		}
	}
	return strings.Join(labels, ",")
}

func TestVolumeIsMadeInTheZoneOfTheNode(t *testing.T) {
	for node, want := range map[string]string{"node-a": "az1 rack=a,site=north", "node-b": "az2 rack=b,site=north", "unknown": "az1 rack=a,site=north"} {
		t.Run(node, func(t *testing.T) {
			f := zoned(t)
			pv, err := f.provision(f.onNode(node))
			f.must(err)
			spec := f.backends["gold"].specs[0]
			if got := spec.Zone + " " + affinityOf(t, pv); got != want {
				t.Errorf("the volume is in %s, want %s", got, want)
			}
			zone, _, _ := strings.Cut(want, " ")
			f.wantEvent("Normal BackendChosen tenant a, rule tenants[0].classes[1]: 2 GiB on backend gold, availability zone " + zone)
		})
	}
}

// TestZoneOfTheVolumeDecides: the PersistentVolume leads pods to the zone where
// Cinder has the volume, whatever this attempt would have requested.
func TestZoneOfTheVolumeDecides(t *testing.T) {
	for name, c := range map[string]struct {
		node string
		// change changes the policy before the attempt.
		change func(*fixture)
		// at is where an earlier attempt left the volume.
		at string
		// requested is the zone in which the attempt would create a volume, zones are
		// those that it accepts.
		requested, zones, affinity string
	}{
		"as chosen now":                         {at: "az1", requested: "az1", zones: "az1,az2", affinity: "rack=a,site=north"},
		"in the other zone":                     {at: "az2", requested: "az1", zones: "az1,az2", affinity: "rack=b,site=north"},
		"the order of the zones changed":        {at: "az1", change: swapped, requested: "az2", zones: "az2,az1", affinity: "rack=a,site=north"},
		"the zone has other nodes now":          {at: "az2", change: func(f *fixture) { f.withZones("rack: b", "rack: z") }, requested: "az1", zones: "az1,az2", affinity: "rack=z,site=north"},
		"the backend is suspended now":          {at: "az2", change: func(f *fixture) { f.withZones("connector:", "suspended: true\n    connector:") }, requested: "az1", zones: "az1,az2", affinity: "rack=b,site=north"},
		"another backend reaches the node only": {at: "az2", node: "node-c", requested: "az1", zones: "az1,az2", affinity: "rack=b,site=north"},
	} {
		t.Run(name, func(t *testing.T) {
			f := zoned(t)
			f.class.Name = "both"
			gold := f.backends["gold"]
			gold.listed = []cinder.Volume{f.stamped("uid-1")}
			f.newTerm(nil)
			f.placement.Recount("gold")
			f.count()
			if c.change != nil {
				c.change(f)
			}
			claim := f.onNode(c.node)
			f.noteEarlier(claim)
			gold.zone = c.at
			pv, err := f.provision(claim)
			f.must(err)
			if got := affinityOf(t, pv); got != c.affinity {
				t.Errorf("pods are led to %s, want %s", got, c.affinity)
			}
			if spec := gold.specs[0]; spec.Zone != c.requested || strings.Join(spec.Zones, ",") != c.zones {
				t.Errorf("requested in zone %s of %v, want %s of %s", spec.Zone, spec.Zones, c.requested, c.zones)
			}
		})
	}
}

// withZones changes the zones of backend gold in the policy in force.
func (f *fixture) withZones(before, after string) {
	f.inForce("auth: {cloud: gold}", "auth: {cloud: gold}"+strings.Replace(zones, before, after, 1))
}

func swapped(f *fixture) {
	f.withZones("      - {name: az1, nodeLabels: {rack: a}}\n      - {name: az2, nodeLabels: {rack: b}}", "      - {name: az2, nodeLabels: {rack: b}}\n      - {name: az1, nodeLabels: {rack: a}}")
}

// TestVolumeOfAnUnusableZoneIsUndone: Cinder may use another zone than the requested
// one.
func TestVolumeOfAnUnusableZoneIsUndone(t *testing.T) {
	for name, c := range map[string]struct{ node, at, only string }{
		"a zone without nodes":             {at: "nova", only: "az1, az2"},
		"no zone":                          {at: "-", only: "az1, az2"},
		"a zone that misses the node":      {node: "node-b", at: "az1", only: "az2"},
		"a zone outside of the topologies": {node: "in-the-topology", at: "az1", only: "az2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := zoned(t)
			if c.node == "in-the-topology" {
				f.class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "rack", Values: []string{"b"}}}}}
			}
			gold := f.backends["gold"]
			gold.zone = c.at
			pv, err := f.provision(f.onNode(c.node))
			want := `backend gold: volume volume-1 is in availability zone "` + c.at + `", but the claim can use only ` + c.only + `, so the program removes it; correct the zones of the backend in the policy, or allow_availability_zone_fallback in cinder.conf`
			if pv != nil || err == nil || err.Error() != want {
				t.Errorf("error %v\n want %s", err, want)
			}
			wantCalls(t, gold, "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
			// Once Cinder uses the requested zone, the claim is served.
			gold.zone = ""
			pv, err = f.provision(f.onNode(c.node))
			f.must(err)
			if affinityOf(t, pv) == "" {
				t.Error("the PersistentVolume leads pods to any node")
			}
		})
	}
}

func TestBackendWithoutZonesIsAsBefore(t *testing.T) {
	f := newFixture(t)
	f.inForce("backends: [gold, silver]", "backends: [silver], availabilityZone: az7")
	f.class.Name = "both"
	f.backends["silver"].zone = "somewhere"
	pv, err := f.provision(f.claim(nil))
	f.must(err)
	got, err := json.Marshal(f.backends["silver"].specs[0].Zones)
	f.must(err)
	if spec := f.backends["silver"].specs[0]; spec.Zone != "az7" || string(got) != "null" || affinityOf(t, pv) != "storage=fc,zone=a" {
		t.Errorf("requested in %s of %s, for nodes with %s", spec.Zone, got, affinityOf(t, pv))
	}
}

// TestClaimOfAnotherZoneIsDenied: a tenant reaches another zone neither by the
// StorageClass nor by the node.
func TestClaimOfAnotherZoneIsDenied(t *testing.T) {
	for name, c := range map[string]struct {
		node   string
		class  func(*storagev1.StorageClass)
		reason string
	}{
		"by a parameter": {class: func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"availability": "az1"} }, reason: "Warning ParameterNotAllowed "},
		"by the node":    {node: "node-a", class: func(*storagev1.StorageClass) {}, reason: "Warning NodeNotReached "},
	} {
		t.Run(name, func(t *testing.T) {
			f := zoned(t)
			f.current.Store(parsePolicy(t, strings.Replace(strings.Replace(testPolicy, "auth: {cloud: gold}", "auth: {cloud: gold}"+zones, 1),
				"{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], availabilityZone: az2}", 1)))
			c.class(f.class)
			claim := f.onNode(c.node)
			if f.admits(claim) {
				t.Fatal("the claim was admitted")
			}
			if events := f.newEvents(); len(events) != 1 || !strings.HasPrefix(events[0], c.reason) {
				t.Errorf("events %q, want %s", events, c.reason)
			}
			wantCalls(t, f.backends["gold"])
		})
	}
}
