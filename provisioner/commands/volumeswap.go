package commands

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// swapFlags are the flags of volume swap.
type swapFlags struct {
	VolumeOptions
	request swap.Request
	apply   bool
}

func newVolumeSwapCommand(protocols mappers.Protocols) *cobra.Command {
	flags := swapFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}
	command := &cobra.Command{
		Use:   "swap NAMESPACE/CLAIM --with CLAIM --policy FILE",
		Short: "Let two claims of a namespace exchange their volumes",
		Long: `Let two bound claims of a namespace, in mode csi, exchange their volumes, wherever those
are. The claims, their PersistentVolumes and their handles stay, so no workload changes:
a claim gets its data of yesterday from a claim that was restored from a snapshot, or
moves to another backend, from a claim there to which its files were copied.

No pod may use the claims. From the first step to the last, Cinder attaches neither
volume. If the command is interrupted, run it again; done twice, it changes nothing.

Without --apply, it checks everything that can be checked without a change.

It refuses native, imported and encrypted volumes, those that differ in volumeMode,
access modes, filesystem type or topology, and whatever the policy does not grant the
claim on the other's backend. Snapshots stay with the volume of which they were taken.

Exit codes: 0 the claims have each other's volumes, or can get them, 1 refused or
failed, 2 wrong usage, or the cluster cannot be read.`,
		Example: `  standalone-cinder volume swap team-a/data --with data-restored --policy policy.yaml
  standalone-cinder volume swap team-a/data --with data-restored --policy policy.yaml --apply`,
		Args: func(command *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return volumeUsage("%s needs one claim as NAMESPACE/CLAIM (see %s --help)", command.CommandPath(), command.CommandPath())
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "policy", "with"); err != nil {
				return err
			}
			var ok bool
			if flags.request.Namespace, flags.request.Claims[0], ok = claimNamed(arguments[0]); !ok {
				return volumeUsage("%s needs the namespace and the name of a claim, such as team-a/data, not %q", command.CommandPath(), arguments[0])
			}
			if _, _, ok := claimNamed(flags.request.Namespace + "/" + flags.request.Claims[1]); !ok {
				return volumeUsage("--with must be the name of a claim of the same namespace, such as data-restored, not %q", flags.request.Claims[1])
			}
			return flags.run(command.Context(), command.OutOrStdout())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.request.Claims[1], "with", "", "`name` of the other claim (required)")
	set.BoolVar(&flags.request.Back, "back", false, "swap two claims back that have each other's volumes")
	set.BoolVar(&flags.apply, "apply", false, "swap the volumes; without it, the command only checks")
	return command
}

func (f *swapFlags) run(ctx context.Context, stdout io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, f.apply)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	swapper := opened.swapper(f.ProvisionerName)
	plan, err := swapper.Plan(ctx, f.request)
	switch {
	case err != nil:
	case f.apply:
		err = swapper.Apply(ctx, plan)
	default:
		err = plan.Refusal()
	}
	if err != nil {
		return policycli.Exit(policycli.ExitFailed, fmt.Errorf("cannot swap the volumes of claims %s and %s of namespace %s: %s",
			f.request.Claims[0], f.request.Claims[1], f.request.Namespace, statusreport.OneLine(err.Error())))
	}
	if !f.apply && !plan.Done {
		fmt.Fprintln(stdout, "nothing was changed; with --apply, this would be so:")
	}
	for _, line := range plan.Describe() {
		fmt.Fprintln(stdout, statusreport.OneLine(line))
	}
	return nil
}

// swapper returns what swaps the volumes of claims.
func (r *volumeRun) swapper(provisionerName string) *swap.Swapper {
	return &swap.Swapper{
		Client: r.client, Policy: r.policy, ProvisionerName: provisionerName, Cluster: r.cluster, ClusterUID: r.clusterUID,
		Volumes: func(name string) (swap.Volumes, error) {
			lifecycle, err := r.lifecycle(name)
			return backends.Swaps{Lifecycle: lifecycle}, err
		},
		Nodes: nodeuse.New(nodeuse.Options{Client: r.client}),
	}
}
