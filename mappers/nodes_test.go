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

// TestGoldenForNodes: what every recorded connection by iSCSI, Fibre Channel, NVMe or RBD
// becomes for a single node.
func TestGoldenForNodes(t *testing.T) {
	const file = "testdata/other/for-nodes.yaml"
	results := map[string]any{}
	for _, path := range goldenPaths(t) {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "testdata/"), ".json")
		if kind := filepath.Dir(name); kind != "fibre_channel" && kind != "iscsi" && kind != "iser" && kind != "nvmeof" && kind != "rbd" {
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

// TestImagesForNodes: which monitors and which key a node gets for an image of Ceph.
func TestImagesForNodes(t *testing.T) {
	const key, other = "AQDh1uVlAAAAABAAqZ0Jw2zXn3sHk8pPp2mWlA==", "AQDh1uVlAAAAABAAqZ0Jw2zXn3sHk8pPp2mWlB=="
	operators := &mappers.NodeCredentials{User: "kubernetes", Password: other}
	document := func(hosts, ports, more string) string {
		return `{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-1", "hosts": [` + hosts + `], "ports": [` + ports + `], "auth_username": "cinder"` + more + `}}`
	}
	keyring := `, "cluster_name": "ceph", "auth_enabled": true, "keyring": "[client.cinder]\n key = ` + key + `\n"`
	for name, test := range map[string]struct {
		document  string
		operators *mappers.NodeCredentials
		want      string
		refusal   string
	}{
		"with its key":            {document: document(`"192.0.2.1", "192.0.2.2"`, `"6789", "6789"`, keyring), want: "192.0.2.1:6789 192.0.2.2:6789 cinder " + key},
		"with the operator's key": {document: document(`"192.0.2.1"`, `"3300"`, ""), operators: operators, want: "192.0.2.1:3300 kubernetes " + other},
		"with both":               {document: document(`"192.0.2.1"`, `"6789"`, keyring), operators: operators, want: "192.0.2.1:6789 kubernetes " + other},
		"by IPv6":                 {document: document(`"2001:db8::1", "[2001:db8::2]"`, `"6789", "6789"`, ""), operators: operators, want: "[2001:db8::1]:6789 [2001:db8::2]:6789 kubernetes " + other},
		"without authentication":  {document: document(`"192.0.2.1"`, `"6789"`, `, "auth_enabled": false`), want: "192.0.2.1:6789"},
		"of an open cluster, with the operator's key": {document: document(`"192.0.2.1"`, `"6789"`, `, "auth_enabled": false`), operators: operators, want: "192.0.2.1:6789"},
		"without a key": {document: document(`"192.0.2.1"`, `"6789"`, ""),
			refusal: "Cinder sends no key for the Ceph cluster, and the policy names none; make a Secret with userID and userKey in the program's own namespace, and name it in csi.cephSecret of the backend"},
		"with another user's key": {document: document(`"192.0.2.1"`, `"6789"`, strings.Replace(keyring, "client.cinder", "client.admin", 1)),
			refusal: `keyring has no key for user "client.cinder" (auth_username), and the key of another user must not be handed out; correct rbd_user or the keyring file of the backend`},
		"without monitors": {document: document("", "", keyring),
			refusal: "hosts and ports are missing, and the nodes need the addresses of the monitors; check the cinder-volume log"},
		"by a host name": {document: document(`"mon.example"`, `"6789"`, keyring),
			refusal: `monitor "mon.example:6789" has no IP address, which the nodes' kernels need; correct the monitor addresses in ceph.conf of cinder-volume`},
		"by too many monitors": {document: document(strings.TrimSuffix(strings.Repeat(`"192.0.2.1",`, 32), ","), numbers(6700, 32), keyring),
			refusal: "hosts names 32 monitors, and the nodes' kernels take at most 31; name fewer in ceph.conf of cinder-volume"},
		"of a namespace": {document: strings.Replace(document(`"192.0.2.1"`, `"6789"`, keyring), "volumes/", "volumes/space/", 1),
			refusal: `name is "volumes/space/volume-1", expected pool/image, each of letters, digits, "_", "." and "-" and beginning with neither "." nor "-"; check rbd_pool and volume_name_template in cinder.conf, and the cinder-volume log`},
	} {
		t.Run(name, func(t *testing.T) {
			connection, err := mappers.ParseConnection([]byte(test.document))
			if err != nil {
				t.Fatal(err)
			}
			of, err := mappers.ForNode(connection, mappers.NodeRequest{CephUser: test.operators})
			if test.refusal != "" {
				if err == nil || err.Error() != test.refusal {
					t.Errorf("got  %v\nwant %s", err, test.refusal)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range of.Paths {
				if p.Target != "volumes/volume-1" {
					t.Errorf("path %+v", p)
				}
				got = append(got, p.Portal)
			}
			if of.Credentials != nil {
				got = append(got, of.Credentials.User, of.Credentials.Password)
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// numbers lists numbers as strings.
func numbers(first, count int) string {
	var all []string
	for i := range count {
		all = append(all, fmt.Sprintf(`"%d"`, first+i))
	}
	return strings.Join(all, ",")
}

func TestCephUsersAreChecked(t *testing.T) {
	for name, test := range map[string]struct{ user, key, want string }{
		"well-formed":  {"cinder", "AQDh1uVlAAAAABAAqZ0Jw2zXn3sHk8pPp2mWlA==", "<nil>"},
		"with client.": {"client/cinder", "AQDh1uVlAAAAABAAqZ0Jw2zXn3sHk8pPp2mWlA==", `userID is not the name of a Ceph user without "client."`},
		"an option":    {"cinder,secret=x", "AQDh1uVlAAAAABAAqZ0Jw2zXn3sHk8pPp2mWlA==", `userID is not the name of a Ceph user without "client."`},
		"no key":       {"cinder", "", "userKey is not a key in base64"},
		"a keyring":    {"cinder", "[client.cinder]", "userKey is not a key in base64"},
	} {
		if err := mappers.CheckCephUser(mappers.NodeCredentials{User: test.user, Password: test.key}); fmt.Sprint(err) != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
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
		"encrypted, says the volume":     {flat + `}`, true, "encrypted is true, but nothing says how nodes open the volume, so they would format it; use a volume type without encryption"},
		"encrypted, says the connection": {flat + `, "encrypted": true}`, false, "encrypted is true, but nothing says how nodes open the volume, so they would format it; use a volume type without encryption"},
		"an access mode of its own":      {flat + `, "access_mode": "wo"}`, false, `access_mode is "wo", expected "rw" or "ro"; check the cinder-volume log`},
		"limits of the wrong type":       {flat + `, "qos_specs": 5}`, false, "qos_specs is 5, expected an object; this backend's driver failed to describe the connection, so check the cinder-volume log"},
		"another protocol": {`{"driver_volume_type": "storpool", "name": "volumes/volume-1"}`, false,
			"the nodes of the CSI driver do not support protocol storpool (only fibre_channel, iscsi, iser, nvmeof, rbd); use mode native for this backend"},
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
