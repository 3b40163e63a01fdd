package mappers_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

const (
	portA, portB = "500a098280feeb01", "500a098290feeb01"
	hostA, hostB = "10000000c9a1b2c1", "10000000c9a1b2c2"
)

// onePort returns a sound connection of one target; the changes are laid over
// it, and a nil removes a field.
func onePort(changes fields) fields {
	return laidOver(fields{"target_wwn": []string{portA}, "target_lun": 1}, changes)
}

func TestFibreChannelRefusals(t *testing.T) {
	const (
		look   = "; this backend's driver failed to describe the connection, so check the cinder-volume log"
		driver = "; check the cinder-volume log, because this backend's driver failed to describe the connection"
		digits = ", expected the 16 hexadecimal digits of a port's name; correct the backend's ports; missing digits cannot be guessed"
		noLUN  = "; check the cinder-volume log to see why the volume has no LUN (a missing LUN is never taken for 0)"
		hint   = ", let nodes find the disk by its identifier (mapping.fibre_channel.wwid of the backend), or map fibre_channel to a CSI or FlexVolume driver that can (mapping.fibre_channel of the backend)"
		differ = ", as those of arrays that mirror a volume do, but an fc source of Kubernetes has one; make the arrays agree on the LUN" + hint
	)
	invalid, unsupported := mappers.InvalidConnection, mappers.UnsupportedConnection
	for name, test := range map[string]struct {
		data   fields
		reason mappers.Reason
		want   string
	}{
		"no target":                    {onePort(fields{"target_wwn": nil}), invalid, "target_wwn names no target; look at the array's ports and zones, and in the log of cinder-volume"},
		"target null":                  {onePort(fields{"target_wwn": json.RawMessage("null")}), invalid, "target_wwn names no target; look at the array's ports and zones, and in the log of cinder-volume"},
		"target empty":                 {onePort(fields{"target_wwn": ""}), invalid, "target_wwn names no target; look at the array's ports and zones, and in the log of cinder-volume"},
		"target empty in the list":     {onePort(fields{"target_wwn": []string{""}}), invalid, `target_wwn[0] is ""` + digits},
		"target a number":              {onePort(fields{"target_wwn": json.Number("5000000000000001")}), invalid, "target_wwn is 5000000000000001, expected a string or a list" + look},
		"target an object":             {onePort(fields{"target_wwn": fields{"0": portA}}), invalid, "target_wwn is an object, expected a string or a list" + look},
		"target null in the list":      {onePort(fields{"target_wwn": []any{portA, nil}}), invalid, "target_wwn[1] is null, expected a string" + look},
		"target with half its colons":  {onePort(fields{"target_wwn": "500a:0982:80fe:eb01"}), invalid, `target_wwn is "500a:0982:80fe:eb01"` + digits},
		"target of naa form":           {onePort(fields{"target_wwn": "naa.500a098280feeb01"}), invalid, `target_wwn is "naa.500a098280feeb01"` + digits},
		"target of 17 digits":          {onePort(fields{"target_wwn": portA + "0"}), invalid, `target_wwn is "` + portA + `0"` + digits},
		"target with a line break":     {onePort(fields{"target_wwn": portA + "\n"}), invalid, `target_wwn is "` + portA + `\n"` + digits},
		"targets of two lists":         {onePort(fields{"target_wwns": []string{portB}}), invalid, "target_wwn names target " + portA + ", which target_wwns does not" + driver},
		"targets of a longer list":     {onePort(fields{"target_wwns": []string{portA, portB}}), invalid, "target_wwns names target " + portB + ", which target_wwn does not" + driver},
		"lun missing":                  {onePort(fields{"target_lun": nil}), invalid, "target_lun is missing" + noLUN},
		"lun null":                     {onePort(fields{"target_lun": json.RawMessage("null")}), invalid, "target_lun is missing" + noLUN},
		"luns empty":                   {onePort(fields{"target_lun": nil, "target_luns": []int{}}), invalid, "target_lun is missing" + noLUN},
		"lun a fraction":               {onePort(fields{"target_lun": json.Number("1.5")}), invalid, "target_lun is 1.5, expected a whole number in decimal digits" + look},
		"lun false":                    {onePort(fields{"target_lun": false}), invalid, "target_lun is false, expected a whole number" + look},
		"lun in the list null":         {onePort(fields{"target_luns": []any{nil}}), invalid, "target_luns[0] is null, expected a whole number" + look},
		"luns a string":                {onePort(fields{"target_luns": "11"}), invalid, `target_luns is "11", expected a list` + look},
		"lun 256":                      {onePort(fields{"target_lun": 256}), unsupported, "the LUN is 256, but Kubernetes accepts LUNs from 0 to 255 only; let the array assign a lower one" + hint},
		"lun of flat addressing":       {onePort(fields{"target_lun": 16684}), unsupported, "the LUN is 16684, but Kubernetes accepts LUNs from 0 to 255 only; let the array assign a lower one" + hint},
		"more luns than targets":       {onePort(fields{"target_luns": []int{1, 1}}), invalid, "target_luns has 2 entries for 1 targets, so which target exposes which LUN is unknown; check the cinder-volume log for a controller or port that is down"},
		"luns differ":                  {onePort(fields{"target_wwn": []string{portA, portB}, "target_luns": []int{1, 2}}), unsupported, "the paths have different LUNs (1 and 2)" + differ},
		"flat lun not listed":          {onePort(fields{"target_luns": []int{2}}), invalid, "target_lun is 1 and target_luns has no such entry" + driver},
		"initiators a list":            {onePort(fields{"initiator_target_map": []string{hostA}}), invalid, "initiator_target_map is a list, expected an object" + look},
		"initiator of no form":         {onePort(fields{"initiator_target_map": fields{"fc-host": []string{portA}}}), invalid, `an initiator of initiator_target_map is "fc-host"` + digits},
		"initiator's targets a number": {onePort(fields{"initiator_target_map": fields{hostA: 5}}), invalid, "initiator_target_map." + hostA + " is 5, expected a list" + look},
		"initiator's target unknown":   {onePort(fields{"initiator_target_map": fields{hostA: []string{portB}}}), invalid, "initiator_target_map names target " + portB + ", which target_wwn does not" + driver},
		"luns by initiator differ":     {fields{"initiator_target_lun_map": fields{hostA: []any{[]any{portA, 1}}, hostB: []any{[]any{portB, 2}}}}, unsupported, "the paths have different LUNs (1 and 2)" + differ},
		"two luns of one target":       {fields{"initiator_target_lun_map": fields{hostA: []any{[]any{portA, 1}}, hostB: []any{[]any{portA, 2}}}}, invalid, "target " + portA + " has two LUNs (1 and 2), and which one is the volume's is unknown; check the cinder-volume log, because this backend's driver failed to describe the connection"},
		"lun by initiator contradicts": {onePort(fields{"initiator_target_lun_map": fields{hostA: []any{[]any{portA, 2}}}}), invalid, "target " + portA + " has two LUNs (1 and 2), and which one is the volume's is unknown; check the cinder-volume log, because this backend's driver failed to describe the connection"},
		"lun by initiator is missing":  {onePort(fields{"target_wwn": []string{portA, portB}, "target_lun": nil, "initiator_target_lun_map": fields{hostA: []any{[]any{portA, 2}}}}), invalid, "initiator_target_lun_map names no LUN of target " + portB + noLUN},
		"no pair by initiator":         {fields{"initiator_target_lun_map": fields{hostA: []any{portA, 1}}}, invalid, "initiator_target_lun_map." + hostA + `[0] is "` + portA + `", expected a list of a target and its LUN` + look},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mapData(t, "fibre_channel", test.data, plainRequest())
			expectRefusal(t, err, test.reason, test.want)
		})
	}
}

func TestFibreChannelPaths(t *testing.T) {
	for name, test := range map[string]struct {
		data    fields
		targets []string
		lun     int32
	}{
		"one name":                       {onePort(fields{"target_wwn": portA}), []string{portA}, 1},
		"lun 0":                          {onePort(fields{"target_lun": 0}), []string{portA}, 0},
		"lun 255 in a string":            {onePort(fields{"target_lun": "255"}), []string{portA}, 255},
		"luns in strings":                {onePort(fields{"target_lun": nil, "target_luns": []string{"3"}}), []string{portA}, 3},
		"only the longer key":            {onePort(fields{"target_wwn": nil, "target_wwns": []string{portB, portA}}), []string{portB, portA}, 1},
		"a name beside its list":         {onePort(fields{"target_wwn": portB, "target_wwns": []string{portA, portB}}), []string{portA, portB}, 1},
		"two spellings of one":           {onePort(fields{"target_wwn": []string{strings.ToUpper(portA), "0x" + portA, "50:0a:09:82:80:fe:eb:01"}}), []string{portA}, 1},
		"paired luns, targets repeated":  {onePort(fields{"target_wwn": []string{portA, portB, portA}, "target_luns": []int{1, 1, 1}}), []string{portA, portB}, 1},
		"one lun in the list":            {onePort(fields{"target_wwn": []string{portA, portB}, "target_lun": nil, "target_luns": []int{9}}), []string{portA, portB}, 9},
		"initiators that reach nothing":  {onePort(fields{"initiator_target_map": fields{hostA: []string{}}}), []string{portA}, 1},
		"initiator's target as text":     {onePort(fields{"initiator_target_map": fields{strings.ToUpper(hostA): strings.ToUpper(portA)}}), []string{portA}, 1},
		"targets by initiator only":      {onePort(fields{"target_wwn": nil, "initiator_target_map": fields{hostA: []string{portB, portA}}}), []string{portA, portB}, 1},
		"luns by initiator agree":        {onePort(fields{"initiator_target_lun_map": fields{hostA: []any{[]any{portA, "1"}}}}), []string{portA}, 1},
		"luns by initiator, names apart": {onePort(fields{"target_lun": nil, "initiator_target_lun_map": fields{hostA: []any{[]any{portA, 4}}}}), []string{portA}, 4},
		"null map":                       {onePort(fields{"initiator_target_map": json.RawMessage("null")}), []string{portA}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := mapData(t, "fibre_channel", test.data, plainRequest())
			if err != nil {
				t.Fatal(err)
			}
			source := result.Source.FC
			if !reflect.DeepEqual(source.TargetWWNs, test.targets) || *source.Lun != test.lun || source.WWIDs != nil {
				t.Errorf("source is %v with LUN %d, expected %v with %d", source, *source.Lun, test.targets, test.lun)
			}
		})
	}
}

func TestFibreChannelMasking(t *testing.T) {
	shown := func(initiators ...string) fields {
		all := fields{}
		for _, initiator := range initiators {
			all[initiator] = []string{portA}
		}
		return onePort(fields{"initiator_target_map": all})
	}
	for name, test := range map[string]struct {
		data     fields
		nodes    []string
		warnings []string
		refused  string
	}{
		"to all":                 {data: shown(hostA, hostB), nodes: []string{hostA, hostB}},
		"nodes unknown":          {data: shown(hostA)},
		"array says nothing":     {data: onePort(nil), nodes: []string{hostA}},
		"to none of them":        {data: onePort(fields{"initiator_target_map": fields{hostA: []string{}}}), nodes: []string{hostA}},
		"not to one":             {data: shown(hostA), nodes: []string{hostA, hostB}, warnings: []string{"the array exposes the volume to 1 of the nodes' 2 ports, not to " + hostB + ": a node with no other port cannot mount it"}},
		"to one more":            {data: shown(hostA, hostB), nodes: []string{hostB}, warnings: []string{"the array also exposes the volume to " + hostA + ", which is not among the nodes' ports"}},
		"to others":              {data: shown(hostA), nodes: []string{hostB}, refused: "initiator_target_map exposes the volume only to " + hostA + ", none of which is among the nodes' ports (" + hostB + "); correct connector.wwpns of the backend, or the zones"},
		"to others of many":      {data: shown(hostA), nodes: []string{"2000000000000001", "2000000000000002", "2000000000000003", "2000000000000004", "2000000000000005"}, refused: "initiator_target_map exposes the volume only to " + hostA + ", none of which is among the nodes' ports (2000000000000001, 2000000000000002, 2000000000000003, 2000000000000004 and 1 more); correct connector.wwpns of the backend, or the zones"},
		"to others, by luns":     {data: fields{"initiator_target_lun_map": fields{hostA: []any{[]any{portA, 1}}}}, nodes: []string{hostB}, refused: "initiator_target_map exposes the volume only to " + hostA + ", none of which is among the nodes' ports (" + hostB + "); correct connector.wwpns of the backend, or the zones"},
		"to others, in capitals": {data: shown("10:00:00:00:C9:A1:B2:C1"), nodes: []string{hostA}},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.Connector.WWPNs = test.nodes
			result, err := mapData(t, "fibre_channel", test.data, request)
			if test.refused != "" {
				expectRefusal(t, err, mappers.InvalidConnector, test.refused)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(result.Warnings, test.warnings) {
				t.Errorf("warnings are %q, expected %q", result.Warnings, test.warnings)
			}
		})
	}
}

// TestFibreChannelNamesFitADirectory: kubelet joins the names with hyphens and
// appends the LUN (pkg/volume/fc, makePDNameInternal); no Linux filesystem
// takes names of more than 255 bytes.
func TestFibreChannelNamesFitADirectory(t *testing.T) {
	for _, lun := range []int{0, 10, 255} {
		for count := 1; count <= 40; count++ {
			var names, nodes []string
			reached := fields{}
			for i := range count {
				names = append(names, fmt.Sprintf("500a0982%08x", i))
			}
			for i := range 3 {
				nodes = append(nodes, fmt.Sprintf("10000000%08x", i))
				reached[nodes[i]] = names[min(i, count-1)*count/3 : max(1, (i+1)*count/3)]
			}
			request := plainRequest()
			request.Connector.WWPNs = nodes
			result, err := mapData(t, "fibre_channel", fields{"target_wwn": names, "target_lun": lun, "initiator_target_map": reached}, request)
			if err != nil {
				t.Fatal(err)
			}
			used := result.Source.FC.TargetWWNs
			if directory := strings.Join(used, "-") + fmt.Sprintf("-lun-%d", lun); len(directory) > 255 {
				t.Fatalf("%d targets: the directory's name has %d bytes", count, len(directory))
			}
			if len(used) != min(count, 14) {
				t.Fatalf("%d of %d targets are used, expected %d", len(used), count, min(count, 14))
			}
			if warned := slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.HasPrefix(w, "only 14 of ") }); warned != (count > 14) {
				t.Errorf("%d targets: warnings are %q", count, result.Warnings)
			}
			for node, targets := range reached {
				if !slices.ContainsFunc(targets.([]string), func(target string) bool { return slices.Contains(used, target) }) {
					t.Errorf("%d targets: %s reaches none of those used", count, node)
				}
			}
		}
	}
}

// TestFibreChannelByWWID: the identifier of the disk takes the place of targets
// and LUN.
func TestFibreChannelByWWID(t *testing.T) {
	for name, test := range map[string]struct{ wwn, refused string }{
		"NAA of 128 bits":  {wwn: "3624a93709714b5cb91634c4700020001"},
		"NAA of 64 bits":   {wwn: "35000c500a1b2c3d4"},
		"EUI-64":           {wwn: "20024f400ab12cd34"},
		"capitals":         {wwn: "3624A93709714B5CB91634C4700020001"},
		"without the type": {wwn: "624a93709714b5cb91634c4700020001", refused: "624a93709714b5cb91634c4700020001"},
		"a path":           {wwn: "../../sda", refused: "../../sda"},
		"a serial number":  {wwn: "VENDOR_1234", refused: "vendor_1234"},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{"fibre_channel": {As: mapping.Native, WWID: "{{ .connection.wwn }}"}}
			result, err := mapData(t, "fibre_channel", onePort(fields{"target_lun": 999, "wwn": test.wwn}), request)
			if test.refused != "" {
				expectRefusal(t, err, mappers.InvalidMapping, `mapping.fibre_channel.wwid evaluates to "`+test.refused+`", expected 2 or 3 and then 16 or 32 hexadecimal digits, as in the disk's name below /dev/disk/by-id without scsi-; correct the backend's mapping`)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if source := result.Source.FC; !reflect.DeepEqual(source.WWIDs, []string{strings.ToLower(test.wwn)}) || source.TargetWWNs != nil || source.Lun != nil {
				t.Errorf("source is %v", source)
			}
		})
	}
}
