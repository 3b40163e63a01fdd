// Package plugin runs the CSI node plugin: its options and its two sockets. It uses
// nothing of the provisioner.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"runtime/debug"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/node"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/registration"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Options are the flags of `node`. All paths are paths on the node.
type Options struct {
	Endpoint        string
	KubeletDir      string
	RegistrationDir string
	HostRoot        string
	StateDir        string
	NodeName        string
	Listen          string
	DrainTimeout    time.Duration

	// Version is the program's version.
	Version string
	// Registry serves the process's metrics; the plugin registers its own there.
	Registry *prometheus.Registry
	Logger   *slog.Logger
}

// AddFlags binds the options to flags, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Endpoint, "csi-endpoint", "", "`path` of the CSI socket on the node; default is csi.sock in the driver's directory below --kubelet-dir")
	flags.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "root `directory` of the kubelet on the node, without symbolic links")
	flags.StringVar(&o.RegistrationDir, "registration-dir", "", "`directory` on the node where the kubelet looks for drivers; default is plugins_registry in --kubelet-dir")
	flags.StringVar(&o.HostRoot, "host-root", "/", "where the node's root `directory` is mounted; in a container, with mountPropagation Bidirectional")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/standalone-cinder", "`directory` on the node for the state files of staged volumes")
	flags.StringVar(&o.NodeName, "node-name", "", "`name` of the Node object; default is $NODE_NAME")
	flags.StringVar(&o.Listen, "listen", "", "`address` of /metrics and /healthz, such as 127.0.0.1:9809; empty serves neither")
	flags.DurationVar(&o.DrainTimeout, "drain-timeout", 20*time.Second, "how long a stopped plugin waits for its calls to finish; keep it below the pod's termination grace period")
}

// Complete fills in the defaults that depend on other options, and reports every
// invalid option.
func (o *Options) Complete(getenv func(string) string) error {
	if o.NodeName == "" {
		o.NodeName = getenv("NODE_NAME")
	}
	if o.Endpoint == "" {
		o.Endpoint = path.Join(o.KubeletDir, "plugins", wire.DriverName, "csi.sock")
	}
	o.Endpoint = strings.TrimPrefix(o.Endpoint, "unix://")
	if o.RegistrationDir == "" {
		o.RegistrationDir = path.Join(o.KubeletDir, "plugins_registry")
	}
	var problems []error
	if o.NodeName == "" {
		problems = append(problems, errors.New("--node-name is required, or the variable NODE_NAME"))
	}
	for _, p := range []struct{ flag, value string }{
		{"--csi-endpoint", o.Endpoint}, {"--kubelet-dir", o.KubeletDir}, {"--registration-dir", o.RegistrationDir}, {"--host-root", o.HostRoot}, {"--state-dir", o.StateDir},
	} {
		if !path.IsAbs(p.value) {
			problems = append(problems, fmt.Errorf("%s is %q; give an absolute path", p.flag, p.value))
		}
	}
	if o.DrainTimeout < 0 {
		problems = append(problems, fmt.Errorf("--drain-timeout is %s; give 0s or more", o.DrainTimeout))
	}
	return errors.Join(problems...)
}

// garbageShare is GOGC. The heap is only a few megabytes, and the whole process must
// stay small on every node.
const garbageShare = 30

// Run serves until the context ends.
func Run(ctx context.Context, o Options) error {
	debug.SetGCPercent(garbageShare)
	root := host.NewLocal(o.HostRoot)
	metrics := NewMetrics(o.Registry)
	service, err := node.New(node.Options{Root: root, StateDir: o.StateDir, NodeName: o.NodeName, Observer: metrics, Logger: o.Logger})
	if err != nil {
		return err
	}
	o.Registry.MustRegister(StagedVolumes(service.Staged), LackingPaths(service.Lacking))
	serveCSI := func() *grpc.Server {
		server := grpc.NewServer(grpc.ChainUnaryInterceptor(metrics.intercept, o.log))
		csi.RegisterIdentityServer(server, &node.Identity{Version: o.Version})
		csi.RegisterNodeServer(server, service)
		return server
	}
	registrar := &registration.Server{Driver: wire.DriverName, Endpoint: o.Endpoint, Logger: o.Logger}
	registrationSocket := path.Join(o.RegistrationDir, registration.SocketName(wire.DriverName))
	serveRegistration := func() *grpc.Server {
		server := grpc.NewServer()
		registerapi.RegisterRegistrationServer(server, registrar)
		return server
	}
	group, ctx := errgroup.WithContext(ctx)
	if o.Listen != "" {
		listener, err := net.Listen("tcp", o.Listen)
		if err != nil {
			return fmt.Errorf("--listen %s: %w", o.Listen, err)
		}
		group.Go(func() error { return serveHTTP(ctx, listener, o.Registry, root.Path(o.Endpoint), o.Logger) })
	}
	group.Go(func() error {
		service.Tidy(ctx)
		debug.FreeOSMemory()
		if err := releaseProgram(); err != nil {
			o.Logger.Warn("the memory of the program's file stays in use", "error", err)
		}
		service.KeepPaths(ctx)
		return nil
	})
	group.Go(func() error {
		return registration.Keep(ctx, root.Path(o.Endpoint), serveCSI, o.DrainTimeout, o.Logger)
	})
	group.Go(func() error {
		return registration.Keep(ctx, root.Path(registrationSocket), serveRegistration, 0, o.Logger)
	})
	group.Go(func() error {
		registrar.WarnUnlessAsked(ctx, registrationSocket)
		return nil
	})
	return group.Wait()
}

// log writes a line for a call that failed. Requests are never logged, because they
// contain the Secrets of volumes.
func (o *Options) log(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	started := time.Now()
	response, err := handle(ctx, request)
	level := slog.Level(-4)
	fields := []any{"method", methodOf(info), "duration", time.Since(started).Round(time.Millisecond).String()}
	if v, ok := request.(interface{ GetVolumeId() string }); ok {
		fields = append(fields, "volume", v.GetVolumeId())
	}
	if err != nil {
		level = slog.LevelWarn
		fields = append(fields, "code", status.Code(err).String(), "error", status.Convert(err).Message())
	}
	o.Logger.Log(ctx, level, "call", fields...)
	return response, err
}

func methodOf(info *grpc.UnaryServerInfo) string { return path.Base(info.FullMethod) }
