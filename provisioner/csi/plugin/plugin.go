// Package plugin runs the CSI node plugin: its options, its two sockets, and its reports
// to the leader. It uses nothing of the provisioner.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/frozen"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/node"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/registration"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
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
	// ToolDirectories are on the node, separated by colons.
	ToolDirectories string
	Replacement     time.Duration
	// MakeExt4 and MakeXFS are further options for mkfs, separated by blanks.
	MakeExt4, MakeXFS string
	// Report means that the leader is told what is staged, through a Lease in Namespace.
	// Kubeconfig is empty for the pod's account.
	Report     bool
	Namespace  string
	Kubeconfig string

	// Version is the program's version.
	Version string
	// Registry serves the process's metrics; the plugin registers its own there.
	Registry *prometheus.Registry
	Logger   *slog.Logger
}

// AddFlags binds the options to flags, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Endpoint, "csi-endpoint", "", "`path` of the CSI socket on the node; default is csi.sock in the driver's directory below --kubelet-dir")
	flags.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "root `directory` of the kubelet on the node")
	flags.StringVar(&o.RegistrationDir, "registration-dir", "", "`directory` on the node where the kubelet looks for drivers; default is plugins_registry in --kubelet-dir")
	flags.StringVar(&o.HostRoot, "host-root", "/", "where the node's root `directory` is mounted; in a container, with mountPropagation Bidirectional")
	flags.StringVar(&o.StateDir, "state-dir", "/var/lib/standalone-cinder", "`directory` on the node for the state files of staged volumes")
	flags.StringVar(&o.NodeName, "node-name", "", "`name` of the Node object; default is $NODE_NAME")
	flags.StringVar(&o.Listen, "listen", "", "`address` of /metrics and /healthz, such as 127.0.0.1:9809; empty serves neither")
	flags.StringVar(&o.ToolDirectories, "tool-directories", "", "further `directories` of programs on the node, separated by colons, searched before the usual ones")
	flags.DurationVar(&o.Replacement, "iscsi-replacement-timeout", 0, "how long an iSCSI session may be lost before its commands fail; default is replacement_timeout of the node's iscsid.conf")
	flags.StringVar(&o.MakeExt4, "mkfs-ext4-options", "", "further `options` of mkfs.ext4, separated by blanks, such as -O and the features that the oldest node can mount")
	flags.StringVar(&o.MakeXFS, "mkfs-xfs-options", "", "further `options` of mkfs.xfs, separated by blanks, such as -i nrext64=0")
	flags.BoolVar(&o.Report, "report", true, "report to the leader, in a Lease, which volumes are staged; false is only for orchestrators other than Kubernetes")
	flags.StringVar(&o.Namespace, "namespace", "", "`namespace` of the Lease, which is the program's; default is $POD_NAMESPACE")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file` of an account that may write the Lease; default is the pod's account")
	flags.DurationVar(&o.DrainTimeout, "drain-timeout", 20*time.Second, "how long a stopped plugin waits for its calls to finish; keep it below the pod's termination grace period")
}

// Complete fills in the defaults that depend on other options, and reports every
// invalid option.
func (o *Options) Complete(getenv func(string) string) error {
	if o.NodeName == "" {
		o.NodeName = getenv("NODE_NAME")
	}
	if o.Namespace == "" {
		o.Namespace = getenv("POD_NAMESPACE")
	}
	o.Endpoint = cmp.Or(o.Endpoint, path.Join(o.KubeletDir, "plugins", wire.DriverName, "csi.sock"))
	o.Endpoint = strings.TrimPrefix(o.Endpoint, "unix://")
	o.RegistrationDir = cmp.Or(o.RegistrationDir, path.Join(o.KubeletDir, "plugins_registry"))
	var problems []error
	if o.NodeName == "" {
		problems = append(problems, errors.New("--node-name is required, or the variable NODE_NAME"))
	}
	if o.Report && o.Namespace == "" {
		problems = append(problems, errors.New("--namespace is required, or the variable POD_NAMESPACE"))
	}
	type given struct{ flag, value string }
	paths := []given{
		{"--csi-endpoint", o.Endpoint}, {"--kubelet-dir", o.KubeletDir}, {"--registration-dir", o.RegistrationDir}, {"--host-root", o.HostRoot}, {"--state-dir", o.StateDir},
	}
	for _, directory := range filepath.SplitList(o.ToolDirectories) {
		paths = append(paths, given{"--tool-directories", directory})
	}
	for _, p := range paths {
		if !path.IsAbs(p.value) {
			problems = append(problems, fmt.Errorf("%s is %q; give an absolute path", p.flag, p.value))
		}
	}
	if o.Replacement < 0 || o.Replacement%time.Second != 0 {
		problems = append(problems, fmt.Errorf("--iscsi-replacement-timeout is %s; give whole seconds, or 0s for what iscsid.conf says", o.Replacement))
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
	root := host.NewLocal(o.HostRoot, filepath.SplitList(o.ToolDirectories)...)
	metrics := NewMetrics(o.Registry)
	options := node.Options{Root: root.Root(), Files: root, RBD: root, StateDir: o.StateDir, NodeName: o.NodeName, Replacement: o.Replacement, Observer: metrics, Logger: o.Logger,
		MakeOptions: map[string][]string{host.Ext4: strings.Fields(o.MakeExt4), host.XFS: strings.Fields(o.MakeXFS)}}
	var config *rest.Config
	var reporter *staged.Reporter
	if o.Report {
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig); err != nil {
			return fmt.Errorf("the API server, to which the node plugin reports what is staged, cannot be reached (see --report and --kubeconfig): %w", err)
		}
		if reporter, err = o.reporter(config, root); err != nil {
			return err
		}
		options.Reporter = reporter
	}
	service, err := node.New(options)
	if err != nil {
		return err
	}
	var orders *frozen.Follower
	if o.Report {
		freezing := node.NewFreezing(service, &host.Guard{Local: root, Command: []string{"node", GuardCommand}})
		if orders, err = o.follower(config, freezing); err != nil {
			return err
		}
		// Before any call: what is frozen must not be unmounted.
		if err := freezing.Recover(ctx); err != nil {
			o.Logger.Error("filesystems that were left frozen cannot be thawed yet, so their pods wait", "error", err)
		}
	}
	paths := node.NewPaths(service)
	o.Registry.MustRegister(StagedVolumes(service.Staged), LackingPaths(paths.Lacking))
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
	run := func(do func(ctx context.Context)) {
		group.Go(func() error {
			do(ctx)
			return nil
		})
	}
	if o.Listen != "" {
		listener, err := net.Listen("tcp", o.Listen)
		if err != nil {
			return fmt.Errorf("--listen %s: %w", o.Listen, err)
		}
		group.Go(func() error { return serveHTTP(ctx, listener, o.Registry, root.Path(o.Endpoint), o.Logger) })
	}
	if o.Report {
		run(reporter.Run)
		run(func(ctx context.Context) {
			orders.Recover(ctx)
			orders.Run(ctx)
		})
	}
	run(func(ctx context.Context) {
		service.Tidy(ctx)
		debug.FreeOSMemory()
		paths.Keep(ctx)
	})
	group.Go(func() error {
		return registration.Keep(ctx, root.Path(o.Endpoint), serveCSI, o.DrainTimeout, o.Logger)
	})
	group.Go(func() error {
		return registration.Keep(ctx, root.Path(registrationSocket), serveRegistration, 0, o.Logger)
	})
	run(func(ctx context.Context) { registrar.WarnUnlessAsked(ctx, registrationSocket) })
	return group.Wait()
}

// reporter makes the Reporter of this node.
func (o *Options) reporter(config *rest.Config, root *host.Local) (*staged.Reporter, error) {
	config = rest.CopyConfig(config)
	config.Timeout = reportTimeout
	client, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	machine := staged.Machine{}
	h := host.New(root.Root(), o.Logger)
	if machine.Boot, err = h.BootID(); err != nil {
		return nil, err
	}
	machine.SystemUUID, machine.MachineID = h.MachineIDs()
	return staged.NewReporter(staged.ReporterOptions{
		Leases: client.Leases(o.Namespace), Namespace: o.Namespace, Node: o.NodeName, Machine: machine,
		Volumes: func() ([]string, error) { return node.StagedVolumes(root, o.StateDir, machine.Boot) },
		Mounts:  func() ([]string, error) { return kubeletMounts(h, root.Resolve(o.KubeletDir)) },
		Passphrases: func() (map[string][]string, error) {
			return node.StagedPassphrases(root, o.StateDir, machine.Boot)
		},
		Logger: o.Logger,
	}), nil
}

// follower makes what does the leader's orders to freeze filesystems. It watches a Lease, so
// its requests have limits of their own.
func (o *Options) follower(config *rest.Config, filesystems frozen.Filesystems) (*frozen.Follower, error) {
	client, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return frozen.NewFollower(frozen.FollowerOptions{Leases: client.Leases(o.Namespace), Node: o.NodeName, Filesystems: filesystems, Logger: o.Logger}), nil
}

// GuardCommand is the name of the command, below that of the plugin, that is Guard.
const GuardCommand = "guard"

// Guard is the process that keeps filesystems frozen for the plugin; see package host.
func Guard(arguments []string, in io.Reader, out io.Writer) error {
	return host.RunGuard(arguments, in, out)
}

// kubeletMounts returns the native volumes that kubelet has mounted.
func kubeletMounts(h *host.Host, kubeletDir string) ([]string, error) {
	all, err := h.Mounts()
	var found []string
	for _, m := range all {
		if name := staged.MountAt(kubeletDir, m.At); name != "" {
			found = append(found, name)
		}
	}
	return found, err
}

// reportTimeout ends a request to the API server. The kubelet repeats a call to stage a
// volume after two minutes.
const reportTimeout = 15 * time.Second

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
