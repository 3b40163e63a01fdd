package mapping

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// Patterns of the names in a mapping. The schema of policy files repeats them.
const (
	// ProtocolPattern matches Cinder's names of protocols, in lower case.
	ProtocolPattern = `^[a-z0-9][a-z0-9_.-]*$`
	// FlexDriverPattern matches FlexVolume drivers, each a directory
	// vendor~driver on the nodes.
	FlexDriverPattern = `^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$`
	// InterfacePattern matches open-iscsi interfaces, each a file of that name.
	InterfacePattern = `^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$`
	// SecretTypePattern matches types of Secrets.
	SecretTypePattern = `^[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?$`
)

var (
	protocolPattern   = regexp.MustCompile(ProtocolPattern)
	flexDriverPattern = regexp.MustCompile(FlexDriverPattern)
	interfacePattern  = regexp.MustCompile(InterfacePattern)
	secretTypePattern = regexp.MustCompile(SecretTypePattern)
)

// Context is what a check needs besides the mapping.
type Context struct {
	Protocols Protocols
	// Has reports whether the operator has written a key, even with its default value. By
	// default, a key counts as written if its value is not the zero value.
	Has func(keys ...string) bool
	// Suggest finds the known word that a misspelled one resembles. By default, nothing
	// is suggested and there are no warnings.
	Suggest func(word string, known []string) (string, bool)
}

// Finding is a mistake in a mapping, or a remark about it.
type Finding struct {
	// Keys are the path from the mapping to the value. Index is the position of the list
	// element that the finding is about, and -1 otherwise.
	Keys  []string
	Index int
	// Message is a sentence that ends with a remedy.
	Message string
	// Warning means that the mapping may still be used.
	Warning bool
}

// Check lists every mistake in a protocol's mapping that can be found without a
// connection.
func (m Mapping) Check(protocol string, in Context) []Finding {
	if in.Has == nil {
		in.Has = m.written()
	}
	if in.Suggest == nil {
		in.Suggest = func(string, []string) (string, bool) { return "", false }
	}
	c := &checker{Mapping: m, Context: in, protocol: protocol, about: in.Protocols[protocol], use: in.Protocols.Use(protocol)}
	c.protocolName()
	if c.form() {
		c.keys()
		c.names()
		c.secret()
		c.templates()
	}
	return c.findings
}

// written returns a function that reports whether a key, or a map entry, differs from the
// zero value.
func (m Mapping) written() func(keys ...string) bool {
	values := map[string]reflect.Value{}
	all := reflect.ValueOf(m)
	for i := range all.NumField() {
		if value := all.Field(i); !value.IsZero() {
			values[all.Type().Field(i).Tag.Get("json")] = value
		}
	}
	return func(keys ...string) bool {
		value, found := values[keys[0]]
		for _, key := range keys[1:] {
			if !found || value.Kind() != reflect.Map {
				return false
			}
			value = value.MapIndex(reflect.ValueOf(key))
			found = value.IsValid() && !value.IsZero()
		}
		return found
	}
}

type checker struct {
	Mapping
	Context
	protocol string
	about    Protocol
	use      template.Use
	findings []Finding
}

func (c *checker) errorf(keys []string, format string, arguments ...any) {
	c.findings = append(c.findings, Finding{Keys: keys, Index: -1, Message: fmt.Sprintf(format, arguments...)})
}

func (c *checker) warnf(keys []string, format string, arguments ...any) {
	c.findings = append(c.findings, Finding{Keys: keys, Index: -1, Message: fmt.Sprintf(format, arguments...), Warning: true})
}

func at(keys ...string) []string { return keys }

// unknown ends a sentence about an unknown word.
func (c *checker) unknown(word string, known []string, all string) string {
	if meant, ok := c.Suggest(word, known); ok {
		return fmt.Sprintf("; did you mean %q?", meant)
	}
	return fmt.Sprintf("; %s %s", all, strings.Join(slices.Sorted(slices.Values(known)), ", "))
}

func (c *checker) protocolName() {
	if !protocolPattern.MatchString(c.protocol) {
		c.errorf(nil, "%q cannot be a protocol; write Cinder's driver_volume_type in lower case, such as iscsi", c.protocol)
		return
	}
	if c.about.OneHost {
		c.warnf(nil, "%s", OneHostReason(c.protocol))
		return
	}
	// Undescribed protocols are accepted: the list only serves to catch misspellings.
	if _, known := c.Protocols[c.protocol]; known {
		return
	}
	if meant, ok := c.Suggest(c.protocol, slices.Sorted(maps.Keys(c.Protocols))); ok {
		c.warnf(nil, "no Cinder driver is known to return the protocol %q; did you mean %q?", c.protocol, meant)
	}
}

// OneHostReason explains why a cluster cannot use volumes of a protocol, and names the
// remedy.
func OneHostReason(protocol string) string {
	return fmt.Sprintf("volumes of protocol %s are devices of the host that cinder-volume runs on, and no other node can attach them with any driver; use a volume type whose backend exports its volumes", protocol)
}

// usesCephCSI reports whether the mapping is the built-in one to ceph-csi.
func (c *checker) usesCephCSI() bool {
	return c.about.CephCSI && c.As == CSI && c.VolumeHandle == ""
}

// form reports whether the form is known. All other checks depend on it.
func (c *checker) form() bool {
	var forms []string
	for _, form := range Forms() {
		forms = append(forms, string(form))
	}
	switch c.As {
	case CSI:
		if c.Driver == "" && !c.about.CephCSI {
			c.errorf(at("driver"), "is missing; name the CSI driver that mounts the volume")
		}
		if c.usesCephCSI() && c.ClusterID == "" && !c.Has("volumeHandle") {
			c.errorf(at("clusterID"), "is missing; name the Ceph cluster as ceph-csi's configuration does, or write a volumeHandle for a driver of your own")
		}
	case FlexVolume:
		if c.Driver == "" {
			c.errorf(at("driver"), "is missing; name the FlexVolume driver as vendor/driver")
		}
	case Native:
		if !c.about.Native {
			c.errorf(at("as"), "Kubernetes has no native volume source for %q; use csi or flexVolume with a driver", c.protocol)
		}
	case Default:
		c.errorf(at("as"), "is missing; choose one of %s", strings.Join(forms, ", "))
		return false
	default:
		c.errorf(at("as"), "unknown kind of volume source %q%s", c.As, c.unknown(string(c.As), forms, "the kinds are"))
		return false
	}
	return true
}

// keys finds keys that the form and protocol do not allow.
func (c *checker) keys() {
	for _, k := range keys() {
		if c.Has(k.name) && !k.fits(c.about, c.As) {
			c.errorf(at(k.name), "%s is allowed only with as: %s; remove it%s", k.name, c.Protocols.only(k), insteadOf(k.name, c.As))
		}
	}
	if c.about.CephCSI && c.As == CSI && c.VolumeHandle != "" {
		for _, name := range []string{"clusterID", "imageFeatures"} {
			if c.Has(name) {
				c.errorf(at(name), "%s is for the built-in mapping to ceph-csi, which sets the volumeHandle itself; remove %s or volumeHandle", name, name)
			}
		}
	}
	if !c.usesCephCSI() {
		return
	}
	if c.Has("secret") {
		c.errorf(at("secret"), "the built-in mapping to ceph-csi creates the Secret itself; remove secret, or write a volumeHandle for a driver of your own")
	}
	for _, name := range SecretReferenceKeys()[1:] {
		if c.Has(name) {
			c.errorf(at(name), "the built-in mapping to ceph-csi has nodeStageSecretRef only; remove %s, or write a volumeHandle for a driver of your own", name)
		}
	}
}

// insteadOf names the equivalent key of another form.
func insteadOf(name string, as Form) string {
	switch {
	case name == "attributes" && as == FlexVolume:
		return ", or use options"
	case name == "options" && as == CSI:
		return ", or use attributes"
	case name == "secretRef" && as == CSI:
		return ", or use nodeStageSecretRef"
	case strings.HasSuffix(name, "SecretRef") && as == FlexVolume:
		return ", or use secretRef"
	}
	return ""
}

// names finds what the API server would reject.
func (c *checker) names() {
	switch {
	case c.Driver == "":
	case c.As == CSI && (len(c.Driver) > validation.DNS1123LabelMaxLength || len(validation.IsDNS1123Subdomain(strings.ToLower(c.Driver))) > 0):
		c.errorf(at("driver"), "%q cannot be the name of a CSI driver; use at most 63 letters, digits, '.' and '-', as in nvmf.csi.example.com", c.Driver)
	case c.As == FlexVolume && !flexDriverPattern.MatchString(c.Driver):
		c.errorf(at("driver"), "%q cannot be the name of a FlexVolume driver; write vendor/driver, after its directory vendor~driver on the nodes", c.Driver)
	}
	if c.Has("interface") && !interfacePattern.MatchString(c.Interface) {
		c.errorf(at("interface"), "%q cannot be the name of an open-iscsi interface; it is the name of a file below /etc/iscsi/ifaces or /var/lib/iscsi/ifaces, such as default, iser or one made with iscsiadm", c.Interface)
	}
	for _, option := range slices.Sorted(maps.Keys(c.Options)) {
		// This is the check of Kubernetes' validateFlexPersistentVolumeSource.
		namespace, _, _ := strings.Cut(option, "/")
		if namespace = "." + strings.ToLower(namespace); strings.HasSuffix(namespace, ".kubernetes.io") || strings.HasSuffix(namespace, ".k8s.io") {
			c.errorf(at("options", option), "names under kubernetes.io and k8s.io are reserved for Kubernetes; choose another")
		}
	}
	references := c.secretReferences()
	for _, name := range SecretReferenceKeys() {
		c.secretReference(name, references[name])
	}
	c.secretReference("secretRef", c.SecretRef)
}

func (c *checker) secretReference(key string, reference *corev1.SecretReference) {
	if reference == nil {
		return
	}
	for _, part := range []struct {
		key, value string
		wrong      func(string) []string
	}{
		{"name", reference.Name, validation.IsDNS1123Subdomain},
		{"namespace", reference.Namespace, validation.IsDNS1123Label},
	} {
		switch {
		case part.value == "":
			c.errorf(at(key, part.key), "is missing; give the name and the namespace of the Secret")
		case len(part.wrong(part.value)) > 0:
			c.errorf(at(key, part.key), "%q cannot be the %s of a Secret", part.value, part.key)
		}
	}
}

// volumeSecretTypes are the types under kubernetes.io that volumes use. Kubernetes acts
// on the others or requires certain keys in them.
var volumeSecretTypes = []string{"kubernetes.io/iscsi-chap", "kubernetes.io/rbd"}

func (c *checker) secret() {
	secret := c.Secret
	if secret == nil || c.As == Native || c.usesCephCSI() {
		return
	}
	if len(secret.Data) == 0 {
		c.errorf(at("secret", "data"), "is missing or empty; give the keys of the Secret, each with a template")
	}
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		if len(validation.IsConfigMapKey(key)) > 0 {
			c.errorf(at("secret", "data", key), "%q cannot be a key of a Secret; use letters, digits, '.', '_' and '-'", key)
		}
	}
	switch kind := at("secret", "type"); {
	case secret.Type == "":
	case c.As == FlexVolume && secret.Type != c.Driver:
		c.errorf(kind, "kubelet gives a FlexVolume driver only Secrets whose type is the driver's name; remove type, or write %s", c.Driver)
	case !secretTypePattern.MatchString(secret.Type) || len(secret.Type) > validation.DNS1123SubdomainMaxLength:
		c.errorf(kind, "%q cannot be the type of a Secret; use letters, digits, '.', '_', '-' and '/'", secret.Type)
	case strings.Contains(secret.Type, "kubernetes.io/") && !slices.Contains(volumeSecretTypes, secret.Type):
		c.errorf(kind, "the type %q is reserved for Kubernetes; use %s, a type of the driver's, or none", secret.Type, strings.Join(volumeSecretTypes, ", "))
	}
	if !c.secretUses(secret) {
		return
	}
	switch {
	case c.As == CSI && len(secret.References) == 0 && c.NodeStageSecretRef != nil:
		c.errorf(at("nodeStageSecretRef"), "refers to a Secret of your own, and so would secret; remove one of them, or give secret.references")
	case c.As == FlexVolume && c.SecretRef != nil:
		c.errorf(at("secretRef"), "a FlexVolume has only one Secret; remove secretRef or secret")
	}
}

// secretUses checks which keys refer to the Secret. It reports whether such keys are
// allowed.
func (c *checker) secretUses(secret *Secret) bool {
	if c.As == FlexVolume && len(secret.References) > 0 {
		c.errorf(at("secret", "references"), "a FlexVolume has only one Secret and refers to it by itself; remove references")
		return false
	}
	references := c.secretReferences()
	for i, reference := range secret.References {
		var message string
		switch {
		case !slices.Contains(SecretReferenceKeys(), reference):
			message = fmt.Sprintf("unknown reference %q%s", reference, c.unknown(reference, SecretReferenceKeys(), "the references of a CSI source are"))
		case references[reference] != nil:
			message = reference + " is already set; remove one of them"
		case slices.Contains(secret.References[:i], reference):
			message = reference + " is listed twice; remove one"
		default:
			continue
		}
		c.findings = append(c.findings, Finding{Keys: at("secret", "references"), Index: i, Message: message})
	}
	return true
}

// templates checks templates as far as possible without a connection.
func (c *checker) templates() {
	if c.Has("volumeHandle") && c.VolumeHandle != "" {
		c.template(c.VolumeHandle, template.Use{Identity: true}, "volumeHandle")
	}
	if c.Has("wwid") && c.WWID != "" {
		c.template(c.WWID, template.Use{Device: true}, "wwid")
	}
	for _, fields := range []struct {
		key       string
		templates map[string]string
	}{{"attributes", c.Attributes}, {"options", c.Options}} {
		for _, name := range slices.Sorted(maps.Keys(fields.templates)) {
			if name == "" {
				c.errorf(at(fields.key, name), "the key is empty; give it a name")
			}
			c.template(fields.templates[name], template.Use{}, fields.key, name)
		}
	}
	if c.Secret != nil {
		for _, name := range slices.Sorted(maps.Keys(c.Secret.Data)) {
			c.template(c.Secret.Data[name], template.Use{Secret: true}, "secret", "data", name)
		}
	}
	if !c.usesCephCSI() {
		return
	}
	for _, name := range []string{"clusterID", "pool", "staticVolume", "imageFeatures"} {
		if c.Has("attributes", name) {
			instead := ""
			if name == "clusterID" || name == "imageFeatures" {
				instead = fmt.Sprintf(", or set %s next to attributes", name)
			}
			c.errorf(at("attributes", name), "the built-in mapping to ceph-csi sets the attribute %s itself; remove it%s", name, instead)
		}
	}
}

func (c *checker) template(text string, as template.Use, keys ...string) {
	use := c.use
	use.Secret, use.Identity, use.Device = as.Secret, as.Identity, as.Device
	parsed, err := template.Parse(text, use)
	if mistakes := (template.Mistakes)(nil); errors.As(err, &mistakes) {
		for _, mistake := range mistakes {
			c.errorf(keys, "%s", mistake)
		}
		return
	}
	known := c.Protocols.fields(c.protocol)
	for _, field := range parsed.ConnectionFields() {
		if slices.Contains(known, field) {
			continue
		}
		if meant, ok := c.Suggest(field, known); ok {
			c.warnf(keys, "no Cinder driver is known to send connection.%s with the protocol %s; did you mean connection.%s?", field, c.protocol, meant)
		}
	}
}
