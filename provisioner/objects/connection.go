package objects

import (
	"fmt"

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

// RefusalError returns the message of a claim's event about a connection that cannot be
// mapped. The backend may be empty.
func RefusalError(backend string, refused *mappers.Refusal) error {
	if backend == "" {
		return fmt.Errorf("%s: %w", refused.Reason, refused)
	}
	return fmt.Errorf("%s: backend %s: %w", refused.Reason, backend, refused)
}
