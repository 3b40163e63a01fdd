package world

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"

	"github.com/standalone-cinder/standalone-cinder/test/simulate/apiserver"
	"github.com/standalone-cinder/standalone-cinder/test/simulate/gate"
)

// network is what one client reaches servers through, in memory. It implements
// app.Network.
type network struct {
	client string
	ctx    context.Context
	cut    context.CancelFunc

	servers map[string]*server
	// sockets are where the client itself listens, by address.
	mu      sync.Mutex
	sockets map[string]*server
}

// server serves one client.
type server struct {
	http.Server
	accepts chan net.Conn
	closed  <-chan struct{}
	address string
}

var errCut = errors.New("the network is cut")

// newNetwork connects a client to servers, by the names of their hosts.
func (w *World) newNetwork(client string) *network {
	n := &network{client: client, servers: map[string]*server{}, sockets: map[string]*server{}}
	n.ctx, n.cut = context.WithCancel(context.Background())
	for host, handler := range w.hosts {
		s := &server{accepts: make(chan net.Conn), closed: n.ctx.Done(), address: host}
		s.Handler = w.gated(client, host, handler)
		s.ErrorLog = log.New(io.Discard, "", 0)
		n.servers[host] = s
		go func() { _ = s.Serve(s) }()
		context.AfterFunc(n.ctx, func() { _ = s.Server.Close() })
	}
	return n
}

// DialContext implements app.Network.
func (n *network) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	host, _, _ := strings.Cut(address, ":")
	s := n.servers[host]
	if s == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return n.connect(ctx, s)
}

// DialSocket connects to a socket that the client listens on.
func (n *network) DialSocket(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	s := n.sockets[address]
	n.mu.Unlock()
	if s == nil {
		return nil, errCut
	}
	return n.connect(ctx, s)
}

func (n *network) connect(ctx context.Context, s *server) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case s.accepts <- far:
		context.AfterFunc(n.ctx, func() { _, _ = near.Close(), far.Close() })
		return near, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.ctx.Done():
		return nil, errCut
	}
}

// Listen implements app.Network.
func (n *network) Listen(_, address string) (net.Listener, error) {
	s := &server{accepts: make(chan net.Conn), closed: n.ctx.Done(), address: address}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sockets[address] = s
	return s, nil
}

// Accept implements net.Listener.
func (s *server) Accept() (net.Conn, error) {
	select {
	case connection := <-s.accepts:
		return connection, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *server) Close() error { return nil }

// Addr implements net.Listener.
func (s *server) Addr() net.Addr { return address(s.address) }

type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }

// gated lets requests to a server, and its answers, pass the gate.
func (w *World) gated(client, host string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set(apiserver.HeaderClient, client)
		passage := gate.Passage{Kind: gate.Request, Client: client, Server: host, What: describe(r, body)}
		switch w.gate.Wait(passage) {
		case gate.Lost:
			panic(http.ErrAbortHandler)
		case gate.Fails:
			fail(rw, host)
			return
		}
		if r.URL.Query().Get("watch") != "" {
			next.ServeHTTP(rw, r)
			return
		}
		answer := httptest.NewRecorder()
		if w.isTwice(passage) {
			next.ServeHTTP(httptest.NewRecorder(), r.Clone(r.Context()))
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(answer, r)
		passage.Kind = gate.Answer
		switch w.gate.Wait(passage) {
		case gate.Lost:
			panic(http.ErrAbortHandler)
		case gate.Fails:
			fail(rw, host)
			return
		}
		for name, values := range answer.Header() {
			rw.Header()[name] = values
		}
		rw.WriteHeader(answer.Code)
		_, _ = rw.Write(answer.Body.Bytes())
	})
}

// describe names a request, and the action that its body asks for.
func describe(r *http.Request, body []byte) string {
	what := r.Method + " " + r.URL.Path
	if strings.HasSuffix(what, "/action") {
		var action map[string]any
		_ = json.Unmarshal(body, &action)
		for name := range action {
			what += " " + name
		}
	}
	if query, _ := url.QueryUnescape(r.URL.RawQuery); query != "" {
		what += "?" + query
	}
	return what
}

// fail answers as a server or a gateway in trouble does.
func fail(rw http.ResponseWriter, host string) {
	if host == apiHost {
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(rw, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","message":"etcdserver: request timed out","code":500}`)
		return
	}
	http.Error(rw, "503 Service Unavailable", http.StatusServiceUnavailable)
}

// deliver lets an event pass the gate.
func (w *World) deliver(of apiserver.Watch) error {
	if w.gate.Wait(gate.Passage{Kind: gate.Event, Client: of.Client, Server: apiHost, What: of.Path}) == gate.Passes {
		return nil
	}
	return errCut
}
