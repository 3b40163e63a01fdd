package mappers

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Reason classifies a Refusal. The values are stable: they become reasons of
// events and labels of metrics.
type Reason string

const (
	// UnsupportedProtocol means that no mapper knows the connection's protocol.
	UnsupportedProtocol Reason = "UnsupportedProtocol"
	// MappingRequired means that the protocol is known, but Kubernetes has no
	// source of its own for it, and the operator has named no driver.
	MappingRequired Reason = "MappingRequired"
	// EncryptedVolume means that Cinder expects the consumer to open the volume's
	// LUKS layer, which no kubelet does.
	EncryptedVolume Reason = "EncryptedVolume"
	// InvalidConnection means that the document is malformed, incomplete or
	// contradicts itself.
	InvalidConnection Reason = "InvalidConnection"
	// UnsupportedConnection means that the document is sound, but no source can
	// express it (LUNs above 255, different LUNs per path, exotic target names).
	UnsupportedConnection Reason = "UnsupportedConnection"
	// UnsupportedAuthentication means that the target requires an authentication
	// that kubelet does not support.
	UnsupportedAuthentication Reason = "UnsupportedAuthentication"
	// UnsupportedAccessMode means that the source cannot honor an access mode of
	// the claim.
	UnsupportedAccessMode Reason = "UnsupportedAccessMode"
	// InvalidConnector means that the connector's initiator cannot be written to a
	// PersistentVolume.
	InvalidConnector Reason = "InvalidConnector"
	// InvalidMapping means that the operator's mapping lacks something the source
	// needs or asks for something the protocol does not have.
	InvalidMapping Reason = "InvalidMapping"
)

// Refusal says why a volume cannot be mapped. Nothing was partly mapped.
type Refusal struct {
	Reason Reason
	// Message is one sentence naming the field, its value and the remedy. It is
	// fit for the event of a claim: it never holds a secret.
	Message string
}

// Error returns the message alone, as it should appear in an event next to
// the reason.
func (r *Refusal) Error() string { return r.Message }

// HandleTaken refuses a volume whose handle belongs to another PersistentVolume
// of the driver.
func HandleTaken(protocol string, source *corev1.CSIPersistentVolumeSource, by string) *Refusal {
	return refuse(InvalidMapping, "volumeHandle %q is already used by PersistentVolume %s of driver %s, so nodes would mount the wrong volume; correct mapping.%s of the backend so that the handle names one volume, as {{ .volume.id }} does, or remove that PersistentVolume if its volume is gone",
		source.VolumeHandle, by, source.Driver, protocol)
}

func refuse(reason Reason, format string, arguments ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, arguments...)}
}
