package policy

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Zone is an availability zone of Cinder with the nodes that use its volumes.
type Zone struct {
	// Name is the zone's name in Cinder.
	Name string `json:"name"`
	// NodeLabels select the nodes, together with those of the backend's connector.
	NodeLabels map[string]string `json:"nodeLabels"`
}

// Placement is where a volume may be on a backend that maps its zones to nodes.
type Placement struct {
	Backend string `json:"backend"`
	// Zones are those in which the volume may be, best first. Their labels include
	// those of the backend's connector.
	Zones []Zone `json:"zones"`
	// AtSource means that Cinder puts the volume into the zone of its source.
	AtSource bool `json:"atSource,omitempty"`
}

// Zone returns the zone of that name, if the volume may be there.
func (p Placement) Zone(name string) (Zone, bool) {
	i := slices.IndexFunc(p.Zones, func(z Zone) bool { return z.Name == name })
	if i < 0 {
		return Zone{}, false
	}
	return p.Zones[i], true
}

// Names returns the names of the zones.
func (p Placement) Names() []string { return zoneNames(p.Zones) }

// PlacementOn returns where the volume may be on a backend of the rule; mapped
// reports whether the backend maps its zones to nodes.
func (d Decision) PlacementOn(backend string) (placement Placement, mapped bool) {
	i := slices.IndexFunc(d.Placements, func(p Placement) bool { return p.Backend == backend })
	if i < 0 {
		return Placement{}, false
	}
	return d.Placements[i], true
}

// VolumeOn returns the volume to create on a backend.
func (d Decision) VolumeOn(backend string) VolumeProperties {
	volume := d.Volume
	if placement, _ := d.PlacementOn(backend); len(placement.Zones) > 0 && !placement.AtSource {
		volume.AvailabilityZone = placement.Zones[0].Name
	}
	if d.ModeOn(backend) == ModeCSI {
		volume.Mode = ModeCSI
	}
	return volume
}

// Location is where a volume can be made: a backend, and the zone in which it is
// requested there; empty if Cinder chooses the zone.
type Location struct{ Backend, Zone string }

// LocationsOn returns the locations on a backend, in the order in which they are
// tried. A copy has only one, since Cinder puts it where its source is.
func (d Decision) LocationsOn(backend string) []Location {
	placement, _ := d.PlacementOn(backend)
	if len(placement.Zones) == 0 || placement.AtSource {
		return []Location{{backend, d.Volume.AvailabilityZone}}
	}
	locations := make([]Location, len(placement.Zones))
	for i, zone := range placement.Zones {
		locations[i] = Location{backend, zone.Name}
	}
	return locations
}

// TryLast moves locations to the end: each behind the other zones of its
// backend, and a backend behind the others if all of its locations are moved.
// Nothing else changes.
func (d Decision) TryLast(last []Location) Decision {
	if len(last) == 0 {
		return d
	}
	isLast := func(at Location) bool { return slices.Contains(last, at) }
	placements := slices.Clone(d.Placements)
	for i, placement := range placements {
		if !placement.AtSource {
			placements[i].Zones = behind(placement.Zones, func(zone Zone) bool { return isLast(Location{placement.Backend, zone.Name}) })
		}
	}
	d.Backends = behind(d.Backends, func(backend string) bool {
		return !slices.ContainsFunc(d.LocationsOn(backend), func(at Location) bool { return !isLast(at) })
	})
	d.Placements = placements
	d.Quotas = slices.Clone(d.Quotas)
	rank := func(s QuotaScope) int {
		if s.Kind != BackendScope {
			return -1
		}
		return slices.Index(d.Backends, s.Name)
	}
	slices.SortStableFunc(d.Quotas, func(a, b QuotaScope) int { return rank(a) - rank(b) })
	return d
}

// behind returns the list with the elements for which isLast is true at the
// end.
func behind[T any](list []T, isLast func(T) bool) []T {
	var first, last []T
	for _, element := range list {
		if isLast(element) {
			last = append(last, element)
		} else {
			first = append(first, element)
		}
	}
	return append(first, last...)
}

// reach is one set of nodes that use the volumes of a backend.
type reach struct {
	zone string
	// labels select the nodes; empty selects all.
	labels map[string]string
}

// reaches returns the sets of nodes that use the backend's volumes: one for
// each of its zones, or only that of the fixed zone, or one if it does not map
// zones.
func (b *Backend) reaches(fixed string) []reach {
	if len(b.Zones) == 0 {
		return []reach{{labels: b.Connector.NodeLabels}}
	}
	var all []reach
	for _, zone := range b.Zones {
		if fixed == "" || zone.Name == fixed {
			all = append(all, reach{zone.Name, b.labelsIn(zone)})
		}
	}
	return all
}

// labelsIn returns the labels of the nodes that use the backend's volumes in a
// zone.
func (b *Backend) labelsIn(zone Zone) map[string]string {
	merged := maps.Clone(b.Connector.NodeLabels)
	if merged == nil {
		merged = map[string]string{}
	}
	maps.Copy(merged, zone.NodeLabels)
	return merged
}

// reachPath returns the field that limits the nodes of a backend.
func (b *Backend) reachPath(path string) string {
	if len(b.Zones) > 0 {
		return document.Child(path, "zones")
	}
	return connectorLabels(path)
}

func connectorLabels(path string) string {
	return document.Child(document.Child(path, "connector"), "nodeLabels")
}

// place finds the zones of a backend whose nodes the claim can use, or denies it
// the backend. A backend that does not map zones has none.
//
// A volume that exists already in another zone is not moved, so the zones of a
// backend without a suitable one are returned, too.
func (d *decider) place(b *Backend, path, fixed string) ([]Zone, *Denial) {
	at := b.reachPath(path)
	all := b.reaches(fixed)
	if len(all) == 0 {
		return nil, d.unmappedZone(b, at, fixed)
	}
	within := slices.DeleteFunc(slices.Clone(all), func(r reach) bool { return !d.request.mayUse(r.labels) })
	if len(within) == 0 {
		return zonesOf(b, all), d.request.outsideTopologies(b, at, all)
	}
	if d.request.Source != nil && len(b.Zones) > 0 {
		// A copy is made where its source is. The scheduler moves the pod, which is not
		// bound to its node before the volume is.
		return zonesOf(b, within), d.request.unreached(b, connectorLabels(path), []reach{{labels: b.Connector.NodeLabels}})
	}
	near := slices.DeleteFunc(slices.Clone(within), func(r reach) bool { return !d.request.Node.has(r.labels) })
	if len(near) == 0 {
		return zonesOf(b, within), d.request.unreached(b, at, within)
	}
	return zonesOf(b, near), nil
}

// zonesOf returns the zones of a backend that maps them.
func zonesOf(b *Backend, reaches []reach) []Zone {
	if len(b.Zones) == 0 {
		return nil
	}
	var zones []Zone
	for _, r := range reaches {
		zones = append(zones, Zone{r.zone, r.labels})
	}
	return zones
}

// unmappedZone denies a backend to a StorageClass that chooses a zone whose nodes
// the backend does not know. Parse rejects rules that fix such a zone.
func (d *decider) unmappedZone(b *Backend, path, zone string) *Denial {
	return &Denial{Reason: ParameterInvalid, Path: path, Message: fmt.Sprintf(
		"StorageClass %s sets the parameter availability to %q, but backend %s has only the zones %s (%s); choose one of them, or add the zone with the labels of its nodes",
		d.request.StorageClass, zone, b.Name, strings.Join(zoneNames(b.Zones), ", "), path)}
}

func zoneNames(zones []Zone) []string {
	var names []string
	for _, zone := range zones {
		names = append(names, zone.Name)
	}
	return names
}

// Pick says which of a rule's backends, and which of their zones, is tried first.
type Pick string

const (
	// PickFirst is the order of the policy. It is the default.
	PickFirst Pick = "first"
	// PickSpread begins with a different one for each claim, and with the next one
	// for the next replica of a StatefulSet.
	PickSpread Pick = "spread"
)

// Picks returns the known picks.
func Picks() []string { return []string{string(PickFirst), string(PickSpread)} }

// RulePicks returns the pick of a rule, by its path.
func (p *Policy) RulePicks(rule string) Pick {
	for c := range p.Rules() {
		if c.path == rule && c.Pick != "" {
			return c.Pick
		}
	}
	return PickFirst
}

// turnOf returns the claim's number among those that are spread. Claims of one
// StatefulSet have consecutive numbers. The number depends on nothing but the
// claim's namespace and name, so that every leader, and policy explain, come to
// the same order. A request without a name has the number 0, and keeps the
// policy's order.
func turnOf(r Request) uint64 {
	if r.Claim == "" {
		return 0
	}
	base, ordinal := splitOrdinal(r.Claim)
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(r.Namespace + "/" + base)) // never fails
	return uint64(hash.Sum32()) + uint64(ordinal)
}

// splitOrdinal splits the claim of a StatefulSet's replica at its last hyphen. A
// name without an ordinal, as Kubernetes writes it, is whole, with the ordinal 0.
func splitOrdinal(name string) (base string, ordinal uint32) {
	i := strings.LastIndexByte(name, '-')
	if i <= 0 {
		return name, 0
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != name[i+1:] {
		return name, 0
	}
	return name[:i], uint32(n)
}

// rotate begins a list with the element whose turn it is.
func rotate[T any](list []T, turn uint64) []T {
	if len(list) == 0 {
		return list
	}
	first := int(turn % uint64(len(list)))
	return slices.Concat(list[first:], list[:first])
}
