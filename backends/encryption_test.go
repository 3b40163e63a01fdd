package backends

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestCopiesAreOpenedWithTheKeyOfTheirSource: the content of a copy is encrypted as that of
// its source, so it needs the same record, from the create request on. A record that
// cannot be read is no reason to lose it.
func TestCopiesAreOpenedWithTheKeyOfTheirSource(t *testing.T) {
	for name, record := range map[string]string{"encrypted": "1 keys/2026-11 o BwcH", "with a damaged record": "2 ?", "not encrypted": ""} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			l := memory.term(t)
			made := marked(csiVolume(2, cinder.StatusAvailable))
			if record != "" {
				made.Metadata[stamps.KeyEncryption] = record
			}
			volume := csiTarget(2, memory.add(made))
			wanted := snapshotSpec(1, volume.VolumeID)
			wanted.Source, wanted.CSI = volume, true
			s, err := l.Snapshots().TakeSnapshot(t.Context(), wanted)
			success(t, err)
			equal(t, s.Metadata[stamps.KeyEncryption], record)
			snapshot := SnapshotTarget{SnapshotID: s.ID, Stamp: wanted.Stamp, Place: memoryPlace}
			// The snapshot keeps its record after the volume is gone, or loses it.
			delete(memory.volumes[volume.VolumeID].Metadata, stamps.KeyEncryption)
			restoring := csiSpec(1)
			restoring.Source = Source{Snapshot: &snapshot}
			if record != "" {
				restoring.NewKey = neverMade(t)
			}
			restored, err := l.Connect(t.Context(), restoring)
			success(t, err)
			equal(t, restored.Volume.Metadata[stamps.KeyEncryption], record)

			from := csiTarget(1, restored.Volume.ID)
			cloning := csiSpec(3)
			cloning.Source, cloning.NewKey = Source{Volume: &from}, restoring.NewKey
			cloned, err := l.Connect(t.Context(), cloning)
			success(t, err)
			equal(t, cloned.Volume.Metadata[stamps.KeyEncryption], record)

			// The volume that an earlier attempt made keeps its own record.
			memory.volumes[from.VolumeID].Metadata[stamps.KeyEncryption] = "1 keys/2026-12 o BwcH"
			again, err := memory.term(t).Connect(t.Context(), cloning)
			success(t, err)
			equal(t, again.Volume.ID, cloned.Volume.ID)
			equal(t, again.Volume.Metadata[stamps.KeyEncryption], record)

			changes := len(memory.changes())
			for _, spec := range []Spec{claimSpec(4), csiSpec(4)} {
				spec.Source = cloning.Source
				_, err = l.Connect(t.Context(), spec)
				equal(t, cinder.KindOf(err), cinder.KindInvalid)
				equal(t, len(memory.changes()), changes)
			}
		})
	}
}

// TestCopiesHaveAllRecordsOfTheirSource: a source that gets a new key has several, and any of
// them may be the one that opens the content of the copy.
func TestCopiesHaveAllRecordsOfTheirSource(t *testing.T) {
	for _, records := range []stamps.KeyRecords{
		{Main: "1 keys/2026-11 o BwcH", Next: "1 keys/2026-12 o BwcI", Since: "2026-11-29T12:00:00Z"},
		{Main: "1 keys/2026-12 o BwcI", Former: "1 keys/2026-11 o BwcH", Since: "2026-11-29T13:00:00Z"},
		{Main: "unreadable", Next: "as well", Former: "and this"},
	} {
		memory := newCSICinder()
		l := memory.term(t)
		v := marked(csiVolume(2, cinder.StatusInUse))
		for key, value := range (stamps.KeyRecords{}).Changes(records) {
			v.Metadata[key] = value
		}
		volume := csiTarget(2, memory.add(v))
		wanted := snapshotSpec(1, volume.VolumeID)
		wanted.Source, wanted.CSI = volume, true
		s, err := l.Snapshots().TakeSnapshot(t.Context(), wanted)
		success(t, err)
		equal(t, stamps.KeyRecordsOf(s.Metadata), records)
		cloning := csiSpec(3)
		cloning.Source, cloning.NewKey = Source{Volume: &volume}, neverMade(t)
		cloned, err := l.Connect(t.Context(), cloning)
		success(t, err)
		equal(t, stamps.KeyRecordsOf(cloned.Volume.Metadata), records)
		// The source goes on; the snapshot does not.
		memory.volumes[volume.VolumeID].Metadata[stamps.KeyEncryptionNext] = ""
		restoring := csiSpec(1)
		restoring.Source, restoring.NewKey = Source{Snapshot: &SnapshotTarget{SnapshotID: s.ID, Stamp: wanted.Stamp, Place: memoryPlace}}, neverMade(t)
		restored, err := l.Connect(t.Context(), restoring)
		success(t, err)
		equal(t, stamps.KeyRecordsOf(restored.Volume.Metadata), records)
	}
}

func neverMade(t *testing.T) func(context.Context) (stamps.EncryptionRecord, error) {
	return func(context.Context) (stamps.EncryptionRecord, error) {
		t.Error("a key is made for a volume that has one, or needs none")
		return stamps.EncryptionRecord{}, nil
	}
}

// TestAVolumeHasOneKeyForever: it is part of the request that makes the volume. No later
// attempt makes another one, whatever became of the answer.
func TestAVolumeHasOneKeyForever(t *testing.T) {
	record := func(n int) stamps.EncryptionRecord {
		return stamps.EncryptionRecord{Secret: "keys", Entry: "2026-11", Origin: "o", Wrapped: []byte{byte(n)}}
	}
	made := 0
	encrypted := func() Spec {
		spec := csiSpec(1)
		spec.NewKey = func(context.Context) (stamps.EncryptionRecord, error) {
			made++
			return record(made), nil
		}
		return spec
	}
	t.Run("without the key-encryption key, nothing is made", func(t *testing.T) {
		memory, spec := newCSICinder(), encrypted()
		failed := errors.New("no Secret")
		spec.NewKey = func(context.Context) (stamps.EncryptionRecord, error) { return stamps.EncryptionRecord{}, failed }
		_, err := memory.term(t).Connect(t.Context(), spec)
		equal(t, errors.Is(err, failed), true)
		spec.NewKey = func(context.Context) (stamps.EncryptionRecord, error) {
			return stamps.EncryptionRecord{Secret: "a b"}, nil
		}
		_, err = memory.term(t).Connect(t.Context(), spec)
		equal(t, err != nil, true)
		equal(t, len(memory.changes()), 0)
	})
	t.Run("a retry, and another leader, find it", func(t *testing.T) {
		made = 0
		memory := newCSICinder()
		first, err := memory.term(t).Connect(t.Context(), encrypted())
		success(t, err)
		again, err := memory.term(t).Connect(t.Context(), encrypted())
		success(t, err)
		equal(t, again.Volume.ID, first.Volume.ID)
		equal(t, made, 1)
		equal(t, again.Volume.Metadata[stamps.KeyEncryption], record(1).String())
	})
	t.Run("a volume of a rule that has since changed is replaced", func(t *testing.T) {
		made = 0
		memory := newCSICinder()
		plain, err := memory.term(t).Connect(t.Context(), csiSpec(1))
		success(t, err)
		secret, err := memory.term(t).Connect(t.Context(), encrypted())
		success(t, err)
		equal(t, secret.Volume.Metadata[stamps.KeyEncryption], record(1).String())
		equal(t, memory.volumes[plain.Volume.ID] == nil, true)
		_, err = memory.term(t).Connect(t.Context(), csiSpec(1))
		success(t, err)
		equal(t, memory.volumes[secret.Volume.ID] == nil, true)
	})
	t.Run("a copy of what is not encrypted gets none", func(t *testing.T) {
		memory := newCSICinder()
		source := csiTarget(2, memory.add(marked(csiVolume(2, cinder.StatusAvailable))))
		spec := csiSpec(1)
		spec.Source, spec.NewKey = Source{Volume: &source}, neverMade(t)
		_, err := memory.term(t).Connect(t.Context(), spec)
		equal(t, cinder.KindOf(err), cinder.KindInvalid)
		memory.volumes[source.VolumeID].Metadata[stamps.KeyEncryption] = ""
		_, err = memory.term(t).Connect(t.Context(), spec)
		equal(t, cinder.KindOf(err), cinder.KindInvalid)
		equal(t, len(memory.changes()), 0)
	})
}

// TestAKeyManagerThatRefusesTheTokenCostsNoLogins: Cinder accepts the token, so a new one
// helps nobody. Nevertheless each attempt drops the client that the whole backend uses, and
// with it what its renewals have learned, and logs in twice.
func TestAKeyManagerThatRefusesTheTokenCostsNoLogins(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Catalog = []any{cindertest.Entry("volumev3", "RegionOne", cloud.URL+"/volume/v3/0123456789abcdef0123456789abcdef"),
		cindertest.Entry("key-manager", "RegionOne", cloud.URL+"/key-manager")}
	cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/key-manager/") {
			cindertest.Answer(w, http.StatusUnauthorized, `{"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}`)
			return
		}
		cindertest.Answer(w, http.StatusOK, `{"encryption_key_id": null}`)
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	s := testSession(t.Context(), pool)
	before, err := s.login(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const attempts = 10
	for range attempts {
		err := s.exchange(t.Context(), turns.Admission{}, func(client Cinder) error {
			_, err := client.(encryptionRequests).Key(t.Context(), "9c2b1d2e-7a55-4b1c-8f0e-0f6a3c1d2e3f")
			return err
		})
		if err == nil || cinder.IsKind(err, cinder.KindNotFound) {
			t.Fatal(err)
		}
	}
	if after, err := s.login(t.Context()); err != nil || after != before {
		t.Errorf("the backend's client was replaced, although Cinder accepts its token (%v)", err)
	}
	if n := cloud.LoginCount(); n > 2 {
		t.Errorf("%d attempts to read a key cost %d logins", attempts, n-1)
	}
}
