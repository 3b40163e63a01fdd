package commands

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/rewrap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// rewrapFlags are the flags of volume rewrap.
type rewrapFlags struct {
	VolumeOptions
	from, to         string
	newKeys          bool
	namespace, claim string
	apply            bool
}

func newVolumeRewrapCommand(protocols mappers.Protocols) *cobra.Command {
	flags := rewrapFlags{VolumeOptions: VolumeOptions{Protocols: protocols}}
	command := &cobra.Command{
		Use:   "rewrap --policy FILE [--from SECRET/ENTRY --to SECRET/ENTRY] [--new-keys]",
		Short: "Replace the keys of volumes that nodes encrypt",
		Long: `List which key-encryption keys open how many volumes and snapshots of the cluster, on
all backends of the policy. With --from and --to, wrap the keys of those that one entry
opens with another. Volumes may be in use. If the command fails or is interrupted, each
volume is opened by one of the two; run it again.

With --new-keys, volumes that --from opens get new keys of their own (new passphrases of
their LUKS headers; the data are not encrypted anew), which --to wraps. That takes three
runs, an hour apart: each takes the next step of every volume that can take it, and says
what the others wait for. The node of a volume changes its header when it stages the volume.

Without --apply, it only checks that it could. Remove an entry if no rule names it and,
an hour after the last run, the list does not show it: copies begun before may get it.

Exit codes: 0 listed, or rewrapped, or could be, 1 something failed, 2 wrong usage, or
the cluster cannot be read.`,
		Example: `  standalone-cinder volume rewrap --policy policy.yaml --from storage-keys/2026 --to storage-keys/2027 --apply
  standalone-cinder volume rewrap --policy policy.yaml --from storage-keys/2026 --to storage-keys/2027 --new-keys --namespace team-a --claim data --apply`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := required(command, "policy"); err != nil {
				return err
			}
			return flags.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.SecretNamespace, "secret-namespace", "", "`namespace` of the Secrets; default is $POD_NAMESPACE, else the pod's namespace, else "+defaultMapNamespace)
	set.StringVar(&flags.from, "from", "", "`SECRET/ENTRY` that opens the volumes now")
	set.StringVar(&flags.to, "to", "", "`SECRET/ENTRY` that is to open them")
	set.BoolVar(&flags.newKeys, "new-keys", false, "give the volumes new keys instead of wrapping those that they have")
	set.StringVar(&flags.namespace, "namespace", "", "`namespace` of --claim")
	set.StringVar(&flags.claim, "claim", "", "`name` of a claim, whose volume alone gets a new key")
	set.BoolVar(&flags.apply, "apply", false, "rewrap the keys; without it, the command only checks")
	return command
}

// entryOf reads a flag with an entry of a Secret.
func entryOf(flag, text string) (rewrap.Entry, error) {
	secret, entry, ok := strings.Cut(text, "/")
	if !ok || len(validation.IsDNS1123Subdomain(secret)) > 0 || len(validation.IsConfigMapKey(entry)) > 0 {
		return rewrap.Entry{}, volumeUsage("%s must be the name of a Secret and of its entry, such as storage-keys/2027, not %q", flag, text)
	}
	return rewrap.Entry{Secret: secret, Entry: entry}, nil
}

func (f *rewrapFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var from, to rewrap.Entry
	rewraps := f.from != "" || f.to != ""
	if rewraps {
		var err error
		if from, err = entryOf("--from", f.from); err != nil {
			return err
		}
		if to, err = entryOf("--to", f.to); err != nil {
			return err
		}
		if from == to {
			return volumeUsage("--from and --to name the same entry")
		}
	} else if f.apply || f.newKeys {
		return volumeUsage("--apply and --new-keys need --from and --to")
	}
	if (f.namespace == "") != (f.claim == "") || f.claim != "" && !f.newKeys {
		return volumeUsage("--namespace and --claim belong together, and to --new-keys")
	}
	f.SecretNamespace = secretNamespace(f.SecretNamespace)
	opened, err := f.open(ctx, f.apply)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	rewrapper := &rewrap.Rewrapper{
		Keeper: volumekeys.Keeper{Client: opened.client, Namespace: f.SecretNamespace},
		Say:    func(what string) { fmt.Fprintln(stdout, statusreport.OneLine(what)) },
	}
	for i, lifecycle := range opened.lifecycles {
		rewrapper.Backends = append(rewrapper.Backends, rewrap.Backend{Name: opened.imports[i].Backend.Name, Keys: backends.Keys{Lifecycle: lifecycle}})
	}
	failed := func(err error) error {
		if err == nil {
			return nil
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(stderr, statusreport.OneLine(line))
		}
		return policycli.Exit(policycli.ExitFailed, fmt.Errorf("not everything was listed or rewrapped; keep all entries, and run the command again"))
	}
	if !rewraps {
		uses, err := rewrapper.Uses(ctx)
		if printed := printUses(stdout, uses); printed != nil {
			return printed
		}
		return failed(err)
	}
	if f.newKeys {
		progress, err := rewrapper.Renew(ctx, rewrap.Renewal{From: from, To: to, Namespace: f.namespace, Claim: f.claim}, f.apply)
		printProgress(stdout, progress, f.apply)
		return failed(err)
	}
	done, err := rewrapper.Rewrap(ctx, from, to, f.apply)
	if f.apply {
		fmt.Fprintf(stdout, "%d volumes and snapshots were rewrapped from %s to %s\n", done, from, to)
	} else {
		fmt.Fprintf(stdout, "nothing was changed; with --apply, the command would rewrap %d volumes and snapshots from %s to %s\n", done, from, to)
	}
	return failed(err)
}

// printProgress says what was done, and whether that was all.
func printProgress(w io.Writer, p rewrap.Progress, applied bool) {
	if !applied {
		fmt.Fprint(w, "nothing was changed; with --apply, it would be: ")
	}
	if p == (rewrap.Progress{}) {
		fmt.Fprintln(w, "no volume gets a new key, and --from opens none (any more)")
		return
	}
	fmt.Fprintf(w, "%d volumes begin to get a new key, %d switch to it, %d have lost the former one, %d wait", p.Begun, p.Switched, p.Ended, p.Waiting)
	if p.Begun+p.Switched+p.Waiting > 0 {
		fmt.Fprint(w, "; run the command again in an hour, and keep both entries until then")
	}
	fmt.Fprintln(w)
}

func printUses(w io.Writer, uses []rewrap.Use) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SECRET/ENTRY\tBACKEND\tVOLUMES\tSNAPSHOTS")
	changing := 0
	for _, u := range uses {
		entry := u.Entry.String()
		if u.Entry == (rewrap.Entry{}) {
			entry = "(unreadable)"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\n", entry, u.Backend, u.Volumes, u.Snapshots)
		changing += u.Changing
	}
	err := table.Flush()
	if changing > 0 {
		fmt.Fprintln(w, "Some of them get new keys, or are copies of such volumes, and need all entries with which they are listed; see volume rewrap --new-keys.")
	}
	return err
}
