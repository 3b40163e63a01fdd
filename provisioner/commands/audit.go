package commands

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/auth"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// AuditOptions are the options of an audit.
type AuditOptions struct {
	// Protocols are the protocols that the policy may map.
	Protocols mapping.Protocols

	PolicyFile      string
	Kubeconfig      string
	CloudsFile      string
	Namespace       string
	ProvisionerName string
	Grace           time.Duration
	// Delete removes what is proven unused.
	Delete bool
}

// AuditReport is the result of an audit.
type AuditReport struct {
	Cluster  string          `json:"cluster"`
	Recorded int             `json:"persistentVolumes"`
	Volumes  int             `json:"volumes"`
	Findings []audit.Finding `json:"findings"`
	// Removed are the findings whose subjects were removed.
	Removed []audit.Finding `json:"removed,omitempty"`
}

// NewAuditCommand returns the audit subcommand. It exits with 0 when there is nothing
// to report, with 1 when there is, and with 2 on wrong usage or when the cluster cannot
// be read.
func NewAuditCommand(protocols mapping.Protocols) *cobra.Command {
	options := AuditOptions{Protocols: protocols}
	output := "text"
	command := &cobra.Command{
		Use:   "audit --policy FILE",
		Short: "Compare the PersistentVolumes of a cluster with the volumes at Cinder",
		Long: `Compare the PersistentVolumes of a cluster with the volumes at Cinder, in both
directions: volumes that no PersistentVolume names, PersistentVolumes without
their volume, stuck volumes, Secrets that nothing refers to. It needs no lease,
and changes nothing unless --delete is given: then it removes volumes that it
can prove no PersistentVolume ever named, and Secrets that nothing needs. It
checks each one again before removing it.

Exit codes: 0 nothing to report, or all of it removed, 1 findings remain,
2 wrong usage, or the cluster cannot be read.`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return &policycli.ExitError{Code: policycli.ExitUsage, Err: fmt.Errorf("--output must be text or json, not %q", output)}
			}
			report, notRemoved, err := Audit(command.Context(), options)
			if err == nil {
				err = report.print(command.OutOrStdout(), output)
			}
			if err != nil {
				return &policycli.ExitError{Code: policycli.ExitUsage, Err: err}
			}
			if notRemoved != nil {
				return &policycli.ExitError{Code: policycli.ExitFailed, Err: notRemoved}
			}
			if n := len(report.Findings); n > 0 {
				return &policycli.ExitError{Code: policycli.ExitFailed, Err: fmt.Errorf("the audit has findings: %d", n)}
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.PolicyFile, "policy", "", "policy `file` or directory (required)")
	flags.StringVar(&options.Kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else ~/.kube/config, else the pod's service account")
	flags.StringVar(&options.CloudsFile, "clouds-file", "", "clouds.yaml `file`; default is the usual search path of the OpenStack clients")
	flags.StringVar(&options.Namespace, "namespace", "", "`namespace` of the volumes' Secrets; default is $POD_NAMESPACE, else the pod's namespace, else "+defaultMapNamespace)
	flags.StringVar(&options.ProvisionerName, "provisioner-name", wiring.DefaultProvisionerName, "`name` by which StorageClasses refer to the program")
	flags.DurationVar(&options.Grace, "grace", 10*time.Minute, "how old something must be to be reported; anything younger may be in progress")
	flags.BoolVar(&options.Delete, "delete", false, "remove findings that are older than --grace and proven unused")
	flags.StringVarP(&output, "output", "o", output, "`format` of the output: text or json")
	return command
}

// Audit reads Cinder first, then Kubernetes, so that a volume that is recorded in
// between shows as recorded, not as an orphan. notRemoved explains what was to be
// removed but could not be; it remains among the findings.
func Audit(ctx context.Context, options AuditOptions) (report AuditReport, notRemoved, err error) {
	if options.PolicyFile == "" {
		return AuditReport{}, nil, errors.New("--policy is required")
	}
	loaded, err := policy.Load(options.PolicyFile, options.Protocols)
	if err != nil {
		return AuditReport{}, nil, err
	}
	namespace := secretNamespace(options.Namespace)
	config, err := readingConfig(options.Kubeconfig)
	if err != nil {
		return AuditReport{}, nil, err
	}
	client, err := wiring.KubeClient(config)
	if err != nil {
		return AuditReport{}, nil, err
	}
	clusterUID, err := objects.ClusterUID(ctx, client)
	if err != nil {
		return AuditReport{}, nil, err
	}
	cluster := cmp.Or(loaded.ClusterID, clusterUID)
	ctx, end := context.WithCancel(ctx)
	defer end()
	lifecycles := auditBackends(ctx, loaded, cluster, options)
	listings := listBackends(ctx, lifecycles)
	records, err := objects.Read(ctx, client, options.ProvisionerName, namespace)
	if err != nil {
		return AuditReport{}, nil, err
	}
	find := func(ctx context.Context, backend, id string) (cinder.Volume, bool, error) {
		return lifecycles[backend].Find(ctx, id)
	}
	audit.ConfirmMissing(ctx, find, listings, records)
	audit.ConfirmAttachments(ctx, find, listings, records)
	report = AuditReport{Cluster: cluster, Recorded: len(records.Volumes)}
	for _, listing := range listings {
		report.Volumes += len(listing.Volumes)
	}
	report.Findings = audit.Compare(audit.State{Now: time.Now(), Cluster: cluster, ClusterUID: clusterUID, Grace: options.Grace, Backends: listings, Records: records})
	if options.Delete {
		cleaner := removal.Cleaner{Client: client, ProvisionerName: options.ProvisionerName, Cluster: cluster, ClusterUID: clusterUID, Namespace: namespace,
			RecordedBy: records.RecordedBy,
			Nodes:      nodeuse.New(nodeuse.Options{Client: client}),
			Volumes: func(name string) (removal.Unrecorded, cinder.Connector, error) {
				backend, ok := loaded.Backend(name)
				if !ok {
					return nil, cinder.Connector{}, fmt.Errorf("backend %q is not in the policy", name)
				}
				return lifecycles[name], wiring.BackendConfig(loaded, backend, cluster).Connector, nil
			}}
		report.Findings, report.Removed, notRemoved = audit.Remove(ctx, cleaner, report.Findings)
	}
	return report, notRemoved, nil
}

// auditBackends makes lifecycles that only read, unless the audit is to remove what it
// finds.
func auditBackends(ctx context.Context, loaded *policy.Policy, cluster string, options AuditOptions) map[string]*backends.Lifecycle {
	metrics := backends.NewMetrics(prometheus.NewRegistry())
	pool := backends.NewPool(backends.PoolOptions{
		Sources: auth.Sources{CloudsFile: options.CloudsFile},
		Metrics: metrics,
	})
	fence := func() error { return errors.New("an audit without --delete changes nothing") }
	if options.Delete {
		fence = func() error { return nil }
	}
	lifecycles := map[string]*backends.Lifecycle{}
	for i := range loaded.Backends {
		config := wiring.BackendConfig(loaded, &loaded.Backends[i], cluster)
		lifecycles[config.Name] = backends.NewLifecycle(backends.LifecycleOptions{
			Config:  config,
			Pool:    pool,
			Cluster: cluster,
			Fence:   fence,
			Term:    ctx,
			Logger:  slog.New(slog.DiscardHandler),
			Metrics: metrics,
		})
	}
	return lifecycles
}

// listBackends lists all backends concurrently, so that a slow one does not delay the
// others.
func listBackends(ctx context.Context, lifecycles map[string]*backends.Lifecycle) map[string]audit.Listing {
	return audit.ListEach(slices.Collect(maps.Keys(lifecycles)), func(name string) ([]cinder.Volume, cinder.Place, error) {
		volumes, err := lifecycles[name].Volumes(ctx)
		return volumes, lifecycles[name].Place(), err
	})
}

func (r AuditReport) print(w io.Writer, output string) error {
	if output == "json" {
		if r.Findings == nil {
			r.Findings = []audit.Finding{}
		}
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	if _, err := fmt.Fprintf(w, "cluster %s: PersistentVolumes: %d, volumes at Cinder: %d, findings: %d\n", r.Cluster, r.Recorded, r.Volumes, len(r.Findings)); err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Kind, f.Backend, audit.Subject(f), f.Message)
	}
	for _, f := range r.Removed {
		fmt.Fprintf(table, "removed %s\t%s\t%s\t%s\n", f.Kind, f.Backend, audit.Subject(f), f.Message)
	}
	return table.Flush()
}
