package socket

import (
	"context"
	"slices"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Services are what a leader serves.
type Services struct {
	Identity   csi.IdentityServer
	Controller csi.ControllerServer
	Groups     csi.GroupControllerServer
	// Intercept sees the leader's calls; it may be nil.
	Intercept grpc.UnaryServerInterceptor
}

// server serves from the end of one term to the end of the next: first as a follower,
// then as a leader, on the same connections.
type server struct {
	grpc        *grpc.Server
	connections *queue
	// introduced returns what a follower says about the driver; nil if it says nothing.
	introduced func() *csi.GetPluginInfoResponse

	mu       sync.Mutex
	services *Services // nil while the replica follows
	running  int       // calls that the services are answering
	idles    []chan struct{}
}

var errFollows = status.Error(codes.Unavailable, "this replica does not lead")

func (n *server) lead(services Services) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.services = &services
}

func (n *server) follow() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.services = nil
}

// begin returns the services for a call. It returns nil if the replica follows;
// otherwise end must be called.
func (n *server) begin() *Services {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.services != nil {
		n.running++
	}
	return n.services
}

func (n *server) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.running--; n.running == 0 {
		for _, idle := range n.idles {
			close(idle)
		}
		n.idles = nil
	}
}

// idle returns a channel that is closed when no call is under way.
func (n *server) idle() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	idle := make(chan struct{})
	if n.running == 0 {
		close(idle)
	} else {
		n.idles = append(n.idles, idle)
	}
	return idle
}

// stop closes all connections.
func (n *server) stop() { n.grpc.Stop() }

// register registers the services' methods. gRPC requires the services before the first
// connection, but they change while connections last. So every method finds its service
// when it is called.
func (n *server) register() {
	for _, service := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc} {
		service.Methods = slices.Clone(service.Methods)
		for i, method := range service.Methods {
			service.Methods[i].Handler = func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
				leading := n.begin()
				if leading == nil {
					return n.follower(service.ServiceName, method.MethodName)
				}
				defer n.end()
				var of any = leading.Identity
				switch service.ServiceName {
				case csi.Controller_ServiceDesc.ServiceName:
					of = leading.Controller
				case csi.GroupController_ServiceDesc.ServiceName:
					of = leading.Groups
				}
				return method.Handler(of, context.WithValue(ctx, servicesKey{}, leading), decode, interceptor)
			}
		}
		n.grpc.RegisterService(&service, nil)
	}
}

// follower answers Probe, so that sidecars wait, and what some sidecars call before
// Probe, but nothing else.
func (n *server) follower(service, method string) (any, error) {
	if service != csi.Identity_ServiceDesc.ServiceName {
		return nil, errFollows
	}
	if plugin := n.introduced(); method == "GetPluginInfo" && plugin != nil {
		return plugin, nil
	}
	if method == "Probe" {
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	return nil, errFollows
}

type servicesKey struct{}

// intercept passes a call through the interceptor of the services that answer it.
func (n *server) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if leading, ok := ctx.Value(servicesKey{}).(*Services); ok && leading.Intercept != nil {
		return leading.Intercept(ctx, request, info, handler)
	}
	return handler(ctx, request)
}

// unknown answers calls of services that the driver does not have.
func (n *server) unknown(any, grpc.ServerStream) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.services == nil {
		return errFollows
	}
	return status.Error(codes.Unimplemented, "the driver does not have this service")
}
