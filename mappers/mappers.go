// Package mappers turns Cinder's description of a connected volume into what a kubelet
// needs to mount it: a PersistentVolumeSource and, if the target requires credentials,
// the Secret that the source refers to.
//
// The package is pure: it does no I/O and uses neither clock nor random numbers, so the
// same Request always gives the same Result. It returns a *Refusal rather than guess.
//
// README.md explains how to add a protocol.
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

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
)

// Options are the settings that all mappings of a process share.
type Options struct {
	// SecretNamespace is the namespace in which the provisioner keeps its volumes'
	// Secrets. It is required: references without a namespace would be resolved in the
	// pod's namespace, which tenants can read.
	SecretNamespace string
	// Protocols are the protocols to map, such as those of BuiltIn. They are
	// required.
	Protocols Protocols
}

// Registry maps connections by their protocol. It is immutable and safe for
// concurrent use.
type Registry struct {
	secretNamespace string
	protocols       Protocols
	described       mapping.Protocols
}

// New returns a Registry of protocols.
func New(options Options) (*Registry, error) {
	if options.SecretNamespace == "" {
		return nil, errors.New("mappers: Options.SecretNamespace is empty, expected the provisioner's own namespace")
	}
	if len(options.Protocols) == 0 {
		return nil, errors.New("mappers: Options.Protocols is empty, expected those of BuiltIn")
	}
	return &Registry{
		secretNamespace: options.SecretNamespace,
		protocols:       options.Protocols,
		described:       options.Protocols.Describe(),
	}, nil
}

// Protocols lists the known values of driver_volume_type, sorted.
func (r *Registry) Protocols() []string {
	return slices.Sorted(maps.Keys(r.protocols))
}

// Describe describes the protocols for the policy, the metrics and the commands.
func (r *Registry) Describe() mapping.Protocols { return r.described }

// Request is one volume to map.
type Request struct {
	// Connection is Cinder's answer.
	Connection Connection
	// PVName is the PersistentVolume's name. It is required: Kubernetes limits its length
	// together with the iSCSI portal.
	PVName string
	// SecretName is the name of the volume's own Secret, if it needs one.
	SecretName string
	// Backend is the backend's name in the policy. It is part of the names of Secrets
	// that its volumes share. Without it, every volume has its own.
	Backend string
	// AccessModes are the claim's, which the PersistentVolume will have, too.
	// ReadOnlyMany alone makes the source read-only.
	AccessModes []corev1.PersistentVolumeAccessMode
	// MountOptions are the StorageClass's, which the PersistentVolume will have, too.
	MountOptions []string
	// FSType is the filesystem that the node creates on an empty volume. Empty means
	// ext4. It is ignored if Block is set.
	FSType string
	// Block is set for a claim of volumeMode Block.
	Block bool
	// SourceGiB is the size of the volume or snapshot from which the content was copied; 0
	// for an empty volume.
	SourceGiB int64
	// Encrypted is the volume's own "encrypted" attribute at Cinder; older drivers omit
	// it from the connection.
	Encrypted bool
	// MultiAttach is the volume's own "multiattach" attribute at Cinder, from the volume
	// type: several hosts may write to it at once.
	MultiAttach bool
	// Connector is the connector to which Cinder exported the volume.
	Connector Connector
	// Mappings are the operator's settings for the backend, by protocol in
	// lower case (the policy's backends[].mapping).
	Mappings map[string]mapping.Mapping

	// Volume, Claim and Tenant are for the templates of mappings.
	Volume Volume
	Claim  Claim
	Tenant string
}

// Connector describes the nodes to Cinder. Arrays mask volumes by it, so all nodes must
// present themselves identically. An empty field is unknown.
type Connector struct {
	Host string
	// Initiator is the iSCSI name under which nodes must log in.
	Initiator string
	// WWPNs are the Fibre Channel port names of all nodes, in 16 lower-case
	// hexadecimal digits.
	WWPNs []string
	// NQN is the NVMe-oF host name.
	NQN string
}

// Volume is the volume as Cinder knows it.
type Volume struct {
	ID, Name, Type, Zone string
	SizeGiB              int64
}

// Claim is the claim of the volume.
type Claim struct {
	Namespace, Name, UID string
}

// Secret is a Secret that the provisioner must keep for a volume. Printing it shows only
// its name and keys.
type Secret struct {
	Namespace, Name string
	Type            corev1.SecretType
	Data            map[string][]byte
	// Shared means that other volumes of the backend use the same Secret. It must stay
	// until none of them needs it.
	Shared bool
}

// String describes the Secret without its values.
func (s Secret) String() string {
	if len(s.Data) == 0 {
		return fmt.Sprintf("secret %s/%s", s.Namespace, s.Name)
	}
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
	// Secret must exist before the PersistentVolume does; nil if the provisioner need not
	// keep one.
	Secret *Secret
	// MountOptions go into the PersistentVolume's spec, in addition to those of
	// the StorageClass.
	MountOptions []string
	// ReadOnly reports whether the source forces read-only mounts.
	ReadOnly bool
	// Warnings describe, in sentences, what Cinder offered and the source cannot express.
	// The volume works without it.
	Warnings []string
}

// Map maps a connection. The error is a *Refusal when the connection, the claim or the
// operator's mapping is the cause; neither it nor a warning ever contains a password or
// key of the connection.
func (r *Registry) Map(in Request) (Result, error) {
	if in.PVName == "" || in.SecretName == "" {
		return Result{}, errors.New("mappers: Request.PVName and Request.SecretName must be set")
	}
	settled, err := r.settle(in)
	if err != nil {
		return Result{}, err
	}
	entry, known := r.protocols[settled.protocol]
	settled.missing = entry.missing
	var result Result
	switch {
	case settled.usesTemplates():
		result, err = settled.mapByTemplates(entry.facts)
	case !known:
		err = r.unknownProtocol(settled.protocol)
	default:
		result, err = entry.builtIn(settled)
	}
	if err != nil {
		return Result{}, err
	}
	if err := checkSource(result.Source); err != nil {
		return Result{}, err
	}
	result.ReadOnly = settled.readOnly
	if settled.readOnly && !settled.mapping.ReadOnly && !onlyReading(in.AccessModes) {
		result.Warnings = append(result.Warnings, "Cinder grants the volume read-only, so it is mounted read-only regardless of the claim's access modes")
	}
	warnings, err := in.Connection.qosWarnings()
	if err != nil {
		return Result{}, err
	}
	result.Warnings = append(result.Warnings, warnings...)
	if result.MountOptions, warnings, err = settled.mountOptions(); err != nil {
		return Result{}, err
	}
	result.Warnings = append(result.Warnings, warnings...)
	if filesystem := mountedByKubelet(result.Source); in.SourceGiB > 0 && filesystem != "" {
		if filesystem == "xfs" {
			// A node mounts no second xfs filesystem with the same UUID without it. The option
			// is not for every volume: it also lets a stale device of the volume be mounted
			// beside the present one.
			result.MountOptions = append(result.MountOptions, "nouuid")
		}
		if in.Volume.SizeGiB > in.SourceGiB {
			result.Warnings = append(result.Warnings, fmt.Sprintf("the filesystem has the %d GiB of the source, because the kubelet does not grow that of a native volume; on the node that mounts it, run resize2fs DEVICE or xfs_growfs MOUNTPOINT", in.SourceGiB))
		}
	}
	return result, nil
}

// mountedByKubelet returns the filesystem that the kubelet itself mounts from a device; empty
// if there is none.
func mountedByKubelet(source corev1.PersistentVolumeSource) string {
	switch {
	case source.ISCSI != nil:
		return source.ISCSI.FSType
	case source.FC != nil:
		return source.FC.FSType
	case source.RBD != nil:
		return source.RBD.FSType
	}
	return ""
}

// settle resolves what does not depend on the protocol.
func (r *Registry) settle(in Request) (request, error) {
	connection := in.Connection
	settled := request{Request: in, protocol: connection.protocol, secretNamespace: r.secretNamespace, protocols: r.described}
	settled.mapping = in.Mappings[connection.protocol]
	if connection.protocol == "" {
		return settled, refuse(InvalidConnection, "there is no connection; connect the volume before it is mapped")
	}
	// os-brick would open the LUKS layer; a kubelet would see noise, mistake it for an
	// empty disk and format it.
	encrypted, err := connection.flag("encrypted", false)
	if err != nil {
		return settled, err
	}
	if err := CheckVolume(encrypted || in.Encrypted, in.MultiAttach, in.AccessModes, in.Block); err != nil {
		return settled, err
	}
	if err := settled.checkMapping(); err != nil {
		return settled, err
	}
	access, err := connection.text("access_mode")
	if err != nil {
		return settled, err
	}
	if access != "" && access != "rw" && access != "ro" {
		return settled, refuse(InvalidConnection, "access_mode is %s, expected \"rw\" or \"ro\"; check the cinder-volume log", connection.quote(access))
	}
	settled.readOnly = access == "ro" || connection.readOnly || settled.mapping.ReadOnly || onlyReading(in.AccessModes)
	return settled, nil
}

// unknownProtocol rejects a protocol without a mapper and names the remedies: a mapping,
// or another volume type.
func (r *Registry) unknownProtocol(protocol string) *Refusal {
	if kind, _, _ := strings.Cut(protocol, "-"); r.described[kind].OneHost {
		return refuse(UnsupportedProtocol, "%s", mapping.OneHostReason(protocol))
	}
	return refuse(UnsupportedProtocol, "protocol %s is unknown (known: %s); use a volume type whose backend speaks one of these, or write mapping.%s for the backend in the policy, with the CSI or FlexVolume driver that attaches such volumes",
		protocol, strings.Join(r.Protocols(), ", "), protocol)
}

// CheckVolume rejects a volume, as Cinder describes it, that no source can serve. The
// error is a *Refusal.
func CheckVolume(encrypted, multiAttach bool, modes []corev1.PersistentVolumeAccessMode, block bool) error {
	if encrypted {
		return refuse(EncryptedVolume, "encrypted is true, but a kubelet cannot open the volume's LUKS layer and would format it; use mode csi, whose nodes open it, or a volume type without encryption")
	}
	if err := CheckAccessModes(modes, block); err != nil {
		return err
	}
	if slices.Contains(modes, corev1.ReadWriteMany) && !multiAttach {
		return NeedsMultiAttach(corev1.ReadWriteMany)
	}
	return nil
}

// NeedsMultiAttach refuses an access mode for a volume that only one host may use.
func NeedsMultiAttach(mode corev1.PersistentVolumeAccessMode) error {
	return refuse(UnsupportedAccessMode, "access mode %s needs a volume that several hosts may use at once, and Cinder says multiattach is false; use a volume type with the extra spec multiattach=\"<is> True\", or use ReadWriteOnce", mode)
}

// CheckAccessModesForCSI rejects combinations of access modes that no CSI volume can
// have: it is attached either for reading by many or for writing by one, and csi-attacher
// attaches no volume that requests both. ReadWriteMany includes both.
func CheckAccessModesForCSI(modes []corev1.PersistentVolumeAccessMode) error {
	if !slices.Contains(modes, corev1.ReadOnlyMany) || !slices.Contains(modes, corev1.ReadWriteOnce) || slices.Contains(modes, corev1.ReadWriteMany) {
		return nil
	}
	return refuse(UnsupportedAccessMode, "access modes ReadOnlyMany and ReadWriteOnce cannot be combined in mode csi; replace the claim with one that names one of them, or use a rule with mode: native")
}

// CheckNativeAccessModes rejects ReadWriteOncePod, which only CSI sources support
// (KEP-2485), if no protocol is mapped to one.
func CheckNativeAccessModes(modes []corev1.PersistentVolumeAccessMode, mappings map[string]mapping.Mapping) error {
	if !slices.Contains(modes, corev1.ReadWriteOncePod) {
		return nil
	}
	for _, m := range mappings {
		if m.As == mapping.CSI {
			return nil
		}
	}
	return refuse(UnsupportedAccessMode, "access mode ReadWriteOncePod needs a CSI source, and its mapping has none (as: csi); use ReadWriteOnce, or a rule with mode: csi")
}

// CheckAccessModes rejects the access modes that no source of any protocol can honor, so
// that a claim fails before a volume is created for it. Map may still reject other modes
// for a particular protocol or volume. The error is a *Refusal of reason
// UnsupportedAccessMode.
func CheckAccessModes(modes []corev1.PersistentVolumeAccessMode, block bool) error {
	if mistake := mapping.AccessModeMistake(modes, block); mistake != "" {
		return refuse(UnsupportedAccessMode, "%s", mistake)
	}
	return nil
}

// onlyReading reports whether a claim requests ReadOnlyMany and nothing else.
func onlyReading(modes []corev1.PersistentVolumeAccessMode) bool {
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(mode corev1.PersistentVolumeAccessMode) bool {
		return mode != corev1.ReadOnlyMany
	})
}

// request is a Request with the results of Registry.settle.
type request struct {
	Request
	protocol string
	// mapping is the operator's mapping of the protocol, or zero.
	mapping         mapping.Mapping
	readOnly        bool
	secretNamespace string
	protocols       mapping.Protocols
	// missing explains facts that a connection lacks.
	missing map[string]string
}

// filesystem returns the source's fsType. It is never empty for a filesystem:
// kubelet would still use ext4 for a native source, but it would skip fsGroup for
// a CSI source (pkg/volume/csi, supportsFSGroup).
func (r request) filesystem() string {
	switch {
	case r.Block:
		return ""
	case r.mapping.FSType != "":
		return r.mapping.FSType
	case r.FSType == "":
		return "ext4"
	default:
		return r.FSType
	}
}

// requireNativeAccessModes rejects ReadWriteOncePod for one protocol.
func (r request) requireNativeAccessModes() error {
	if slices.Contains(r.AccessModes, corev1.ReadWriteOncePod) {
		return refuse(UnsupportedAccessMode, "access mode ReadWriteOncePod needs a CSI source, but protocol %s is mapped to another; use ReadWriteOnce", r.protocol)
	}
	return nil
}

func (r request) newSecret(kind corev1.SecretType, data map[string][]byte) *Secret {
	return &Secret{Namespace: r.secretNamespace, Name: r.SecretName, Type: kind, Data: data}
}
