package cinder

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// TestTurnsGoRound: a tenant with a thousand requests delays each other tenant
// by one request, whether slots or tokens are scarce.
func TestTurnsGoRound(t *testing.T) {
	for name, limits := range map[string]turns.Limits{
		"slots":  {Concurrency: 1},
		"tokens": {Concurrency: 100, RequestsPerSecond: 10},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var sent []string
				wire := testTransport(t, func(r *http.Request) (*http.Response, error) {
					time.Sleep(10 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					sent = append(sent, turns.CallerOf(r.Context()).Tenant)
					return ok(""), nil
				}, limits)
				var group sync.WaitGroup
				send := func(tenant string, requests int) {
					for range requests {
						group.Go(func() {
							response, err := wire.RoundTrip(httpRequest(turns.WithCaller(t.Context(), turns.Caller{Tenant: tenant})))
							if err != nil {
								t.Error(err)
								return
							}
							response.Body.Close()
						})
					}
					synctest.Wait()
				}
				send("a", 1000)
				mu.Lock()
				before := len(sent)
				mu.Unlock()
				send("b", 2)
				send("", 2) // without a tenant
				send("c", 2)
				time.Sleep(5 * time.Second)
				mu.Lock()
				round := slices.Clone(sent[before:])
				mu.Unlock()
				// Requests under way and turns already granted end first.
				first := slices.Index(round, "b")
				if first < 0 || first > 11 {
					t.Fatalf("the second tenant's first request is number %d", first)
				}
				equal(t, round[first:first+8], []string{"b", "", "c", "a", "b", "", "c", "a"})
				group.Wait()
				equal(t, len(sent), 1006)
				equal(t, wire.queue.InUse(), 0)
			})
		})
	}
}

// TestPacedTenantHoldsNoSlot: a tenant's pace delays only that tenant.
func TestPacedTenantHoldsNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []string
		start := time.Now()
		wire := testTransport(t, func(r *http.Request) (*http.Response, error) {
			sent = append(sent, fmt.Sprintf("%s at %s", turns.CallerOf(r.Context()).Tenant, time.Since(start).Round(time.Second)))
			return ok(""), nil
		}, turns.Limits{Concurrency: 1})
		slow := turns.Caller{Tenant: "slow", Pace: rate.NewLimiter(rate.Every(10*time.Second), 1)}
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				response, err := wire.RoundTrip(httpRequest(turns.WithCaller(t.Context(), slow)))
				if err != nil {
					t.Error(err)
					return
				}
				response.Body.Close()
			})
			synctest.Wait()
		}
		equal(t, wire.queue.InUse(), 0)
		response, err := wire.RoundTrip(httpRequest(turns.WithCaller(t.Context(), turns.Caller{Tenant: "quick"})))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		// A request that leaves the queue returns the tenant's token.
		ctx, cancel := context.WithCancel(t.Context())
		for name, ctx := range map[string]context.Context{
			"the request": turns.WithCaller(ctx, slow),
			"the waiter":  withAdmission(turns.WithCaller(t.Context(), slow), turns.Admission{Waiter: ctx, Fence: func() error { return nil }}),
		} {
			group.Go(func() {
				_, err := wire.RoundTrip(httpRequest(ctx))
				if err = translate("gold", "volume.create", err); authtest.ErrorText(err) != "backend gold: volume.create: the request was canceled" || effectUnknown(err) {
					t.Errorf("%s is canceled: %v", name, err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		cancel()
		group.Wait()
		equal(t, sent, []string{"slow at 0s", "quick at 0s", "slow at 10s", "slow at 20s", "slow at 30s"})
		response, err = wire.RoundTrip(httpRequest(turns.WithCaller(t.Context(), slow)))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		equal(t, sent[5], "slow at 40s")
	})
}

func TestPaceThatAdmitsNothing(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) { return nil, errors.New("sent") }, turns.Limits{})
	_, err := wire.RoundTrip(httpRequest(turns.WithCaller(t.Context(), turns.Caller{Tenant: "a", Pace: rate.NewLimiter(1, 0)})))
	err = translate("gold", "volume.create", err)
	equal(t, authtest.ErrorText(err), "backend gold: volume.create: the request was not sent: the tenant's pace admits no request; give its limiter a burst of at least one")
	equal(t, effectUnknown(err), false)
}

// TestPassedTurnsNeedNoToken: when requests are rejected, a long queue empties
// at once.
func TestPassedTurnsNeedNoToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rejected := errors.New("rejected")
		wire := testTransport(t, func(*http.Request) (*http.Response, error) { return ok(""), nil }, turns.Limits{Concurrency: 2, RequestsPerSecond: 1})
		occupy(t, wire)
		occupy(t, wire)
		var group sync.WaitGroup
		for i := range 500 {
			group.Go(func() {
				ctx := turns.WithCaller(t.Context(), turns.Caller{Tenant: fmt.Sprint(i % 7)})
				ctx = withAdmission(ctx, turns.Admission{Waiter: ctx, Fence: func() error { return rejected }})
				if _, err := wire.RoundTrip(httpRequest(ctx)); !errors.Is(err, rejected) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		wire.queue.Release()
		wire.queue.Release()
		group.Wait()
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("rejecting 500 requests took %s", took)
		}
		equal(t, wire.queue.InUse(), 0)
	})
}

// TestACallerLearnsTheIDsOfItsRequests: only of those that Cinder accepted, and
// sanitized.
func TestACallerLearnsTheIDsOfItsRequests(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		id     string
		want   string
	}{
		"accepted":    {http.StatusAccepted, "req-1", "[volume.delete req-1]"},
		"refused":     {http.StatusConflict, "req-1", "[]"},
		"a forged ID": {http.StatusAccepted, "req-1 msg=x", "[volume.delete ]"},
	} {
		t.Run(name, func(t *testing.T) {
			wire := testTransport(t, func(*http.Request) (*http.Response, error) {
				answer := ok("")
				answer.StatusCode = c.status
				answer.Header = http.Header{"X-Openstack-Request-Id": {c.id}}
				return answer, nil
			}, turns.Limits{})
			learned := []string{}
			ctx := turns.WithCaller(withOperation(t.Context(), OperationDelete), turns.Caller{Answered: func(operation, requestID string) {
				learned = append(learned, operation+" "+requestID)
			}})
			response, err := wire.RoundTrip(httpRequest(ctx))
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			if got := fmt.Sprint(learned); got != c.want {
				t.Errorf("learned %s, want %s", got, c.want)
			}
		})
	}
}

// TestAdmissionIsThatOfOneClient: clients of one login have admissions of their own, and
// what they share, such as the version of the endpoint, needs none of their fences.
func TestAdmissionIsThatOfOneClient(t *testing.T) {
	cloud := cindertest.NewCloud(t)
	client := logIn(t, cloud)
	cloud.Set(func() {
		cloud.Cinder = func(w http.ResponseWriter, _ *http.Request) {
			cindertest.Answer(w, http.StatusOK, `{"versions": [{"id": "v3.0", "version": "3.60"}]}`)
		}
	})
	fenced := &Error{Backend: "gold", Kind: KindFenced, Message: "no change was made: the lease was lost"}
	guarded := client.With(turns.Admission{Fence: func() error { return fenced }})
	if _, err := guarded.MaxMicroversion(t.Context()); err != nil {
		t.Error(err)
	}
	equal(t, guarded.DeleteVolume(t.Context(), "v1"), error(fenced))
	if _, err := guarded.Volume(t.Context(), "v1"); err != error(fenced) {
		t.Errorf("a read passed the fence: %v", err)
	}
	if err := client.DeleteVolume(t.Context(), "v1"); errors.Is(err, fenced) {
		t.Errorf("another client of the login is fenced, too: %v", err)
	}
}
