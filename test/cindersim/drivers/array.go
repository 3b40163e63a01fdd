package drivers

import (
	"maps"
	"slices"
	"sync"
)

// Array is an iSCSI array that has one target for all its volumes, as most arrays do, and
// gives a volume the LUN that was freed last: an address that was just freed leads to the
// next volume.
type Array struct {
	// Target and Portal are where it is.
	Target, Portal string
	// Masks means that it shows a volume only to the initiators that it is attached to,
	// and counts LUNs for each of them. Otherwise everybody sees all LUNs.
	Masks bool

	mu sync.Mutex
	// luns are the volumes at the addresses, hosts who is connected to each volume, and
	// freed the addresses that were used before, the last one last.
	luns  map[address]string
	hosts map[string]map[string]address
	freed []address
}

// address is a LUN that an initiator sees; the name is empty if everybody does.
type address struct {
	initiator string
	lun       int
}

// Type returns a volume type whose volumes are on the array.
func (a *Array) Type(name string) VolumeType {
	return VolumeType{Name: name, RequiresInitiator: true, Connection: a.connect, Disconnect: a.disconnect}
}

// Behind returns the ID of the volume that the array shows to an initiator at a LUN now;
// empty if there is none.
func (a *Array) Behind(initiator string, lun int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.luns[a.address(initiator, lun)]
}

func (a *Array) address(initiator string, lun int) address {
	if !a.Masks {
		initiator = ""
	}
	return address{initiator, lun}
}

func (a *Array) connect(request ConnectionRequest) (map[string]any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	initiator, _ := request.Connector["initiator"].(string)
	host, _ := request.Connector["host"].(string)
	if a.luns == nil {
		a.luns, a.hosts = map[address]string{}, map[string]map[string]address{}
	}
	at := a.place(request.VolumeID, a.address(initiator, 1))
	a.luns[at] = request.VolumeID
	a.freed = slices.DeleteFunc(a.freed, func(f address) bool { return f == at })
	if a.hosts[request.VolumeID] == nil {
		a.hosts[request.VolumeID] = map[string]address{}
	}
	a.hosts[request.VolumeID][host] = at
	return map[string]any{"driver_volume_type": "iscsi", "data": map[string]any{
		"target_discovered": false, "target_portal": a.Portal, "target_iqn": a.Target, "target_lun": at.lun, "volume_id": request.VolumeID, "encrypted": false,
	}}, nil
}

// place returns where an initiator sees a volume, or will see it.
func (a *Array) place(volumeID string, first address) address {
	for at, holder := range a.luns {
		if holder == volumeID && at.initiator == first.initiator {
			return at
		}
	}
	for _, at := range slices.Backward(a.freed) {
		if at.initiator == first.initiator {
			return at
		}
	}
	for at := first; ; at.lun++ {
		if a.luns[at] == "" {
			return at
		}
	}
}

func (a *Array) disconnect(volumeID string, connector map[string]any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hosts := a.hosts[volumeID]
	if host, _ := connector["host"].(string); host != "" {
		delete(hosts, host)
	} else {
		clear(hosts)
	}
	maps.DeleteFunc(a.luns, func(at address, holder string) bool {
		if holder != volumeID {
			return false
		}
		for _, used := range hosts {
			if used == at {
				return false
			}
		}
		a.freed = append(a.freed, at)
		return true
	})
}
