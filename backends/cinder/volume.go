package cinder

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// Volume is Cinder's record of one volume, with the fields that the program
// needs.
type Volume struct {
	ID          string
	Name        string
	Description string
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
	StatusUpdating       Status = "updating" // of a group that volumes join or leave
	StatusError          Status = "error"
	StatusErrorDeleting  Status = "error_deleting"
	StatusExtending      Status = "extending"
	StatusErrorExtending Status = "error_extending"
	StatusRetyping       Status = "retyping"
	StatusMaintenance    Status = "maintenance"
	StatusRestoring      Status = "restoring-backup"
	// StatusBackupRestoring is that of a backup or a snapshot whose content a volume gets.
	StatusBackupRestoring Status = "restoring"
	StatusBackingUp       Status = "backing-up"
	// StatusUnmanaging is that of a snapshot that Cinder is to forget, StatusDeleted that of
	// one whose group snapshot Cinder could not delete as a whole.
	StatusUnmanaging Status = "unmanaging"
	StatusDeleted    Status = "deleted"
	// StatusErrorRestoring is that of a volume that did not get a backup's content.
	StatusErrorRestoring Status = "error_restoring"
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

// volumeDocument is a volume in the API's JSON form. A field of a wrong type does not
// make the whole volume unreadable: a single odd volume must not fail a listing of a
// thousand.
type volumeDocument struct {
	ID           jsonstream.Text   `json:"id"`
	Name         jsonstream.Text   `json:"name"`
	Description  jsonstream.Text   `json:"description"`
	Status       jsonstream.Text   `json:"status"`
	Size         jsonstream.Number `json:"size"`
	Type         jsonstream.Text   `json:"volume_type"`
	Zone         jsonstream.Text   `json:"availability_zone"`
	Encrypted    jsonstream.Flag   `json:"encrypted"`
	MultiAttach  jsonstream.Flag   `json:"multiattach"`
	SourceVolume jsonstream.Text   `json:"source_volid"`
	Snapshot     jsonstream.Text   `json:"snapshot_id"`
	Metadata     json.RawMessage   `json:"metadata"`
	CreatedAt    jsonstream.Text   `json:"created_at"`
	Attachments  json.RawMessage   `json:"attachments"`
	Migration    jsonstream.Text   `json:"os-vol-mig-status-attr:migstat"`
}

// readVolume decodes a volume. odd means that a field that the program acts on has a
// wrong type. Metadata is nil if it cannot be read; the volume's owner is then unknown.
// keep selects metadata keys; nil keeps all of them.
func readVolume(decode func(document any) error, keep func(key string) bool) (v Volume, odd bool, err error) {
	var d volumeDocument
	if err := decode(&d); err != nil {
		return Volume{}, false, err
	}
	metadata, metadataErr := readMetadata(d.Metadata, keep)
	attachments, attachmentsErr := readAttachments(d.Attachments)
	v = Volume{
		ID:             d.ID.Value,
		Name:           d.Name.Value,
		Description:    d.Description.Value,
		Status:         Status(d.Status.Value),
		SizeGiB:        d.Size.Value,
		Type:           d.Type.Value,
		Zone:           d.Zone.Value,
		Encrypted:      d.Encrypted.Value,
		MultiAttach:    d.MultiAttach.Value,
		SourceVolumeID: d.SourceVolume.Value,
		SnapshotID:     d.Snapshot.Value,
		Metadata:       metadata,
		CreatedAt:      parseTime(d.CreatedAt.Value),
		Attachments:    attachments,
	}
	if strings.HasPrefix(d.Migration.Value, "target:") {
		// While Cinder migrates a volume, the copy that it makes has the same name and
		// metadata, and administrators see it. It is Cinder's, not that of the claim.
		v.Name, v.Metadata = "", map[string]string{}
	}
	if v.Status == StatusAvailable && slices.Contains([]string{"starting", "migrating", "completing"}, d.Migration.Value) {
		// An administrator may migrate a volume without locking it, and then its status stays.
		// What is written to it meanwhile is lost.
		v.Status = StatusMaintenance
	}
	odd = d.ID.Odd || d.Status.Odd || d.Size.Odd || d.Type.Odd || d.Encrypted.Odd || d.MultiAttach.Odd
	if metadataErr != nil {
		v.Metadata = nil
	}
	return v, odd || metadataErr != nil || attachmentsErr != nil, nil
}

// readMetadata reads the keys to keep. Metadata of the usual size is decoded at once,
// which takes less time and memory. Longer metadata, as in a hostile answer, is read key
// by key, because a map of all keys takes many times the memory of the answer.
func readMetadata(part json.RawMessage, keep func(key string) bool) (map[string]string, error) {
	const usual = 8 << 10
	if len(part) <= usual {
		return readUsualMetadata(part, keep)
	}
	metadata := map[string]string{}
	decoder, ok := jsonstream.DecoderOf(part)
	if !ok {
		return nil, jsonstream.ErrUnexpectedJSON
	}
	err := jsonstream.Fields(decoder, func(key string) error {
		if keep != nil && !keep(key) {
			return decoder.Decode(&jsonstream.Skipped{})
		}
		var value jsonstream.Text
		err := decoder.Decode(&value)
		metadata[key] = value.Value
		if err == nil && keep != nil && value.Odd {
			err = jsonstream.ErrUnexpectedJSON
		}
		return err
	})
	return metadata, err
}

func readUsualMetadata(part json.RawMessage, keep func(key string) bool) (map[string]string, error) {
	var all map[string]jsonstream.Text
	if len(part) > 0 {
		if err := json.Unmarshal(part, &all); err != nil {
			return nil, err
		}
	}
	if all == nil {
		return nil, jsonstream.ErrUnexpectedJSON
	}
	metadata := make(map[string]string, len(all))
	for key, value := range all {
		switch {
		case keep != nil && !keep(key):
		case keep != nil && value.Odd:
			return nil, jsonstream.ErrUnexpectedJSON
		default:
			metadata[key] = value.Value
		}
	}
	return metadata, nil
}

// maxAttachments bounds how many attachments of one volume are read. A multi-attach
// volume has one for each host.
const maxAttachments = 1024

func readAttachments(part json.RawMessage) (attachments []Attachment, err error) {
	decoder, ok := jsonstream.DecoderOf(part)
	if !ok {
		return nil, nil
	}
	_, err = jsonstream.Elements(decoder, func() error {
		if len(attachments) == maxAttachments {
			return jsonstream.ErrUnexpectedJSON
		}
		var a struct {
			AttachmentID string `json:"attachment_id"`
			HostName     string `json:"host_name"`
			ServerID     string `json:"server_id"`
		}
		err := decoder.Decode(&a)
		attachments = append(attachments, Attachment{ID: a.AttachmentID, Host: a.HostName, ServerID: a.ServerID})
		return err
	})
	return attachments, err
}

// parseTime reads Cinder's timestamps, which are in UTC without a zone.
func parseTime(text string) time.Time {
	for _, layout := range []string{"2006-01-02T15:04:05.999999", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return t
		}
	}
	return time.Time{}
}
