package backends

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// TestConnectByTheAttachmentsAPI: an attachment with a connection is read, one
// without is replaced, and none is ever connected again.
func TestConnectByTheAttachmentsAPI(t *testing.T) {
	for name, test := range map[string]struct {
		status      Status
		attachments []string
		unconnected bool
		want        []string
		wantErr     string
	}{
		"available":                       {status: StatusAvailable, want: []string{"attachment.create volume-1"}},
		"attaching":                       {status: StatusAttaching, attachments: []string{"attaching"}},
		"attaching, without a connection": {status: StatusAttaching, attachments: []string{"attaching"}, unconnected: true, want: []string{"attachment.delete attachment-2", "attachment.create volume-1"}},
		"reserved":                        {status: StatusReserved, attachments: []string{"reserved"}, want: []string{"attachment.delete attachment-2", "attachment.create volume-1"}},
		"two attaching":                   {status: StatusAttaching, attachments: []string{"attaching", "attaching"}, want: []string{"attachment.delete attachment-3"}},
		"failed":                          {status: StatusAttaching, attachments: []string{"error_attaching"}, want: []string{"attachment.delete attachment-2", "attachment.create volume-1"}},
		"reserved by the volume's action": {status: StatusAttaching, want: []string{"volume.os-unreserve volume-1", "attachment.create volume-1"}},
		"in use":                          {status: StatusInUse},
		"in use, without a connection":    {status: StatusInUse, unconnected: true, wantErr: "backend gold: attachment attachment-2 of volume volume-1 is complete and has no connection"},
	} {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			cinder.workflow = WorkflowAttachment
			cinder.byAttachments(1, test.status, test.attachments...)
			for _, a := range cinder.open {
				a.unconnected = test.unconnected
			}
			connected, err := cinder.term(t).Connect(t.Context(), claimSpec(1))
			equal(t, authtest.ErrorText(err), test.wantErr)
			// Only what was connected now is fresh: a stored key may be old.
			equal(t, connected.Fresh, slices.ContainsFunc(test.want, func(change string) bool { return strings.HasPrefix(change, "attachment.create") }))
			if err == nil && (connected.Document == nil || connected.AttachmentID == "") {
				t.Errorf("connected %+v", connected)
			}
			equal(t, cinder.changes(), test.want)
		})
	}
}

// An administrator finds a volume of another project by its id, which a backend
// does that led there for a while, and must find its attachments as well: a
// volume that seems to have none is unreserved. Cinder shows a member who asks
// for all projects nothing at all.
func TestAttachmentsOfAnotherProjectAreListed(t *testing.T) {
	for name, showsWhenAllAreAsked := range map[string]bool{"an administrator": true, "a member": false} {
		t.Run(name, func(t *testing.T) {
			client, _ := newScripted(t, map[string]http.HandlerFunc{"GET /attachments": func(w http.ResponseWriter, r *http.Request) {
				body := `{"attachments": []}`
				if r.URL.Query().Has("all_tenants") == showsWhenAllAreAsked && r.URL.Query().Get("volume_id") == "v1" {
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
