// Package native contains the commands for native volumes that need the node where a volume
// is mounted: they have a short-lived pod do there what only a node can do.
package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

const (
	// defaultPods is where deploy/ has the template of the pods.
	defaultPods = "standalone-cinder-grow"
	// defaultTimeout is longer than the pods may run.
	defaultTimeout = 20 * time.Minute
	askTimeout     = 30 * time.Second
	pause          = time.Second
)

// NewCommands returns the commands of the kubectl plugin.
func NewCommands() []*cobra.Command { return []*cobra.Command{newGrowCommand(), newToCSICommand()} }

func newGrowCommand() *cobra.Command {
	command, _ := newCommand((*runner).grow)
	command.Use = "grow CLAIM"
	command.Short = "Grow the filesystem of a native iSCSI or Fibre Channel volume on its node"
	command.Long = `Grow the filesystem of a claim in mode native, after Cinder has extended its volume: the
kubelet does not. A pod must use the claim.

The command needs the component node-grow (Helm: nodeGrow.enabled) and the rights of its
roles. It starts a privileged pod on the node, which makes the node see
the new size on every path, proves that the device is the volume, and grows ext4, ext3 or
xfs with the node's own programs. Then the command confirms the size on the claim, and
waits until the claim shows it. It deletes the pod; one that stays because the
connection broke ends by itself after 15 minutes. If it is interrupted, run it again.

Exit codes: 0 the claim has the size; 1 refused, or failed; 2 wrong usage, or no
connection to the cluster.`
	command.Example = "  kubectl cinder grow data -n team-a"
	return command
}

// newCommand returns a command that does something with one claim.
func newCommand(do func(r *runner, ctx context.Context, namespace, claim string) error) (*cobra.Command, *runner) {
	kubeconfig, overrides, r := "", clientcmd.ConfigOverrides{}, &runner{Runner: podrun.Runner{Pause: pause}}
	command := &cobra.Command{
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("%s needs the name of one claim (see %s --help)", c.CommandPath(), c.CommandPath())
			}
			if strings.Contains(args[0], "/") {
				return usage("%q is not the name of a claim; give the name alone, and its namespace with -n", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if r.timeout <= 0 {
				return usage("--timeout must be positive")
			}
			config, err := wiring.ConnectAsKubectl(kubeconfig, &overrides)
			if err != nil {
				return usage("%w", err)
			}
			config.Timeout = cmp.Or(config.Timeout, askTimeout)
			namespace, _, err := wiring.KubectlConfig(kubeconfig, &overrides).Namespace()
			if err == nil {
				r.Client, err = kubernetes.NewForConfig(config)
			}
			if err != nil {
				return usage("kubernetes client: %w", err)
			}
			r.Say = func(text string) { fmt.Fprintln(c.OutOrStdout(), statusreport.OneLine(text)) }
			err = do(r, c.Context(), namespace, args[0])
			if errors.Is(err, errNoCluster) {
				return usage("%w", err)
			}
			if err != nil {
				return exit(policycli.ExitFailed, fmt.Errorf("claim %s/%s: %w", namespace, args[0], err))
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file`; default is $KUBECONFIG, else ~/.kube/config, else the pod's service account")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	// An API server takes no password.
	names.AuthOverrideFlags.Username.LongName, names.AuthOverrideFlags.Password.LongName = "", ""
	names.ContextOverrideFlags.Namespace.LongName = ""
	clientcmd.BindOverrideFlags(&overrides, flags, names)
	flags.StringVarP(&overrides.Context.Namespace, "namespace", "n", "", "`namespace` of the claim; default is that of the kubeconfig's context")
	flags.StringVar(&r.Namespace, "pod-namespace", defaultPods, "`namespace` of the component node-grow")
	flags.DurationVar(&r.timeout, "timeout", defaultTimeout, "`time` after which the command no longer waits")
	return command, r
}

func usage(format string, args ...any) error {
	return exit(policycli.ExitUsage, fmt.Errorf(format, args...))
}

// exit makes an error for the terminal. It may quote what a node or a tenant wrote.
func exit(code int, err error) error {
	return policycli.Exit(code, errors.New(statusreport.OneLine(err.Error())))
}
