package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// VolumeOptions are the options of audit and of all volume and snapshot commands.
type VolumeOptions struct {
	Protocols mappers.Protocols

	PolicyFile      string
	Backend         string
	Kubeconfig      string
	CloudsFile      string
	SecretNamespace string
	ProvisionerName string
}

// NewVolumeCommand returns the volume command.
func NewVolumeCommand(protocols mappers.Protocols) *cobra.Command {
	command := parentCommand("volume", "List the volumes of the backends, give them to claims, and change types and keys")
	command.AddCommand(newVolumeListCommand(protocols), newVolumeImportCommand(protocols), newVolumeRebindCommand(protocols), newVolumeRetypeCommand(protocols), newVolumeMoveCommand(protocols), newVolumeSwapCommand(protocols), newVolumeRewrapCommand(protocols))
	return command
}

// parentCommand returns a command that only has subcommands.
func parentCommand(use, short string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE:  policycli.RequireSubcommand,
	}
}

// required returns an error if a flag is missing.
func required(command *cobra.Command, names ...string) error {
	var missing []string
	for _, name := range names {
		if value, err := command.Flags().GetString(name); err != nil || value == "" {
			missing = append(missing, "--"+name)
		}
	}
	for _, name := range []string{"namespace", "claim", "volume-snapshot", "storage-class"} {
		// An API server's client would only say that a name may not contain a slash.
		if flag := command.Flags().Lookup(name); flag != nil && strings.Contains(flag.Value.String(), "/") {
			return volumeUsage("--%s is %q; give the name alone, without its kind or namespace", name, flag.Value)
		}
	}
	if len(missing) > 0 {
		return volumeUsage("%s needs %s (see %s --help)", command.CommandPath(), strings.Join(missing, ", "), command.CommandPath())
	}
	return nil
}

func checkVolumeMode(mode corev1.PersistentVolumeMode) error {
	if mode != corev1.PersistentVolumeFilesystem && mode != corev1.PersistentVolumeBlock {
		return volumeUsage("--volume-mode must be Filesystem or Block, not %q", mode)
	}
	return nil
}

func (o *VolumeOptions) addFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.PolicyFile, "policy", "", "policy `file` or directory (required)")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else ~/.kube/config, else the pod's service account")
	flags.StringVar(&o.CloudsFile, "clouds-file", "", "clouds.yaml `file`; default is the usual search path of the OpenStack clients")
	flags.StringVar(&o.ProvisionerName, "provisioner-name", wiring.DefaultProvisionerName, "`name` by which StorageClasses refer to the program")
}

// volumeRun holds the cluster and the backends of a volume command.
type volumeRun struct {
	client              *kubernetes.Clientset
	snapshots           *snapshotclient.Clientset
	policy              *policy.Policy
	cluster, clusterUID string
	// imports and lifecycles have one element for each backend, in the policy's order.
	imports    []*imports.Importer
	lifecycles []*backends.Lifecycle
}

// open reads the policy and prepares the backends. They can change something at Cinder
// only if mayChange is set.
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
	config, err := readingConfig(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := wiring.KubeClient(config)
	if err != nil {
		return nil, err
	}
	snapshots, err := snapshotclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("kubernetes client of snapshots: %w", err)
	}
	clusterUID, err := objects.ClusterUID(ctx, client)
	if err != nil {
		return nil, err
	}
	registry, err := mappers.New(mappers.Options{SecretNamespace: o.SecretNamespace, Protocols: o.Protocols})
	if err != nil {
		return nil, err
	}
	fence := func() error { return errors.New("a command without --apply or --delete changes nothing") }
	if mayChange {
		fence = func() error { return nil }
	}
	run := &volumeRun{client: client, snapshots: snapshots, policy: loaded, cluster: cmp.Or(loaded.ClusterID, clusterUID), clusterUID: clusterUID}
	site := imports.Site{
		Client: client, Mappers: registry, Nodes: nodeuse.New(nodeuse.Options{Client: client}),
		Secrets:         secrets.New(secrets.Options{Client: client, Namespace: o.SecretNamespace, Cluster: run.cluster}),
		ProvisionerName: o.ProvisionerName, Cluster: run.cluster, ClusterUID: clusterUID, Namespace: o.SecretNamespace,
	}
	metrics := backends.NewMetrics(prometheus.NewRegistry())
	pool := backends.NewPool(backends.PoolOptions{Sources: auth.Sources{CloudsFile: o.CloudsFile}, Metrics: metrics})
	for i := range loaded.Backends {
		backend := &loaded.Backends[i]
		if o.Backend != "" && o.Backend != backend.Name {
			continue
		}
		config := wiring.BackendConfig(loaded, backend, run.cluster)
		lifecycle := backends.NewLifecycle(backends.LifecycleOptions{
			Config: config, Pool: pool, Cluster: run.cluster, Fence: fence, Term: ctx,
			Logger: slog.New(slog.DiscardHandler), Metrics: metrics,
		})
		run.lifecycles = append(run.lifecycles, lifecycle)
		run.imports = append(run.imports, &imports.Importer{Site: site, Policy: loaded, Backend: backend, Connector: config.Connector, Volumes: lifecycle})
	}
	return run, nil
}

// lifecycle returns the volumes of a backend.
func (r *volumeRun) lifecycle(backend string) (*backends.Lifecycle, error) {
	for i, importer := range r.imports {
		if importer.Backend.Name == backend {
			return r.lifecycles[i], nil
		}
	}
	return nil, fmt.Errorf("the policy has no backend %q", backend)
}

func volumeUsage(format string, arguments ...any) error {
	return policycli.Exit(policycli.ExitUsage, fmt.Errorf(format, arguments...))
}
