package mappers

import (
	"fmt"
	"slices"
	"strings"
)

// Cinder describes the paths to an iSCSI volume twice: by the flat keys target_portal,
// target_iqn and target_lun, and by the parallel lists target_portals, target_iqns and
// target_luns. Drivers send either or both, and some only part of the flat ones.
const (
	portalKey, portalsKey = "target_portal", "target_portals"
	targetKey, targetsKey = "target_iqn", "target_iqns"
	lunKey, lunsKey       = "target_lun", "target_luns"
)

// flatPath is the path in the flat keys; a key may be absent.
type flatPath struct {
	iscsiPath
	hasPortal, hasTarget, hasLUN bool
}

func (f flatPath) complete() bool { return f.hasPortal && f.hasTarget && f.hasLUN }

// agrees reports whether the flat keys may describe a listed path.
func (f flatPath) agrees(path iscsiPath) bool {
	return (!f.hasPortal || f.portal == path.portal) && (!f.hasTarget || f.target == path.target) && (!f.hasLUN || f.lun == path.lun)
}

// iscsiConnection is a connection of protocol iscsi or iser.
type iscsiConnection struct {
	Connection
	// unlimited is set for a driver, which may accept LUNs and names that Kubernetes' own
	// sources cannot.
	unlimited bool
}

// paths returns the different paths of a connection, the primary first, all with the same
// LUN unless it is unlimited. There is at least one.
//
// The primary is the flat path if it is complete (some drivers choose it at random from
// the listed ones, so it differs between answers for the same volume), otherwise the
// first listed path that the flat keys do not contradict. Parts of different paths are
// never combined into one.
func (c iscsiConnection) paths() ([]iscsiPath, []string, error) {
	flat, err := c.flatPath()
	if err != nil {
		return nil, nil, err
	}
	listed, warnings, err := c.listedPaths(flat)
	if err != nil {
		return nil, nil, err
	}
	if !flat.complete() && len(listed) == 0 {
		return nil, nil, c.missingKeys(flat)
	}

	// A source has one LUN. If paths differ, the lists join two arrays, and choosing one
	// would lose the failover that the volume is for.
	for _, path := range listed {
		if path.lun != listed[0].lun && !c.unlimited {
			return nil, nil, refuse(UnsupportedConnection,
				"%s names different LUNs (%d and %d), as arrays that mirror a volume do, but an iSCSI source of Kubernetes has one; use a volume type without the mirror, or make its arrays agree on the LUN",
				lunsKey, listed[0].lun, path.lun)
		}
	}

	var paths []iscsiPath
	if flat.complete() {
		if err := c.checkPair(flat, listed); err != nil {
			return nil, nil, err
		}
		paths = append([]iscsiPath{flat.iscsiPath}, listed...)
	} else {
		primary := slices.IndexFunc(listed, flat.agrees)
		if primary < 0 {
			return nil, nil, c.contradiction("no entry of the lists agrees with them")
		}
		paths = append([]iscsiPath{listed[primary]}, listed...)
	}
	return distinct(paths), warnings, nil
}

// flatPath reads the flat keys.
func (c iscsiConnection) flatPath() (flatPath, error) {
	flat := flatPath{}
	var err error
	if value, present := c.value(portalKey); present {
		flat.hasPortal = true
		portal, ok := value.(string)
		if !ok {
			return flat, c.wrongType(portalKey, value, "a string")
		}
		if flat.portal, err = c.portal(portalKey, portal); err != nil {
			return flat, err
		}
	}
	if value, present := c.value(targetKey); present {
		flat.hasTarget = true
		name, ok := value.(string)
		if !ok {
			return flat, c.wrongType(targetKey, value, "a string")
		}
		if flat.target, err = c.target(targetKey, name); err != nil {
			return flat, err
		}
	}
	if value, present := c.value(lunKey); present {
		flat.hasLUN = true
		if flat.lun, err = c.lun(lunKey, value); err != nil {
			return flat, err
		}
	}
	if flat.hasPortal && flat.hasTarget {
		return flat, c.checkPortSuffix(targetKey, flat.iscsiPath)
	}
	return flat, nil
}

// pathLists are the lists of a connection; those present have equal lengths.
type pathLists struct {
	portals []address
	targets []string
	luns    []int32
}

// pathLists reads the lists. os-brick (connectors/base_iscsi.py) cuts lists of different
// lengths to the shortest, but a PersistentVolume outlives such a guess.
func (c iscsiConnection) pathLists() (pathLists, error) {
	lists := pathLists{}
	portals, err := c.texts(portalsKey, false)
	if err != nil {
		return lists, err
	}
	for index, portal := range portals {
		read, err := c.portal(at(portalsKey, index), portal)
		if err != nil {
			return lists, err
		}
		lists.portals = append(lists.portals, read)
	}
	if lists.targets, err = c.texts(targetsKey, false); err != nil {
		return lists, err
	}
	for index, name := range lists.targets {
		if _, err := c.target(at(targetsKey, index), name); err != nil {
			return lists, err
		}
	}
	luns, err := c.list(lunsKey)
	if err != nil {
		return lists, err
	}
	for index, lun := range luns {
		read, err := c.lun(at(lunsKey, index), lun)
		if err != nil {
			return lists, err
		}
		lists.luns = append(lists.luns, read)
	}

	longest := max(len(lists.portals), len(lists.targets), len(lists.luns))
	for _, length := range []int{len(lists.portals), len(lists.targets), len(lists.luns)} {
		if length != 0 && length != longest {
			present, _ := lists.describe()
			return lists, refuse(InvalidConnection, "the lists %s differ in length, so which portal serves which target is unknown; check the cinder-volume log for a controller or port that is down", present)
		}
	}
	return lists, nil
}

// describe names the lists that the connection has, with their lengths, and those that it
// lacks.
func (l pathLists) describe() (present, absent string) {
	var there, missing []string
	for _, list := range []struct {
		key    string
		length int
	}{{portalsKey, len(l.portals)}, {targetsKey, len(l.targets)}, {lunsKey, len(l.luns)}} {
		if list.length == 0 {
			missing = append(missing, list.key)
		} else {
			there = append(there, fmt.Sprintf("%s (%d)", list.key, list.length))
		}
	}
	return strings.Join(there, ", "), strings.Join(missing, " and ")
}

// listedPaths pairs the lists. As in os-brick, there are paths only if both portals and
// targets are listed, and a flat LUN replaces a missing list of LUNs. Other lists are
// ignored with a warning if the flat keys alone give a path.
func (c iscsiConnection) listedPaths(flat flatPath) ([]iscsiPath, []string, error) {
	lists, err := c.pathLists()
	if err != nil {
		return nil, nil, err
	}
	if len(lists.portals) > 0 && len(lists.targets) > 0 && (len(lists.luns) > 0 || flat.hasLUN) {
		paths := make([]iscsiPath, len(lists.portals))
		for index := range paths {
			paths[index] = iscsiPath{portal: lists.portals[index], target: lists.targets[index], lun: flat.lun}
			if len(lists.luns) > 0 {
				paths[index].lun = lists.luns[index]
			}
			if err := c.checkPortSuffix(at(targetsKey, index), paths[index]); err != nil {
				return nil, nil, err
			}
		}
		return paths, nil, nil
	}

	present, absent := lists.describe()
	if present == "" {
		return nil, nil, nil
	}
	if !flat.complete() {
		return nil, nil, c.missingKeys(flat)
	}
	if index := slices.IndexFunc(lists.luns, func(lun int32) bool { return lun != flat.lun }); index >= 0 {
		return nil, nil, c.contradiction(fmt.Sprintf("%s is %d", at(lunsKey, index), lists.luns[index]))
	}
	return nil, []string{fmt.Sprintf("%s cannot be paired without %s and is not used: the volume has only the path of the flat keys", present, absent)}, nil
}

// checkPair refuses a complete flat path that the lists contradict.
func (c iscsiConnection) checkPair(flat flatPath, listed []iscsiPath) error {
	if len(listed) == 0 || slices.Contains(listed, flat.iscsiPath) {
		return nil
	}
	if flat.lun != listed[0].lun {
		return c.contradiction(fmt.Sprintf("%s is %d and %s is %d", lunKey, flat.lun, at(lunsKey, 0), listed[0].lun))
	}
	// A portal listed only with other targets was combined with another path's target.
	if slices.ContainsFunc(listed, func(path iscsiPath) bool { return path.portal == flat.portal }) {
		return c.contradiction(fmt.Sprintf("%s is listed with other targets than %s", portalKey, targetKey))
	}
	return nil
}

func (c iscsiConnection) contradiction(what string) *Refusal {
	return refuse(InvalidConnection, "the flat keys (%s) contradict the lists (%s): %s; check the cinder-volume log, because this backend's driver failed to describe the connection",
		strings.Join([]string{portalKey, targetKey, lunKey}, ", "), strings.Join([]string{portalsKey, targetsKey, lunsKey}, ", "), what)
}

// missingKeys names the missing flat keys. Those that no list replaces are the cause. If
// a list replaces each of them, the lists are incomplete.
func (c iscsiConnection) missingKeys(flat flatPath) *Refusal {
	var missing, irreplaceable []string
	for _, key := range []struct {
		present    bool
		flat, list string
	}{{flat.hasPortal, portalKey, portalsKey}, {flat.hasTarget, targetKey, targetsKey}, {flat.hasLUN, lunKey, lunsKey}} {
		if key.present {
			continue
		}
		missing = append(missing, key.flat)
		if list, _ := c.list(key.list); len(list) == 0 {
			irreplaceable = append(irreplaceable, key.flat)
		}
	}
	if len(irreplaceable) > 0 {
		missing = irreplaceable
	}
	verb := "is"
	if len(missing) > 1 {
		verb = "are"
	}
	return refuse(InvalidConnection, "%s %s missing and the lists do not give a complete path either; check the cinder-volume log to see why the driver sends only part of a path (a missing LUN is never taken for 0)",
		strings.Join(missing, " and "), verb)
}

// portal reads "host:port".
func (c iscsiConnection) portal(field, value string) (address, error) {
	if value == "" {
		return address{}, refuse(InvalidConnection, "%s is empty; check the cinder-volume log to see why the volume has no target", field)
	}
	portal, err := parsePortal(value)
	if err != nil {
		return address{}, refuse(InvalidConnection, "%s is %s, which %v; expected host:port or [IPv6]:port, correct the backend's iSCSI address in cinder.conf",
			field, c.quote(value), err)
	}
	return portal, nil
}

// checkPortSuffix rejects a target name with its portal's port appended. Many arrays'
// names end with other numbers.
func (c iscsiConnection) checkPortSuffix(field string, path iscsiPath) error {
	if strings.HasSuffix(path.target, fmt.Sprintf(":%d", path.portal.port)) {
		return refuse(InvalidConnection, "%s is %s, which ends in the port of its portal; a target name has no port, correct the backend's driver or its settings",
			field, c.quote(path.target))
	}
	return nil
}

// distinct drops repeated paths and keeps the order.
func distinct(paths []iscsiPath) []iscsiPath {
	seen := make(map[iscsiPath]bool, len(paths))
	var kept []iscsiPath
	for _, path := range paths {
		if !seen[path] {
			seen[path] = true
			kept = append(kept, path)
		}
	}
	return kept
}
