// Package registration registers the CSI driver with the kubelet of its node. The
// kubelet watches a directory for sockets, asks each what it serves, and then reports
// whether it accepted it. When the kubelet starts, it empties the directory; Keep then
// makes the socket again.
package registration

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Server answers the kubelet.
type Server struct {
	registerapi.UnimplementedRegistrationServer

	// Driver is the driver's name. Endpoint is the path of its socket as the kubelet
	// sees it.
	Driver, Endpoint string
	Logger           *slog.Logger

	asked atomic.Bool
}

// GetInfo returns what is served, and where.
func (s *Server) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	s.asked.Store(true)
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: s.Driver, Endpoint: s.Endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// patience is how long a kubelet may take to ask. Normally it notices the socket at
// once.
const patience = time.Minute

// WarnUnlessAsked logs that no kubelet has asked for the driver in the first minute. In
// that case the kubelet looks for sockets elsewhere, and the node never gets the
// driver.
func (s *Server) WarnUnlessAsked(ctx context.Context, socket string) {
	select {
	case <-ctx.Done():
	case <-time.After(patience):
		if !s.asked.Load() {
			s.Logger.Error("no kubelet has asked for the driver; is --kubelet-dir the kubelet's root directory (its --root-dir)?", "driver", s.Driver, "socket", socket)
		}
	}
}

// NotifyRegistrationStatus receives the kubelet's verdict. After a failure, for example
// on a node without an initiator name, the kubelet tries again.
func (s *Server) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if status.GetPluginRegistered() {
		s.Logger.Info("kubelet registered the driver", "driver", s.Driver)
	} else {
		s.Logger.Error("kubelet did not register the driver; it tries again", "driver", s.Driver, "error", status.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// SocketName returns the name of a driver's socket in kubelet's directory.
func SocketName(driver string) string { return driver + "-reg.sock" }

// pause is the time between two checks whether a socket still exists. A check costs one
// system call.
const pause = 5 * time.Second

// Keep serves on a socket until the context ends, and serves again when somebody has
// removed the socket. It leaves a socket alone that another process has put in its
// place.
func Keep(ctx context.Context, socket string, serve func() *grpc.Server, drain time.Duration, logger *slog.Logger) error {
	for {
		listener, err := listen(socket)
		if err != nil {
			return err
		}
		server := serve()
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()
		logger.Info("serving", "socket", socket)
		err = watch(ctx, socket, listener, ended)
		stop(server, drain)
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, removeOwn(socket, listener))
		}
		logger.Info("the socket was removed; creating it again", "socket", socket)
	}
}

// socketListener is a listener and the file that it made.
type socketListener struct {
	*net.UnixListener
	file os.FileInfo
}

func listen(socket string) (*socketListener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return nil, err
	}
	// A socket left from before would prevent the new one.
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// By the time this process closes the file, it may belong to another process.
	listener.SetUnlinkOnClose(false)
	err = os.Chmod(socket, 0o600)
	var file os.FileInfo
	if err == nil {
		file, err = os.Lstat(socket)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socketListener{listener, file}, nil
}

// watch returns when the context or the server ends, or when the socket is gone.
func watch(ctx context.Context, socket string, listener *socketListener, ended <-chan error) error {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case <-ticker.C:
			if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
		}
	}
}

// stop gives calls some time to end.
func stop(server *grpc.Server, drain time.Duration) {
	done := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(drain):
		// The records show what is cut off here.
		server.Stop()
	}
}

func removeOwn(socket string, listener *socketListener) error {
	there, err := os.Lstat(socket)
	if err != nil || !os.SameFile(there, listener.file) {
		return nil
	}
	return os.Remove(socket)
}
