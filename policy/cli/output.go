package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

const (
	outputText = "text"
	outputJSON = "json"
)

// outputFlag adds --output to a command.
func outputFlag(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", outputText, "`format` of the output: text or json")
	completeValues(cmd, "output", outputText, outputJSON)
}

func checkOutput(output string) error {
	if output != outputText && output != outputJSON {
		return usageError("--output must be %s or %s, not %q", outputText, outputJSON, output)
	}
	return nil
}

// texter is output with a text form for humans; its exported fields are the JSON.
type texter interface{ text(to *textWriter) }

// answer prints in the requested format. If it cannot print, the command fails.
func answer(cmd *cobra.Command, output string, a texter) error {
	var err error
	if output == outputJSON {
		err = writeJSON(cmd.OutOrStdout(), a)
	} else {
		err = writeText(cmd.OutOrStdout(), a)
	}
	if err != nil {
		return &ExitError{Code: ExitUsage, Err: fmt.Errorf("write the answer: %w", err)}
	}
	return nil
}

func writeText(to io.Writer, a texter) error {
	w := &textWriter{}
	a.text(w)
	_, err := w.WriteTo(to)
	return err
}

func writeJSON(w io.Writer, a any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(a)
}

// checkStdin rejects files of which several are standard input.
func checkStdin(files ...string) error {
	readers := 0
	for _, file := range files {
		if file == "-" {
			readers++
		}
	}
	if readers > 1 {
		return usageError("only one file can be - for standard input, not %d", readers)
	}
	return nil
}

// yamlExtensions are the extensions of files that the commands read.
var yamlExtensions = []string{"yaml", "yml", "json"}

// completeFiles offers YAML files as arguments, completeFile only one.
func completeFiles(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return yamlExtensions, cobra.ShellCompDirectiveFilterFileExt
}

func completeFile(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return yamlExtensions, cobra.ShellCompDirectiveFilterFileExt
}

// completeValues offers a flag's possible values. If they are unknown, it offers nothing,
// not even files.
func completeValues(cmd *cobra.Command, flag string, values ...cobra.Completion) {
	mustComplete(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}

// completeYAML offers YAML files as values of a flag.
func completeYAML(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		mustComplete(cmd.MarkFlagFilename(flag, yamlExtensions...))
	}
}

// mustComplete panics if a flag does not exist, a programming mistake that shows as soon
// as the command is created.
func mustComplete(err error) {
	if err != nil {
		panic("policy command: " + err.Error())
	}
}
