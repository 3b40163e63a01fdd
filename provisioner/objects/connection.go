package objects

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// MapRequest starts a request to map a connection, with everything that follows from the
// PersistentVolume's name and the connector.
func MapRequest(connection mappers.Connection, pvName string, connector cinder.Connector) mappers.Request {
	return mappers.Request{
		Connection: connection,
		PVName:     pvName,
		SecretName: SecretName(pvName),
		Connector:  mappers.Connector{Host: connector.Host, Initiator: connector.Initiator, WWPNs: connector.WWPNs, NQN: connector.NQN},
	}
}

// MapClaimRequest starts a request to map the connection of a claim's volume, with
// everything that follows from these, too.
func MapClaimRequest(connection mappers.Connection, pvName string, connector cinder.Connector, claim *corev1.PersistentVolumeClaim, v cinder.Volume) mappers.Request {
	request := MapRequest(connection, pvName, connector)
	request.AccessModes, request.Block = claim.Spec.AccessModes, IsBlock(claim)
	request.Encrypted, request.MultiAttach = v.Encrypted, v.MultiAttach
	request.Volume = mappers.Volume{ID: v.ID, Name: v.Name, SizeGiB: v.SizeGiB, Type: v.Type, Zone: v.Zone}
	request.Claim = mappers.Claim{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}
	return request
}

// RefusalError returns the message of a claim's event about a connection that cannot be
// mapped. The backend may be empty.
func RefusalError(backend string, refused *mappers.Refusal) error {
	if backend == "" {
		return fmt.Errorf("%s: %w", refused.Reason, refused)
	}
	return fmt.Errorf("%s: backend %s: %w", refused.Reason, backend, refused)
}
