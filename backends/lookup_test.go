package backends

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

var otherPlace = cinder.Place{Endpoint: "http://old:8776/v3", Project: "p0"}

// TestAbsenceTellsOnlyWhereTheVolumeWas: the program must keep looking after a
// volume that answers 404 at another place.
func TestAbsenceTellsOnlyWhereTheVolumeWas(t *testing.T) {
	const elsewhere = "backend gold: volume volume-9 was recorded at http://old:8776/v3 (project p0), but the backend points to http://cinder:8776/v3 (project p1), where it does not exist"
	const unknown = "backend gold: volume volume-9 does not exist at http://cinder:8776/v3 (project p1), but it may never have been there: " +
		"its PersistentVolume does not record where it was created, and there is no other volume of this cluster"
	foreign := mine(2, cinder.StatusAvailable)
	foreign.Metadata[stamps.KeyCluster] = "cluster-2"
	tests := map[string]struct {
		recorded cinder.Place
		others   []cinder.Volume
		want     string // empty: it is gone
	}{
		"recorded here":             {recorded: memoryPlace},
		"recorded at another place": {recorded: otherPlace, want: elsewhere},
		"recorded at another place, others of ours are here": {recorded: otherPlace, others: []cinder.Volume{mine(2, cinder.StatusInUse)}, want: elsewhere},
		"not recorded, others of ours are here":              {others: []cinder.Volume{mine(2, cinder.StatusInUse)}},
		"not recorded, nothing is here":                      {want: unknown},
		"not recorded, others are here":                      {others: []cinder.Volume{foreign, {Status: cinder.StatusAvailable}}, want: unknown},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, target := range []Target{claimTarget(1, "volume-9"), {VolumeID: "volume-9", Historic: true}} {
				memory := newMemoryCinder()
				for _, v := range test.others {
					memory.add(v)
				}
				target.Place = test.recorded
				target.Found = func(context.Context, cinder.Place) error { t.Error("nothing was found"); return nil }
				l := memory.term(t)
				err := l.Remove(t.Context(), target)
				equal(t, authtest.ErrorText(err), test.want)
				completed := l.Complete(t.Context(), target, false)
				if test.want == "" {
					equal(t, cinder.KindOf(completed), cinder.KindNotFound)
				} else {
					equal(t, cinder.KindOf(err), KindElsewhere)
					var failed *cinder.Error
					errors.As(err, &failed)
					equal(t, failed.Place, memoryPlace)
					equal(t, authtest.ErrorText(completed), test.want)
					equal(t, cinder.KindOf(completed), KindElsewhere)
				}
				equal(t, memory.changes(), []string(nil))
			}
		})
	}
}

// TestFoundVolumeIsRecordedBeforeItIsRemoved: the stamp proves more than the
// place does, and a later attempt must be able to interpret the volume's
// absence.
func TestFoundVolumeIsRecordedBeforeItIsRemoved(t *testing.T) {
	for name, recorded := range map[string]cinder.Place{"not recorded": {}, "recorded at another place": otherPlace} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			target := claimTarget(1, memory.add(mine(1, cinder.StatusInUse)))
			target.Place = recorded
			var found []cinder.Place
			target.Found = func(_ context.Context, at cinder.Place) error {
				found = append(found, at)
				equal(t, memory.changes(), []string(nil))
				return errors.New("the API server does not answer")
			}
			l := memory.term(t)
			equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "the API server does not answer")
			target.Found = func(_ context.Context, at cinder.Place) error { found = append(found, at); return nil }
			// It disappears after the look.
			memory.fault = func(operation, id string) mishap {
				if operation == "volume.os-terminate_connection" {
					delete(memory.volumes, id)
				}
				return noFault
			}
			equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "")
			equal(t, found, []cinder.Place{memoryPlace, memoryPlace})
		})
	}
	t.Run("recorded here", func(t *testing.T) {
		memory := newMemoryCinder()
		target := claimTarget(1, memory.add(mine(1, cinder.StatusAvailable)))
		target.Found = func(context.Context, cinder.Place) error { return errors.New("needless") }
		equal(t, authtest.ErrorText(memory.term(t).Remove(t.Context(), target)), "")
	})
	t.Run("of another claim", func(t *testing.T) {
		memory := newMemoryCinder()
		target := claimTarget(1, memory.add(cinder.Volume{Status: cinder.StatusAvailable}))
		target.Place = otherPlace
		target.Found = func(context.Context, cinder.Place) error { return errors.New("it is not ours") }
		equal(t, cinder.KindOf(memory.term(t).Remove(t.Context(), target)), KindNotOurs)
	})
}

func TestLastVolumeWithoutARecordIsRemoved(t *testing.T) {
	memory := newMemoryCinder()
	memory.looks = 20
	target := claimTarget(1, memory.add(mine(1, cinder.StatusAvailable)))
	target.Place = cinder.Place{}
	l := memory.term(t, func(o *LifecycleOptions) { o.Config.Timeouts.Delete = 1 })
	equal(t, cinder.KindOf(l.Remove(t.Context(), target)), KindTimeout)
	memory.mu.Lock()
	clear(memory.volumes)
	memory.mu.Unlock()
	// This term requested the deletion, and saw the volume here.
	equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "")
}

// changingClients lead to the Cinder that the current credentials name.
type changingClients struct {
	mu  sync.Mutex
	now *memoryCinder
}

func (c *changingClients) client(context.Context, Config) (Cinder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now.client(), nil
}

func (c *changingClients) forget(Cinder) {}

func (c *changingClients) leadTo(memory *memoryCinder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = memory
}

// TestCredentialsThatLeadElsewhere: an operation never continues at a place
// other than the one where it began, and knowledge of one place does not apply
// to the other.
func TestCredentialsThatLeadElsewhere(t *testing.T) {
	before, after := newMemoryCinder(), newMemoryCinder()
	after.place = cinder.Place{Endpoint: memoryPlace.Endpoint, Project: "p2"}
	clients := &changingClients{now: before}
	moved := 0
	term := before.term(t, func(o *LifecycleOptions) { o.Moved = func() { moved++ } })
	l := newLifecycle(term.options, clients)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, connected.Place, memoryPlace)
	equal(t, l.Place(), memoryPlace)
	equal(t, l.LastUncertain().IsZero(), true)
	target := claimTarget(1, connected.Volume.ID)
	// Cinder accepts the deletion; then the credentials change.
	before.onCall(func(operation string) {
		if operation == "volume.delete" {
			clients.leadTo(after)
		}
	})
	err = l.Remove(t.Context(), target)
	equal(t, authtest.ErrorText(err), "backend gold: the backend's credentials now point to http://cinder:8776/v3 (project p2) and no longer to http://cinder:8776/v3 (project p1); work begun there starts over")
	equal(t, cinder.KindOf(err), cinder.KindConflict)
	equal(t, moved, 1)
	// The new place is to be listed soon: this term, or an earlier one, may
	// have begun something there.
	equal(t, l.LastUncertain().IsZero(), false)
	equal(t, cinder.KindOf(l.Remove(t.Context(), target)), KindElsewhere)
	equal(t, l.Place(), after.place)
	// The old place's listing does not apply to the new one.
	volumes, err := l.Volumes(t.Context())
	equal(t, authtest.ErrorText(err), "")
	equal(t, len(volumes), 0)
	equal(t, after.changes(), []string(nil))
	// Back to the first place.
	before.onCall(nil)
	clients.leadTo(before)
	for err = l.Remove(t.Context(), target); cinder.IsKind(err, cinder.KindConflict); {
		err = l.Remove(t.Context(), target)
	}
	equal(t, authtest.ErrorText(err), "")
	equal(t, moved, 2)
	equal(t, len(before.present()), 0)
}

// TestChangedCredentialsOverHTTP: the same with the pool and a real login.
func TestChangedCredentialsOverHTTP(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	cloud.Project = "p1"
	cloud.Cinder = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/volume/v3/0123456789abcdef0123456789abcdef/volumes/volume-1" {
			cindertest.Answer(w, http.StatusNotFound, `{"itemNotFound": {"code": 404, "message": "Volume volume-1 could not be found."}}`)
			return
		}
		cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
	}
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	l := NewLifecycle(LifecycleOptions{Config: gold, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(),
		Logger: discard(), Metrics: testMetrics()})
	target := claimTarget(1, "volume-1")
	target.Place = cinder.Place{Endpoint: cloud.URL + "/volume/v3", Project: "p1"}
	equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "")
	cloud.Set(func() { cloud.Project = "p2" })
	cloud.Revoke()
	client, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	pool.forget(loggedIn{client})
	equal(t, cinder.KindOf(l.Remove(t.Context(), target)), cinder.KindConflict)
	equal(t, cinder.KindOf(l.Remove(t.Context(), target)), KindElsewhere)
}

func TestKnownVolumeCostsNoRequest(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	equal(t, l.KnownVolumeOf(claimStamp(1)), "")
	equal(t, memory.count("volume.list"), 0)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, l.KnownVolumeOf(claimStamp(1)), connected.Volume.ID)
	equal(t, l.KnownVolumeOf(claimStamp(2)), "")
	if err := l.Abandon(t.Context(), claimStamp(1), claimSpec(1).Connector, nil); err != nil {
		t.Fatal(err)
	}
	equal(t, l.KnownVolumeOf(claimStamp(1)), "")
}
