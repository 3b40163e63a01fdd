package commands

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// moveFlags are the flags of volume move. Those after from are for many volumes.
type moveFlags struct {
	retypeFlags
	toBackend    string
	storageClass string
	image        string
	mibPerSecond int
	from         string
	fromBackend  string
	namespace    string
	atOnce       int
	wait         time.Duration
}

// mostAtOnce bounds the copies that one command has Cinder make at a time.
const mostAtOnce = 50

func newVolumeMoveCommand(protocols mappers.Protocols) *cobra.Command {
	flags := moveFlags{retypeFlags: retypeFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}}
	flags.request.Migrate = true
	command := &cobra.Command{
		Use:   "move (NAMESPACE/CLAIM | --from TYPE | --from-backend NAME) (--to TYPE | --to-backend NAME) --policy FILE",
		Short: "Move the volume of a claim, or many volumes, to another volume type or backend",
		Long: `With --to, move the volume of a bound claim to the storage of another volume type of the
same Cinder, which copies it (a retype that may migrate). The claim, its PersistentVolume
and the ID of the volume stay. Until the copy is complete, no pod that uses the claim
starts. If the command is interrupted, Cinder goes on with what it has begun.

With --to-backend, move it to another backend, of any Cinder, in mode csi. A second claim,
CLAIM-former, gets a volume there, a pod of the namespace copies and compares, and the
claims swap their volumes. No pod may use the claim meanwhile: if one did, the copy is not
taken. CLAIM-former then has the former volume; delete it when you trust the copy. The
second claim counts for quotas.

With --from or --from-backend, move all volumes of a type or a backend, such as those of an
array that is to be switched off. Volumes in use stay behind, unless --wait gives their
pods the time to end. What cannot be moved stops no other.

Run the command again after an interruption. Without --apply, it checks everything that can
be checked without a change.

It refuses a native PersistentVolume, a volume that is in use, or has snapshots (--to), and
whatever volume retype or volume swap refuses. Cinder accepts a move to a type that it
cannot make, and leaves the volume where it was; the command then fails and says so.

Exit codes: 0 the volumes are where they should be, or can get there, 1 one is refused, in
use or failed, 2 wrong usage, or the cluster or a backend cannot be read.`,
		Example: `  standalone-cinder volume move team-a/data --to ssd --policy policy.yaml --apply
  standalone-cinder volume move team-a/data --to-backend new --policy policy.yaml --apply
  standalone-cinder volume move --from old-array --to new-array --policy policy.yaml
  standalone-cinder volume move --from-backend old --to-backend new --policy policy.yaml --wait 12h --apply`,
		Args: func(command *cobra.Command, arguments []string) error {
			if len(arguments) > 1 || (len(arguments) == 1) == flags.many() {
				return volumeUsage("%s needs one claim as NAMESPACE/CLAIM, or --from, or --from-backend (see %s --help)", command.CommandPath(), command.CommandPath())
			}
			for _, name := range []string{"namespace", "at-once", "wait"} {
				if command.Flags().Changed(name) && !flags.many() {
					return volumeUsage("--%s needs --from or --from-backend", name)
				}
			}
			for _, name := range []string{"storage-class", "image", "mib-per-second"} {
				if command.Flags().Changed(name) && flags.toBackend == "" {
					return volumeUsage("--%s needs --to-backend", name)
				}
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "policy"); err != nil {
				return err
			}
			switch {
			case (flags.request.Type == "") == (flags.toBackend == ""):
				return volumeUsage("%s needs either --to or --to-backend", command.CommandPath())
			case flags.from != "" && flags.from == flags.request.Type:
				return volumeUsage("--from and --to name the same type")
			case flags.fromBackend != "" && flags.fromBackend == flags.toBackend:
				return volumeUsage("--from-backend and --to-backend name the same backend")
			case flags.atOnce < 1 || flags.atOnce > mostAtOnce:
				return volumeUsage("--at-once must be from 1 to %d, not %d", mostAtOnce, flags.atOnce)
			case flags.mibPerSecond < 0:
				return volumeUsage("--mib-per-second must be 0 or more, not %d", flags.mibPerSecond)
			case flags.many():
				return flags.runMany(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
			}
			var ok bool
			if flags.request.Namespace, flags.request.Claim, ok = claimNamed(arguments[0]); !ok {
				return volumeUsage("%s needs the namespace and the name of a claim, such as team-a/data, not %q", command.CommandPath(), arguments[0])
			}
			if flags.toBackend != "" {
				return flags.runCopy(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
			}
			return flags.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.request.Type, "to", "", "`name` of the volume type")
	set.StringVar(&flags.toBackend, "to-backend", "", "`name` of the backend")
	set.StringVar(&flags.storageClass, "storage-class", "", "with --to-backend: `name` of the StorageClass of the second claim; default is the claim's own")
	set.StringVar(&flags.image, "image", "", "with --to-backend: `image` of the copying pods; default is that of the Deployment")
	set.IntVar(&flags.mibPerSecond, "mib-per-second", 0, "with --to-backend: most `MiB` that each pod copies in a second; 0 is no limit")
	set.StringVar(&flags.from, "from", "", "move all volumes with the volume type of this `name`")
	set.StringVar(&flags.fromBackend, "from-backend", "", "move all volumes of the backend of this `name`; with --from, only those")
	set.StringVarP(&flags.namespace, "namespace", "n", "", "of many: only those of claims in this `namespace`")
	set.IntVar(&flags.atOnce, "at-once", 2, "of many: `number` of volumes that are copied at once, at most 50")
	set.DurationVar(&flags.wait, "wait", 0, "of many: `time` to wait for volumes in use to be free")
	set.BoolVar(&flags.apply, "apply", false, "move the volumes; without it, the command only checks")
	return command
}

// many reports whether no single claim is to be named.
func (f *moveFlags) many() bool { return f.from != "" || f.fromBackend != "" }
