package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/rebind"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// rebindFlags are the flags of volume rebind.
type rebindFlags struct {
	VolumeOptions
	request rebind.Request
	to      string
	timeout time.Duration
	apply   bool
}

const (
	// rebindPause is short beside what the command waits for.
	rebindPause = time.Second
	// rebindSettle is longer than the leader needs to see that a deletion is no longer
	// wanted, and a request under way to show at Cinder.
	rebindSettle = 10 * time.Second
)

func newVolumeRebindCommand(protocols mappers.Protocols) *cobra.Command {
	flags := rebindFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}
	command := &cobra.Command{
		Use:   "rebind PV --to NAMESPACE/CLAIM --policy FILE",
		Short: "Give the PersistentVolume of a claim to another claim",
		Long: `Give a PersistentVolume, with its volume and data, to another claim: to rename a claim,
to move it to another namespace, or to use a volume again that was kept. The command
creates the claim unless it exists; an existing claim must name the PersistentVolume
(spec.volumeName) and fit it. If the command is interrupted, run it again.

Without --apply, it checks everything that can be checked without a change, and prints
the steps.

The PersistentVolume has the reclaim policy Retain from the first step to the last, so
nothing that happens in between loses the volume. If a claim still has the
PersistentVolume, the command stops there until you have deleted that claim. With
--delete-claim, it deletes the claim itself, unless a pod or a node uses it. Kubernetes
cannot move a claim that pods use.

The running program stamps the volume for the claim, and counts it for the claim's
tenant. The policy must grant the claim's namespace the StorageClass on the volume's
backend; quotas do not matter.

Exit codes: 0 the claim has the PersistentVolume, or can get it, 1 refused, failed or
not finished, 2 wrong usage, or the cluster cannot be read.`,
		Example: `  standalone-cinder volume rebind pvc-0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a11 --to team-a/data-new --policy policy.yaml
  standalone-cinder volume rebind pvc-0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a11 --to team-a/data-new --policy policy.yaml --delete-claim --apply`,
		Args: func(command *cobra.Command, args []string) error {
			if len(args) != 1 {
				return volumeUsage("%s needs the name of one PersistentVolume (see %s --help)", command.CommandPath(), command.CommandPath())
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			flags.request.PersistentVolume = args[0]
			if err := flags.read(command); err != nil {
				return err
			}
			return flags.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.to, "to", "", "the claim that gets the PersistentVolume, as `NAMESPACE/CLAIM` (required)")
	set.BoolVar(&flags.request.DeleteClaim, "delete-claim", false, "delete the claim that has the PersistentVolume, if nothing uses it")
	set.DurationVar(&flags.timeout, "timeout", 5*time.Minute, "`time` after which the command no longer waits")
	set.BoolVar(&flags.apply, "apply", false, "rebind the PersistentVolume; without it, the command only checks")
	return command
}

// read checks the flags.
func (f *rebindFlags) read(command *cobra.Command) error {
	if err := required(command, "policy", "to"); err != nil {
		return err
	}
	namespace, claim, ok := claimNamed(f.to)
	if !ok {
		return volumeUsage("--to must be the namespace and the name of a claim, such as team-a/data, not %q", f.to)
	}
	if f.timeout <= 0 {
		return volumeUsage("--timeout must be positive")
	}
	f.request.PersistentVolume = strings.TrimPrefix(strings.TrimPrefix(f.request.PersistentVolume, "pv/"), "persistentvolume/")
	f.request.Namespace, f.request.Claim = namespace, claim
	return nil
}

// claimNamed reads NAMESPACE/CLAIM.
func claimNamed(text string) (namespace, claim string, ok bool) {
	namespace, claim, ok = strings.Cut(text, "/")
	return namespace, claim, ok && len(validation.IsDNS1123Label(namespace)) == 0 && len(validation.IsDNS1123Subdomain(claim)) == 0
}

func (f *rebindFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, end := context.WithTimeout(ctx, f.timeout)
	defer end()
	// The leader alone changes the volume.
	opened, err := f.open(ctx, false)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	rebinder := &rebind.Rebinder{
		Client: opened.client, Policy: opened.policy, ProvisionerName: f.ProvisionerName, Cluster: opened.cluster,
		Volumes: func(name string) (rebind.Volumes, error) { return opened.lifecycle(name) },
		Nodes:   nodeuse.New(nodeuse.Options{Client: opened.client}),
		Say:     func(what string) { fmt.Fprintln(stdout, statusreport.OneLine(what)) },
		Pause:   rebindPause, Settle: rebindSettle,
	}
	plan, err := rebinder.Plan(ctx, f.request)
	if err == nil {
		warn(stderr, plan.Warnings)
		if f.apply {
			err = rebinder.Apply(ctx, plan)
		}
	}
	if err != nil {
		return policycli.Exit(policycli.ExitFailed, f.failure(err))
	}
	fmt.Fprintln(stdout, f.outcome(plan))
	return nil
}

// failure says what prevents the rebind, each on a line of its own.
func (f *rebindFlags) failure(err error) error {
	problems := []string{err.Error()}
	var refusal *rebind.RefusedError
	if errors.As(err, &refusal) {
		problems = refusal.Problems
	}
	for i, problem := range problems {
		problems[i] = statusreport.OneLine(problem)
	}
	what := fmt.Sprintf("PersistentVolume %s is not rebound to claim %s:", f.request.PersistentVolume, f.to)
	if len(problems) == 1 {
		return errors.New(what + " " + problems[0])
	}
	return errors.New(what + "\n- " + strings.Join(problems, "\n- "))
}

// outcome says what was or would be done.
func (f *rebindFlags) outcome(plan *rebind.Plan) string {
	switch {
	case plan.Done:
		return fmt.Sprintf("claim %s already has PersistentVolume %s; nothing to do", f.to, plan.PersistentVolume)
	case f.apply:
		return fmt.Sprintf("claim %s has PersistentVolume %s", f.to, plan.PersistentVolume)
	}
	return strings.Join(wouldDo(plan.Steps), "\n")
}
