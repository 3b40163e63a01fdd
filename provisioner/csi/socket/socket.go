// Package socket serves the CSI driver's controller on a UNIX socket, according to the
// lease. Every replica always listens, because sidecars exit when there is no socket. A
// follower answers with the driver's name and that it is not ready, and refuses
// everything else, so its sidecars wait. A leader serves. When its term ends, it closes
// all connections; its sidecars restart and wait.
//
// The socket only keeps sidecars away. The fence keeps a replica that does not lead
// from changing anything.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// PathOf returns the path of an endpoint such as unix:///csi/csi.sock.
func PathOf(endpoint string) (string, error) {
	path, found := strings.CutPrefix(endpoint, "unix://")
	if !found || !filepath.IsAbs(path) {
		return "", fmt.Errorf("endpoint %q is not of the form unix:///directory/name.sock", endpoint)
	}
	// The kernel limits the path to this length, including the terminating zero byte.
	const room = 108
	if len(path) >= room {
		return "", fmt.Errorf("endpoint %q has a path of %d bytes, and a socket's may have %d", endpoint, len(path), room-1)
	}
	return path, nil
}

// Socket is the listening socket of a replica.
type Socket struct {
	listener net.Listener
	logger   *slog.Logger

	mu sync.Mutex
	// now serves new connections. It is replaced when a term ends.
	now    *server
	closed bool
	// plugin is what followers say about the driver; nil before Introduce.
	plugin *csi.GetPluginInfoResponse
}

// Introduce makes even a follower answer with the driver's name: csi-snapshotter asks
// for the name before it asks whether the driver is ready, and exits if it gets no
// answer.
func (s *Socket) Introduce(name, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plugin = &csi.GetPluginInfoResponse{Name: name, VendorVersion: version}
}

func (s *Socket) introduced() *csi.GetPluginInfoResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plugin
}

// Listen makes the socket in a directory that must exist, and starts as a follower. It
// replaces the socket of a process that is gone.
func Listen(path string, logger *slog.Logger) (*Socket, error) {
	if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("the directory of the CSI socket %s cannot be used: %w; mount a volume there that the sidecars have, too", path, unwrapped(err))
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the CSI socket %s: %w", path, err)
	}
	// Sidecars may run as another user, but in the pod's group.
	if err := os.Chmod(path, 0o660); err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("cannot set the permissions of the CSI socket %s: %w", path, unwrapped(err))
	}
	return New(listener, logger), nil
}

// New makes a Socket of a listener, and starts as a follower.
func New(listener net.Listener, logger *slog.Logger) *Socket {
	s := &Socket{listener: listener, logger: logger}
	s.now = s.newServer()
	go s.accept()
	return s
}

func unwrapped(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// removeStale removes a socket that a process left, but no other file.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot look at the CSI socket %s: %w", path, unwrapped(err))
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket; remove it, or give another endpoint", path)
	}
	const soon = time.Second
	if connection, err := net.DialTimeout("unix", path, soon); err == nil {
		_ = connection.Close()
		return fmt.Errorf("another process listens on the CSI socket %s", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the CSI socket %s of an earlier process: %w", path, unwrapped(err))
	}
	return nil
}

// accept gives every connection to the server that serves now.
func (s *Socket) accept() {
	for {
		connection, err := s.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			s.logger.Warn("The CSI socket could not accept a connection", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		now := s.now
		s.mu.Unlock()
		if !now.connections.give(connection) {
			_ = connection.Close() // between two servers; the sidecar connects again
		}
	}
}

// Lead serves with the services of a term. Sidecars that wait continue at once.
func (s *Socket) Lead(services Services) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.lead(services)
}

// Retire finishes calls under way, and refuses new ones as a follower does. It returns
// when none is under way, or when the context ends.
func (s *Socket) Retire(ctx context.Context) {
	s.mu.Lock()
	now := s.now
	s.mu.Unlock()
	now.follow()
	select {
	case <-now.idle():
	case <-ctx.Done():
	}
}

// Follow closes all connections, and continues as a follower. The fence must already
// keep the term's calls from changing anything.
func (s *Socket) Follow() {
	s.mu.Lock()
	former := s.now
	former.follow()
	if !s.closed {
		s.now = s.newServer()
	}
	s.mu.Unlock()
	former.stop()
}

// Close removes the socket.
func (s *Socket) Close() error {
	s.mu.Lock()
	s.closed = true
	now := s.now
	s.mu.Unlock()
	now.follow()
	err := s.listener.Close()
	now.stop()
	return err
}

// newServer makes a server that follows, and serves the connections that it is given.
func (s *Socket) newServer() *server {
	n := &server{connections: newQueue(s.listener.Addr()), introduced: s.introduced}
	n.grpc = grpc.NewServer(grpc.UnaryInterceptor(n.intercept), grpc.UnknownServiceHandler(n.unknown))
	n.register()
	go func() { _ = n.grpc.Serve(n.connections) }()
	return n
}
