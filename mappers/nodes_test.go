package mappers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// TestGoldenForNodes: what every recorded connection by iSCSI, Fibre Channel or NVMe
// becomes for a single node.
func TestGoldenForNodes(t *testing.T) {
	const file = "testdata/other/for-nodes.yaml"
	results := map[string]any{}
	for _, path := range goldenPaths(t) {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "testdata/"), ".json")
		if kind := filepath.Dir(name); kind != "fibre_channel" && kind != "iscsi" && kind != "iser" && kind != "nvmeof" && name != "rbd/recorded-attachment" {
			continue
		}
		read, _ := readGolden(t, path)
		connection, err := mappers.ParseConnection(read.Document)
		var of mappers.NodeConnection
		if err == nil {
			of, err = mappers.ForNode(connection, mappers.NodeRequest{Ports: read.Request.WWPNs})
		}
		var refusal *mappers.Refusal
		switch {
		case err == nil:
			view := map[string]any{"protocol": of.Protocol, "readOnly": of.ReadOnly}
			var paths []string
			for _, p := range of.Paths {
				paths = append(paths, fmt.Sprintf("%s %s %d", p.Portal, p.Target, p.LUN))
			}
			view["paths"] = paths
			if len(of.Identities) > 0 {
				view["identities"] = of.Identities
			}
			if c := of.Credentials; c != nil {
				view["credentials"] = strings.TrimSpace(strings.Join([]string{c.User, c.Password, c.DiscoveryUser, c.DiscoveryPassword}, " "))
			}
			if len(of.Warnings) > 0 {
				view["warnings"] = of.Warnings
			}
			results[name] = view
		case errors.As(err, &refusal):
			results[name] = fmt.Sprintf("%s: %s", refusal.Reason, refusal.Message)
		default:
			t.Errorf("%s: error is no refusal: %v", name, err)
		}
	}
	got, err := yaml.Marshal(results)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil || string(want) != string(got) {
		t.Errorf("%s differs (%v); got:\n%s", file, err, got)
	}
}

// TestPathsByFibreChannelForNodes: which of the node's ports lead to which target.
func TestPathsByFibreChannelForNodes(t *testing.T) {
	const one, two, three = "10000000c9a1b2c1", "10000000c9a1b2c2", "10000000c9ffff01"
	const a, b = "500a098280feeb01", "500a098290feeb01"
	document := func(more string) string {
		return `{"driver_volume_type": "fibre_channel", "data": {"target_wwn": ["` + a + `", "` + b + `"], ` + more + `}}`
	}
	masked := func(initiators string) string {
		return document(`"target_lun": 3, "initiator_target_map": {` + initiators + `}`)
	}
	for name, test := range map[string]struct {
		document string
		ports    []string
		want     []string
		warnings []string
		refusal  string
	}{
		"without masking":            {document: document(`"target_lun": 3`), ports: []string{one, two}, want: []string{one + "," + two + " " + a + " 3", one + "," + two + " " + b + " 3"}},
		"without masking or ports":   {document: document(`"target_lun": 3`), want: []string{" " + a + " 3", " " + b + " 3"}},
		"a fabric for each port":     {document: masked(`"` + one + `": ["` + a + `"], "` + two + `": ["` + b + `"]`), ports: []string{one, two}, want: []string{one + " " + a + " 3", two + " " + b + " 3"}},
		"in capitals, with colons":   {document: masked(`"10:00:00:00:C9:A1:B2:C1": ["50:0A:09:82:80:FE:EB:01", "` + b + `"]`), ports: []string{one}, want: []string{one + " " + a + " 3", one + " " + b + " 3"}},
		"other nodes as well":        {document: masked(`"` + one + `": ["` + a + `", "` + b + `"], "` + three + `": ["` + a + `"]`), ports: []string{one}, want: []string{one + " " + a + " 3", one + " " + b + " 3"}},
		"masked, and ports unknown":  {document: masked(`"` + one + `": ["` + a + `", "` + b + `"]`), want: []string{one + " " + a + " 3", one + " " + b + " 3"}},
		"an initiator without ports": {document: masked(`"` + one + `": [], "` + two + `": ["` + a + `", "` + b + `"]`), ports: []string{two}, want: []string{two + " " + a + " 3", two + " " + b + " 3"}},
		"one of the node's ports only": {document: masked(`"` + one + `": ["` + a + `", "` + b + `"]`), ports: []string{one, two}, want: []string{one + " " + a + " 3", one + " " + b + " 3"},
			warnings: []string{"the array exposes the volume to 1 of the node's 2 ports, not to " + two}},
		"one of the targets only": {document: masked(`"` + one + `": ["` + a + `"], "` + three + `": ["` + b + `"]`), ports: []string{one}, want: []string{one + " " + a + " 3"},
			warnings: []string{"the array exposes the volume to no port of the node at " + b}},
		"other nodes only": {document: masked(`"` + three + `": ["` + a + `"]`), ports: []string{one, two},
			refusal: "initiator_target_map exposes the volume only to " + three + ", none of which is a port of the node (" + one + ", " + two + "); correct the array's entry of the host, or the zones"},
		"os-brick's map with LUNs": {document: document(`"initiator_target_lun_map": {"` + one + `": [["` + a + `", 5], ["` + b + `", 6]]}`), ports: []string{one}, want: []string{one + " " + a + " 5", one + " " + b + " 6"}},
		"a LUN for each target":    {document: document(`"target_luns": [90, 80]`), ports: []string{one}, want: []string{one + " " + a + " 90", one + " " + b + " 80"}},
		"LUN 300 as it is":         {document: document(`"target_lun": 300`), ports: []string{one}, want: []string{one + " " + a + " 300", one + " " + b + " 300"}},
		"LUN 300 by SAM-2":         {document: document(`"target_lun": 300, "addressing_mode": "SAM2"`), ports: []string{one}, want: []string{one + " " + a + " 16684", one + " " + b + " 16684"}},
		"LUN 255 by SAM-2":         {document: document(`"target_lun": 255, "addressing_mode": "SAM2"`), ports: []string{one}, want: []string{one + " " + a + " 255", one + " " + b + " 255"}},
		"LUN 1, always flat":       {document: document(`"target_lun": 1, "addressing_mode": "SAM3-flat"`), ports: []string{one}, want: []string{one + " " + a + " 16385", one + " " + b + " 16385"}},
		"LUN 16640, transparent":   {document: document(`"target_lun": 16640, "addressing_mode": "transparent"`), ports: []string{one}, want: []string{one + " " + a + " 16640", one + " " + b + " 16640"}},
		"a LUN that is no flat one": {document: document(`"target_lun": 16384, "addressing_mode": "SAM2"`), ports: []string{one},
			refusal: "LUN 16384 cannot be reached in addressing_mode SAM2, which ends at 16383; check the cinder-volume log"},
		"an unknown mode": {document: document(`"target_lun": 1, "addressing_mode": "SAM9"`), ports: []string{one},
			refusal: `addressing_mode is "SAM9", expected SAM, SAM2, SAM3-flat or transparent; check the cinder-volume log`},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := mappers.ParseConnection([]byte(test.document))
			if err != nil {
				t.Fatal(err)
			}
			of, err := mappers.ForNode(connection, mappers.NodeRequest{Ports: test.ports})
			if test.refusal != "" {
				if err == nil || err.Error() != test.refusal {
					t.Errorf("got  %v\nwant %s", err, test.refusal)
				}
				return
			}
			var paths []string
			for _, p := range of.Paths {
				paths = append(paths, fmt.Sprintf("%s %s %d", p.Portal, p.Target, p.LUN))
			}
			if err != nil || !slices.Equal(paths, test.want) || !slices.Equal(of.Warnings, test.warnings) || of.Credentials != nil {
				t.Errorf("paths %q, warnings %q, %v", paths, of.Warnings, err)
			}
		})
	}
	connection, err := mappers.ParseConnection([]byte(`{"driver_volume_type": "iscsi", "target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 300, "addressing_mode": "SAM2"}`))
	if err != nil {
		t.Fatal(err)
	}
	if of, err := mappers.ForNode(connection, mappers.NodeRequest{}); err != nil || of.Paths[0].LUN != 16684 {
		t.Errorf("by iSCSI: %+v, %v", of.Paths, err)
	}
}

// nvme returns the older form of a connection, without its end.
func nvme(portal, transport, namespace string) string {
	return fmt.Sprintf(`{"driver_volume_type": "nvmeof", "nqn": "nqn.2014-08.org.example:s1", "target_portal": %s, "target_port": 4420, "transport_type": %s, "ns_id": %s`, portal, transport, namespace)
}

// TestWhatNodesDoNotAttach covers refusals that no recording shows.
func TestWhatNodesDoNotAttach(t *testing.T) {
	flat := `{"driver_volume_type": "iscsi", "target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1`
	for name, test := range map[string]struct {
		document  string
		encrypted bool
		want      string
	}{
		"encrypted, says the volume":     {flat + `}`, true, "encrypted is true, but the nodes do not open the volume's LUKS layer and would format it; use a volume type without encryption"},
		"encrypted, says the connection": {flat + `, "encrypted": true}`, false, "encrypted is true, but the nodes do not open the volume's LUKS layer and would format it; use a volume type without encryption"},
		"an access mode of its own":      {flat + `, "access_mode": "wo"}`, false, `access_mode is "wo", expected "rw" or "ro"; check the cinder-volume log`},
		"limits of the wrong type":       {flat + `, "qos_specs": 5}`, false, "qos_specs is 5, expected an object; this backend's driver failed to describe the connection, so check the cinder-volume log"},
		"another protocol": {`{"driver_volume_type": "rbd", "name": "volumes/volume-1"}`, false,
			"the nodes of the CSI driver do not support protocol rbd (only fibre_channel, iscsi, iser, nvmeof); use mode native for this backend"},
		"NVMe by RDMA": {nvme(`"192.0.2.1"`, `"rdma"`, `1`) + `}`, false,
			"transport_type is rdma, and the nodes of the CSI driver connect by tcp; use a backend with NVMe over TCP"},
		"NVMe without an address": {nvme(`"storage.example"`, `"tcp"`, `1`) + `}`, false,
			`portal "storage.example:4420" has no IP address, which the nodes' kernels need; correct the backend's addresses`},
		"NVMe without an identity": {nvme(`"192.0.2.1"`, `"tcp"`, `null`) + `}`, false,
			"the connection names neither vol_uuid nor volume_nguid nor ns_id, so nodes cannot tell which disk of the subsystem is the volume; set nvmeof_conn_info_version = 2 for the backend in cinder.conf if it has that option"},
		"NVMe with credentials": {nvme(`"192.0.2.1"`, `"tcp"`, `1`) + `, "auth_method": "CHAP", "auth_username": "u", "auth_password": "not-a-real-secret"}`, false,
			"the connection has credentials, but the nodes of the CSI driver do not support NVMe authentication; disable it for the backend"},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := mappers.ParseConnection([]byte(test.document))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := mappers.ForNode(connection, mappers.NodeRequest{Encrypted: test.encrypted}); err == nil || err.Error() != test.want {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
	if _, err := mappers.ForNode(mappers.Connection{}, mappers.NodeRequest{}); err == nil {
		t.Error("no connection is one")
	}
}

// TestCredentialsOfNodesAreNotPrinted prints them in every way.
func TestCredentialsOfNodesAreNotPrinted(t *testing.T) {
	of := mappers.NodeConnection{Credentials: &mappers.NodeCredentials{User: "u", Password: "secret-1", DiscoveryUser: "d", DiscoveryPassword: "secret-2"}}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("logged", "connection", of, "credentials", of.Credentials)
	encoded, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	if printed := fmt.Sprintf("%v %+v %#v %s %v", of, of, of, *of.Credentials, of.Credentials) + log.String() + string(encoded); strings.Contains(printed, "secret-") {
		t.Errorf("printed %s", printed)
	}
}
