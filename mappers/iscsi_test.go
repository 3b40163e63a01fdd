package mappers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

const (
	targetA = "iqn.2010-10.org.example:a"
	targetB = "iqn.2010-10.org.example:b"
)

type fields = map[string]any

// onePath returns a sound connection of one path; the changes are laid over it,
// and a nil removes a field.
func onePath(changes fields) fields {
	return laidOver(fields{"target_portal": "192.0.2.1:3260", "target_iqn": targetA, "target_lun": 1}, changes)
}

// twoPaths returns a sound connection of two paths in lists.
func twoPaths(changes fields) fields {
	return laidOver(fields{
		"target_portals": []string{"192.0.2.1:3260", "192.0.2.2:3260"},
		"target_iqns":    []string{targetA, targetA},
		"target_luns":    []int{1, 1},
	}, changes)
}

func laidOver(base, changes fields) fields {
	maps.Copy(base, changes)
	maps.DeleteFunc(base, func(_ string, value any) bool { return value == nil })
	return base
}

func mapData(t *testing.T, protocol string, data fields, request mappers.Request) (mappers.Result, error) {
	t.Helper()
	document, err := json.Marshal(fields{"driver_volume_type": protocol, "data": data})
	if err != nil {
		t.Fatal(err)
	}
	return mapDocument(newRegistry(t), document, request)
}

// mapOtherwise returns the end of a refusal of what only the native source
// cannot express.
func mapOtherwise(protocol string) string {
	return "; or map " + protocol + " to a CSI or FlexVolume driver that can (mapping." + protocol + " of the backend)"
}

func TestISCSIRefusals(t *testing.T) {
	const (
		look    = "; this backend's driver failed to describe the connection, so check the cinder-volume log"
		portals = "; expected host:port or [IPv6]:port, correct the backend's iSCSI address in cinder.conf"
		targets = "; set a standard target name on the array, or use a backend with one"
		half    = " missing and the lists do not give a complete path either; check the cinder-volume log to see why the driver sends only part of a path (a missing LUN is never taken for 0)"
		flat    = "the flat keys (target_portal, target_iqn, target_lun) contradict the lists (target_portals, target_iqns, target_luns): "
		driver  = "; check the cinder-volume log, because this backend's driver failed to describe the connection"
		lengths = " differ in length, so which portal serves which target is unknown; check the cinder-volume log for a controller or port that is down"
		creds   = "; check the cinder-volume log to see why the driver sends only part of the credentials"
	)
	invalid, unsupported := mappers.InvalidConnection, mappers.UnsupportedConnection
	for name, test := range map[string]struct {
		data   fields
		reason mappers.Reason
		want   string
	}{
		"portal with a blank":            {onePath(fields{"target_portal": "192.0.2.1 :3260"}), invalid, `target_portal is "192.0.2.1 :3260", which has neither an IP address nor a host name before its port` + portals},
		"portal with an empty port":      {onePath(fields{"target_portal": "192.0.2.1:"}), invalid, `target_portal is "192.0.2.1:", which has no port` + portals},
		"portal with port 0":             {onePath(fields{"target_portal": "192.0.2.1:0"}), invalid, `target_portal is "192.0.2.1:0", which has no port between 1 and 65535` + portals},
		"portal with port 65536":         {onePath(fields{"target_portal": "192.0.2.1:65536"}), invalid, `target_portal is "192.0.2.1:65536", which has no port between 1 and 65535` + portals},
		"portal with port and tag":       {onePath(fields{"target_portal": "192.0.2.1:3260,1"}), invalid, `target_portal is "192.0.2.1:3260,1", which has no port between 1 and 65535` + portals},
		"portal without a host":          {onePath(fields{"target_portal": ":3260"}), invalid, `target_portal is ":3260", which has neither an IP address nor a host name before its port` + portals},
		"portal of a misspelled address": {onePath(fields{"target_portal": "192.0.2.256:3260"}), invalid, `target_portal is "192.0.2.256:3260", which has neither an IP address nor a host name before its port` + portals},
		"portal nowhere":                 {onePath(fields{"target_portal": "0.0.0.0:3260"}), invalid, `target_portal is "0.0.0.0:3260", which is the unspecified address, which nodes cannot reach` + portals},
		"portal of one interface":        {onePath(fields{"target_portal": "[fe80::1%eth0]:3260"}), invalid, `target_portal is "[fe80::1%eth0]:3260", which is an address with a zone, which is valid on one host only` + portals},
		"portal IPv6 without a port":     {onePath(fields{"target_portal": "[2001:db8::1]"}), invalid, `target_portal is "[2001:db8::1]", which has no port` + portals},
		"portal IPv6 bare, no port":      {onePath(fields{"target_portal": "2001:db8::1"}), invalid, `target_portal is "2001:db8::1", which is an IPv6 address without brackets` + portals},
		"portal IPv4 in brackets":        {onePath(fields{"target_portal": "[192.0.2.1]:3260"}), invalid, `target_portal is "[192.0.2.1]:3260", which has something other than an IPv6 address in brackets` + portals},
		"portal of two ports":            {onePath(fields{"target_portal": "192.0.2.1:3260:3260"}), invalid, `target_portal is "192.0.2.1:3260:3260", which is not an address and a port` + portals},
		"portal empty in the list":       {twoPaths(fields{"target_portals": []string{"192.0.2.1:3260", ""}}), invalid, "target_portals[1] is empty; check the cinder-volume log to see why the volume has no target"},
		"portal a list of parts":         {twoPaths(fields{"target_portals": []any{[]any{"192.0.2.1", 3260}, "a:1"}}), invalid, "target_portals[0] is a list, expected a string" + look},
		"portals a string":               {onePath(fields{"target_portals": "192.0.2.1:3260"}), invalid, `target_portals is "192.0.2.1:3260", expected a list` + look},
		"targets an object":              {onePath(fields{"target_iqns": fields{"0": targetA}}), invalid, "target_iqns is an object, expected a list" + look},
		"luns a string":                  {twoPaths(fields{"target_luns": "11"}), invalid, `target_luns is "11", expected a list` + look},
		"target empty":                   {onePath(fields{"target_iqn": ""}), invalid, "target_iqn is empty; check the cinder-volume log to see why the volume has no target"},
		"target a list":                  {onePath(fields{"target_iqn": []string{targetA}}), invalid, "target_iqn is a list, expected a string" + look},
		"target without a name":          {onePath(fields{"target_iqn": "iqn.2001-03.target0000"}), unsupported, `target_iqn is "iqn.2001-03.target0000", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>` + targets},
		"target in capitals":             {onePath(fields{"target_iqn": "IQN.2010-10.org.example:a"}), unsupported, `target_iqn is "IQN.2010-10.org.example:a", which starts with none of iqn., eui. and naa., which Kubernetes requires` + targets},
		"target that climbs directories": {onePath(fields{"target_iqn": targetA + "/../../b"}), invalid, `target_iqn is "` + targetA + `/../../b", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>; correct the backend's driver or its settings`},
		"target eui too short":           {onePath(fields{"target_iqn": "eui.0123"}), invalid, `target_iqn is "eui.0123", which is not of the form eui.<16 hex digits>; correct the backend's driver or its settings`},
		"target naa of 16 digits":        {onePath(fields{"target_iqn": "naa.52004567ba64678d"}), unsupported, `target_iqn is "naa.52004567ba64678d", which is not of the form naa.<32 hex digits>, the only one that Kubernetes accepts` + targets},
		"target with port in the list":   {twoPaths(fields{"target_iqns": []string{targetA, targetA + ":3260"}}), invalid, `target_iqns[1] is "` + targetA + `:3260", which ends in the port of its portal; a target name has no port, correct the backend's driver or its settings`},

		"lun a fraction":         {onePath(fields{"target_lun": json.Number("1.5")}), invalid, "target_lun is 1.5, expected a whole number in decimal digits" + look},
		"lun a whole fraction":   {onePath(fields{"target_lun": json.Number("1.0")}), invalid, "target_lun is 1.0, expected a whole number in decimal digits" + look},
		"lun with an exponent":   {onePath(fields{"target_lun": json.Number("1e2")}), invalid, "target_lun is 1e2, expected a whole number in decimal digits" + look},
		"lun in hexadecimal":     {onePath(fields{"target_lun": "0x1"}), invalid, `target_lun is "0x1", expected a whole number in decimal digits` + look},
		"lun maybe octal":        {onePath(fields{"target_lun": "010"}), invalid, `target_lun is "010", expected a whole number in decimal digits` + look},
		"lun empty":              {onePath(fields{"target_lun": ""}), invalid, `target_lun is "", expected a whole number in decimal digits` + look},
		"lun negative in string": {onePath(fields{"target_lun": "-1"}), invalid, `target_lun is "-1", and drivers use negative numbers for "not found"; check the cinder-volume log to see why the volume has no LUN`},
		"lun minus zero":         {onePath(fields{"target_lun": json.Number("-0")}), invalid, `target_lun is -0, and drivers use negative numbers for "not found"; check the cinder-volume log to see why the volume has no LUN`},
		"lun 256":                {onePath(fields{"target_lun": 256}), unsupported, "target_lun is 256, but Kubernetes accepts LUNs from 0 to 255 only; let the array assign a lower one, for example with fewer volumes per host entry"},
		"lun beyond 64 bits":     {onePath(fields{"target_lun": json.Number("18446744073709551617")}), unsupported, "target_lun is 18446744073709551617, but Kubernetes accepts LUNs from 0 to 255 only; let the array assign a lower one, for example with fewer volumes per host entry"},
		"lun null in the list":   {twoPaths(fields{"target_luns": []any{1, nil}}), invalid, "target_luns[1] is null, expected a whole number" + look},
		"lun false in the list":  {twoPaths(fields{"target_luns": []any{1, false}}), invalid, "target_luns[1] is false, expected a whole number" + look},

		"nothing of a path":              {fields{"volume_id": "a"}, invalid, "target_portal and target_iqn and target_lun are" + half},
		"no lun anywhere":                {twoPaths(fields{"target_luns": nil}), invalid, "target_lun is" + half},
		"no target anywhere":             {twoPaths(fields{"target_iqns": nil, "target_portal": "192.0.2.1:3260", "target_lun": 1}), invalid, "target_iqn is" + half},
		"a path only when mixed":         {fields{"target_portal": "192.0.2.1:3260", "target_iqns": []string{targetA}, "target_luns": []int{1}}, invalid, "target_iqn and target_lun are" + half},
		"two lists of different length":  {twoPaths(fields{"target_luns": nil, "target_lun": 1, "target_iqns": []string{targetA}}), invalid, "the lists target_portals (2), target_iqns (1)" + lengths},
		"unequal beside a flat path":     {onePath(twoPaths(fields{"target_luns": []int{1}})), invalid, "the lists target_portals (2), target_iqns (2), target_luns (1)" + lengths},
		"flat lun not listed":            {onePath(twoPaths(fields{"target_lun": 2})), invalid, flat + "target_lun is 2 and target_luns[0] is 1" + driver},
		"flat lun alone not listed":      {twoPaths(fields{"target_lun": 2}), invalid, flat + "no entry of the lists agrees with them" + driver},
		"flat portal alone not listed":   {twoPaths(fields{"target_portal": "192.0.2.9:3260"}), invalid, flat + "no entry of the lists agrees with them" + driver},
		"flat target of another portal":  {onePath(twoPaths(fields{"target_iqn": targetB})), invalid, flat + "target_portal is listed with other targets than target_iqn" + driver},
		"luns without paths differ":      {onePath(fields{"target_luns": []int{1, 7}}), invalid, flat + "target_luns[1] is 7" + driver},
		"luns differ, target the same":   {twoPaths(fields{"target_luns": []int{1, 2}}), unsupported, "target_luns names different LUNs (1 and 2), as arrays that mirror a volume do, but an iSCSI source of Kubernetes has one; use a volume type without the mirror, or make its arrays agree on the LUN"},
		"luns differ, flat path is fine": {onePath(twoPaths(fields{"target_luns": []int{1, 2}})), unsupported, "target_luns names different LUNs (1 and 2), as arrays that mirror a volume do, but an iSCSI source of Kubernetes has one; use a volume type without the mirror, or make its arrays agree on the LUN"},

		"CHAP without a password":       {onePath(fields{"auth_method": "CHAP", "auth_username": "user"}), invalid, `auth_password is missing although auth_method is "CHAP"` + creds},
		"CHAP without a user":           {onePath(fields{"auth_method": "CHAP", "auth_username": "", "auth_password": "not-a-real-secret"}), invalid, `auth_username is missing although auth_method is "CHAP"` + creds},
		"CHAP with a number":            {onePath(fields{"auth_method": "CHAP", "auth_username": 5, "auth_password": "not-a-real-secret"}), invalid, "auth_username is 5, expected a string" + look},
		"CHAP with a line break":        {onePath(fields{"auth_method": "CHAP", "auth_username": "user", "auth_password": "not-a-real\nsecret"}), invalid, "auth_password holds control characters, which open-iscsi cannot take; give the backend other credentials"},
		"credentials without a method":  {onePath(fields{"auth_username": "user", "auth_password": "not-a-real-secret"}), invalid, "auth_method is missing beside a user name or password; this backend's driver failed to describe the credentials, so check the cinder-volume log"},
		"another method":                {onePath(fields{"auth_method": "SRP", "auth_username": "user", "auth_password": "not-a-real-secret"}), mappers.UnsupportedAuthentication, `auth_method is "SRP", but kubelet speaks CHAP only; set the backend to CHAP or to no authentication`},
		"discovery without a password":  {onePath(fields{"discovery_auth_method": "CHAP", "discovery_auth_username": "user"}), invalid, `discovery_auth_password is missing although discovery_auth_method is "CHAP"` + creds},
		"discovery by another method":   {onePath(fields{"discovery_auth_method": "KRB5"}), mappers.UnsupportedAuthentication, `discovery_auth_method is "KRB5", but kubelet speaks CHAP only; set the backend to CHAP or to no authentication`},
		"method of the wrong type":      {onePath(fields{"auth_method": true}), invalid, "auth_method is true, expected a string" + look},
		"user control characters added": {onePath(fields{"auth_method": "CHAP", "auth_username": "us\x00er", "auth_password": "not-a-real-secret"}), invalid, "auth_username holds control characters, which open-iscsi cannot take; give the backend other credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, protocol := range []string{"iscsi", "iser"} {
				_, err := mapData(t, protocol, test.data, plainRequest())
				want := test.want
				if test.reason == unsupported {
					want += mapOtherwise(protocol)
				}
				expectRefusal(t, err, test.reason, want)
			}
		})
	}
}

func TestISCSIPaths(t *testing.T) {
	const other = `only 1 of 2 paths can be used, those to "` + targetA + `": an iSCSI source of Kubernetes has one target name`
	for name, test := range map[string]struct {
		data     fields
		target   string
		lun      int32
		portals  []string
		warnings []string
	}{
		"flat alone":                      {data: onePath(nil), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}},
		"lun 0":                           {data: onePath(fields{"target_lun": 0}), target: targetA, portals: []string{"192.0.2.1:3260"}},
		"lun 255 in a string":             {data: onePath(fields{"target_lun": "255"}), target: targetA, lun: 255, portals: []string{"192.0.2.1:3260"}},
		"lists alone":                     {data: twoPaths(nil), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260", "192.0.2.2:3260"}},
		"lists of one":                    {data: twoPaths(fields{"target_portals": []string{"192.0.2.1:3260"}, "target_iqns": []string{targetA}, "target_luns": []int{1}}), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}},
		"flat first, whatever the lists":  {data: onePath(twoPaths(fields{"target_portal": "192.0.2.2:3260"})), target: targetA, lun: 1, portals: []string{"192.0.2.2:3260", "192.0.2.1:3260"}},
		"flat beside the lists":           {data: onePath(twoPaths(fields{"target_portal": "192.0.2.3:3260"})), target: targetA, lun: 1, portals: []string{"192.0.2.3:3260", "192.0.2.1:3260", "192.0.2.2:3260"}},
		"flat portal picks its entry":     {data: twoPaths(fields{"target_iqns": []string{targetA, targetB}, "target_portal": "192.0.2.1:3260"}), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}, warnings: []string{other}},
		"flat target picks its entry":     {data: twoPaths(fields{"target_iqns": []string{targetB, targetA}, "target_iqn": targetA}), target: targetA, lun: 1, portals: []string{"192.0.2.2:3260"}, warnings: []string{other}},
		"flat lun for lists without luns": {data: twoPaths(fields{"target_luns": nil, "target_lun": 9}), target: targetA, lun: 9, portals: []string{"192.0.2.1:3260", "192.0.2.2:3260"}},
		"lists null":                      {data: onePath(fields{"target_portals": json.RawMessage("null")}), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}},
		"lists empty":                     {data: onePath(fields{"target_portals": []string{}, "target_iqns": []string{}, "target_luns": []int{}}), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}},
		"flat null beside lists":          {data: twoPaths(fields{"target_portal": json.RawMessage("null"), "target_lun": json.RawMessage("null")}), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260", "192.0.2.2:3260"}},
		"one portal in two spellings":     {data: twoPaths(fields{"target_portals": []string{"[2001:DB8::1]:3260", "[2001:db8:0::1]:3260"}}), target: targetA, lun: 1, portals: []string{"[2001:db8::1]:3260"}},
		"numbers at a target's end":       {data: onePath(fields{"target_iqn": "iqn.2006-08.com.huawei:oceanstor:21004846fb8ca15f::22004:192.0.2.1"}), target: "iqn.2006-08.com.huawei:oceanstor:21004846fb8ca15f::22004:192.0.2.1", lun: 1, portals: []string{"192.0.2.1:3260"}},
		"eui name":                        {data: onePath(fields{"target_iqn": "eui.02004567A425678D"}), target: "eui.02004567A425678D", lun: 1, portals: []string{"192.0.2.1:3260"}},
		"naa name":                        {data: onePath(fields{"target_iqn": "naa.62004567BA64678D0123456789ABCDEF"}), target: "naa.62004567BA64678D0123456789ABCDEF", lun: 1, portals: []string{"192.0.2.1:3260"}},
		"luns beside a flat path":         {data: onePath(fields{"target_luns": []int{1, 1}}), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}, warnings: []string{"target_luns (2) cannot be paired without target_portals and target_iqns and is not used: the volume has only the path of the flat keys"}},
		"two lists beside a flat path":    {data: onePath(twoPaths(fields{"target_iqns": nil})), target: targetA, lun: 1, portals: []string{"192.0.2.1:3260"}, warnings: []string{"target_portals (2), target_luns (2) cannot be paired without target_iqns and is not used: the volume has only the path of the flat keys"}},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := mapData(t, "iscsi", test.data, plainRequest())
			if err != nil {
				t.Fatal(err)
			}
			source := result.Source.ISCSI
			if portals := append([]string{source.TargetPortal}, source.Portals...); !reflect.DeepEqual(portals, test.portals) {
				t.Errorf("portals are %v, expected %v", portals, test.portals)
			}
			if source.IQN != test.target || source.Lun != test.lun {
				t.Errorf("target and LUN are %s and %d, expected %s and %d", source.IQN, source.Lun, test.target, test.lun)
			}
			if !reflect.DeepEqual(result.Warnings, test.warnings) {
				t.Errorf("warnings are %q, expected %q", result.Warnings, test.warnings)
			}
		})
	}
}

func TestISCSICredentials(t *testing.T) {
	session := map[string][]byte{"node.session.auth.username": []byte("user"), "node.session.auth.password": []byte("not-a-real-secret-1")}
	discovery := map[string][]byte{"discovery.sendtargets.auth.username": []byte("finder"), "discovery.sendtargets.auth.password": []byte("not-a-real-secret-2")}
	both := maps.Clone(session)
	maps.Copy(both, discovery)
	sessionFields := fields{"auth_method": "CHAP", "auth_username": "user", "auth_password": "not-a-real-secret-1"}
	discoveryFields := fields{"discovery_auth_method": "CHAP", "discovery_auth_username": "finder", "discovery_auth_password": "not-a-real-secret-2"}
	for name, test := range map[string]struct {
		data               fields
		session, discovery bool
		want               map[string][]byte
	}{
		"none":              {data: fields{}},
		"null":              {data: fields{"auth_method": json.RawMessage("null"), "auth_username": json.RawMessage("null"), "auth_password": json.RawMessage("null")}},
		"empty":             {data: fields{"auth_method": "", "auth_username": "", "auth_password": ""}},
		"open-iscsi's None": {data: fields{"auth_method": "None", "auth_username": "user", "auth_password": "not-a-real-secret-1"}},
		"session":           {data: sessionFields, session: true, want: session},
		"discovery":         {data: discoveryFields, discovery: true, want: discovery},
		"both":              {data: laidOver(maps.Clone(sessionFields), discoveryFields), session: true, discovery: true, want: both},
		"in lower case":     {data: laidOver(maps.Clone(sessionFields), fields{"auth_method": "chap"}), session: true, want: session},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := mapData(t, "iscsi", onePath(test.data), plainRequest())
			if err != nil {
				t.Fatal(err)
			}
			source := result.Source.ISCSI
			if source.SessionCHAPAuth != test.session || source.DiscoveryCHAPAuth != test.discovery {
				t.Errorf("CHAP for sessions is %t and for discovery %t, expected %t and %t", source.SessionCHAPAuth, source.DiscoveryCHAPAuth, test.session, test.discovery)
			}
			if test.want == nil {
				if result.Secret != nil || source.SecretRef != nil {
					t.Errorf("secret is %v, reference %v, expected none", result.Secret, source.SecretRef)
				}
				return
			}
			want := &mappers.Secret{Namespace: testNamespace, Name: testSecret, Type: "kubernetes.io/iscsi-chap", Data: test.want}
			if !reflect.DeepEqual(result.Secret, want) {
				t.Errorf("secret is %v of type %s, expected %v", result.Secret, result.Secret.Type, want)
			}
			if reference := (corev1.SecretReference{Namespace: testNamespace, Name: testSecret}); source.SecretRef == nil || *source.SecretRef != reference {
				t.Errorf("reference is %v, expected %v", source.SecretRef, reference)
			}
		})
	}
}

func TestISCSIInitiator(t *testing.T) {
	for name, test := range map[string]struct{ initiator, want string }{
		"a label":        {"node-1", `the connector's initiator is "node-1", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>; correct connector.initiator of the backend`},
		"with a newline": {"iqn.2026-01.org.example:a\n", `the connector's initiator is "iqn.2026-01.org.example:a\n", which has the character '\n', but only lower-case letters, digits and "._:-" are allowed; correct connector.initiator of the backend`},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.Connector.Initiator = test.initiator
			_, err := mapData(t, "iscsi", onePath(nil), request)
			expectRefusal(t, err, mappers.InvalidConnector, test.want)
		})
	}
}

// TestISCSIPortalNextToTheVolumesName: Kubernetes limits
// "<PersistentVolume>:<portal>" to 64 characters, but only for sources that
// name an initiator.
func TestISCSIPortalNextToTheVolumesName(t *testing.T) {
	const portal = "192.0.2.1:3260"
	const shorter = "; give the target a shorter address, or, if every node has the connector's initiator as its InitiatorName in /etc/iscsi/initiatorname.iscsi, set mapping.iscsi.omitInitiatorName of the backend"
	for name, test := range map[string]struct {
		nameLength int
		initiator  string
		refused    string
	}{
		"just fits":            {nameLength: 64 - 1 - len(portal), initiator: testInitiator},
		"one too long":         {nameLength: 64 - len(portal), initiator: testInitiator, refused: `portal "192.0.2.1:3260" is 14 characters long, but Kubernetes allows it 13 next to the name of the PersistentVolume and an initiatorName` + shorter},
		"a name of 200":        {nameLength: 200, initiator: testInitiator, refused: `portal "192.0.2.1:3260" is 14 characters long, but Kubernetes allows it 0 next to the name of the PersistentVolume and an initiatorName` + shorter},
		"too long, but unused": {nameLength: 200},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.PVName, request.Connector.Initiator = strings.Repeat("v", test.nameLength), test.initiator
			result, err := mapData(t, "iscsi", onePath(nil), request)
			if test.refused != "" {
				expectRefusal(t, err, mappers.UnsupportedConnection, test.refused+mapOtherwise("iscsi"))
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if result.Source.ISCSI.TargetPortal != portal {
				t.Errorf("portal is %s, expected %s", result.Source.ISCSI.TargetPortal, portal)
			}
		})
	}
}

// TestInitiatorsOfThePolicyCanBeMapped: what the policy's check accepts must not
// be refused when the first volume is connected.
func TestInitiatorsOfThePolicyCanBeMapped(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		name := rapid.StringMatching(mapping.Initiator.String()).Filter(func(s string) bool { return len(s) <= mapping.LongestInitiator }).Draw(r, "name")
		request := plainRequest()
		request.Connector.Initiator = name
		if _, err := mapData(t, "iscsi", onePath(nil), request); err != nil {
			r.Errorf("%q: %v", name, err)
		}
	})
}

// TestInitiatorsOfThePolicyAreTaken: a policy that passes the check must not fail
// every claim later.
func TestInitiatorsOfThePolicyAreTaken(t *testing.T) {
	const form = "is not of the form iqn.<year>-<month>.<reversed domain>:<name>"
	has := func(character string) string {
		return "has the character '" + character + `', but only lower-case letters, digits and "._:-" are allowed`
	}
	for name, want := range map[string]string{
		"iqn.2026-01.com.example:cluster-1":         "",
		"iqn.2026-01.com.example:a_b:c.d":           "",
		"eui.02004567A425678D":                      "",
		"naa.62004567BA64678D0123456789ABCDEF":      "",
		"iqn.2026-01.x:" + strings.Repeat("a", 209): "",
		"iqn.2026-01.x:" + strings.Repeat("a", 210): "is longer than 223 characters",
		"iqn.2026-01.com.example:prod/eu":           has("/"),
		"iqn.2026-01.com.example:prod(1)":           has("("),
		"iqn.2026-01.com.example:pr\u00f6d":         has("\u00f6"),
		`iqn.2026-01.com.example:a"b`:               has(`"`),
		"iqn.2026-01.com.example:Prod":              has("P"),
		"iqn.2026-01.com.example:a b":               has(" "),
		"iqn.2026-01.com.example:a,t,1":             has(","),
		"iqn.2026-01.com.example":                   form,
		"iqn.26-01.com.example:a":                   form,
		"iqn.2026-01.com_example:a":                 form,
		"host-1":                                    form,
		"eui.02004567A425678":                       "is not eui. and 16 hexadecimal digits",
		"naa.52004567BA64678D":                      "is not naa. and 32 hexadecimal digits, the only form that Kubernetes accepts",
	} {
		parsed, err := policy.Parse([]byte(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: gold}
    connector: {initiator: '`+name+`'}
tenants: []
`), "policy.yaml", mappers.BuiltIn().Describe())
		if accepted := err == nil; accepted != (want == "") {
			t.Errorf("policy check of %s: %v", name, err)
		}
		if want != "" && (parsed != nil || !strings.Contains(err.Error(), "it "+want+"; write it like ")) {
			t.Errorf("policy check of %s: %v, expected %s", name, err, want)
		}
		request := plainRequest()
		request.Connector.Initiator = name
		_, err = mapData(t, "iscsi", onePath(nil), request)
		if want == "" {
			if err != nil {
				t.Errorf("mapping with %s: %v", name, err)
			}
			continue
		}
		shown := name
		if len(shown) > 80 {
			shown = shown[:80] + "..."
		}
		expectRefusal(t, err, mappers.InvalidConnector, fmt.Sprintf("the connector's initiator is %q, which %s; correct connector.initiator of the backend", shown, want))
	}
}

// TestNodesOfOneInitiatorName: Kubernetes limits the portal's length only where
// initiatorName is set.
func TestNodesOfOneInitiatorName(t *testing.T) {
	const portal = "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:3260"
	request := plainRequest()
	_, err := mapData(t, "iscsi", onePath(fields{"target_portal": portal}), request)
	expectRefusal(t, err, mappers.UnsupportedConnection, `portal "`+portal+`" is 45 characters long, but Kubernetes allows it 23 next to the name of the PersistentVolume and an initiatorName; `+
		`give the target a shorter address, or, if every node has the connector's initiator as its InitiatorName in /etc/iscsi/initiatorname.iscsi, set mapping.iscsi.omitInitiatorName of the backend; `+
		`or map iscsi to a CSI or FlexVolume driver that can (mapping.iscsi of the backend)`)
	request.Mappings = map[string]mapping.Mapping{"iscsi": {As: mapping.Native, OmitInitiatorName: true}}
	result, err := mapData(t, "iscsi", onePath(fields{"target_portal": portal}), request)
	if err != nil || result.Source.ISCSI.InitiatorName != nil || result.Source.ISCSI.TargetPortal != portal || len(result.Warnings) > 0 {
		t.Errorf("mapped to %+v, %v", result, err)
	}
	request.Connector.Initiator = "node-1"
	_, err = mapData(t, "iscsi", onePath(nil), request)
	expectRefusal(t, err, mappers.InvalidConnector, `the connector's initiator is "node-1", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>; correct connector.initiator of the backend`)
}

// TestMalformedTargetsOfDrivers: a CSI driver would take the name to be a file or
// an option, or find nothing.
func TestMalformedTargetsOfDrivers(t *testing.T) {
	const settings = "; correct the backend's driver or its settings"
	for name, want := range map[string]string{
		"iqn.1992-04.com.emc:600,t,0x0001": `target_iqn is "iqn.1992-04.com.emc:600,t,0x0001", which has the tag of a portal group after the target's name; a name has no tag, correct the backend's driver or its settings`,
		"label,t,0x0001":                   `target_iqn is "label,t,0x0001", which has the tag of a portal group after the target's name; a name has no tag, correct the backend's driver or its settings`,
		"iqn.2010-10.org.openstack:a,1":    `target_iqn is "iqn.2010-10.org.openstack:a,1", which has the tag of a portal group after the target's name; a name has no tag, correct the backend's driver or its settings`,
		"iqn.10-10.org.openstack:a":        `target_iqn is "iqn.10-10.org.openstack:a", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>` + settings,
		"iqn.2010-10.org.openstack:a/b":    `target_iqn is "iqn.2010-10.org.openstack:a/b", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>` + settings,
		"iqn.":                             `target_iqn is "iqn.", which is not of the form iqn.<year>-<month>.<reversed domain>:<name>` + settings,
		"eui.1":                            `target_iqn is "eui.1", which is not of the form eui.<16 hex digits>` + settings,
		"a,b":                              `target_iqn is "a,b", which starts with none of iqn., eui. and naa., which Kubernetes requires and is no plain name either` + settings,
		"iqn.1992-04.com.emc":              "",
		"naa.52004567BA64678D":             "",
		"target.inspur.node-1":             "",
	} {
		for form, mapped := range map[string]mapping.Mapping{
			"native": {}, "csi": {As: mapping.CSI, Driver: "csi.example.org"}, "flexVolume": {As: mapping.FlexVolume, Driver: "example.org/iscsi"},
		} {
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{"iscsi": mapped}
			if form == "native" {
				request.Mappings = nil
			}
			_, err := mapData(t, "iscsi", onePath(fields{"target_iqn": name}), request)
			var refusal *mappers.Refusal
			switch {
			case want != "":
				expectRefusal(t, err, mappers.InvalidConnection, want)
			case form != "native" && err != nil:
				t.Errorf("%s as %s: %v", name, form, err)
			case form == "native" && (!errors.As(err, &refusal) || refusal.Reason != mappers.UnsupportedConnection):
				t.Errorf("%s as %s: %v", name, form, err)
			}
		}
	}
}
