package backends

import (
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
	for name, record := range map[string]string{"encrypted": "1 keys/2026-11 BwcH", "with a damaged record": "2 ?", "not encrypted": ""} {
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
			restored, err := l.Connect(t.Context(), restoring)
			success(t, err)
			equal(t, restored.Volume.Metadata[stamps.KeyEncryption], record)

			from := csiTarget(1, restored.Volume.ID)
			cloning := csiSpec(3)
			cloning.Source = Source{Volume: &from}
			cloned, err := l.Connect(t.Context(), cloning)
			success(t, err)
			equal(t, cloned.Volume.Metadata[stamps.KeyEncryption], record)

			// The volume that an earlier attempt made keeps its own record.
			memory.volumes[from.VolumeID].Metadata[stamps.KeyEncryption] = "1 keys/2026-12 BwcH"
			again, err := memory.term(t).Connect(t.Context(), cloning)
			success(t, err)
			equal(t, again.Volume.ID, cloned.Volume.ID)
			equal(t, again.Volume.Metadata[stamps.KeyEncryption], record)

			native := claimSpec(4)
			native.Source = cloning.Source
			changes := len(memory.changes())
			_, err = l.Connect(t.Context(), native)
			equal(t, cinder.KindOf(err), cinder.KindInvalid)
			equal(t, len(memory.changes()), changes)
		})
	}
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
