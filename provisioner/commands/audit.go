package commands

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/audit"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/removal"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// auditOptions are the options of an audit.
type auditOptions struct {
	VolumeOptions
	grace time.Duration
	// delete removes what is proven unused.
	delete bool
}

// auditReport is the result of an audit.
type auditReport struct {
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
func NewAuditCommand(protocols mappers.Protocols) *cobra.Command {
	options := auditOptions{VolumeOptions: VolumeOptions{Protocols: protocols}}
	output := outputText
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
			return answer(command, output, func(ctx context.Context) (auditReport, error, error) {
				report, notRemoved, err := options.audit(ctx)
				if n := len(report.Findings); n > 0 && notRemoved == nil {
					return report, fmt.Errorf("the audit has findings: %d", n), err
				}
				return report, notRemoved, err
			})
		},
	}
	flags := command.Flags()
	options.addFlags(command)
	flags.StringVar(&options.SecretNamespace, "namespace", "", "`namespace` of the volumes' Secrets; default is $POD_NAMESPACE, else the pod's namespace, else "+defaultMapNamespace)
	flags.DurationVar(&options.grace, "grace", 10*time.Minute, "how old something must be to be reported; anything younger may be in progress")
	flags.BoolVar(&options.delete, "delete", false, "remove findings that are older than --grace and proven unused")
	flags.StringVarP(&output, "output", "o", output, "`format` of the output: text or json")
	return command
}

// audit reads Cinder first, then Kubernetes, so that a volume that is recorded in
// between shows as recorded, not as an orphan. notRemoved explains what was to be
// removed but could not be; it remains among the findings.
func (o *auditOptions) audit(ctx context.Context) (report auditReport, notRemoved, err error) {
	o.SecretNamespace = secretNamespace(o.SecretNamespace)
	ctx, end := context.WithCancel(ctx)
	defer end()
	run, err := o.open(ctx, o.delete)
	if err != nil {
		return auditReport{}, nil, err
	}
	lifecycles := map[string]*backends.Lifecycle{}
	for i, importer := range run.imports {
		lifecycles[importer.Backend.Name] = run.lifecycles[i]
	}
	listings := listBackends(ctx, lifecycles)
	records, err := objects.Read(ctx, run.client, o.ProvisionerName, o.SecretNamespace)
	if err != nil {
		return auditReport{}, nil, err
	}
	find := func(ctx context.Context, backend, id string) (cinder.Volume, bool, error) {
		return lifecycles[backend].Find(ctx, id)
	}
	audit.ConfirmMissing(ctx, find, listings, records)
	audit.ConfirmAttachments(ctx, find, listings, records)
	report = auditReport{Cluster: run.cluster, Recorded: len(records.Volumes)}
	for _, listing := range listings {
		report.Volumes += len(listing.Volumes)
	}
	report.Findings = audit.Compare(audit.State{Now: time.Now(), Cluster: run.cluster, ClusterUID: run.clusterUID, Grace: o.grace, Backends: listings, Records: records})
	if o.delete {
		cleaner := removal.Cleaner{Client: run.client, ProvisionerName: o.ProvisionerName, Cluster: run.cluster, ClusterUID: run.clusterUID, Namespace: o.SecretNamespace,
			RecordedBy: records.RecordedBy,
			Nodes:      nodeuse.New(nodeuse.Options{Client: run.client}),
			Volumes: func(name string) (removal.Unrecorded, cinder.Connector, error) {
				backend, ok := run.policy.Backend(name)
				if !ok {
					return nil, cinder.Connector{}, fmt.Errorf("backend %q is not in the policy", name)
				}
				return lifecycles[name], wiring.BackendConfig(run.policy, backend, run.cluster).Connector, nil
			}}
		report.Findings, report.Removed, notRemoved = audit.Remove(ctx, cleaner, report.Findings)
	}
	if report.Findings == nil {
		report.Findings = []audit.Finding{} // not null
	}
	return report, notRemoved, nil
}

// listBackends lists all backends concurrently, so that a slow one does not delay the
// others.
func listBackends(ctx context.Context, lifecycles map[string]*backends.Lifecycle) map[string]audit.Listing {
	return audit.ListEach(slices.Collect(maps.Keys(lifecycles)), func(name string) ([]cinder.Volume, cinder.Place, error) {
		volumes, err := lifecycles[name].Volumes(ctx)
		return volumes, lifecycles[name].Place(), err
	})
}

func (r auditReport) print(w io.Writer) error {
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
