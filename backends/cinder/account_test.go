package cinder

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
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
			return account.login(t.Context(), options, "p", func(context.Context) error {
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

// TestOtherFailuresOfALoginDelayNothing: a Keystone that is down is for the
// breaker to handle, and one that is up again is used at once.
func TestOtherFailuresOfALoginDelayNothing(t *testing.T) {
	account := NewAccount()
	sent := 0
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusForbidden, http.StatusTooManyRequests, http.StatusNotFound} {
		for range 3 {
			_ = account.login(t.Context(), accountOptions("gold"), "p", func(context.Context) error {
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
			return account.login(ctx, accountOptions(backend), "p", func(context.Context) error {
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
		if err := login(impatient, "gold"); !errors.As(err, &failed) || failed.Kind != KindUnavailable {
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

// TestARejectedProjectStopsItsOwnLogins: the user has no role in one project. The
// others go on, until a second project is rejected, which looks like a wrong
// password; an accepted login shows that it was none.
func TestARejectedProjectStopsItsOwnLogins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := NewAccount()
		bad := map[string]bool{"one": true}
		sent := 0
		login := func(project string) error {
			return account.login(t.Context(), accountOptions("gold"), project, func(context.Context) error {
				sent++
				if bad[project] {
					return gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusUnauthorized}
				}
				return nil
			})
		}
		expect := func(project string, accepted bool, logins int) {
			t.Helper()
			if err := login(project); (err == nil) != accepted || sent != logins {
				t.Errorf("project %s: %v after %d logins, want accepted %t after %d", project, err, sent, accepted, logins)
			}
		}
		expect("one", false, 1)
		expect("one", false, 1)
		expect("two", true, 2)
		expect("three", true, 3)
		bad["two"] = true
		expect("two", false, 4)
		expect("three", false, 4)
		time.Sleep(time.Minute)
		expect("three", true, 5)
		expect("one", false, 6)
	})
}

// TestLoginsShareTheSilenceOfKeystone: a login that got no answer is not repeated
// by each waiting caller in turn.
func TestLoginsShareTheSilenceOfKeystone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := NewAccount()
		sent := 0
		var group sync.WaitGroup
		for _, backend := range []string{"gold", "zinc", "tin"} {
			group.Go(func() {
				err := account.login(t.Context(), accountOptions(backend), backend, func(context.Context) error {
					sent++
					time.Sleep(time.Minute)
					return gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusGatewayTimeout}
				})
				var failed *Error
				if !errors.As(err, &failed) || failed.Kind != KindUnavailable || failed.Backend != backend || failed.Unsent {
					t.Errorf("%s: %v", backend, err)
				}
			})
		}
		group.Wait()
		if sent != 1 {
			t.Errorf("%d logins, want 1", sent)
		}
	})
}

// keystoneTrip answers logins at once.
type keystoneTrip struct{}

func (keystoneTrip) RoundTrip(*http.Request) (*http.Response, error) {
	header := http.Header{"X-Subject-Token": {"token"}, "Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusCreated, Header: header, Body: io.NopCloser(strings.NewReader(
		`{"token": {"project": {"id": "p"}, "catalog": [{"type": "volumev3", "endpoints": [{"interface": "public", "region": "one", "region_id": "one", "url": "http://cinder/v3/p"}]}]}}`))}, nil
}

// TestABusyBackendDoesNotStopTheLoginsOfAnother: the Cinder of gold hangs, so that
// its slots are taken. A login of gold, whose token has expired, must not wait for
// one of them while it has the account's turn: then zinc, a healthy backend with
// the same credentials, could not log in either, although Keystone answers at
// once.
func TestABusyBackendDoesNotStopTheLoginsOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := auth.Credentials{Endpoint: gophercloud.EndpointOpts{Availability: gophercloud.AvailabilityPublic}, Keystone: gophercloud.AuthOptions{IdentityEndpoint: "http://keystone/v3/", UserID: "u", Password: "p", AllowReauth: true}}
		account := NewAccount()
		options := func(backend string, queue *turns.Queue) Options {
			return Options{Backend: backend, Account: account, Queue: queue, Limits: turns.Limits{Concurrency: 1}, RequestTimeout: 75 * time.Second, Metrics: testMetrics(), Base: keystoneTrip{}}
		}
		busy := turns.NewQueue(turns.Limits{Concurrency: 1})
		if err := busy.Admit(t.Context(), turns.Admission{}); err != nil {
			t.Fatal(err)
		}
		golds := make(chan error)
		go func() {
			_, err := Login(t.Context(), found, options("gold", busy))
			golds <- err
		}()
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := Login(ctx, found, options("zinc", turns.NewQueue(turns.Limits{Concurrency: 1}))); err != nil {
			t.Errorf("zinc cannot log in while gold is busy: %v", err)
		}
		<-golds
	})
}

// TestARefusalWaitsForNoOtherLogin: Keystone has rejected project one. While a login with
// project two gets no answer, one's callers still learn at once why they have no client.
func TestARefusalWaitsForNoOtherLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := NewAccount()
		_ = account.login(t.Context(), accountOptions("gold"), "one", func(context.Context) error {
			return gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusUnauthorized}
		})
		go func() {
			_ = account.login(t.Context(), accountOptions("zinc"), "two", func(context.Context) error {
				time.Sleep(2 * time.Minute)
				return gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusGatewayTimeout}
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		begin := time.Now()
		err := account.login(ctx, accountOptions("gold"), "one", func(context.Context) error {
			t.Error("a login was sent")
			return nil
		})
		if took := time.Since(begin); !IsKind(err, KindUnauthorized) || took > 0 {
			t.Errorf("after %v: %v (%s), want the rejection at once", took, err, KindOf(err))
		}
		time.Sleep(5 * time.Minute)
	})
}

// TestSilenceReachesEveryWaiterAtOnce: a login got no answer, and its caller tries again
// at once. The others do not wait for that as well.
func TestSilenceReachesEveryWaiterAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := NewAccount()
		silent := func(context.Context) error {
			time.Sleep(time.Minute)
			return gophercloud.ErrUnexpectedResponseCode{Actual: http.StatusGatewayTimeout}
		}
		go func() {
			for range 5 {
				_ = account.login(t.Context(), accountOptions("gold"), "one", silent)
			}
		}()
		synctest.Wait()
		begin := time.Now()
		err := account.login(t.Context(), accountOptions("zinc"), "two", silent)
		if took := time.Since(begin); !IsKind(err, KindUnavailable) || took > time.Minute {
			t.Errorf("after %v: %v, want the first login's failure after a minute", took, err)
		}
		time.Sleep(10 * time.Minute)
	})
}
