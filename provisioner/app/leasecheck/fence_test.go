package leasecheck

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestOnlyALeaderChangesAnythingInKubernetes(t *testing.T) {
	for _, c := range []struct {
		method, path string
		leads, sent  bool
	}{
		{"GET", "/api/v1/persistentvolumes", false, true},
		{"GET", "/api/v1/persistentvolumes?watch=true", false, true},
		{"DELETE", "/api/v1/persistentvolumes?watch=true", false, false},
		{"POST", "/api/v1/persistentvolumes", false, false},
		{"POST", "/api/v1/persistentvolumes", true, true},
		{"PATCH", "/api/v1/persistentvolumes/pvc-1", false, false},
		{"DELETE", "/api/v1/namespaces/own/secrets/x", false, false},
		{"POST", "/api/v1/namespaces/own/events", false, true},
		{"PATCH", "/api/v1/namespaces/own/events/x", false, true},
		{"POST", "/apis/events.k8s.io/v1/namespaces/own/events", false, true},
		{"POST", "/api/v1/namespaces/events/secrets", false, false},
		{"DELETE", "/api/v1/namespaces/own/secrets/events", false, false},
	} {
		sent := false
		transport := &Transport{
			Next: transportFunc(func(*http.Request) (*http.Response, error) {
				sent = true
				return &http.Response{Body: io.NopCloser(strings.NewReader(""))}, nil
			}),
			MayWrite: func() error {
				if c.leads {
					return nil
				}
				return errors.New("this replica does not lead")
			},
			TermCtx: t.Context,
		}
		request, err := http.NewRequestWithContext(t.Context(), c.method, "http://server"+c.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.RoundTrip(request)
		if err == nil {
			_ = answer.Body.Close()
		}
		if sent != c.sent || (err == nil) != c.sent {
			t.Errorf("%s %s, leading %t: sent %t, error %v", c.method, c.path, c.leads, sent, err)
		}
	}
}

// TestLeaseThatEndsWhileAConnectionIsMade: a leader was paused after the check, while its
// request waited for a connection.
func TestLeaseThatEndsWhileAConnectionIsMade(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			var received atomic.Int32
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, err := io.ReadAll(r.Body); err == nil {
					received.Add(1)
				}
			}))
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()
			over := errors.New("the term is over")
			var ended atomic.Bool
			next := server.Client().Transport.(*http.Transport).Clone()
			next.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				ended.Store(true)
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			defer next.CloseIdleConnections()
			transport := &Transport{
				Next: next,
				MayWrite: func() error {
					if ended.Load() {
						return over
					}
					return nil
				},
				TermCtx: t.Context,
			}
			request, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/api/v1/persistentvolumes", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := transport.RoundTrip(request)
			if err == nil {
				_ = answer.Body.Close()
			}
			if !errors.Is(err, over) || received.Load() != 0 {
				t.Errorf("error %v; the server received %d requests", err, received.Load())
			}
		})
	}
}

func TestEndOfTheTermCutsAChangeUnderWay(t *testing.T) {
	termCtx, end := context.WithCancel(t.Context())
	transport := &Transport{
		Next: transportFunc(func(r *http.Request) (*http.Response, error) {
			end()
			<-r.Context().Done()
			return nil, r.Context().Err()
		}),
		MayWrite: func() error { return nil },
		TermCtx:  func() context.Context { return termCtx },
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", "http://server/api/v1/persistentvolumes", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transport.RoundTrip(request); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestLeaseIsHeldFromTheRequestOn delays the answer to a renewal, as when a leader is
// paused while it waits for one.
func TestLeaseIsHeldFromTheRequestOn(t *testing.T) {
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}})
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	lock := &Lock{now: func() time.Time { return at }, Timeout: time.Minute, Turns: func() {}, LeaseLock: resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: "paused"},
	}}
	leads := func() bool { return true }
	said := func() string {
		if err := lock.StillLeading(t.Context(), leads, 12*time.Second); err != nil {
			return err.Error()
		}
		return ""
	}
	const runOut = "the lease expired without being renewed"
	if got := said(); got != runOut {
		t.Errorf("before the first renewal: %q", got)
	}
	late := time.Duration(0)
	client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		at = at.Add(late)
		return false, nil, nil
	})
	renew := func(holder string) {
		t.Helper()
		if _, _, err := lock.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: holder}); err != nil {
			t.Fatal(err)
		}
	}
	renew("paused")
	at = at.Add(12 * time.Second)
	if got := said(); got != "" {
		t.Errorf("12 s after the renewal: %q", got)
	}
	late = 13 * time.Second
	renew("paused")
	if got := said(); got != runOut {
		t.Errorf("when the renewal's answer took 13 s: %q", got)
	}
	late = 0
	renew("paused")
	if got := said(); got != "" {
		t.Errorf("after a renewal that the server answered at once: %q", got)
	}
	at = at.Add(10 * time.Second)
	renew("")
	at = at.Add(3 * time.Second)
	if got := said(); got != runOut {
		t.Errorf("releasing the lease renewed it: %q", got)
	}
}

func TestLeaseIsGivenUpByItsHolderOnly(t *testing.T) {
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}})
	lock := func(identity string) *Lock {
		return &Lock{Timeout: time.Minute, Turns: func() {}, LeaseLock: resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}}
	}
	read := func(l *Lock) {
		t.Helper()
		if _, _, err := l.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	paused, next := lock("paused"), lock("next")
	read(next)
	if err := next.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "next"}); err != nil {
		t.Fatal(err)
	}
	read(paused)
	if err := paused.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err == nil || err.Error() != "another replica holds the lease" {
		t.Errorf("error %v", err)
	}
	read(next)
	if err := next.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil {
		t.Errorf("the holder cannot release it: %v", err)
	}
}

// TestEveryRequestEndsButWatches: the API server, or a proxy in front of it, accepts
// requests and never answers, and the requests have no timeout of their own. A watch
// that hangs would keep a cache out of date forever.
func TestEveryRequestEndsButWatches(t *testing.T) {
	for _, c := range []struct {
		method, path string
		ends         bool
	}{
		{"GET", "/api/v1/persistentvolumes/pv-1", true},
		{"GET", "/api/v1/persistentvolumes?limit=500", true},
		{"PATCH", "/api/v1/persistentvolumes/pv-1", true},
		{"POST", "/api/v1/namespaces/a/events", true},
		{"GET", "/api/v1/persistentvolumes?watch=true", false},
		{"GET", "/api/v1/persistentvolumes?timeoutSeconds=480&watch=true", true},
		{"GET", "/api/v1/persistentvolumes?timeoutSeconds=7200&watch=true", false},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := &Transport{
					Next: transportFunc(func(r *http.Request) (*http.Response, error) {
						<-r.Context().Done()
						return nil, r.Context().Err()
					}),
					MayWrite: func() error { return nil },
					TermCtx:  t.Context,
				}
				ctx, cancel := context.WithCancel(t.Context())
				request, err := http.NewRequestWithContext(ctx, c.method, "http://server"+c.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() {
					_, err := transport.RoundTrip(request)
					ended <- err
				}()
				time.Sleep(time.Hour)
				if got := len(ended) == 1; got != c.ends {
					t.Errorf("ended %t, want %t", got, c.ends)
				}
				cancel()
				<-ended
			})
		})
	}
}

// TestLastChangeOfAnEarlierLeader: one that released the lease could change something
// until then, and so could one that fell silent, whose flags nobody knows. One whose lease
// was deleted may not have noticed yet.
func TestLastChangeOfAnEarlierLeader(t *testing.T) {
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	earlier := func(holder string, seconds int32) *coordinationv1.LeaseSpec {
		return &coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}
	}
	for name, test := range map[string]struct {
		lease   *coordinationv1.LeaseSpec
		deleted bool
		seen    time.Duration // by an earlier candidacy of this process
		want    time.Time
	}{
		"there was none":         {want: time.Unix(0, 0)},
		"it released":            {lease: earlier("", 1), want: at},
		"it was silent":          {lease: earlier("earlier", 60), want: at},
		"it was this replica":    {lease: earlier("next", 15), want: at},
		"its lease was deleted":  {lease: earlier("earlier", 60), deleted: true, want: at.Add(time.Minute)},
		"deleted in a term":      {seen: 15 * time.Second, want: at.Add(15 * time.Second)},
		"deleted when released":  {lease: earlier("", 1), deleted: true, want: at.Add(time.Second)},
		"deleted after a longer": {lease: earlier("", 1), deleted: true, seen: 15 * time.Second, want: at.Add(15 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			leases := client.CoordinationV1().Leases("own")
			lock := &Lock{now: func() time.Time { return at }, Timeout: time.Minute, Turns: func() {}, Longest: test.seen, LeaseLock: resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: "next"},
			}}
			write := lock.Create
			if test.lease != nil {
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Spec: *test.lease}
				if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				write = lock.Update
			}
			_, _, _ = lock.Get(t.Context())
			if test.deleted {
				if err := leases.Delete(t.Context(), "lease", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				_, _, _ = lock.Get(t.Context())
				write = lock.Create
			}
			for range 2 { // the second time, this replica renews it
				if err := write(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "next", LeaseDurationSeconds: 15}); err != nil {
					t.Fatal(err)
				}
				_, _, _ = lock.Get(t.Context())
				write = lock.Update
			}
			if got := lock.LastChange(); !got.Equal(test.want) {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}
