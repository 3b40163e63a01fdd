package cinder

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// TestOldCinderIsNotAskedForBackups: it answers that it accepts no such request, which counts
// against a backend whose volumes are well.
func TestOldCinderIsNotAskedForBackups(t *testing.T) {
	const id = "0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a11"
	for operation, send := range map[string]func(c *Client) error{
		"backup.list": func(c *Client) error {
			return c.ListBackups(t.Context(), Query{}, func([]Snapshot) bool { return true })
		},
		"backup.get": func(c *Client) error { _, err := c.Backup(t.Context(), id); return err },
		"backup.create": func(c *Client) error {
			_, err := c.CreateBackup(t.Context(), NewBackup{VolumeID: id, SnapshotID: id})
			return err
		},
	} {
		t.Run(operation, func(t *testing.T) {
			client, cinder := newScripted(t, map[string]http.HandlerFunc{
				"GET /volume/v3/":     fixed(200, `{"versions": [{"id": "v3.0", "status": "CURRENT", "version": "3.42", "min_version": "3.0"}]}`),
				"GET /backups/detail": fixed(406, ""),
				"GET /backups/" + id:  fixed(406, ""),
				"POST /backups":       fixed(406, ""),
			})
			err := send(client)
			equal(t, authtest.ErrorText(err), fmt.Sprintf("backend gold: %s: Cinder must offer microversion 3.43, for metadata on backups; it offers 3.42", operation))
			equal(t, KindOf(err), KindInvalid)
			equal(t, len(cinder.requests), 1)
		})
	}
}
