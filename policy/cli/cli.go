// Package cli is the policy subcommand: what operators do with a policy file before they
// ship it. It uses the same Parse and Decide as the daemon.
package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// The exit codes of the policy commands.
const (
	// ExitOK: all is well.
	ExitOK = 0
	// ExitFailed: a check or an expectation failed.
	ExitFailed = 1
	// ExitUsage: the command was used wrongly, or could not read its input.
	ExitUsage = 2
	// ExitRefused: the provisioner refuses a claim regardless of the policy.
	ExitRefused = 3
)

// ExitError is an error with the process's exit code. Every error of this package's
// commands is one.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text to print to standard error.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// Exit gives an error its exit code; nil stays nil.
func Exit(code int, err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: code, Err: err}
}

// ExitCode returns the exit code for a command's error: that of the ExitError in it,
// ExitOK for nil, and ExitUsage for anything else, which can only come from cobra's own
// parsing.
func ExitCode(err error) int {
	var exit *ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.Code
	}
	return ExitUsage
}

func usageError(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// Options provide what the policy command needs from the rest of the program.
type Options struct {
	// ReadCluster reads what exists in the cluster of a kubeconfig file. The commands
	// need no cluster unless a flag requests one.
	ReadCluster func(ctx context.Context, kubeconfig, provisionerName string) (review.Existing, error)
	// ReadCSI reads the cluster's parts of mode csi. It is called for policies that use
	// the mode.
	ReadCSI func(ctx context.Context, kubeconfig string) (*review.CSI, error)
	// Places returns, by name, the places of a policy's backends that are known without a
	// request. If the name of the clouds.yaml is empty, none is read.
	Places func(p *policy.Policy, cloudsFile string) map[string]review.Place
	// Credentials checks the credentials of a policy's backends as far as possible
	// without a request.
	Credentials func(p *policy.Policy, cloudsFile string) []Finding
	// Live logs in to a policy's backends and checks that they support the policy.
	Live Live
	// Connect connects to an installation, for policy apply.
	Connect func(to Place) (Installation, error)
	// Pause is how long policy apply waits between two looks at the replicas; 0 is its
	// own choice.
	Pause time.Duration
	// Protocols are the protocols that mappings may name.
	Protocols mapping.Protocols
	// ProvisionerName is the default of --provisioner-name, the same as in the
	// running program.
	ProvisionerName string
}

// Finding is a problem in the policy that only its backends or their credentials reveal.
type Finding struct {
	// Path is the position in the policy.
	Path, Message string
	Warning       bool
}

// NewCommand returns the policy command. It writes findings to the command's output and
// prints no errors itself: the caller prints Execute's error and exits with its ExitCode.
func NewCommand(options Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "policy",
		Short:         "Check, explain and test a policy file, and put it into force",
		Args:          cobra.ArbitraryArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          RequireSubcommand,
		// Only the subcommands take files.
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.AddCommand(newCheckCommand(options), newExplainCommand(options), newDiffCommand(options), newApplyCommand(options), newTestCommand(options), newSchemaCommand(options))
	return cmd
}

// RequireSubcommand rejects a call with no subcommand or an unknown one. Cobra would
// print the help and succeed.
func RequireSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError("%s needs a subcommand (see %s --help)", cmd.CommandPath(), cmd.CommandPath())
	}
	return NoArguments(cmd, args)
}

// NoArguments rejects arguments: an unknown subcommand, or a policy without its flag.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	what, hint := "takes no argument", fmt.Sprintf("see %s --help", cmd.CommandPath())
	if flag := cmd.Flags().Lookup("policy"); flag != nil && !flag.Changed {
		hint = "use --policy " + args[0]
	}
	if cmd.HasSubCommands() {
		what = "has no subcommand"
		if !cmd.HasParent() {
			what = "has no command"
		}
		// Cobra sets this only if it makes suggestions itself.
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			hint = "did you mean " + strings.Join(near, " or ") + "?"
		}
	}
	return usageError("%s %s %q (%s)", cmd.CommandPath(), what, args[0], hint)
}

// FlagError makes an error about flags one of usage. Pflag quotes the Go function that
// refused a value.
func FlagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		wanted := map[string]string{"bool": "true or false", "duration": "a duration such as 90s or 5m", "int": "a whole number", "int64": "a whole number", "float64": "a number"}
		if must := wanted[invalid.GetFlag().Value.Type()]; must != "" {
			err = fmt.Errorf("--%s must be %s, not %q", invalid.GetFlag().Name, must, invalid.GetValue())
		}
	}
	return usageError("%s: %w (see %s --help)", cmd.CommandPath(), err, cmd.CommandPath())
}
