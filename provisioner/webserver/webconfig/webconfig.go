// Package webconfig protects an HTTP server as a file says, with TLS, client certificates
// and logins, in the format of Prometheus' exporters, without its rarer keys:
// https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
//
// Their library links html/template, for whose sake the linker keeps every exported method
// of the program; the tests compare with it.
package webconfig

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// Validate reports why a file cannot be used.
func Validate(path string) error {
	_, err := readAll(path)
	return err
}

// readAll reads a file, and checks those that it names.
func readAll(path string) (*config, error) {
	c, err := read(path)
	if err == nil && c.TLS != nil {
		_, err = c.serverTLS()
	}
	return c, err
}

// Serve serves until the server is closed. It reads the file again for each connection and
// each request. While the file cannot be used, nobody is served.
func Serve(listener net.Listener, server *http.Server, path string, logger *slog.Logger) error {
	c, err := readAll(path)
	if err != nil {
		return err
	}
	g := &guard{path: path, logger: logger, next: server.Handler, blank: c.blank, secure: c.TLS != nil, logins: newLogins(), complaints: map[string]string{}}
	server.Handler = g
	if !g.secure {
		return server.Serve(listener)
	}
	server.TLSConfig = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return g.handshake() }}
	return server.ServeTLS(listener, "", "")
}

// guard admits to a handler whom the file admits.
type guard struct {
	path   string
	logger *slog.Logger
	next   http.Handler
	// blank and secure say what the file was when the server began.
	blank, secure bool
	logins        *logins

	mu         sync.Mutex
	complaints map[string]string // the last ones that were logged, by what was refused
}

// current reads the file.
func (g *guard) current() (*config, error) {
	c, err := read(g.path)
	switch {
	case err != nil:
	case (c.TLS != nil) != g.secure:
		err = errors.New("tls_server_config was added or removed, which takes a restart")
	case c.blank && !g.blank:
		// It is being written.
		err = errors.New("the file has become empty, so it would protect nothing; write {} if that is meant")
	}
	return c, err
}

// note logs why the file cannot be used, once: clients cause a note as often as they like.
func (g *guard) note(refused string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if text != "" && text != g.complaints[refused] {
		g.logger.Error("Cannot use the file of --web-config-file, so refusing every "+refused, "file", g.path, "err", text)
	}
	g.complaints[refused] = text
}

// handshake returns what a new connection needs.
func (g *guard) handshake() (found *tls.Config, err error) {
	c, err := g.current()
	if err == nil {
		found, err = c.serverTLS()
	}
	g.note("connection", err)
	return found, err
}

// ServeHTTP implements http.Handler.
func (g *guard) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := g.current()
	g.note("request", err)
	if err != nil {
		refuse(w, http.StatusInternalServerError)
		return
	}
	if len(c.Users) == 0 {
		g.next.ServeHTTP(w, r)
		return
	}
	user, password, given := r.BasicAuth()
	if !given {
		w.Header().Set("WWW-Authenticate", "Basic")
		refuse(w, http.StatusUnauthorized)
		return
	}
	from, _, _ := net.SplitHostPort(r.RemoteAddr)
	switch right, err := g.logins.check(r.Context(), c.Users, login{user, password, from}); {
	case err != nil:
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusTooManyRequests)
	case !right:
		w.Header().Set("WWW-Authenticate", "Basic")
		refuse(w, http.StatusUnauthorized)
	default:
		g.next.ServeHTTP(w, r)
	}
}

func refuse(w http.ResponseWriter, status int) { http.Error(w, http.StatusText(status), status) }
