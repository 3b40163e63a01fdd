package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// parameter is the property that a StorageClass parameter sets.
type parameter int

const (
	typeParameter parameter = iota
	availabilityParameter
	fsTypeParameter
	cloneParameter
)

// parameters are the known keys in lower case, because the historic provisioner ignored
// case. smartclone is its permission for claims to request a copy of another claim by
// annotation; see AllowsCloneAnnotation.
var parameters = map[string]parameter{
	"type":                      typeParameter,
	"availability":              availabilityParameter,
	"fstype":                    fsTypeParameter,
	"csi.storage.k8s.io/fstype": fsTypeParameter,
	"smartclone":                cloneParameter,
}

const knownParameters = "type, availability, fsType, csi.storage.k8s.io/fstype, smartclone"

// AllowsCloneAnnotation reports whether a StorageClass's parameters let claims name the
// claim to copy in the historic provisioner's annotation.
func AllowsCloneAnnotation(given map[string]string) bool {
	for key, value := range given {
		if which, known := parameters[strings.ToLower(key)]; known && which == cloneParameter && strings.EqualFold(value, "true") {
			return true
		}
	}
	return false
}

// properties combines the rule with the StorageClass's parameters, which choose what the
// rule leaves open.
func (d *decider) properties(t *Tenant, c *Class) (VolumeProperties, *Denial) {
	given, denial := d.readParameters(c)
	if denial != nil {
		return VolumeProperties{}, denial
	}
	volume := VolumeProperties{SizeGiB: roundUpGiB(d.request.Bytes), Metadata: maps.Clone(t.Metadata), Encrypt: c.Encrypt}
	for _, property := range []struct {
		parameter parameter
		key       string
		fixed     string
		to        *string
	}{
		{typeParameter, "volumeType", c.VolumeType, &volume.Type},
		{availabilityParameter, "availabilityZone", c.AvailabilityZone, &volume.AvailabilityZone},
		{fsTypeParameter, "fsType", c.FSType, &volume.FSType},
	} {
		chosen, ok := given[property.parameter]
		*property.to = property.fixed
		switch {
		case !ok:
		case property.fixed == "":
			*property.to = chosen.value
		case property.fixed != chosen.value:
			path := document.Child(c.path, property.key)
			return VolumeProperties{}, &Denial{Reason: ParameterNotAllowed, Path: path, Message: fmt.Sprintf(
				"StorageClass %s sets the parameter %s to %q, but the policy fixes it at %q (%s)",
				d.request.StorageClass, chosen.key, chosen.value, property.fixed, path)}
		}
	}
	switch {
	case d.request.VolumeMode == Block:
		volume.FSType = ""
	case volume.FSType == "":
		volume.FSType = DefaultFSType
	}
	return volume, nil
}

// setting is a parameter as the StorageClass gives it.
type setting struct{ key, value string }

// readParameters reads the StorageClass's parameters and ignores empty values.
func (d *decider) readParameters(c *Class) (map[parameter]setting, *Denial) {
	deny := func(reason Reason, format string, args ...any) *Denial {
		return &Denial{Reason: reason, Path: c.path, Message: "StorageClass " + d.request.StorageClass + " " + fmt.Sprintf(format, args...)}
	}
	var unknown []string
	keys := slices.Sorted(maps.Keys(d.request.Parameters))
	for _, key := range keys {
		if _, ok := parameters[strings.ToLower(key)]; !ok {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		return nil, deny(ParameterNotAllowed, "has parameters that this provisioner does not take: %s; it takes %s", strings.Join(unknown, ", "), knownParameters)
	}
	given := map[parameter]setting{}
	for _, key := range keys {
		s := setting{key, d.request.Parameters[key]}
		which := parameters[strings.ToLower(key)]
		if s.value == "" {
			continue
		}
		if mistake := textMistake(s.value); mistake != "" {
			return nil, deny(ParameterInvalid, "sets the parameter %s to an unusable value: %s", key, mistake)
		}
		switch earlier, twice := given[which]; {
		case twice && earlier.value != s.value:
			return nil, deny(ParameterInvalid, "sets %s to %q and %s to %q, which mean the same; keep one of them", earlier.key, earlier.value, key, s.value)
		case which == fsTypeParameter && !slices.Contains(FileSystems(), s.value):
			return nil, deny(ParameterInvalid, "sets the parameter %s to %q, which is not one of %s", key, s.value, strings.Join(FileSystems(), ", "))
		case which == cloneParameter && !strings.EqualFold(s.value, "true") && !strings.EqualFold(s.value, "false"):
			return nil, deny(ParameterInvalid, "sets the parameter %s to %q, which is neither true nor false", key, s.value)
		}
		given[which] = s
	}
	return given, nil
}

// AttributesClass is the VolumeAttributesClass that a claim names.
type AttributesClass struct {
	Name string
	// Missing means that there is none of that name, or that it is unknown.
	Missing bool
	// Driver and Parameters are the class's.
	Driver     string
	Parameters map[string]string
}

// AttributesType is the only parameter of the CSI driver's VolumeAttributesClasses: the
// name of a volume type.
const AttributesType = "type"

// The reasons to deny a claim because of its VolumeAttributesClass.
const (
	// UnsupportedVolumeAttributesClass: only volumes in mode csi can have one, and only
	// one of the CSI driver.
	UnsupportedVolumeAttributesClass Reason = "UnsupportedVolumeAttributesClass"
	// VolumeAttributesClassNotFound: there is none of that name.
	VolumeAttributesClassNotFound Reason = "VolumeAttributesClassNotFound"
)

// attributes gives the volume the type from the claim's VolumeAttributesClass. It takes
// precedence over the type of the rule and the StorageClass, since the rule lists it for
// claims to choose.
func (d *decider) attributes(c *Class, volume *VolumeProperties) *Denial {
	named := d.request.Attributes
	switch {
	case named == nil:
		return nil
	case len(d.decision.CSI) == 0 || d.request.Import != nil:
		return d.nativeAttributes(c.path, c.path)
	case named.Missing:
		return &Denial{Reason: VolumeAttributesClassNotFound, Message: fmt.Sprintf(
			"VolumeAttributesClass %q does not exist; create it, or replace the claim with one that names another", named.Name)}
	case named.Driver != CSIDriver:
		return &Denial{Reason: UnsupportedVolumeAttributesClass, Message: fmt.Sprintf(
			"VolumeAttributesClass %q is for driver %q, not for %s; replace the claim with one that names another", named.Name, named.Driver, CSIDriver)}
	}
	if unknown := slices.DeleteFunc(slices.Sorted(maps.Keys(named.Parameters)), func(key string) bool { return key == AttributesType }); len(unknown) > 0 || named.Parameters[AttributesType] == "" {
		message := fmt.Sprintf("VolumeAttributesClass %q has parameters that the driver does not take: %s; it takes %s", named.Name, strings.Join(unknown, ", "), AttributesType)
		if len(unknown) == 0 {
			message = fmt.Sprintf("VolumeAttributesClass %q names no volume type of Cinder by its parameter %s", named.Name, AttributesType)
		}
		return &Denial{Reason: ParameterNotAllowed, Message: message}
	}
	if denial := c.grantsType(named.Parameters[AttributesType]); denial != nil {
		return denial
	}
	volume.Type = named.Parameters[AttributesType]
	return nil
}

// nativeAttributes denies a claim that would get a native volume.
func (d *decider) nativeAttributes(makes, path string) *Denial {
	return &Denial{Reason: UnsupportedVolumeAttributesClass, Path: path, Message: fmt.Sprintf(
		"the claim names the VolumeAttributesClass %q, but %s makes native volumes, which cannot have one; replace the claim with one that names none, or give the rule mode: csi", d.request.Attributes.Name, makes)}
}

// grantsType denies a type that the rule does not list. Any tenant may name any
// VolumeAttributesClass.
func (c *Class) grantsType(volumeType string) *Denial {
	if slices.Contains(c.VolumeTypes, volumeType) {
		return nil
	}
	return &Denial{Reason: ParameterNotAllowed, Path: document.Child(c.path, "volumeTypes"), Message: fmt.Sprintf(
		"a VolumeAttributesClass asks for volumes of type %q, which %s.volumeTypes does not list", volumeType, c.path)}
}
