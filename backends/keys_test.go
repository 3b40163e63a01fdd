package backends

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

func main(text string) stamps.KeyRecords { return stamps.KeyRecords{Main: text} }

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
	equal(t, found, []RecordedKey{{ID: ours, KeyRecords: main("former")}})
	changes := len(memory.changes())
	success(t, k.Replace(t.Context(), found[0], main("next")))
	equal(t, memory.volumes[ours].Metadata[stamps.KeyEncryption], "next")
	equal(t, len(memory.changes()), changes+1)
	// A run that was interrupted after the request has nothing left to do.
	success(t, k.Replace(t.Context(), found[0], main("next")))
	equal(t, len(memory.changes()), changes+1)

	err = k.Replace(t.Context(), found[0], main("another"))
	equal(t, cinder.KindOf(err), cinder.KindConflict)
	err = k.Replace(t.Context(), RecordedKey{ID: others, KeyRecords: main("former")}, main("next"))
	equal(t, err != nil, true)
	success(t, k.Replace(t.Context(), RecordedKey{ID: "11111111-2222-3333-4444-555555555555", KeyRecords: main("former")}, main("next")))
	equal(t, len(memory.changes()), changes+1)
	equal(t, memory.volumes[others].Metadata[stamps.KeyEncryption], "former")
}

// TestRecordsOfKeysAreNotReplacedWhileCinderMayWriteThemBack: the operator would remove the
// former entry, and then the volume would have the former record again.
func TestRecordsOfKeysAreNotReplacedWhileCinderMayWriteThemBack(t *testing.T) {
	for status, isRefused := range map[cinder.Status]bool{
		"available": false, "in-use": false, "attaching": false, "extending": false, "error": false, "backing-up": false,
		"creating": true, "retyping": true, "maintenance": true, "restoring-backup": true,
	} {
		t.Run(string(status), func(t *testing.T) {
			memory := newCSICinder()
			v := marked(csiVolume(1, status))
			v.Metadata[stamps.KeyEncryption] = "former"
			id := memory.add(v)
			memory.volumes[id].left = 100 // it stays in this state
			k := Keys{memory.term(t)}
			found, err := k.Recorded(t.Context())
			success(t, err)
			err = k.Replace(t.Context(), found[0], main("next"))
			want, kind := "next", cinder.Kind("")
			if isRefused {
				want, kind = "former", cinder.KindConflict
			}
			equal(t, cinder.KindOf(err), kind)
			equal(t, memory.volumes[id].Metadata[stamps.KeyEncryption], want)
		})
	}
	t.Run("retyped meanwhile", func(t *testing.T) {
		memory := newCSICinder()
		v := marked(csiVolume(1, cinder.StatusAvailable))
		v.Metadata[stamps.KeyEncryption] = "former"
		id := memory.add(v)
		k := Keys{memory.term(t)}
		found, err := k.Recorded(t.Context())
		success(t, err)
		memory.before = func(operation string) {
			if operation == "metadata.update" {
				memory.volumes[id].Status = cinder.StatusRetyping
			}
		}
		equal(t, cinder.KindOf(k.Replace(t.Context(), found[0], main("next"))), cinder.KindConflict)
	})
}

// TestRecordsOfKeysAreReplacedOnlyOnMarkedSnapshots: the leader's mark and the record would
// be written at once, and of two such requests, Cinder takes back the keys of one.
func TestRecordsOfKeysAreReplacedOnlyOnMarkedSnapshots(t *testing.T) {
	for name, test := range map[string]struct {
		status cinder.Status
		marked bool
		kind   cinder.Kind
	}{
		"marked":                {cinder.StatusAvailable, true, ""},
		"marked and in error":   {cinder.StatusError, true, ""},
		"being taken":           {cinder.StatusCreating, false, cinder.KindConflict},
		"taken, not yet marked": {cinder.StatusAvailable, false, cinder.KindConflict},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			id := memory.addSnapshot(1, memory.add(csiVolume(1, cinder.StatusAvailable)), test.status)
			memory.snapshots[id].left = 100
			memory.snapshots[id].Metadata[stamps.KeyEncryption] = "former"
			if test.marked {
				memory.snapshots[id].Metadata[stamps.KeyRecorded] = "true"
			}
			k := Keys{memory.term(t)}
			found, err := k.Recorded(t.Context())
			success(t, err)
			equal(t, found, []RecordedKey{{ID: id, IsSnapshot: true, KeyRecords: main("former")}})
			equal(t, cinder.KindOf(k.Replace(t.Context(), found[0], main("next"))), test.kind)
			want := "next"
			if test.kind != "" {
				want = "former"
			}
			equal(t, memory.snapshots[id].Metadata[stamps.KeyEncryption], want)
		})
	}
}
