package mappers

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

const (
	wwnKey, wwnsKey = "target_wwn", "target_wwns"
	// initiatorsKey lists the targets that each initiator reaches. initiatorLUNsKey,
	// which os-brick derives from it, adds their LUNs.
	initiatorsKey, initiatorLUNsKey = "initiator_target_map", "initiator_target_lun_map"

	wwnDigits = 16
	// maxFileNameLength is NAME_MAX of Linux. kubelet mounts an fc volume below
	// a directory named after all its targets and its LUN (makePDNameInternal
	// in pkg/volume/fc).
	maxFileNameLength = 255
)

// fibreChannel describes protocol fibre_channel.
func fibreChannel() protocol {
	return protocol{
		about: mapping.Protocol{
			Native: true,
			Keys:   map[mapping.Form][]string{mapping.Native: {"wwid"}},
			Facts:  []string{"targets", "lun", "luns"},
			Fields: []string{
				"target_wwn", "target_wwns", "target_lun", "target_luns", "target_discovered", "initiator_target_map",
				"initiator_target_lun_map", "addressing_mode", "wwn", "map_info",
			},
		},
		builtIn: mapFibreChannel,
		facts:   fibreChannelFacts,
	}
}

// mapFibreChannel maps protocol fibre_channel to the native fc source.
func mapFibreChannel(r request) (Result, error) {
	if err := r.requireNativeAccessModes(); err != nil {
		return Result{}, err
	}
	source := &corev1.FCVolumeSource{FSType: r.filesystem(), ReadOnly: r.readOnly}
	result := Result{Source: corev1.PersistentVolumeSource{FC: source}}
	c, err := readFC(r.Connection)
	if err != nil {
		return Result{}, err
	}
	if result.Warnings, err = r.checkMasking(c.masking); err != nil {
		return Result{}, err
	}
	if r.mapping.WWID != "" {
		source.WWIDs, err = r.fcWWIDs()
		return result, err
	}

	paths, err := c.paths()
	if err != nil {
		return Result{}, r.withHint(err)
	}
	lun := paths[0].lun
	for _, path := range paths {
		if path.lun != lun {
			return Result{}, refuse(UnsupportedConnection,
				"the paths have different LUNs (%d and %d), as those of arrays that mirror a volume do, but an fc source of Kubernetes has one; make the arrays agree on the LUN, let nodes find the disk by its identifier (mapping.fibre_channel.wwid of the backend), or %s",
				lun, path.lun, r.mappingHint())
		}
		source.TargetWWNs = append(source.TargetWWNs, path.target)
	}
	if lun > maxLUN {
		return Result{}, refuse(UnsupportedConnection,
			"the LUN is %d, but Kubernetes accepts LUNs from 0 to %d only; let the array assign a lower one, let nodes find the disk by its identifier (mapping.fibre_channel.wwid of the backend), or %s",
			lun, maxLUN, r.mappingHint())
	}
	source.Lun = &lun

	most := maxTargets(lun)
	if all := len(source.TargetWWNs); all > most {
		source.TargetWWNs = c.masking.spread(source.TargetWWNs, most)
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"only %d of %d target names are used: kubelet names a directory after them, which would be longer than %d bytes; a node that reaches none of them cannot mount the volume, which mapping.fibre_channel.wwid avoids",
			most, all, maxFileNameLength))
	}
	return result, nil
}

// fibreChannelFacts returns the paths for a driver chosen by the operator. lun is missing
// if the paths have different LUNs.
func fibreChannelFacts(r request) (facts, *Refusal, error) {
	c, err := readFC(r.Connection)
	if err != nil {
		return nil, nil, err
	}
	if _, err := r.checkMasking(c.masking); err != nil {
		return nil, nil, err
	}
	paths, err := c.paths()
	if err != nil {
		return nil, nil, err
	}
	var targets, luns []any
	var lun any = lunFact(paths[0].lun)
	for _, path := range paths {
		targets = append(targets, path.target)
		luns = append(luns, lunFact(path.lun))
		if path.lun != paths[0].lun {
			lun = nil
		}
	}
	return facts{"targets": targets, "luns": luns, "lun": lun}, nil, nil
}

// maxTargets returns the number of target names that fit in the name of kubelet's
// directory: each with a hyphen, then "lun-" and the LUN.
func maxTargets(lun int32) int {
	return (maxFileNameLength - len(fmt.Sprintf("lun-%d", lun))) / (wwnDigits + len("-"))
}

// wwidPattern matches a page-83 SCSI identifier as udev names disks by it: its type (2
// for EUI-64, 3 for NAA) and its digits.
var wwidPattern = regexp.MustCompile(`^(2[0-9a-f]{16}|3[0-9a-f]{16}|3[0-9a-f]{32})$`)

// fcWWIDs reads the disk's identifier from the field that the operator names. Drivers use
// the name "wwn" for different things, so there is no default.
func (r request) fcWWIDs() ([]string, error) {
	values, err := r.newValues(nil)
	if err != nil {
		return nil, err
	}
	wwid, err := values.fill("wwid", r.mapping.WWID, template.Use{Device: true})
	if err != nil {
		return nil, err
	}
	wwid = strings.ToLower(wwid)
	if !wwidPattern.MatchString(wwid) {
		return nil, refuse(InvalidMapping, "mapping.fibre_channel.wwid evaluates to %s, expected 2 or 3 and then 16 or 32 hexadecimal digits, as in the disk's name below /dev/disk/by-id without scsi-; correct the backend's mapping", r.Connection.quote(wwid))
	}
	return []string{wwid}, nil
}

// fcPath is one path to the volume, up to the target's port.
type fcPath struct {
	target string
	lun    int32
}

// fcConnection is a connection of protocol fibre_channel.
type fcConnection struct {
	Connection
	// targets are named in the order of their LUNs, including duplicates.
	targets []string
	masking fcMasking
}

func readFC(connection Connection) (c fcConnection, err error) {
	c.Connection = connection
	if c.targets, err = c.readTargets(); err != nil {
		return c, err
	}
	c.masking, err = c.readMasking()
	return c, err
}

// paths reads the targets with their LUNs. There is at least one target, and none is
// listed twice.
//
// The rules are os-brick's (connectors/fibre_channel.py): target_wwns takes precedence
// over target_wwn, target_luns over target_lun, and lists are paired by position, except
// that one LUN may serve all targets. Unlike os-brick, this refuses a target with two
// LUNs and keys that contradict each other.
func (c fcConnection) paths() ([]fcPath, error) {
	targets, masking := c.targets, c.masking
	if len(targets) == 0 {
		targets = masking.all()
	}
	if len(targets) == 0 {
		return nil, refuse(InvalidConnection, "%s names no target; look at the array's ports and zones, and in the log of cinder-volume", wwnKey)
	}
	var listed []fcPath
	var err error
	_, flat := c.value(lunKey)
	if _, lists := c.value(lunsKey); flat || lists || len(masking.paths) == 0 {
		if listed, err = c.pairs(targets); err != nil {
			return nil, err
		}
	}

	luns := map[string]int32{}
	var paths []fcPath
	for _, path := range slices.Concat(listed, masking.paths) {
		lun, seen := luns[path.target]
		if seen && lun != path.lun {
			return nil, refuse(InvalidConnection, "target %s has two LUNs (%d and %d), and which one is the volume's is unknown; check the cinder-volume log, because this backend's driver failed to describe the connection", path.target, lun, path.lun)
		}
		if !seen {
			luns[path.target] = path.lun
			paths = append(paths, path)
		}
	}
	for _, target := range targets {
		if _, known := luns[target]; !known {
			return nil, refuse(InvalidConnection, "%s names no LUN of target %s; check the cinder-volume log to see why the volume has no LUN (a missing LUN is never taken for 0)", initiatorLUNsKey, target)
		}
	}
	return paths, checkNamed(masking.all(), initiatorsKey, targets, wwnKey)
}

// checkNamed refuses targets of one key that another key lacks.
func checkNamed(targets []string, key string, all []string, other string) error {
	for _, target := range targets {
		if !slices.Contains(all, target) {
			return refuse(InvalidConnection, "%s names target %s, which %s does not; check the cinder-volume log, because this backend's driver failed to describe the connection", key, target, other)
		}
	}
	return nil
}

func (c fcConnection) readTargets() ([]string, error) {
	many, err := c.names(wwnsKey)
	if err != nil {
		return nil, err
	}
	one, err := c.names(wwnKey)
	if err != nil {
		return nil, err
	}
	if len(many) == 0 {
		return one, nil
	}
	if err := checkNamed(one, wwnKey, many, wwnsKey); err != nil {
		return nil, err
	}
	if _, list := c.data[wwnKey].([]any); list && len(one) > 0 {
		return many, checkNamed(many, wwnsKey, one, wwnKey)
	}
	return many, nil
}

// names reads a field that is one port name or a list of them.
func (c fcConnection) names(key string) ([]string, error) {
	value, present := c.value(key)
	if !present {
		return nil, nil
	}
	if text, ok := value.(string); ok {
		if text == "" {
			return nil, nil
		}
		name, err := c.portName(key, text)
		return []string{name}, err
	}
	list, ok := value.([]any)
	if !ok {
		return nil, c.wrongType(key, value, "a string or a list")
	}
	return c.portNames(key, list)
}

func (c fcConnection) portNames(field string, list []any) ([]string, error) {
	names := make([]string, len(list))
	for i, element := range list {
		text, ok := element.(string)
		if !ok {
			return nil, c.wrongType(at(field, i), element, "a string")
		}
		var err error
		if names[i], err = c.portName(at(field, i), text); err != nil {
			return nil, err
		}
	}
	return names, nil
}

var (
	portNameDigits = regexp.MustCompile(`^[0-9a-f]{16}$`)
	portNamePairs  = regexp.MustCompile(`^[0-9a-f]{2}(:[0-9a-f]{2}){7}$`)
)

// portName normalizes the name of a Fibre Channel port to the form that kubelet compares
// with device names: 16 lower-case digits.
func (c fcConnection) portName(field, text string) (string, error) {
	name := strings.TrimPrefix(strings.ToLower(text), "0x")
	if portNamePairs.MatchString(name) {
		name = strings.ReplaceAll(name, ":", "")
	}
	if !portNameDigits.MatchString(name) || strings.Trim(name, "0") == "" {
		return "", refuse(InvalidConnection, "%s is %s, expected the 16 hexadecimal digits of a port's name; correct the backend's ports; missing digits cannot be guessed", field, c.quote(text))
	}
	return name, nil
}

// pairs gives each target its LUN.
func (c fcConnection) pairs(targets []string) ([]fcPath, error) {
	luns, err := c.list(lunsKey)
	if err != nil {
		return nil, err
	}
	flat, hasFlat := c.value(lunKey)
	if len(luns) == 0 && !hasFlat {
		return nil, refuse(InvalidConnection, "%s is missing; check the cinder-volume log to see why the volume has no LUN (a missing LUN is never taken for 0)", lunKey)
	}
	if len(luns) > 1 && len(luns) != len(targets) {
		return nil, refuse(InvalidConnection, "%s has %d entries for %d targets, so which target exposes which LUN is unknown; check the cinder-volume log for a controller or port that is down", lunsKey, len(luns), len(targets))
	}
	var only int32
	if hasFlat {
		if only, err = c.anyLUN(lunKey, flat); err != nil {
			return nil, err
		}
	}
	paths := make([]fcPath, len(targets))
	for i, target := range targets {
		paths[i] = fcPath{target, only}
		if len(luns) == 0 {
			continue
		}
		position := min(i, len(luns)-1)
		if paths[i].lun, err = c.anyLUN(at(lunsKey, position), luns[position]); err != nil {
			return nil, err
		}
	}
	if hasFlat && !slices.ContainsFunc(paths, func(path fcPath) bool { return path.lun == only }) {
		return nil, refuse(InvalidConnection, "%s is %d and %s has no such entry; check the cinder-volume log, because this backend's driver failed to describe the connection", lunKey, only, lunsKey)
	}
	return paths, nil
}

// fcMasking is what the array shows to each initiator. It is empty if the connection does
// not tell.
type fcMasking struct {
	// targets holds the targets by initiator, in the driver's order.
	targets map[string][]string
	// paths are the targets with LUNs, if the connection lists them.
	paths []fcPath
}

func (c fcConnection) readMasking() (fcMasking, error) {
	masking := fcMasking{targets: map[string][]string{}}
	for _, key := range []string{initiatorsKey, initiatorLUNsKey} {
		value, present := c.value(key)
		if !present {
			continue
		}
		object, ok := value.(map[string]any)
		if !ok {
			return masking, c.wrongType(key, value, "an object")
		}
		for _, given := range slices.Sorted(maps.Keys(object)) {
			initiator, err := c.portName("an initiator of "+key, given)
			if err != nil {
				return masking, err
			}
			reached, err := c.reached(key+"."+initiator, object[given], key == initiatorLUNsKey)
			if err != nil {
				return masking, err
			}
			for _, path := range reached {
				if !slices.Contains(masking.targets[initiator], path.target) {
					masking.targets[initiator] = append(masking.targets[initiator], path.target)
				}
				if key == initiatorLUNsKey {
					masking.paths = append(masking.paths, path)
				}
			}
		}
	}
	return masking, nil
}

// reached reads the targets of one initiator, with or without their LUNs.
func (c fcConnection) reached(field string, value any, withLUNs bool) ([]fcPath, error) {
	if text, ok := value.(string); ok && !withLUNs {
		value = []any{text}
	}
	list, ok := value.([]any)
	if !ok {
		return nil, c.wrongType(field, value, "a list")
	}
	if !withLUNs {
		names, err := c.portNames(field, list)
		paths := make([]fcPath, len(names))
		for i, name := range names {
			paths[i].target = name
		}
		return paths, err
	}
	paths := make([]fcPath, len(list))
	for i, element := range list {
		pair, ok := element.([]any)
		if !ok || len(pair) != 2 {
			return nil, c.wrongType(at(field, i), element, "a list of a target and its LUN")
		}
		names, err := c.portNames(at(field, i), pair[:1])
		if err != nil {
			return nil, err
		}
		paths[i].target = names[0]
		if paths[i].lun, err = c.anyLUN(at(field, i)+"[1]", pair[1]); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// all lists the targets that any initiator reaches, sorted.
func (m fcMasking) all() []string {
	var all []string
	for _, targets := range m.targets {
		all = append(all, targets...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// initiators lists the initiators that reach a target, sorted.
func (m fcMasking) initiators() []string {
	reaching := maps.Clone(m.targets)
	maps.DeleteFunc(reaching, func(_ string, targets []string) bool { return len(targets) == 0 })
	return slices.Sorted(maps.Keys(reaching))
}

// spread chooses some of the targets so that, if possible, every initiator reaches some
// of them: first one for each initiator in turn, then the rest in order.
func (m fcMasking) spread(targets []string, most int) []string {
	chosen := map[string]bool{}
	for turn := range len(targets) {
		for _, initiator := range m.initiators() {
			if reached := m.targets[initiator]; turn < len(reached) && len(chosen) < most {
				chosen[reached[turn]] = true
			}
		}
	}
	for _, target := range targets {
		if len(chosen) < most {
			chosen[target] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(targets), func(target string) bool { return !chosen[target] })
}

// checkMasking compares the ports to which the array exposes the volume with the ones
// that Cinder was asked to expose it to.
func (r request) checkMasking(masking fcMasking) ([]string, error) {
	shown := masking.initiators()
	if len(shown) == 0 || len(r.Connector.WWPNs) == 0 {
		return nil, nil
	}
	var ours, others, without []string
	for _, initiator := range shown {
		if slices.Contains(r.Connector.WWPNs, initiator) {
			ours = append(ours, initiator)
		} else {
			others = append(others, initiator)
		}
	}
	for _, wwpn := range r.Connector.WWPNs {
		if !slices.Contains(ours, wwpn) {
			without = append(without, wwpn)
		}
	}
	if len(ours) == 0 {
		return nil, refuse(InvalidConnector, "%s exposes the volume only to %s, none of which is among the nodes' ports (%s); correct connector.wwpns of the backend, or the zones", initiatorsKey, some(others), some(r.Connector.WWPNs))
	}
	var warnings []string
	if len(without) > 0 {
		warnings = append(warnings, fmt.Sprintf("the array exposes the volume to %d of the nodes' %d ports, not to %s: a node with no other port cannot mount it", len(ours), len(ours)+len(without), some(without)))
	}
	if len(others) > 0 {
		warnings = append(warnings, fmt.Sprintf("the array also exposes the volume to %s, which is not among the nodes' ports", some(others)))
	}
	return warnings, nil
}

// maxNamed bounds the port names in a sentence.
const maxNamed = 4

func some(names []string) string {
	if len(names) <= maxNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), len(names)-maxNamed)
}
