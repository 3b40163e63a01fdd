package commands

import (
	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

func newVolumeMoveCommand(protocols mappers.Protocols) *cobra.Command {
	flags := retypeFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}
	flags.request.Migrate = true
	command := &cobra.Command{
		Use:   "move NAMESPACE/CLAIM --to TYPE --policy FILE",
		Short: "Move the volume of a claim to the storage of another volume type",
		Long: `Move the volume of a bound claim to the storage of another volume type of the same
Cinder, which copies it (a retype that may migrate). The claim, its PersistentVolume and
the ID of the volume stay. Until the copy is complete, no pod that uses the claim starts.

If the command is interrupted, Cinder goes on; run it again to wait for the end.

Without --apply, it checks everything that can be checked without a change.

It refuses a native PersistentVolume, a volume that is in use or has snapshots, and
whatever volume retype refuses. Cinder accepts a move that it cannot make, and leaves the
volume where it was; the command then fails and says so.

Exit codes: 0 the volume has the type, or can get it, 1 refused or failed, 2 wrong
usage, or the cluster cannot be read.`,
		Example: `  standalone-cinder volume move team-a/data --to ssd --policy policy.yaml
  standalone-cinder volume move team-a/data --to ssd --policy policy.yaml --apply`,
		Args: func(command *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return volumeUsage("%s needs one claim as NAMESPACE/CLAIM (see %s --help)", command.CommandPath(), command.CommandPath())
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "policy", "to"); err != nil {
				return err
			}
			var ok bool
			if flags.request.Namespace, flags.request.Claim, ok = claimNamed(arguments[0]); !ok {
				return volumeUsage("%s needs the namespace and the name of a claim, such as team-a/data, not %q", command.CommandPath(), arguments[0])
			}
			return flags.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.request.Type, "to", "", "`name` of the volume type (required)")
	set.BoolVar(&flags.apply, "apply", false, "move the volume; without it, the command only checks")
	return command
}
