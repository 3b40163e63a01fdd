package backends

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// movedTerm returns a term whose credentials began to lead to another project
// after it had connected a volume for claim 1.
func movedTerm(t *testing.T) (l *Lifecycle, before *memoryCinder, clients *changingClients, id string) {
	t.Helper()
	before, after := newMemoryCinder(), newMemoryCinder()
	after.place = cinder.Place{Endpoint: memoryPlace.Endpoint, Project: "p2"}
	clients = &changingClients{now: before}
	term := before.term(t)
	l = newLifecycle(term.options, clients)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	clients.leadTo(after)
	_, _ = l.Volumes(t.Context())
	if _, _, err := l.Find(t.Context(), connected.Volume.ID); !cinder.IsKind(err, cinder.KindConflict) && err != nil {
		t.Fatal(err)
	}
	return l, before, clients, connected.Volume.ID
}

// TestAbandonAtAnotherPlaceProvesNothing: the claim is deleted while the
// credentials lead to another project. If Abandon reported that everything is
// gone, its caller would remove the Secret, free the quota and forget the
// claim, although the volume is where it was, connected.
func TestAbandonAtAnotherPlaceProvesNothing(t *testing.T) {
	l, before, _, _ := movedTerm(t)
	err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	for cinder.IsKind(err, cinder.KindConflict) {
		err = l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	}
	if n := len(before.present()); n != 1 {
		t.Fatalf("%d volumes", n)
	}
	if err == nil {
		t.Error("the volume exists but is reported gone")
	}
}

// TestRemovalOfAListedVolumeAtAnotherPlaceProvesNothing: the volume was listed
// at a place other than that of the removal.
func TestRemovalOfAListedVolumeAtAnotherPlaceProvesNothing(t *testing.T) {
	l, before, _, id := movedTerm(t)
	err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
	for cinder.IsKind(err, cinder.KindConflict) {
		err = l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
	}
	if n := len(before.present()); n != 1 {
		t.Fatalf("%d volumes", n)
	}
	if err == nil {
		t.Error("the volume exists but is reported removed")
	}
}

// TestMarkAtAnotherPlaceIsNotMissing: KindNotFound ends the marking for good.
func TestMarkAtAnotherPlaceIsNotMissing(t *testing.T) {
	l, _, _, id := movedTerm(t)
	target := claimTarget(1, id)
	err := l.Mark(t.Context(), target)
	for cinder.IsKind(err, cinder.KindConflict) {
		err = l.Mark(t.Context(), target)
	}
	if !cinder.IsKind(err, KindElsewhere) {
		t.Errorf("the volume was recorded at %s, not here: %v", target.Place, err)
	}
}

// TestAbandonOfTwoKeptVolumesEnds: both were once recorded, and are kept. If
// that were a conflict, it would be retried forever.
func TestAbandonOfTwoKeptVolumesEnds(t *testing.T) {
	memory := newMemoryCinder()
	for range 2 {
		v := mine(1, cinder.StatusInUse)
		v.Status, v.Attachments = cinder.StatusAvailable, nil
		memory.add(v)
	}
	l := memory.term(t)
	if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); !cinder.IsKind(err, KindRecorded) {
		t.Errorf("error %v (%s)", err, cinder.KindOf(err))
	}
}

// TestPermitTakesNoSlot: the permit for tenant a's deletion queries
// the API server, which may take a while (a read of all nodes, and the pause
// after it). A request of tenant b that waits for a slot of the same backend
// must not wait for that.
func TestPermitTakesNoSlot(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	metadata, err := json.Marshal(mine(1, cinder.StatusInUse).Metadata)
	if err != nil {
		t.Fatal(err)
	}
	cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/volumes/volume-1"):
			cindertest.Answer(w, http.StatusOK, `{"volume": {"id": "volume-1", "status": "in-use", "size": 1, "created_at": "2026-11-21T12:00:00.000000", "attachments": [], "metadata": `+string(metadata)+`}}`)
		case r.Method == http.MethodGet:
			cindertest.Answer(w, http.StatusNotFound, `{"itemNotFound": {"code": 404, "message": "Volume volume-2 could not be found."}}`)
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}
	config := gold
	config.Limits.Concurrency = 1
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	l := NewLifecycle(LifecycleOptions{Config: config, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(),
		Logger: discard(), Metrics: testMetrics()})
	target := claimTarget(1, "volume-1")
	asked, answered, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	target.Permit = func(context.Context, cinder.Volume) error { // before the request enters the queue
		close(asked)
		<-answered
		return errNotPermitted
	}
	go func() { ended <- l.Remove(turns.WithCaller(t.Context(), turns.Caller{Tenant: "a"}), target) }()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(turns.WithCaller(t.Context(), turns.Caller{Tenant: "b"}), 2*time.Second)
	defer cancel()
	if _, _, err := l.Find(bounded, "volume-2"); err != nil {
		t.Errorf("another tenant's request waited for the proof of a deletion: %v", err)
	}
	close(answered)
	<-ended
}

// TestTwoCopiesEnd: two backups of a volume were restored, both with its stamp.
// If they were not recognized, each attempt to undo what the claim left would
// list the whole backend again, and end in a conflict, which is retried.
func TestTwoCopiesEnd(t *testing.T) {
	memory := newMemoryCinder()
	for range 2 {
		v := mine(1, cinder.StatusAvailable)
		v.Metadata[stamps.KeyRequestedAt] = "2026-01-01T00:00:00Z"
		v.CreatedAt = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		memory.add(v)
	}
	l := memory.term(t)
	var err error
	for range 5 {
		err = l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	}
	if lists := memory.count("volume.list"); err != nil && !cinder.IsKind(err, KindNotOurs) || lists > 2 {
		t.Errorf("%d listings, error %v (%s)", lists, err, cinder.KindOf(err))
	}
}
