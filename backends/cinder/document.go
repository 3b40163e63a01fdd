package cinder

import "time"

// volumeDocument is a volume as the API writes it. It reads more leniently
// than gophercloud's type, whose dates admit one form only.
type volumeDocument struct {
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Status      string            `json:"status"`
	Size        int64             `json:"size"`
	Type        string            `json:"volume_type"`
	Zone        string            `json:"availability_zone"`
	Encrypted   bool              `json:"encrypted"`
	MultiAttach bool              `json:"multiattach"`
	Metadata    map[string]string `json:"metadata"`
	CreatedAt   string            `json:"created_at"`
	Attachments []struct {
		AttachmentID string `json:"attachment_id"`
		HostName     string `json:"host_name"`
		ServerID     string `json:"server_id"`
	} `json:"attachments"`
}

func (d volumeDocument) volume() Volume {
	v := Volume{
		ID:          d.ID,
		Name:        d.Name,
		Status:      Status(d.Status),
		SizeGiB:     d.Size,
		Type:        d.Type,
		Zone:        d.Zone,
		Encrypted:   d.Encrypted,
		MultiAttach: d.MultiAttach,
		Metadata:    d.Metadata,
		CreatedAt:   parseTime(d.CreatedAt),
	}
	for _, a := range d.Attachments {
		v.Attachments = append(v.Attachments, Attachment{ID: a.AttachmentID, Host: a.HostName, ServerID: a.ServerID})
	}
	return v
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
