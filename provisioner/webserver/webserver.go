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
// oldest of the address that has the most, so crowding out others takes many addresses.
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
	from, _, _ := net.SplitHostPort(accepted.RemoteAddr().String())
	c := &connection{Conn: accepted, of: b, from: from}
	c.at = b.order.PushBack(c)
	surplus := b.surplus()
	b.mu.Unlock()
	if surplus != nil {
		_ = surplus.Close()
	}
	return c, nil
}

// surplus returns the connection to close; nil if there are not too many.
func (b *bounded) surplus() *connection {
	if b.order.Len() <= maxConnections {
		return nil
	}
	oldest, count := map[string]*connection{}, map[string]int{}
	most := ""
	for at := b.order.Front(); at != nil; at = at.Next() {
		c, _ := at.Value.(*connection)
		if count[c.from]++; count[c.from] == 1 {
			oldest[c.from] = c
		}
		if count[c.from] > count[most] {
			most = c.from
		}
	}
	return oldest[most]
}

type connection struct {
	net.Conn
	of   *bounded
	from string // the address, without the port
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
