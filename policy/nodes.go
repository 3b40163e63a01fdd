package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// StorageClass is what matters to a policy in a StorageClass, apart from its parameters.
type StorageClass struct {
	Name string
	// Topologies are its allowedTopologies, of which one must apply. Without
	// any, every node is allowed.
	Topologies []Topology
	// WaitsForPod is volumeBindingMode WaitForFirstConsumer.
	WaitsForPod bool
	// Expandable is allowVolumeExpansion.
	Expandable bool
}

// Topology has the values that nodes may have, by label. Nodes need all labels;
// as in Kubernetes, an empty topology allows no node.
type Topology map[string][]string

// Node is the node that the scheduler selected for the pod of a claim.
type Node struct {
	Name   string
	Labels map[string]string
}

// contains reports whether all nodes with the labels are within the topology.
func (t Topology) contains(nodeLabels map[string]string) bool {
	for key, values := range t {
		if value, ok := nodeLabels[key]; !ok || !slices.Contains(values, value) {
			return false
		}
	}
	return len(t) > 0
}

// within reports whether all nodes of the topology have the labels.
func (t Topology) within(nodeLabels map[string]string) bool {
	for key, value := range nodeLabels {
		if len(t[key]) == 0 || slices.ContainsFunc(t[key], func(allowed string) bool { return allowed != value }) {
			return false
		}
	}
	return true
}

// has reports whether the node has the labels. An unknown node has all.
func (n *Node) has(nodeLabels map[string]string) bool {
	if n == nil {
		return true
	}
	for key, value := range nodeLabels {
		if has, ok := n.Labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// mayUse reports whether all nodes with the labels are within the StorageClass's
// allowedTopologies.
func (r Request) mayUse(nodeLabels map[string]string) bool {
	return len(r.Topologies) == 0 || slices.ContainsFunc(r.Topologies, func(t Topology) bool { return t.contains(nodeLabels) })
}

// outsideTopologies denies a claim a backend whose volumes may be used outside the
// StorageClass's allowedTopologies.
func (r Request) outsideTopologies(b *Backend, path string, reaches []reach) *Denial {
	where := nodesText(reaches)
	if len(b.Zones) == 0 && len(b.Connector.NodeLabels) == 0 {
		where = "every node"
	}
	remedy := "give the backend nodeLabels that are among them"
	if len(b.Zones) > 0 {
		remedy = "give a zone of the backend nodeLabels that are among them"
	}
	return &Denial{Reason: UnsupportedTopology, Path: path, Message: fmt.Sprintf(
		"StorageClass %s has allowedTopologies, but the volumes of backend %s can be used on %s (%s); remove allowedTopologies, or %s",
		r.StorageClass, b.Name, where, path, remedy)}
}

// unreached denies a claim a backend whose volumes are used on other nodes than its
// pod's.
func (r Request) unreached(b *Backend, path string, reaches []reach) *Denial {
	if slices.ContainsFunc(reaches, func(reach reach) bool { return r.Node.has(reach.labels) }) {
		return nil
	}
	return &Denial{Reason: NodeNotReached, Path: path, Message: fmt.Sprintf(
		"the claim's pod was scheduled to node %s, but backend %s exports volumes only to %s (%s); give StorageClass %s allowedTopologies with these labels, so that no pod is scheduled elsewhere",
		r.Node.Name, b.Name, nodesText(reaches), path, r.StorageClass)}
}

// nodesText describes the nodes of a backend without zones, or of some of its zones.
func nodesText(reaches []reach) string {
	var texts []string
	for _, reach := range reaches {
		text := labelsText(reach.labels)
		if reach.zone != "" {
			text += " (zone " + reach.zone + ")"
		}
		texts = append(texts, text)
	}
	return "nodes with the labels " + strings.Join(texts, ", or ")
}

// labelsText writes labels as kubectl accepts them.
func labelsText(of map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		pairs = append(pairs, key+"="+of[key])
	}
	return strings.Join(pairs, ",")
}

// ClassWarnings lists what a StorageClass promises but its claims will, or may, not get.
// A tenant restricts the warnings to its claims; empty means all tenants.
func (p *Policy) ClassWarnings(class StorageClass, tenant string) []string {
	var warnings []string
	if class.Expandable && p.mayBeNative(class.Name, tenant) {
		warnings = append(warnings, fmt.Sprintf(
			"StorageClass %s has allowVolumeExpansion: true, but the kubelet does not grow the filesystems of iSCSI and Fibre Channel volumes: after each expansion, run kubectl cinder grow, or grow the filesystem on the node and annotate the claim (docs/how-to/grow-volumes.md); raw block volumes need only a rescan", class.Name))
	}
	if !class.WaitsForPod {
		return warnings
	}
	topologies := class.Topologies
	if len(topologies) == 0 {
		topologies = []Topology{{}}
	}
	for i := range p.Tenants {
		t := &p.Tenants[i]
		if tenant != "" && tenant != t.Name {
			continue
		}
		c := t.rule(class.Name)
		if c == nil {
			continue
		}
		if name, path, ok := p.missesNodes(c, topologies); ok {
			warnings = append(warnings, fmt.Sprintf(
				"StorageClass %s has volumeBindingMode: WaitForFirstConsumer, but backend %s of %s exports volumes only to some nodes (%s): a claim whose pod is scheduled to another node waits (%s) until the scheduler selects one that they reach; give the StorageClass allowedTopologies with these labels",
				class.Name, name, c.path, path, NodeNotReached))
		}
	}
	return warnings
}

// mayBeNative reports whether claims of a StorageClass may get volumes that the kubelet
// mounts without a driver: one of its rules names a backend that mentions no protocol, or
// does not map all that it mentions to drivers.
func (p *Policy) mayBeNative(storageClass, tenant string) bool {
	for i := range p.Tenants {
		t := &p.Tenants[i]
		c := t.rule(storageClass)
		if c == nil || tenant != "" && tenant != t.Name {
			continue
		}
		for _, name := range c.Backends {
			if b, ok := p.Backend(name); ok && !c.isCSI(b) && !b.usesDrivers() {
				return true
			}
		}
	}
	return false
}

// usesDrivers reports whether the backend maps every protocol it mentions to a driver.
func (b *Backend) usesDrivers() bool {
	for _, m := range b.Mapping {
		if m.As != mapping.CSI && m.As != mapping.FlexVolume {
			return false
		}
	}
	return len(b.Mapping) > 0
}

// rule returns the tenant's rule for a StorageClass, or nil.
func (t *Tenant) rule(storageClass string) *Class {
	for i := range t.Classes {
		if t.Classes[i].takes(storageClass) {
			return &t.Classes[i]
		}
	}
	return nil
}

// missesNodes finds a backend that does not reach every possible node of a pod, unless
// the rule's backends together reach them all.
func (p *Policy) missesNodes(c *Class, topologies []Topology) (name, path string, found bool) {
	var limited []int
	var all []map[string]string
	for _, name := range c.Backends {
		i := p.backendIndex(name)
		if i < 0 || p.Backends[i].Suspended {
			continue
		}
		for _, reach := range p.Backends[i].reaches(c.AvailabilityZone) {
			all = append(all, reach.labels)
			if len(reach.labels) > 0 && !slices.Contains(limited, i) {
				limited = append(limited, i)
			}
		}
	}
	missed := slices.ContainsFunc(topologies, func(t Topology) bool { return t.parts(all) <= maxParts && !t.covered(all) })
	if len(limited) == 0 || !missed {
		return "", "", false
	}
	b := &p.Backends[limited[0]]
	return b.Name, b.reachPath(document.Element("backends", limited[0])), true
}

// maxParts bounds the compared parts of a topology, because the result is only a warning.
const maxParts = 10_000

// parts returns the largest number of parts into which covered splits the topology.
func (t Topology) parts(sets []map[string]string) int {
	n := 1
	for key, values := range t {
		if slices.ContainsFunc(sets, func(set map[string]string) bool { _, ok := set[key]; return ok }) {
			n = min(n*max(len(values), 1), maxParts+1)
		}
	}
	return n
}

// covered reports whether every node of the topology has all labels of one of the sets.
// Labels in the sets for which the topology has several values split it.
func (t Topology) covered(sets []map[string]string) bool {
	if slices.ContainsFunc(sets, t.within) {
		return true
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		values := t[key]
		if len(values) < 2 || !slices.ContainsFunc(sets, func(set map[string]string) bool { _, ok := set[key]; return ok }) {
			continue
		}
		for _, value := range values {
			part := maps.Clone(t)
			part[key] = []string{value}
			relevant := slices.DeleteFunc(slices.Clone(sets), func(set map[string]string) bool {
				other, ok := set[key]
				return ok && other != value
			})
			if !part.covered(relevant) {
				return false
			}
		}
		return true
	}
	return false
}
