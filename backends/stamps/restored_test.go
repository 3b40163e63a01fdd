package stamps

import (
	"maps"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// TestDescriptionOfARestoredVolumeLeadsToItsClaim: whatever metadata Cinder has put on the
// volume, and however long the names are.
func TestDescriptionOfARestoredVolumeLeadsToItsClaim(t *testing.T) {
	uid := strings.Repeat("u", 36)
	stamp := Volume{Cluster: strings.Repeat("c", 63), ClusterUID: uid, ClaimUID: uid, PV: "pvc-" + uid}
	description := stamp.RestoredFrom(uid)
	if len(description) > 255 {
		t.Fatalf("Cinder refuses a description of %d characters: %s", len(description), description)
	}
	other := Volume{Cluster: stamp.Cluster, ClusterUID: uid, ClaimUID: "other", PV: "pvc-other"}.Metadata(map[string]string{KeyAttached: "true"})
	mark := maps.Clone(other)
	mark[cinder.MetadataSourceBackup] = uid
	for name, test := range map[string]struct {
		status   cinder.Status
		metadata map[string]string
		ours     bool
	}{
		"Cinder is restoring it":             {status: cinder.StatusCreating, metadata: other, ours: true},
		"Cinder could not detach it":         {status: cinder.StatusErrorRestoring, metadata: other, ours: true},
		"Cinder has restored it":             {status: cinder.StatusAvailable, metadata: mark, ours: true},
		"somebody has replaced its metadata": {status: cinder.StatusAvailable, metadata: other},
		"somebody restores something else":   {status: "restoring-backup", metadata: other},
	} {
		v := Settled(cinder.Volume{Name: stamp.PV, Status: test.status, Description: description, Metadata: test.metadata})
		if IsRestoring(v) != (test.status == cinder.StatusCreating) || IsUnstamped(v) != test.ours || stamp.Owns(v) != test.ours || test.ours && (Of(v).ClusterUID != uid || EverAttached(v)) || v.Description != "" {
			t.Errorf("%s: %+v", name, v)
		}
	}
}
