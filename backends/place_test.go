package backends

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

func TestPlacesHaveOneForm(t *testing.T) {
	for address, want := range map[string]string{
		"http://cinder:8776/v3":                     "http://cinder:8776/v3",
		"http://cinder:8776/v3/":                    "http://cinder:8776/v3",
		"http://cinder:8776/v3/0123456789abcdef":    "http://cinder:8776/v3",
		"http://cinder:8776/v3/AUTH_0123/":          "http://cinder:8776/v3",
		"HTTPS://User:s3cr3t@Cinder.Example:443/v3": "https://cinder.example/v3",
		"http://cinder:80/volume//v3/p":             "http://cinder/volume/v3",
		"http://cinder:443/v3":                      "http://cinder:443/v3",
		"http://[2001:DB8::1]:8776/v3/p?x=y#z":      "http://[2001:db8::1]:8776/v3",
		"http://user:s3cr3t@cinder:port/v3":         "http://cinder:port/v3",
		"":                                          "",
	} {
		equal(t, NewPlace(address, "p1"), Place{want, "p1"})
	}
	equal(t, NewPlace("http://cinder/v3", "p1").String(), "http://cinder/v3 (project p1)")
	equal(t, NewPlace("http://cinder/v3", "").String(), "http://cinder/v3")
}

func TestClientKnowsItsPlace(t *testing.T) {
	t.Run("Keystone: the catalog's endpoint and the token's project", func(t *testing.T) {
		cloud := newCloudServer(t)
		cloud.project = "fedcba9876543210"
		pool := NewPool(PoolOptions{Sources: cloud.clouds(passwordCloud), Metrics: testMetrics()})
		client, err := pool.Client(t.Context(), gold)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, client.Place(), Place{cloud.URL + "/volume/v3", "fedcba9876543210"})
	})
	for name, test := range map[string]struct {
		noauth auth.Noauth
		want   string
	}{
		"noauth":                              {auth.Noauth{Endpoint: "$URL", Project: "abc"}, "abc"},
		"noauth, the project in the address":  {auth.Noauth{Endpoint: "$URL/v3/abc"}, "abc"},
		"noauth, in the address and given":    {auth.Noauth{Endpoint: "$URL/v3/abc", Project: "abc"}, "abc"},
		"noauth, no project, an old endpoint": {auth.Noauth{Endpoint: "$URL/v2/"}, "admin"},
	} {
		t.Run(name, func(t *testing.T) {
			cloud := newCloudServer(t)
			test.noauth.Endpoint = withURL(test.noauth.Endpoint, cloud.URL).(string)
			pool := NewPool(PoolOptions{Metrics: testMetrics()})
			config := Config{Name: "gold", Auth: auth.Source{Noauth: &test.noauth}}
			client, err := pool.Client(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, client.Place(), Place{cloud.URL + "/v3", test.want})
		})
	}
}

var otherPlace = Place{Endpoint: "http://old:8776/v3", Project: "p0"}

// TestAbsenceTellsOnlyWhereTheVolumeWas: a 404 of another place must not end the
// care for a volume.
func TestAbsenceTellsOnlyWhereTheVolumeWas(t *testing.T) {
	const elsewhere = "backend gold: volume volume-9 was recorded at http://old:8776/v3 (project p0), but the backend leads to http://cinder:8776/v3 (project p1), where it does not exist"
	const unknown = "backend gold: volume volume-9 does not exist at http://cinder:8776/v3 (project p1), but nothing says that it ever was there: " +
		"its PersistentVolume does not record where it was made, and there is no other volume of this cluster"
	foreign := mine(2, StatusAvailable)
	foreign.Metadata[stampCluster] = "cluster-2"
	tests := map[string]struct {
		recorded Place
		others   []Volume
		want     string // empty: it is gone
	}{
		"recorded here":             {recorded: memoryPlace},
		"recorded at another place": {recorded: otherPlace, want: elsewhere},
		"recorded at another place, others of ours are here": {recorded: otherPlace, others: []Volume{mine(2, StatusInUse)}, want: elsewhere},
		"not recorded, others of ours are here":              {others: []Volume{mine(2, StatusInUse)}},
		"not recorded, nothing is here":                      {want: unknown},
		"not recorded, others are here":                      {others: []Volume{foreign, {Status: StatusAvailable}}, want: unknown},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, target := range []Target{claimTarget(1, "volume-9"), {VolumeID: "volume-9", Historic: true}} {
				cinder := newMemoryCinder()
				for _, v := range test.others {
					cinder.add(v)
				}
				target.Place = test.recorded
				target.Found = func(context.Context, Place) error { t.Error("nothing was found"); return nil }
				l := cinder.term(t)
				err := l.Remove(t.Context(), target)
				equal(t, authtest.ErrorText(err), test.want)
				completed := l.Complete(t.Context(), target, false)
				if test.want == "" {
					equal(t, KindOf(completed), KindNotFound)
				} else {
					equal(t, KindOf(err), KindElsewhere)
					var failed *Error
					errors.As(err, &failed)
					equal(t, failed.Place, memoryPlace)
					equal(t, authtest.ErrorText(completed), test.want)
					equal(t, KindOf(completed), KindElsewhere)
				}
				equal(t, cinder.changes(), []string(nil))
			}
		})
	}
}

// TestFoundVolumeIsRecordedBeforeItIsRemoved: the stamp proves more than the
// place does, and whoever goes on must know that its absence is the end.
func TestFoundVolumeIsRecordedBeforeItIsRemoved(t *testing.T) {
	for name, recorded := range map[string]Place{"not recorded": {}, "recorded at another place": otherPlace} {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			target := claimTarget(1, cinder.add(mine(1, StatusInUse)))
			target.Place = recorded
			var found []Place
			target.Found = func(_ context.Context, at Place) error {
				found = append(found, at)
				equal(t, cinder.changes(), []string(nil))
				return errors.New("the API server does not answer")
			}
			l := cinder.term(t)
			equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "the API server does not answer")
			target.Found = func(_ context.Context, at Place) error { found = append(found, at); return nil }
			// It vanishes after the look.
			cinder.fault = func(operation, id string) mishap {
				if operation == "volume.os-terminate_connection" {
					delete(cinder.volumes, id)
				}
				return noFault
			}
			equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "")
			equal(t, found, []Place{memoryPlace, memoryPlace})
		})
	}
	t.Run("recorded here", func(t *testing.T) {
		cinder := newMemoryCinder()
		target := claimTarget(1, cinder.add(mine(1, StatusAvailable)))
		target.Found = func(context.Context, Place) error { return errors.New("needless") }
		equal(t, authtest.ErrorText(cinder.term(t).Remove(t.Context(), target)), "")
	})
	t.Run("somebody else's", func(t *testing.T) {
		cinder := newMemoryCinder()
		target := claimTarget(1, cinder.add(Volume{Status: StatusAvailable}))
		target.Place = otherPlace
		target.Found = func(context.Context, Place) error { return errors.New("it is not ours") }
		equal(t, KindOf(cinder.term(t).Remove(t.Context(), target)), KindNotOurs)
	})
}

func TestLastVolumeWithoutARecordIsRemoved(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.looks = 20
	target := claimTarget(1, cinder.add(mine(1, StatusAvailable)))
	target.Place = Place{}
	l := cinder.term(t, func(o *LifecycleOptions) { o.Config.Timeouts.Delete = 1 })
	equal(t, KindOf(l.Remove(t.Context(), target)), KindTimeout)
	cinder.mu.Lock()
	clear(cinder.volumes)
	cinder.mu.Unlock()
	// This term asked for the deletion, and saw the volume here.
	equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "")
}

// changingClients lead to the Cinder that the credentials name now.
type changingClients struct {
	mu  sync.Mutex
	now *memoryCinder
}

func (c *changingClients) client(context.Context) (api, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, nil
}

func (c *changingClients) forget(api) {}

func (c *changingClients) leadTo(cinder *memoryCinder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = cinder
}

// TestCredentialsThatLeadElsewhere: an operation never goes on at another place
// than where it began, and nothing that was known of the one holds for the other.
func TestCredentialsThatLeadElsewhere(t *testing.T) {
	before, after := newMemoryCinder(), newMemoryCinder()
	after.place = Place{Endpoint: memoryPlace.Endpoint, Project: "p2"}
	clients := &changingClients{now: before}
	moved := 0
	term := before.term(t, func(o *LifecycleOptions) { o.Moved = func() { moved++ } })
	l := newLifecycle(term.options, sameClients(clients))
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, connected.Place, memoryPlace)
	equal(t, l.Place(), memoryPlace)
	equal(t, l.LastDoubt().IsZero(), true)
	target := claimTarget(1, connected.Volume.ID)
	// The deletion is accepted; then the credentials change.
	before.onCall(func(operation string) {
		if operation == "volume.delete" {
			clients.leadTo(after)
		}
	})
	err = l.Remove(t.Context(), target)
	equal(t, authtest.ErrorText(err), "backend gold: the backend's credentials lead to http://cinder:8776/v3 (project p2) now and no longer to http://cinder:8776/v3 (project p1); work begun there is started again")
	equal(t, KindOf(err), KindConflict)
	equal(t, moved, 1)
	// What is there is looked for soon: this term, or an earlier one, may have
	// begun something there.
	equal(t, l.LastDoubt().IsZero(), false)
	equal(t, KindOf(l.Remove(t.Context(), target)), KindElsewhere)
	equal(t, l.Place(), after.place)
	// What the old place showed is not known of the new one.
	volumes, err := l.Volumes(t.Context())
	equal(t, authtest.ErrorText(err), "")
	equal(t, len(volumes), 0)
	equal(t, after.changes(), []string(nil))
	// Put back.
	before.onCall(nil)
	clients.leadTo(before)
	for err = l.Remove(t.Context(), target); IsKind(err, KindConflict); {
		err = l.Remove(t.Context(), target)
	}
	equal(t, authtest.ErrorText(err), "")
	equal(t, moved, 2)
	equal(t, len(before.snapshot()), 0)
}

// TestChangedCredentialsOverHTTP: the same through the pool and a real login.
func TestChangedCredentialsOverHTTP(t *testing.T) {
	cloud := newCloudServer(t)
	cloud.project = "p1"
	cloud.cinder = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/volume/v3/0123456789abcdef0123456789abcdef/volumes/volume-1" {
			answer(w, http.StatusNotFound, `{"itemNotFound": {"code": 404, "message": "Volume volume-1 could not be found."}}`)
			return
		}
		answer(w, http.StatusOK, `{"volumes": []}`)
	}
	pool := NewPool(PoolOptions{Sources: cloud.clouds(passwordCloud), Metrics: testMetrics()})
	l := NewLifecycle(LifecycleOptions{Config: gold, Pool: pool, Cluster: "cluster-1", Fence: func() error { return nil }, Hold: t.Context(),
		Logger: discard(), Metrics: testMetrics()})
	target := claimTarget(1, "volume-1")
	target.Place = Place{cloud.URL + "/volume/v3", "p1"}
	equal(t, authtest.ErrorText(l.Remove(t.Context(), target)), "")
	cloud.set(func() { cloud.project = "p2" })
	cloud.revoke()
	client, err := pool.Client(t.Context(), gold)
	if err != nil {
		t.Fatal(err)
	}
	pool.Forget(client)
	equal(t, KindOf(l.Remove(t.Context(), target)), KindConflict)
	equal(t, KindOf(l.Remove(t.Context(), target)), KindElsewhere)
}
