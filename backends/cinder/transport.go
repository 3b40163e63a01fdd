package cinder

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/certificates"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/clock"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// exchange is what the transport needs to know about a request. gophercloud makes the
// requests and passes on nothing but their contexts.
type exchange struct {
	// operation is the request's name in errors and metrics; URL and body do not show it.
	operation string
	// admission is what the request must pass when its turn comes.
	admission turns.Admission
	// login marks a login request.
	login bool
	// page means that the answer is read as a stream of entries, so a smaller page can be
	// requested.
	page bool
	// elsewhere means that another service than Cinder answers.
	elsewhere bool
	// timeout shortens the request's timeout; 0 leaves it.
	timeout time.Duration
}

type exchangeKey struct{}

func exchangeOf(ctx context.Context) exchange {
	e, _ := ctx.Value(exchangeKey{}).(exchange)
	return e
}

// withExchange changes what the transport knows about requests made with the context.
func withExchange(ctx context.Context, change func(e *exchange)) context.Context {
	e := exchangeOf(ctx)
	change(&e)
	return context.WithValue(ctx, exchangeKey{}, e)
}

func withOperation(ctx context.Context, operation string) context.Context {
	return withExchange(ctx, func(e *exchange) { e.operation = operation })
}

func operationOf(r *http.Request) string {
	if operation := exchangeOf(r.Context()).operation; operation != "" && !strings.HasSuffix(r.URL.Path, "/auth/tokens") {
		return operation
	}
	if r.Method == http.MethodPost {
		return OperationLogin
	}
	return operationDiscover
}

// transport decorates a backend's connections: it limits concurrent requests, paces them,
// and measures each one. It belongs to one backend, so that a slow backend does not use
// up the slots of others.
type transport struct {
	next    http.RoundTripper
	backend string
	queue   *turns.Queue
	// elsewhere is the queue of requests to other services than Cinder, so that one that
	// does not answer leaves Cinder its slots.
	elsewhere *turns.Queue
	timeout   time.Duration
	// maxPage limits a page's size, in bytes.
	maxPage int64
	metrics *Metrics
	// mayWrite is called before bytes leave; see guardedConn.
	mayWrite func() error
	clock    clock.Clock
	// certificates remembers the servers' certificates.
	certificates certificates.Seen
	renewals     renewals
}

func newTransport(options Options, found auth.Credentials) *transport {
	t := &transport{
		next:      options.Base,
		backend:   options.Backend,
		queue:     cmp.Or(options.Queue, turns.NewQueue(options.Limits)),
		elsewhere: turns.NewQueue(turns.Limits{Concurrency: options.Limits.Concurrency}),
		timeout:   options.RequestTimeout,
		maxPage:   maxPageSize,
		metrics:   options.Metrics,
		mayWrite:  options.MayWrite,
	}
	t.certificates.Identity = hostOf(found.Keystone.IdentityEndpoint)
	if t.mayWrite == nil {
		t.mayWrite = func() error { return nil }
	}
	if t.next == nil {
		t.next = t.connections(options, found)
	}
	return t
}

func (t *transport) connections(options Options, found auth.Credentials) *http.Transport {
	dial := options.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &guardedConn{Conn: conn, transport: t}, nil
		},
		// Eight kilobytes can decompress to more than a gigabyte.
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		// Cloned because http.Transport writes to it while a later login may read it.
		TLSClientConfig:     found.TLS.Clone(),
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        options.Limits.Concurrency,
		MaxIdleConnsPerHost: options.Limits.Concurrency,
		IdleConnTimeout:     90 * time.Second,
		ForceAttemptHTTP2:   true,
	}
}

// guardedConn checks once more before bytes leave the process. After the fence's check, a
// request may have waited for a connection, or the process may have been paused for
// minutes. A create request sent then would create a second volume beside the next
// leader's.
type guardedConn struct {
	net.Conn
	transport *transport
}

func (c *guardedConn) Write(p []byte) (int, error) {
	if err := c.transport.mayWrite(); err != nil {
		return 0, &Error{Backend: c.transport.backend, Kind: KindFenced, Message: "nothing was sent: " + err.Error(), Cause: context.Canceled}
	}
	return c.Conn.Write(p)
}

// WithRequestTimeout shortens the timeout of every request made with the context. Unlike
// a deadline, it does not run while a request waits for its turn.
func WithRequestTimeout(ctx context.Context, timeout time.Duration) context.Context {
	return withExchange(ctx, func(e *exchange) { e.timeout = timeout })
}

// atMost returns a request's timeout, at most longest.
func (e exchange) atMost(longest time.Duration) time.Duration {
	if e.timeout > 0 {
		return min(e.timeout, longest)
	}
	return longest
}

// RoundTrip waits for its turn, then sends. The wait counts against the caller's context,
// but not against the timeout or the measured duration. The slot is in use until the body
// is read.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	release, of := func() {}, exchangeOf(r.Context())
	queue := t.queue
	if of.elsewhere {
		queue = t.elsewhere
	}
	if !of.login {
		if err := queue.Admit(r.Context(), of.admission); err != nil {
			return nil, notSent{err}
		}
		trace.SpanFromContext(r.Context()).AddEvent(admittedEvent)
		release = queue.Release
	}
	bounded, cancel := context.WithTimeout(r.Context(), of.atMost(t.timeout))
	done := sync.OnceFunc(func() {
		cancel()
		release()
	})
	start := time.Now()
	response, err := t.next.RoundTrip(r.WithContext(bounded))
	if err != nil {
		done()
		t.metrics.request(t.backend, operationOf(r), "none", time.Since(start))
		return nil, err
	}
	t.certificates.Read(r, response)
	operation := operationOf(r)
	t.metrics.request(t.backend, operation, codeLabel(response.StatusCode), time.Since(start))
	if !strings.HasPrefix(operation, "auth.") {
		if !of.elsewhere {
			t.clock.Read(response)
		}
		t.renewals.answered(operation, response)
	}
	if note := turns.CallerOf(r.Context()).Answered; note != nil && response.StatusCode < http.StatusMultipleChoices {
		note(operation, requestID(response.Header))
	}
	response.Body = body{http.MaxBytesReader(nil, response.Body, t.maxAnswer(of, response.StatusCode)), done}
	return response, nil
}

// StartSpan begins a span of the caller's trace, if it has one. The caller must
// end it.
func StartSpan(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	return trace.SpanFromContext(ctx).TracerProvider().Tracer("standalone-cinder").Start(ctx, name, options...)
}

// traced adds a span to each request of a traced caller. Requests that serve several
// callers, such as the listing that all waits share, belong to no trace.
type traced struct{ next http.RoundTripper }

// admittedEvent marks the end of a request's wait for its turn.
const admittedEvent = "admitted"

func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	if !trace.SpanFromContext(r.Context()).IsRecording() {
		return t.next.RoundTrip(r)
	}
	ctx, span := StartSpan(r.Context(), operationOf(r), trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(
			attribute.String("http.request.method", r.Method),
			attribute.String("server.address", r.URL.Hostname())))
	defer span.End()
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		span.SetStatus(codes.Error, "no answer")
		return nil, err
	}
	span.SetAttributes(attribute.Int("http.response.status_code", response.StatusCode))
	if id := requestID(response.Header); id != "" {
		span.SetAttributes(attribute.String("openstack.request_id", id))
	}
	if response.StatusCode >= http.StatusBadRequest {
		span.SetStatus(codes.Error, codeLabel(response.StatusCode))
	}
	return response, nil
}

// codeLabel returns the label for an HTTP status. Statuses that HTTP does not
// define share one, since a server could send any number.
func codeLabel(status int) string {
	if http.StatusText(status) == "" {
		return "other"
	}
	return strconv.Itoa(status)
}

// Limits of an answer's size, in bytes. A page of a thousand volumes has about 1.2 MB, a
// service catalog of many regions a few hundred kilobytes. Decoded, the largest of each
// takes less than 64 MiB of memory.
const (
	maxPageSize   = 8 << 20
	maxAnswerSize = 1 << 20
	maxFaultSize  = 64 << 10
	// A token is in a header of the answer to a login.
	maxHeaderBytes = 256 << 10
)

func (t *transport) maxAnswer(of exchange, status int) int64 {
	switch {
	case status >= http.StatusMultipleChoices:
		return maxFaultSize
	case of.page:
		return t.maxPage
	}
	return maxAnswerSize
}

// body is an answer's bounded body, and ends the exchange when it is closed.
type body struct {
	io.ReadCloser
	done func()
}

func (b body) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// notSent marks a request that was never sent, so it certainly had no effect.
type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

func (t *transport) close() {
	if closer, ok := t.next.(*http.Transport); ok {
		closer.CloseIdleConnections()
	}
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Host
}
