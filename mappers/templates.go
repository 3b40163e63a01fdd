package mappers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// checkMapping rejects mappings with mistakes. A policy never contains any, since it
// makes the same checks.
func (r request) checkMapping() error {
	if reflect.ValueOf(r.mapping).IsZero() {
		return nil
	}
	for _, finding := range r.mapping.Check(r.protocol, mapping.Context{Protocols: r.protocols}) {
		if !finding.Warning {
			return refuse(InvalidMapping, "mapping.%s: %s", strings.Join(append([]string{r.protocol}, finding.Keys...), "."), finding.Message)
		}
	}
	return nil
}

// usesTemplates reports whether the operator's mapping sets the fields of the source. The
// fields for ceph-csi are built in.
func (r request) usesTemplates() bool {
	switch r.mapping.As {
	case mapping.FlexVolume:
		return true
	case mapping.CSI:
		return !r.protocols[r.protocol].CephCSI || r.mapping.VolumeHandle != ""
	default:
		return false
	}
}

// mappingHint ends refusals that mapping to another driver would fix.
func (r request) mappingHint() string {
	return fmt.Sprintf("map %s to a CSI or FlexVolume driver that can (mapping.%s of the backend)", r.protocol, r.protocol)
}

// mapByTemplates fills in the fields that the operator has written.
func (r request) mapByTemplates(read func(request) (facts, *Refusal, error)) (Result, error) {
	values, err := r.newValues(read)
	if err != nil {
		return Result{}, err
	}
	if r.mapping.As == mapping.FlexVolume {
		return r.flexVolume(values)
	}
	return r.csiVolume(values)
}

func (r request) csiVolume(values templateValues) (Result, error) {
	handle := r.mapping.VolumeHandle
	handle = cmp.Or(handle, "{{ .volume.id }}")
	source := &corev1.CSIPersistentVolumeSource{
		Driver:                     r.mapping.Driver,
		FSType:                     r.filesystem(),
		ReadOnly:                   r.readOnly,
		NodeStageSecretRef:         r.mapping.NodeStageSecretRef.DeepCopy(),
		NodePublishSecretRef:       r.mapping.NodePublishSecretRef.DeepCopy(),
		NodeExpandSecretRef:        r.mapping.NodeExpandSecretRef.DeepCopy(),
		ControllerPublishSecretRef: r.mapping.ControllerPublishSecretRef.DeepCopy(),
		ControllerExpandSecretRef:  r.mapping.ControllerExpandSecretRef.DeepCopy(),
	}
	var err error
	if source.VolumeHandle, err = values.fill("volumeHandle", handle, template.Use{Identity: true}); err != nil {
		return Result{}, err
	}
	if source.VolumeAttributes, err = values.fillAll("attributes", r.mapping.Attributes); err != nil {
		return Result{}, err
	}
	secret, err := r.templateSecret(values, corev1.SecretTypeOpaque)
	if err != nil {
		return Result{}, err
	}
	if secret != nil {
		references := r.mapping.Secret.References
		if len(references) == 0 {
			references = []string{"nodeStageSecretRef"}
		}
		for _, reference := range references {
			*secretSlot(source, reference) = secret.reference()
		}
	}
	return Result{Source: corev1.PersistentVolumeSource{CSI: source}, Secret: secret}, nil
}

// secretSlot returns the field of a CSI source for one of
// mapping.SecretReferenceKeys.
func secretSlot(source *corev1.CSIPersistentVolumeSource, name string) **corev1.SecretReference {
	switch name {
	case "nodeStageSecretRef":
		return &source.NodeStageSecretRef
	case "nodePublishSecretRef":
		return &source.NodePublishSecretRef
	case "nodeExpandSecretRef":
		return &source.NodeExpandSecretRef
	case "controllerPublishSecretRef":
		return &source.ControllerPublishSecretRef
	default:
		return &source.ControllerExpandSecretRef
	}
}

func (r request) flexVolume(values templateValues) (Result, error) {
	if err := r.requireNativeAccessModes(); err != nil {
		return Result{}, err
	}
	switch {
	case r.Block:
		return Result{}, refuse(InvalidMapping, "mapping.%s.as is \"flexVolume\", and FlexVolume drivers cannot give a pod a raw block device; use volumeMode Filesystem, or map %s to a CSI driver", r.protocol, r.protocol)
	case len(r.MountOptions) > 0:
		// kubelet would refuse to mount it (checkMountOptionSupport in
		// pkg/volume/util/operationexecutor).
		return Result{}, refuse(InvalidMapping, "the StorageClass has mountOptions, which kubelet does not support for FlexVolumes; remove them from the StorageClass, or map %s to a CSI driver", r.protocol)
	}
	source := &corev1.FlexPersistentVolumeSource{
		Driver:    r.mapping.Driver,
		FSType:    r.filesystem(),
		ReadOnly:  r.readOnly,
		SecretRef: r.mapping.SecretRef.DeepCopy(),
	}
	var err error
	if source.Options, err = values.fillAll("options", r.mapping.Options); err != nil {
		return Result{}, err
	}
	secret, err := r.templateSecret(values, corev1.SecretType(r.mapping.Driver))
	if err != nil {
		return Result{}, err
	}
	if secret != nil {
		source.SecretRef = secret.reference()
	}
	return Result{Source: corev1.PersistentVolumeSource{FlexVolume: source}, Secret: secret}, nil
}

// templateSecret builds the Secret of a mapping, or none if it would be empty.
func (r request) templateSecret(values templateValues, kind corev1.SecretType) (*Secret, error) {
	wanted := r.mapping.Secret
	if wanted == nil {
		return nil, nil
	}
	if wanted.Type != "" {
		kind = corev1.SecretType(wanted.Type)
	}
	data := map[string][]byte{}
	for _, key := range slices.Sorted(maps.Keys(wanted.Data)) {
		text, err := values.fill("secret.data."+key, wanted.Data[key], template.Use{Secret: true})
		if err != nil {
			return nil, err
		}
		if text != "" {
			data[key] = []byte(text)
		}
	}
	if len(data) == 0 {
		return nil, nil
	}
	return r.newSecret(kind, data), nil
}

// templateValues are the values that templates of one request may use.
type templateValues struct {
	connection Connection
	protocol   string
	use        template.Use
	tree       map[string]any
	// noFacts explains why the protocol's facts are unknown; nil if they are known.
	noFacts *Refusal
	// missing explains single facts that are missing.
	missing map[string]string
}

// newValues gathers the values. A connection whose facts contradict each other is refused
// even if no template uses them.
func (r request) newValues(read func(request) (facts, *Refusal, error)) (templateValues, error) {
	values := templateValues{connection: r.Connection, protocol: r.protocol, use: r.protocols.Use(r.protocol), missing: r.missing, tree: map[string]any{
		"connection": r.Connection.data,
		"volume": map[string]any{
			"id": known(r.Volume.ID), "name": known(r.Volume.Name), "type": known(r.Volume.Type), "zone": known(r.Volume.Zone),
			"size": json.Number(strconv.FormatInt(r.Volume.SizeGiB, 10)),
		},
		"claim":     map[string]any{"namespace": known(r.Claim.Namespace), "name": known(r.Claim.Name), "uid": known(r.Claim.UID)},
		"pv":        map[string]any{"name": r.PVName},
		"connector": map[string]any{"host": known(r.Connector.Host), "initiator": known(r.Connector.Initiator), "nqn": known(r.Connector.NQN)},
		"tenant":    known(r.Tenant),
		"fsType":    known(r.filesystem()),
		"readOnly":  r.readOnly,
	}}
	if read == nil {
		return values, nil
	}
	own, missing, err := read(r)
	if err != nil {
		return values, err
	}
	values.noFacts = missing
	if missing == nil {
		values.tree[r.protocol] = map[string]any(own)
	}
	return values, nil
}

// known returns a text, or nil if it is empty.
func known(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// fill fills in one template of the mapping.
func (v templateValues) fill(field, text string, where template.Use) (string, error) {
	use := v.use
	use.Secret, use.Identity, use.Device = where.Secret, where.Identity, where.Device
	parsed, err := template.Parse(text, use)
	if err != nil {
		return "", refuse(InvalidMapping, "mapping.%s.%s: %v; correct the backend's mapping", v.protocol, field, err)
	}
	if v.noFacts != nil && parsed.Names(v.protocol) {
		return "", v.noFacts
	}
	result, err := parsed.Execute(v.tree)
	var missing *template.MissingError
	if errors.As(err, &missing) {
		if fact, ok := strings.CutPrefix(missing.Name, v.protocol+"."); ok && v.missing[fact] != "" {
			return "", refuse(InvalidMapping, "mapping.%s.%s: %s is missing: %s", v.protocol, field, missing.Name, v.missing[fact])
		}
	}
	switch {
	case errors.Is(err, template.ErrControlCharacter):
		return "", refuse(InvalidConnection, "mapping.%s.%s: %v, which no driver expects; check the cinder-volume log to see why the driver sends it", v.protocol, field, err)
	case err != nil:
		return "", refuse(InvalidMapping, "mapping.%s.%s: %v; compare the backend's mapping with what its driver sends", v.protocol, field, err)
	case !use.Secret && v.connection.showsCredential(result):
		// A driver may repeat a password in a field with a harmless name.
		return "", refuse(InvalidMapping, "mapping.%s.%s would show a credential of the connection, which belongs under secret.data; correct the backend's mapping", v.protocol, field)
	}
	return result, nil
}

// fillAll fills in a map of templates. It omits entries with an empty result, so a
// default of "" makes an entry optional.
func (v templateValues) fillAll(field string, templates map[string]string) (map[string]string, error) {
	var filled map[string]string
	for _, key := range slices.Sorted(maps.Keys(templates)) {
		text, err := v.fill(field+"."+key, templates[key], template.Use{})
		if err != nil {
			return nil, err
		}
		if text == "" {
			continue
		}
		if filled == nil {
			filled = map[string]string{}
		}
		filled[key] = text
	}
	return filled, nil
}

// minShownLength is the minimum length of a credential that counts as shown when it is
// only part of a text. Shorter ones occur in numbers and names by chance.
const minShownLength = 8

func (c Connection) showsCredential(text string) bool {
	return slices.ContainsFunc(c.credentials, func(credential string) bool {
		return text == credential && len(credential) >= minCredentialLength || len(credential) >= minShownLength && strings.Contains(text, credential)
	})
}

// discardingFilesystems take the mount option "discard".
var discardingFilesystems = []string{"ext4", "xfs", "btrfs"}

// mountOptions returns the mount options that both the connection and the mapping
// request.
func (r request) mountOptions() ([]string, []string, error) {
	if !r.mapping.Discard || r.Block || r.readOnly {
		return nil, nil, nil
	}
	reclaims, err := r.Connection.flag("discard", false)
	if err != nil || !reclaims {
		return nil, nil, err
	}
	if filesystem := r.filesystem(); !slices.Contains(discardingFilesystems, filesystem) {
		return nil, []string{fmt.Sprintf("mapping.%s.discard has no effect on the filesystem %s, which has no such mount option", r.protocol, filesystem)}, nil
	}
	return []string{"discard"}, nil, nil
}
