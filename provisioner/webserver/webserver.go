// Package webserver serves HTTP to clients that may be hostile: any pod of the cluster
// reaches the ports of the program. No number of clients, however slow, takes much memory,
// or keeps the next one from being answered.
package webserver

import (
	"container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxConnections bounds the connections of a listener. The kubelet, a few Prometheus
// servers and a few people need a dozen. Each takes some 20 KiB.
const maxConnections = 256

// New makes a server that closes connections on which nothing happens. longest is how long
// an answer may take to be sent.
func New(handler http.Handler, longest time.Duration, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, WriteTimeout: longest, MaxHeaderBytes: 64 << 10,
		// A failed handshake is the client's problem.
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

// Bound limits the connections of a listener. When there are too many, it closes the
// oldest, not the newest: a probe is answered within milliseconds, while whoever wants to
// keep others out must hold connections for longer.
func Bound(listener net.Listener) net.Listener {
	return &bounded{Listener: listener, order: list.New()}
}

type bounded struct {
	net.Listener
	mu    sync.Mutex
	order *list.List // of *connection, oldest first
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	accepted, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	c := &connection{Conn: accepted, of: b}
	c.at = b.order.PushBack(c)
	var oldest *connection
	if b.order.Len() > maxConnections {
		oldest, _ = b.order.Front().Value.(*connection)
	}
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return c, nil
}

type connection struct {
	net.Conn
	of   *bounded
	at   *list.Element
	once sync.Once
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.order.Remove(c.at)
	})
	return c.Conn.Close()
}
