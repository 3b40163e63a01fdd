// Package app runs one replica: Options → New → Run. Its parts put policies into force
// (reloader), run for the lease and lead (elector), and answer HTTP (server); all that
// a leader changes is made anew for each term (term.go). It may touch everything but the
// commands, and only main and tests call it. Several replicas can live in one process.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/socket"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/outofservice"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// Options are the flags of `run`.
type Options struct {
	PolicyFile      string
	Kubeconfig      string
	Namespace       string
	CloudsFile      string
	ProvisionerName string
	Listen          string
	// WebConfigFile configures TLS and authentication for Listen. HealthListen serves
	// health without them.
	WebConfigFile string
	HealthListen  string
	// PprofAddress is where profiles of the process are served; empty means nowhere.
	PprofAddress string
	// CSIEndpoint is where the sidecars of the CSI driver find the controller, such as
	// unix:///csi/csi.sock; empty means that there is none.
	CSIEndpoint string
	// CSITrustParameters lets callers of CreateVolume name the namespace and the
	// StorageClass of a volume that no claim asks for.
	CSITrustParameters bool
	// TenantStatus keeps a TenantStatus in each namespace of a tenant.
	TenantStatus bool
	// TaintLostNodes takes nodes out of service that do not answer, as long as no more than
	// TaintLostNodesShare percent of the nodes are out of service or not Ready.
	TaintLostNodes      bool
	TaintLostNodesShare int
	// AttacherTimeout is how long VolumeAttachments may wait without a call from the
	// csi-attacher of this pod, before a leader hands over; zero means for ever.
	AttacherTimeout time.Duration

	LeaderElect   bool
	LeaseDuration time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration
	// DrainTimeout bounds how long a replica that hands over waits for its
	// requests under way.
	DrainTimeout time.Duration
	// ReadLag is how old the state may be that Cinder's reads show.
	ReadLag time.Duration

	// Workers is how many claims, and as many deletions, can be in progress at
	// once. A claim spends most of its time waiting, which costs a worker nothing
	// but memory.
	Workers int
	// KubeQPS and KubeBurst limit the requests to the API server.
	KubeQPS   float64
	KubeBurst int

	// Build describes the program on its metrics and its status page.
	Build wiring.Build
	// Protocols are those that the replica maps.
	Protocols mappers.Protocols
	// Config replaces Kubeconfig for a caller that already has a connection.
	Config *rest.Config
	// Network replaces the machine's; nil keeps it.
	Network Network
	// TerminationLog is the termination log of the replica's container; empty means the
	// usual one, of a process that is the first of its container.
	TerminationLog string
	Logger         *slog.Logger
	// Metrics registers the replica's metrics; /metrics serves what it gathers.
	Metrics Metrics
	// Traces receives the spans of claims, with IDs from tracing.IDs; nil means that
	// there are none.
	Traces trace.TracerProvider
}

// Network makes connections, and takes them.
type Network interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
	Listen(network, address string) (net.Listener, error)
}

// Metrics is a registry of metrics; *prometheus.Registry is one.
type Metrics interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// AddFlags binds the options to flags, with their defaults.
//
// Followers learn through a watch that the lease was released, and take it at once.
// Without the right to watch it, they take it within 2.2 retry periods, because
// client-go's elector polls every retry period plus a random part of up to 1.2 of it.
// They take a killed leader's lease when the kubelet reports its end, and otherwise within
// the lease duration plus that. The defaults cost the API server one write a second by the
// leader and about one read every 1.6 s by each follower.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.PolicyFile, "policy", "", "policy `file` or directory (required)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else the pod's service account")
	flags.StringVar(&o.Namespace, "namespace", "", "`namespace` of the Lease and of the volumes' Secrets; default is $POD_NAMESPACE, else the pod's namespace")
	flags.StringVar(&o.CloudsFile, "clouds-file", "", "clouds.yaml `file`; default is the usual search path of the OpenStack clients")
	flags.StringVar(&o.ProvisionerName, "provisioner-name", wiring.DefaultProvisionerName, "`name` by which StorageClasses refer to this program")
	flags.StringVar(&o.Listen, "listen", ":8080", "`address` of /healthz, /readyz, /metrics and the status page; port 0 picks a free port and logs it")
	flags.StringVar(&o.WebConfigFile, "web-config-file", "", "`file` with the TLS and the logins of --listen, in the format of Prometheus exporters; default is plain HTTP")
	flags.StringVar(&o.HealthListen, "health-listen", "", "further `address` of /healthz and /readyz alone, always plain HTTP, for probes, which no client of --listen can delay there")
	flags.StringVar(&o.PprofAddress, "pprof-address", "", "loopback `address` of /debug/pprof/ with profiles of the process, such as 127.0.0.1:6060; empty serves none")
	flags.StringVar(&o.CSIEndpoint, "csi-endpoint", "", "`endpoint` of the CSI driver's controller for the sidecars of this pod, such as unix:///csi/csi.sock; default is none")
	flags.BoolVar(&o.CSITrustParameters, "csi-trust-parameters", false, "let anyone who reaches --csi-endpoint make volumes for any namespace, for orchestrators without claims and the tests of the specification; needs rights over claims that only the component csi-trust-parameters gives")
	flags.DurationVar(&o.AttacherTimeout, "csi-attacher-timeout", 5*time.Minute, "how long VolumeAttachments may wait without a call from the pod's csi-attacher, before a leader hands over to another replica; 0 means for ever")
	flags.BoolVar(&o.TaintLostNodes, "taint-lost-nodes", false, "take a node out of service that does not answer, after its volumes were taken from it, if the array keeps it out of all of them; needs the component taint-lost-nodes")
	flags.IntVar(&o.TaintLostNodesShare, "taint-lost-nodes-share", outofservice.DefaultShare, "largest `percentage` of the nodes that may be out of service or not Ready for --taint-lost-nodes to act; at least one node of three or more")
	flags.BoolVar(&o.TenantStatus, "tenant-status", false, "keep a TenantStatus in each namespace of a tenant; needs the component tenant-status")
	flags.BoolVar(&o.LeaderElect, "leader-elect", true, "hold a Lease while provisioning, so that several replicas can run")
	flags.DurationVar(&o.LeaseDuration, "lease-duration", 15*time.Second, "how long a follower waits for a silent leader before it takes over")
	flags.DurationVar(&o.RenewDeadline, "renew-deadline", 10*time.Second, "how long a leader tries to renew before it stops")
	flags.DurationVar(&o.RetryPeriod, "retry-period", time.Second, "pause between two checks of the Lease")
	flags.DurationVar(&o.DrainTimeout, "drain-timeout", 20*time.Second, "how long a stopped leader waits for its requests to finish; keep it below the pod's termination grace period")
	flags.DurationVar(&o.ReadLag, "cinder-read-lag", 2*time.Second, "how old the state may be that Cinder's reads show, as behind a Galera cluster: a new leader waits so long, at most 1m, before it uses Cinder, and a request whose answer was lost is repeated only after so long; 0 if Cinder always shows its own writes")
	flags.IntVar(&o.Workers, "workers", 1000, "claims, and as many deletions, in progress at once; no tenant and no backend gets more than half of them")
	flags.Float64Var(&o.KubeQPS, "kube-api-qps", 500, "requests per second to the API server")
	flags.IntVar(&o.KubeBurst, "kube-api-burst", 1000, "burst of requests to the API server")
}

// maxReadLag limits for how long a new leader leaves Cinder alone.
const maxReadLag = time.Minute

// Validate reports everything that is wrong with the options.
func (o *Options) Validate() error {
	var problems []error
	if o.PolicyFile == "" {
		problems = append(problems, errors.New("--policy is required"))
	}
	if o.Workers < 1 {
		problems = append(problems, fmt.Errorf("--workers is %d, at least 1 is needed", o.Workers))
	}
	if o.KubeQPS <= 0 || o.KubeBurst < 1 {
		problems = append(problems, errors.New("--kube-api-qps and --kube-api-burst must be positive"))
	}
	if o.CSIEndpoint != "" {
		if _, err := socket.PathOf(o.CSIEndpoint); err != nil {
			problems = append(problems, fmt.Errorf("--csi-endpoint: %w", err))
		}
	} else if o.CSITrustParameters {
		problems = append(problems, errors.New("--csi-trust-parameters has no effect without --csi-endpoint"))
	}
	if o.TaintLostNodes && o.CSIEndpoint == "" {
		problems = append(problems, errors.New("--taint-lost-nodes has no effect without --csi-endpoint"))
	}
	if o.TaintLostNodes && (o.TaintLostNodesShare < 1 || o.TaintLostNodesShare > 100) {
		problems = append(problems, fmt.Errorf("--taint-lost-nodes-share is %d; give a percentage from 1 to 100", o.TaintLostNodesShare))
	}
	if o.AttacherTimeout < 0 {
		problems = append(problems, fmt.Errorf("--csi-attacher-timeout is %s; give a positive duration, or 0 for none", o.AttacherTimeout))
	}
	if err := onlyLoopback(o.PprofAddress); err != nil {
		problems = append(problems, err)
	}
	if o.ReadLag < 0 || o.ReadLag > maxReadLag {
		problems = append(problems, fmt.Errorf("--cinder-read-lag is %s; give at most %s, because a new leader leaves Cinder alone for so long, or 0 for none", o.ReadLag, maxReadLag))
	}
	if o.LeaderElect {
		switch {
		case o.RetryPeriod <= 0:
			problems = append(problems, errors.New("--retry-period must be positive"))
		case float64(o.RenewDeadline) <= 1.2*float64(o.RetryPeriod):
			problems = append(problems, fmt.Errorf("--renew-deadline (%s) must be more than 1.2 times --retry-period (%s)", o.RenewDeadline, o.RetryPeriod))
		case o.LeaseDuration <= o.RenewDeadline:
			problems = append(problems, fmt.Errorf("--lease-duration (%s) must be longer than --renew-deadline (%s), or two replicas could lead at once", o.LeaseDuration, o.RenewDeadline))
		}
	}
	return errors.Join(problems...)
}

// onlyLoopback refuses an address for profiles that others could reach: whoever reads
// profiles keeps the processor busy, and sees what the program does. A name such as
// localhost may resolve to anything.
func onlyLoopback(address string) error {
	if address == "" {
		return nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("--pprof-address is %q, which is not an IP address of the loopback interface with a port; give one, such as 127.0.0.1:6060, and reach it with kubectl port-forward", address)
	}
	return nil
}
