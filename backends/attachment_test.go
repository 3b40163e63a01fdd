package backends

import (
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// TestConnectByTheAttachmentsAPI: an attachment with a connection is read, one
// without is replaced, and none is ever connected again.
func TestConnectByTheAttachmentsAPI(t *testing.T) {
	for name, test := range map[string]struct {
		status      cinder.Status
		attachments []string
		unconnected bool
		want        []string
		wantErr     string
	}{
		"available":                       {status: cinder.StatusAvailable, want: []string{"attachment.create volume-1"}},
		"attaching":                       {status: cinder.StatusAttaching, attachments: []string{"attaching"}},
		"attaching, without a connection": {status: cinder.StatusAttaching, attachments: []string{"attaching"}, unconnected: true, want: []string{"attachment.delete attachment-2", "attachment.create volume-1"}},
		"reserved":                        {status: cinder.StatusReserved, attachments: []string{"reserved"}, want: []string{"attachment.delete attachment-2", "attachment.create volume-1"}},
		"two attaching":                   {status: cinder.StatusAttaching, attachments: []string{"attaching", "attaching"}, want: []string{"attachment.delete attachment-3"}},
		"failed":                          {status: cinder.StatusAttaching, attachments: []string{"error_attaching"}, want: []string{"attachment.delete attachment-2", "attachment.create volume-1"}},
		"reserved by the volume's action": {status: cinder.StatusAttaching, want: []string{"volume.os-unreserve volume-1", "attachment.create volume-1"}},
		"in use":                          {status: cinder.StatusInUse},
		"in use, without a connection":    {status: cinder.StatusInUse, unconnected: true, wantErr: "backend gold: attachment attachment-2 of volume volume-1 is complete but has no connection information"},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.workflow = cinder.WorkflowAttachment
			memory.byAttachments(1, test.status, test.attachments...)
			for _, a := range memory.open {
				a.unconnected = test.unconnected
			}
			connected, err := memory.term(t).Connect(t.Context(), claimSpec(1))
			equal(t, authtest.ErrorText(err), test.wantErr)
			// Only a connection made now is fresh: a stored key may be
			// outdated.
			equal(t, connected.Fresh, slices.ContainsFunc(test.want, func(change string) bool { return strings.HasPrefix(change, "attachment.create") }))
			if err == nil && (connected.Document == nil || connected.AttachmentID == "") {
				t.Errorf("connected %+v", connected)
			}
			equal(t, memory.changes(), test.want)
		})
	}
}
