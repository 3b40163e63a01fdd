package commands

import (
	"context"
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
)

// volumeList is the output of volume list.
type volumeList struct {
	Cluster string           `json:"cluster"`
	Volumes []imports.Listed `json:"volumes"`
}

func newVolumeListCommand(protocols mappers.Protocols) *cobra.Command {
	return newListCommand(protocols, (*VolumeOptions).list, "List the volumes of the backends' projects, and which of them can be imported", `List the volumes of the backends' projects: whose they are, as their stamps and the
PersistentVolumes of the cluster say, and which of them can be imported. It changes
nothing.`)
}

// newListCommand returns a command that lists what the backends have.
func newListCommand[T interface{ print(w io.Writer) error }](protocols mappers.Protocols, list func(o *VolumeOptions, ctx context.Context) (found T, unlisted, err error), short, long string) *cobra.Command {
	options := VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}
	output := outputText
	command := &cobra.Command{
		Use:   "list --policy FILE",
		Short: short,
		Long: long + `

Exit codes: 0 listed, 1 a backend cannot be listed, 2 wrong usage, or the cluster
cannot be read.`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return answer(command, output, func(ctx context.Context) (T, error, error) { return list(&options, ctx) })
		},
	}
	options.addFlags(command)
	command.Flags().StringVar(&options.Backend, "backend", "", "`name` of one backend; default is all of them")
	command.Flags().StringVarP(&output, "output", "o", output, "`format` of the output: text or json")
	return command
}

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

func (l volumeList) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BACKEND\tID\tNAME\tGIB\tSTATUS\tTYPE\tZONE\tOWNER\tIMPORTABLE")
	for _, v := range l.Volumes {
		row(table, v.Backend, v.ID, v.Name, fmt.Sprint(v.SizeGiB), string(v.Status), v.Type, v.Zone, v.Owner(), importable(v.Importable, v.Why))
	}
	return table.Flush()
}
