package cinder

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

func testMetrics() *Metrics { return NewMetrics(prometheus.NewRegistry()) }

// testOptions returns those of a backend with room for a few requests.
func testOptions() Options {
	return Options{Backend: "gold", Limits: turns.Limits{Concurrency: 16}, RequestTimeout: time.Minute, Metrics: testMetrics()}
}

// logIn logs in to a test cloud by password.
func logIn(t *testing.T, cloud *cindertest.Cloud) *Client {
	t.Helper()
	client, err := logInFrom(t, cloud.Clouds(cindertest.PasswordCloud), auth.Config{Source: auth.Source{Cloud: "gold"}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// logInFrom logs in with the credentials found in the sources.
func logInFrom(t *testing.T, sources auth.Sources, config auth.Config) (*Client, error) {
	t.Helper()
	found, err := sources.Resolve(config)
	if err != nil {
		t.Fatal(err)
	}
	return Login(t.Context(), found, testOptions())
}

// logInNoauth logs in without Keystone.
func logInNoauth(t *testing.T, noauth auth.Noauth) (*Client, error) {
	t.Helper()
	return logInFrom(t, auth.Sources{}, auth.Config{Source: auth.Source{Noauth: &noauth}})
}

func effectUnknown(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.EffectUnknown
}

func equal[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// withAdmission makes the requests sent with the context pass an admission.
func withAdmission(ctx context.Context, a turns.Admission) context.Context {
	return withExchange(ctx, func(e *exchange) { e.admission = a })
}
