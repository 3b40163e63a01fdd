package backends

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/cindertest"
)

// movedTerm is a term whose credentials came to lead to another project after
// it had connected a volume for claim 1.
func movedTerm(t *testing.T) (l *Lifecycle, before *memoryCinder, clients *changingClients, id string) {
	t.Helper()
	before, after := newMemoryCinder(), newMemoryCinder()
	after.place = cinder.Place{Endpoint: memoryPlace.Endpoint, Project: "p2"}
	clients = &changingClients{now: before}
	term := before.term(t)
	l = newLifecycle(term.options, sameClients(clients))
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

// TestAbandonAtAnotherPlaceProvesNothing: the claim goes while the
// credentials lead to another project. Who undoes it is told that all is gone,
// removes the Secret, gives the room back, and forgets the claim; the volume is
// where it was, connected.
func TestAbandonAtAnotherPlaceProvesNothing(t *testing.T) {
	l, before, _, _ := movedTerm(t)
	err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	for cinder.IsKind(err, cinder.KindConflict) {
		err = l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	}
	if n := len(before.snapshot()); n != 1 {
		t.Fatalf("%d volumes", n)
	}
	if err == nil {
		t.Error("the volume exists, and is told to be gone")
	}
}

// TestRemovalOfAListedVolumeAtAnotherPlaceProvesNothing: the listing was of
// another place than the removal.
func TestRemovalOfAListedVolumeAtAnotherPlaceProvesNothing(t *testing.T) {
	l, before, _, id := movedTerm(t)
	err := l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
	for cinder.IsKind(err, cinder.KindConflict) {
		err = l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, nil)
	}
	if n := len(before.snapshot()); n != 1 {
		t.Fatalf("%d volumes", n)
	}
	if err == nil {
		t.Error("the volume exists, and is told to be removed")
	}
}

// TestMarkAtAnotherPlaceIsNotMissing: KindNotFound ends the marking for
// good.
func TestMarkAtAnotherPlaceIsNotMissing(t *testing.T) {
	l, _, _, id := movedTerm(t)
	target := claimTarget(1, id)
	err := l.Mark(t.Context(), target)
	for cinder.IsKind(err, cinder.KindConflict) {
		err = l.Mark(t.Context(), target)
	}
	if !cinder.IsKind(err, KindElsewhere) {
		t.Errorf("the volume was recorded at %s and is not there to be asked for: %v", target.Place, err)
	}
}

// TestAbandonOfTwoKeptVolumesEnds: both were recorded once, and are kept.
// The conflict is tried again for ever.
func TestAbandonOfTwoKeptVolumesEnds(t *testing.T) {
	memory := newMemoryCinder()
	for range 2 {
		v := mine(1, cinder.StatusInUse)
		v.Status, v.Attachments = cinder.StatusAvailable, nil
		memory.add(v)
	}
	l := memory.term(t)
	if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); !cinder.IsKind(err, KindRecorded) {
		t.Errorf("the answer is %v (%s)", err, cinder.KindOf(err))
	}
}

// TestPermitTakesNobodyElsesSlot: tenant a's deletion asks the API server,
// which takes its time (a reading of all nodes, and the pause after it). Tenant
// b's request to the same backend, which has a slot of its own to wait for, does
// not depend on that.
func TestPermitTakesNobodyElsesSlot(t *testing.T) {
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
	l := NewLifecycle(LifecycleOptions{Config: config, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Hold: t.Context(),
		Logger: discard(), Metrics: testMetrics()})
	target := claimTarget(1, "volume-1")
	asked, answered, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	target.Permit = func(context.Context, cinder.Volume) error { // before the request stands in line
		close(asked)
		<-answered
		return errNotPermitted
	}
	go func() { ended <- l.Remove(cinder.WithCaller(t.Context(), cinder.Caller{Tenant: "a"}), target) }()
	select {
	case <-asked:
	case err := <-ended:
		t.Fatal(err)
	}
	bounded, cancel := context.WithTimeout(cinder.WithCaller(t.Context(), cinder.Caller{Tenant: "b"}), 2*time.Second)
	defer cancel()
	if _, _, err := l.Find(bounded, "volume-2"); err != nil {
		t.Errorf("another tenant's request waits for the proof of a deletion: %v", err)
	}
	close(answered)
	<-ended
}

// TestTwoCopiesEnd: two backups of a volume were restored, both with its
// stamp. Each try to undo what their claim left lists the whole backend anew, and
// ends in a conflict, which is tried again.
func TestTwoCopiesEnd(t *testing.T) {
	memory := newMemoryCinder()
	for range 2 {
		v := mine(1, cinder.StatusAvailable)
		v.Metadata[stampRequested] = "2026-01-01T00:00:00Z"
		v.CreatedAt = time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
		memory.add(v)
	}
	l := memory.term(t)
	var err error
	for range 5 {
		err = l.Abandon(t.Context(), claimStamp(1), testConnector, nil)
	}
	if lists := memory.count("volume.list"); err != nil && !cinder.IsKind(err, KindNotOurs) || lists > 2 {
		t.Errorf("%d listings, and the answer is %v (%s)", lists, err, cinder.KindOf(err))
	}
}
