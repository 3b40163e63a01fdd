package commands

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/retype"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// retypeFlags are the flags of volume retype and volume move.
type retypeFlags struct {
	VolumeOptions
	request retype.Request
	apply   bool
}

func newVolumeRetypeCommand(protocols mappers.Protocols) *cobra.Command {
	flags := retypeFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}
	command := &cobra.Command{
		Use:   "retype --policy FILE --namespace NS --claim NAME --type TYPE",
		Short: "Give the volume of a claim another volume type",
		Long: `Give the volume of a bound claim another volume type, on its present storage: Cinder
never migrates it. The volume may be in use. If the command is interrupted, run it again.

Without --apply, it checks everything that can be checked without a change.

It refuses a volume that the program did not make or import, and a type that the
claim's rule does not grant (volumeType). The quotas of the policy do not count types;
Cinder's own may. Cinder accepts a change that its storage cannot make, and leaves the
volume as it was; the command then fails and says so.

Exit codes: 0 the volume has the type, or can get it, 1 refused or failed, 2 wrong
usage, or the cluster cannot be read.`,
		Example: `  standalone-cinder volume retype --policy policy.yaml --namespace team-a --claim data --type ssd
  standalone-cinder volume retype --policy policy.yaml --namespace team-a --claim data --type ssd --apply`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := required(command, "policy", "namespace", "claim", "type"); err != nil {
				return err
			}
			return flags.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVarP(&flags.request.Namespace, "namespace", "n", "", "`namespace` of the claim (required)")
	set.StringVar(&flags.request.Claim, "claim", "", "`name` of the claim (required)")
	set.StringVar(&flags.request.Type, "type", "", "`name` of the volume type (required)")
	set.BoolVar(&flags.apply, "apply", false, "change the type; without it, the command only checks")
	return command
}

func (f *retypeFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, f.apply)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	retyper := opened.retyper(f.ProvisionerName)
	plan, err := retyper.Plan(ctx, f.request)
	if err == nil {
		warn(stderr, plan.Warnings)
		if f.apply {
			if f.request.Migrate && !plan.Done {
				fmt.Fprintf(stderr, "Cinder copies volume %s (%d GiB), which may take hours; if this command is interrupted, Cinder goes on\n", plan.Volume.ID, plan.Volume.SizeGiB)
			}
			_, err = retyper.Apply(ctx, plan)
		}
	}
	if err != nil {
		return policycli.Exit(policycli.ExitFailed, fmt.Errorf("cannot change the type of the volume of claim %s/%s: %s", f.request.Namespace, f.request.Claim, statusreport.OneLine(err.Error())))
	}
	fmt.Fprintln(stdout, statusreport.OneLine(f.outcome(plan)))
	return nil
}

// retyper returns what changes the types of the volumes of claims.
func (r *volumeRun) retyper(provisionerName string) *retype.Retyper {
	return &retype.Retyper{
		Client: r.client, Policy: r.policy, ProvisionerName: provisionerName, Cluster: r.cluster,
		Volumes: func(name string) (retype.Volumes, error) {
			lifecycle, err := r.lifecycle(name)
			return lifecycle.Snapshots(), err
		},
	}
}

// outcome says what was or would be done.
func (f *retypeFlags) outcome(plan *retype.Plan) string {
	volume := fmt.Sprintf("volume %s of backend %s (PersistentVolume %s)", plan.Volume.ID, plan.Backend, plan.PersistentVolume)
	switch {
	case plan.Done:
		return fmt.Sprintf("%s already has type %q; nothing to do", volume, plan.Type)
	case f.apply:
		return fmt.Sprintf("%s now has type %q; it had %q", volume, plan.Type, plan.Volume.Type)
	}
	how := ", without a migration"
	if f.request.Migrate {
		how = "; Cinder would copy it to another storage if its present one cannot have that type"
	}
	return fmt.Sprintf("nothing was changed; with --apply, the command would change the type of %s (%d GiB, %s) from %q to %q%s",
		volume, plan.Volume.SizeGiB, plan.Volume.Status, plan.Volume.Type, plan.Type, how)
}
