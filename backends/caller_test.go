package backends

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestCallerOfEveryRequest: changes and single reads count for the tenant;
// logins and listings, which serve all tenants, have no caller.
func TestCallerOfEveryRequest(t *testing.T) {
	seen := map[string]map[string]bool{}
	var mu sync.Mutex
	memory := newMemoryCinder()
	memory.asked = func(ctx context.Context, operation string) {
		mu.Lock()
		defer mu.Unlock()
		if seen[operation] == nil {
			seen[operation] = map[string]bool{}
		}
		caller := turns.CallerOf(ctx)
		seen[operation][fmt.Sprintf("%s %v", caller.Tenant, caller.Pace != nil)] = true
	}
	l := memory.term(t)
	ctx := turns.WithCaller(t.Context(), turns.Caller{Tenant: "team-a", Pace: rate.NewLimiter(rate.Inf, 0)})
	connected, err := l.Connect(ctx, claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, authtest.ErrorText(l.Complete(ctx, claimTarget(1, connected.Volume.ID), false)), "")
	equal(t, authtest.ErrorText(l.Remove(ctx, claimTarget(1, connected.Volume.ID))), "")
	idle(t, l)
	// A round of waiting serves all callers.
	mine, nobodys, both := map[string]bool{"team-a true": true}, map[string]bool{" false": true}, map[string]bool{"team-a true": true, " false": true}
	for operation, callers := range seen {
		want := mine
		switch operation {
		case "volume.list":
			want = nobodys
		case "volume.get":
			want = both
		}
		if fmt.Sprint(callers) != fmt.Sprint(want) {
			t.Errorf("%s has the callers %v, want %v", operation, callers, want)
		}
	}
	for _, operation := range []string{"volume.create", "volume.os-reserve", "volume.os-initialize_connection", "volume.os-attach", "volume.delete", "volume.list", "volume.get"} {
		if seen[operation] == nil {
			t.Errorf("%s was not requested", operation)
		}
	}
}

// TestLoginHasNoCaller: the first caller must not pay for all.
func TestLoginHasNoCaller(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	pool := NewPool(PoolOptions{Sources: cloud.Clouds(cindertest.PasswordCloud), Metrics: testMetrics()})
	spent := rate.NewLimiter(rate.Every(time.Hour), 1)
	spent.Allow()
	ctx := turns.WithCaller(t.Context(), turns.Caller{Tenant: "team-a", Pace: spent})
	client, err := pool.Client(ctx, gold)
	if err != nil {
		t.Fatal(err)
	}
	cloud.Revoke()
	// A renewal has none either; the listing itself has no caller.
	if err := client.ListVolumes(t.Context(), cinder.Query{}, func([]cinder.Volume) bool { return true }); err != nil {
		t.Error(err)
	}
	equal(t, spent.Tokens() < 0.1, true)
}
