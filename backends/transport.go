package backends

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"
)

// operationKey carries the operation's name to the transport, which sees only
// URLs and bodies otherwise.
type operationKey struct{}

func withOperation(ctx context.Context, operation string) context.Context {
	return context.WithValue(ctx, operationKey{}, operation)
}

func operationOf(r *http.Request) string {
	if operation, ok := r.Context().Value(operationKey{}).(string); ok && !strings.HasSuffix(r.URL.Path, "/auth/tokens") {
		return operation
	}
	if r.Method == http.MethodPost {
		return "auth.login"
	}
	return "auth.discover"
}

// transport decorates a backend's connections: it bounds how many requests
// are under way, paces them, and measures every one. One belongs to one
// backend, so that a slow backend exhausts nobody else's slots.
type transport struct {
	next    http.RoundTripper
	backend string
	slots   chan struct{}
	pace    *rate.Limiter
	timeout time.Duration
	metrics *Metrics
}

func newTransport(config Config, found credentials, metrics *Metrics) *transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	pace := rate.NewLimiter(rate.Inf, 0)
	if perSecond := config.Limits.RequestsPerSecond; perSecond > 0 {
		pace = rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond)))
	}
	return &transport{
		next: &http.Transport{
			Proxy:               http.ProxyFromEnvironment,
			DialContext:         dialer.DialContext,
			TLSClientConfig:     found.tls,
			TLSHandshakeTimeout: 10 * time.Second,
			MaxIdleConns:        config.Limits.Concurrency,
			MaxIdleConnsPerHost: config.Limits.Concurrency,
			IdleConnTimeout:     90 * time.Second,
			ForceAttemptHTTP2:   true,
		},
		backend: config.Name,
		slots:   make(chan struct{}, config.Limits.Concurrency),
		pace:    pace,
		timeout: config.Timeouts.Request,
		metrics: metrics,
	}
}

// RoundTrip waits for a slot and for the pace, then sends. The waiting counts
// against the caller's context but not against the measured duration, which
// is Cinder's.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, notSent{ctx.Err()}
	}
	defer func() { <-t.slots }()
	if err := t.pace.Wait(ctx); err != nil {
		return nil, notSent{err}
	}
	// The time-out covers the whole exchange, reading the body included, but
	// none of the waiting above.
	bounded, cancel := context.WithTimeout(ctx, t.timeout)
	start := time.Now()
	response, err := t.next.RoundTrip(r.WithContext(bounded))
	if err != nil {
		cancel()
		t.metrics.request(t.backend, operationOf(r), "none", time.Since(start))
		return nil, err
	}
	t.metrics.request(t.backend, operationOf(r), strconv.Itoa(response.StatusCode), time.Since(start))
	response.Body = cancellingBody{response.Body, cancel}
	return response, nil
}

// cancellingBody releases the exchange's time-out when the body is closed.
type cancellingBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b cancellingBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// notSent marks a request that never left, whose effect is therefore known.
type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

func (t *transport) close() {
	if closer, ok := t.next.(*http.Transport); ok {
		closer.CloseIdleConnections()
	}
}
