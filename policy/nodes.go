package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// StorageClass is what a policy can say something about in a StorageClass, apart
// from its parameters.
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

// unreachable denies a claim a backend whose volumes are used on other nodes than
// the claim's.
func (r Request) unreachable(b *Backend, path string) *Denial {
	path = document.Child(document.Child(path, "connector"), "nodeLabels")
	selected := b.Connector.NodeLabels
	if len(r.Topologies) > 0 && !slices.ContainsFunc(r.Topologies, func(t Topology) bool { return t.contains(selected) }) {
		where := "every node"
		if len(selected) > 0 {
			where = "nodes with the labels " + labelsText(selected)
		}
		return &Denial{Reason: UnsupportedTopology, Path: path, Message: fmt.Sprintf(
			"StorageClass %s has allowedTopologies, but the volumes of backend %s can be used on %s (%s); remove allowedTopologies, or give the backend nodeLabels that are among them",
			r.StorageClass, b.Name, where, path)}
	}
	if r.Node == nil {
		return nil
	}
	for key, value := range selected {
		if has, ok := r.Node.Labels[key]; !ok || has != value {
			return &Denial{Reason: NodeNotReached, Path: path, Message: fmt.Sprintf(
				"the claim's pod was scheduled to node %s, but backend %s exports volumes only to nodes with the labels %s (%s); give StorageClass %s allowedTopologies with these labels, then remove the annotation volume.kubernetes.io/selected-node from the claim, so that the pod is scheduled again",
				r.Node.Name, b.Name, labelsText(selected), path, r.StorageClass)}
		}
	}
	return nil
}

// labelsText writes labels as kubectl accepts them.
func labelsText(of map[string]string) string {
	var pairs []string
	for _, key := range sortedKeys(of) {
		pairs = append(pairs, key+"="+of[key])
	}
	return strings.Join(pairs, ",")
}

// ClassWarnings are what a StorageClass promises, and claims of it will or may
// not get. A tenant restricts the warnings to its claims; empty means all.
func (p *Policy) ClassWarnings(class StorageClass, tenant string) []string {
	var warnings []string
	if class.Expandable && p.mayBeNative(class.Name, tenant) {
		warnings = append(warnings, fmt.Sprintf(
			"StorageClass %s has allowVolumeExpansion: true, but the kubelet does not grow the filesystems of iSCSI and Fibre Channel volumes: after each expansion, someone must grow the filesystem on the node and annotate the claim (docs/how-to/grow-volumes.md); raw block volumes need only a rescan", class.Name))
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
				"StorageClass %s has volumeBindingMode: WaitForFirstConsumer, but backend %s of %s exports volumes only to some nodes (%s): a claim whose pod is scheduled to another node is denied as %s; give the StorageClass allowedTopologies with these labels",
				class.Name, name, c.path, path, NodeNotReached))
		}
	}
	return warnings
}

// mayBeNative reports whether claims of a StorageClass may get volumes that the
// kubelet mounts without a driver: a rule for it names a backend that does not map
// every protocol it mentions to a driver, or mentions none.
func (p *Policy) mayBeNative(storageClass, tenant string) bool {
	for i := range p.Tenants {
		t := &p.Tenants[i]
		c := t.rule(storageClass)
		if c == nil || tenant != "" && tenant != t.Name {
			continue
		}
		for _, name := range c.Backends {
			if b, ok := p.Backend(name); ok && !b.usesDrivers() {
				return true
			}
		}
	}
	return false
}

// usesDrivers reports whether the backend maps what it mentions to drivers.
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

// missesNodes finds a backend that a pod's node may lie outside of, unless
// another backend of the rule serves that node.
func (p *Policy) missesNodes(c *Class, topologies []Topology) (name, path string, found bool) {
	var restricted []int
	covered := make([]bool, len(topologies))
	for _, name := range c.Backends {
		i := p.backendIndex(name)
		if i < 0 || p.Backends[i].Suspended {
			continue
		}
		for k, topology := range topologies {
			covered[k] = covered[k] || topology.within(p.Backends[i].Connector.NodeLabels)
		}
		if len(p.Backends[i].Connector.NodeLabels) > 0 {
			restricted = append(restricted, i)
		}
	}
	if len(restricted) == 0 || !slices.Contains(covered, false) {
		return "", "", false
	}
	i := restricted[0]
	return p.Backends[i].Name, document.Element("backends", i) + ".connector.nodeLabels", true
}
