package mappers_test

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// TestEveryNameOfTheVocabularyHasAValue: every name that the language knows has
// a value in one of the golden cases.
func TestEveryNameOfTheVocabularyHasAValue(t *testing.T) {
	registry := newRegistry(t)
	for _, protocol := range registry.Protocols() {
		for root, children := range registry.Describe().Use(protocol).Roots() {
			names := []string{root}
			if children != nil {
				names = nil
				for _, child := range children {
					names = append(names, root+"."+child)
				}
			}
			for _, name := range names {
				request := plainRequest()
				request.Mappings = map[string]mapping.Mapping{protocol: {
					As: mapping.FlexVolume, Driver: "example.org/driver",
					Secret: &mapping.Secret{Data: map[string]string{"value": "{{ ." + name + ` | default "" | json }}`}},
				}}
				if !slices.ContainsFunc(goldenPaths(t), func(path string) bool {
					if filepath.Base(filepath.Dir(path)) != protocol {
						return false
					}
					read, _ := readGolden(t, path)
					result, err := mapDocument(registry, read.Document, request)
					return err == nil && result.Secret != nil && string(result.Secret.Data["value"]) != `""`
				}) {
					t.Errorf("no case in testdata/%s gives a value to .%s", protocol, name)
				}
			}
		}
	}
}

// TestTwoAnswersForOneVolume: after a failover, arrays put another of a
// volume's portals first, and some choose one at random. Both answers map, and
// keep the credentials.
func TestTwoAnswersForOneVolume(t *testing.T) {
	answer := func(first string) fields {
		return twoPaths(fields{
			"target_portal": first, "target_iqn": targetA, "target_lun": 1,
			"auth_method": "CHAP", "auth_username": "user", "auth_password": "not-a-real-secret",
		})
	}
	before, err := mapData(t, "iscsi", answer("192.0.2.1:3260"), plainRequest())
	if err != nil {
		t.Fatal(err)
	}
	after, err := mapData(t, "iscsi", answer("192.0.2.2:3260"), plainRequest())
	if err != nil {
		t.Fatal(err)
	}
	portals := func(result mappers.Result) []string {
		return slices.Sorted(slices.Values(append([]string{result.Source.ISCSI.TargetPortal}, result.Source.ISCSI.Portals...)))
	}
	if !reflect.DeepEqual(portals(before), portals(after)) || before.Source.ISCSI.IQN != after.Source.ISCSI.IQN || !reflect.DeepEqual(before.Secret, after.Secret) {
		t.Errorf("the answers differ in more than the order of their portals:\n%v\n%v", before.Source.ISCSI, after.Source.ISCSI)
	}
}

func TestMappingRefusals(t *testing.T) {
	reference := &corev1.SecretReference{Name: "a", Namespace: "b"}
	secret := &mapping.Secret{Data: map[string]string{"key": "{{ .volume.id }}"}}
	csi := func(change func(*mapping.Mapping)) mapping.Mapping {
		made := mapping.Mapping{As: mapping.CSI, Driver: "csi.example.org"}
		change(&made)
		return made
	}
	flex := func(change func(*mapping.Mapping)) mapping.Mapping {
		made := mapping.Mapping{As: mapping.FlexVolume, Driver: "example.org/driver"}
		change(&made)
		return made
	}
	for name, test := range map[string]struct {
		mapping mapping.Mapping
		want    string
	}{
		"driver too long": {csi(func(m *mapping.Mapping) { m.Driver = strings.Repeat("x", 64) }), `mapping.quobyte.driver: "` + strings.Repeat("x", 64) + `" cannot be the name of a CSI driver; use at most 63 letters, digits, '.' and '-', as in nvmf.csi.example.com`},
		"handle empty": {csi(func(m *mapping.Mapping) {
			m.VolumeHandle = "{{ .volume.id | trimPrefix \"7c1f8b52-3d6e-4a0b-9a51-2f0c6f4be001\" }}"
		}), "volumeHandle evaluates to an empty string, but it must identify the volume to the CSI driver; correct the backend's mapping"},
		"handle too long":               {csi(func(m *mapping.Mapping) { m.VolumeHandle = "{{ .volume.id }}" + strings.Repeat("x", 128) }), "volumeHandle is 164 bytes long, but CSI allows 128; use a shorter name of the volume in the backend's mapping"},
		"handle of the tenant's choice": {csi(func(m *mapping.Mapping) { m.VolumeHandle = "{{ .claim.name }}" }), "mapping.quobyte.volumeHandle: .claim.name is chosen by the tenant and must not identify a volume; use .volume.id or .pv.name"},
		"reference without a name":      {csi(func(m *mapping.Mapping) { m.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "b"} }), "mapping.quobyte.nodeExpandSecretRef.name: is missing; give the name and the namespace of the Secret"},
		"reference twice":               {csi(func(m *mapping.Mapping) { m.NodeStageSecretRef, m.Secret = reference, secret }), "mapping.quobyte.nodeStageSecretRef: refers to a Secret of your own, and so would secret; remove one of them, or give secret.references"},
		"reference of no kind": {csi(func(m *mapping.Mapping) {
			m.Secret = &mapping.Secret{Data: secret.Data, References: []string{"nodeStage"}}
		}), `mapping.quobyte.secret.references: unknown reference "nodeStage"; the references of a CSI source are controllerExpandSecretRef, controllerPublishSecretRef, nodeExpandSecretRef, nodePublishSecretRef, nodeStageSecretRef`},
		"two secrets of a FlexVolume": {flex(func(m *mapping.Mapping) { m.SecretRef, m.Secret = reference, secret }), "mapping.quobyte.secretRef: a FlexVolume has only one Secret; remove secretRef or secret"},
		"option of Kubernetes":        {flex(func(m *mapping.Mapping) { m.Options = map[string]string{"kubernetes.io/fsType": "xfs"} }), `mapping.quobyte.options.kubernetes.io/fsType: names under kubernetes.io and k8s.io are reserved for Kubernetes; choose another`},
		"discard of a FlexVolume":     {flex(func(m *mapping.Mapping) { m.Discard = true }), "mapping.quobyte.discard: discard is allowed only with as: csi or native; remove it"},
		"template unreadable":         {flex(func(m *mapping.Mapping) { m.Options = map[string]string{"a": "{{ .x }}"} }), "mapping.quobyte.options.a: unknown value .x; the known names are claim, connection, connector, fsType, pv, readOnly, tenant, volume"},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{"quobyte": test.mapping}
			_, err := mapData(t, "quobyte", fields{"export": "a/b", "name": "volume-1"}, request)
			expectRefusal(t, err, mappers.InvalidMapping, test.want)
		})
	}
}

// TestSharedValuesAreNoHandle: a handle that two volumes share makes kubelet
// mount one of them for the other.
func TestSharedValuesAreNoHandle(t *testing.T) {
	const end = " may be the same for several volumes, so nodes could mount the wrong one; include one of these: .volume.id, .volume.name, .pv.name, .claim.uid"
	own := map[string]string{
		"nvmeof": ", .nvmeof.uuid, .nvmeof.nguid, .nvmeof.wwid", "rbd": ", .rbd.image", "nfs": ", .nfs.file",
		"scaleio": ", .connection.scaleIO_volume_id", "storpool": ", .connection.volume",
	}
	for protocol, handles := range map[string][]string{
		"nvmeof":   {"{{ .nvmeof.nqn }}", "{{ .nvmeof.address }}", "{{ .nvmeof.transport }}", "{{ .nvmeof.namespace }}", "{{ .connection.vol_uuid }}"},
		"iscsi":    {"{{ .iscsi.portal }}", "{{ .iscsi.iqn }}-{{ .iscsi.lun }}", "{{ .connection.encrypted }}"},
		"rbd":      {"{{ .rbd.pool }}", "{{ .rbd.user }}"},
		"nfs":      {"{{ .nfs.server }}", "{{ .nfs.export }}"},
		"scaleio":  {"{{ .connection.scaleIO_volum_id }}", "{{ .connection.serverIP }}"},
		"storpool": {"{{ .connection.access_mode }}"},
		"unheard":  {"{{ .connection.id }}"},
	} {
		for _, handle := range handles {
			findings := mapping.Mapping{As: mapping.CSI, Driver: "csi.example.org", VolumeHandle: handle}.Check(protocol, mapping.Context{Protocols: mappers.BuiltIn().Describe()})
			if len(findings) != 1 || findings[0].Warning || findings[0].Message != "it"+end+own[protocol] {
				t.Errorf("%s: %s: findings are %v", protocol, handle, findings)
			}
		}
	}
	for protocol, handles := range map[string][]string{
		"nvmeof":         {"{{ .nvmeof.uuid }}", "{{ .nvmeof.wwid }}", "{{ .nvmeof.nqn }}#{{ .nvmeof.nguid }}", "{{ .nvmeof.uuid | default .nvmeof.nguid }}"},
		"rbd":            {"{{ .rbd.pool }}/{{ .rbd.image }}"},
		"nfs":            {"{{ .nfs.export }}#{{ .nfs.file }}"},
		"scaleio":        {"1250de83018c0001-{{ .connection.scaleIO_volume_id }}"},
		"quobyte":        {"{{ .connection.export }}|{{ .connection.name }}"},
		"vstorageobject": {"{{ .connection.id }}"},
		"unheard":        {"{{ .connection.id }}-{{ .pv.name }}"},
	} {
		for _, handle := range handles {
			findings := mapping.Mapping{As: mapping.CSI, Driver: "csi.example.org", VolumeHandle: handle}.Check(protocol, mapping.Context{Protocols: mappers.BuiltIn().Describe()})
			if len(findings) != 0 {
				t.Errorf("%s: %s: findings are %v", protocol, handle, findings)
			}
		}
	}
}

// TestIdentitiesAreFacts: what a protocol calls an identity must be one of its
// facts.
func TestIdentitiesAreFacts(t *testing.T) {
	for name, about := range mappers.BuiltIn().Describe() {
		for _, fact := range about.IdentityFacts {
			if !slices.Contains(about.Facts, fact) {
				t.Errorf("%s: %s is not a fact", name, fact)
			}
		}
		for _, field := range about.IdentityFields {
			if about.Fields != nil && !slices.Contains(about.Fields, field) {
				t.Errorf("%s: %s is not a field", name, field)
			}
		}
	}
}
