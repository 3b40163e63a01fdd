package app

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestOnlyALeaderChangesAnythingInKubernetes(t *testing.T) {
	for _, c := range []struct {
		method, path string
		leads, sent  bool
	}{
		{"GET", "/api/v1/persistentvolumes", false, true},
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
		transport := &fencedTransport{
			next: transportFunc(func(*http.Request) (*http.Response, error) {
				sent = true
				return &http.Response{Body: io.NopCloser(strings.NewReader(""))}, nil
			}),
			mayWrite: func() error {
				if c.leads {
					return nil
				}
				return errors.New("this replica does not lead")
			},
			hold: t.Context,
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

func TestEndOfTheTermCutsAChangeUnderWay(t *testing.T) {
	hold, end := context.WithCancel(t.Context())
	transport := &fencedTransport{
		next: transportFunc(func(r *http.Request) (*http.Response, error) {
			end()
			<-r.Context().Done()
			return nil, r.Context().Err()
		}),
		mayWrite: func() error { return nil },
		hold:     func() context.Context { return hold },
	}
	request, err := http.NewRequestWithContext(t.Context(), "POST", "http://server/api/v1/persistentvolumes", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := transport.RoundTrip(request); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestLeaseIsGivenUpByItsHolderOnly(t *testing.T) {
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}})
	lock := func(identity string) *ownLock {
		return &ownLock{LeaseLock: resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "own", Name: "lease"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		}}
	}
	read := func(l *ownLock) {
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
	if err := paused.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err == nil || err.Error() != "the lease is another's by now" {
		t.Errorf("error %v", err)
	}
	read(next)
	if err := next.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil {
		t.Errorf("the holder cannot give it up: %v", err)
	}
}
