package mappers_test

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

const (
	cinderKey = "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ=="
	adminKey  = "QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQg=="
)

func oneImage(changes fields) fields {
	return laidOver(fields{
		"name": "volumes/volume-1", "hosts": []string{"192.0.2.11"}, "ports": []string{"6789"},
		"auth_enabled": true, "auth_username": "cinder",
	}, changes)
}

func TestRBDRefusals(t *testing.T) {
	const (
		look    = "; this backend's driver failed to describe the connection, so check the cinder-volume log"
		driver  = "; check the cinder-volume log, because this backend's driver failed to describe the connection"
		names   = `, expected pool/image, each of letters, digits, "_", "." and "-" and beginning with neither "." nor "-"; check rbd_pool and volume_name_template in cinder.conf, and the cinder-volume log`
		users   = `, expected the name of a Ceph user without "client." (letters, digits, "_", "." and "-", beginning with neither "." nor "-"); correct rbd_user of the backend in cinder.conf`
		monitor = "; check the monitor addresses in ceph.conf of cinder-volume"
		keyring = "; correct the keyring file that cinder-volume reads"
		other   = " (auth_username), and the key of another user must not be handed out; correct rbd_user or the keyring file of the backend"
	)
	const elsewhere = `, but mapping.rbd of the backend is for the Ceph cluster "ceph" (clusterName): Cinder has failed over to another cluster, or the backend is another one; fail the backend back, or give mapping.rbd the clusterName, the Secret and, for ceph-csi, the clusterID of that cluster`
	invalid := mappers.InvalidConnection
	reference := &corev1.SecretReference{Name: "ceph", Namespace: "ceph-csi"}
	ceph := mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1"}
	named := mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1", ClusterName: "ceph"}
	native := mapping.Mapping{As: mapping.Native}
	for name, test := range map[string]struct {
		data    fields
		mapping mapping.Mapping
		reason  mappers.Reason
		want    string
	}{
		"no name":               {oneImage(fields{"name": nil}), ceph, invalid, "name is missing" + names},
		"name of an image":      {oneImage(fields{"name": "/volume-1"}), ceph, invalid, `name is "/volume-1"` + names},
		"name of a pool":        {oneImage(fields{"name": "volumes/"}), ceph, invalid, `name is "volumes/"` + names},
		"name with a namespace": {oneImage(fields{"name": "volumes/a/volume-1"}), ceph, invalid, `name is "volumes/a/volume-1"` + names},
		"name of a snapshot":    {oneImage(fields{"name": "volumes/volume-1@a"}), ceph, invalid, `name is "volumes/volume-1@a"` + names},
		"pool that climbs":      {oneImage(fields{"name": "../volume-1"}), ceph, invalid, `name is "../volume-1"` + names},
		"pool is an option":     {oneImage(fields{"name": "--conf=x/volume-1"}), native, invalid, `name is "--conf=x/volume-1"` + names},
		"pool with a blank":     {oneImage(fields{"name": "a b/volume-1"}), ceph, invalid, `name is "a b/volume-1"` + names},
		"image is an option":    {oneImage(fields{"name": "volumes/-p"}), ceph, invalid, `name is "volumes/-p"` + names},
		"image is a command":    {oneImage(fields{"name": "volumes/c$(id)"}), ceph, invalid, `name is "volumes/c$(id)"` + names},
		"image is hidden":       {oneImage(fields{"name": "volumes/.volume-1"}), ceph, invalid, `name is "volumes/.volume-1"` + names},
		"user is an option":     {oneImage(fields{"auth_username": "--keyring=/x"}), ceph, invalid, `auth_username is "--keyring=/x"` + users},
		"user with a blank":     {oneImage(fields{"auth_username": "a b"}), native, invalid, `auth_username is "a b"` + users},
		"user of a keyring":     {oneImage(fields{"auth_username": nil, "keyring": "[client.-n]\nkey = " + cinderKey}), ceph, invalid, `auth_username is "-n"` + users},

		"cluster a number":     {oneImage(fields{"cluster_name": 1}), ceph, invalid, "cluster_name is 1, expected a string" + look},
		"cluster of control":   {oneImage(fields{"cluster_name": "a\nb"}), ceph, invalid, "cluster_name holds control characters; correct rbd_cluster_name and replication_device of the backend in cinder.conf"},
		"failed over":          {oneImage(fields{"cluster_name": "secondary_id"}), named, invalid, `cluster_name is "secondary_id"` + elsewhere},
		"failed over, native":  {oneImage(fields{"cluster_name": "secondary_id"}), mapping.Mapping{As: mapping.Native, ClusterName: "ceph"}, invalid, `cluster_name is "secondary_id"` + elsewhere},
		"failed over, mapped":  {oneImage(fields{"cluster_name": "secondary_id"}), mapping.Mapping{As: mapping.FlexVolume, Driver: "a/b", ClusterName: "ceph"}, invalid, `cluster_name is "secondary_id"` + elsewhere},
		"cluster without name": {oneImage(nil), named, invalid, `cluster_name is missing, so it is unknown whether the volume is in the Ceph cluster of mapping.rbd.clusterName ("ceph"); remove clusterName from the backend's mapping, since this release of Cinder sends no name`},

		"name an object":        {oneImage(fields{"name": fields{}}), ceph, invalid, "name is an object, expected a string" + look},
		"hosts a string":        {oneImage(fields{"hosts": "192.0.2.11"}), ceph, invalid, `hosts is "192.0.2.11", expected a list` + look},
		"hosts of numbers":      {oneImage(fields{"hosts": []int{1}}), ceph, invalid, "hosts[0] is 1, expected a string" + look},
		"host empty":            {oneImage(fields{"hosts": []string{""}}), ceph, invalid, `monitor "", port "6789" (hosts[0] and ports[0]) has neither an IP address nor a host name before its port` + monitor},
		"host with a port":      {oneImage(fields{"hosts": []string{"192.0.2.11:6789"}}), ceph, invalid, `monitor "192.0.2.11:6789", port "6789" (hosts[0] and ports[0]) has neither an IP address nor a host name before its port` + monitor},
		"host half bracketed":   {oneImage(fields{"hosts": []string{"[2001:db8::1"}}), ceph, invalid, `monitor "[2001:db8::1", port "6789" (hosts[0] and ports[0]) has neither an IP address nor a host name before its port` + monitor},
		"port empty":            {oneImage(fields{"ports": []string{""}}), ceph, invalid, `monitor "192.0.2.11", port "" (hosts[0] and ports[0]) has no port` + monitor},
		"port of words":         {oneImage(fields{"ports": []string{"v2"}}), ceph, invalid, `monitor "192.0.2.11", port "v2" (hosts[0] and ports[0]) has no port between 1 and 65535` + monitor},
		"more ports than hosts": {oneImage(fields{"ports": []string{"6789", "6789"}}), native, invalid, "hosts has 1 entries and ports 2, so the monitors' addresses are unknown" + driver},
		"auth unclear":          {oneImage(fields{"auth_enabled": "perhaps"}), ceph, invalid, `auth_enabled is "perhaps", expected true or false` + look},
		"user of control":       {oneImage(fields{"auth_username": "a\nb"}), ceph, invalid, `auth_username is "a\nb"` + users},
		"keyring a list":        {oneImage(fields{"keyring": []string{cinderKey}}), ceph, invalid, "keyring is a list, expected a string" + look},

		"no cluster":                      {oneImage(nil), mapping.Mapping{As: mapping.CSI}, mappers.InvalidMapping, `mapping.rbd.clusterID: is missing; name the Ceph cluster as ceph-csi's configuration does, or write a volumeHandle for a driver of your own`},
		"another image":                   {oneImage(nil), mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1", NodeStageSecretRef: reference, Attributes: map[string]string{"pool": "other", "clusterID": "other"}}, mappers.InvalidMapping, "mapping.rbd.attributes.clusterID: the built-in mapping to ceph-csi sets the attribute clusterID itself; remove it, or set clusterID next to attributes"},
		"secret without a name":           {oneImage(nil), mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1", NodeStageSecretRef: &corev1.SecretReference{Namespace: "a"}}, mappers.InvalidMapping, "mapping.rbd.nodeStageSecretRef.name: is missing; give the name and the namespace of the Secret"},
		"no key":                          {oneImage(nil), ceph, mappers.InvalidMapping, "mapping.rbd.nodeStageSecretRef is missing and Cinder sends no key; name a Secret there with userID and userKey for ceph-csi"},
		"no monitors":                     {oneImage(fields{"hosts": nil, "ports": nil}), native, invalid, "hosts and ports are missing, and the native source needs the addresses of the monitors; check the cinder-volume log, or map rbd to ceph-csi"},
		"no user for native":              {oneImage(fields{"auth_username": nil}), native, invalid, `auth_username is missing although auth_enabled is true, and Kubernetes would log in as "admin" instead; set rbd_user of the backend in cinder.conf`},
		"keyring of no sections":          {oneImage(fields{"keyring": "key = " + cinderKey}), ceph, invalid, `keyring has no key for user "client.cinder"` + other},
		"keyring of a daemon":             {oneImage(fields{"keyring": "[mon.cinder]\nkey = " + cinderKey}), ceph, invalid, `keyring has no key for user "client.cinder"` + other},
		"keyring of another user":         {oneImage(fields{"keyring": "[client.cinder2]\nkey = " + cinderKey}), native, invalid, `keyring has no key for user "client.cinder"` + other},
		"keyring of another user, unused": {oneImage(fields{"keyring": "[client.admin]\nkey = " + adminKey}), mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1", NodeStageSecretRef: reference}, invalid, `keyring has no key for user "client.cinder"` + other},
		"keyring cut off":                 {oneImage(fields{"keyring": "[client.cinder\nkey = " + cinderKey}), ceph, invalid, "keyring has a section without a closing bracket" + keyring},
		"keyring with two keys":           {oneImage(fields{"keyring": "[client.cinder]\nkey = " + cinderKey + "\nkey = " + adminKey}), ceph, invalid, "keyring has two keys for one user" + keyring},
		"keyring without base64":          {oneImage(fields{"keyring": "[client.cinder]\nkey = not-a-real-secret"}), ceph, invalid, "keyring has a key for auth_username that is not base64" + keyring},
		"keyring without a value":         {oneImage(fields{"keyring": "[client.cinder]\nkey ="}), ceph, invalid, "keyring has a key for auth_username that is not base64" + keyring},
		"keyring of whom":                 {oneImage(fields{"auth_username": nil, "keyring": "[client.a]\nkey = " + cinderKey + "\n[client.b]\nkey = " + adminKey}), ceph, invalid, "auth_username is missing and keyring has keys of 2 users; set rbd_user of the backend in cinder.conf"},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{"rbd": test.mapping}
			_, err := mapData(t, "rbd", test.data, request)
			expectRefusal(t, err, test.reason, test.want)
		})
	}
}

func TestRBDMonitors(t *testing.T) {
	for name, test := range map[string]struct {
		hosts []string
		ports []any
		want  []string
	}{
		"IPv4":                {[]string{"192.0.2.11", "192.0.2.12"}, []any{"6789", "3300"}, []string{"192.0.2.11:6789", "192.0.2.12:3300"}},
		"IPv6 bare":           {[]string{"2001:db8::11"}, []any{"6789"}, []string{"[2001:db8::11]:6789"}},
		"IPv6 bracketed":      {[]string{"[2001:db8::11]"}, []any{"6789"}, []string{"[2001:db8::11]:6789"}},
		"names":               {[]string{"mon-a.ceph.example"}, []any{"6789"}, []string{"mon-a.ceph.example:6789"}},
		"ports as numbers":    {[]string{"192.0.2.11"}, []any{6789}, []string{"192.0.2.11:6789"}},
		"one under two names": {[]string{"2001:db8::11", "2001:DB8:0::11"}, []any{"6789", "6789"}, []string{"[2001:db8::11]:6789"}},
	} {
		t.Run(name, func(t *testing.T) {
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{"rbd": {As: mapping.Native}}
			result, err := mapData(t, "rbd", oneImage(fields{"hosts": test.hosts, "ports": test.ports}), request)
			if err != nil {
				t.Fatal(err)
			}
			if got := result.Source.RBD.CephMonitors; !reflect.DeepEqual(got, test.want) {
				t.Errorf("monitors are %v, expected %v", got, test.want)
			}
		})
	}
}

// TestCephKeyring covers the forms in which ceph-authtool and administrators
// write keyrings.
func TestCephKeyring(t *testing.T) {
	for name, test := range map[string]struct{ user, keyring, wantUser string }{
		"as ceph writes it":      {"cinder", "[client.cinder]\n\tkey = " + cinderKey + "\n\tcaps mon = \"profile rbd\"\n", "cinder"},
		"without blanks":         {"cinder", "[client.cinder]\nkey=" + cinderKey, "cinder"},
		"with Windows' lines":    {"cinder", "[client.cinder]\r\n\tkey = " + cinderKey + "\r\n", "cinder"},
		"with remarks":           {"cinder", "# a\n; b\n\n[client.cinder]\n# key = " + adminKey + "\nkey = " + cinderKey, "cinder"},
		"in quotes":              {"cinder", "[client.cinder]\nkey = \"" + cinderKey + "\"\n", "cinder"},
		"second of two users":    {"cinder", "[client.admin]\nkey = " + adminKey + "\n[client.cinder]\nkey = " + cinderKey, "cinder"},
		"first of two users":     {"cinder", "[client.cinder]\nkey = " + cinderKey + "\n[client.admin]\nkey = " + adminKey, "cinder"},
		"the only user, unnamed": {"", "[client.volumes]\nkey = " + cinderKey, "volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			changes := fields{"keyring": test.keyring, "auth_username": test.user}
			request := plainRequest()
			request.Mappings = map[string]mapping.Mapping{"rbd": {As: mapping.CSI, ClusterID: "ceph-1"}}
			result, err := mapData(t, "rbd", oneImage(changes), request)
			if err != nil {
				t.Fatal(err)
			}
			want := &mappers.Secret{Namespace: testNamespace, Name: result.Source.CSI.NodeStageSecretRef.Name, Shared: true, Type: corev1.SecretTypeOpaque, Data: map[string][]byte{"userID": []byte(test.wantUser), "userKey": []byte(cinderKey)}}
			if !reflect.DeepEqual(result.Secret, want) {
				t.Errorf("secret of ceph-csi is %q, expected %q", result.Secret.Data, want.Data)
			}

			request.Mappings = map[string]mapping.Mapping{"rbd": {As: mapping.Native}}
			result, err = mapData(t, "rbd", oneImage(changes), request)
			if err != nil {
				t.Fatal(err)
			}
			want = &mappers.Secret{Namespace: testNamespace, Name: result.Source.RBD.SecretRef.Name, Shared: true, Type: "kubernetes.io/rbd", Data: map[string][]byte{"key": []byte(cinderKey)}}
			if !reflect.DeepEqual(result.Secret, want) {
				t.Errorf("secret of the native source is %q, expected %q", result.Secret.Data, want.Data)
			}
			if result.Source.RBD.RadosUser != test.wantUser {
				t.Errorf("user is %q, expected %q", result.Source.RBD.RadosUser, test.wantUser)
			}
		})
	}
}

// TestRBDResultIsIndependentOfTheMapping: a result must not share memory with
// the operator's mapping, which is used for many volumes.
func TestRBDResultIsIndependentOfTheMapping(t *testing.T) {
	settings := mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1", NodeStageSecretRef: &corev1.SecretReference{Name: "ceph", Namespace: "ceph-csi"}, Attributes: map[string]string{"mounter": "rbd-nbd"}}
	request := plainRequest()
	request.Mappings = map[string]mapping.Mapping{"rbd": settings}
	result, err := mapData(t, "rbd", oneImage(nil), request)
	if err != nil {
		t.Fatal(err)
	}
	result.Source.CSI.NodeStageSecretRef.Name = "changed"
	result.Source.CSI.VolumeAttributes["mounter"] = "changed"
	if settings.NodeStageSecretRef.Name != "ceph" || settings.Attributes["mounter"] != "rbd-nbd" {
		t.Errorf("the mapping changed with the result: %v, %v", settings.NodeStageSecretRef, settings.Attributes)
	}
}

// TestRBDSecretIsSharedByBackendUserAndCluster: volumes share the Secret of a
// key exactly if user, cluster and form are the same.
func TestRBDSecretIsSharedByBackendUserAndCluster(t *testing.T) {
	const theirKey = "[client.cinder]\nkey = " + cinderKey
	secretOf := func(t *testing.T, data fields, backend string, settings mapping.Mapping) *mappers.Secret {
		t.Helper()
		request := plainRequest()
		request.Backend = backend
		request.Mappings = map[string]mapping.Mapping{"rbd": settings}
		result, err := mapData(t, "rbd", data, request)
		if err != nil {
			t.Fatal(err)
		}
		var reference *corev1.SecretReference
		if result.Source.CSI != nil {
			reference = result.Source.CSI.NodeStageSecretRef
		} else {
			reference = result.Source.RBD.SecretRef
		}
		if reference.Name != result.Secret.Name || reference.Namespace != result.Secret.Namespace {
			t.Errorf("the source refers to %s/%s, the Secret is %s", reference.Namespace, reference.Name, result.Secret)
		}
		return result.Secret
	}
	csi, native := mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1"}, mapping.Mapping{As: mapping.Native}
	first := secretOf(t, oneImage(fields{"keyring": theirKey}), "gold", csi)
	firstNative := secretOf(t, oneImage(fields{"keyring": theirKey}), "gold", native)
	for name, test := range map[string]struct {
		changes fields
		backend string
		mapping mapping.Mapping
		than    *mappers.Secret
		same    bool
	}{
		"another volume":            {fields{"name": "volumes/volume-2"}, "gold", csi, first, true},
		"another pool":              {fields{"name": "fast/volume-1"}, "gold", csi, first, true},
		"a new key":                 {fields{"keyring": "[client.cinder]\nkey = " + adminKey}, "gold", csi, first, true},
		"other monitors":            {fields{"hosts": []string{"192.0.2.12"}}, "gold", csi, first, false},
		"another name of a cluster": {fields{"cluster_name": "secondary_id"}, "gold", csi, first, false},
		"monitors in other words":   {fields{"hosts": []string{"2001:DB8:0::11", "MON-a"}, "ports": []any{6789, "6789"}}, "gold", csi, secretOf(t, oneImage(fields{"keyring": theirKey, "hosts": []string{"mon-A", "2001:db8::11"}, "ports": []string{"6789", "6789"}}), "gold", csi), true},
		"with the name demanded":    {fields{"cluster_name": "ceph"}, "gold", mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-1", ClusterName: "ceph"}, secretOf(t, oneImage(fields{"keyring": theirKey, "cluster_name": "ceph"}), "gold", csi), true},
		"another backend":           {nil, "silver", csi, first, false},
		"another user":              {fields{"auth_username": "b", "keyring": "[client.b]\nkey = " + cinderKey}, "gold", csi, first, false},
		"another cluster":           {nil, "gold", mapping.Mapping{As: mapping.CSI, ClusterID: "ceph-2"}, first, false},
		"another form":              {nil, "gold", native, first, false},
		"another volume, native":    {fields{"name": "volumes/volume-2"}, "gold", native, firstNative, true},
		"another cluster, native":   {fields{"hosts": []string{"192.0.2.12"}}, "gold", native, firstNative, false},
		"monitors in another order": {fields{"hosts": []string{"192.0.2.12", "192.0.2.11"}, "ports": []string{"6789", "6789"}}, "gold", native, secretOf(t, oneImage(fields{"keyring": theirKey, "hosts": []string{"192.0.2.11", "192.0.2.12"}, "ports": []string{"6789", "6789"}}), "gold", native), true},
	} {
		t.Run(name, func(t *testing.T) {
			data := oneImage(fields{"keyring": theirKey})
			data = laidOver(data, test.changes)
			got := secretOf(t, data, test.backend, test.mapping)
			if !got.Shared || !mappers.IsSharedSecretName(got.Name, test.backend) || (got.Name == test.than.Name) != test.same {
				t.Errorf("the Secret is called %s beside %s, the same: %t", got.Name, test.than.Name, test.same)
			}
		})
	}
	t.Run("without a backend every volume has its own", func(t *testing.T) {
		if own := secretOf(t, oneImage(fields{"keyring": theirKey}), "", csi); own.Shared || own.Name != testSecret {
			t.Errorf("the Secret is %s, shared: %t", own, own.Shared)
		}
	})
}

func TestNamesOfSharedSecrets(t *testing.T) {
	for name, want := range map[string]bool{
		"gold-cephx-0123456789abcdef":   true,
		"gold-cephx-0123456789abcde":    false,
		"gold-cephx-0123456789abcdeff":  false,
		"gold-cephx-0123456789ABCDEF":   false,
		"gold-cephx-":                   false,
		"silver-cephx-0123456789abcdef": false,
		"gold":                          false,
		"admin-token":                   false,
	} {
		if got := mappers.IsSharedSecretName(name, "gold"); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
	if mappers.IsSharedSecretName("-cephx-0123456789abcdef", "") {
		t.Error("a Secret is shared by no backend")
	}
}
