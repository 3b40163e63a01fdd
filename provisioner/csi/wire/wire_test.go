package wire

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"strings"
	"testing"
)

func TestHandles(t *testing.T) {
	const id = "86a25cac-e84c-4ef1-816f-76fcd478cebd"
	h, err := ParseHandle("gold/" + id)
	if err != nil || h != (Handle{"gold", id}) || h.String() != "gold/"+id {
		t.Errorf("read %v, %v", h, err)
	}
	for _, bad := range []string{"", "gold", "gold/", "/" + id, "gold/" + id + "/x", "gold/a b", "gold/" + strings.Repeat("x", LongestHandle)} {
		if h, err := ParseHandle(bad); err == nil {
			t.Errorf("%q is read as %v", bad, h)
		}
	}
}

func TestNodeIDs(t *testing.T) {
	for want, node := range map[string]Node{
		"v1 n1":                                {Name: "n1"},
		"v1 n1 i=iqn.2026-01.org.example:n1 m": {Name: "n1", InitiatorName: "iqn.2026-01.org.example:n1", Multipath: true},
		"v1 n1 w=10000000c9a1b2c1,210000e08b05f2a1 a=2,20": {Name: "n1", PortNames: []string{"10000000c9a1b2c1", "210000e08b05f2a1"}, NodeNames: []string{"20000000c9a1b2c1", "200000e08b05f2a1"}},
		"v1 n1 w=5001,5002 a=5,9999":                       {Name: "n1", PortNames: []string{"5001", "5002"}, NodeNames: []string{"5001", "9999"}},
		"v1 n1 w=5001,5002 n=nqn.2014-08.x h=1-2":          {Name: "n1", PortNames: []string{"5001", "5002"}, HostNQN: "nqn.2014-08.x", HostID: "1-2"},
	} {
		id, err := node.NodeID()
		if err != nil || id != want {
			t.Errorf("%+v is %q, %v; want %q", node, id, err, want)
		}
		if back, err := ParseNodeID(id); err != nil || !reflect.DeepEqual(back, node) {
			t.Errorf("%q is read as %+v, %v", id, back, err)
		}
	}
}

func TestANodeIDOfALaterReleaseIsRead(t *testing.T) {
	if n, err := ParseNodeID("v1 n1 x=1 i=iqn.a m y"); err != nil || n.InitiatorName != "iqn.a" || !n.Multipath {
		t.Errorf("read %+v, %v", n, err)
	}
	for _, bad := range []string{"", "n1", "v2 n1", "v1", "v1  i=x", "v1 " + strings.Repeat("n", LongestNodeID)} {
		if n, err := ParseNodeID(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, n)
		}
	}
}

func TestNodesThatCannotBeNamed(t *testing.T) {
	for want, node := range map[string]Node{
		"the names of node n1 take 306 bytes, and a node ID has room for 256":       {Name: "n1", InitiatorName: "iqn." + strings.Repeat("x", 294)},
		`the names of node n1 cannot be encoded in a node ID: "v1 n1 i=iqn.a b"`:    {Name: "n1", InitiatorName: "iqn.a b"},
		`the names of node n1 cannot be encoded in a node ID: "v1 n1 w=5001,5002,"`: {Name: "n1", PortNames: []string{"5001,5002", ""}},
		`the names of node n1 cannot be encoded in a node ID: "v1 n1 w=5001 a=2,3"`: {Name: "n1", PortNames: []string{"5001"}, NodeNames: []string{"2001", "3"}},
		`the names of node  cannot be encoded in a node ID: "v1  i=iqn.a"`:          {InitiatorName: "iqn.a"},
	} {
		if id, err := node.NodeID(); err == nil || err.Error() != want {
			t.Errorf("%q, %v; want %s", id, err, want)
		}
	}
}

func TestConnections(t *testing.T) {
	c := Connection{Protocol: "iscsi", Credentials: true, Bytes: 1 << 30, Attachment: "attachment-1", Taken: true, Paths: []Path{{"[fd00::1]:3260", "iqn.a", 1}, {"10.0.0.1:3260", "iqn.b", 0}}}
	context, err := c.PublishContext()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParsePublishContext(context); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("read %+v, %v", back, err)
	}
	for key, value := range map[string]string{keyVersion: "2", keyProtocol: "", keyPaths: "[]", keyCredentials: "", keyReadOnly: "x", keyBytes: "1.5"} {
		bad := maps.Clone(context)
		bad[key] = value
		if back, err := ParsePublishContext(bad); err == nil {
			t.Errorf("%s %q is read as %+v", key, value, back)
		}
	}
	for range 100 {
		c.Paths = append(c.Paths, Path{"10.0.0.1:3260", "iqn.a", 1})
	}
	if _, err := c.PublishContext(); err == nil || !strings.HasPrefix(err.Error(), "102 paths to a volume take ") {
		t.Errorf("102 paths: %v", err)
	}
}

// TestLimitsTravel also checks that a plugin that does not know them reads the same as
// without them: it looks for no key of that name, and the version is the same.
func TestLimitsTravel(t *testing.T) {
	c := Connection{Protocol: "iscsi", Paths: []Path{{"10.0.0.1:3260", "iqn.b", 0}}, Limits: &Limits{ReadBytes: 1 << 40, WriteOperations: 50}}
	context, err := c.PublishContext()
	if err != nil || context[keyLimits] != "1099511627776 0 0 50" || context[keyVersion] != contextVersion {
		t.Fatalf("%v, %v", context, err)
	}
	if back, err := ParsePublishContext(context); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("read %+v, %v", back, err)
	}
	for _, text := range []string{"", "1 2 3", "1 2 3 4 5", "1 2 3 -4", "1 2 3 x", "1 2 3 99999999999999999999"} {
		context[keyLimits] = text
		if back, err := ParsePublishContext(context); err == nil {
			t.Errorf("%q is read as %+v", text, back.Limits)
		}
	}
	delete(context, keyLimits)
	if back, err := ParsePublishContext(context); err != nil || back.Limits != nil {
		t.Errorf("without limits: %+v, %v", back.Limits, err)
	}
}

// TestSwappedVolumesTravel: a plugin that does not know of swaps reads neither version 2, 3
// nor 4, so it cannot take the volume for the one that its handle names.
func TestSwappedVolumesTravel(t *testing.T) {
	c := Connection{Protocol: "iscsi", Paths: []Path{{"10.0.0.1:3260", "iqn.b", 0}}, Volume: &SwappedVolume{ID: "id", Volume: Volume{FilesystemUUIDs: []string{"a", "b"}, NeverFormat: true}}}
	context, err := c.PublishContext()
	if err != nil || context[keyVersion] != "3" {
		t.Fatalf("%v, %v", context, err)
	}
	if back, err := ParsePublishContext(context); err != nil || !reflect.DeepEqual(back, c) {
		t.Errorf("read %+v, %v", back, err)
	}
	for name, spoil := range map[string]func(map[string]string){
		"an earlier version":   func(of map[string]string) { of[keyVersion] = contextVersion },
		"a later version":      func(of map[string]string) { of[keyVersion] = "5" },
		"not encrypted":        func(of map[string]string) { of[keyVersion] = "4" },
		"without the volume":   func(of map[string]string) { delete(of, keyVolume) },
		"without the ID":       func(of map[string]string) { of[keyVolume] = "{}" },
		"no JSON":              func(of map[string]string) { of[keyVolume] = "id" },
		"encrypted, version 3": func(of map[string]string) { of[keyEncryption] = (&Encryption{LUKS: 2}).encode() },
		"encrypted, none":      func(of map[string]string) { of[keyEncryption], of[keyVersion] = (&Encryption{LUKS: 2}).encode(), "" },
	} {
		bad := maps.Clone(context)
		spoil(bad)
		if back, err := ParsePublishContext(bad); err == nil {
			t.Errorf("%s: read as %+v", name, back)
		}
	}
	c.Encryption, c.Volume.Encrypted = &Encryption{LUKS: 2}, "uid"
	context, err = c.PublishContext()
	if back, parseErr := ParsePublishContext(context); err != nil || parseErr != nil || context[keyVersion] != "4" || !reflect.DeepEqual(back, c) {
		t.Errorf("an encrypted one: %v is read as %+v, %v, %v", context, back, err, parseErr)
	}
	for _, key := range []string{keyVolume, keyEncryption} {
		bad := maps.Clone(context)
		delete(bad, key)
		if back, err := ParsePublishContext(bad); err == nil {
			t.Errorf("without %s: read as %+v", key, back)
		}
	}
}

func TestVolumeContexts(t *testing.T) {
	for _, v := range []Volume{{}, {FilesystemUUIDs: []string{"a"}}, {FilesystemUUIDs: []string{"a", "b"}}, {NeverFormat: true}, {Encrypted: "uid"}, {[]string{"a"}, true, "uid"}} {
		context := v.Context()
		if back := ParseVolumeContext(context); !reflect.DeepEqual(back, v) {
			t.Errorf("%v is read as %v", context, back)
		}
	}
}

// TestWhateverIsSaidAboutFormattingForbidsIt: any value counts, because somebody may
// have written it by hand.
func TestWhateverIsSaidAboutFormattingForbidsIt(t *testing.T) {
	for _, value := range []string{"true", "", "false", "yes"} {
		if !ParseVolumeContext(map[string]string{"neverFormat": value}).NeverFormat {
			t.Errorf("%q permits it", value)
		}
	}
}

// TestWhateverIsSaidAboutEncryptionDemandsIt: even without a value.
func TestWhateverIsSaidAboutEncryptionDemandsIt(t *testing.T) {
	if ParseVolumeContext(map[string]string{"encrypted": ""}).Encrypted == "" {
		t.Error("without a value, it is as if nothing were said")
	}
}

func TestCredentialsAreForOneNode(t *testing.T) {
	c := Credentials{User: "u", Password: "secret-1", DiscoveryUser: "d", DiscoveryPassword: "secret-2"}
	key, value, err := SecretEntry("n1", c)
	if err != nil || key != SecretKey("n1") {
		t.Fatal(key, err)
	}
	secret := map[string]string{key: string(value), SecretKey("n2"): `{"user": 5, "password": "secret-3"}`}
	if back, err := CredentialsFor("n1", secret); err != nil || back != c {
		t.Errorf("read %v", err)
	}
	for node, want := range map[string]string{
		"n2": "the node's entry in the volume's Secret cannot be read",
		"n3": "the volume's Secret has no entry for node n3; the volume is not attached to it, or is being attached again",
	} {
		if _, err := CredentialsFor(node, secret); err == nil || err.Error() != want {
			t.Errorf("%s: %v", node, err)
		}
	}
}

func TestCredentialsAreNotPrinted(t *testing.T) {
	c := Credentials{User: "u", Password: "secret-1", DiscoveryUser: "d", DiscoveryPassword: "secret-2"}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("logged", "credentials", c, "at", &c)
	encoded, err := json.Marshal(map[string]any{"c": c})
	if err != nil {
		t.Fatal(err)
	}
	printed := fmt.Sprintf("%v %+v %#v %s %q %v", c, c, c, c, c, &c) + log.String() + string(encoded)
	if strings.Contains(printed, "secret-") {
		t.Errorf("printed %s", printed)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("v1 n1 i=iqn.a w=1,2 m", "gold/x")
	f.Add("v1 n1 w=10,21 a=2,20", "gold/x")
	f.Fuzz(func(t *testing.T, id, handle string) {
		if n, err := ParseNodeID(id); err == nil {
			if again, err := n.NodeID(); err == nil {
				if back, err := ParseNodeID(again); err != nil || !back.equal(n) {
					t.Errorf("%q: %+v, %v", id, back, err)
				}
			}
		}
		if h, err := ParseHandle(handle); err == nil && h.String() != handle {
			t.Errorf("%q is %q", handle, h)
		}
	})
}
