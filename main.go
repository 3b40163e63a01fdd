// Standalone-cinder provisions OpenStack Cinder volumes for Kubernetes
// clusters that do not run on OpenStack.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/client"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/nodecheck"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/nodecopy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/nodegrow"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/plugin"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring/traces"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/tracing"
)

func main() {
	os.Exit(run(os.Args[0], os.Args[1:], os.Stdout, os.Stderr))
}

// The linker sets these in a release (build/release), with -X. Nothing else
// writes them.
var version, commit string

// run is the whole program except for the exit. Under the name kubectl-cinder it is the
// kubectl plugin.
func run(name string, arguments []string, stdout, stderr io.Writer) int {
	root := newCommand(stderr)
	if strings.TrimSuffix(filepath.Base(name), ".exe") == "kubectl-cinder" {
		root = client.NewPlugin(mappers.BuiltIn(), wiring.ThisBuild(version, commit))
	}
	return client.Execute(root, arguments, stdout, stderr)
}

// newCommand returns the program's root command; its subcommands log to the
// writer.
func newCommand(log io.Writer) *cobra.Command {
	build := wiring.ThisBuild(version, commit)
	showVersion := false
	root := &cobra.Command{
		Use:           "standalone-cinder",
		Short:         "Provision Cinder volumes for Kubernetes clusters that do not run on OpenStack",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if showVersion {
				_, err := fmt.Fprintln(command.OutOrStdout(), build.Version)
				return err
			}
			return command.Help()
		},
	}
	root.Flags().BoolVar(&showVersion, "version", false, "print the version")
	protocols := mappers.BuiltIn()
	root.AddCommand(runCommand(log, protocols, build), nodeCommand(log, build), client.NewVersionCommand(build))
	root.AddCommand(client.Commands(protocols)...)
	return root
}

func runCommand(log io.Writer, protocols mappers.Protocols, build wiring.Build) *cobra.Command {
	options := app.Options{Protocols: protocols, Build: build}
	verbosity, memoryLimit, logFormat, traceEndpoint := 0, "", "", ""
	command := &cobra.Command{
		Use:   "run --policy FILE",
		Short: "Run the provisioner",
		Long: `Run the provisioner. It serves the claims of StorageClasses whose provisioner is
--provisioner-name, as the policy allows. Several replicas may run: one holds the
Lease and leads; the others follow.

The program rereads the policy, the credentials and the file of --web-config-file
when they change. Everything else needs a restart.

Exit codes: 0 stopped by SIGTERM or SIGINT; 1 failed, for example because the policy
has errors and no last good one is kept; 2 wrong usage.`,
		Example: `  standalone-cinder run --policy policy.yaml --clouds-file clouds.yaml
  standalone-cinder run --policy policy.yaml --kubeconfig ~/.kube/config --namespace standalone-cinder --log-format text`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			err := errors.Join(options.Validate(), wiring.KeepMemoryBelow(memoryLimit, os.Getenv))
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			if options.Logger, err = wiring.NewLogger(log, logFormat, verbosity); err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			sender, err := traces.New(command.Context(), traces.Options{
				Endpoint: traceEndpoint, Version: build.Version, IDs: tracing.IDs{}, Logger: options.Logger,
			})
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			defer sender.Close()
			options.Traces = sender.Provider
			registry := newRegistry()
			options.Metrics = registry
			// Client-go has hooks for the whole process, so only the program sets them.
			wiring.NewClientMetrics(registry).MeasureProcess()
			replica, err := app.New(options)
			if err == nil {
				err = replica.Run(command.Context())
			}
			return policycli.Exit(policycli.ExitFailed, err)
		},
	}
	options.AddFlags(command.Flags())
	command.Flags().StringVar(&memoryLimit, "memory-limit", "", "memory limit of the container as a `quantity`, such as 512Mi; the heap stays below half of it")
	command.Flags().IntVarP(&verbosity, "verbosity", "v", 0, "log `level`: 0 is the least verbose; at 2 and above libraries log, too, and at 4 and above in detail")
	command.Flags().StringVar(&logFormat, "log-format", wiring.LogJSON, "`format` of log lines: json or text")
	command.Flags().StringVar(&traceEndpoint, "trace-endpoint", "", "`URL` of an OTLP collector that gets a trace of each claim over HTTP, for example http://collector.monitoring:4318; empty turns traces off")
	return command
}

func nodeCommand(log io.Writer, build wiring.Build) *cobra.Command {
	options := plugin.Options{Version: build.Version, Registry: newRegistry()}
	verbosity, logFormat := 0, ""
	command := &cobra.Command{
		Use:   "node",
		Short: "Run the CSI node plugin",
		Long: `Run the CSI node plugin, which brings volumes of mode csi to the node that it runs
on. It runs once on each node, as root, in the node's network namespace, and registers
itself with the kubelet. It reports to the leader which volumes it has staged, in the
Lease staged-volumes.NODE, and freezes their filesystems for the leader, which orders that
in the Lease frozen-volumes.NODE. It needs no access to Cinder or to Secrets.

It uses the node's own programs (iscsiadm, mount, mkfs and others), with --host-root as
their root directory, and keeps a state file for each staged volume in --state-dir. It may
be killed and started again at any time.

Exit codes: 0 stopped by SIGTERM or SIGINT; 1 failed; 2 wrong usage.`,
		Example: `  standalone-cinder node --host-root /host --node-name worker-1`,
		Args:    policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			err := options.Complete(os.Getenv)
			if err == nil {
				options.Logger, err = wiring.NewLogger(log, logFormat, verbosity)
			}
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			return policycli.Exit(policycli.ExitFailed, plugin.Run(command.Context(), options))
		},
	}
	options.AddFlags(command.Flags())
	command.Flags().IntVarP(&verbosity, "verbosity", "v", 0, "log `level`: 0 is the least verbose; at 4 and above the plugin logs every call")
	command.Flags().StringVar(&logFormat, "log-format", wiring.LogJSON, "`format` of log lines: json or text")
	command.AddCommand(nodeCheckCommand(), nodeGrowCommand(log), nodeCopyCommand(log), nodeGuardCommand())
	return command
}

// nodeGuardCommand is started by the node plugin, and by nobody else.
func nodeGuardCommand() *cobra.Command {
	return &cobra.Command{
		Use: plugin.GuardCommand, Short: "Keep filesystems frozen for the node plugin", Hidden: true, DisableFlagParsing: true,
		RunE: func(command *cobra.Command, arguments []string) error {
			return policycli.Exit(policycli.ExitUsage, plugin.Guard(arguments, command.InOrStdin(), os.Stdout))
		},
	}
}

func nodeCheckCommand() *cobra.Command {
	const table, asJSON = "table", "json"
	options, output := nodecheck.Options{AsRoot: os.Geteuid() == 0}, table
	command := &cobra.Command{
		Use:   "check",
		Short: "Tell what this machine lacks to attach volumes",
		Long: `Tell what this machine lacks to attach volumes, before a pod needs one: programs,
daemons, kernel modules, names that storage knows it by, settings of multipathd and
LVM, and portals that do not answer. For what it lacks, it shows a command.

It runs as root on the node, or in a container in the node's network namespace with
the node's root directory at --host-root. It only reads: it runs no program, and changes
nothing.

A warning is about what harms only some volumes, or could not be checked.

Exit codes: 0 no errors; 1 errors; 2 wrong usage, or no node at --host-root.`,
		Example: `  standalone-cinder node check --portal 192.0.2.1:3260
  standalone-cinder node check --mode csi --protocol iscsi,multipath --host-root /host --output json`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			err := options.Complete(os.Getenv)
			if output != table && output != asJSON {
				err = errors.Join(err, fmt.Errorf("--output must be %s or %s, not %q", table, asJSON, output))
			}
			var report nodecheck.Report
			if err == nil {
				report, err = nodecheck.Run(command.Context(), options)
			}
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			if output == asJSON {
				encoder := json.NewEncoder(command.OutOrStdout())
				encoder.SetEscapeHTML(false)
				encoder.SetIndent("", "  ")
				err = encoder.Encode(report)
			} else {
				err = report.WriteTable(command.OutOrStdout())
			}
			if failed := report.Errors(); err == nil && failed > 0 {
				err = fmt.Errorf("%d of %d checks failed", failed, len(report.Checks))
			}
			return policycli.Exit(policycli.ExitFailed, err)
		},
	}
	options.AddFlags(command.Flags())
	command.Flags().StringVarP(&output, "output", "o", output, "`format` of the output: table or json")
	return command
}

func nodeGrowCommand(log io.Writer) *cobra.Command {
	var options nodegrow.Options
	command := &cobra.Command{
		Use:   "grow --persistent-volume NAME --bytes N --disk TARGET/LUN --pod UID",
		Short: "Grow the filesystem of a native volume that is mounted on this machine",
		Long: `Grow the filesystem of a native iSCSI or Fibre Channel volume that the kubelet has mounted
on this machine, as kubectl cinder grow asks for: in a privileged container in the node's
network namespace, with the node's root directory at --host-root.

It takes the device that the node's mount table shows for --pod, and refuses it unless each
of its paths is one of --disk. It makes the node see the new size of all paths and of the
multipath map, and grows ext4, ext3 or xfs with the node's programs. It never formats, and
may be repeated. It prints the result as JSON.

Exit codes: 0 the filesystem has the size of its device; 1 refused, or failed; 2 wrong
usage.`,
		Example: `  standalone-cinder node grow --persistent-volume pvc-0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a11 --bytes 21474836480 --disk iqn.2026-01.com.example:vol-1/1 --pod 5d0ce1b4-0e0f-4f4d-8f5e-7c1d7a0e2f11`,
		Args:    policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			err := options.Complete()
			if err == nil {
				options.Logger, err = wiring.NewLogger(log, wiring.LogJSON, 0)
			}
			if err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			grown, err := nodegrow.Run(command.Context(), options)
			if err == nil {
				err = json.NewEncoder(command.OutOrStdout()).Encode(grown)
			}
			return policycli.Exit(policycli.ExitFailed, err)
		},
	}
	options.AddFlags(command.Flags())
	return command
}

func nodeCopyCommand(log io.Writer) *cobra.Command {
	options := nodecopy.Options{Log: log}
	command := &cobra.Command{
		Use:   "copy",
		Short: "Copy what is in one volume to another, in a pod that has both",
		Long: `Copy what is in one volume to another, and compare the two, as volume move asks for: in a
pod that has both, of which nobody else uses either.

Two directories are copied with owners, modes, times, hard links, holes, access control
lists and extended attributes (but those of security.selinux and trusted), two block
devices as they are. Everything in the target is removed first, so the command may be
repeated. The source is only read. It prints the result as JSON.

Exit codes: 0 the target has what the source has; 1 it may not; 2 wrong usage.`,
		Example: `  standalone-cinder node copy --from /from --to /to`,
		Args:    policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.Complete(); err != nil {
				return policycli.Exit(policycli.ExitUsage, err)
			}
			copied, err := nodecopy.Run(command.Context(), options)
			if err == nil {
				err = json.NewEncoder(command.OutOrStdout()).Encode(copied)
			}
			return policycli.Exit(policycli.ExitFailed, err)
		},
	}
	options.AddFlags(command.Flags())
	return command
}

// newRegistry returns a registry with the metrics of the process itself.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}
