package mappers

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// ProtocolRBD is Cinder's name for images of Ceph.
const ProtocolRBD = "rbd"

// defaultImageFeatures is what every image has. ceph-csi requires the attribute and then
// reads the image's own features.
const defaultImageFeatures = "layering"

// rbd describes protocol rbd.
func rbd() protocol {
	return protocol{
		about: mapping.Protocol{
			Native:  true,
			CephCSI: true,
			Keys: map[mapping.Form][]string{
				mapping.CSI: {"clusterID", "imageFeatures", "clusterName"}, mapping.Native: {"secretRef", "clusterName"}, mapping.FlexVolume: {"clusterName"},
			},
			Facts:  []string{"pool", "image", "monitors", "user", "key"},
			Fields: []string{"name", "hosts", "ports", "cluster_name", "auth_enabled", "auth_username", "secret_type", "secret_uuid", "keyring"},

			IdentityFacts: []string{"image"},
		},
		builtIn: mapRBD,
		facts:   rbdFacts,
	}
}

// mapRBD maps protocol rbd to a static volume of ceph-csi, or to the native source, which
// kubelets support up to Kubernetes 1.30.
func mapRBD(r request) (Result, error) {
	image, err := r.rbdImage()
	if err != nil {
		return Result{}, err
	}
	if r.mapping.As == mapping.Native {
		return r.nativeRBD(image)
	}
	return r.cephCSI(image)
}

// cephCSI builds the pre-provisioned volume described in ceph-csi's docs/static-pvc.md.
// Its volumeHandle must be the image's name, and monitors come from the cluster's entry
// in ceph-csi's own configuration.
func (r request) cephCSI(image rbdImage) (Result, error) {
	if r.mapping.ClusterID == "" {
		return Result{}, refuse(InvalidMapping, "mapping.rbd.clusterID is missing; set it in the backend's mapping to the ceph-csi clusterID of this Ceph cluster, or set mapping.rbd.as to \"native\" for Kubernetes up to 1.30")
	}
	attributes := map[string]string{
		"clusterID":     r.mapping.ClusterID,
		"pool":          image.pool,
		"staticVolume":  "true",
		"imageFeatures": r.mapping.ImageFeatures,
	}
	if r.mapping.ImageFeatures == "" {
		attributes["imageFeatures"] = defaultImageFeatures
	}
	values, err := r.newValues(rbdFacts)
	if err != nil {
		return Result{}, err
	}
	further, err := values.fillAll("attributes", r.mapping.Attributes)
	if err != nil {
		return Result{}, err
	}
	maps.Copy(attributes, further)

	source := &corev1.CSIPersistentVolumeSource{
		Driver:           r.mapping.Driver,
		VolumeHandle:     image.name,
		FSType:           r.filesystem(),
		ReadOnly:         r.readOnly,
		VolumeAttributes: attributes,
	}
	source.Driver = cmp.Or(source.Driver, mapping.DefaultCephDriver)

	reference, secret, err := r.cephSecret(r.mapping.NodeStageSecretRef, image, append([]string{r.mapping.ClusterID, image.cluster}, identity(image.monitors)...), corev1.SecretTypeOpaque, map[string][]byte{"userID": []byte(image.user), "userKey": []byte(image.key)})
	switch {
	case err != nil:
		return Result{}, err
	case reference == nil && image.authenticated:
		return Result{}, refuse(InvalidMapping, "mapping.rbd.nodeStageSecretRef is missing and Cinder sends no key; name a Secret there with userID and userKey for ceph-csi")
	case reference == nil:
		return Result{}, refuse(InvalidMapping, "mapping.rbd.nodeStageSecretRef is missing, and ceph-csi needs a Secret even if auth_enabled is false; name a Secret there with any userID and userKey")
	}
	source.NodeStageSecretRef = reference
	return Result{Source: corev1.PersistentVolumeSource{CSI: source}, Secret: secret}, nil
}

// nativeRBD builds the source for kubelet's own RBD plugin.
func (r request) nativeRBD(image rbdImage) (Result, error) {
	if err := r.requireNativeAccessModes(); err != nil {
		return Result{}, err
	}
	if len(image.monitors) == 0 {
		return Result{}, refuse(InvalidConnection, "hosts and ports are missing, and the native source needs the addresses of the monitors; check the cinder-volume log, or map rbd to ceph-csi")
	}
	source := &corev1.RBDPersistentVolumeSource{
		CephMonitors: image.monitors,
		RBDPool:      image.pool,
		RBDImage:     image.name,
		RadosUser:    image.user,
		FSType:       r.filesystem(),
		ReadOnly:     r.readOnly,
	}
	result := Result{Source: corev1.PersistentVolumeSource{RBD: source}}
	if !image.authenticated {
		return result, nil
	}

	if image.user == "" {
		return Result{}, refuse(InvalidConnection, "auth_username is missing although auth_enabled is true, and Kubernetes would log in as \"admin\" instead; set rbd_user of the backend in cinder.conf")
	}
	var err error
	source.SecretRef, result.Secret, err = r.cephSecret(r.mapping.SecretRef, image, identity(image.monitors), "kubernetes.io/rbd", map[string][]byte{"key": []byte(image.key)})
	if err != nil {
		return Result{}, err
	}
	if source.SecretRef == nil {
		result.Warnings = []string{"Cinder sends no key and mapping.rbd.secretRef names no Secret: nodes log in to Ceph with their own /etc/ceph/keyring"}
	}
	return result, nil
}

// cephSecret returns a reference to the operator's Secret, or to one of the given kind
// for the key that Cinder sent. If there is neither, it returns nothing and no error. The
// cluster distinguishes it from others with a user of the same name: after a failover of
// Cinder, a connection points to another cluster, whose key must not replace the one that
// earlier volumes need.
func (r request) cephSecret(reference *corev1.SecretReference, image rbdImage, cluster []string, kind corev1.SecretType, data map[string][]byte) (*corev1.SecretReference, *Secret, error) {
	if reference != nil {
		return reference.DeepCopy(), nil, nil
	}
	if image.key == "" {
		return nil, nil, nil
	}
	secret := r.newSecret(kind, data)
	if r.Backend != "" {
		secret.Name, secret.Shared = sharedSecretName(r.Backend, append([]string{string(kind), image.user}, cluster...)), true
	}
	return secret.reference(), secret, nil
}

// identity returns a list that is independent of the monitors' order and spelling.
func identity(monitors []string) []string {
	var spelled []string
	for _, monitor := range monitors {
		spelled = append(spelled, strings.ToLower(monitor))
	}
	return slices.Compact(slices.Sorted(slices.Values(spelled)))
}

// sharedSecretName derives a Secret's name from its backend and everything that two
// volumes must have in common to share it. The key is not part of the name: a new key
// goes into the same Secret, so that existing volumes get it, too.
func sharedSecretName(backend string, identity []string) string {
	sum := sha256.New()
	for _, part := range append([]string{backend}, identity...) {
		// Names and addresses contain no control characters.
		sum.Write(append([]byte(part), 0))
	}
	return backend + "-cephx-" + hex.EncodeToString(sum.Sum(nil)[:8])
}

// IsSharedSecretName reports whether a backend's volumes may share a Secret of that name.
// The Secret itself records whether they do.
func IsSharedSecretName(name, backend string) bool {
	digits, ok := strings.CutPrefix(name, backend+"-cephx-")
	return ok && backend != "" && len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

// rbdFacts returns the values that templates may use below .rbd.
func rbdFacts(r request) (facts, *Refusal, error) {
	image, err := r.rbdImage()
	if err != nil {
		return nil, nil, err
	}
	monitors := make([]any, len(image.monitors))
	for i, monitor := range image.monitors {
		monitors[i] = monitor
	}
	return facts{"pool": image.pool, "image": image.name, "monitors": monitors, "user": known(image.user), "key": known(image.key)}, nil, nil
}

// rbdImage is a connection of Cinder's RBD driver (cinder/volume/drivers/rbd.py,
// initialize_connection). secret_uuid is libvirt's.
type rbdImage struct {
	pool, name string
	// cluster is cluster_name, which older releases do not send. It names a configuration
	// file that neither source reads, and after a failover the replication target.
	cluster       string
	monitors      []string
	authenticated bool
	// user is without "client.". key is empty unless Cinder sent a keyring.
	user, key string
}

// rbdImage reads the connection and refuses one to a cluster other than the mapping's:
// clusterID, Secret and monitors of a mapping belong to one cluster.
func (r request) rbdImage() (rbdImage, error) {
	image, err := r.Connection.rbdImage()
	if err != nil || r.mapping.ClusterName == "" || r.mapping.ClusterName == image.cluster {
		return image, err
	}
	if image.cluster == "" {
		return image, refuse(InvalidConnection, "cluster_name is missing, so it is unknown whether the volume is in the Ceph cluster of mapping.rbd.clusterName (%q); remove clusterName from the backend's mapping, since this release of Cinder sends no name", r.mapping.ClusterName)
	}
	return image, refuse(InvalidConnection, "cluster_name is %s, but mapping.rbd of the backend is for the Ceph cluster %q (clusterName): Cinder has failed over to another cluster, or the backend is another one; fail the backend back, or give mapping.rbd the clusterName, the Secret and, for ceph-csi, the clusterID of that cluster",
		r.Connection.quote(image.cluster), r.mapping.ClusterName)
}

// rbdForNode reads what the node's kernel needs to map an image.
func rbdForNode(c Connection, r NodeRequest) (NodeConnection, error) {
	image, err := c.rbdImage()
	if err != nil {
		return NodeConnection{}, err
	}
	var found NodeConnection
	for _, monitor := range image.monitors {
		if at, err := netip.ParseAddrPort(monitor); err != nil || at.Addr().Zone() != "" {
			return NodeConnection{}, refuse(InvalidConnection, "monitor %s has no IP address, which the nodes' kernels need; correct the monitor addresses in ceph.conf of cinder-volume", c.quote(monitor))
		}
		found.Paths = append(found.Paths, NodePath{Portal: monitor, Target: image.pool + "/" + image.name})
	}
	switch {
	case len(found.Paths) == 0:
		return NodeConnection{}, refuse(InvalidConnection, "hosts and ports are missing, and the nodes need the addresses of the monitors; check the cinder-volume log")
	case len(found.Paths) > maxMonitors:
		return NodeConnection{}, refuse(InvalidConnection, "hosts names %d monitors, and the nodes' kernels take at most %d; name fewer in ceph.conf of cinder-volume", len(found.Paths), maxMonitors)
	case !image.authenticated:
	case r.CephUser != nil:
		found.Credentials = r.CephUser
	case image.key != "":
		found.Credentials = &NodeCredentials{User: image.user, Password: image.key}
	default:
		return NodeConnection{}, refuse(InvalidMapping, "Cinder sends no key for the Ceph cluster, and the policy names none; make a Secret with userID and userKey in the program's own namespace, and name it in csi.cephSecret of the backend")
	}
	return found, nil
}

// maxMonitors is the kernel's CEPH_MAX_MON.
const maxMonitors = 31

// CheckCephUser returns an error unless these are a Ceph user's name, without "client.",
// and key. The error does not repeat them.
func CheckCephUser(u NodeCredentials) error {
	if !cephName.MatchString(u.User) {
		return errors.New("userID is not the name of a Ceph user without \"client.\"")
	}
	if !isCephKey(u.Password) {
		return errors.New("userKey is not a key in base64")
	}
	return nil
}

func isCephKey(text string) bool {
	decoded, err := base64.StdEncoding.DecodeString(text)
	return err == nil && len(decoded) > 0
}

// cephName matches names of pools, images and users that rbd, and drivers that join them
// to paths, cannot mistake for an option, a path or a pattern.
var cephName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

func (c Connection) rbdImage() (rbdImage, error) {
	image := rbdImage{}
	name, err := c.text("name")
	if err != nil {
		return image, err
	}
	var split bool
	image.pool, image.name, split = strings.Cut(name, "/")
	if !split || !cephName.MatchString(image.pool) || !cephName.MatchString(image.name) {
		value := "missing"
		if name != "" {
			value = c.quote(name)
		}
		return image, refuse(InvalidConnection, "name is %s, expected pool/image, each of letters, digits, \"_\", \".\" and \"-\" and beginning with neither \".\" nor \"-\"; check rbd_pool and volume_name_template in cinder.conf, and the cinder-volume log", value)
	}
	if image.cluster, err = c.text("cluster_name"); err != nil {
		return image, err
	}
	if hasControl(image.cluster) {
		return image, refuse(InvalidConnection, "cluster_name holds control characters; correct rbd_cluster_name and replication_device of the backend in cinder.conf")
	}
	if image.monitors, err = c.monitors(); err != nil {
		return image, err
	}
	if image.authenticated, err = c.flag("auth_enabled", true); err != nil {
		return image, err
	}
	if image.user, err = c.text("auth_username"); err != nil {
		return image, err
	}
	keyring, err := c.text("keyring")
	if err != nil {
		return image, err
	}
	if keyring != "" && image.authenticated {
		// This is read even if the operator keeps the Secret: a keyring without the
		// user's key shows that one of them is wrong.
		if image.user, image.key, err = c.cephKey(keyring, image.user); err != nil {
			return image, err
		}
	}
	if image.user != "" && !cephName.MatchString(image.user) {
		return image, refuse(InvalidConnection, "auth_username is %s, expected the name of a Ceph user without \"client.\" (letters, digits, \"_\", \".\" and \"-\", beginning with neither \".\" nor \"-\"); correct rbd_user of the backend in cinder.conf", c.quote(image.user))
	}
	return image, nil
}

// monitors joins hosts and ports. The driver strips the brackets of IPv6.
func (c Connection) monitors() ([]string, error) {
	hosts, err := c.texts("hosts", false)
	if err != nil {
		return nil, err
	}
	ports, err := c.texts("ports", true)
	if err != nil {
		return nil, err
	}
	if len(hosts) != len(ports) {
		return nil, refuse(InvalidConnection, "hosts has %d entries and ports %d, so the monitors' addresses are unknown; check the cinder-volume log, because this backend's driver failed to describe the connection", len(hosts), len(ports))
	}
	seen := map[string]bool{}
	var monitors []string
	for index, host := range hosts {
		bare, bracketed := strings.CutPrefix(host, "[")
		if bracketed {
			bare, bracketed = strings.CutSuffix(bare, "]")
			if !bracketed {
				bare = host
			}
		}
		monitor, err := newAddress(bare, ports[index], bracketed)
		if err != nil {
			return nil, refuse(InvalidConnection, "monitor %s, port %s (%s and %s) %v; check the monitor addresses in ceph.conf of cinder-volume",
				c.quote(host), c.quote(ports[index]), at("hosts", index), at("ports", index), err)
		}
		if text := monitor.String(); !seen[text] {
			seen[text] = true
			monitors = append(monitors, text)
		}
	}
	return monitors, nil
}

// cephKey finds a user's key in the text of a Ceph keyring file: sections named
// "[client.user]" with a line "key = ...". Without a user, the keyring must
// have exactly one user's key. Keys of other users are never returned: a
// keyring may hold an administrator's.
func (c Connection) cephKey(keyring, user string) (string, string, error) {
	keys := map[string]string{}
	section, inClient := "", false
	for line := range strings.Lines(keyring) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case line[0] == '[':
			name, closed := strings.CutSuffix(line[1:], "]")
			if !closed {
				return "", "", refuse(InvalidConnection, "keyring has a section without a closing bracket; correct the keyring file that cinder-volume reads")
			}
			section, inClient = strings.CutPrefix(strings.TrimSpace(name), "client.")
		default:
			name, value, assigned := strings.Cut(line, "=")
			if !inClient || !assigned || strings.TrimSpace(name) != "key" {
				continue
			}
			if _, repeated := keys[section]; repeated {
				return "", "", refuse(InvalidConnection, "keyring has two keys for one user; correct the keyring file that cinder-volume reads")
			}
			keys[section] = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	if user == "" {
		users := slices.Sorted(maps.Keys(keys))
		if len(users) != 1 {
			return "", "", refuse(InvalidConnection, "auth_username is missing and keyring has keys of %d users; set rbd_user of the backend in cinder.conf", len(users))
		}
		user = users[0]
	}
	key, found := keys[user]
	if !found {
		return "", "", refuse(InvalidConnection, "keyring has no key for user %s (auth_username), and the key of another user must not be handed out; correct rbd_user or the keyring file of the backend", c.quote("client."+user))
	}
	if !isCephKey(key) {
		return "", "", refuse(InvalidConnection, "keyring has a key for auth_username that is not base64; correct the keyring file that cinder-volume reads")
	}
	return user, key, nil
}
