// Package faultproxy stands between a client and an HTTP server. It shows a
// test every request, and holds, loses, delays or repeats the ones that the test
// picks. In front of the API server or of Cinder it tells one replica's
// network from another's, which faults of the server itself cannot.
package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"
)

// Verdict is what becomes of a request.
type Verdict int

const (
	// Pass forwards the request and its answer.
	Pass Verdict = iota
	// HoldBefore forwards nothing; the client waits until it gives up.
	HoldBefore
	// HoldAfter forwards the request and keeps its answer; the client waits
	// until it gives up.
	HoldAfter
	// LoseBefore closes the connection without forwarding anything.
	LoseBefore
	// LoseAfter forwards the request and closes the connection instead of
	// answering.
	LoseAfter
	// Late forwards the request only after Release, whether or not the client
	// still waits, as a network does that kept a packet for long.
	Late
	// Twice forwards the request twice and passes the second answer on, as a
	// gateway does that repeats what it believes lost.
	Twice
)

// String names the verdict in a test's name.
func (v Verdict) String() string {
	switch v {
	case Pass:
		return "pass"
	case HoldBefore:
		return "hold-before"
	case HoldAfter:
		return "hold-after"
	case LoseBefore:
		return "lose-before"
	case LoseAfter:
		return "lose-after"
	case Late:
		return "late"
	case Twice:
		return "twice"
	}
	return fmt.Sprintf("verdict %d", int(v))
}

// Request is what a test sees of one. It holds no header and so no credentials.
type Request struct {
	// Number counts the proxy's requests from 1, in order of arrival.
	Number int
	Method string
	Path   string
	Query  string
	Body   []byte
}

// Options say what the proxy stands in front of.
type Options struct {
	// Target is the server's address, such as https://127.0.0.1:6443.
	Target string
	// Transport reaches the server; nil is a transport of the proxy's own.
	Transport http.RoundTripper
}

// Proxy is one network between a client and a server.
type Proxy struct {
	target    *url.URL
	transport http.RoundTripper
	listener  net.Listener
	server    *http.Server
	reverse   *httputil.ReverseProxy
	closed    chan struct{}

	mu       sync.Mutex
	number   int
	judge    func(Request) Verdict
	observe  func(Request, int)
	healed   chan struct{} // closed while the network is whole
	refusing bool
	released chan struct{} // closed by Release
	open     map[net.Conn]bool
}

// Start serves on a free loopback port until Close.
func Start(options Options) (*Proxy, error) {
	target, err := url.Parse(options.Target)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	transport := options.Transport
	if transport == nil {
		transport = &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 30 * time.Second}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, transport: transport, listener: listener, closed: make(chan struct{}), healed: make(chan struct{}), released: make(chan struct{}), open: map[net.Conn]bool{}}
	close(p.healed)
	silent := log.New(io.Discard, "", 0)
	p.reverse = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches are streams
		ErrorLog:      silent,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve), ErrorLog: silent, ConnState: p.connection}
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

// URL is where clients find the proxy.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Close ends the proxy and everything that waits in it.
func (p *Proxy) Close() {
	close(p.closed)
	_ = p.server.Close()
	if own, ok := p.transport.(*http.Transport); ok {
		own.CloseIdleConnections()
	}
}

// Judge has every further request decided by f, which may be called by several
// goroutines at once; nil passes all.
func (p *Proxy) Judge(f func(Request) Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = f
}

// Observe has f told of every answer with its status code, 0 when there was
// none. It may be called by several goroutines at once.
func (p *Proxy) Observe(f func(request Request, code int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe = f
}

// Cut closes every connection and refuses new ones until Heal.
func (p *Proxy) Cut() {
	p.stall()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = true
	for connection := range p.open {
		_ = connection.Close()
	}
}

// Stall lets nothing through in either direction until Heal, and closes
// nothing: clients notice by their time-outs only. What they sent meanwhile
// arrives afterwards, if they still wait.
func (p *Proxy) Stall() { p.stall() }

func (p *Proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.healed:
		p.healed = make(chan struct{})
	default:
	}
}

// Heal ends Cut and Stall.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = false
	select {
	case <-p.healed:
	default:
		close(p.healed)
	}
}

// Release forwards the requests that were judged Late so far.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.released)
	p.released = make(chan struct{})
}

// connection keeps count of who is connected, and turns newcomers away while
// the network is cut.
func (p *Proxy) connection(connection net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case state == http.StateClosed, state == http.StateHijacked:
		delete(p.open, connection)
	case p.refusing:
		_ = connection.Close()
	default:
		p.open[connection] = true
	}
}

// whole returns once the network is whole, or false when the client has gone.
func (p *Proxy) whole(ctx context.Context) bool {
	for {
		p.mu.Lock()
		healed, refusing := p.healed, p.refusing
		p.mu.Unlock()
		if refusing {
			return false
		}
		select {
		case <-healed:
			return true
		default:
		}
		select {
		case <-healed:
		case <-ctx.Done():
			return false
		case <-p.closed:
			return false
		case <-time.After(20 * time.Millisecond): // Cut may follow Stall
		}
	}
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || !p.whole(r.Context()) {
		panic(http.ErrAbortHandler)
	}
	p.mu.Lock()
	p.number++
	request := Request{Number: p.number, Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Body: body}
	judge, observe, released := p.judge, p.observe, p.released
	p.mu.Unlock()
	verdict := Pass
	if judge != nil {
		verdict = judge(request)
	}
	code := 0
	if observe != nil {
		defer func() { observe(request, code) }()
	}
	switch verdict {
	case Pass:
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.reverse.ServeHTTP(&gate{ResponseWriter: w, proxy: p, ctx: r.Context(), code: &code}, r)
	case HoldBefore:
		p.wait(r.Context())
	case HoldAfter:
		_ = p.forward(r, body, io.Discard)
		p.wait(r.Context())
	case LoseBefore:
		panic(http.ErrAbortHandler)
	case LoseAfter:
		_ = p.forward(r, body, io.Discard)
		panic(http.ErrAbortHandler)
	case Late:
		select {
		case <-released:
		case <-p.closed:
			panic(http.ErrAbortHandler)
		}
		_ = p.forward(r, body, io.Discard)
		panic(http.ErrAbortHandler)
	case Twice:
		_ = p.forward(r, body, io.Discard)
		r.Body = io.NopCloser(bytes.NewReader(body))
		p.reverse.ServeHTTP(&gate{ResponseWriter: w, proxy: p, ctx: r.Context(), code: &code}, r)
	}
}

// wait holds a client until it gives up.
func (p *Proxy) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-p.closed:
	}
	panic(http.ErrAbortHandler)
}

// longestForward bounds a request that nobody waits for any more.
const longestForward = 2 * time.Minute

// forward makes the request without its client, who may be gone.
func (p *Proxy) forward(r *http.Request, body []byte, to io.Writer) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), longestForward)
	defer cancel()
	address := *p.target
	address.Path, address.RawQuery = r.URL.Path, r.URL.RawQuery
	forwarded, err := http.NewRequestWithContext(ctx, r.Method, address.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	forwarded.Header = r.Header.Clone()
	answer, err := p.transport.RoundTrip(forwarded)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, answer.Body)
	return errors.Join(err, answer.Body.Close())
}

// gate lets an answer through while the network is whole.
type gate struct {
	http.ResponseWriter
	proxy *Proxy
	ctx   context.Context
	code  *int
}

func (g *gate) WriteHeader(code int) {
	if !g.proxy.whole(g.ctx) {
		panic(http.ErrAbortHandler)
	}
	*g.code = code
	g.ResponseWriter.WriteHeader(code)
}

func (g *gate) Write(content []byte) (int, error) {
	if !g.proxy.whole(g.ctx) {
		panic(http.ErrAbortHandler)
	}
	return g.ResponseWriter.Write(content)
}

// Unwrap serves http.ResponseController.
func (g *gate) Unwrap() http.ResponseWriter { return g.ResponseWriter }
