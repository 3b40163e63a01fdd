package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// VolumeOptions are the options of all volume commands.
type VolumeOptions struct {
	Protocols mappers.Protocols

	PolicyFile      string
	Backend         string
	Kubeconfig      string
	CloudsFile      string
	SecretNamespace string
	ProvisionerName string
}

// NewVolumeCommand is the volume command.
func NewVolumeCommand(protocols mappers.Protocols) *cobra.Command {
	command := &cobra.Command{
		Use:   "volume",
		Short: "List the volumes of the backends, and import one for a claim",
		Args:  cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return volumeUsage("%s needs a subcommand (see %s --help)", command.CommandPath(), command.CommandPath())
			}
			hint := fmt.Sprintf("see %s --help", command.CommandPath())
			if near := command.SuggestionsFor(args[0]); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return volumeUsage("%s has no subcommand %q (%s)", command.CommandPath(), args[0], hint)
		},
		SuggestionsMinimumDistance: 2,
	}
	command.AddCommand(newVolumeListCommand(protocols), newVolumeImportCommand(protocols))
	return command
}

func (o *VolumeOptions) addFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.PolicyFile, "policy", "", "policy `file` (required)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else the pod's service account")
	flags.StringVar(&o.CloudsFile, "clouds-file", "", "clouds.yaml `file`; default is the usual search path of the OpenStack clients")
	flags.StringVar(&o.ProvisionerName, "provisioner-name", wiring.DefaultProvisionerName, "`name` by which StorageClasses refer to the program")
}

// volumeRun is the cluster and the backends of a volume command.
type volumeRun struct {
	client  *kubernetes.Clientset
	policy  *policy.Policy
	cluster string
	// imports are by backend, in the policy's order.
	imports []*imports.Importer
}

// open reads the policy and prepares the backends. Changes at Cinder are possible
// only if they are allowed.
func (o *VolumeOptions) open(ctx context.Context, mayChange bool) (*volumeRun, error) {
	if o.PolicyFile == "" {
		return nil, errors.New("--policy is required")
	}
	loaded, err := policy.Load(o.PolicyFile, o.Protocols.Describe())
	if err != nil {
		return nil, err
	}
	if _, known := loaded.Backend(o.Backend); o.Backend != "" && !known {
		return nil, fmt.Errorf("--backend: the policy has no backend %q", o.Backend)
	}
	config, err := wiring.KubeConfig(wiring.Kube{Kubeconfig: o.Kubeconfig, QPS: readingQPS, Burst: readingBurst})
	if err != nil {
		return nil, err
	}
	config.Timeout = readingTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client: %w", err)
	}
	clusterUID, err := record.ClusterUID(ctx, client)
	if err != nil {
		return nil, err
	}
	registry, err := mappers.New(mappers.Options{SecretNamespace: o.SecretNamespace, Protocols: o.Protocols})
	if err != nil {
		return nil, err
	}
	fence := func() error { return errors.New("a command without --apply changes nothing") }
	if mayChange {
		fence = func() error { return nil }
	}
	run := &volumeRun{client: client, policy: loaded, cluster: cmp.Or(loaded.ClusterID, clusterUID)}
	metrics := backends.NewMetrics(prometheus.NewRegistry())
	pool := backends.NewPool(backends.PoolOptions{Sources: auth.Sources{CloudsFile: o.CloudsFile}, Metrics: metrics})
	for i := range loaded.Backends {
		backend := &loaded.Backends[i]
		if o.Backend != "" && o.Backend != backend.Name {
			continue
		}
		config := wiring.BackendConfig(loaded, backend, run.cluster)
		run.imports = append(run.imports, &imports.Importer{
			Client: client, Policy: loaded, Backend: backend, Connector: config.Connector, Mappers: registry,
			Volumes: backends.NewLifecycle(backends.LifecycleOptions{
				Config: config, Pool: pool, Cluster: run.cluster, Fence: fence, Term: ctx,
				Logger: slog.New(slog.DiscardHandler), Metrics: metrics,
			}),
			Nodes:           nodeuse.New(nodeuse.Options{Client: client}),
			ProvisionerName: o.ProvisionerName, Cluster: run.cluster, ClusterUID: clusterUID, Namespace: o.SecretNamespace,
		})
	}
	return run, nil
}

func volumeUsage(format string, arguments ...any) error {
	return &policycli.ExitError{Code: policycli.ExitUsage, Err: fmt.Errorf(format, arguments...)}
}
