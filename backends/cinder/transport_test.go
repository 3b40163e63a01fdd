package cinder

import (
	"bytes"
	"cmp"
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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/time/rate"

	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
	"github.com/standalone-cinder/standalone-cinder/test/cindertest"
)

// tripper answers requests without a network.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// testTransport returns a transport on top of another, with the given limits.
func testTransport(t *testing.T, next tripper, limits turns.Limits) *transport {
	t.Helper()
	options := testOptions()
	options.Limits.Concurrency = cmp.Or(limits.Concurrency, options.Limits.Concurrency)
	options.Limits.RequestsPerSecond = limits.RequestsPerSecond
	options.Base = next
	return newTransport(options, auth.Credentials{})
}

// occupy takes a slot, as a request does.
func occupy(t *testing.T, wire *transport) {
	t.Helper()
	if err := wire.queue.Admit(t.Context(), turns.Admission{}); err != nil {
		t.Fatal(err)
	}
}

func httpRequest(ctx context.Context) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://cinder/v3/volumes", strings.NewReader("{}"))
	if err != nil {
		panic(err)
	}
	return r
}

func ok(body string) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}
}

func TestSlotsBoundRequestsUnderWay(t *testing.T) {
	const limit = 3
	var underWay, most atomic.Int32
	release := make(chan struct{})
	wire := testTransport(t, func(*http.Request) (*http.Response, error) {
		most.Store(max(most.Load(), underWay.Add(1)))
		<-release
		return ok("x"), nil
	}, turns.Limits{Concurrency: limit})
	done := make(chan error)
	for range 20 {
		go func() {
			response, err := wire.RoundTrip(httpRequest(t.Context()))
			if err == nil {
				underWay.Add(-1)
				err = response.Body.Close()
			}
			done <- err
		}()
	}
	close(release)
	for range 20 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := most.Load(); n > limit {
		t.Errorf("%d requests at once, want at most %d", n, limit)
	}
	equal(t, wire.queue.InUse(), 0)
}

// TestSlotIsHeldUntilTheBodyIsRead: a page of a thousand volumes takes most of
// its time after the headers.
func TestSlotIsHeldUntilTheBodyIsRead(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) { return ok("x"), nil }, turns.Limits{Concurrency: 1})
	response, err := wire.RoundTrip(httpRequest(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, wire.queue.InUse(), 1)
	for range 2 { // closing twice must not free another request's slot
		if err := response.Body.Close(); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, wire.queue.InUse(), 0)
}

// TestCanceledInTheQueue: a request that never got its turn certainly had no
// effect.
func TestCanceledInTheQueue(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) {
		t.Error("the request was sent")
		return nil, errors.New("sent")
	}, turns.Limits{Concurrency: 1})
	occupy(t, wire) // another request
	expired, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	canceled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	for name, test := range map[string]struct {
		ctx   context.Context
		want  string
		cause error
	}{
		"canceled":              {canceled, "backend gold: volume.create: the request was canceled", context.Canceled},
		"deadline":              {expired, "backend gold: volume.create: timed out waiting for a free request slot", context.DeadlineExceeded},
		"the waiter ended":      {withAdmission(t.Context(), turns.Admission{Waiter: canceled, Fence: func() error { return nil }}), "backend gold: volume.create: the request was canceled", context.Canceled},
		"the request was ended": {withAdmission(canceled, turns.Admission{Waiter: t.Context(), Fence: func() error { return nil }}), "backend gold: volume.create: the request was canceled", context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := wire.RoundTrip(httpRequest(test.ctx))
			err = translate("gold", "volume.create", err)
			equal(t, authtest.ErrorText(err), test.want)
			equal(t, KindOf(err), KindUnavailable)
			equal(t, effectUnknown(err), false)
			equal(t, errors.Is(err, test.cause), true)
			equal(t, wire.queue.InUse(), 1)
		})
	}
}

func TestFenceIsAskedWhenTheTurnHasCome(t *testing.T) {
	sent := 0
	wire := testTransport(t, func(*http.Request) (*http.Response, error) { sent++; return ok(""), nil }, turns.Limits{Concurrency: 1})
	occupy(t, wire)
	var over atomic.Bool
	fenced := &Error{Backend: "gold", Kind: KindFenced, Message: "no change was made: the lease was lost", Cause: context.Canceled}
	ctx := withAdmission(t.Context(), turns.Admission{Waiter: t.Context(), Fence: func() error {
		if over.Load() {
			return fenced
		}
		return nil
	}})
	result := make(chan error)
	go func() {
		_, err := wire.RoundTrip(httpRequest(ctx))
		result <- translate("gold", "volume.create", err)
	}()
	over.Store(true)
	wire.queue.Release() // the turn comes after the end of the term
	err := <-result
	equal(t, err, error(fenced))
	equal(t, sent, 0)
	equal(t, wire.queue.InUse(), 0)
}

// TestQueueLeavesAtOnceWhenAnOutageBegins: a rejection delays no request,
// neither because others hang in the slots nor because of a tenant's pace.
func TestQueueLeavesAtOnceWhenAnOutageBegins(t *testing.T) {
	rejected := &Error{Backend: "gold", Kind: KindUnavailable, Unsent: true, Message: "rejected"}
	for name, caller := range map[string]turns.Caller{
		"for a slot":            {Tenant: "a"},
		"for the tenant's pace": {Tenant: "b", Pace: rate.NewLimiter(rate.Every(time.Hour), 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wire := testTransport(t, func(*http.Request) (*http.Response, error) { return ok(""), nil }, turns.Limits{Concurrency: 1})
				if caller.Pace == nil {
					occupy(t, wire)
				} else {
					caller.Pace.Allow()
				}
				start := time.Now()
				outage, begin := context.WithCancelCause(t.Context())
				ctx := withAdmission(turns.WithCaller(t.Context(), caller), turns.Admission{Outage: func() (context.Context, error) { return outage, nil }})
				result := make(chan error)
				for range 20 {
					go func() {
						_, err := wire.RoundTrip(httpRequest(ctx))
						result <- translate("gold", "volume.get", err)
					}()
				}
				synctest.Wait()
				begin(rejected)
				for range 20 {
					equal(t, <-result, error(rejected))
				}
				equal(t, time.Since(start), 0)
				waiting, _ := wire.queue.Progress()
				equal(t, waiting, false)
			})
		})
	}
}

// TestTurnThatComesWithTheOutage: a request that gets its slot at the moment
// when the outage begins is not sent.
func TestTurnThatComesWithTheOutage(t *testing.T) {
	rejected := &Error{Backend: "gold", Kind: KindUnavailable, Unsent: true, Message: "rejected"}
	wire := testTransport(t, func(*http.Request) (*http.Response, error) {
		t.Error("the request was sent")
		return ok(""), nil
	}, turns.Limits{})
	asked := 0
	ctx := withAdmission(t.Context(), turns.Admission{Outage: func() (context.Context, error) {
		if asked++; asked > 1 {
			return nil, rejected
		}
		return t.Context(), nil
	}})
	_, err := wire.RoundTrip(httpRequest(ctx))
	equal(t, translate("gold", "volume.get", err), error(rejected))
	equal(t, wire.queue.InUse(), 0)
}

func TestPaceIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []time.Duration
		start := time.Now()
		wire := testTransport(t, func(*http.Request) (*http.Response, error) {
			sent = append(sent, time.Since(start).Round(time.Millisecond))
			return ok(""), nil
		}, turns.Limits{RequestsPerSecond: 0.001})
		send := func(ctx context.Context) error {
			response, err := wire.RoundTrip(httpRequest(ctx))
			if err != nil {
				return translate("gold", "volume.create", err)
			}
			return response.Body.Close()
		}
		equal(t, authtest.ErrorText(send(t.Context())), "")
		// The next is due in a quarter of an hour.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		err := send(ctx)
		equal(t, authtest.ErrorText(err), "backend gold: volume.create: timed out waiting for a free request slot")
		equal(t, effectUnknown(err), false)
		equal(t, wire.queue.InUse(), 0)
		waiting, _ := wire.queue.Progress()
		equal(t, waiting, false)
		// Canceled requests have not used up the tokens of others.
		equal(t, authtest.ErrorText(send(t.Context())), "")
		equal(t, sent, []time.Duration{0, 1000 * time.Second})
		equal(t, wire.queue.InUse(), 0)
	})
}

func TestWithoutAPaceNothingWaits(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) { return ok(""), nil }, turns.Limits{})
	for range 1000 {
		response, err := wire.RoundTrip(httpRequest(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
	}
}

func TestFailedExchangeFreesItsSlot(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) { return nil, errors.New("broken") }, turns.Limits{Concurrency: 1})
	for range 3 {
		if _, err := wire.RoundTrip(httpRequest(t.Context())); err == nil {
			t.Error("no error")
		}
	}
	equal(t, wire.queue.InUse(), 0)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAnswersAreBounded(t *testing.T) {
	wire := testTransport(t, func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(endless{})}, nil
	}, turns.Limits{})
	response, err := wire.RoundTrip(httpRequest(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	equal(t, n, int64(maxAnswerSize))
	equal(t, translate("gold", "volume.get", err).Error(), "backend gold: volume.get: the answer is larger than 1024 KiB")
}

func TestRequestsAreMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	options := testOptions()
	options.Metrics = NewMetrics(registry)
	options.Base = tripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/down" {
			return nil, errors.New("down")
		}
		return ok(""), nil
	})
	wire := newTransport(options, auth.Credentials{})
	send := func(ctx context.Context, method, path string) {
		r, err := http.NewRequestWithContext(ctx, method, "http://cinder"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, err := wire.RoundTrip(r); err == nil {
			response.Body.Close()
		}
	}
	ctx := withOperation(t.Context(), "volume.create")
	send(ctx, http.MethodPost, "/v3/volumes")
	send(ctx, http.MethodPost, "/down")
	send(ctx, http.MethodPost, "/v3/auth/tokens") // a renewal within an operation
	send(t.Context(), http.MethodGet, "/v3/auth/tokens")
	counts, err := testutil.GatherAndCount(registry, "standalone_cinder_openstack_request_duration_seconds")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, counts, 4)
	var text bytes.Buffer
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				text.WriteString(label.GetValue() + " ")
			}
			text.WriteString("\n")
		}
	}
	for _, want := range []string{"gold 200 volume.create ", "gold none volume.create ", "gold 200 auth.login ", "gold 200 auth.discover "} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no series %q in\n%s", want, text.String())
		}
	}
}

func TestNothingLeavesAProcessThatMayNotWrite(t *testing.T) {
	arrived := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.Method
		cindertest.Answer(w, http.StatusOK, `{"volumes": []}`)
	}))
	t.Cleanup(server.Close)
	var barred atomic.Bool
	options := testOptions()
	options.MayWrite = func() error {
		if barred.Load() {
			return errors.New("the lease has run out")
		}
		return nil
	}
	client, err := Login(t.Context(), auth.Credentials{Noauth: &auth.Noauth{Endpoint: server.URL, Project: "admin"}}, options)
	if err != nil {
		t.Fatal(err)
	}
	<-arrived
	barred.Store(true)
	// The login's connection exists, and no further one is made.
	fenced := 0
	for range 5 {
		_, err = client.CreateVolume(t.Context(), NewVolume{Name: "pvc-1", SizeGiB: 1})
		var failed *Error
		switch {
		case errors.As(err, &failed) && failed.Kind == KindFenced && failed.Message == "nothing was sent: the lease has run out":
			fenced++
		case err != nil && strings.Contains(err.Error(), net.ErrClosed.Error()):
			// net/http may notice the end of the refused connection before the refusal.
		default:
			t.Errorf("error %v", err)
		}
	}
	if fenced == 0 {
		t.Error("no error says that nothing was sent")
	}
	if len(arrived) > 0 {
		t.Errorf("a %s arrived", <-arrived)
	}
	barred.Store(false)
	if err := client.ListVolumes(t.Context(), Query{}, func([]Volume) bool { return true }); err != nil {
		t.Error(err)
	}
}
