// Package batches reads in batches what a server sends little by little.
package batches

import (
	"context"
	"net"
	"sync"
	"time"
)

// Dialer makes connections whose data may wait for a moment, so that a process that
// only keeps up with a server wakes up once for many events instead of once for each.
// It saves more than half of the processor time that a watch takes.
type Dialer struct {
	options Options

	mu sync.Mutex
	// hurried is closed while nothing may wait.
	hurried chan struct{}
	waits   bool
}

// Options configure a Dialer.
type Options struct {
	// Dial makes a connection.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Pause is how long data may wait.
	Pause time.Duration
	// Young is the age below which data of a connection does not wait, because
	// handshakes and first answers need several round trips.
	Young time.Duration
}

// New makes a Dialer whose data does not wait until StartBatching is called.
func New(options Options) *Dialer {
	d := &Dialer{options: options, hurried: make(chan struct{})}
	close(d.hurried)
	return d
}

// StartBatching lets data wait from now on.
func (d *Dialer) StartBatching() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.waits {
		d.waits, d.hurried = true, make(chan struct{})
	}
}

// StopBatching reads data that waits, and lets no further data wait.
func (d *Dialer) StopBatching() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waits {
		d.waits = false
		close(d.hurried)
	}
}

func (d *Dialer) mayWait() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waits
}

func (d *Dialer) hurry() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hurried
}

// DialContext makes a connection.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	connection, err := d.options.Dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: connection, dialer: d, made: time.Now(), closed: make(chan struct{})}, nil
}

// batchSize is how much is read at once. If there is more, the rest does not wait.
const batchSize = 64 << 10

// conn reads in batches. As usual for a net.Conn, only one goroutine may read at a
// time.
type conn struct {
	net.Conn
	dialer *Dialer
	made   time.Time

	closing sync.Once
	closed  chan struct{}

	buffer []byte
	unread []byte
	// read is when the last batch was read, unless it was full.
	read time.Time
}

// Read implements net.Conn.
func (c *conn) Read(into []byte) (int, error) {
	if len(c.unread) == 0 {
		if !c.dialer.mayWait() || time.Since(c.made) < c.dialer.options.Young {
			return c.Conn.Read(into)
		}
		c.wait()
		if c.buffer == nil {
			c.buffer = make([]byte, batchSize)
		}
		n, err := c.Conn.Read(c.buffer)
		if n == 0 {
			return 0, err
		}
		// If there is an error as well, the next read returns it again.
		c.unread, c.read = c.buffer[:n], time.Now()
		if n == batchSize {
			c.read = time.Time{}
		}
	}
	n := copy(into, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// wait waits until the next batch may be read.
func (c *conn) wait() {
	rest := time.Until(c.read.Add(c.dialer.options.Pause))
	if rest <= 0 {
		return
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-c.dialer.hurry():
	case <-c.closed:
	case <-timer.C:
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
