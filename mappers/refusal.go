package mappers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Reason classifies a Refusal. The values are stable: they become reasons of
// events and labels of metrics.
type Reason string

const (
	// UnsupportedProtocol means that the connection's protocol has no mapper.
	UnsupportedProtocol Reason = "UnsupportedProtocol"
	// MappingRequired means that Kubernetes has no native source for the protocol, and
	// the operator has named no driver.
	MappingRequired Reason = "MappingRequired"
	// EncryptedVolume means that the consumer must open the volume's LUKS layer, which no
	// kubelet does, or in a way that nodes in mode csi do not know.
	EncryptedVolume Reason = "EncryptedVolume"
	// InvalidConnection means that the document is malformed, incomplete or
	// self-contradictory.
	InvalidConnection Reason = "InvalidConnection"
	// UnsupportedConnection means that the document is valid, but no source can express
	// it (LUNs above 255, different LUNs per path, exotic target names).
	UnsupportedConnection Reason = "UnsupportedConnection"
	// UnsupportedAuthentication means that the target requires authentication that
	// kubelet does not support.
	UnsupportedAuthentication Reason = "UnsupportedAuthentication"
	// UnsupportedAccessMode means that the source cannot honor an access mode of
	// the claim.
	UnsupportedAccessMode Reason = "UnsupportedAccessMode"
	// InvalidConnector means that the connector's initiator cannot be stored in a
	// PersistentVolume.
	InvalidConnector Reason = "InvalidConnector"
	// InvalidMapping means that the operator's mapping lacks something that the source
	// needs, or requests something that the protocol lacks.
	InvalidMapping Reason = "InvalidMapping"
)

// Refusal explains why a volume cannot be mapped. Nothing was mapped in part.
type Refusal struct {
	Reason Reason
	// Message is one sentence that names the field, its value and the remedy. It may be
	// shown in the claim's event: it never contains a secret.
	Message string
}

// Error returns only the message, as shown in an event next to the reason.
func (r *Refusal) Error() string { return r.Message }

// HandleTaken refuses a volume whose handle belongs to another PersistentVolume of the
// driver.
func HandleTaken(protocol string, source *corev1.CSIPersistentVolumeSource, by string) *Refusal {
	return refuse(InvalidMapping, "volumeHandle %q is already used by PersistentVolume %s of driver %s, so nodes would mount the wrong volume; correct mapping.%s of the backend so that the handle names one volume, as {{ .volume.id }} does, or remove that PersistentVolume if its volume is gone",
		source.VolumeHandle, by, source.Driver, protocol)
}

func refuse(reason Reason, format string, arguments ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, arguments...)}
}
