// Package status contains the commands that read the status of a running program: status,
// and the kubectl plugin.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// DefaultNamespace is where deploy/ installs the program.
const DefaultNamespace = "standalone-cinder"

func usageError(format string, args ...any) error {
	return exitError(policycli.ExitUsage, fmt.Errorf(format, args...))
}

func failed(format string, args ...any) error {
	return exitError(policycli.ExitFailed, fmt.Errorf(format, args...))
}

// exitError makes an error for the terminal. It may quote text that others wrote.
func exitError(code int, err error) error {
	return policycli.Exit(code, errors.New(statusreport.OneLine(err.Error())))
}

// newCommand makes a command whose errors the caller prints.
func newCommand(c *cobra.Command) *cobra.Command {
	c.SilenceUsage, c.SilenceErrors = true, true
	return c
}

// NewStatusCommand returns the status command.
func NewStatusCommand() *cobra.Command {
	options := connection{}
	output := output{}
	c := newCommand(&cobra.Command{
		Use:   "status",
		Short: "Show the state of the running program: leader, policy, backends, quotas, claims",
		Long: `Show the state of the running program: its leader, the policy in force, whether
the backends answer, what tenants use of their quotas, and which claims and
deletions wait, and why.

The command asks the leader, which it finds by its Lease, through the API server's
proxy to pods. It needs the rights to get Leases and to get pods/proxy in the
program's namespace, and nothing else. --pod asks another replica, which knows
less than the leader; --url asks an address directly, without Kubernetes.

Replicas with TLS need no other flags; the API server does not verify their
certificates. If --web-config-file also requires a login or a client certificate,
the proxy cannot pass it on: forward the port, and give both in --http-config-file.

Exit codes: 0 the report is printed; 1 the report is printed, and says what needs
an operator (no leader, a refused policy, credentials that cannot be read or are rejected,
a backend that does not answer); 2 wrong usage, or there is no report.`,
		Example: `  standalone-cinder status
  standalone-cinder status --output json | jq '.backends[] | select(.state != "answers")'
  standalone-cinder status --url http://127.0.0.1:8080
  standalone-cinder status --url https://127.0.0.1:8080 --http-config-file http-config.yaml`,
		Args: policycli.NoArguments,
	})
	c.RunE = func(c *cobra.Command, _ []string) error {
		return output.print(c, func() (reply, error) {
			report, err := options.report(c.Context(), selection{})
			if err != nil {
				return reply{}, err
			}
			answer := reply{value: report, text: report.WriteTable}
			if troubles := report.Troubles(); len(troubles) > 0 {
				answer.verdict = failed("%s", strings.Join(troubles, "; "))
			}
			return answer, nil
		})
	}
	options.addFlags(c, "namespace", "n")
	output.addFlags(c, outputTable)
	return c
}

// NewPlugin returns the root of the plugin, which kubectl runs as kubectl-cinder, with the
// commands that only the plugin has.
func NewPlugin() *cobra.Command {
	root := newCommand(&cobra.Command{
		Use:         "kubectl-cinder",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl cinder"},
		Short:       "Ask the Cinder provisioner about claims and quotas, and manage its policy and volumes",
	})
	root.Args = policycli.NoArguments
	root.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	root.AddCommand(newWhyCommand(), newQuotaCommand())
	return root
}

// selection is what a command asks about.
type selection struct{ namespace, claim string }

func (s selection) parameters() map[string]string {
	parameters := map[string]string{}
	if s.namespace != "" {
		parameters["namespace"] = s.namespace
	}
	if s.claim != "" {
		parameters["claim"] = s.claim
	}
	return parameters
}

// parseReport reads a report of this version.
func parseReport(data []byte, from string) (*statusreport.Report, error) {
	report := &statusreport.Report{}
	if err := json.Unmarshal(data, report); err != nil {
		return nil, fmt.Errorf("%s did not send a status report: %w", from, err)
	}
	if report.Kind != statusreport.Kind || report.APIVersion != statusreport.APIVersion {
		return nil, fmt.Errorf("%s sent a document of kind %q and version %q; this command reads kind %s of version %s", from, report.Kind, report.APIVersion, statusreport.Kind, statusreport.APIVersion)
	}
	return report, nil
}

// report gets the report of the replica that the flags name, or of the leader.
func (o *connection) report(ctx context.Context, s selection) (*statusreport.Report, error) {
	data, from, err := o.fetch(ctx, s.parameters())
	if err == nil {
		var report *statusreport.Report
		if report, err = parseReport(data, from); err == nil {
			return report, nil
		}
	}
	if apierrors.IsForbidden(err) && s.namespace != "" {
		err = fmt.Errorf("%w; kubectl get tst -n %s shows the namespace's own tenant, where the component tenant-status is installed", err, s.namespace)
	}
	return nil, usageError("%w", err)
}
