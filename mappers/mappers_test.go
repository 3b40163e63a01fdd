package mappers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

func TestNewNeedsANamespaceForSecrets(t *testing.T) {
	_, err := mappers.New(mappers.Options{})
	const want = "mappers: Options.SecretNamespace is empty, expected the provisioner's own namespace"
	if err == nil || err.Error() != want {
		t.Errorf("error is %v, expected %s", err, want)
	}
}

func TestProtocols(t *testing.T) {
	if got, want := newRegistry(t).Protocols(), []string{"fibre_channel", "iscsi", "iser", "nfs", "nvmeof", "rbd"}; !reflect.DeepEqual(got, want) {
		t.Errorf("protocols are %v, expected %v", got, want)
	}
}

// TestMapNeedsNames: a caller's mistake is not a refusal: it must not be blamed
// on the volume.
func TestMapNeedsNames(t *testing.T) {
	const want = "mappers: Request.PVName and Request.SecretName must be set"
	for name, change := range map[string]func(*mappers.Request){
		"volume": func(r *mappers.Request) { r.PVName = "" },
		"secret": func(r *mappers.Request) { r.SecretName = "" },
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			change(&request)
			_, err := newRegistry(t).Map(request)
			var refusal *mappers.Refusal
			if err == nil || err.Error() != want || errors.As(err, &refusal) {
				t.Errorf("error is %v, expected %s and no refusal", err, want)
			}
		})
	}
}

func TestMapRefusesNoConnection(t *testing.T) {
	_, err := newRegistry(t).Map(plainRequest())
	expectRefusal(t, err, mappers.InvalidConnection, "there is no connection; connect the volume before it is mapped")
}

func TestCheckAccessModes(t *testing.T) {
	for name, test := range map[string]struct {
		modes []corev1.PersistentVolumeAccessMode
		block bool
		want  string
	}{
		"none":                {},
		"once and read":       {modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}},
		"one pod":             {modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}},
		"many":                {modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}, want: "access mode ReadWriteMany is for volumeMode Block only, because a Cinder volume is a disk, and its filesystem breaks when two nodes mount it for writing; use ReadWriteOnce or ReadOnlyMany"},
		"many, raw block":     {modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, block: true},
		"one of a later time": {modes: []corev1.PersistentVolumeAccessMode{"WriteOnlyMany"}, want: `access mode "WriteOnlyMany" is unknown; use ReadWriteOnce or ReadOnlyMany`},
	} {
		t.Run(name, func(t *testing.T) {
			err := mappers.CheckAccessModes(test.modes, test.block)
			if test.want == "" {
				if err != nil {
					t.Errorf("error is %v, expected none", err)
				}
				return
			}
			expectRefusal(t, err, mappers.UnsupportedAccessMode, test.want)
		})
	}
}

// TestReadOnly: only a claim that never writes makes the source read-only.
func TestReadOnly(t *testing.T) {
	registry := newRegistry(t)
	for name, test := range map[string]struct {
		accessMode string
		claim      []corev1.PersistentVolumeAccessMode
		want       bool
		warned     bool
	}{
		"claim reads":               {"rw", []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, true, false},
		"claim may write, too":      {"rw", []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteOnce}, false, false},
		"Cinder forbids writing":    {"ro", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, true, true},
		"Cinder forbids, who cares": {"ro", []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}, true, false},
	} {
		for protocol, document := range map[string]string{
			"iscsi": `{"driver_volume_type": "iscsi", "data": {"target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:a", "target_lun": 1, "access_mode": "` + test.accessMode + `"}}`,
			"rbd":   `{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-1", "access_mode": "` + test.accessMode + `"}}`,
		} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				request := plainRequest()
				request.AccessModes = test.claim
				request.Mappings = map[string]mapping.Mapping{"rbd": {As: mapping.CSI, ClusterID: "ceph-1", NodeStageSecretRef: &corev1.SecretReference{Name: "a", Namespace: "b"}}}
				result, err := mapDocument(registry, []byte(document), request)
				if err != nil {
					t.Fatal(err)
				}
				var inSource bool
				if result.Source.ISCSI != nil {
					inSource = result.Source.ISCSI.ReadOnly
				} else {
					inSource = result.Source.CSI.ReadOnly
				}
				if result.ReadOnly != test.want || inSource != test.want {
					t.Errorf("read-only is %t and %t in the source, expected %t", result.ReadOnly, inSource, test.want)
				}
				if warned := len(result.Warnings) > 0; warned != test.warned {
					t.Errorf("warnings are %q, expected some: %t", result.Warnings, test.warned)
				}
			})
		}
	}
}

// soundConnection finds a golden case that maps without anything special. It
// returns the data of the connection, without braces, and the mapping.
func soundConnection(t *testing.T, protocol string) (string, mapping.Mapping) {
	t.Helper()
	for _, path := range goldenPaths(t) {
		if filepath.Base(filepath.Dir(path)) != protocol {
			continue
		}
		if _, err := os.Stat(strings.TrimSuffix(path, ".json") + ".golden.yaml"); err != nil {
			continue
		}
		read, request := readGolden(t, path)
		var document struct {
			Data map[string]any `json:"data"`
		}
		if err := json.Unmarshal(read.Document, &document); err != nil {
			t.Fatal(err)
		}
		settings := request.Mappings[protocol]
		if document.Data == nil || request.Block || request.AccessModes[0] != corev1.ReadWriteOnce || settings.ReadOnly || settings.As == mapping.FlexVolume {
			continue
		}
		for _, varied := range []string{"access_mode", "encrypted", "qos_specs"} {
			delete(document.Data, varied)
		}
		data, err := json.Marshal(document.Data)
		if err != nil {
			t.Fatal(err)
		}
		return string(data[1 : len(data)-1]), settings
	}
	t.Fatalf("testdata/%s has no plain case that maps", protocol)
	return "", mapping.Mapping{}
}

// TestRefusalsOfEveryProtocol checks what holds for every protocol.
func TestRefusalsOfEveryProtocol(t *testing.T) {
	registry := newRegistry(t)
	const encrypted = "encrypted is true, but a kubelet cannot open the volume's LUKS layer and would format it; use mode csi, whose nodes open it, or a volume type without encryption"
	const look = "; this backend's driver failed to describe the connection, so check the cinder-volume log"
	for name, test := range map[string]struct {
		fields string
		change func(*mappers.Request)
		reason mappers.Reason
		want   string
	}{
		"encrypted":               {fields: `"encrypted": true`, reason: mappers.EncryptedVolume, want: encrypted},
		"encrypted in Python":     {fields: `"encrypted": "True"`, reason: mappers.EncryptedVolume, want: encrypted},
		"encrypted by the volume": {fields: `"encrypted": false`, change: func(r *mappers.Request) { r.Encrypted = true }, reason: mappers.EncryptedVolume, want: encrypted},
		"encrypted unclear":       {fields: `"encrypted": 1`, reason: mappers.InvalidConnection, want: "encrypted is 1, expected true or false" + look},
		"access mode unknown":     {fields: `"access_mode": "wo"`, reason: mappers.InvalidConnection, want: `access_mode is "wo", expected "rw" or "ro"; check the cinder-volume log`},
		"access mode no text":     {fields: `"access_mode": ["ro"]`, reason: mappers.InvalidConnection, want: "access_mode is a list, expected a string" + look},
		"qos no object":           {fields: `"qos_specs": "iops"`, reason: mappers.InvalidConnection, want: `qos_specs is "iops", expected an object` + look},
		"claim of many writers":   {fields: `"access_mode": "rw"`, change: func(r *mappers.Request) { r.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany} }, reason: mappers.UnsupportedAccessMode, want: "access mode ReadWriteMany is for volumeMode Block only, because a Cinder volume is a disk, and its filesystem breaks when two nodes mount it for writing; use ReadWriteOnce or ReadOnlyMany"},
		"many writers of a volume for one": {fields: `"access_mode": "rw"`, change: func(r *mappers.Request) {
			r.Block, r.AccessModes = true, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, reason: mappers.UnsupportedAccessMode, want: "access mode ReadWriteMany needs a volume that several hosts may use at once, and Cinder says multiattach is false; use a volume type with the extra spec multiattach=\"<is> True\", or use ReadWriteOnce"},
	} {
		for _, protocol := range registry.Protocols() {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				data, settings := soundConnection(t, protocol)
				request := plainRequest()
				request.Mappings = map[string]mapping.Mapping{protocol: settings}
				document := func(fields string) []byte {
					return []byte(`{"driver_volume_type": "` + protocol + `", "data": {` + data + fields + `}}`)
				}
				if _, err := mapDocument(registry, document(""), request); err != nil {
					t.Fatalf("the document is refused without the fields, too: %v", err)
				}
				if test.change != nil {
					test.change(&request)
				}
				_, err := mapDocument(registry, document(", "+test.fields), request)
				expectRefusal(t, err, test.reason, test.want)
			})
		}
	}
}

// TestManyWritersOfARawVolume: many nodes may write to a volume only if it is a
// raw block volume that Cinder lets several hosts use; every protocol with a
// source for it maps it.
func TestManyWritersOfARawVolume(t *testing.T) {
	registry := newRegistry(t)
	for _, protocol := range registry.Protocols() {
		t.Run(protocol, func(t *testing.T) {
			data, settings := soundConnection(t, protocol)
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{protocol: settings}
			request.Block, request.MultiAttach, request.AccessModes = true, true, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			result, err := mapDocument(registry, []byte(`{"driver_volume_type": "`+protocol+`", "data": {`+data+`}}`), request)
			if err != nil {
				t.Fatal(err)
			}
			if result.ReadOnly {
				t.Error("the source is read-only")
			}
		})
	}
}

// TestFlexVolumeTakesNoMountOptions: kubelet mounts no FlexVolume with mount
// options; the pod would wait forever.
func TestFlexVolumeTakesNoMountOptions(t *testing.T) {
	request := plainRequest()
	request.MountOptions = []string{"noatime"}
	request.Mappings = map[string]mapping.Mapping{"nfs": {As: mapping.FlexVolume, Driver: "example.org/nfs"}}
	_, err := mapDocument(newRegistry(t), []byte(`{"driver_volume_type": "nfs", "data": {"export": "192.0.2.9:/export", "name": "volume-1"}}`), request)
	expectRefusal(t, err, mappers.InvalidMapping, "the StorageClass has mountOptions, which kubelet does not support for FlexVolumes; remove them from the StorageClass, or map nfs to a CSI driver")
}

// TestCopyIsMountedBesideItsOriginal: both have the UUID of one filesystem, and only xfs
// refuses to be mounted twice. The filesystem of a larger copy has the size of its source.
func TestCopyIsMountedBesideItsOriginal(t *testing.T) {
	const iscsi = `{"driver_volume_type": "iscsi", "data": {"target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1}}`
	const nfs = `{"driver_volume_type": "nfs", "data": {"export": "192.0.2.9:/export", "name": "volume-1"}}`
	const smaller = "the filesystem has the 1 GiB of the source, because the kubelet does not grow that of a native volume; on the node that mounts it, run resize2fs DEVICE or xfs_growfs MOUNTPOINT"
	flex := map[string]mapping.Mapping{"nfs": {As: mapping.FlexVolume, Driver: "example.org/nfs"}}
	for name, test := range map[string]struct {
		document string
		adjust   func(*mappers.Request)
		options  []string
		warnings []string
	}{
		"xfs":                     {iscsi, func(*mappers.Request) {}, []string{"nouuid"}, nil},
		"ext4":                    {iscsi, func(r *mappers.Request) { r.FSType = "ext4" }, nil, nil},
		"a larger copy":           {iscsi, func(r *mappers.Request) { r.Volume.SizeGiB = 2 }, []string{"nouuid"}, []string{smaller}},
		"no copy":                 {iscsi, func(r *mappers.Request) { r.SourceGiB, r.Volume.SizeGiB = 0, 2 }, nil, nil},
		"a raw block volume":      {iscsi, func(r *mappers.Request) { r.Block, r.Volume.SizeGiB = true, 2 }, nil, nil},
		"mounted by a FlexVolume": {nfs, func(r *mappers.Request) { r.Mappings, r.Volume.SizeGiB = flex, 2 }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.FSType, request.SourceGiB, request.Volume.SizeGiB = "xfs", 1, 1
			test.adjust(&request)
			result, err := mapDocument(newRegistry(t), []byte(test.document), request)
			if err != nil || !slices.Equal(result.MountOptions, test.options) || !slices.Equal(result.Warnings, test.warnings) {
				t.Errorf("options %v, warnings %q, expected %v and %q (%v)", result.MountOptions, result.Warnings, test.options, test.warnings, err)
			}
		})
	}
}

func TestMappingOfUnknownForm(t *testing.T) {
	request := plainRequest()
	request.Mappings = map[string]mapping.Mapping{"rbd": {As: "portworx"}, "nfs": {As: "native"}}
	_, err := mapDocument(newRegistry(t), []byte(`{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-1"}}`), request)
	expectRefusal(t, err, mappers.InvalidMapping, `mapping.rbd.as: unknown kind of volume source "portworx"; the kinds are csi, flexVolume, native`)
	_, err = mapDocument(newRegistry(t), []byte(`{"driver_volume_type": "nfs", "data": {"export": "a:/b", "name": "volume-1"}}`), request)
	expectRefusal(t, err, mappers.InvalidMapping, `mapping.nfs.as: Kubernetes has no native volume source for "nfs"; use csi or flexVolume with a driver`)
}

// TestSentencesWithholdCredentials: a password that a driver repeats elsewhere
// must not be printed.
func TestSentencesWithholdCredentials(t *testing.T) {
	registry := newRegistry(t)
	const withheld = "a value that contains a credential"
	for name, test := range map[string]struct{ data, want string }{
		"as a portal":          {`"target_portal": "hunter2-and-more", "auth_password": "hunter2-and-more"`, "target_portal is " + withheld + ", which has no port; expected host:port or [IPv6]:port, correct the backend's iSCSI address in cinder.conf"},
		"inside a portal":      {`"target_portal": "user:hunter2@192.0.2.1:3260", "auth_password": "hunter2"`, "target_portal is " + withheld + ", which is not an address and a port; expected host:port or [IPv6]:port, correct the backend's iSCSI address in cinder.conf"},
		"nested credentials":   {`"target_iqn": "label-hunter2", "config": {"vendor": [{"api_token": "hunter2"}]}`, "target_iqn is " + withheld + ", which starts with none of iqn., eui. and naa., which Kubernetes requires; set a standard target name on the array, or use a backend with one" + mapOtherwise("iscsi")},
		"driver's own word":    {`"target_iqn": "label-hunter2", "chap_pwd": "hunter2"`, "target_iqn is " + withheld + ", which starts with none of iqn., eui. and naa., which Kubernetes requires; set a standard target name on the array, or use a backend with one" + mapOtherwise("iscsi")},
		"password is short":    {`"auth_method": "abc", "auth_password": "abc"`, "auth_method is " + withheld + ", but kubelet speaks CHAP only; set the backend to CHAP or to no authentication"},
		"password as a flag":   {`"auth_password": true`, "auth_password is a boolean, expected a string; this backend's driver failed to describe the connection, so check the cinder-volume log"},
		"short number":         {`"auth_password": 123`, "auth_password is a number, expected a string; this backend's driver failed to describe the connection, so check the cinder-volume log"},
		"number of a list":     {`"keyring": [4711], "auth_method": "4711"`, "auth_method is " + withheld + ", but kubelet speaks CHAP only; set the backend to CHAP or to no authentication"},
		"by provider_auth":     {`"target_iqn": "label-hunter2", "provider_auth": "CHAP user hunter2"`, "target_iqn is " + withheld + ", which starts with none of iqn., eui. and naa., which Kubernetes requires; set a standard target name on the array, or use a backend with one" + mapOtherwise("iscsi")},
		"by a short word":      {`"target_iqn": "label-hunter2", "chap_pw": "hunter2"`, "target_iqn is " + withheld + ", which starts with none of iqn., eui. and naa., which Kubernetes requires; set a standard target name on the array, or use a backend with one" + mapOtherwise("iscsi")},
		"password as a number": {`"auth_password": 12345678`, "auth_password is a number, expected a string; this backend's driver failed to describe the connection, so check the cinder-volume log"},
		"method is password":   {`"auth_method": "hunter2", "auth_password": "hunter2"`, "auth_method is " + withheld + ", but kubelet speaks CHAP only; set the backend to CHAP or to no authentication"},
		"longer than is shown": {`"target_iqn": "` + strings.Repeat("x", 300) + `"`, `target_iqn is "` + strings.Repeat("x", 80) + `...", which is longer than 223 characters; set a standard target name on the array, or use a backend with one` + mapOtherwise("iscsi")},
	} {
		t.Run(name, func(t *testing.T) {
			document := `{"driver_volume_type": "iscsi", "data": {` + test.data
			for key, value := range map[string]string{"target_portal": `"192.0.2.1:3260"`, "target_iqn": `"iqn.2010-10.org.openstack:a"`, "target_lun": "1"} {
				if !strings.Contains(test.data, `"`+key+`"`) {
					document += `, "` + key + `": ` + value
				}
			}
			_, err := mapDocument(registry, []byte(document+"}}"), plainRequest())
			var refusal *mappers.Refusal
			if !errors.As(err, &refusal) {
				t.Fatalf("error is %v, expected a refusal", err)
			}
			if refusal.Message != test.want {
				t.Errorf("message is\n%s\nexpected\n%s", refusal.Message, test.want)
			}
		})
	}
}

func TestQoSWarningWithholdsCredentials(t *testing.T) {
	result, err := mapDocument(newRegistry(t), []byte(`{"driver_volume_type": "iscsi", "data": {
		"target_portal": "192.0.2.1:3260", "target_iqn": "iqn.2010-10.org.openstack:a", "target_lun": 1,
		"qos_specs": {"hunter2": "1"}, "vendor_token": "hunter2"}}`), plainRequest())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"the volume type's front-end QoS (a value that contains a credential) is not enforced: kubelet has no such limits; move them to the back end if the driver can enforce them"}
	if !reflect.DeepEqual(result.Warnings, want) {
		t.Errorf("warnings are %q, expected %q", result.Warnings, want)
	}
}

// TestPlaceholdersAreNoProtocols: words that drivers send when they know
// nothing are not taken for protocols.
func TestPlaceholdersAreNoProtocols(t *testing.T) {
	for _, word := range []string{"unknown", "Unknown", "none", "null", ""} {
		_, err := mappers.ParseConnection([]byte(`{"driver_volume_type": "` + word + `", "data": {"a": 1}}`))
		expectRefusal(t, err, mappers.InvalidConnection, fmt.Sprintf("driver_volume_type is %q, which is no protocol: this backend's driver failed to say how the volume is connected, so check the cinder-volume log", word))
	}
}

// TestDevicesOfOneHost: a mapping would not help, since the device is on
// another host.
func TestDevicesOfOneHost(t *testing.T) {
	for _, protocol := range []string{"local", "local-lvm"} {
		_, err := mapData(t, protocol, fields{"device_path": "/dev/vg/volume-1"}, plainRequest())
		expectRefusal(t, err, mappers.UnsupportedProtocol, "volumes of protocol "+protocol+" are devices of the host that cinder-volume runs on, and no other node can attach them with any driver; use a volume type whose backend exports its volumes")
	}
	for field, want := range map[string][2]string{
		"hostIP":      {"scaleio", "it is the address of the one host that the connector named"},
		"sdc_guid":    {"scaleio", "it identifies the PowerFlex client of the one host that the connector named"},
		"client_id":   {"storpool", "it is the StorPool number of the one host that the connector named"},
		"device_path": {"local", "it is a device of the one host that attached the volume"},
	} {
		findings := mapping.Mapping{As: mapping.CSI, Driver: "csi.example.org", Attributes: map[string]string{"a": "{{ .connection." + field + " }}"}}.Check(want[0], mapping.Context{Protocols: mappers.BuiltIn().Describe()})
		if !slices.ContainsFunc(findings, func(f mapping.Finding) bool {
			return !f.Warning && f.Message == ".connection."+field+" must not be written into a PersistentVolume: "+want[1]
		}) {
			t.Errorf("%s of %s: findings are %v", field, want[0], findings)
		}
	}
}
