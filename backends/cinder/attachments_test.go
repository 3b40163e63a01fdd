package cinder

import (
	"net/http"
	"testing"
)

// TestAttachmentsOfAnotherProjectAreListed: an administrator finds a volume of
// another project by its ID, even if its backend now leads to a different
// project, and must find its attachments as well: a volume that seems to have
// none is unreserved. To a member who requests all projects, Cinder returns
// nothing at all.
func TestAttachmentsOfAnotherProjectAreListed(t *testing.T) {
	for name, showsAllProjects := range map[string]bool{"an administrator": true, "a member": false} {
		t.Run(name, func(t *testing.T) {
			client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /attachments": func(w http.ResponseWriter, r *http.Request) {
				body := `{"attachments": []}`
				if r.URL.Query().Has("all_tenants") == showsAllProjects && r.URL.Query().Get("volume_id") == "v1" {
					body = `{"attachments": [{"id": "a1", "volume_id": "v1", "status": "attaching"}]}`
				}
				fixed(http.StatusOK, body)(w, r)
			}})
			found, err := client.Attachments(t.Context(), "v1")
			if err != nil || len(found) != 1 || found[0].ID != "a1" {
				t.Errorf("found %+v, error %v", found, err)
			}
		})
	}
}
