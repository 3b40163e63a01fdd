package cli

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
)

// claim is a request to the policy and how it was given.
type claim struct {
	// source is the position in a manifest; empty for a claim from flags.
	source string
	// name may be empty for a claim from flags.
	name        string
	request     policy.Request
	size, limit string
	accessModes []string
	// refusal is why the provisioner refuses the claim before it consults any policy; nil
	// if it does not.
	refusal *policy.Denial
	// class is the StorageClass if it is known.
	class *policy.StorageClass
	// existing is the Cinder volume that the claim requests; empty for a new one.
	existing string
	// notes are remarks about what the policy does not decide.
	notes []string
}

// provisionerName is the default of run --provisioner-name.
const provisionerName = "openstack.org/standalone-cinder"

// accessModeNotes point out what only Cinder's answer decides.
func accessModeNotes(modes []string) []string {
	if slices.Contains(modes, string(corev1.ReadWriteMany)) {
		return []string{"ReadWriteMany needs a volume type with multiattach; whether the type has it is known when the volume is created"}
	}
	return nil
}

// claimFlags describe a claim on the command line.
type claimFlags struct {
	namespace       string
	name            string
	namespaceLabels map[string]string
	populates       string
	storageClass    string
	parameters      []string
	attributes      []string
	size            string
	limit           string
	volumeMode      string
	accessModes     []string
}

// claim checks the flags as far as the policy does not.
func (f claimFlags) claim() (claim, error) {
	c := claim{name: f.name, size: f.size, limit: f.limit}
	c.request = policy.Request{
		Namespace:       f.namespace,
		NamespaceLabels: policy.NamespaceLabels(f.namespace, f.namespaceLabels),
		Claim:           f.name,
		StorageClass:    f.storageClass,
		VolumeMode:      policy.VolumeMode(f.volumeMode),
	}
	if f.populates != "" {
		namespace, name, ok := strings.Cut(f.populates, "/")
		if !ok || namespace == "" || name == "" {
			return c, usageError("--populates must be written as NAMESPACE/NAME, not %q", f.populates)
		}
		c.request.NamespaceLabels = policy.NamespaceLabels(f.namespace, nil)
		c.request.Populated = &policy.Populated{Namespace: namespace, NamespaceLabels: policy.NamespaceLabels(namespace, f.namespaceLabels), Claim: name}
	}
	var err error
	if c.request.Parameters, err = readParameters("parameter", f.parameters); err != nil {
		return c, err
	}
	if len(f.attributes) > 0 {
		parameters, err := readParameters("attribute", f.attributes)
		if err != nil {
			return c, err
		}
		c.request.Attributes = &policy.AttributesClass{Name: "(--attribute)", Driver: policy.CSIDriver, Parameters: parameters}
	}
	if c.request.Bytes, err = readQuantity("size", f.size); err != nil {
		return c, err
	}
	if f.limit != "" {
		if c.request.LimitBytes, err = readQuantity("limit", f.limit); err != nil {
			return c, err
		}
	}
	for _, text := range f.accessModes {
		mode, ok := mapping.ParseAccessMode(text)
		if !ok {
			return c, usageError("--access-mode must be RWO, ROX, RWX or RWOP, not %q", text)
		}
		c.accessModes = append(c.accessModes, string(mode))
	}
	spec := corev1.PersistentVolumeClaimSpec{VolumeMode: (*corev1.PersistentVolumeMode)(&c.request.VolumeMode)}
	for _, mode := range c.accessModes {
		spec.AccessModes = append(spec.AccessModes, corev1.PersistentVolumeAccessMode(mode))
	}
	if c.refusal = admission.Refusal(&corev1.PersistentVolumeClaim{Spec: spec}, c.request.Parameters); c.refusal == nil {
		c.notes = accessModeNotes(c.accessModes)
	}
	return c, nil
}

func readParameters(flag string, given []string) (map[string]string, error) {
	parameters := map[string]string{}
	for _, text := range given {
		key, value, found := strings.Cut(text, "=")
		if !found || key == "" {
			return nil, usageError("--%s must be written as KEY=VALUE, not %q", flag, text)
		}
		if _, twice := parameters[key]; twice {
			return nil, usageError("--%s %s is given twice", flag, key)
		}
		parameters[key] = value
	}
	return parameters, nil
}

func readQuantity(flag, text string) (int64, error) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, usageError("--%s must be a quantity such as 10Gi, not %q", flag, text)
	}
	return policy.Bytes(quantity), nil
}

// resolve turns the claims of manifests into requests. Labels and parameters
// come from the flags if the manifests lack the namespace or class.
func (m manifests) resolve(p *policy.Policy, labels, parameters map[string]string) []claim {
	// Without a selector in the policy, labels do not matter.
	selected := slices.ContainsFunc(p.Tenants, func(t policy.Tenant) bool { return t.NamespaceSelector != nil })
	claims := make([]claim, 0, len(m.claims))
	for _, manifest := range m.claims {
		claims = append(claims, m.resolveClaim(p, manifest, selected, labels, parameters))
	}
	return claims
}

// claimByUID returns the claim with a UID, which only manifests read from a cluster have;
// nil if there is none.
func (m manifests) claimByUID(uid string) *corev1.PersistentVolumeClaim {
	for _, manifest := range m.claims {
		if string(manifest.claim.UID) == uid {
			return manifest.claim
		}
	}
	return nil
}

func (m manifests) resolveClaim(p *policy.Policy, manifest claimManifest, selected bool, labels, parameters map[string]string) claim {
	object := manifest.claim
	c := claim{source: manifest.source, name: object.Name}
	note := func(format string, args ...any) { c.notes = append(c.notes, fmt.Sprintf(format, args...)) }

	c.request.Namespace = object.Namespace
	if object.Name != object.GenerateName+"*" {
		c.request.Claim = object.Name
	}
	labelsOf := func(name string) map[string]string {
		given := labels
		if namespace, ok := m.namespaces[name]; ok {
			given = namespace.Labels
		} else if selected && len(labels) == 0 {
			note("the manifests have no Namespace %s: assuming that it has no labels of its own; give them with --namespace-labels", name)
		}
		return policy.NamespaceLabels(name, given)
	}
	if p.IsPopulator(object.Namespace) {
		target, missing := admission.PopulatedClaim(object, m.claimByUID)
		var labels map[string]string
		if target != nil {
			labels = labelsOf(target.Namespace)
		}
		c.request.NamespaceLabels = policy.NamespaceLabels(object.Namespace, nil)
		c.request.Populated = admission.PopulatedOf(target, labels, missing)
	} else {
		c.request.NamespaceLabels = labelsOf(object.Namespace)
	}

	name, named := storageClassOf(object)
	if !named {
		if name = m.defaultClass(); name == "" {
			note("the claim names no StorageClass, and the manifests have no default one")
		}
	} else if name == "" {
		note("an empty storageClassName keeps the claim from being provisioned: it waits for a PersistentVolume made by hand")
	}
	c.request.StorageClass = name
	if class, ok := m.classes[name]; ok {
		parameters = class.Parameters
		described := admission.ClassOf(class)
		c.class, c.request.Topologies = &described, described.Topologies
		switch class.Provisioner {
		case provisionerName:
		case policy.CSIDriver:
			c.request.Driver = class.Provisioner
		default:
			note("StorageClass %s belongs to the provisioner %q; this program answers to %s unless it runs with another --provisioner-name", name, class.Provisioner, provisionerName)
		}
	} else if name != "" && len(parameters) == 0 {
		note("the manifests have no StorageClass %s: assuming that it has no parameters; give them with --parameter", name)
	}
	c.request.Parameters = parameters

	if size, ok := object.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		c.size, c.request.Bytes = size.String(), policy.Bytes(size)
	}
	if limit, ok := object.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
		c.limit, c.request.LimitBytes = limit.String(), policy.Bytes(limit)
	}
	if mode := object.Spec.VolumeMode; mode != nil {
		c.request.VolumeMode = policy.VolumeMode(*mode)
	}
	for _, mode := range object.Spec.AccessModes {
		c.accessModes = append(c.accessModes, string(mode))
	}
	if selected := admission.SelectedNode(object); selected != "" {
		if node, ok := m.nodes[selected]; ok {
			c.request.Node = &policy.Node{Name: selected, Labels: node.Labels}
		} else {
			note("the claim's pod was scheduled to node %s, which is not among the manifests: assuming that every backend exports volumes to it", selected)
		}
	}
	if c.request.Attributes = admission.AttributesOf(object); c.request.Attributes != nil {
		if class, ok := m.attributes[c.request.Attributes.Name]; ok {
			c.request.Attributes = admission.AttributesClassOf(class)
		} else {
			note("the manifests have no VolumeAttributesClass %s: assuming that it does not exist", c.request.Attributes.Name)
		}
	}
	if c.refusal = admission.Refusal(object, parameters); c.refusal == nil {
		c.notes = append(c.notes, accessModeNotes(c.accessModes)...)
	}
	if source, _ := admission.DataSourceOf(object, parameters); source != nil {
		note("the claim asks for the content of %s %s: that must belong to the tenant, must not be larger, and must be on one of the backends below, which then gets the volume", source.Kind, source.Name)
	}
	if volume, asks := admission.ImportOf(object); asks && object.Spec.VolumeName == "" {
		c.existing = volume
	}
	if object.Spec.VolumeName != "" {
		note("spec.volumeName binds the claim to the PersistentVolume %s; nothing is provisioned for it", object.Spec.VolumeName)
	}
	return c
}

// storageClassOf returns the StorageClass that a claim names, and whether it names one.
func storageClassOf(object *corev1.PersistentVolumeClaim) (string, bool) {
	if name, ok := object.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return name, true
	}
	if object.Spec.StorageClassName != nil {
		return *object.Spec.StorageClassName, true
	}
	return "", false
}
