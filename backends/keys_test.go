package backends

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// TestRecordsOfKeysAreReplaced: only this cluster's, only those that are as they were
// listed, and each in one request.
func TestRecordsOfKeysAreReplaced(t *testing.T) {
	memory := newCSICinder()
	encrypted := func(n int) cinder.Volume {
		v := marked(csiVolume(n, cinder.StatusInUse))
		v.Metadata[stamps.KeyEncryption] = "former"
		return v
	}
	ours := memory.add(encrypted(1))
	foreign := encrypted(2)
	foreign.Metadata[stamps.KeyCluster] = "another"
	others := memory.add(foreign)
	memory.add(marked(csiVolume(3, cinder.StatusAvailable)))
	k := Keys{memory.term(t)}

	found, err := k.Recorded(t.Context())
	success(t, err)
	equal(t, found, []RecordedKey{{ID: ours, Text: "former"}})
	changes := len(memory.changes())
	success(t, k.Replace(t.Context(), found[0], "next"))
	equal(t, memory.volumes[ours].Metadata[stamps.KeyEncryption], "next")
	equal(t, len(memory.changes()), changes+1)
	// A run that was interrupted after the request has nothing left to do.
	success(t, k.Replace(t.Context(), found[0], "next"))
	equal(t, len(memory.changes()), changes+1)

	err = k.Replace(t.Context(), found[0], "another")
	equal(t, cinder.KindOf(err), cinder.KindConflict)
	err = k.Replace(t.Context(), RecordedKey{ID: others, Text: "former"}, "next")
	equal(t, err != nil, true)
	success(t, k.Replace(t.Context(), RecordedKey{ID: "11111111-2222-3333-4444-555555555555", Text: "former"}, "next"))
	equal(t, len(memory.changes()), changes+1)
	equal(t, memory.volumes[others].Metadata[stamps.KeyEncryption], "former")
}
