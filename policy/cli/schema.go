package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/policy/schema"
)

func newSchemaCommand(options Options) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors",
		Long: `Print the JSON Schema of policy files. With it, an editor completes keys, shows
what they mean, and marks most errors as you type. Editors with
yaml-language-server find it if the first line of the policy is, for example,
  # yaml-language-server: $schema=policy.schema.json
Only policy check finds what a schema cannot express, such as a backend that does
not exist.`,
		Example: "  standalone-cinder policy schema > policy.schema.json",
		Args:    NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := cmd.OutOrStdout().Write(schema.JSON(options.Protocols)); err != nil {
				return &ExitError{Code: ExitUsage, Err: fmt.Errorf("write the schema: %w", err)}
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
}
