package mappers

import "github.com/standalone-cinder/standalone-cinder/mappers/mapping"

// protocol is what this package knows about one protocol's connections.
type protocol struct {
	// about describes it to the rest of the program.
	about mapping.Protocol
	// builtIn maps connections unless the operator's mapping sets the fields.
	// Registry.Map handles what applies to every protocol: encryption, access modes that
	// no source can honor, front-end QoS.
	builtIn func(request) (Result, error)
	// facts reads and checks the values that templates may name below the protocol's own
	// name, such as .nvmeof.nqn. It is nil if there are none. An error refuses the
	// connection regardless of the templates; a refusal matters only to templates that
	// use the facts. about.Facts lists the names.
	facts func(request) (facts, *Refusal, error)
	// missing explains, by fact, why a valid connection may lack it and what to do about
	// it, for a mapping that needs it.
	missing map[string]string
}

// facts are values by their names in templates.
type facts map[string]any

// Protocols are mappers by Cinder's name of the protocol (driver_volume_type),
// in lower case.
type Protocols map[string]protocol

// BuiltIn returns every protocol that this package maps.
func BuiltIn() Protocols {
	return Protocols{
		"fibre_channel": fibreChannel(),
		"iscsi":         iscsi(),
		"iser":          iscsi(),
		"nfs":           nfs(),
		"nvmeof":        nvmeof(),
		"rbd":           rbd(),
	}
}

// Describe describes the protocols for the policy, the metrics and the commands, together
// with the other protocols of Cinder's drivers.
func (p Protocols) Describe() mapping.Protocols {
	described := unmapped()
	for name, entry := range p {
		about := entry.about
		about.Mapped = true
		described[name] = about
	}
	return described
}

// unmapped returns protocols of Cinder's drivers without a mapper. An operator's mapping
// names their fields.
func unmapped() mapping.Protocols {
	return mapping.Protocols{
		"fibre_channel_eckd": {},
		"gpfs":               {Fields: []string{"name", "device_path"}, IdentityFields: []string{"name", "device_path"}},
		"lightos":            {},
		"local": {
			Fields:  []string{"device_path"},
			PerNode: map[string]string{"device_path": "it is a device of the one host that attached the volume"},
			OneHost: true,
		},
		"quobyte": {Fields: []string{"export", "name", "options", "format"}, IdentityFields: []string{"name"}},
		"scaleio": {
			Fields: []string{
				"scaleIO_volname", "scaleIO_volume_id", "hostIP", "serverIP", "serverPort", "serverUsername", "serverPassword", "serverToken",
				"iopsLimit", "bandwidthLimit", "config_group", "failed_over", "sdc_guid",
			},
			IdentityFields: []string{"scaleIO_volume_id"},
			PerNode: map[string]string{
				"hostIP":   "it is the address of the one host that the connector named",
				"sdc_guid": "it identifies the PowerFlex client of the one host that the connector named",
			},
		},
		"storpool": {
			Fields:         []string{"client_id", "volume"},
			IdentityFields: []string{"volume"},
			PerNode:        map[string]string{"client_id": "it is the StorPool number of the one host that the connector named"},
		},
		"vmdk":           {IdentityFields: []string{"volume_id", "vmdk_path"}},
		"vstorageobject": {IdentityFields: []string{"id"}},
	}
}
