package socket

import (
	"net"
	"sync"
)

// queue is the listener of one server, which gets its connections from the socket.
// Closing it leaves the socket as it is, so that there is never a moment without one.
type queue struct {
	address     net.Addr
	connections chan net.Conn
	closed      chan struct{}
	once        sync.Once
}

func newQueue(address net.Addr) *queue {
	return &queue{address: address, connections: make(chan net.Conn), closed: make(chan struct{})}
}

// give hands over a connection, and returns false if the server is stopped.
func (q *queue) give(connection net.Conn) bool {
	select {
	case q.connections <- connection:
		return true
	case <-q.closed:
		return false
	}
}

// Accept implements net.Listener.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case connection := <-q.connections:
		return connection, nil
	case <-q.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.closed) })
	return nil
}

// Addr implements net.Listener.
func (q *queue) Addr() net.Addr { return q.address }
