package cli

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

// report is the answer of policy check, and of the other commands where a file
// has mistakes.
type report struct {
	Source string `json:"source"`
	Valid  bool   `json:"valid"`
	// Revision, Backends and Tenants are given for valid policies only.
	Revision string           `json:"revision,omitempty"`
	Backends []string         `json:"backends,omitempty"`
	Tenants  []string         `json:"tenants,omitempty"`
	Errors   policy.ErrorList `json:"errors"`
	Warnings policy.ErrorList `json:"warnings"`
}

func newCheckCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "List every mistake in a policy file",
		Long: `List every mistake in a policy file, each with its line, its field and a remedy.

FILE may be - for standard input. Warnings are about things that are allowed but
hardly meant; they do not fail the check.

Exit codes: 0 the policy is good, 1 it has mistakes, 2 wrong use or an unreadable file.`,
		Example: "  standalone-cinder policy check policy.yaml\n  standalone-cinder policy check --output json - < policy.yaml",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError("%s takes one FILE, or - for standard input, but was given %d", cmd.CommandPath(), len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			r, err := check(args[0], cmd.InOrStdin())
			if err != nil {
				return &ExitError{Code: ExitUsage, Err: err}
			}
			if err := answer(cmd, output, r); err != nil {
				return err
			}
			if !r.Valid {
				return r.failure(ExitFailed)
			}
			return nil
		},
		ValidArgsFunction: completeFile,
	}
	outputFlag(cmd, &output)
	return cmd
}

func newReport(source string) report {
	if source == "-" {
		source = stdinName
	}
	return report{Source: source, Errors: policy.ErrorList{}, Warnings: policy.ErrorList{}}
}

// failure is what the command ends with when the file has mistakes.
func (r report) failure(code int) error {
	return &ExitError{Code: code, Err: fmt.Errorf("%s has %s", r.Source, count(len(r.Errors), "mistake"))}
}

// readPolicy reads a policy; - is standard input.
func readPolicy(file string, stdin io.Reader) (*policy.Policy, error) {
	if file == "-" {
		return policy.Read(stdin, stdinName)
	}
	return policy.Load(file)
}

// loadPolicy reads the policy that another command works with. Mistakes in it
// are answered as policy check does.
func loadPolicy(cmd *cobra.Command, file, output string) (*policy.Policy, error) {
	p, err := readPolicy(file, cmd.InOrStdin())
	if err == nil {
		return p, nil
	}
	return nil, reportMistakes(cmd, output, file, err, ExitFailed)
}

// reportMistakes prints the mistakes in a file, and returns what the command
// ends with: the code for them, or that for files that cannot be read.
func reportMistakes(cmd *cobra.Command, output, file string, err error, code int) error {
	r := newReport(file)
	if !errors.As(err, &r.Errors) {
		return &ExitError{Code: ExitUsage, Err: err}
	}
	if err := answer(cmd, output, r); err != nil {
		return err
	}
	return r.failure(code)
}

// check reads and checks a policy. An error means that it could not be read.
func check(file string, stdin io.Reader) (report, error) {
	r := newReport(file)
	p, err := readPolicy(file, stdin)
	if errors.As(err, &r.Errors) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	r.Valid = true
	r.Revision = p.Revision()
	for _, b := range p.Backends {
		r.Backends = append(r.Backends, b.Name)
	}
	for _, t := range p.Tenants {
		r.Tenants = append(r.Tenants, t.Name)
	}
	r.Warnings = append(r.Warnings, p.Warnings...)
	return r, nil
}

func (r report) text(w io.Writer) error {
	for _, e := range r.Errors {
		if _, err := fmt.Fprintln(w, e.Error()); err != nil {
			return err
		}
	}
	for _, e := range r.Warnings {
		e.Message = "warning: " + e.Message
		if _, err := fmt.Fprintln(w, e.Error()); err != nil {
			return err
		}
	}
	if !r.Valid {
		return nil
	}
	summary := fmt.Sprintf("%s: good: %s, %s, revision %s", r.Source,
		count(len(r.Backends), "backend"), count(len(r.Tenants), "tenant"), r.Revision)
	if len(r.Warnings) > 0 {
		summary += ", " + count(len(r.Warnings), "warning")
	}
	_, err := fmt.Fprintln(w, summary)
	return err
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
