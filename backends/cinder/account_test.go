package cinder

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// TestRejectedCredentialsWaitLongerEachTime counts the minutes at which logins
// are sent while somebody asks for one every second.
func TestRejectedCredentialsWaitLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account, options := NewAccount(), accountOptions("gold")
		begin := time.Now()
		var sent []int
		answer := error(gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusUnauthorized})
		ask := func() error {
			return account.login(t.Context(), options, func() error {
				sent = append(sent, int(time.Since(begin).Minutes()))
				return answer
			})
		}
		for time.Since(begin) < 4*time.Hour {
			if err := ask(); !IsKind(err, KindUnauthorized) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if want := []int{0, 1, 3, 7, 15, 31, 63, 123, 183}; !slices.Equal(sent, want) {
			t.Errorf("logins were sent in minutes %v, want %v", sent, want)
		}
		// An accepted login ends it; the next rejection begins with a short delay.
		answer = nil
		time.Sleep(time.Hour)
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		answer = gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusUnauthorized}
		_ = ask()
		sent, begin = nil, time.Now()
		time.Sleep(61 * time.Second)
		_ = ask()
		if want := []int{1}; !slices.Equal(sent, want) {
			t.Errorf("after success, logins were sent in minutes %v, want %v", sent, want)
		}
	})
}

// TestOtherFailuresOfALoginDelayNothing: a Keystone that is down is the breaker's
// matter, and one that is up again is used at once.
func TestOtherFailuresOfALoginDelayNothing(t *testing.T) {
	account := NewAccount()
	sent := 0
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusForbidden, http.StatusTooManyRequests, http.StatusNotFound} {
		for range 3 {
			_ = account.login(t.Context(), accountOptions("gold"), func() error {
				sent++
				return gophercloud.ErrUnexpectedResponseCode{Actual: status}
			})
		}
	}
	if sent != 12 {
		t.Errorf("%d logins, want 12", sent)
	}
}

// TestLoginsTakeTurns has many callers find out together that the password is
// wrong, and one of them give up while it waits.
func TestLoginsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := NewAccount()
		sent := 0
		login := func(ctx context.Context, backend string) error {
			return account.login(ctx, accountOptions(backend), func() error {
				sent++
				time.Sleep(3 * time.Second)
				return gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusUnauthorized}
			})
		}
		var group sync.WaitGroup
		for range 20 {
			for _, backend := range []string{"gold", "zinc"} {
				group.Go(func() {
					var failed *Error
					if err := login(t.Context(), backend); !errors.As(err, &failed) || failed.Kind != KindUnauthorized || failed.Backend != backend {
						t.Errorf("%s: %v", backend, err)
					}
				})
			}
		}
		synctest.Wait()
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var failed *Error
		if err := login(impatient, "gold"); !errors.As(err, &failed) || !failed.Unsent {
			t.Errorf("the caller that gave up got %v", err)
		}
		group.Wait()
		if sent != 1 {
			t.Errorf("%d logins, want 1", sent)
		}
	})
}

func accountOptions(backend string) Options {
	return Options{Backend: backend, Metrics: NewMetrics(prometheus.NewRegistry())}
}
