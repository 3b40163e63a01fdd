// Package faultproxy is a proxy between a client and an HTTP server. It shows a
// test every request, and holds, loses, delays or repeats those that the test
// picks. In front of the API server or Cinder it can disturb the network of a
// single replica, which faults of the server itself cannot.
package faultproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Verdict is what happens to a request.
type Verdict int

const (
	// Pass forwards the request and its answer.
	Pass Verdict = iota
	// HoldBefore forwards nothing; the client waits until it times out.
	HoldBefore
	// HoldAfter forwards the request and keeps its answer; the client waits
	// until it times out.
	HoldAfter
	// LoseBefore closes the connection without forwarding anything.
	LoseBefore
	// LoseAfter forwards the request and closes the connection instead of
	// answering.
	LoseAfter
	// Late forwards the request only after Release, whether or not the client
	// still waits, like a network that delayed a packet. The answer is dropped.
	Late
	// LateAnswer forwards the request and returns its answer after Release, if
	// the client still waits.
	LateAnswer
	// Twice forwards the request twice and returns the second answer, like a
	// gateway that repeats a request it considers lost.
	Twice
)

// String returns the verdict's name in a test's name.
func (v Verdict) String() string {
	names := []string{
		Pass: "pass", HoldBefore: "hold-before", HoldAfter: "hold-after", LoseBefore: "lose-before", LoseAfter: "lose-after",
		Late: "late", LateAnswer: "late-answer", Twice: "twice",
	}
	if v >= 0 && int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("verdict %d", int(v))
}

// Request describes a request to a test. It contains no header and so no
// credentials.
type Request struct {
	// Number counts the proxy's requests from 1, in order of arrival.
	Number int
	Method string
	Path   string
	Query  string
	Body   []byte
}

// Options configure a proxy.
type Options struct {
	// Target is the server's address, such as https://127.0.0.1:6443.
	Target string
	// Transport connects to the server; nil means the proxy's own.
	Transport http.RoundTripper
	// TLS makes clients use https, in HTTP/1.1, with a certificate that
	// Authority returns. A Kubernetes client sends its token only over https.
	TLS bool
	// Patience is how long a client whose request or answer is held waits until
	// its connection is closed, as by a load balancer. Zero leaves the timeout
	// to the client.
	Patience time.Duration
}

// Proxy is one network between a client and a server.
type Proxy struct {
	target    *url.URL
	transport http.RoundTripper
	patience  time.Duration
	authority []byte
	listener  net.Listener
	server    *http.Server
	reverse   *httputil.ReverseProxy
	// life ends with Close, and with it every request that waits in the proxy.
	life   context.Context
	end    context.CancelFunc
	inside sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	number   int
	judge    func(Request) Verdict
	observe  func(Request, int)
	network  network
	changed  chan struct{} // closed when network changes
	released chan struct{} // closed by Release
	open     map[net.Conn]bool
}

// network is the state of the connections.
type network int

const (
	whole network = iota
	stalled
	cut
)

// Start serves on a free loopback port until Close.
func Start(options Options) (*Proxy, error) {
	target, err := url.Parse(options.Target)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	if target.Host == "" || target.Path != "" {
		return nil, fmt.Errorf("target %q is not a scheme and a host", options.Target)
	}
	transport := options.Transport
	if transport == nil {
		transport = &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		target: target, transport: transport, patience: options.Patience, listener: listener,
		changed: make(chan struct{}), released: make(chan struct{}), open: map[net.Conn]bool{},
	}
	p.life, p.end = context.WithCancel(context.Background())
	silent := log.New(io.Discard, "", 0)
	p.reverse = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches are streams
		ErrorLog:      silent,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve), ErrorLog: silent, ConnState: p.connection}
	if options.TLS {
		certificate, authority, err := newCertificate()
		if err != nil {
			return nil, errors.Join(err, listener.Close())
		}
		p.authority = authority
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}})
	}
	p.inside.Go(func() { _ = p.server.Serve(listener) })
	return p, nil
}

// URL returns where clients find the proxy.
func (p *Proxy) URL() string {
	scheme := "http://"
	if p.authority != nil {
		scheme = "https://"
	}
	return scheme + p.listener.Addr().String()
}

// Authority returns what clients of Options.TLS must trust, in PEM; nil without
// it.
func (p *Proxy) Authority() []byte { return p.authority }

// Close ends the proxy and everything that waits in it, and returns when all of
// it has stopped. Late requests that were not released are lost.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	_ = p.server.Close()
	p.inside.Wait()
	if own, ok := p.transport.(*http.Transport); ok {
		own.CloseIdleConnections()
	}
}

// Judge makes f decide every further request. Several goroutines may call f at
// once, and f may take its time: the request waits for its verdict. Nil passes
// all.
func (p *Proxy) Judge(f func(Request) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = f
}

// Observe calls f with every answer of the server and its status code, before
// the client gets it; 0 means no answer. f is called twice for a request that
// was forwarded twice, and never for one that was not forwarded. Several
// goroutines may call f at once.
func (p *Proxy) Observe(f func(request Request, code int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe = f
}

// Cut closes every connection and rejects new ones until Heal. The server still
// performs the requests that it has received, but its answers are lost.
func (p *Proxy) Cut() {
	p.set(cut)
	p.mu.Lock()
	defer p.mu.Unlock()
	for connection := range p.open {
		_ = connection.Close()
	}
}

// Stall blocks both directions until Heal, and closes nothing: clients notice
// only by their timeouts. What they sent meanwhile arrives afterwards, if they
// still wait.
func (p *Proxy) Stall() { p.set(stalled) }

// Heal ends Cut and Stall.
func (p *Proxy) Heal() { p.set(whole) }

func (p *Proxy) set(state network) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network = state
	close(p.changed)
	p.changed = make(chan struct{})
}

// Release releases the requests that were judged Late so far, and the answers
// to those that were judged LateAnswer.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.released)
	p.released = make(chan struct{})
}

// connection tracks the connections, and rejects new ones while the network is
// cut.
func (p *Proxy) connection(connection net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case state == http.StateClosed, state == http.StateHijacked:
		delete(p.open, connection)
	case p.network == cut:
		_ = connection.Close()
	default:
		p.open[connection] = true
	}
}

// isWhole returns once the network is whole, or false if it is cut or the
// client has left.
func (p *Proxy) isWhole(ctx context.Context) bool {
	for {
		p.mu.Lock()
		state, changed := p.network, p.changed
		p.mu.Unlock()
		switch state {
		case whole:
			return true
		case cut:
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		case <-p.life.Done():
			return false
		}
	}
}

// enter counts a request, unless the proxy is closed.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.inside.Add(1)
	return true
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	if !p.enter() {
		abort()
	}
	defer p.inside.Done()
	body, err := io.ReadAll(r.Body)
	if err != nil || !p.isWhole(r.Context()) {
		abort()
	}
	p.mu.Lock()
	p.number++
	request := Request{Number: p.number, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Body: body}
	// Before the verdict: the judge may cause the request's release at once.
	judge, released := p.judge, p.released
	p.mu.Unlock()
	verdict := Pass
	if judge != nil {
		verdict = judge(request)
	}
	switch verdict {
	case Pass:
		p.pass(w, r, request)
	case HoldBefore:
		p.hold(r.Context(), nil)
		abort()
	case HoldAfter:
		p.forward(r, request)
		p.hold(r.Context(), nil)
		abort()
	case LoseAfter:
		p.forward(r, request)
		abort()
	case Late:
		// The connection is the handler's, but the request no longer is.
		p.inside.Go(func() {
			select {
			case <-released:
				p.forward(r, request)
			case <-p.life.Done():
			}
		})
		p.hold(r.Context(), nil)
		abort()
	case LateAnswer:
		answer := p.forward(r, request)
		if answer == nil || !p.hold(r.Context(), released) || !p.isWhole(r.Context()) {
			abort()
		}
		answer.write(w)
	case Twice:
		p.forward(r, request)
		p.pass(w, r, request)
	default: // LoseBefore
		abort()
	}
}

// abort closes the connection of the current request.
func abort() { panic(http.ErrAbortHandler) }

// hold makes a client wait until it leaves, its patience ends or the proxy
// closes; true means that the channel was closed first.
func (p *Proxy) hold(ctx context.Context, until <-chan struct{}) bool {
	var over <-chan time.Time
	if p.patience > 0 {
		timer := time.NewTimer(p.patience)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-until:
		return true
	case <-over:
	case <-ctx.Done():
	case <-p.life.Done():
	}
	return false
}

// tell calls the observer with an answer.
func (p *Proxy) tell(request Request, code int) {
	p.mu.Lock()
	observe := p.observe
	p.mu.Unlock()
	if observe != nil {
		observe(request, code)
	}
}

// pass forwards a request together with its client: if the client leaves, the
// request ends too.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, request Request) {
	r.Body = io.NopCloser(bytes.NewReader(request.Body))
	g := &gate{ResponseWriter: w, proxy: p, ctx: r.Context(), request: request}
	defer func() {
		if !g.answered {
			p.tell(request, 0)
		}
	}()
	p.reverse.ServeHTTP(g, r)
}

// maxForward bounds a request without a waiting client.
const maxForward = 2 * time.Minute

// answer is a server's answer, read to its end.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (a *answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body)
}

// forward makes a request without its client, which may have left; nil means
// that there was no answer.
func (p *Proxy) forward(r *http.Request, request Request) *answer {
	got, err := p.exchange(r, request)
	if err != nil {
		p.tell(request, 0)
		return nil
	}
	p.tell(request, got.code)
	return got
}

func (p *Proxy) exchange(r *http.Request, request Request) (*answer, error) {
	ctx, cancel := context.WithTimeout(p.life, maxForward)
	defer cancel()
	address := *r.URL
	address.Scheme, address.Host = p.target.Scheme, p.target.Host
	forwarded, err := http.NewRequestWithContext(ctx, r.Method, address.String(), bytes.NewReader(request.Body))
	if err != nil {
		return nil, err
	}
	forwarded.Header = r.Header.Clone()
	response, err := p.transport.RoundTrip(forwarded)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	return &answer{response.StatusCode, response.Header, body}, errors.Join(err, response.Body.Close())
}

// gate lets an answer through while the network is whole.
type gate struct {
	http.ResponseWriter
	proxy    *Proxy
	ctx      context.Context
	request  Request
	answered bool
}

func (g *gate) WriteHeader(code int) {
	if code >= 200 && !g.answered {
		g.answered = true
		g.proxy.tell(g.request, code)
	}
	whole := g.proxy.isWhole(g.ctx)
	switch {
	case whole:
		g.ResponseWriter.WriteHeader(code)
	case code >= 200:
		abort()
	default:
		// Informational answers come on a goroutine that a panic would not only
		// abort the request of; the final answer follows.
	}
}

func (g *gate) Write(content []byte) (int, error) {
	if !g.proxy.isWhole(g.ctx) {
		abort()
	}
	return g.ResponseWriter.Write(content)
}

// Unwrap serves http.ResponseController.
func (g *gate) Unwrap() http.ResponseWriter { return g.ResponseWriter }
