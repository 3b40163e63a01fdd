package backends

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// restored is a volume that somebody restored from a backup of a claim's
// volume, an hour after that was made.
func restored(n int) Volume {
	made := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	v := mine(n, StatusAvailable)
	v.Metadata[stampRequested] = made.Format(time.RFC3339)
	v.CreatedAt = made.Add(time.Hour)
	return v
}

func TestRestoredBackupOutlivesTheVolumeThatItCopies(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	rescued := cinder.add(restored(1))
	// Another claim's waiting shows it as a second volume of the first.
	if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
		t.Fatal(err)
	}
	if err := l.Remove(t.Context(), claimTarget(1, connected.Volume.ID)); err != nil {
		t.Fatal(err)
	}
	left := cinder.snapshot()
	if _, ok := left[rescued]; !ok {
		t.Error("a restored backup was removed with the volume that it copies")
	}
	if _, ok := left[connected.Volume.ID]; ok {
		t.Error("the claim's own volume is still there")
	}
}

func TestRestoredBackupIsNotTakenForALeftover(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.add(restored(1))
	err := cinder.term(t).Abandon(t.Context(), claimStamp(1), testConnector, nil)
	equal(t, authtest.ErrorText(err), `backend gold: volume volume-1 (available) carries the stamp of claim UID "uid-1" but is younger than that claim's volume: it looks like a restored backup, and is not removed`)
	equal(t, cinder.changes(), []string(nil))
}

func TestRestoredBackupIsNoRivalOfAPendingClaimsVolume(t *testing.T) {
	cinder := newMemoryCinder()
	rescued := cinder.add(restored(1))
	own := mine(1, StatusAvailable)
	own.CreatedAt = time.Date(2026, 11, 20, 11, 0, 0, 0, time.UTC)
	cinder.add(own)
	if _, err := cinder.term(t).Connect(t.Context(), claimSpec(1)); err != nil {
		t.Fatal(err)
	}
	if _, ok := cinder.snapshot()[rescued]; !ok {
		t.Error("a restored backup was removed as a second volume")
	}
}

func TestVolumeIsACopyOnlyIfItIsMuchYoungerThanItsRequest(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name    string
		created time.Time
		copy    bool
	}{
		{"at once", at, false},
		{"before, by a clock that was set", at.Add(-time.Hour), false},
		{"after a queue", at.Add(14 * time.Minute), false},
		{"much later", at.Add(16 * time.Minute), true},
		{"Cinder does not say", time.Time{}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			equal(t, (Volume{CreatedAt: c.created, Metadata: map[string]string{stampRequested: at.Format(time.RFC3339)}}).IsCopy(), c.copy)
		})
	}
	// A volume of an earlier release does not tell when it was asked for.
	equal(t, (Volume{CreatedAt: at, Metadata: claimStamp(1).Metadata(nil)}).IsCopy(), false)
}

// TestRequestIsStampedWithCindersTime lets Cinder's clock be an hour ahead.
func TestRequestIsStampedWithCindersTime(t *testing.T) {
	at := time.Now().Add(time.Hour)
	var body struct {
		Volume struct{ Metadata map[string]string }
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", at.UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodPost {
			fmt.Fprint(w, `{"volumes": []}`)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprint(w, `{"volume": {"id": "volume-1", "status": "creating"}}`)
	}))
	defer server.Close()
	pool := NewPool(PoolOptions{Metrics: NewMetrics(prometheus.NewRegistry())})
	client, err := pool.Client(t.Context(), Config{Name: "test", Auth: auth.Source{Noauth: &auth.Noauth{Endpoint: server.URL + "/v3", Project: "abc"}}})
	if err != nil {
		t.Fatal(err)
	}
	given := claimStamp(1).Metadata(nil)
	if _, err := client.CreateVolume(t.Context(), NewVolume{Name: "pvc-1", SizeGiB: 1, Metadata: given}); err != nil {
		t.Fatal(err)
	}
	stamped, err := time.Parse(time.RFC3339, body.Volume.Metadata[stampRequested])
	if err != nil || stamped.Sub(at).Abs() > time.Minute {
		t.Errorf("stamped with %q at %s by Cinder's clock", body.Volume.Metadata[stampRequested], at)
	}
	if _, changed := given[stampRequested]; changed {
		t.Error("the caller's metadata was changed")
	}
}
