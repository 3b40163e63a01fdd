package client

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// NewVersionCommand returns the command that describes a build.
func NewVersionCommand(build wiring.Build) *cobra.Command {
	const text, asJSON = "text", "json"
	output := text
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the version of Go and the platform",
		Args:  policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) (err error) {
			switch output {
			case text:
				_, err = fmt.Fprintf(command.OutOrStdout(), "standalone-cinder %s (commit %s, %s, %s)\n", build.Version, build.Commit, build.GoVersion, build.Platform)
			case asJSON:
				encoder := json.NewEncoder(command.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(build)
			default:
				err = policycli.Exit(policycli.ExitUsage, fmt.Errorf("--output must be %s or %s, not %q", text, asJSON, output))
			}
			return err
		},
	}
	command.Flags().StringVarP(&output, "output", "o", output, "`format` of the output: text or json")
	return command
}
