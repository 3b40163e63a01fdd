package socket

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// leader is a driver that answers only when it is told to.
type leader struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	begun, may chan struct{}
	cut        chan struct{} // closed when a call has lost its caller
}

func newLeader() *leader {
	return &leader{begun: make(chan struct{}, 10), may: make(chan struct{}), cut: make(chan struct{})}
}

func (l *leader) services() Services { return Services{Identity: l, Controller: l} }

func (l *leader) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (l *leader) ControllerUnpublishVolume(ctx context.Context, _ *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	l.begun <- struct{}{}
	select {
	case <-l.may:
		return &csi.ControllerUnpublishVolumeResponse{}, nil
	case <-ctx.Done():
		close(l.cut)
		return nil, ctx.Err()
	}
}

func listen(t *testing.T) (*Socket, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "csi.sock")
	s, err := Listen(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, path
}

// dial connects once; a lost connection is not made again automatically.
func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func ready(t *testing.T, connection *grpc.ClientConn) bool {
	t.Helper()
	answer, err := csi.NewIdentityClient(connection).Probe(t.Context(), &csi.ProbeRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetReady().GetValue()
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("the code is %s (%v), want %s", got, err, want)
	}
}

func TestAFollowerSaysThatItIsNotReady(t *testing.T) {
	s, path := listen(t)
	connection := dial(t, path)
	if ready(t, connection) {
		t.Error("it is ready")
	}
	_, err := csi.NewIdentityClient(connection).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	wantCode(t, err, codes.Unavailable)
	s.Introduce("driver.example.org", "v1")
	plugin, err := csi.NewIdentityClient(connection).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	wantCode(t, err, codes.OK)
	if plugin.GetName() != "driver.example.org" || plugin.GetVendorVersion() != "v1" {
		t.Errorf("the driver is %v", plugin)
	}
	_, err = csi.NewIdentityClient(connection).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	wantCode(t, err, codes.Unavailable)
	_, err = csi.NewControllerClient(connection).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "a/b"})
	wantCode(t, err, codes.Unavailable)
	_, err = csi.NewGroupControllerClient(connection).GroupControllerGetCapabilities(t.Context(), &csi.GroupControllerGetCapabilitiesRequest{})
	wantCode(t, err, codes.Unavailable)
}

// TestConnectionsOutlastAnElection: sidecars that wait continue on the connections that
// they have.
func TestConnectionsOutlastAnElection(t *testing.T) {
	s, path := listen(t)
	connection := dial(t, path)
	ready(t, connection)
	// Calls succeed a moment before gRPC says that the connection is ready.
	for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
		connection.WaitForStateChange(t.Context(), state)
	}
	l := newLeader()
	close(l.may)
	s.Lead(l.services())
	if !ready(t, connection) {
		t.Error("it is not ready")
	}
	_, err := csi.NewControllerClient(connection).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "a/b"})
	wantCode(t, err, codes.OK)
	_, err = csi.NewControllerClient(connection).CreateVolume(t.Context(), &csi.CreateVolumeRequest{})
	wantCode(t, err, codes.Unimplemented)
	_, err = csi.NewNodeClient(connection).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	wantCode(t, err, codes.Unimplemented)
	if connection.GetState() != connectivity.Ready {
		t.Errorf("the connection is %s", connection.GetState())
	}
}

// TestTheEndOfATermClosesEveryConnection: connections with a call are closed, too, and
// there is never a moment without a socket.
func TestTheEndOfATermClosesEveryConnection(t *testing.T) {
	s, path := listen(t)
	l := newLeader()
	s.Lead(l.services())
	busy, idle := dial(t, path), dial(t, path)
	ready(t, idle)
	failed := make(chan error, 1)
	go func() {
		_, err := csi.NewControllerClient(busy).ControllerUnpublishVolume(context.WithoutCancel(t.Context()), &csi.ControllerUnpublishVolumeRequest{VolumeId: "a/b"})
		failed <- err
	}()
	<-l.begun
	lost := make(chan bool, 1)
	go func() { lost <- idle.WaitForStateChange(t.Context(), connectivity.Ready) }()
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	s.Follow()
	wantCode(t, <-failed, codes.Unavailable)
	<-l.cut // the server does not wait for what it cuts off
	if !<-lost {
		t.Error("the idle connection is open")
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket is another one (%v)", err)
	}
	if ready(t, dial(t, path)) {
		t.Error("it is ready")
	}
	// The replica may lead again.
	s.Lead(l.services())
	if !ready(t, dial(t, path)) {
		t.Error("it is not ready in its second term")
	}
}

// TestRetiringAnswersWhatIsUnderWay: new calls are refused.
func TestRetiringAnswersWhatIsUnderWay(t *testing.T) {
	s, path := listen(t)
	l := newLeader()
	s.Lead(l.services())
	connection := dial(t, path)
	answered := make(chan error, 1)
	go func() {
		_, err := csi.NewControllerClient(connection).ControllerUnpublishVolume(context.WithoutCancel(t.Context()), &csi.ControllerUnpublishVolumeRequest{VolumeId: "a/b"})
		answered <- err
	}()
	<-l.begun
	impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	s.Retire(impatient)
	if ready(t, connection) {
		t.Error("it is ready")
	}
	_, err := csi.NewControllerClient(connection).ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "a/c"})
	wantCode(t, err, codes.Unavailable)
	close(l.may)
	s.Retire(t.Context())
	wantCode(t, <-answered, codes.OK)
}

func TestOnlyAStaleSocketIsReplaced(t *testing.T) {
	stale := func(t *testing.T, path string) {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		listener.SetUnlinkOnClose(false)
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		prepare func(*testing.T, string)
		inside  string
		want    string // error, with the path as %
	}{
		"nothing":                      {},
		"of a process that is gone":    {prepare: stale},
		"a file that is no socket":     {prepare: func(t *testing.T, path string) { _ = os.WriteFile(path, nil, 0o600) }, want: "% exists and is not a socket; remove it, or give another endpoint"},
		"of a process that still runs": {prepare: func(t *testing.T, path string) { _, _ = Listen(path, slog.New(slog.DiscardHandler)) }, want: "another process listens on the CSI socket %"},
		"no directory":                 {inside: "missing", want: "the directory of the CSI socket % cannot be used: no such file or directory; mount a volume there that the sidecars have, too"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), test.inside, "csi.sock")
			if test.prepare != nil {
				test.prepare(t, path)
			}
			s, err := Listen(path, slog.New(slog.DiscardHandler))
			if want := strings.ReplaceAll(test.want, "%", path); want != "" {
				if err == nil || err.Error() != want {
					t.Errorf("got  %v\nwant %s", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
				t.Errorf("the socket has mode %v (%v)", info.Mode(), err)
			}
			ready(t, dial(t, path))
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	if path, err := PathOf("unix:///csi/csi.sock"); err != nil || path != "/csi/csi.sock" {
		t.Errorf("path %q, error %v", path, err)
	}
	for endpoint, want := range map[string]string{
		"/csi/csi.sock":         `endpoint "/csi/csi.sock" is not of the form unix:///directory/name.sock`,
		"unix://csi/csi.sock":   `endpoint "unix://csi/csi.sock" is not of the form unix:///directory/name.sock`,
		"tcp://127.0.0.1:10000": `endpoint "tcp://127.0.0.1:10000" is not of the form unix:///directory/name.sock`,
		"unix:///" + strings.Repeat("x", 110): `endpoint "unix:///` + strings.Repeat("x", 110) +
			`" has a path of 111 bytes, and a socket's may have 107`,
	} {
		if _, err := PathOf(endpoint); err == nil || err.Error() != want {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}
