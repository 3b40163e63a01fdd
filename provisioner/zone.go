package provisioner

import (
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// nodeLabels are those of the nodes that use the volume that was made. On a backend
// that maps its zones to nodes, the zone in which Cinder has the volume decides:
// an earlier attempt may have requested it in another zone than this one would.
//
// A volume in a zone that the claim cannot use is an error. Cinder may be configured
// to take another zone for one that it does not have, and it copies a volume within
// the zone of the source.
func (a *attempt) nodeLabels() (map[string]string, error) {
	placement, mapped := a.decision.PlacementOn(a.backend)
	if !mapped {
		return a.p.Backends.NodeLabels(a.backend), nil
	}
	zone, usable := placement.Zone(a.made.Zone)
	if !usable {
		return nil, &cinder.Error{Kind: backends.KindVolumeFailed, Backend: a.backend, Message: fmt.Sprintf(
			"volume %s is in availability zone %q, but the claim can use only %s, so the volume does not stay; correct the zones of the backend in the policy, or allow_availability_zone_fallback in cinder.conf",
			a.made.ID, a.made.Zone, strings.Join(placement.Names(), ", "))}
	}
	return zone.NodeLabels, nil
}

// zoneText continues a sentence about the backend with the zone of a new volume, if
// the backend maps its zones.
func (a *attempt) zoneText() string {
	placement, mapped := a.decision.PlacementOn(a.backend)
	switch {
	case !mapped:
		return ""
	case placement.AtSource:
		return ", in the availability zone of its source"
	}
	return ", availability zone " + a.decision.VolumeOn(a.backend).AvailabilityZone
}
