package faultproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// far bounds waits for events that must happen; a passing test never waits as
// long.
const far = 30 * time.Second

// origin is the server behind a proxy. It records its requests.
type origin struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newOrigin(t *testing.T) *origin {
	t.Helper()
	o := &origin{}
	o.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		o.mu.Lock()
		o.asked = append(o.asked, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+string(body)+" "+r.Header.Get("X-Who")))
		o.mu.Unlock()
		w.Header().Set("X-Origin", "yes")
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write([]byte("answer"))
	}))
	t.Cleanup(o.Close)
	return o
}

func (o *origin) requests() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.asked...)
}

func start(t *testing.T, options Options) *Proxy {
	t.Helper()
	p, err := Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// outcome is what a client got: an answer, or an error.
type outcome struct {
	code int
	body string
	err  error
}

func (o outcome) String() string {
	if o.err != nil {
		return "no answer"
	}
	return fmt.Sprintf("%d %s", o.code, o.body)
}

// send makes a request as a client of its own.
func send(t *testing.T, ctx context.Context, method, address, body string) outcome {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Who", "client")
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return outcome{err: err}
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.Header.Get("X-Origin") != "yes" {
		err = errors.New("a header is missing")
	}
	return outcome{response.StatusCode, string(content), err}
}

// await receives from a channel that must deliver.
func await[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(far):
		t.Fatalf("timed out: %s", what)
		panic("unreachable")
	}
}

const theRequest = "POST /volumes?limit=5 create client"

func TestVerdicts(t *testing.T) {
	cases := []struct {
		verdict Verdict
		// before and after are the numbers of requests at the server when the
		// client has its outcome, and after the release.
		before, after int
		// givesUp means that the client's outcome is its own timeout.
		givesUp bool
		outcome string
	}{
		{Pass, 1, 1, false, "202 answer"},
		{HoldBefore, 0, 0, true, "no answer"},
		{HoldAfter, 1, 1, true, "no answer"},
		{LoseBefore, 0, 0, false, "no answer"},
		{LoseAfter, 1, 1, false, "no answer"},
		{Late, 0, 1, true, "no answer"},
		{LateAnswer, 1, 1, true, "no answer"},
		{Twice, 2, 2, false, "202 answer"},
	}
	for _, c := range cases {
		for _, patient := range []bool{true, false} {
			name := c.verdict.String()
			options := Options{}
			if !patient {
				if !c.givesUp {
					continue
				}
				// The proxy hangs up instead of the client.
				name, options.Patience = name+" hangs up", time.Millisecond
			}
			t.Run(name, func(t *testing.T) {
				server := newOrigin(t)
				options.Target = server.URL
				p := start(t, options)
				judged := make(chan Request, 2)
				p.Judge(func(r Request) Verdict {
					judged <- r
					return c.verdict
				})
				answered := make(chan int, 4)
				p.Observe(func(r Request, code int) { answered <- code })
				ctx, giveUp := context.WithCancel(t.Context())
				defer giveUp()
				got := make(chan outcome, 1)
				go func() { got <- send(t, ctx, "POST", p.URL()+"/volumes?limit=5", "create") }()

				seen := await(t, "the verdict is asked for", judged)
				if seen.Number != 1 || seen.Method != "POST" || seen.Path != "/volumes" || seen.Query != "limit=5" || string(seen.Body) != "create" {
					t.Errorf("the judge saw %+v", seen)
				}
				for range c.before {
					if code := await(t, "the server's answer is observed", answered); code != http.StatusAccepted {
						t.Errorf("an answer of %d was observed", code)
					}
				}
				if c.givesUp && patient {
					select {
					case early := <-got:
						t.Fatalf("the client got %s before its timeout", early)
					default:
					}
					giveUp()
				}
				if outcome := await(t, "the client has its outcome", got); outcome.String() != c.outcome {
					t.Errorf("the client got %s (%v), want %s", outcome, outcome.err, c.outcome)
				}
				if n := len(server.requests()); n != c.before {
					t.Errorf("the server got %d requests, want %d: %v", n, c.before, server.requests())
				}
				p.Release()
				for range c.after - c.before {
					await(t, "the released request is answered", answered)
				}
				p.Close()
				asked := server.requests()
				if len(asked) != c.after {
					t.Errorf("the server got %d requests in the end, want %d: %v", len(asked), c.after, asked)
				}
				for _, request := range asked {
					if request != theRequest {
						t.Errorf("the server got %q, want %q", request, theRequest)
					}
				}
				if len(judged) != 0 {
					t.Error("the judge was called more than once")
				}
			})
		}
	}
}

func TestLateAnswerReachesAClientThatStillWaits(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL})
	p.Judge(func(Request) Verdict { return LateAnswer })
	answered := make(chan int, 1)
	p.Observe(func(_ Request, code int) { answered <- code })
	got := make(chan outcome, 1)
	go func() { got <- send(t, t.Context(), "GET", p.URL()+"/volumes", "") }()
	await(t, "the server answers", answered)
	p.Release()
	if outcome := await(t, "the answer arrives", got); outcome.String() != "202 answer" {
		t.Errorf("the client got %s (%v)", outcome, outcome.err)
	}
}

func TestReleaseLetsGoOfEarlierRequestsOnly(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL, Patience: time.Millisecond})
	p.Judge(func(Request) Verdict { return Late })
	answered := make(chan int, 2)
	p.Observe(func(_ Request, code int) { answered <- code })
	send(t, t.Context(), "POST", p.URL()+"/first", "")
	p.Release()
	await(t, "the first request is answered", answered)
	send(t, t.Context(), "POST", p.URL()+"/second", "")
	p.Close()
	if got := fmt.Sprint(server.requests()); got != "[POST /first  client]" {
		t.Errorf("the server got %s", got)
	}
}

func TestRequestWaitsForItsVerdict(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL})
	judged, decide := make(chan bool), make(chan bool)
	p.Judge(func(Request) Verdict {
		judged <- true
		<-decide
		return Pass
	})
	got := make(chan outcome, 1)
	go func() { got <- send(t, t.Context(), "GET", p.URL()+"/volumes", "") }()
	await(t, "the verdict is asked for", judged)
	if n := len(server.requests()); n != 0 {
		t.Errorf("the server got %d requests before the verdict", n)
	}
	close(decide)
	if outcome := await(t, "the answer arrives", got); outcome.String() != "202 answer" {
		t.Errorf("the client got %s (%v)", outcome, outcome.err)
	}
}

func TestNobodyBehindTheProxyIsNoAnswer(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL})
	server.Close()
	for _, verdict := range []Verdict{Pass, LoseAfter} {
		p.Judge(func(Request) Verdict { return verdict })
		answered := make(chan int, 1)
		p.Observe(func(_ Request, code int) { answered <- code })
		if outcome := send(t, t.Context(), "GET", p.URL()+"/", ""); outcome.err == nil {
			t.Errorf("%s: the client got %s", verdict, outcome)
		}
		if code := await(t, "the failure is observed", answered); code != 0 {
			t.Errorf("%s: an answer of %d was observed", verdict, code)
		}
	}
}

// streams returns a server that writes the lines it is given, and a client that
// reads them.
func streams(t *testing.T) (p *Proxy, write chan<- string, read <-chan string) {
	t.Helper()
	lines := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		for {
			_ = http.NewResponseController(w).Flush()
			select {
			case line := <-lines:
				_, _ = w.Write([]byte(line + "\n"))
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	p = start(t, Options{Target: server.URL})
	response, err := http.Get(p.URL() + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	out := make(chan string, 8)
	go func() {
		defer close(out)
		scanner := bufio.NewScanner(response.Body)
		for scanner.Scan() {
			out <- scanner.Text()
		}
	}()
	return p, lines, out
}

func TestStreamsFlow(t *testing.T) {
	_, write, read := streams(t)
	for _, line := range []string{"one", "two"} {
		write <- line
		if got := await(t, "a line arrives while the stream is open", read); got != line {
			t.Errorf("read %q, want %q", got, line)
		}
	}
}

func TestStallHoldsStreamsUntilTheNetworkIsHealed(t *testing.T) {
	p, write, read := streams(t)
	p.Stall()
	write <- "held"
	select {
	case line := <-read:
		t.Fatalf("%q came through a stalled network", line)
	case <-time.After(50 * time.Millisecond): // longer would only prove more
	}
	p.Heal()
	if got := await(t, "the line arrives after all", read); got != "held" {
		t.Errorf("read %q", got)
	}
}

func TestCutClosesStreams(t *testing.T) {
	p, _, read := streams(t)
	p.Cut()
	if line := await(t, "the stream ends", read); line != "" {
		t.Errorf("read %q", line)
	}
}

func TestStallHoldsRequestsAndAnswers(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL})
	arrived, goOn := make(chan bool), make(chan bool)
	p.Judge(func(r Request) Verdict {
		arrived <- true
		<-goOn
		return Pass
	})
	answered := make(chan int, 2)
	p.Observe(func(_ Request, code int) { answered <- code })
	first, second := make(chan outcome, 1), make(chan outcome, 1)
	go func() { first <- send(t, t.Context(), "GET", p.URL()+"/first", "") }()
	await(t, "the first request is inside", arrived)
	p.Stall()
	goOn <- true
	await(t, "the server answers the first request", answered)
	p.Judge(nil)
	go func() { second <- send(t, t.Context(), "GET", p.URL()+"/second", "") }()
	select {
	case got := <-first:
		t.Fatalf("the first client got %s through a stalled network", got)
	case got := <-second:
		t.Fatalf("the second client got %s through a stalled network", got)
	case <-time.After(50 * time.Millisecond):
	}
	if n := len(server.requests()); n != 1 {
		t.Errorf("%d requests went through a stalled network", n-1)
	}
	p.Heal()
	for _, from := range []chan outcome{first, second} {
		if got := await(t, "the answer arrives after all", from); got.String() != "202 answer" {
			t.Errorf("a client got %s (%v)", got, got.err)
		}
	}
}

func TestWhoGivesUpDuringAStallIsNotForwarded(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL})
	p.Stall()
	ctx, giveUp := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer giveUp()
	if got := send(t, ctx, "POST", p.URL()+"/", "create"); got.err == nil {
		t.Errorf("the client got %s", got)
	}
	p.Heal()
	p.Close()
	if asked := server.requests(); len(asked) != 0 {
		t.Errorf("the server got %v", asked)
	}
}

func TestCutLosesAnswersAndRefusesUntilTheNetworkIsHealed(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL})
	p.Stall()
	waiting := make(chan outcome, 1)
	go func() { waiting <- send(t, t.Context(), "GET", p.URL()+"/", "") }()
	p.Cut()
	if got := await(t, "a stalled client is cut off", waiting); got.err == nil {
		t.Errorf("a stalled client got %s", got)
	}
	for range 3 {
		if got := send(t, t.Context(), "GET", p.URL()+"/", ""); got.err == nil {
			t.Errorf("a client got %s through a cut network", got)
		}
	}
	if n := len(server.requests()); n != 0 {
		t.Errorf("%d requests went through a cut network", n)
	}
	p.Heal()
	if got := send(t, t.Context(), "GET", p.URL()+"/", ""); got.String() != "202 answer" {
		t.Errorf("after healing a client got %s (%v)", got, got.err)
	}
}

// TestInformationalAnswersDoNotAbortOnACutNetwork: an informational answer
// comes on a goroutine of the transport.
func TestInformationalAnswersDoNotAbortOnACutNetwork(t *testing.T) {
	p := &Proxy{network: cut, changed: make(chan struct{})}
	recorder := httptest.NewRecorder()
	g := &gate{ResponseWriter: recorder, proxy: p, ctx: t.Context()}
	g.WriteHeader(http.StatusEarlyHints)
	if recorder.Code == http.StatusEarlyHints {
		t.Error("it passed a cut network")
	}
	defer func() {
		if recover() == nil {
			t.Error("the final answer passed a cut network")
		}
	}()
	g.WriteHeader(http.StatusOK)
}

func TestCloseEndsWhateverWaits(t *testing.T) {
	for _, verdict := range []Verdict{HoldBefore, HoldAfter, Late, LateAnswer} {
		t.Run(verdict.String(), func(t *testing.T) {
			server := newOrigin(t)
			p := start(t, Options{Target: server.URL})
			judged := make(chan bool, 1)
			p.Judge(func(Request) Verdict {
				judged <- true
				return verdict
			})
			got := make(chan outcome, 1)
			go func() { got <- send(t, t.Context(), "POST", p.URL()+"/", "") }()
			await(t, "the request is inside", judged)
			p.Close()
			p.Close() // does no harm
			if outcome := await(t, "the client is told", got); outcome.err == nil {
				t.Errorf("the client got %s", outcome)
			}
			if verdict == Late && len(server.requests()) != 0 {
				t.Error("a request that was not released was forwarded")
			}
		})
	}
}

func TestClientsMaySpeakTLS(t *testing.T) {
	server := newOrigin(t)
	p := start(t, Options{Target: server.URL, TLS: true})
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(p.Authority()) {
		t.Fatalf("no authority: %s", p.Authority())
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	p.Judge(func(r Request) Verdict {
		if r.Method == "POST" {
			return LoseAfter
		}
		return Pass
	})
	response, err := client.Get(p.URL() + "/volumes")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusAccepted || response.ProtoMajor != 1 {
		t.Errorf("the client got %s in %s", response.Status, response.Proto)
	}
	if response, err := client.Post(p.URL()+"/volumes", "text/plain", strings.NewReader("create")); err == nil {
		_ = response.Body.Close()
		t.Errorf("the client got %s", response.Status)
	}
	if n := len(server.requests()); n != 2 {
		t.Errorf("the server got %d requests, want 2: a request whose answer was lost must not be repeated", n)
	}
	if plain := start(t, Options{Target: server.URL}); plain.Authority() != nil {
		t.Error("a proxy without TLS has an authority")
	}
}

func TestStartRefusesWhatIsNoServer(t *testing.T) {
	for target, want := range map[string]string{
		"127.0.0.1":             `target "127.0.0.1" is not a scheme and a host`,
		"http://127.0.0.1:1/v3": `target "http://127.0.0.1:1/v3" is not a scheme and a host`,
		"http://127.0.0.1:port": `target: parse "http://127.0.0.1:port": invalid port ":port" after host`,
	} {
		if _, err := Start(Options{Target: target}); err == nil || err.Error() != want {
			t.Errorf("Start(%q): %v, want %s", target, err, want)
		}
	}
}
