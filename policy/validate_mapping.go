package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/mappers/template"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

var (
	protocolPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`)
	// A FlexVolume driver is a directory vendor~driver on the nodes.
	flexDriverPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`)
	// An open-iscsi interface is a file of that name.
	iscsiInterfacePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$`)
	secretTypePattern     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?$`)
)

// knownProtocols are the values of driver_volume_type that Cinder's drivers
// return. Others are accepted: this list only serves to notice slips.
var knownProtocols = []string{
	"iscsi", "iser", "fibre_channel", "fibre_channel_eckd", "rbd", "nvmeof", "nfs",
	"storpool", "quobyte", "gpfs", "vmdk", "vstorageobject", "scaleio", "lightos", "local",
}

// secretReferenceKeys are the Secrets of a CSI source.
var secretReferenceKeys = []string{
	"nodeStageSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef", "controllerPublishSecretRef", "controllerExpandSecretRef",
}

// secretReferences are the Secrets of a CSI source by their keys.
func (m Mapping) secretReferences() map[string]*SecretReference {
	return map[string]*SecretReference{
		"nodeStageSecretRef": m.NodeStageSecretRef, "nodePublishSecretRef": m.NodePublishSecretRef, "nodeExpandSecretRef": m.NodeExpandSecretRef,
		"controllerPublishSecretRef": m.ControllerPublishSecretRef, "controllerExpandSecretRef": m.ControllerExpandSecretRef,
	}
}

// usesCephCSI says that the fields of the source are known.
func (m Mapping) usesCephCSI(protocol string) bool {
	return protocol == "rbd" && m.As == MappingCSI && m.VolumeHandle == ""
}

func validateMapping(d *document.Document, path, protocol string, m Mapping) {
	switch {
	case !protocolPattern.MatchString(protocol):
		d.Errorf(path, "%q cannot be a protocol; write Cinder's driver_volume_type in lower case, such as iscsi", protocol)
	case !slices.Contains(knownProtocols, protocol):
		if meant, ok := document.Suggest(protocol, knownProtocols); ok {
			d.Warnf(path, "no Cinder driver is known to return the protocol %q; did you mean %q?", protocol, meant)
		}
	}
	if !validateMappingKind(d, path, protocol, m) {
		return
	}
	validateMappingKeys(d, path, protocol, m)
	validateMappingNames(d, path, protocol, m)
	validateMappingSecret(d, path, protocol, m)
	validateMappingTemplates(d, path, protocol, m)
}

// validateMappingKind says whether there is a kind, which decides what else
// can be said.
func validateMappingKind(d *document.Document, path, protocol string, m Mapping) bool {
	kinds := []string{string(MappingCSI), string(MappingNative), string(MappingFlexVolume)}
	switch m.As {
	case MappingCSI:
		if m.Driver == "" {
			d.Errorf(document.Child(path, "driver"), "is missing; name the CSI driver that mounts the volume")
		}
		if m.usesCephCSI(protocol) && m.ClusterID == "" && !d.Has(document.Child(path, "volumeHandle")) {
			d.Errorf(document.Child(path, "clusterID"), "is missing; name the Ceph cluster as ceph-csi's configuration does, or write a volumeHandle for a driver of your own")
		}
	case MappingFlexVolume:
		if m.Driver == "" {
			d.Errorf(document.Child(path, "driver"), "is missing; name the FlexVolume driver as vendor/driver")
		}
	case MappingNative:
		if !mapping.HasNativeSource(protocol) {
			d.Errorf(document.Child(path, "as"), "Kubernetes has no native volume source for %q; use csi or flexVolume with a driver", protocol)
		}
	case "":
		d.Errorf(document.Child(path, "as"), "is missing; choose one of %s", strings.Join(kinds, ", "))
		return false
	default:
		d.Errorf(document.Child(path, "as"), "unknown kind of volume source %q%s", m.As, document.DidYouMean(string(m.As), kinds, "the kinds are"))
		return false
	}
	return true
}

// mappingKey is a key that not every mapping may have.
type mappingKey struct {
	name string
	fits bool
	only string
}

// mappingKeys says which keys go with a kind and protocol; mappingRules in
// schema.go says the same.
func mappingKeys(protocol string, as MappingKind) []mappingKey {
	csi, flex, native := as == MappingCSI, as == MappingFlexVolume, as == MappingNative
	keys := []mappingKey{
		{"driver", !native, "csi or flexVolume"},
		{"volumeHandle", csi, "csi"},
		{"attributes", csi, "csi"},
		{"options", flex, "flexVolume"},
		{"secret", !native, "csi or flexVolume"},
		{"secretRef", flex || native && protocol == "rbd", "flexVolume, or native and the protocol rbd"},
		{"discard", !flex, "csi or native"},
		{"clusterID", csi && protocol == "rbd", "csi and the protocol rbd"},
		{"imageFeatures", csi && protocol == "rbd", "csi and the protocol rbd"},
		{"interface", native && (protocol == "iscsi" || protocol == "iser"), "native and the protocols iscsi and iser"},
		{"wwid", native && protocol == "fibre_channel", "native and the protocol fibre_channel"},
	}
	for _, key := range secretReferenceKeys {
		keys = append(keys, mappingKey{key, csi, "csi"})
	}
	return keys
}

func validateMappingKeys(d *document.Document, path, protocol string, m Mapping) {
	for _, key := range mappingKeys(protocol, m.As) {
		if at := document.Child(path, key.name); d.Has(at) && !key.fits {
			d.Errorf(at, "%s goes only with as: %s; remove it%s", key.name, key.only, insteadOf(key.name, m.As))
		}
	}
	if protocol == "rbd" && m.As == MappingCSI && m.VolumeHandle != "" {
		for _, key := range []string{"clusterID", "imageFeatures"} {
			if at := document.Child(path, key); d.Has(at) {
				d.Errorf(at, "%s is for the built-in mapping to ceph-csi, which makes the volumeHandle itself; remove %s or volumeHandle", key, key)
			}
		}
	}
	if m.usesCephCSI(protocol) {
		if at := document.Child(path, "secret"); d.Has(at) {
			d.Errorf(at, "the built-in mapping to ceph-csi makes the Secret itself; remove secret, or write a volumeHandle for a driver of your own")
		}
		for _, key := range secretReferenceKeys[1:] {
			if at := document.Child(path, key); d.Has(at) {
				d.Errorf(at, "the built-in mapping to ceph-csi has nodeStageSecretRef only; remove %s, or write a volumeHandle for a driver of your own", key)
			}
		}
	}
}

// insteadOf names the key that does the same for another kind of source.
func insteadOf(key string, as MappingKind) string {
	switch {
	case key == "attributes" && as == MappingFlexVolume:
		return ", or use options"
	case key == "options" && as == MappingCSI:
		return ", or use attributes"
	case key == "secretRef" && as == MappingCSI:
		return ", or use nodeStageSecretRef"
	case strings.HasSuffix(key, "SecretRef") && as == MappingFlexVolume:
		return ", or use secretRef"
	}
	return ""
}

// validateMappingNames checks what the API server would refuse.
func validateMappingNames(d *document.Document, path, protocol string, m Mapping) {
	switch at := document.Child(path, "driver"); {
	case m.Driver == "":
	case m.As == MappingCSI && (len(m.Driver) > validation.DNS1123LabelMaxLength || len(validation.IsDNS1123Subdomain(strings.ToLower(m.Driver))) > 0):
		d.Errorf(at, "%q cannot be the name of a CSI driver; use at most 63 letters, digits, '.' and '-', as in nvmf.csi.example.com", m.Driver)
	case m.As == MappingFlexVolume && !flexDriverPattern.MatchString(m.Driver):
		d.Errorf(at, "%q cannot be the name of a FlexVolume driver; write vendor/driver, after its directory vendor~driver on the nodes", m.Driver)
	}
	if at := document.Child(path, "interface"); d.Has(at) && !iscsiInterfacePattern.MatchString(m.Interface) {
		d.Errorf(at, "%q cannot be the name of an open-iscsi interface; it is the name of a file below /etc/iscsi/ifaces or /var/lib/iscsi/ifaces, such as default, iser or one made with iscsiadm", m.Interface)
	}
	for _, key := range sortedKeys(m.Options) {
		namespace, _, _ := strings.Cut(key, "/")
		if namespace = "." + strings.ToLower(namespace); strings.HasSuffix(namespace, ".kubernetes.io") || strings.HasSuffix(namespace, ".k8s.io") {
			d.Errorf(document.Child(document.Child(path, "options"), key), "names under kubernetes.io and k8s.io are reserved for Kubernetes; choose another")
		}
	}
	references := m.secretReferences()
	for _, key := range secretReferenceKeys {
		validateSecretReference(d, document.Child(path, key), references[key])
	}
	validateSecretReference(d, document.Child(path, "secretRef"), m.SecretRef)
}

func validateSecretReference(d *document.Document, path string, ref *SecretReference) {
	if ref == nil {
		return
	}
	for _, part := range []struct{ key, value string }{{"name", ref.Name}, {"namespace", ref.Namespace}} {
		kind := className
		if part.key == "namespace" {
			kind = namespaceName
		}
		switch {
		case part.value == "":
			d.Errorf(document.Child(path, part.key), "is missing; give the name and the namespace of the Secret")
		case !kind.valid(part.value):
			d.Errorf(document.Child(path, part.key), "%q cannot be the %s of a Secret", part.value, part.key)
		}
	}
}

// volumeSecretTypes are the types of Kubernetes' own that volumes use; it acts
// on others, or demands certain keys.
var volumeSecretTypes = []string{"kubernetes.io/iscsi-chap", "kubernetes.io/rbd"}

func validateMappingSecret(d *document.Document, path, protocol string, m Mapping) {
	secret := m.Secret
	if secret == nil || m.As == MappingNative || m.usesCephCSI(protocol) {
		return
	}
	at := document.Child(path, "secret")
	if len(secret.Data) == 0 {
		d.Errorf(document.Child(at, "data"), "is missing or empty; give the keys of the Secret, each with a template")
	}
	for _, key := range sortedKeys(secret.Data) {
		if len(validation.IsConfigMapKey(key)) > 0 {
			d.Errorf(document.Child(document.Child(at, "data"), key), "%q cannot be a key of a Secret; use letters, digits, '.', '_' and '-'", key)
		}
	}
	switch kind := document.Child(at, "type"); {
	case secret.Type == "":
	case m.As == MappingFlexVolume && secret.Type != m.Driver:
		d.Errorf(kind, "kubelet hands a FlexVolume driver only Secrets whose type is the driver's name; remove type, or write %s", m.Driver)
	case !secretTypePattern.MatchString(secret.Type) || len(secret.Type) > validation.DNS1123SubdomainMaxLength:
		d.Errorf(kind, "%q cannot be the type of a Secret; use letters, digits, '.', '_', '-' and '/'", secret.Type)
	case strings.Contains(secret.Type, "kubernetes.io/") && !slices.Contains(volumeSecretTypes, secret.Type):
		d.Errorf(kind, "the type %q is reserved for Kubernetes; use %s, a type of the driver's, or none", secret.Type, strings.Join(volumeSecretTypes, ", "))
	}
	references := m.secretReferences()
	for i, reference := range secret.References {
		at := document.Element(document.Child(at, "references"), i)
		switch {
		case m.As == MappingFlexVolume:
			d.Errorf(document.Child(document.Child(path, "secret"), "references"), "a FlexVolume has one Secret, and refers to it by itself; remove references")
			return
		case !slices.Contains(secretReferenceKeys, reference):
			d.Errorf(at, "unknown reference %q%s", reference, document.DidYouMean(reference, secretReferenceKeys, "the references of a CSI source are"))
		case references[reference] != nil:
			d.Errorf(at, "%s is set beside the Secret already; remove one of them", reference)
		case slices.Contains(secret.References[:i], reference):
			d.Errorf(at, "%s is listed twice; remove one", reference)
		}
	}
	switch {
	case m.As == MappingCSI && len(secret.References) == 0 && m.NodeStageSecretRef != nil:
		d.Errorf(document.Child(path, "nodeStageSecretRef"), "refers to a Secret of your own, and so would secret; remove one of them, or give secret.references")
	case m.As == MappingFlexVolume && m.SecretRef != nil:
		d.Errorf(document.Child(path, "secretRef"), "a FlexVolume has one Secret; remove secretRef or secret")
	}
}

// validateMappingTemplates checks all that can be known of templates without a
// connection.
func validateMappingTemplates(d *document.Document, path, protocol string, m Mapping) {
	check := func(path, text string, use template.Use) {
		use.Protocol = protocol
		parsed, err := template.Parse(text, use)
		if mistakes := (template.Mistakes)(nil); errors.As(err, &mistakes) {
			for _, mistake := range mistakes {
				d.Errorf(path, "%s", mistake)
			}
			return
		}
		warnConnectionFields(d, path, protocol, parsed.ConnectionFields())
	}
	if at := document.Child(path, "volumeHandle"); d.Has(at) && m.VolumeHandle != "" {
		check(at, m.VolumeHandle, template.Use{Identity: true})
	}
	if at := document.Child(path, "wwid"); d.Has(at) && m.WWID != "" {
		check(at, m.WWID, template.Use{Identity: true})
	}
	for _, fields := range []struct {
		key       string
		templates map[string]string
	}{{"attributes", m.Attributes}, {"options", m.Options}} {
		for _, name := range sortedKeys(fields.templates) {
			at := document.Child(document.Child(path, fields.key), name)
			if name == "" {
				d.Errorf(at, "the key is empty; give it a name")
			}
			check(at, fields.templates[name], template.Use{})
		}
	}
	if m.Secret != nil {
		for _, name := range sortedKeys(m.Secret.Data) {
			check(document.Child(document.Child(document.Child(path, "secret"), "data"), name), m.Secret.Data[name], template.Use{Secret: true})
		}
	}
	for _, key := range []string{"clusterID", "pool", "staticVolume", "imageFeatures"} {
		if at := document.Child(document.Child(path, "attributes"), key); m.usesCephCSI(protocol) && d.Has(at) {
			d.Errorf(at, "the built-in mapping to ceph-csi makes the attribute %s itself; remove it%s", key, attributeInstead(key))
		}
	}
}

func attributeInstead(key string) string {
	if key == "clusterID" || key == "imageFeatures" {
		return fmt.Sprintf(", or set %s beside attributes", key)
	}
	return ""
}

// warnConnectionFields notices slips in the names of fields.
func warnConnectionFields(d *document.Document, path, protocol string, fields []string) {
	known := template.KnownFields(protocol)
	for _, field := range fields {
		if slices.Contains(known, field) {
			continue
		}
		if meant, ok := document.Suggest(field, known); ok {
			d.Warnf(path, "no Cinder driver is known to send connection.%s with the protocol %s; did you mean connection.%s?", field, protocol, meant)
		}
	}
}
