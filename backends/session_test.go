package backends

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/breaker"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// testSession returns a session of a term that lasts until its context ends,
// with a breaker that never opens.
func testSession(term context.Context, source clients) *session {
	watched := breaker.New(breaker.Options{Backend: "gold", FailuresToOpen: math.MaxInt, Term: term, Logger: discard(), Metrics: testMetrics()})
	return &session{clients: source, config: func() Config { return gold }, backend: "gold", fence: func() error { return nil }, term: term, breaker: watched}
}

func TestFenceStopsEveryChange(t *testing.T) {
	states := []cinder.Status{"", cinder.StatusCreating, cinder.StatusAvailable, cinder.StatusAttaching, cinder.StatusInUse, cinder.StatusError, cinder.StatusErrorDeleting, cinder.StatusReserved, cinder.StatusDetaching}
	operations := map[string]func(ctx context.Context, l *Lifecycle, id string) error{
		"connect": func(ctx context.Context, l *Lifecycle, _ string) error {
			_, err := l.Connect(ctx, claimSpec(1))
			return err
		},
		"complete": func(ctx context.Context, l *Lifecycle, id string) error {
			return l.Complete(ctx, claimTarget(1, id), false)
		},
		"remove": func(ctx context.Context, l *Lifecycle, id string) error { return l.Remove(ctx, claimTarget(1, id)) },
		"abandon": func(ctx context.Context, l *Lifecycle, _ string) error {
			return l.Abandon(ctx, claimStamp(1), testConnector, nil)
		},
	}
	ended, end := context.WithCancel(t.Context())
	end()
	terms := map[string]func(*LifecycleOptions){
		"fence": func(o *LifecycleOptions) { o.Fence = func() error { return errors.New("the lease is 4 s too old") } },
		"hold":  func(o *LifecycleOptions) { o.Term = ended },
		"log": func(o *LifecycleOptions) {
			o.Changing = func() (func(), error) { return nil, errors.New("the log says that nothing changes") }
		},
	}
	for _, status := range states {
		for name, operation := range operations {
			for how, over := range terms {
				t.Run(fmt.Sprintf("%s/%s/%s", name, status, how), func(t *testing.T) {
					memory := newMemoryCinder()
					memory.looks = 0
					id := "volume-0"
					if status != "" {
						id = memory.add(mine(1, status))
					}
					err := operation(t.Context(), memory.term(t, over), id)
					equal(t, memory.changes(), []string(nil))
					if how == "fence" && cinder.IsKind(err, cinder.KindFenced) {
						equal(t, err.(interface{ Unwrap() error }).Unwrap() != nil, true)
						if !strings.Contains(err.Error(), "no change was made: the lease is 4 s too old") {
							t.Error(err)
						}
					}
					// Only methods that need no change may succeed.
					if err == nil && !(status == "" && name != "connect" || status == cinder.StatusInUse && name == "complete") {
						t.Error("no error")
					}
				})
			}
		}
	}
}

// TestAChangeIsAnnouncedUntilItsAnswer: the next leader relies on that.
func TestAChangeIsAnnouncedUntilItsAnswer(t *testing.T) {
	s := testSession(t.Context(), &memoryClients{memory: newMemoryCinder().client()})
	underWay := 0
	s.changing = func() (func(), error) { underWay++; return func() { underWay-- }, nil }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(read(t.Context(), s, func(context.Context, Cinder) error { equal(t, underWay, 0); return nil }))
	must(change(t.Context(), s, nil, func(context.Context, Cinder) error { equal(t, underWay, 1); return nil }))
	equal(t, underWay, 0)
}

// TestEndOfTermCutsARequestUnderWay: waiting for the array must not outlast the
// term.
func TestEndOfTermCutsARequestUnderWay(t *testing.T) {
	term, end := context.WithCancel(t.Context())
	s := testSession(term, &memoryClients{memory: newMemoryCinder().client()})
	err := change(t.Context(), s, nil, func(ctx context.Context, _ Cinder) error {
		end()
		<-ctx.Done()
		return cutShort("volume.create", ctx.Err())
	})
	equal(t, authtest.ErrorText(err), "backend gold: volume.create: the request was canceled")
	equal(t, effectUnknown(err), true)
}

// TestCallerLeavesARequestUnderWayAlone: canceling it would only make its
// effect unknown.
func TestCallerLeavesARequestUnderWayAlone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := testSession(t.Context(), &memoryClients{memory: newMemoryCinder().client()})
	err := change(ctx, s, nil, func(inner context.Context, _ Cinder) error {
		cancel()
		return inner.Err()
	})
	equal(t, authtest.ErrorText(err), "")
	err = change(ctx, s, nil, func(context.Context, Cinder) error {
		t.Error("a change began for a caller that has left")
		return nil
	})
	equal(t, authtest.ErrorText(err), "backend gold: the request was canceled")
	equal(t, effectUnknown(err), false)
}

func TestRejectedCredentialsAreTriedAgain(t *testing.T) {
	memory := newMemoryCinder()
	source := &memoryClients{memory: memory.client()}
	refusals := 1
	memory.fault = func(string, string) mishap {
		if refusals > 0 {
			refusals--
			return unauthorized
		}
		return noFault
	}
	s := testSession(t.Context(), source)
	id := memory.add(mine(1, cinder.StatusAvailable))
	reserve := func() error {
		return change(t.Context(), s, nil, func(ctx context.Context, client connectionRequests) error { return client.Reserve(ctx, id) })
	}
	equal(t, authtest.ErrorText(reserve()), "")
	equal(t, source.forgotten, 1)
	refusals = 2
	equal(t, cinder.KindOf(reserve()), cinder.KindUnauthorized)
	equal(t, source.forgotten, 2)
}

func testMetrics() *Metrics { return NewMetrics(prometheus.NewRegistry()) }

func ids(volumes []cinder.Volume) []string {
	var ids []string
	for _, v := range volumes {
		ids = append(ids, v.ID)
	}
	return ids
}

// cutShort returns the failure of a request under way whose context has ended.
func cutShort(operation string, err error) error {
	failed := &cinder.Error{Backend: "gold", Operation: operation, Kind: cinder.KindUnavailable, EffectUnknown: true, Message: "the request was canceled", Cause: err}
	if errors.Is(err, context.DeadlineExceeded) {
		failed.Message = "no answer in time"
	}
	return failed
}

func effectUnknown(err error) bool {
	var e *cinder.Error
	return errors.As(err, &e) && e.EffectUnknown
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}
