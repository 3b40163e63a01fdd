package commands

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// moveFlags are the flags of volume move. Those after from are for all volumes of a type.
type moveFlags struct {
	retypeFlags
	from      string
	namespace string
	atOnce    int
	wait      time.Duration
}

// mostAtOnce bounds the copies that one command has Cinder make at a time.
const mostAtOnce = 50

func newVolumeMoveCommand(protocols mappers.Protocols) *cobra.Command {
	flags := moveFlags{retypeFlags: retypeFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}}
	flags.request.Migrate = true
	command := &cobra.Command{
		Use:   "move (NAMESPACE/CLAIM | --from TYPE) --to TYPE --policy FILE",
		Short: "Move the volume of a claim, or all volumes of a type, to the storage of another volume type",
		Long: `Move the volume of a bound claim to the storage of another volume type of the same
Cinder, which copies it (a retype that may migrate). The claim, its PersistentVolume and
the ID of the volume stay. Until the copy is complete, no pod that uses the claim starts.

With --from, move all volumes of a type, such as those of an array that is to be switched
off. Volumes in use stay behind, unless --wait gives their pods the time to end. What
cannot be moved stops no other.

If the command is interrupted, Cinder goes on with the copies that it has begun; run the
command again to wait for them, and to move the rest.

Without --apply, it checks everything that can be checked without a change.

It refuses a native PersistentVolume, a volume that is in use or has snapshots, and
whatever volume retype refuses. Cinder accepts a move that it cannot make, and leaves the
volume where it was; the command then fails and says so.

Exit codes: 0 the volumes have the type, or can get it, 1 one is refused, in use or
failed, 2 wrong usage, or the cluster or a backend cannot be read.`,
		Example: `  standalone-cinder volume move team-a/data --to ssd --policy policy.yaml
  standalone-cinder volume move team-a/data --to ssd --policy policy.yaml --apply
  standalone-cinder volume move --from old-array --to new-array --policy policy.yaml
  standalone-cinder volume move --from old-array --to new-array --policy policy.yaml --wait 12h --apply`,
		Args: func(command *cobra.Command, arguments []string) error {
			if len(arguments) > 1 || (len(arguments) == 1) == (flags.from != "") {
				return volumeUsage("%s needs one claim as NAMESPACE/CLAIM, or --from (see %s --help)", command.CommandPath(), command.CommandPath())
			}
			for _, name := range []string{"namespace", "backend", "at-once", "wait"} {
				if command.Flags().Changed(name) && flags.from == "" {
					return volumeUsage("--%s needs --from", name)
				}
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "policy", "to"); err != nil {
				return err
			}
			switch {
			case flags.from == "":
			case flags.from == flags.request.Type:
				return volumeUsage("--from and --to name the same type")
			case flags.atOnce < 1 || flags.atOnce > mostAtOnce:
				return volumeUsage("--at-once must be from 1 to %d, not %d", mostAtOnce, flags.atOnce)
			default:
				return flags.runMany(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
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
	set.StringVar(&flags.from, "from", "", "move all volumes with the volume type of this `name`")
	set.StringVar(&flags.Backend, "backend", "", "with --from: `name` of one backend; default is all of them")
	set.StringVarP(&flags.namespace, "namespace", "n", "", "with --from: `namespace` of the claims; default is all of them")
	set.IntVar(&flags.atOnce, "at-once", 2, "with --from: `number` of volumes that Cinder copies at once, at most 50")
	set.DurationVar(&flags.wait, "wait", 0, "with --from: `time` to wait for volumes in use to be free")
	set.BoolVar(&flags.apply, "apply", false, "move the volumes; without it, the command only checks")
	return command
}
