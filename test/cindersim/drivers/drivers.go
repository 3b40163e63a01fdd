// Package drivers has the simulator's volume types, and what the drivers of their
// backends answer to a connector.
package drivers

import (
	"cmp"
	"fmt"
	"maps"
)

// VolumeType describes a volume type and the backend that serves it.
type VolumeType struct {
	// Name is what a client puts into volume_type; ID is made from the seed when empty.
	Name, ID string
	// Description and ExtraSpecs are shown by the API. Extra specs that are nil
	// name the backend, and multiattach where that is on.
	Description string
	ExtraSpecs  map[string]string
	// Backend names the backend and its pool, as in os-vol-host-attr:host
	// "cinder@backend#backend"; the default is Name.
	Backend string
	// StorageProtocol is what the pool reports; the default is "iSCSI".
	StorageProtocol string
	// Multiattach lets several hosts attach a volume of this type.
	Multiattach bool
	// FailCreate makes every create end in the status error.
	FailCreate bool
	// CapacityGiB is what the pool can hold; a larger volume finds no host and
	// ends in error. The default is 20000.
	CapacityGiB int
	// PinnedSnapshots makes a snapshot with a dependent volume survive its
	// DELETE, as RBD does.
	PinnedSnapshots bool
	// RequiresInitiator rejects a connector without an initiator, like all
	// iSCSI drivers.
	RequiresInitiator bool
	// Encryption makes its volumes encrypted.
	Encryption *Encryption
	// QoS are its front-end QoS specs, without those per GiB.
	QoS map[string]string
	// Connection builds the driver's connection document. Nil means that of
	// ISCSIConnection("127.0.0.1:3260").
	Connection ConnectionFunc
	// Disconnect, if it is set, ends the connection of a connector to a volume. Without a
	// connector, it ends all connections to it.
	Disconnect func(volumeID string, connector map[string]any)
}

// Encryption is that of a volume type.
type Encryption struct {
	Provider, Cipher string
	KeyBits          int
	// ControlLocation is front-end by default.
	ControlLocation string
	// KeyManager gives each volume a key of its own at the key manager of the catalog, in
	// place of Cinder's fixed key.
	KeyManager bool
}

// Location returns who encrypts.
func (e Encryption) Location() string { return cmp.Or(e.ControlLocation, "front-end") }

// ConnectionRequest is the input of a driver's connection document.
type ConnectionRequest struct {
	VolumeID  string
	SizeGiB   int
	Connector map[string]any
	// Username and Password are the export's CHAP credentials. They belong to
	// the volume and outlive the export.
	Username, Password string
}

// ConnectionFunc returns the driver's document, {"driver_volume_type": ...,
// "data": {...}}. Cinder then adds qos_specs, access_mode, encrypted and
// cacheable to data, and the attachments API flattens the document. An error
// is a failure of the backend, a 500.
type ConnectionFunc func(ConnectionRequest) (map[string]any, error)

// DefaultVolumeTypes returns the types of the recordings: iscsi with one
// portal, iscsi-mp with two, rbd, and fail whose volumes always end in error.
func DefaultVolumeTypes() []VolumeType {
	return []VolumeType{
		{Name: "iscsi", RequiresInitiator: true, Connection: ISCSIConnection("127.0.0.1:3260")},
		{Name: "iscsi-mp", Backend: "iscsimp", RequiresInitiator: true,
			Connection: ISCSIConnection("127.0.0.1:3260", "127.0.0.2:3260")},
		{Name: "rbd", StorageProtocol: "ceph", PinnedSnapshots: true,
			Connection: RBDConnection("volumes", "cinder", "127.0.0.1")},
		{Name: "fail", FailCreate: true, RequiresInitiator: true},
	}
}

// ISCSIConnection builds iSCSI documents as Cinder's target drivers do: flat
// keys for the first portal, and lists when there are several portals or the
// connector asks for multipath.
func ISCSIConnection(portals ...string) ConnectionFunc {
	return func(request ConnectionRequest) (map[string]any, error) {
		iqn := "iqn.2010-10.org.openstack:volume-" + request.VolumeID
		data := map[string]any{
			"target_discovered": false,
			"target_portal":     portals[0],
			"target_iqn":        iqn,
			"target_lun":        1,
			"volume_id":         request.VolumeID,
			"auth_method":       "CHAP",
			"auth_username":     request.Username,
			"auth_password":     request.Password,
			"encrypted":         false,
		}
		if multipath, _ := request.Connector["multipath"].(bool); multipath || len(portals) > 1 {
			iqns, luns := make([]string, len(portals)), make([]int, len(portals))
			for i := range portals {
				iqns[i], luns[i] = iqn, 1
			}
			data["target_portals"], data["target_iqns"], data["target_luns"] = portals, iqns, luns
		}
		return map[string]any{"driver_volume_type": "iscsi", "data": data}, nil
	}
}

// RBDConnection builds documents as Cinder's RBD driver does. The secret's key
// is not part of them.
func RBDConnection(pool, user string, monitors ...string) ConnectionFunc {
	return func(request ConnectionRequest) (map[string]any, error) {
		ports := make([]string, len(monitors))
		for i := range ports {
			ports[i] = "6789"
		}
		return map[string]any{"driver_volume_type": "rbd", "data": map[string]any{
			"name":          pool + "/volume-" + request.VolumeID,
			"hosts":         monitors,
			"ports":         ports,
			"cluster_name":  "ceph",
			"auth_enabled":  true,
			"auth_username": user,
			"secret_type":   "ceph",
			"secret_uuid":   "457eb676-33da-42ec-9a8c-9293d545c337",
			"volume_id":     request.VolumeID,
			"discard":       true,
		}}, nil
	}
}

// FibreChannelConnection builds documents like those of Fibre Channel drivers that show
// one LUN at all ports of the array to all ports of the connector, and that say how LUNs
// from 256 on are addressed.
func FibreChannelConnection(lun int, ports ...string) ConnectionFunc {
	return func(request ConnectionRequest) (map[string]any, error) {
		initiators, _ := request.Connector["wwpns"].([]any)
		if len(initiators) == 0 {
			return nil, fmt.Errorf("the connector has no wwpns")
		}
		shown := map[string]any{}
		for _, initiator := range initiators {
			shown[fmt.Sprint(initiator)] = ports
		}
		return map[string]any{"driver_volume_type": "fibre_channel", "data": map[string]any{
			"target_discovered": true, "target_wwn": ports, "target_lun": lun, "initiator_target_map": shown, "addressing_mode": "SAM2", "encrypted": false,
		}}, nil
	}
}

// FixedConnection answers with the same document for every volume.
func FixedConnection(driverVolumeType string, data map[string]any) ConnectionFunc {
	return func(ConnectionRequest) (map[string]any, error) {
		return map[string]any{"driver_volume_type": driverVolumeType, "data": maps.Clone(data)}, nil
	}
}

// Complete sets what volume types leave out, with IDs from newID, and indexes
// them by name and ID.
func Complete(types []VolumeType, newID func() string) (ordered []*VolumeType, index map[string]*VolumeType, err error) {
	index = make(map[string]*VolumeType)
	for _, given := range types {
		t := given
		if t.Name == "" {
			return nil, nil, fmt.Errorf("option Types: a volume type has no name")
		}
		if t.ID == "" {
			t.ID = newID()
		}
		t.Backend = cmp.Or(t.Backend, t.Name)
		t.StorageProtocol = cmp.Or(t.StorageProtocol, "iSCSI")
		t.CapacityGiB = cmp.Or(t.CapacityGiB, 20000)
		if t.Connection == nil {
			t.Connection = ISCSIConnection("127.0.0.1:3260")
		}
		if t.ExtraSpecs == nil {
			t.ExtraSpecs = map[string]string{"volume_backend_name": t.Backend}
			if t.Multiattach {
				t.ExtraSpecs["multiattach"] = "<is> True"
			}
		}
		if index[t.Name] != nil {
			return nil, nil, fmt.Errorf("option Types: two volume types are named %q", t.Name)
		}
		ordered = append(ordered, &t)
		index[t.Name], index[t.ID] = &t, &t
	}
	return ordered, index, nil
}
