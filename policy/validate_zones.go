package policy

import (
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/selectors"
)

// validateZones checks the zones of a backend, and that their nodes are among
// those of the connector.
func validateZones(d *document.Document, backend string, b *Backend) {
	path := document.Child(backend, "zones")
	if d.Has(path) && len(b.Zones) == 0 && !d.IsUnread(path) {
		d.Errorf(path, "the list is empty; name Cinder's availability zones with the labels of their nodes, or remove the key")
	}
	for i, zone := range b.Zones {
		at := document.Element(path, i)
		if name := document.Child(at, "name"); !d.Has(name) {
			d.Errorf(name, "is missing; give the availability zone's name in Cinder")
		} else {
			validateText(d, name, zone.Name)
			if strings.Contains(zone.Name, ",") {
				d.Warnf(name, "%q is one name, not a list; give each zone an entry of its own", zone.Name)
			}
		}
		labels := document.Child(at, "nodeLabels")
		if len(zone.NodeLabels) == 0 && !d.IsUnread(labels) {
			d.Errorf(labels, "is missing or empty; name the labels that only the nodes of the zone have")
		}
		validateLabels(d, labels, zone.NodeLabels)
		for _, key := range slices.Sorted(maps.Keys(zone.NodeLabels)) {
			other, both := b.Connector.NodeLabels[key]
			if !both || other == zone.NodeLabels[key] {
				continue
			}
			connector := document.Child(connectorLabels(backend), key)
			if !d.Has(connector) {
				connector = document.Child(connectorLabels("defaults"), key)
			}
			d.Errorf(document.Child(labels, key), "no node can have both %s=%s and %s=%s, which %s (%s) demands; make them equal, or remove one",
				key, zone.NodeLabels[key], key, other, connector, d.LineOf(connector))
		}
	}
	validateUnique(d, path, len(b.Zones), func(i int) string { return b.Zones[i].Name }, "a zone has one set of nodes")
}

// validatePick checks a rule's pick, and warns if there is nothing to pick
// from.
func (v *validator) validatePick(path string, c *Class) {
	if !v.Has(path) {
		return
	}
	if pick := string(c.Pick); pick != string(PickFirst) && pick != string(PickSpread) {
		v.Errorf(path, "unknown pick %q%s", pick, document.DidYouMean(pick, Picks(), "use one of"))
		return
	}
	if c.Pick != PickSpread || len(c.Backends) != 1 {
		return
	}
	if b, ok := v.Backend(c.Backends[0]); ok && len(b.reaches(c.AvailabilityZone)) < 2 {
		v.Warnf(path, "spread has no effect: the rule has one backend, and claims one zone there; name more backends, or give backend %q zones", b.Name)
	}
}

// validateFixedZone rejects a rule that fixes a zone whose nodes one of its
// backends does not know: none of its claims could be served there.
func (v *validator) validateFixedZone(path string, c *Class) {
	if c.AvailabilityZone == "" {
		return
	}
	for _, name := range c.Backends {
		i := v.backendIndex(name)
		if i < 0 || len(v.Backends[i].reaches(c.AvailabilityZone)) > 0 {
			continue
		}
		zones := document.Child(document.Element("backends", i), "zones")
		v.Errorf(path, "backend %q has no zone %q (%s, %s); add it there with the labels of its nodes, or fix another zone%s",
			name, c.AvailabilityZone, zones, v.LineOf(zones), document.DidYouMean(c.AvailabilityZone, zoneNames(v.Backends[i].Zones), "it has"))
	}
}

// validateTopology checks an allowed topology of a policy test.
func validateTopology(d *document.Document, path string, t Topology) {
	if len(t) == 0 {
		d.Errorf(path, "is empty, so it allows no node; name labels with their values")
	}
	for _, key := range slices.Sorted(maps.Keys(t)) {
		at := document.Child(path, key)
		selectors.CheckKey(d, at, key)
		if len(t[key]) == 0 {
			d.Errorf(at, "the list is empty, so it allows no node; name values of the label")
		}
		for i, value := range t[key] {
			selectors.CheckValue(d, document.Element(at, i), value)
		}
	}
}

// validatePools warns of labels that keep nodes of different tenants apart, but that a
// node may write on itself.
func (v *validator) validatePools() {
	tenants := make([][]string, len(v.Backends))
	for i := range v.Backends {
		for k := range v.Tenants {
			if slices.ContainsFunc(v.Tenants[k].Classes, func(c Class) bool { return slices.Contains(c.Backends, v.Backends[i].Name) }) {
				tenants[i] = append(tenants[i], v.Tenants[k].Name)
			}
		}
	}
	for i := range v.Backends {
		b := &v.Backends[i]
		for _, key := range slices.Sorted(maps.Keys(b.Connector.NodeLabels)) {
			other := slices.IndexFunc(v.Backends[:i], func(o Backend) bool {
				value, both := o.Connector.NodeLabels[key]
				return both && value != b.Connector.NodeLabels[key]
			})
			if other < 0 || slices.Equal(tenants[i], tenants[other]) || mayOnlyAdministratorsWrite(key) {
				continue
			}
			at := document.Child(connectorLabels(document.Element("backends", i)), key)
			if !v.Has(at) {
				at = document.Child(connectorLabels("defaults"), key)
			}
			v.Warnf(at, "the label %s keeps the nodes of backends %q and %q apart, which different tenants use, but a node may write it on itself; if root on a node of one must not get the volumes of the other, use a key that begins with node-restriction.kubernetes.io/ (docs/explanation/security.md#tenant-isolation-ends-at-the-node)",
				key, v.Backends[other].Name, b.Name)
		}
	}
}

// mayOnlyAdministratorsWrite reports whether the admission plugin NodeRestriction keeps
// kubelets from writing a label.
func mayOnlyAdministratorsWrite(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return domain == "node-role.kubernetes.io" || domain == "node-restriction.kubernetes.io" || strings.HasSuffix(domain, ".node-restriction.kubernetes.io")
}
