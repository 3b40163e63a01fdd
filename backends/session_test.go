package backends

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// testSession is a session of a term that goes on until hold ends, and whose
// breaker never opens.
func testSession(hold context.Context, source clients) *session {
	breaker := newBreaker(breakerOptions{backend: "gold", failuresToOpen: math.MaxInt, hold: hold, logger: discard(), metrics: testMetrics()})
	return &session{clients: source, backend: "gold", fence: func() error { return nil }, hold: hold, breaker: breaker}
}

func TestFenceStopsEveryChange(t *testing.T) {
	states := []Status{"", StatusCreating, StatusAvailable, StatusAttaching, StatusInUse, StatusError, StatusErrorDeleting, StatusReserved, StatusDetaching}
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
		"hold":  func(o *LifecycleOptions) { o.Hold = ended },
	}
	for _, status := range states {
		for name, operation := range operations {
			for how, over := range terms {
				t.Run(fmt.Sprintf("%s/%s/%s", name, status, how), func(t *testing.T) {
					cinder := newMemoryCinder()
					cinder.looks = 0
					id := "volume-0"
					if status != "" {
						id = cinder.add(mine(1, status))
					}
					err := operation(t.Context(), cinder.term(t, over), id)
					equal(t, cinder.changes(), []string(nil))
					if how == "fence" && IsKind(err, KindFenced) {
						equal(t, err.(interface{ Unwrap() error }).Unwrap() != nil, true)
						if !strings.Contains(err.Error(), "no change is made: the lease is 4 s too old") {
							t.Error(err)
						}
					}
					// Only what needs no change may succeed.
					if err == nil && !(status == "" && name != "connect" || status == StatusInUse && name == "complete") {
						t.Error("no error")
					}
				})
			}
		}
	}
}

// TestEndOfTermCutsARequestUnderWay: waiting for the array must not outlast
// the term.
func TestEndOfTermCutsARequestUnderWay(t *testing.T) {
	hold, end := context.WithCancel(t.Context())
	s := testSession(hold, &memoryClients{cinder: newMemoryCinder()})
	err := s.change(t.Context(), func(ctx context.Context, _ api) error {
		end()
		<-ctx.Done()
		return translate("gold", "volume.create", ctx.Err())
	})
	equal(t, authtest.ErrorText(err), "backend gold: volume.create: the request was canceled")
	equal(t, effectUnknown(err), true)
}

// TestCallerLeavesARequestUnderWayAlone: cutting it would only leave its
// effect unknown.
func TestCallerLeavesARequestUnderWayAlone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := testSession(t.Context(), &memoryClients{cinder: newMemoryCinder()})
	err := s.change(ctx, func(inner context.Context, _ api) error {
		cancel()
		return inner.Err()
	})
	equal(t, authtest.ErrorText(err), "")
	err = s.change(ctx, func(context.Context, api) error {
		t.Error("a change is begun for a caller that has left")
		return nil
	})
	equal(t, authtest.ErrorText(err), "backend gold: the request was canceled")
	equal(t, effectUnknown(err), false)
}

func TestRefusedCredentialsAreTriedAnew(t *testing.T) {
	cinder := newMemoryCinder()
	source := &memoryClients{cinder: cinder}
	refusals := 1
	cinder.fault = func(string, string) mishap {
		if refusals > 0 {
			refusals--
			return unauthorized
		}
		return noFault
	}
	s := testSession(t.Context(), source)
	id := cinder.add(mine(1, StatusAvailable))
	reserve := func() error {
		return s.change(t.Context(), func(ctx context.Context, cinder api) error { return cinder.Reserve(ctx, id) })
	}
	equal(t, authtest.ErrorText(reserve()), "")
	equal(t, source.forgotten, 1)
	refusals = 2
	equal(t, KindOf(reserve()), KindUnauthorized)
	equal(t, source.forgotten, 2)
}

func effectUnknown(err error) bool {
	e, ok := err.(*Error)
	return ok && e.EffectUnknown
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}
