package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// AttributesClass is the VolumeAttributesClass that a claim names.
type AttributesClass struct {
	Name string
	// Missing means that there is none of that name, or that it is not known.
	Missing bool
	// Driver and Parameters are what the class says.
	Driver     string
	Parameters map[string]string
}

// AttributesType is the only parameter of a VolumeAttributesClass of the CSI driver: the
// name of a volume type.
const AttributesType = "type"

// The reasons to deny a claim because of its VolumeAttributesClass.
const (
	// UnsupportedVolumeAttributesClass: only volumes in mode csi can have one, and only
	// one of the CSI driver.
	UnsupportedVolumeAttributesClass Reason = "UnsupportedVolumeAttributesClass"
	// VolumeAttributesClassNotFound: nothing of that name exists.
	VolumeAttributesClassNotFound Reason = "VolumeAttributesClassNotFound"
)

// attributes gives the volume the type that the claim's VolumeAttributesClass names. It
// comes before that of the rule and the StorageClass: the rule lists it for claims to
// choose.
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
