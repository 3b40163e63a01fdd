package cinder

import (
	"encoding/json"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// volumeDocument is a volume in the API's JSON form. A field of a wrong type does not
// make the whole volume unreadable: a single odd volume must not fail a listing of a
// thousand.
type volumeDocument struct {
	ID           jsonstream.Text   `json:"id"`
	Name         jsonstream.Text   `json:"name"`
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
