package commands

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
)

const (
	oneISCSI = `{"driver_volume_type": "iscsi", "data": {"target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1,
		"auth_method": "CHAP", "auth_username": "user", "auth_password": "not-a-real-secret", "discard": true}}`
	oneNFS = `{"driver_volume_type": "nfs", "data": {"export": "192.0.2.9:/export", "name": "volume-1"}}`
	oneRBD = `{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-1", "hosts": ["192.0.2.11"], "ports": ["6789"], "auth_enabled": false}}`
	oneFC  = `{"driver_volume_type": "fibre_channel", "data": {"target_wwn": "500a098280feeb01", "target_lun": 1, "initiator_target_map": {"10000000c9a1b2c1": ["500a098280feeb01"]}}}`
)

// runMap runs the command and returns the exit code that the program would have.
func runMap(t *testing.T, stdin string, arguments ...string) (code int, stdout, message string) {
	t.Helper()
	command := NewMapCommand(mappers.BuiltIn())
	command.SilenceErrors, command.SilenceUsage = true, true
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&out)
	command.SetIn(strings.NewReader(stdin))
	command.SetArgs(arguments)
	err := command.Execute()
	if err != nil {
		message = err.Error()
	}
	return policycli.ExitCode(err), out.String(), message
}

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestMapPrintsAWholePersistentVolume(t *testing.T) {
	const want = `persistentVolume:
  apiVersion: v1
  kind: PersistentVolume
  metadata:
    name: pvc-00000000-0000-0000-0000-000000000000
  spec:
    accessModes:
    - ReadWriteOnce
    capacity:
      storage: 1Gi
    iscsi:
      chapAuthSession: true
      fsType: xfs
      initiatorName: iqn.2018-01.io.k8s.standalone-cinder:prod-eu-1
      iqn: iqn.2010-10.org.openstack:volume-1
      iscsiInterface: default
      lun: 1
      secretRef:
        name: pvc-00000000-0000-0000-0000-000000000000-credentials
        namespace: storage
      targetPortal: 192.0.2.1:3260
    mountOptions:
    - discard
    persistentVolumeReclaimPolicy: Delete
    volumeMode: Filesystem
secret:
  apiVersion: v1
  data:
    node.session.auth.password: (hidden)
    node.session.auth.username: (hidden)
  kind: Secret
  metadata:
    name: pvc-00000000-0000-0000-0000-000000000000-credentials
    namespace: storage
  type: kubernetes.io/iscsi-chap
`
	policy := policyWith(t, "mapping:\n  iscsi: {as: native, discard: true}\n")
	code, stdout, message := runMap(t, "", "--policy", policy, "--backend", "gold", "--fs-type", "xfs", "--namespace", "storage", write(t, "c.json", oneISCSI))
	if code != 0 || stdout != want {
		t.Errorf("exit code is %d (%s); got:\n%s\nwant:\n%s", code, message, stdout, want)
	}
	code, stdout, message = runMap(t, oneISCSI, "--policy", policy, "--fs-type", "xfs", "--namespace", "storage", "--output", "json", "-")
	var fromJSON, fromYAML any
	if err := errors.Join(json.Unmarshal([]byte(stdout), &fromJSON), yaml.Unmarshal([]byte(want), &fromYAML)); err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(fromJSON)
	expected, _ := json.Marshal(fromYAML)
	if code != 0 || !bytes.Equal(got, expected) {
		t.Errorf("exit code is %d (%s); as JSON it is\n%s", code, message, stdout)
	}
	if strings.Contains(stdout, "not-a-real-secret") {
		t.Error("the password is shown")
	}
}

func TestMap(t *testing.T) {
	ceph := "mapping:\n  rbd: {as: csi, clusterID: ceph-1, nodeStageSecretRef: {name: a, namespace: b}}\n"
	captured := func(connector, info string) string {
		return `{"driver": "x", "notes": ["y"], "connector_used": ` + connector + `, "connection_info": ` + info + `, "expect": {}}`
	}
	attachment := `{"attachment": {"id": "a", "connection_info": {"driver_volume_type": "iscsi", "target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1}}}`
	for name, test := range map[string]struct {
		document  string
		mapping   string
		arguments []string
		code      int
		// shown must be part of the output; message is the error of the command.
		shown   string
		message string
	}{
		"actions":                     {document: oneISCSI, shown: "targetPortal: 192.0.2.1:3260"},
		"inside connection_info":      {document: `{"connection_info": ` + oneISCSI + `}`, shown: "targetPortal: 192.0.2.1:3260"},
		"attachment":                  {document: attachment, shown: "targetPortal: 192.0.2.1:3260"},
		"no connector":                {document: oneISCSI, shown: "the connector has no initiator"},
		"captured connector":          {document: captured(`{"initiator": "iqn.2026-01.org.example:captured", "wwnns": 5}`, oneISCSI), shown: "initiatorName: iqn.2026-01.org.example:captured"},
		"captured before the policy":  {document: captured(`{"initiator": "iqn.2026-01.org.example:captured"}`, oneISCSI), mapping: ceph, shown: "initiatorName: iqn.2026-01.org.example:captured"},
		"captured connector empty":    {document: captured(`{}`, oneISCSI), mapping: ceph, shown: "initiatorName: iqn.2018-01.io.k8s.standalone-cinder:prod-eu-1"},
		"captured connector null":     {document: captured(`null`, oneISCSI), mapping: ceph, shown: "initiatorName: iqn.2018-01.io.k8s.standalone-cinder:prod-eu-1"},
		"captured connector no use":   {document: captured(`[5]`, oneISCSI), shown: "the connector has no initiator"},
		"captured ports":              {document: captured(`{"wwpns": ["10:00:00:00:C9:A1:B2:C1", "10000000c9a1b2c2"]}`, oneFC), shown: "not to 10000000c9a1b2c2"},
		"captured ports of others":    {document: captured(`{"wwpns": ["10000000c9a1b2c2"]}`, oneFC), code: 1, message: "InvalidConnector: initiator_target_map exposes the volume only to 10000000c9a1b2c1, none of which is among the nodes' ports (10000000c9a1b2c2); correct connector.wwpns of the backend, or the zones"},
		"reads only":                  {document: oneISCSI, arguments: []string{"--access-mode", "ROX"}, shown: "readOnly: true"},
		"long name":                   {document: oneISCSI, arguments: []string{"--access-mode", "ReadOnlyMany"}, shown: "- ReadOnlyMany"},
		"many writers":                {document: oneISCSI, arguments: []string{"--access-mode", "RWX"}, code: 1, message: "UnsupportedAccessMode: access mode ReadWriteMany is for volumeMode Block only, because a Cinder volume is a disk, and its filesystem breaks when two nodes mount it for writing; use ReadWriteOnce or ReadOnlyMany"},
		"many writers, raw":           {document: oneISCSI, arguments: []string{"--access-mode", "RWX", "--volume-mode", "Block"}, code: 1, message: "UnsupportedAccessMode: access mode ReadWriteMany needs a volume that several hosts may use at once, and Cinder says multiattach is false; use a volume type with the extra spec multiattach=\"<is> True\", or use ReadWriteOnce"},
		"many writers may":            {document: oneISCSI, arguments: []string{"--access-mode", "RWX", "--volume-mode", "Block", "--multiattach"}, shown: "- ReadWriteMany"},
		"raw device":                  {document: oneISCSI, arguments: []string{"--volume-mode", "Block"}, shown: "volumeMode: Block"},
		"rbd without a policy":        {document: oneRBD, shown: "without a policy rbd is shown as the native source"},
		"rbd with a policy":           {document: oneRBD, mapping: ceph, shown: "clusterID: ceph-1"},
		"rbd without its mapping":     {document: oneRBD, mapping: "mapping:\n  iscsi: {as: native}\n", code: 1, shown: "reason: InvalidMapping", message: `InvalidMapping: backend gold: mapping.rbd.clusterID is missing; set it in the backend's mapping to the ceph-csi clusterID of this Ceph cluster, or set mapping.rbd.as to "native" for Kubernetes up to 1.30`},
		"refused":                     {document: oneNFS, code: 1, shown: "reason: MappingRequired", message: "MappingRequired: a Cinder volume on NFS is an image file on an export shared by many volumes, which Kubernetes cannot mount by itself without handing the whole export to the pod; name in mapping.nfs of the backend a CSI or FlexVolume driver that attaches the one file"},
		"no JSON":                     {document: "driver_volume_type: iscsi", code: 1, message: "InvalidConnection: the connection document is not JSON (near byte 0); pass Cinder's answer unchanged"},
		"empty":                       {document: "", code: 1, message: "InvalidConnection: the connection document is not JSON (near byte 0); pass Cinder's answer unchanged"},
		"too long":                    {document: strings.Repeat(" ", 2<<20), code: 1, message: "InvalidConnection: the connection document is 1048577 bytes long, more than the 1048576 expected at most; pass Cinder's answer unchanged"},
		"no such access mode":         {document: oneISCSI, arguments: []string{"--access-mode", "RW"}, code: 2, message: `--access-mode must be RWO, ROX, RWX or RWOP, or a long name such as ReadWriteOnce, not "RW"`},
		"no such volume mode":         {document: oneISCSI, arguments: []string{"--volume-mode", "block"}, code: 2, message: `--volume-mode must be Filesystem or Block, not "block"`},
		"no such output":              {document: oneISCSI, arguments: []string{"--output", "text"}, code: 2, message: `--output must be yaml or json, not "text"`},
		"no namespace":                {document: oneISCSI, arguments: []string{"--namespace", ""}, code: 2, message: "--namespace is empty; name the provisioner's own namespace"},
		"backend without a policy":    {document: oneISCSI, arguments: []string{"--backend", "gold"}, code: 2, message: "--backend is about a policy and needs --policy"},
		"no such backend":             {document: oneISCSI, mapping: ceph, arguments: []string{"--backend", "silver"}, code: 2, message: `the policy has no backend "silver"; it has gold`},
		"no such policy":              {document: oneISCSI, arguments: []string{"--policy", "/nonexistent"}, code: 2, message: "read policy: open /nonexistent: no such file or directory"},
		"two files on standard input": {document: oneISCSI, arguments: []string{"--policy", "-"}, code: 2, message: "only one file can be - for standard input, not 2"},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := append([]string{"-"}, test.arguments...)
			if test.mapping != "" {
				arguments = append([]string{"--policy", policyWith(t, test.mapping)}, arguments...)
			}
			code, stdout, message := runMap(t, test.document, arguments...)
			if code != test.code || message != test.message || !strings.Contains(stdout, test.shown) {
				t.Errorf("exit code is %d, expected %d; message\n%s\nexpected\n%s\noutput\n%s\nexpected to have %q", code, test.code, message, test.message, stdout, test.shown)
			}
			if strings.Contains(stdout+message, "not-a-real-secret") {
				t.Error("the password is shown")
			}
		})
	}
}

// TestMapOfModeCSI: the PersistentVolume, and what a node gets, contain no credential.
func TestMapOfModeCSI(t *testing.T) {
	of := func(modes string) string {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		text := "apiVersion: standalone-cinder.openstack.org/v1alpha1\nkind: Policy\nbackends:\n  - {name: gold, auth: {noauth: {endpoint: \"http://cinder:8776/v3\"}}}\ntenants:\n  - name: a\n    namespaces: [a]\n    classes:\n" + modes
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	csi := of("      - {storageClasses: [one], backends: [gold], mode: csi}\n")
	both := of("      - {storageClasses: [one], backends: [gold], mode: csi}\n      - {storageClasses: [two], backends: [gold]}\n")
	const nvme = `{"driver_volume_type": "nvmeof", "data": {"target_nqn": "nqn.2014-08.org.example:s1", "vol_uuid": "86a25cac-e84c-4ef1-816f-76fcd478cebd", "ns_id": 11, "portals": [["192.0.2.1", 4420, "tcp"]]}}`
	for name, test := range map[string]struct {
		document  string
		arguments []string
		code      int
		shown     []string
		hidden    string
		message   string
	}{
		"by the policy": {document: oneISCSI, arguments: []string{"--policy", csi}, hidden: "iscsi:", shown: []string{
			"driver: standalone-cinder.openstack.org", "volumeHandle: gold/00000000-", "name: pvc-00000000-0000-0000-0000-000000000000-node",
			"node:\n  credentials: (hidden)\n  paths:\n  - lun: 1\n    portal: 192.0.2.1:3260\n    target: iqn.2010-10.org.openstack:volume-1\n  protocol: iscsi\n"}},
		"NVMe": {document: nvme, arguments: []string{"--policy", csi}, hidden: "credentials", shown: []string{
			"  identities:\n  - uuid.86a25cac-e84c-4ef1-816f-76fcd478cebd\n", "  - lun: 11\n    portal: 192.0.2.1:4420\n    target: nqn.2014-08.org.example:s1\n  protocol: nvmeof\n"}},
		"of another protocol": {document: oneNFS, arguments: []string{"--policy", csi}, code: 1, shown: []string{"reason: UnsupportedProtocol"},
			message: "UnsupportedProtocol: backend gold: the nodes of the CSI driver do not support protocol nfs (only fibre_channel, iscsi, iser, nvmeof, rbd); use mode native for this backend"},
		"both modes, of which native is shown": {document: oneISCSI, arguments: []string{"--policy", both}, hidden: "node:", shown: []string{
			"targetPortal: 192.0.2.1:3260", "this is mode native; rules make volumes in mode csi on backend gold, too, which\n  --mode csi shows"}},
		"both modes, by the flag": {document: oneISCSI, arguments: []string{"--policy", both, "--mode", "csi"}, shown: []string{"protocol: iscsi"}},
		"native by the flag":      {document: oneISCSI, arguments: []string{"--policy", csi, "--mode", "native"}, hidden: "node:", shown: []string{"targetPortal: 192.0.2.1:3260"}},
		"without a policy":        {document: oneISCSI, arguments: []string{"--mode", "csi"}, shown: []string{"volumeHandle: backend/00000000-"}},
		"many readers": {document: oneISCSI, arguments: []string{"--policy", csi, "--access-mode", "ROX"}, code: 1, shown: []string{"reason: UnsupportedAccessMode"},
			message: "UnsupportedAccessMode: backend gold: access mode ReadOnlyMany needs a volume that several hosts may use at once, and Cinder says multiattach is false; use a volume type with the extra spec multiattach=\"<is> True\", or use ReadWriteOnce"},
		"many readers may":   {document: oneISCSI, arguments: []string{"--policy", csi, "--access-mode", "ROX", "--multiattach"}, shown: []string{"readOnly: true"}},
		"no such mode":       {document: oneISCSI, arguments: []string{"--mode", "both"}, code: 2, message: `--mode must be native or csi, not "both"`},
		"no such filesystem": {document: oneISCSI, arguments: []string{"--mode", "csi", "--fs-type", "btrfs"}, code: 2, message: `--fs-type must be ext4 or xfs in mode csi, not "btrfs"`},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, message := runMap(t, test.document, append([]string{"-"}, test.arguments...)...)
			if code != test.code || message != test.message || test.hidden != "" && strings.Contains(stdout, test.hidden) {
				t.Errorf("exit code is %d, expected %d; message\n%s\nexpected\n%s\noutput\n%s", code, test.code, message, test.message, stdout)
			}
			for _, part := range test.shown {
				if !strings.Contains(stdout, part) {
					t.Errorf("no %q in\n%s", part, stdout)
				}
			}
			if strings.Contains(stdout+message, "not-a-real-secret") {
				t.Error("the password is shown")
			}
		})
	}
}

func TestMapNeedsOneFile(t *testing.T) {
	for _, arguments := range [][]string{nil, {"a", "b"}} {
		if code, _, message := runMap(t, "", arguments...); code != 2 || !strings.HasPrefix(message, "map takes one FILE, or - for standard input, but was given ") {
			t.Errorf("%q: exit code is %d (%s)", arguments, code, message)
		}
	}
	if code, _, message := runMap(t, "", "/nonexistent"); code != 2 || message != "read connection: open /nonexistent: no such file or directory" {
		t.Errorf("exit code is %d (%s)", code, message)
	}
}

// TestMapShowsMistakesOfThePolicy: errors in a policy are shown as policy check shows
// them.
func TestMapShowsMistakesOfThePolicy(t *testing.T) {
	file := policyWith(t, "mapping:\n  nfs: {as: csi, driver: nfs.example, attributes: {a: \"{{ .x }}\"}}\n")
	code, stdout, message := runMap(t, oneNFS, "--policy", file, "-")
	const want = "backends[0].mapping.nfs.attributes.a: unknown value .x; the known names are claim, connection, connector, fsType, nfs, pv, readOnly, tenant, volume"
	if code != 2 || stdout != "" || !strings.HasSuffix(message, want) {
		t.Errorf("exit code is %d, output %q, message\n%s\nexpected to end with\n%s", code, stdout, message, want)
	}
}

// FuzzMapCommand: every document gets an answer, and the answer can be parsed.
func FuzzMapCommand(f *testing.F) {
	for _, seed := range []string{oneISCSI, oneNFS, oneRBD, oneFC, `{"connector_used": {"wwpns": ["a"]}, "connection_info": ` + oneFC + `}`, `{"attachment": {"connection_info": {"driver_volume_type": "iscsi", "target_lun": 1}}}`, `[]`, `{"connection_info": null}`} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, document []byte, block bool) {
		options := MapOptions{Protocols: mappers.BuiltIn(), Namespace: "storage", AccessMode: "RWO", VolumeMode: "Filesystem"}
		if block {
			options.VolumeMode = "Block"
		}
		mapped, refusal, err := Map(options, document, strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		if (refusal == nil) != (mapped.PersistentVolume != nil) || (refusal == nil) == (mapped.Refused != nil) {
			t.Fatalf("%v is refused with %v", mapped, refusal)
		}
		var out bytes.Buffer
		if err := mapped.print(&out, "json"); err != nil || !json.Valid(out.Bytes()) {
			t.Fatalf("output is %s (%v)", out.String(), err)
		}
		out.Reset()
		var again Mapped
		if err := mapped.print(&out, "yaml"); err != nil || yaml.Unmarshal(out.Bytes(), &again) != nil {
			t.Fatalf("output is %s (%v)", out.String(), err)
		}
	})
}
