package mapping

import (
	"maps"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// DefaultCephDriver is the CSI driver of a mapping to ceph-csi that names none.
const DefaultCephDriver = "rbd.csi.ceph.com"

// Protocol describes the connections of one protocol. The policy, its schema, the metrics
// and the help texts learn about protocols only from these descriptions.
type Protocol struct {
	// Mapped means that the protocol has a mapper. Other protocols are known by name
	// only, to catch misspellings.
	Mapped bool
	// Native means that Kubernetes has a volume source for the protocol.
	Native bool
	// CephCSI means that the form csi without a volumeHandle becomes a static volume of
	// ceph-csi, which needs Mapping.ClusterID.
	CephCSI bool
	// Keys are the keys of a mapping, by form, that only some protocols have.
	Keys map[Form][]string
	// Facts are the names that templates may use below the protocol's own name. The
	// mapper reads and checks their values, regardless of the shape that the driver
	// chose.
	Facts []string
	// Fields are the fields that Cinder's drivers are known to send; nil if
	// none are known. Drivers may send others.
	Fields []string
	// IdentityFacts are the names in Facts, and IdentityFields the connection's fields,
	// whose values are unique to a volume. Only they, and what is known about every
	// volume, make a volumeHandle.
	IdentityFacts, IdentityFields []string
	// PerNode explains, by field, why a field is valid for one node only.
	PerNode map[string]string
	// OneHost means that volumes are devices of the host that cinder-volume runs on,
	// which no driver on other nodes can reach.
	OneHost bool
}

// Protocols describes protocols by Cinder's name for them (driver_volume_type).
type Protocols map[string]Protocol

// Mapped lists the protocols that have a mapper, sorted.
func (p Protocols) Mapped() []string {
	return p.where(func(about Protocol) bool { return about.Mapped })
}

// where lists the protocols for which holds is true, sorted.
func (p Protocols) where(holds func(Protocol) bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if holds(p[name]) {
			names = append(names, name)
		}
	}
	return names
}

// Use describes the templates of a protocol's mapping.
func (p Protocols) Use(protocol string) template.Use {
	facts := map[string][]string{}
	for name, about := range p {
		if about.Facts != nil {
			facts[name] = about.Facts
		}
	}
	about := p[protocol]
	var identities []string
	for _, fact := range about.IdentityFacts {
		identities = append(identities, protocol+"."+fact)
	}
	for _, field := range about.IdentityFields {
		identities = append(identities, "connection."+field)
	}
	return template.Use{Protocol: protocol, Facts: facts, PerNode: about.PerNode, Identities: identities}
}

// decorations are the fields that Cinder's volume manager adds to the driver's
// (cinder/volume/manager.py, initialize_connection).
var decorations = []string{
	"volume_id", "qos_specs", "access_mode", "encrypted", "cacheable", "discard", "enforce_multipath",
	"logical_block_size", "physical_block_size",
}

// fields lists the fields that Cinder is known to send with a protocol.
func (p Protocols) fields(protocol string) []string {
	own := p[protocol].Fields
	if own == nil {
		return nil
	}
	return slices.Concat(own, decorations)
}

// key is a key that only some mappings may have.
type key struct {
	name string
	// forms are the forms that have the key for every protocol. With other forms, only
	// some protocols have it (Protocol.Keys).
	forms []Form
}

func keys() []key {
	all := []key{
		{"driver", []Form{CSI, FlexVolume}},
		{"volumeHandle", []Form{CSI}},
		{"attributes", []Form{CSI}},
		{"options", []Form{FlexVolume}},
		{"secret", []Form{CSI, FlexVolume}},
		{"secretRef", []Form{FlexVolume}},
		{"discard", []Form{CSI, Native}},
		{"clusterID", nil},
		{"imageFeatures", nil},
		{"clusterName", nil},
		{"interface", nil},
		{"omitInitiatorName", nil},
		{"wwid", nil},
	}
	for _, name := range SecretReferenceKeys() {
		all = append(all, key{name, []Form{CSI}})
	}
	return all
}

func (k key) fits(about Protocol, as Form) bool {
	return slices.Contains(k.forms, as) || slices.Contains(about.Keys[as], k.name)
}

// only describes the forms and protocols that the key is for.
func (p Protocols) only(k key) string {
	var parts, forms []string
	for _, form := range k.forms {
		forms = append(forms, string(form))
	}
	if len(forms) > 0 {
		parts = append(parts, strings.Join(forms, " or "))
	}
	for _, form := range Forms() {
		names := p.where(func(about Protocol) bool { return slices.Contains(about.Keys[form], k.name) })
		switch len(names) {
		case 0:
		case 1:
			parts = append(parts, string(form)+" and the protocol "+names[0])
		default:
			last := len(names) - 1
			parts = append(parts, string(form)+" and the protocols "+strings.Join(names[:last], ", ")+" and "+names[last])
		}
	}
	return strings.Join(parts, ", or ")
}

// Unfit lists the keys that a mapping of that protocol and form must not have.
func (p Protocols) Unfit(protocol string, as Form) []string {
	var unfit []string
	for _, k := range keys() {
		if !k.fits(p[protocol], as) {
			unfit = append(unfit, k.name)
		}
	}
	return unfit
}
