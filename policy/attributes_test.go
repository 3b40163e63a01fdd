package policy

import (
	"strings"
	"testing"
)

// TestVolumeAttributesClassOfANewClaim: the class gives the volume its type if the rule
// lists that type, and only in mode csi.
func TestVolumeAttributesClassOfANewClaim(t *testing.T) {
	p := mustParse(t, strings.NewReplacer(
		"[csi], backends: [gold, silver], mode: csi,", "[csi], backends: [gold, silver], mode: csi, volumeType: hdd, volumeTypes: [ssd],",
		"[mixed], backends: [gold, silver],", "[mixed], backends: [gold, silver], volumeTypes: [ssd],").Replace(modesPolicy))
	of := func(parameters map[string]string) *AttributesClass {
		return &AttributesClass{Name: "quick", Driver: CSIDriver, Parameters: parameters}
	}
	ssd := of(map[string]string{"type": "ssd"})
	for name, test := range map[string]struct {
		class      string
		attributes *AttributesClass
		imports    bool
		volumeType string
		backends   string
		reason     Reason
		path       string
		message    string
	}{
		"none":                      {class: "csi", volumeType: "hdd", backends: "gold silver"},
		"listed":                    {class: "csi", attributes: ssd, volumeType: "ssd", backends: "gold silver"},
		"native on another backend": {class: "mixed", attributes: ssd, volumeType: "ssd", backends: "gold"},
		"native": {class: "native", attributes: ssd, reason: UnsupportedVolumeAttributesClass, path: "tenants[0].classes[2]",
			message: `the claim names the VolumeAttributesClass "quick", but tenants[0].classes[2] makes native volumes, which cannot have one; replace the claim with one that names none, or give the rule mode: csi`},
		"imported": {class: "mixed", attributes: ssd, imports: true, reason: UnsupportedVolumeAttributesClass, path: "tenants[0].classes[0]",
			message: `the claim names the VolumeAttributesClass "quick", but tenants[0].classes[0] makes native volumes, which cannot have one; replace the claim with one that names none, or give the rule mode: csi`},
		"missing": {class: "csi", attributes: &AttributesClass{Name: "quick", Missing: true}, reason: VolumeAttributesClassNotFound,
			message: `VolumeAttributesClass "quick" does not exist; create it, or replace the claim with one that names another`},
		"another driver's": {class: "csi", attributes: &AttributesClass{Name: "quick", Driver: "example.org", Parameters: map[string]string{"type": "ssd"}}, reason: UnsupportedVolumeAttributesClass,
			message: `VolumeAttributesClass "quick" is for driver "example.org", not for standalone-cinder.openstack.org; replace the claim with one that names another`},
		"another parameter": {class: "csi", attributes: of(map[string]string{"type": "ssd", "iops": "3"}), reason: ParameterNotAllowed,
			message: `VolumeAttributesClass "quick" has parameters that the driver does not take: iops; it takes type`},
		"no type": {class: "csi", attributes: of(nil), reason: ParameterNotAllowed, message: `VolumeAttributesClass "quick" names no volume type of Cinder by its parameter type`},
		"a type that the rule does not list": {class: "csi", attributes: of(map[string]string{"type": "hdd"}), reason: ParameterNotAllowed, path: "tenants[0].classes[1].volumeTypes",
			message: `a VolumeAttributesClass asks for volumes of type "hdd", which tenants[0].classes[1].volumeTypes does not list`},
	} {
		t.Run(name, func(t *testing.T) {
			request := Request{Namespace: "team-a", StorageClass: test.class, Bytes: 1 << 30, Attributes: test.attributes}
			if test.imports {
				request.Import = &Existing{Wanted: "v", Name: "v"}
			}
			d := p.Decide(request)
			if test.reason == "" {
				if d.Denial != nil || d.VolumeOn("gold").Type != test.volumeType || strings.Join(d.Backends, " ") != test.backends {
					t.Errorf("type %q on %v, denial %+v", d.VolumeOn("gold").Type, d.Backends, d.Denial)
				}
				return
			}
			if d.Denial == nil || *d.Denial != (Denial{Reason: test.reason, Path: test.path, Message: test.message}) {
				t.Errorf("got  %+v\nwant %s at %s: %s", d.Denial, test.reason, test.path, test.message)
			}
		})
	}
}
