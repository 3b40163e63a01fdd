package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// report is the output of policy check, and of the other commands if a file has mistakes.
type report struct {
	Source string `json:"source"`
	Valid  bool   `json:"valid"`
	// Revision, Backends and Tenants are given if the file alone is valid.
	Revision string           `json:"revision,omitempty"`
	Backends []string         `json:"backends,omitempty"`
	Tenants  []string         `json:"tenants,omitempty"`
	Errors   policy.ErrorList `json:"errors"`
	Warnings policy.ErrorList `json:"warnings"`
	// Live is set if the backends were asked.
	Live *LiveReport `json:"live,omitempty"`
	// Review is set if a cluster was read.
	Review *clusterReview `json:"review,omitempty"`
}

// checkOptions are the flags of policy check.
type checkOptions struct {
	Options
	output string

	kubeconfig string
	against    string
	cloudsFile string
	failOn     string
	live       bool
	makeVolume bool
}

// The findings that fail a check.
const (
	failOnErrors   = "errors"
	failOnWarnings = "warnings"
)

func newCheckCommand(from Options) *cobra.Command {
	options := checkOptions{Options: from}
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "List every error in policy files",
		Long: `List every error in policy files, each with its line, its field and a remedy.

FILE may be a directory with the files of one policy, or the manifest of a ConfigMap
that holds it; - is standard input. Warnings are about things that are allowed but
probably not intended; they fail the check only with --fail-on=warnings.

With --clouds-file, also check the credentials of the backends without a request:
that clouds.yaml has their entries, that these are complete together with
secure.yaml, and that certificates and keys can be read and parsed.

With --live, also log in to every backend, once for each account, and say whether
it can do what the policy says: whether it answers, whether it lacks a volume type,
an availability zone or a microversion that the policy needs, whether Cinder's own
quota is below the policy's, and whether its clock differs from this machine's by
more than a minute. A backend that does not answer does not keep the others from
being checked. Credentials are found as run finds them: in --clouds-file, else in the
usual places of the OpenStack clients.

With --make-volume, also make one volume of 1 GiB for each backend and kind of
volume that the rules ask for, connect it, show what a PersistentVolume would
have, and remove it, even if a step fails or the command is interrupted. The
command names what it cannot remove. The next run removes what a killed run left
behind, once that is an hour old. Neither the running program nor its audit counts
or touches such volumes.

With --kubeconfig, also say what the policy means for the claims and
PersistentVolumes that exist in that cluster: which volumes would lack their
backend, or have a backend that points to another place; which quotas are already
exceeded; which claims would be denied; and what pending claims get. A policy
never changes or removes an existing volume. The command only reads the cluster,
and ignores $KUBECONFIG.

With --against, report only what changes between that policy and FILE.

Without --live, the command sends no request to Keystone or Cinder. When it reviews
a cluster, it therefore knows where noauth backends point. For the others, it knows
only the project, and only if their credentials in --clouds-file give its ID.

Exit codes: 0 the policies are good; 1 one has errors, existing volumes could not
be deleted because their backend is missing or points elsewhere, or with --live a
backend cannot be used, lacks a volume type or zone, or failed to make, connect,
map or remove a volume; 2 wrong usage, an unreadable file, a cluster that cannot be
read, or errors in the file of --against.`,
		Example: `  standalone-cinder policy check policy.yaml
  standalone-cinder policy check --fail-on=warnings --clouds-file clouds.yaml policies/*.yaml
  standalone-cinder policy check --live --make-volume --clouds-file clouds.yaml policy.yaml
  kubectl get configmap -n standalone-cinder standalone-cinder-policy -o yaml | standalone-cinder policy check -
  standalone-cinder policy check new.yaml --kubeconfig ~/.kube/config --against current.yaml`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError("%s needs a FILE, or - for standard input (see %s --help)", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := options.check(cmd, args); err != nil {
				return err
			}
			return options.run(cmd, args)
		},
		ValidArgsFunction: completeFiles,
	}
	flags := cmd.Flags()
	flags.StringVar(&options.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster to review; without it, none is read")
	flags.StringVar(&options.against, "against", "", "report only what changes since this policy `file`; - for standard input")
	flags.StringVar(&options.cloudsFile, "clouds-file", "", "clouds.yaml `file` with credentials to check")
	flags.BoolVar(&options.live, "live", false, "ask the backends whether they can do what the policy says")
	flags.BoolVar(&options.makeVolume, "make-volume", false, "with --live, make, connect, map and remove a volume for each backend and kind of volume")
	flags.StringVar(&options.failOn, "fail-on", failOnErrors, "what fails the check: `errors`, or warnings as well")
	completeValues(cmd, "fail-on", failOnErrors, failOnWarnings)
	flags.StringVar(&options.ProvisionerName, "provisioner-name", from.ProvisionerName, "`name` by which StorageClasses refer to the program")
	outputFlag(cmd, &options.output)
	mustComplete(cmd.MarkFlagFilename("kubeconfig"))
	completeYAML(cmd, "against")
	completeYAML(cmd, "clouds-file")
	completeValues(cmd, "provisioner-name")
	return cmd
}

// check rejects combinations of flags that make no sense.
func (o checkOptions) check(cmd *cobra.Command, files []string) error {
	if err := checkOutput(o.output); err != nil {
		return err
	}
	given := cmd.Flags().Changed
	switch {
	case given("kubeconfig") && o.kubeconfig == "":
		return usageError("--kubeconfig is empty; name the kubeconfig file of a cluster")
	case given("against") && o.against == "":
		return usageError("--against is empty; name the policy file to compare with")
	case given("clouds-file") && o.cloudsFile == "":
		return usageError("--clouds-file is empty; name the clouds.yaml with the credentials of the policy's backends")
	case given("provisioner-name") && o.ProvisionerName == "":
		return usageError("--provisioner-name is empty; give the name under which the cluster's StorageClasses call the program")
	case o.makeVolume && !o.live:
		return usageError("--make-volume needs --live")
	case o.failOn != failOnErrors && o.failOn != failOnWarnings:
		return usageError("--fail-on must be %s or %s, not %q", failOnErrors, failOnWarnings, o.failOn)
	case len(files) > 1 && given("kubeconfig"):
		return usageError("--kubeconfig reviews one policy, but %d files are given; give one", len(files))
	}
	if err := checkStdin(append([]string{o.against}, files...)...); err != nil {
		return err
	}
	for _, flag := range []string{"against", "provisioner-name"} {
		if given(flag) && !given("kubeconfig") {
			return usageError("--%s is about the claims and volumes of a cluster and needs --kubeconfig", flag)
		}
	}
	return nil
}

func (o checkOptions) run(cmd *cobra.Command, files []string) error {
	if o.cloudsFile != "" {
		f, err := os.Open(o.cloudsFile)
		if err != nil {
			return usageError("--clouds-file: %w", err)
		}
		_ = f.Close() // Nothing was written.
	}
	var reports reportList
	var worst error
	for _, file := range files {
		r, err := o.checkFile(cmd, file)
		if err == nil || r.Review != nil || len(r.Errors)+len(r.Warnings) > 0 {
			reports = append(reports, r)
		}
		switch {
		case err == nil:
		case worst == nil || ExitCode(err) > ExitCode(worst):
			worst = err
		}
		if err != nil && len(files) > 1 && ExitCode(err) == ExitUsage {
			fmt.Fprintln(cmd.ErrOrStderr(), err)
		}
	}
	var a texter = reports
	if len(files) == 1 && len(reports) == 1 {
		a = reports[0]
	}
	if len(reports) > 0 {
		if err := answer(cmd, o.output, a); err != nil {
			return err
		}
	}
	if failed := reports.failed(o.failOn); len(files) > 1 && ExitCode(worst) == ExitFailed {
		return &ExitError{Code: ExitFailed, Err: fmt.Errorf("%d of %s did not pass", failed, count(len(files), "file"))}
	}
	return worst
}

// reportList is the answer about several files.
type reportList []report

func (l reportList) text(w *textWriter) {
	for _, r := range l {
		r.text(w)
	}
}

// failed counts the files that do not pass.
func (l reportList) failed(on string) int {
	n := 0
	for _, r := range l {
		if r.outcome(on) != nil {
			n++
		}
	}
	return n
}

// checkFile checks one policy, in every requested way.
func (o checkOptions) checkFile(cmd *cobra.Command, file string) (report, error) {
	r, p, err := check(file, cmd.InOrStdin(), o.Protocols)
	if err != nil {
		return r, &ExitError{Code: ExitUsage, Err: err}
	}
	if !r.Valid {
		return r, r.outcome(o.failOn)
	}
	if (o.cloudsFile != "" || o.live) && o.Credentials != nil {
		findings := o.Credentials(p, o.cloudsFile)
		if o.live {
			// The login reports what is wrong with credentials.
			findings = slices.DeleteFunc(findings, func(f Finding) bool { return !f.Warning })
		}
		r.add(p, findings)
	}
	if r.Valid && o.kubeconfig != "" {
		if r.Review, err = o.review(cmd, p); err != nil {
			return report{}, err
		}
	}
	if o.live {
		o.askBackends(cmd, p, &r)
	}
	return r, r.outcome(o.failOn)
}

// outcome returns the command's error for one file.
func (r report) outcome(failOn string) error {
	switch {
	case !r.Valid:
		return r.failure(ExitFailed)
	case r.Review != nil && r.Review.Failing() > 0:
		return &ExitError{Code: ExitFailed, Err: fmt.Errorf("%s leaves volumes that cannot be deleted: %s", r.Source, count(r.Review.Failing(), "finding"))}
	case failOn == failOnWarnings && len(r.Warnings) > 0:
		return &ExitError{Code: ExitFailed, Err: fmt.Errorf("%s has %s", r.Source, count(len(r.Warnings), "warning"))}
	}
	return nil
}

func newReport(source string) report {
	if source == "-" {
		source = stdinName
	}
	return report{Source: source, Errors: policy.ErrorList{}, Warnings: policy.ErrorList{}}
}

// failure returns the error of the command if the file has mistakes.
func (r report) failure(code int) error {
	return &ExitError{Code: code, Err: fmt.Errorf("%s has %s", r.Source, count(len(r.Errors), "error"))}
}

// readPolicy reads a policy, a directory of its files, or a ConfigMap with it; - is standard
// input.
func readPolicy(file string, stdin io.Reader, protocols mapping.Protocols) (*policy.Policy, error) {
	if file == "-" {
		return policy.ReadManifest(stdin, stdinName, protocols)
	}
	if info, err := os.Stat(file); err == nil && info.IsDir() {
		return policy.Load(file, protocols)
	}
	f, err := policy.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // Nothing was written.
	return policy.ReadManifest(f, file, protocols)
}

// loadPolicy reads the policy that another command works with. It reports mistakes in it
// as policy check does.
func loadPolicy(cmd *cobra.Command, file, output string, protocols mapping.Protocols) (*policy.Policy, error) {
	p, err := readPolicy(file, cmd.InOrStdin(), protocols)
	if err == nil {
		return p, nil
	}
	return nil, reportMistakes(cmd, output, file, err, ExitFailed)
}

// reportMistakes prints the mistakes in a file and returns the command's error: one with
// the code or, if the file could not be read, with ExitUsage.
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

// check reads and checks a policy, which is nil if it has mistakes. An error means that
// it could not be read.
func check(file string, stdin io.Reader, protocols mapping.Protocols) (report, *policy.Policy, error) {
	p, err := readPolicy(file, stdin, protocols)
	return checked(file, p, err)
}

// checked reports what reading a policy gave.
func checked(file string, p *policy.Policy, err error) (report, *policy.Policy, error) {
	r := newReport(file)
	if errors.As(err, &r.Errors) {
		return r, nil, nil
	}
	if err != nil {
		return r, nil, err
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
	return r, p, nil
}

func (r report) text(w *textWriter) {
	for _, e := range r.Errors {
		w.line("%s", e.Error())
	}
	for _, e := range r.Warnings {
		e.Message = "warning: " + e.Message
		w.line("%s", e.Error())
	}
	if r.Valid {
		summary := fmt.Sprintf("%s: good: %s, %s, revision %s", r.Source,
			count(len(r.Backends), "backend"), count(len(r.Tenants), "tenant"), r.Revision)
		if len(r.Warnings) > 0 {
			summary += ", " + count(len(r.Warnings), "warning")
		}
		w.line("%s", summary)
	}
	if r.Live != nil {
		r.Live.text(w)
	}
	if r.Review != nil {
		r.Review.text(w)
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
