package commands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// volumeList is the output of volume list.
type volumeList struct {
	Cluster string           `json:"cluster"`
	Volumes []imports.Listed `json:"volumes"`
}

func newVolumeListCommand(protocols mappers.Protocols) *cobra.Command {
	options := VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}
	output := outputText
	command := &cobra.Command{
		Use:   "list --policy FILE",
		Short: "List the volumes of the backends' projects, and which of them can be imported",
		Long: `List the volumes of the backends' projects: whose they are, as their stamps and the
PersistentVolumes of the cluster say, and which of them can be imported. It changes
nothing.

Exit codes: 0 listed, 1 a backend cannot be listed, 2 wrong usage, or the cluster
cannot be read.`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if output != outputText && output != outputJSON {
				return volumeUsage("--output must be text or json, not %q", output)
			}
			list, unlisted, err := options.list(command.Context())
			if err == nil {
				err = list.print(command.OutOrStdout(), output)
			}
			if err != nil {
				return &policycli.ExitError{Code: policycli.ExitUsage, Err: err}
			}
			if unlisted != nil {
				return &policycli.ExitError{Code: policycli.ExitFailed, Err: unlisted}
			}
			return nil
		},
	}
	options.addFlags(command)
	command.Flags().StringVar(&options.Backend, "backend", "", "`name` of one backend; default is all of them")
	command.Flags().StringVarP(&output, "output", "o", output, "`format` of the output: text or json")
	return command
}

const (
	outputText = "text"
	outputJSON = "json"
)

// list reads Cinder before Kubernetes, so that a volume that is recorded in between
// shows as recorded. It lists all backends concurrently.
func (o *VolumeOptions) list(ctx context.Context) (list volumeList, unlisted, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	run, err := o.open(ctx, false)
	if err != nil {
		return volumeList{}, nil, err
	}
	volumes, failed := make([][]cinder.Volume, len(run.imports)), make([]error, len(run.imports))
	var group sync.WaitGroup
	for i, backend := range run.imports {
		group.Go(func() { volumes[i], failed[i] = backend.Volumes.All(ctx) })
	}
	group.Wait()
	known, err := objects.ReadObjects(ctx, run.client)
	if err != nil {
		return volumeList{}, nil, err
	}
	list = volumeList{Cluster: run.cluster, Volumes: []imports.Listed{}}
	for i, backend := range run.imports {
		list.Volumes = append(list.Volumes, backend.List(volumes[i], known)...)
	}
	return list, errors.Join(failed...), nil
}

func (l volumeList) print(w io.Writer, output string) error {
	if output == outputJSON {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(l)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BACKEND\tID\tNAME\tGIB\tSTATUS\tTYPE\tZONE\tOWNER\tIMPORTABLE")
	for _, v := range l.Volumes {
		importable := "yes"
		if !v.Importable {
			importable = "no: " + v.Why
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", v.Backend, v.ID, statusreport.OneLine(v.Name), v.SizeGiB, v.Status,
			statusreport.OneLine(v.Type), statusreport.OneLine(v.Zone), statusreport.OneLine(v.Owner()), statusreport.OneLine(importable))
	}
	return table.Flush()
}
