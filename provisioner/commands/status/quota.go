package status

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// quotaAnswer is the output of quota.
type quotaAnswer struct {
	Namespace string `json:"namespace"`
	// Tenant is nil if the namespace belongs to no tenant.
	Tenant *statusreport.Tenant `json:"tenant,omitempty"`
	// Message says why there is no tenant, or what is not known.
	Message string `json:"message,omitempty"`
}

func newQuotaCommand() *cobra.Command {
	options := connection{}
	output := output{}
	asked := ""
	c := newCommand(&cobra.Command{
		Use:   "quota NAMESPACE",
		Short: "Show the quotas of a namespace's tenant, and their use",
		Long: `Show a namespace's tenant, the limits of its quotas and rules, and what is used of
them.

Exit codes: 0 the tenant is shown; 1 the namespace belongs to no tenant; 2 wrong
usage, or the program cannot be asked.`,
		Example: "  kubectl cinder quota team-a",
		Args: func(c *cobra.Command, args []string) error {
			if (len(args) == 1) == (asked != "") || len(args) > 1 {
				return usageError("%s needs one NAMESPACE (see %s --help)", c.CommandPath(), c.CommandPath())
			}
			asked += strings.Join(args, "")
			if i := strings.LastIndex(asked, "/"); i >= 0 {
				return usageError("%q is not the name of a namespace; give the name alone: %s %s", asked, c.CommandPath(), asked[i+1:])
			}
			return nil
		},
	})
	c.RunE = func(c *cobra.Command, _ []string) error {
		return output.print(c, func() (reply, error) {
			report, err := options.report(c.Context(), selection{namespace: asked})
			if err != nil {
				return reply{}, err
			}
			quota := quotaOf(report, asked)
			answer := reply{value: quota, text: quota.write}
			if quota.Tenant == nil {
				answer.verdict = failed("namespace %s has no tenant", asked)
			}
			return answer, nil
		})
	}
	c.Flags().StringVarP(&asked, "namespace", "n", "", "`namespace`, instead of NAMESPACE")
	options.addFlags(c, "provisioner-namespace", "")
	output.addFlags(c, outputTable)
	return c
}

func quotaOf(report *statusreport.Report, namespace string) quotaAnswer {
	answer := quotaAnswer{Namespace: namespace, Message: report.LeaderOnly}
	if len(report.Tenants) > 0 {
		answer.Tenant = &report.Tenants[0]
	} else if report.Selection != nil {
		answer.Message = report.Selection.Message
	}
	return answer
}

func (a quotaAnswer) write(w io.Writer) error {
	if a.Message != "" {
		if _, err := fmt.Fprintln(w, statusreport.OneLine(a.Message)); err != nil {
			return err
		}
	}
	if a.Tenant == nil {
		return nil
	}
	return a.Tenant.WriteTable(w)
}
