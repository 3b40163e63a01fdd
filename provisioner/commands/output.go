package commands

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

const (
	outputText = "text"
	outputJSON = "json"
)

// answer finds something, and prints it as text or JSON. Not to find it is wrong usage;
// failed is what else was wrong.
func answer[T interface{ print(w io.Writer) error }](command *cobra.Command, output string, find func(context.Context) (found T, failed, err error)) error {
	if output != outputText && output != outputJSON {
		return volumeUsage("--output must be text or json, not %q", output)
	}
	found, failed, err := find(command.Context())
	switch {
	case err != nil:
	case output == outputJSON:
		err = printJSON(command.OutOrStdout(), found)
	default:
		err = found.print(command.OutOrStdout())
	}
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	return policycli.Exit(policycli.ExitFailed, failed)
}

func printJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// row writes a row of a table. Others may have written what is in its cells.
func row(table io.Writer, cells ...string) {
	for i, cell := range cells {
		cells[i] = statusreport.OneLine(cell)
	}
	fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

// importable says in a list whether something can be imported, or why not.
func importable(can bool, why string) string {
	if can {
		return "yes"
	}
	return "no: " + why
}

// warn prints warnings.
func warn(stderr io.Writer, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintln(stderr, "warning: "+statusreport.OneLine(warning))
	}
}

// wouldDo lists what a command without --apply has left out.
func wouldDo(steps []string) []string {
	lines := []string{"nothing was changed; with --apply, the command would"}
	for n, step := range steps {
		lines = append(lines, fmt.Sprintf("%d. %s", n+1, statusreport.OneLine(step)))
	}
	return lines
}
