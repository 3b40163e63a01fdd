package mappers_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// hostileMappings returns the operators' settings under which every document is
// tried, so that all mappers get to see it.
func hostileMappings() []map[string]mapping.Mapping {
	return []map[string]mapping.Mapping{
		nil,
		{"rbd": {As: mapping.CSI, ClusterID: "ceph-1"}},
		{"rbd": {As: mapping.Native}, "fibre_channel": {As: mapping.Native, WWID: "{{ .connection.wwn }}"}, "iscsi": {As: mapping.Native, Discard: true}},
		templatesFor(mapping.Mapping{As: mapping.CSI, Driver: "csi.example.org", Secret: &mapping.Secret{
			Data:       map[string]string{"password": "{{ .connection.auth_password | default .connection.keyring | default \"\" }}"},
			References: []string{"nodePublishSecretRef"},
		}}),
		templatesFor(mapping.Mapping{As: mapping.FlexVolume, Driver: "example.org/driver", Secret: &mapping.Secret{
			Data: map[string]string{"password": "{{ .connection.auth_password | default \"\" }}"},
		}}),
	}
}

// templatesFor returns the mapping for every protocol, with templates that name
// what hostile documents change.
func templatesFor(shared mapping.Mapping) map[string]mapping.Mapping {
	all := map[string]mapping.Mapping{}
	described := mappers.BuiltIn().Describe()
	for _, protocol := range append(described.Mapped(), "quobyte") {
		own := map[string]string{
			"portal": "{{ .connection.target_portal | default \"\" }}",
			"luns":   "{{ .connection.target_luns | default \"none\" | json }}",
			"first":  "{{ index .connection.target_wwns 0 | default .connection.target_wwn | default \"\" }}",
			"host":   "{{ .connection.target_portal | default \"a:1\" | host }}",
			"name":   "{{ .connection.name | default \"a\" | base | upper }}",
		}
		for _, fact := range described[protocol].Facts {
			if !template.IsCredential(fact) {
				own["fact-"+fact] = "{{ ." + protocol + "." + fact + " | default \"\" | json }}"
			}
		}
		of := shared
		if of.As == mapping.CSI {
			of.VolumeHandle, of.Attributes = "{{ .volume.id }}", own
		} else {
			of.Options = own
		}
		all[protocol] = of
	}
	return all
}

// checkAnyDocument checks what must be true of every document, sound or hostile,
// under each of the mappings. It returns the numbers of mappings under which the
// document is mapped and refused.
func checkAnyDocument(t *testing.T, registry *mappers.Registry, hostile []map[string]mapping.Mapping, document []byte) (mapped, refused int) {
	t.Helper()
	credentials := lonelyCredentials(document)
	checkForNode(t, document, credentials)
	for _, settings := range hostile {
		request := plainRequest()
		request.Mappings = settings
		result, err := mapDocument(registry, document, request)
		again, errAgain := mapDocument(registry, document, request)
		if !reflect.DeepEqual(result, again) || !reflect.DeepEqual(err, errAgain) {
			t.Fatalf("two answers for one document:\n%v, %v\n%v, %v", result, err, again, errAgain)
		}

		encoded, marshalErr := json.Marshal(result.Source)
		if marshalErr != nil {
			t.Fatal(marshalErr)
		}
		public := append([]string{string(encoded)}, result.Warnings...)
		if err != nil {
			refused++
			var refusal *mappers.Refusal
			if !errors.As(err, &refusal) {
				t.Fatalf("error is no refusal: %v", err)
			}
			if refusal.Reason == "" || refusal.Message == "" || strings.ContainsAny(refusal.Message, "\n\r") {
				t.Fatalf("refusal is no sentence: %q %q", refusal.Reason, refusal.Message)
			}
			if !reflect.DeepEqual(result, mappers.Result{}) {
				t.Fatalf("a refused document is mapped in part: %v", result)
			}
			public = append(public, refusal.Message)
		} else {
			mapped++
			checkSource(t, request, result)
			if encryptedSomewhere(document) {
				t.Fatalf("an encrypted volume is mapped: %s", encoded)
			}
		}
		for _, credential := range credentials {
			for _, text := range public {
				if strings.Contains(text, credential) {
					t.Fatalf("credential %q is shown: %s", credential, text)
				}
			}
		}
	}
	return mapped, refused
}

// checkForNode checks the same of what a node gets in mode csi.
func checkForNode(t *testing.T, document []byte, credentials []string) {
	t.Helper()
	connection, err := mappers.ParseConnection(document)
	var of mappers.NodeConnection
	if err == nil {
		of, err = mappers.ForNode(connection, mappers.NodeRequest{})
	}
	public := fmt.Sprintf("%+v %v", of, err)
	var refusal *mappers.Refusal
	switch {
	case err == nil && (len(of.Paths) == 0 || encryptedSomewhere(document)):
		t.Fatalf("a node gets %+v", of)
	case err != nil && !errors.As(err, &refusal):
		t.Fatalf("error is no refusal: %v", err)
	case err != nil && (refusal.Reason == "" || strings.ContainsAny(refusal.Message, "\n\r")):
		t.Fatalf("refusal is no sentence: %q %q", refusal.Reason, refusal.Message)
	}
	for _, credential := range credentials {
		if strings.Contains(public, credential) {
			t.Fatalf("credential %q is shown: %s", credential, public)
		}
	}
	for _, path := range of.Paths {
		if strings.ContainsFunc(path.Portal+path.Target, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
			t.Fatalf("a node gets the path %+v", path)
		}
	}
}

// The rules of Kubernetes' API server for iSCSI names.
var (
	apiIQN = regexp.MustCompile(`^iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`)
	apiEUI = regexp.MustCompile(`^eui\.[[:alnum:]]{16}$`)
	apiNAA = regexp.MustCompile(`^naa\.[[:alnum:]]{32}$`)
	apiWWN = regexp.MustCompile(`^[0-9a-f]{16}$`)
)

// checkFilled checks what templates have filled in.
func checkFilled(t *testing.T, fields map[string]string, limit int) {
	t.Helper()
	length := 0
	for key, value := range fields {
		length += len(key) + len(value)
		if value == "" || strings.ContainsFunc(value, unicode.IsControl) {
			t.Fatalf("%s is %q", key, value)
		}
		if key == "file" && strings.Contains(value, "..") {
			t.Fatalf("file leaves its export: %q", value)
		}
	}
	if length > limit {
		t.Fatalf("the fields have %d bytes", length)
	}
}

func checkSource(t *testing.T, request mappers.Request, result mappers.Result) {
	t.Helper()
	secretNeeded := false
	switch source := result.Source; {
	case source.ISCSI != nil && source.CSI == nil && source.RBD == nil:
		iscsi := source.ISCSI
		if !apiIQN.MatchString(iscsi.IQN) && !apiEUI.MatchString(iscsi.IQN) && !apiNAA.MatchString(iscsi.IQN) || strings.Contains(iscsi.IQN, "/") {
			t.Fatalf("target name is %q", iscsi.IQN)
		}
		if iscsi.Lun < 0 || iscsi.Lun > 255 {
			t.Fatalf("LUN is %d", iscsi.Lun)
		}
		portals := append([]string{iscsi.TargetPortal}, iscsi.Portals...)
		for index, portal := range portals {
			host, port, err := net.SplitHostPort(portal)
			number, numberErr := strconv.Atoi(port)
			if err != nil || numberErr != nil || number < 1 || number > 65535 || host == "" || strings.ContainsAny(host, " /\\\n%") {
				t.Fatalf("portal is %q", portal)
			}
			if slices.Contains(portals[:index], portal) {
				t.Fatalf("portal %q is there twice", portal)
			}
		}
		if iscsi.InitiatorName == nil || *iscsi.InitiatorName != request.Connector.Initiator || len(request.PVName+":"+iscsi.TargetPortal) > 64 {
			t.Fatalf("initiator is %v, portal %q", iscsi.InitiatorName, iscsi.TargetPortal)
		}
		secretNeeded = iscsi.SessionCHAPAuth || iscsi.DiscoveryCHAPAuth
		if (iscsi.SecretRef != nil) != secretNeeded {
			t.Fatalf("reference to a secret is %v, CHAP %t and %t", iscsi.SecretRef, iscsi.SessionCHAPAuth, iscsi.DiscoveryCHAPAuth)
		}
	case source.FC != nil && source.ISCSI == nil && source.CSI == nil:
		fc := source.FC
		if (len(fc.TargetWWNs) == 0) == (len(fc.WWIDs) == 0) {
			t.Fatalf("fc source is %v, expected target names or identifiers", fc)
		}
		if len(fc.TargetWWNs) > 0 && (fc.Lun == nil || *fc.Lun < 0 || *fc.Lun > 255) {
			t.Fatalf("LUN is %v", fc.Lun)
		}
		for index, name := range fc.TargetWWNs {
			if !apiWWN.MatchString(name) || slices.Contains(fc.TargetWWNs[:index], name) {
				t.Fatalf("target names are %v", fc.TargetWWNs)
			}
		}
		if directory := strings.Join(fc.TargetWWNs, "-") + "-lun-255"; len(directory) > 255 {
			t.Fatalf("kubelet's directory has a name of %d bytes", len(directory))
		}
	case source.FlexVolume != nil && source.ISCSI == nil && source.CSI == nil:
		flex := source.FlexVolume
		if flex.Driver != "example.org/driver" {
			t.Fatalf("FlexVolume source is %v", flex)
		}
		checkFilled(t, flex.Options, 1<<20)
		secretNeeded = flex.SecretRef != nil
	case source.CSI != nil && source.CSI.NodeStageSecretRef == nil && source.ISCSI == nil:
		csi := source.CSI
		if csi.Driver != "csi.example.org" || csi.VolumeHandle != request.Volume.ID {
			t.Fatalf("CSI source is %v", csi)
		}
		checkFilled(t, csi.VolumeAttributes, 4096)
		secretNeeded = csi.NodePublishSecretRef != nil
	case source.CSI != nil && source.ISCSI == nil && source.RBD == nil:
		csi := source.CSI
		if csi.Driver == "" || csi.VolumeHandle == "" || csi.VolumeAttributes["pool"] == "" || csi.NodeStageSecretRef == nil {
			t.Fatalf("CSI source is %v", csi)
		}
		secretNeeded = true
	case source.RBD != nil && source.ISCSI == nil && source.CSI == nil:
		rbd := source.RBD
		if len(rbd.CephMonitors) == 0 || rbd.RBDPool == "" || rbd.RBDImage == "" {
			t.Fatalf("RBD source is %v", rbd)
		}
		secretNeeded = rbd.SecretRef != nil
	default:
		t.Fatalf("source is %v", source)
	}
	if (result.Secret != nil) != secretNeeded {
		t.Fatalf("secret is %v, needed: %t", result.Secret, secretNeeded)
	}
	if result.Secret == nil {
		return
	}
	named := result.Secret.Name == request.SecretName
	if result.Secret.Shared {
		named = mappers.IsSharedSecretName(result.Secret.Name, request.Backend)
	}
	if !named || result.Secret.Namespace != testNamespace || result.Secret.Type == "" || len(result.Secret.Data) == 0 {
		t.Fatalf("secret is %v", result.Secret)
	}
	for key, value := range result.Secret.Data {
		if len(value) == 0 {
			t.Fatalf("secret has an empty %s", key)
		}
	}
}

// everyString collects the strings of a document, keys included, and those
// under keys that name a password or keyring.
func everyString(value any, secret bool, all, secrets *[]string) {
	switch typed := value.(type) {
	case string:
		*all = append(*all, typed)
		if secret {
			*secrets = append(*secrets, typed)
		}
	case []any:
		for _, element := range typed {
			everyString(element, secret, all, secrets)
		}
	case map[string]any:
		for key, element := range typed {
			*all = append(*all, key)
			everyString(element, secret || strings.Contains(key, "password") || key == "keyring", all, secrets)
		}
	}
}

// lonelyCredentials returns the credentials of a document that occur nowhere
// else in it: output that contains them must have copied them.
func lonelyCredentials(document []byte) []string {
	var root any
	if json.Unmarshal(document, &root) != nil {
		return nil
	}
	var all, secrets []string
	everyString(root, false, &all, &secrets)
	return slices.DeleteFunc(secrets, func(secret string) bool {
		holders := 0
		for _, text := range all {
			if strings.Contains(text, secret) {
				holders++
			}
		}
		// Short ones may occur in our own words by chance.
		return len(secret) < 8 || holders != 1
	})
}

func encryptedSomewhere(document []byte) bool {
	var root map[string]any
	if json.Unmarshal(document, &root) != nil {
		return false
	}
	for _, key := range []string{"attachment", "connection_info"} {
		if inner, ok := root[key].(map[string]any); ok && root["driver_volume_type"] == nil {
			root = inner
		}
	}
	if data, ok := root["data"].(map[string]any); ok {
		root = data
	}
	return root["encrypted"] == true
}

func FuzzMap(f *testing.F) {
	for _, path := range goldenPaths(f) {
		read, _ := readGolden(f, path)
		f.Add([]byte(read.Document))
	}
	registry, hostile := newRegistry(f), hostileMappings()
	f.Fuzz(func(t *testing.T, document []byte) {
		checkAnyDocument(t, registry, hostile, document)
	})
}

// mutations is how many documents TestMutatedDocuments changes; make faults
// changes more.
var mutations = flag.Int("mutations", 100, "documents that TestMutatedDocuments changes")

// TestMutatedDocuments changes documents so that they stay JSON, which random
// bytes rarely are. The seed is fixed, so a failure can be reproduced.
func TestMutatedDocuments(t *testing.T) {
	registry, hostile := newRegistry(t), hostileMappings()
	random := rand.New(rand.NewPCG(2026, 1))
	var documents []json.RawMessage
	for _, path := range goldenPaths(t) {
		if _, err := os.Stat(strings.TrimSuffix(path, ".json") + ".refused.txt"); err == nil {
			continue // one change rarely makes it sound
		}
		read, _ := readGolden(t, path)
		documents = append(documents, read.Document)
	}
	mapped, refused := 0, 0
	for round := range *mutations {
		var root any
		if err := json.Unmarshal(documents[random.IntN(len(documents))], &root); err != nil {
			t.Fatal(err)
		}
		for range 1 + random.IntN(2) {
			root = mutate(random, root)
		}
		document, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		mappedNow, refusedNow := checkAnyDocument(t, registry, hostile, document)
		mapped, refused = mapped+mappedNow, refused+refusedNow
		if t.Failed() {
			t.Fatalf("round %d: %s", round, document)
		}
	}
	// Both must happen often, or the test checks nothing.
	if least := *mutations * 2 / 3; mapped < least || refused < least {
		t.Errorf("documents were mapped %d times and refused %d times, expected at least %d of both", mapped, refused, least)
	}
}

// mutate changes one place of a document.
func mutate(random *rand.Rand, value any) any {
	switch typed := value.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(typed))
		if len(keys) == 0 || random.IntN(12) == 0 {
			typed[hostileKeys()[random.IntN(len(hostileKeys()))]] = hostileValue(random)
			return typed
		}
		key := keys[random.IntN(len(keys))]
		switch random.IntN(8) {
		case 0:
			delete(typed, key)
		case 1, 2:
			typed[key] = hostileValue(random)
		default:
			typed[key] = mutate(random, typed[key])
		}
		return typed
	case []any:
		if len(typed) == 0 || random.IntN(6) == 0 {
			return append(typed, hostileValue(random))
		}
		index := random.IntN(len(typed))
		switch random.IntN(4) {
		case 0:
			return slices.Delete(typed, index, index+1)
		case 1:
			return append(typed, typed[index])
		default:
			typed[index] = mutate(random, typed[index])
			return typed
		}
	default:
		if random.IntN(3) == 0 {
			return typed
		}
		return hostileValue(random)
	}
}

func hostileKeys() []string {
	return []string{
		"target_portal", "target_iqn", "target_lun", "target_portals", "target_iqns", "target_luns",
		"auth_method", "auth_username", "auth_password", "discovery_auth_method", "discovery_auth_password",
		"target_wwn", "target_wwns", "initiator_target_map", "initiator_target_lun_map", "wwn",
		"target_nqn", "nqn", "portals", "vol_uuid", "volume_nguid", "ns_id", "volume_replicas", "export", "options",
		"encrypted", "access_mode", "qos_specs", "name", "hosts", "ports", "auth_enabled", "keyring", "data", "driver_volume_type",
	}
}

func hostileValue(random *rand.Rand) any {
	number := random.IntN(1 << 20)
	values := []any{
		nil, true, false, 0, 1, -1, 255, 256, 3.5, 1e300, "", "0", "7", "true", "CHAP", "chap", "None", "ro", "rw", "iSCSI", "iser", "rbd",
		"192.0.2.7:3260", "[2001:db8::7]:3260", "2001:db8::7:3260", "a:b:c", ":", "[", "]:1", "host:99999", "host%0:1", "../../etc:1",
		"iqn.2010-10.org.example:x", "iqn.2010-10.org.example:x:3260", "iqn.", "eui.0123456789abcdef", "naa.", "volumes/volume-7", "/", "a/b/c",
		"500a098280feeb01", "50:0A:09:82:80:FE:EB:01", "500a0982.*", "0x500a098280feeb02", "3624a93709714b5cb91634c4700020001",
		[]any{"500a098280feeb01", "500a098280feeb03"}, map[string]any{"10000000c9a1b2c1": []any{"500a098280feeb01"}}, map[string]any{"10000000c9a1b2c1": []any{[]any{"500a098280feeb01", 4}}},
		"nqn.2014-08.org.example:a", []any{"nqn.2014-08.org.example:b"}, []any{[]any{"192.0.2.1", 4420, "tcp"}}, "84d0c5f7-2349-401c-8672-f76214d10001", "192.0.2.9:/export", "../../volume",
		"[client.cinder]\nkey = " + cinderKey, "[client.admin]\nkey = " + adminKey, "\x00", "é\u202e", strings.Repeat("long", 100),
		fmt.Sprintf("secret-%d", number), []any{}, []any{nil}, []any{1, "1"}, []any{"192.0.2.7:3260"}, []any{"iqn.2010-10.org.example:x"},
		map[string]any{}, map[string]any{"password": fmt.Sprintf("secret-%d", number)},
	}
	return values[random.IntN(len(values))]
}

// TestMapLeavesTheRequestAlone: a caller may map several volumes with one
// request value.
func TestMapLeavesTheRequestAlone(t *testing.T) {
	request := plainRequest()
	request.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	want := plainRequest()
	want.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	result, err := mapData(t, "iscsi", onePath(nil), request)
	if err != nil {
		t.Fatal(err)
	}
	*result.Source.ISCSI.InitiatorName = "changed"
	if !reflect.DeepEqual(request, want) {
		t.Errorf("request became %v, expected %v", request, want)
	}
}
