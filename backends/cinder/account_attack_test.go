package cinder

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
)

// keystoneTrip answers logins at once.
type keystoneTrip struct{}

func (keystoneTrip) RoundTrip(*http.Request) (*http.Response, error) {
	header := http.Header{"X-Subject-Token": {"token"}, "Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusCreated, Header: header, Body: io.NopCloser(strings.NewReader(
		`{"token": {"catalog": [{"type": "volumev3", "endpoints": [{"interface": "public", "region": "one", "region_id": "one", "url": "http://cinder/v3/p"}]}]}}`))}, nil
}

// TestABusyBackendDoesNotStopTheLoginsOfAnother: the Cinder of gold hangs, so that
// its slots are taken. A login of gold (its token has expired) waits for one of
// them, and has the account's turn meanwhile. Backend zinc, which uses the same
// credentials and whose Cinder is well, cannot log in, although Keystone answers
// at once: a backend that is down takes another with it.
func TestABusyBackendDoesNotStopTheLoginsOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		found := auth.Credentials{Keystone: gophercloud.AuthOptions{IdentityEndpoint: "http://keystone/v3/", UserID: "u", Password: "p", AllowReauth: true}}
		account := NewAccount()
		options := func(backend string, queue *Queue) Options {
			return Options{Backend: backend, Account: account, Queue: queue, Limits: Limits{Concurrency: 1}, RequestTimeout: 75 * time.Second, Metrics: testMetrics(), Base: keystoneTrip{}}
		}
		busy := NewQueue(Limits{Concurrency: 1})
		if err := busy.acquire(Caller{}, patience{ctx: t.Context(), waiter: t.Context()}); err != nil {
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
		if _, err := Login(ctx, found, options("zinc", NewQueue(Limits{Concurrency: 1}))); err != nil {
			t.Errorf("zinc cannot log in while gold is busy: %v", err)
		}
		<-golds
	})
}
