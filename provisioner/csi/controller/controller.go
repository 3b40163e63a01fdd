// Package controller implements the CSI driver's Identity and Controller services for the
// sidecars. It checks requests and translates requests and errors, but decides nothing:
// those of its Options do the work.
package controller

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Attacher attaches volumes to nodes. Its errors, and those of the others that work for
// the sidecars, are *Failure, or of an unknown kind, which is never final. For each volume
// there is one call at a time, and a call may be repeated.
type Attacher interface {
	// Publish attaches a volume to a node, and returns how the node reaches it.
	Publish(ctx context.Context, request PublishRequest) (wire.Connection, error)
	// Unpublish detaches a volume from the node with that ID, or from all nodes if the ID
	// is empty. The node itself chose the ID. A missing volume counts as detached.
	Unpublish(ctx context.Context, volume wire.Handle, nodeID string) error
	// Volume describes a volume.
	Volume(ctx context.Context, volume wire.Handle) (Volume, error)
	// List lists all of the driver's volumes, or returns an error. A fresh list reflects
	// everything done before the call; otherwise it may be an earlier one.
	List(ctx context.Context, fresh bool) ([]Listed, error)
	// Listed describes one volume as List does.
	Listed(ctx context.Context, volume wire.Handle) (Listed, error)
}

// PublishRequest is the request to Publish.
type PublishRequest struct {
	Volume wire.Handle
	Node   wire.Node
	// ReadOnly means that the node only reads.
	ReadOnly bool
	// Shared means that other nodes may have the volume at the same time.
	Shared bool
}

// Volume describes a volume.
type Volume struct {
	// MultiAttach means that several nodes may have the volume at the same time.
	MultiAttach bool
	// Context is the volume context of its PersistentVolume.
	Context map[string]string
}

// Options configure a Server.
type Options struct {
	Attacher  Attacher
	Expander  Expander
	Modifier  Modifier
	Snapshots Snapshotter
	Groups    Grouper
	Maker     Maker
	// Version is the program's version.
	Version string
	// Work ends when no new work may begin. Calls outlive their callers: the server does
	// not abort a change at Cinder because a sidecar stopped waiting for it.
	Work   context.Context
	Logger *slog.Logger
	// Observe is called after every call, with its outcome.
	Observe func(method, code string, took time.Duration)
}

// Server answers the calls of one term.
type Server struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	Options

	// term is part of the tokens of lists.
	term    string
	running sync.WaitGroup
	// attacher is when csi-attacher last called, in nanoseconds since 1970.
	attacher atomic.Int64
	mu       sync.Mutex
	busy     map[string]time.Time // what has a call under way, and since when
}

// New returns the services of one term.
func New(options Options) *Server {
	s := &Server{Options: options, term: rand.Text(), busy: map[string]time.Time{}}
	s.attacher.Store(time.Now().UnixNano())
	return s
}

// AttacherCalled returns when csi-attacher last called, or when the term began. Without
// other work, it lists the volumes once a minute (its flag --reconcile-sync).
func (s *Server) AttacherCalled() time.Time { return time.Unix(0, s.attacher.Load()) }

// Wait returns when no call is under way, even one whose caller stopped waiting. No new
// calls may arrive meanwhile.
func (s *Server) Wait() { s.running.Wait() }

// handleIn reads the handle in a field of a request.
func handleIn(field, id string) (wire.Handle, error) {
	if id == "" {
		return wire.Handle{}, status.Errorf(codes.InvalidArgument, "the request has no %s", field)
	}
	handle, err := wire.ParseHandle(id)
	if err != nil {
		return wire.Handle{}, status.Error(codes.NotFound, err.Error())
	}
	return handle, nil
}

// alone calls aloneWith for a volume.
func alone[T any](ctx context.Context, s *Server, volume string, work func(context.Context) (T, error)) (T, error) {
	return aloneWith(ctx, s, "volume "+volume, work)
}

// aloneWith works on something and waits until the work ends or the caller gives up.
// Until the work ends, it refuses other calls for the same thing.
func aloneWith[T any](ctx context.Context, s *Server, what string, work func(context.Context) (T, error)) (T, error) {
	var none T
	if err := s.begin(what); err != nil {
		return none, err
	}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	undo := context.AfterFunc(s.Work, cancel)
	type outcome struct {
		answer T
		err    error
	}
	done := make(chan outcome, 1)
	s.running.Go(func() {
		defer cancel()
		defer undo()
		answer, err := work(lasting)
		// The caller that gets the answer may call again at once.
		s.end(what)
		if err != nil && ctx.Err() != nil {
			s.Logger.Warn("A call of the CSI driver failed after its caller had given up", "for", what, "error", err)
		}
		done <- outcome{answer, err}
	})
	select {
	case <-ctx.Done():
		return none, status.FromContextError(ctx.Err()).Err()
	case o := <-done:
		return o.answer, o.err
	}
}

// A backend that does not answer must not occupy all workers of a sidecar
// (external-attacher has 50 with our manifests). Once it has had a call for longer than
// slow, it gets only so many at once; the sidecar repeats the others.
const (
	slow        = 10 * time.Second
	callsIfSlow = 10
)

func (s *Server) begin(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, busy := s.busy[what]; busy {
		return status.Errorf(codes.Aborted, "an earlier call for %s is still under way", what)
	}
	now, of := time.Now(), groupOf(what)
	calls, isSlow := 0, false
	for other, since := range s.busy {
		if groupOf(other) == of {
			calls++
			isSlow = isSlow || now.Sub(since) > slow
		}
	}
	if isSlow && calls >= callsIfSlow {
		last := strings.LastIndex(of, " ")
		kind, backend := of[:last], of[last+1:]
		return status.Errorf(codes.Aborted, "%d earlier calls are still under way for %ss of backend %s, which answers slowly", calls, kind, backend)
	}
	s.busy[what] = now
	return nil
}

// groupOf returns the kind and the backend of a call's subject.
func groupOf(what string) string {
	group, _, _ := strings.Cut(what, "/")
	return group
}

func (s *Server) end(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.busy, what)
}
