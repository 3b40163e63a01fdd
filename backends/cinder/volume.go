package cinder

import "time"

// Volume is Cinder's record of one volume, with the fields that the program
// needs.
type Volume struct {
	ID          string
	Name        string
	Status      Status
	SizeGiB     int64
	Type        string
	Zone        string
	Encrypted   bool
	MultiAttach bool // several hosts may use it at once; from its type
	Metadata    map[string]string
	Attachments []Attachment
	// SourceVolumeID and SnapshotID are the source of its content.
	SourceVolumeID string
	SnapshotID     string
	CreatedAt      time.Time // in seconds, by the server's clock
}

// Object is a volume or a snapshot.
type Object interface {
	// State returns what waits and listings look at.
	State() (id string, status Status, created time.Time)
}

// IDOf returns an object's ID.
func IDOf[T Object](object T) string {
	id, _, _ := object.State()
	return id
}

// State implements Object.
func (v Volume) State() (string, Status, time.Time) { return v.ID, v.Status, v.CreatedAt }

// Attachment is one entry of a volume's attachments.
type Attachment struct {
	ID       string
	Host     string // host_name given to os-attach; empty unless the account is an administrator
	ServerID string // a Nova instance; never set by this program
	// Status is known only for attachments that the attachments API lists.
	Status AttachmentStatus
}

// AttachmentStatus is the state of an attachment
// (cinder/objects/fields.py, VolumeAttachStatus).
type AttachmentStatus string

// An attachment is reserved until the volume is exported for it, and attached once
// completed.
const (
	AttachmentReserved AttachmentStatus = "reserved"
	AttachmentAttached AttachmentStatus = "attached"
)

// Status is Cinder's volume status.
// The full list is in cinder/objects/fields.py, VolumeStatus.
type Status string

// The states that the program's volumes pass through or may be found in.
const (
	StatusCreating       Status = "creating"
	StatusAvailable      Status = "available"
	StatusAttaching      Status = "attaching"
	StatusReserved       Status = "reserved"
	StatusInUse          Status = "in-use"
	StatusDetaching      Status = "detaching"
	StatusDeleting       Status = "deleting"
	StatusError          Status = "error"
	StatusErrorDeleting  Status = "error_deleting"
	StatusExtending      Status = "extending"
	StatusErrorExtending Status = "error_extending"
	StatusRetyping       Status = "retyping"
	// StatusUnreadable is the status of a volume or snapshot whose listing entry lacks a
	// status or is otherwise odd. Cinder has no such status.
	StatusUnreadable Status = "unreadable"
)

// The metadata keys that Cinder itself writes with os-attach. os-detach removes
// the second; the first stays.
const (
	MetadataReadOnly     = "readonly"
	MetadataAttachedMode = "attached_mode"
)

// Connector describes the nodes to Cinder as one initiator: every node of the cluster
// logs in under the same names, so that any of them may mount. See the "connector" object
// of os-initialize_connection in the Block Storage API reference.
type Connector struct {
	Host      string   `json:"host"`
	IP        string   `json:"ip,omitempty"`
	Initiator string   `json:"initiator,omitempty"`
	WWPNs     []string `json:"wwpns,omitempty"`
	// WWNNs are the Fibre Channel node names of the ports, in the same order.
	WWNNs     []string `json:"wwnns,omitempty"`
	NQN       string   `json:"nqn,omitempty"`
	Multipath bool     `json:"multipath"`
}

// connectorDocument is a connector in the form that Cinder and its drivers expect. The
// platform keys are what os-brick sends from a Linux node.
type connectorDocument struct {
	Connector
	Platform    string `json:"platform"`
	OSType      string `json:"os_type"`
	LocalAttach bool   `json:"do_local_attach"`
}

func (c Connector) document() connectorDocument {
	return connectorDocument{c, "x86_64", "linux", false}
}
