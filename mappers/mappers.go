// Package mappers turns what Cinder says about a connected volume into what a
// kubelet needs to mount it: a PersistentVolumeSource and, where the target
// asks for credentials, the Secret that the source refers to.
//
// The package is pure: it does no I/O, reads no clock and draws no random
// numbers, so the same Request always gives the same Result. Everything it
// cannot map without guessing is a *Refusal.
//
// README.md says how to add a protocol.
package mappers

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Options are the settings that all mappings of a process share.
type Options struct {
	// SecretNamespace is the namespace in which the provisioner keeps the
	// Secrets of its volumes. Required: references without a namespace would
	// be looked up in the namespace of the pod, which tenants can read.
	SecretNamespace string
}

// Registry maps connections by their protocol. It is immutable and safe for
// concurrent use.
type Registry struct {
	secretNamespace string
	protocols       map[string]mapFunc
}

// mapFunc maps the connections of one protocol. Everything that holds for
// every protocol (encryption, access modes that nothing can honour, front-end
// QoS) has been dealt with by Registry.Map.
type mapFunc func(request) (Result, error)

// New returns a Registry of every protocol this package knows.
func New(options Options) (*Registry, error) {
	if options.SecretNamespace == "" {
		return nil, errors.New("mappers: Options.SecretNamespace is empty, expected the provisioner's own namespace")
	}
	return &Registry{
		secretNamespace: options.SecretNamespace,
		protocols: map[string]mapFunc{
			"iscsi": mapISCSI,
			"iser":  mapISCSI,
			"rbd":   mapRBD,
		},
	}, nil
}

// Protocols lists the known values of driver_volume_type, sorted.
func (r *Registry) Protocols() []string {
	return slices.Sorted(maps.Keys(r.protocols))
}

// Request is one volume to map.
type Request struct {
	// Connection is Cinder's answer.
	Connection Connection
	// PVName is the name the PersistentVolume will have. Required: Kubernetes
	// limits its length together with the iSCSI portal.
	PVName string
	// SecretName is the name the Secret will have, should one be needed.
	SecretName string
	// AccessModes are those of the claim, which the PersistentVolume will
	// carry. A claim of ReadOnlyMany alone makes the source read-only.
	AccessModes []corev1.PersistentVolumeAccessMode
	// FSType is the filesystem the node makes on an empty volume, ext4 when it
	// is left empty. Ignored when Block is set.
	FSType string
	// Block is set for a claim of volumeMode Block.
	Block bool
	// Encrypted is what Cinder says of the volume itself (its "encrypted"
	// attribute); older drivers leave it out of the connection.
	Encrypted bool
	// InitiatorName is the initiator of the connector that Cinder was given.
	// Arrays mask LUNs by it, so nodes must log in under this name.
	InitiatorName string
	// Mappings are the operator's settings for the backend, by protocol in
	// lower case (the policy's backends[].mapping).
	Mappings map[string]Mapping
}

// Form is the kind of PersistentVolumeSource an operator asks for.
type Form string

const (
	// FormDefault leaves the choice to the protocol's mapper.
	FormDefault Form = ""
	// FormNative is a source that kubelet mounts by itself.
	FormNative Form = "native"
	// FormCSI is a pre-provisioned volume of a CSI driver.
	FormCSI Form = "csi"
)

// Mapping is what an operator decides about one protocol of one backend. A
// zero Mapping gives the protocol's defaults.
type Mapping struct {
	// As is the form of the source.
	As Form
	// Driver is the name of the CSI driver.
	Driver string
	// ClusterID is the CSI driver's own name for the storage cluster (for
	// ceph-csi a key of its ceph-csi-config ConfigMap).
	ClusterID string
	// NodeStageSecretRef is a Secret the operator keeps. With FormNative it is
	// the source's secretRef.
	NodeStageSecretRef *corev1.SecretReference
	// ImageFeatures are RBD image features as ceph-csi spells them, separated
	// by commas.
	ImageFeatures string
	// Attributes are further volumeAttributes for the CSI driver.
	Attributes map[string]string
}

// Secret is a Secret that the provisioner has to keep for a volume. Printing it
// shows its name and keys only.
type Secret struct {
	Namespace, Name string
	Type            corev1.SecretType
	Data            map[string][]byte
}

// String describes the Secret without its values.
func (s Secret) String() string {
	return fmt.Sprintf("secret %s/%s (%s)", s.Namespace, s.Name, strings.Join(slices.Sorted(maps.Keys(s.Data)), ", "))
}

// GoString keeps %#v from printing the values.
func (s Secret) GoString() string { return s.String() }

// LogValue keeps slog from printing the values.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON keeps JSON loggers from printing the values.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

func (s Secret) reference() *corev1.SecretReference {
	return &corev1.SecretReference{Namespace: s.Namespace, Name: s.Name}
}

// Result is a mapped volume.
type Result struct {
	// Source goes into the PersistentVolume's spec.
	Source corev1.PersistentVolumeSource
	// Secret must exist before the PersistentVolume does; nil when the source
	// needs none that the provisioner keeps.
	Secret *Secret
	// ReadOnly reports whether the source forces read-only mounts.
	ReadOnly bool
	// Warnings are sentences about what Cinder offered and the source cannot
	// express. The volume works without it.
	Warnings []string
}

// Map maps a connection. The error is a *Refusal when the connection, the
// claim or the operator's mapping is the cause; neither it nor a warning ever
// holds a password or key of the connection.
func (r *Registry) Map(in Request) (Result, error) {
	if in.PVName == "" || in.SecretName == "" {
		return Result{}, errors.New("mappers: Request.PVName and Request.SecretName must be set")
	}
	settled, err := r.settle(in)
	if err != nil {
		return Result{}, err
	}
	toSource, known := r.protocols[settled.protocol]
	if !known {
		return Result{}, r.unknownProtocol(in)
	}
	result, err := toSource(settled)
	if err != nil {
		return Result{}, err
	}
	result.ReadOnly = settled.readOnly
	if settled.readOnly && !onlyReading(in.AccessModes) {
		result.Warnings = append(result.Warnings, "Cinder grants the volume read-only, so it is mounted read-only whatever the claim's access modes say")
	}
	warnings, err := in.Connection.qosWarnings()
	if err != nil {
		return Result{}, err
	}
	result.Warnings = append(result.Warnings, warnings...)
	return result, nil
}

// settle decides what does not depend on the protocol.
func (r *Registry) settle(in Request) (request, error) {
	connection := in.Connection
	settled := request{Request: in, protocol: connection.protocol, mapping: in.Mappings[connection.protocol], secretNamespace: r.secretNamespace}
	if connection.protocol == "" {
		return settled, refuse(InvalidConnection, "there is no connection; connect the volume before it is mapped")
	}
	// os-brick would open the LUKS layer; a kubelet would see noise, take it
	// for an empty disk and format it.
	encrypted, err := connection.flag("encrypted", false)
	if err != nil {
		return settled, err
	}
	if encrypted || in.Encrypted {
		return settled, refuse(EncryptedVolume, "encrypted is true, but a kubelet cannot open the volume's LUKS layer and would format it; use a volume type without encryption")
	}
	if err := CheckAccessModes(in.AccessModes); err != nil {
		return settled, err
	}
	if form := settled.mapping.As; form != FormDefault && form != FormNative && form != FormCSI {
		return settled, refuse(InvalidMapping, "mapping.%s.as is %q, expected \"native\" or \"csi\"; correct the backend's mapping", settled.protocol, form)
	}
	access, err := connection.text("access_mode")
	if err != nil {
		return settled, err
	}
	if access != "" && access != "rw" && access != "ro" {
		return settled, refuse(InvalidConnection, "access_mode is %s, expected \"rw\" or \"ro\"; look in the log of cinder-volume", connection.quote(access))
	}
	settled.readOnly = access == "ro" || connection.readOnly || onlyReading(in.AccessModes)
	return settled, nil
}

// unknownProtocol names the way out: a mapping, or another volume type.
func (r *Registry) unknownProtocol(in Request) *Refusal {
	protocol := in.Connection.protocol
	known := strings.Join(r.Protocols(), ", ")
	if _, mapped := in.Mappings[protocol]; mapped {
		return refuse(UnsupportedProtocol, "protocol %s is unknown (known: %s) and mapping.%s cannot describe it in this version; use a volume type whose backend speaks a known protocol", protocol, known, protocol)
	}
	return refuse(UnsupportedProtocol, "protocol %s is unknown (known: %s); use a volume type whose backend speaks one of these, or describe the protocol in the backend's mapping", protocol, known)
}

// qosWarnings reports limits that Cinder leaves to the consumer. The manager
// sends qos_specs only when their consumer is "front-end" or "both"
// (cinder/volume/manager.py, initialize_connection).
func (c Connection) qosWarnings() ([]string, error) {
	value, present := c.value("qos_specs")
	if !present {
		return nil, nil
	}
	specs, ok := value.(map[string]any)
	if !ok {
		return nil, c.wrongType("qos_specs", value, "an object")
	}
	if len(specs) == 0 {
		return nil, nil
	}
	names := slices.Sorted(maps.Keys(specs))
	return []string{fmt.Sprintf("the volume type's front-end QoS (%s) is not enforced: kubelet has no such limits; move them to the back-end where the driver can",
		c.quote(strings.Join(names, ", ")))}, nil
}

// CheckAccessModes refuses the access modes that no source of any protocol
// here can honour, so that a claim can be turned down before a volume is made
// for it. Modes that pass may still be refused by Map for a certain protocol.
// The error is a *Refusal of reason UnsupportedAccessMode.
func CheckAccessModes(modes []corev1.PersistentVolumeAccessMode) error {
	for _, mode := range modes {
		switch mode {
		case corev1.ReadWriteOnce, corev1.ReadOnlyMany, corev1.ReadWriteOncePod:
		case corev1.ReadWriteMany:
			return refuse(UnsupportedAccessMode, "access mode ReadWriteMany is not supported, because a Cinder volume is a disk that one node at a time may write to; use ReadWriteOnce or ReadOnlyMany")
		default:
			return refuse(UnsupportedAccessMode, "access mode %q is unknown; use ReadWriteOnce or ReadOnlyMany", mode)
		}
	}
	return nil
}

// onlyReading reports whether a claim asks for ReadOnlyMany and nothing else.
func onlyReading(modes []corev1.PersistentVolumeAccessMode) bool {
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode != corev1.ReadOnlyMany
	})
}

// request is a Request with what Registry.Map has settled.
type request struct {
	Request
	protocol        string
	mapping         Mapping
	readOnly        bool
	secretNamespace string
}

// filesystem is what goes into the source's fsType. It is never left empty for
// a filesystem: kubelet would use ext4 all the same for a native source, but
// skip fsGroup for a CSI source (pkg/volume/csi, supportsFSGroup).
func (r request) filesystem() string {
	switch {
	case r.Block:
		return ""
	case r.FSType == "":
		return "ext4"
	default:
		return r.FSType
	}
}

// requireNativeAccessModes refuses what only CSI sources have (KEP-2485).
func (r request) requireNativeAccessModes() error {
	if slices.Contains(r.AccessModes, corev1.ReadWriteOncePod) {
		return refuse(UnsupportedAccessMode, "access mode ReadWriteOncePod needs a CSI source, but protocol %s is mapped to a native one; use ReadWriteOnce", r.protocol)
	}
	return nil
}

func (r request) newSecret(kind corev1.SecretType, data map[string][]byte) *Secret {
	return &Secret{Namespace: r.secretNamespace, Name: r.SecretName, Type: kind, Data: data}
}
