// Package client joins the commands that people run beside the program, for the program
// itself and for the smaller kubectl-cinder.
package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/apply"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/native"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/status"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// Commands returns the commands that need neither a node nor the program's rights.
func Commands(protocols mappers.Protocols) []*cobra.Command {
	described := protocols.Describe()
	return []*cobra.Command{
		policycli.NewCommand(policycli.Options{
			ReadCluster: commands.ReadExisting, ReadCSI: commands.ReadCSI, Places: commands.Places, Credentials: commands.CheckCredentials,
			Live: commands.NewLiveCheck(protocols).Check, Connect: apply.Connect, Protocols: described, ProvisionerName: wiring.DefaultProvisionerName,
		}),
		commands.NewAuditCommand(protocols),
		commands.NewMapCommand(protocols),
		commands.NewVolumeCommand(protocols),
		commands.NewSnapshotCommand(protocols),
		status.NewStatusCommand(),
	}
}

// NewPlugin returns the root command of the kubectl plugin.
func NewPlugin(protocols mappers.Protocols, build wiring.Build) *cobra.Command {
	root := status.NewPlugin()
	root.AddCommand(Commands(protocols)...)
	root.AddCommand(append(native.NewCommands(), NewVersionCommand(build))...)
	nameInExamples(root, root.Annotations[cobra.CommandDisplayNameAnnotation])
	return root
}

// nameInExamples lets the examples of a command and of those below it begin with this name.
func nameInExamples(command *cobra.Command, name string) {
	command.Example = strings.ReplaceAll(command.Example, "  standalone-cinder ", "  "+name+" ")
	for _, below := range command.Commands() {
		nameInExamples(below, name)
	}
}

// Execute runs a command until it ends or the process is told to stop. It returns 0 on
// success, 1 if the command failed or a check did not pass, 2 on wrong usage.
func Execute(root *cobra.Command, arguments []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root.SetFlagErrorFunc(policycli.FlagError)
	root.SetArgs(arguments)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		// An error about a command already begins with its name.
		program, text := root.DisplayName(), err.Error()
		if !strings.HasPrefix(text, program+" ") {
			text = program + ": " + text
		}
		fmt.Fprintln(stderr, text)
	}
	return policycli.ExitCode(err)
}
