package cinder

import (
	"encoding/json"
	"time"
)

// volumeDocument is a volume as the API writes it. No field of a wrong type
// makes the whole volume unreadable: a single odd volume must not make a listing
// of a thousand fail.
type volumeDocument struct {
	ID           text            `json:"id"`
	Name         text            `json:"name"`
	Status       text            `json:"status"`
	Size         number          `json:"size"`
	Type         text            `json:"volume_type"`
	Zone         text            `json:"availability_zone"`
	Encrypted    flag            `json:"encrypted"`
	MultiAttach  flag            `json:"multiattach"`
	SourceVolume text            `json:"source_volid"`
	Snapshot     text            `json:"snapshot_id"`
	Metadata     json.RawMessage `json:"metadata"`
	CreatedAt    text            `json:"created_at"`
	Attachments  json.RawMessage `json:"attachments"`
}

// volume returns the volume, and whether a field that the program acts on has a
// wrong type. Its metadata is nil if it cannot be read, so that it is unknown
// whose volume it is. keep selects metadata keys; nil keeps all of them.
func (d volumeDocument) volume(keep func(key string) bool) (v Volume, odd bool) {
	metadata, err := readMetadata(d.Metadata, keep)
	attachments, attachmentsErr := readAttachments(d.Attachments)
	v = Volume{
		ID:             d.ID.value,
		Name:           d.Name.value,
		Status:         Status(d.Status.value),
		SizeGiB:        d.Size.value,
		Type:           d.Type.value,
		Zone:           d.Zone.value,
		Encrypted:      d.Encrypted.value,
		MultiAttach:    d.MultiAttach.value,
		SourceVolumeID: d.SourceVolume.value,
		SnapshotID:     d.Snapshot.value,
		Metadata:       metadata,
		CreatedAt:      parseTime(d.CreatedAt.value),
		Attachments:    attachments,
	}
	odd = d.ID.odd || d.Status.odd || d.Size.odd || d.Type.odd || d.Encrypted.odd || d.MultiAttach.odd
	if err != nil {
		v.Metadata = nil
	}
	return v, odd || err != nil || attachmentsErr != nil
}

// readMetadata reads the keys that are to be kept, one by one: a map of
// everything in a hostile answer takes many times the memory of the answer.
func readMetadata(part json.RawMessage, keep func(key string) bool) (map[string]string, error) {
	metadata := map[string]string{}
	decoder, ok := decoderOf(part)
	if !ok {
		return nil, errNotAsDescribed
	}
	err := fields(decoder, func(key string) error {
		if keep != nil && !keep(key) {
			return decoder.Decode(&skipped{})
		}
		var value text
		err := decoder.Decode(&value)
		metadata[key] = value.value
		if err == nil && keep != nil && value.odd {
			err = errNotAsDescribed
		}
		return err
	})
	return metadata, err
}

// mostAttachments is how many attachments of one volume are read. A volume for
// several hosts has one for each.
const mostAttachments = 1024

func readAttachments(part json.RawMessage) (attachments []Attachment, err error) {
	decoder, ok := decoderOf(part)
	if !ok {
		return nil, nil
	}
	_, err = elements(decoder, func() error {
		if len(attachments) == mostAttachments {
			return errNotAsDescribed
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

// parseTime reads Cinder's time stamps, which are UTC without saying so.
func parseTime(text string) time.Time {
	for _, layout := range []string{"2006-01-02T15:04:05.999999", time.RFC3339Nano} {
		if t, err := time.Parse(layout, text); err == nil {
			return t
		}
	}
	return time.Time{}
}
