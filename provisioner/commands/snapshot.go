package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// NewSnapshotCommand returns the snapshot command.
func NewSnapshotCommand(protocols mappers.Protocols) *cobra.Command {
	command := parentCommand("snapshot", "List the snapshots of the backends, and import one for a VolumeSnapshot")
	command.AddCommand(newSnapshotListCommand(protocols), newSnapshotImportCommand(protocols))
	return command
}

// snapshotList is the output of snapshot list.
type snapshotList struct {
	Cluster   string                   `json:"cluster"`
	Snapshots []imports.ListedSnapshot `json:"snapshots"`
}

func newSnapshotListCommand(protocols mappers.Protocols) *cobra.Command {
	return newListCommand(protocols, (*VolumeOptions).listSnapshots, "List the snapshots and backups of the backends' projects, and which can be imported", `List the snapshots of the backends' projects, and the backups where a rule grants any:
whose they are, as their stamps and the VolumeSnapshotContents of the cluster say,
and which of them can be imported. It changes nothing. Unlike snapshot import, it
checks neither the policy nor the snapshots' volumes.`)
}

// listSnapshots reads Cinder before Kubernetes, as list does for volumes.
func (o *VolumeOptions) listSnapshots(ctx context.Context) (list snapshotList, unlisted, err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	run, err := o.open(ctx, false)
	if err != nil {
		return snapshotList{}, nil, err
	}
	shelves := run.shelves()
	snapshots, failed := make([][]cinder.Snapshot, len(shelves)), make([]error, len(shelves))
	var group sync.WaitGroup
	for i, shelf := range shelves {
		group.Go(func() { snapshots[i], failed[i] = shelf.AllSnapshots(ctx) })
	}
	group.Wait()
	known, err := imports.ReadSnapshots(ctx, run.snapshots)
	if err != nil {
		return snapshotList{}, nil, err
	}
	list = snapshotList{Cluster: run.cluster, Snapshots: []imports.ListedSnapshot{}}
	importer := run.snapshotImporter()
	for i, shelf := range shelves {
		list.Snapshots = append(list.Snapshots, importer.ListSnapshots(shelf.backend, shelf.Snapshots, snapshots[i], known)...)
	}
	return list, errors.Join(failed...), nil
}

// shelf is what a backend has of snapshots, or of backups.
type shelf struct {
	backend string
	backends.Snapshots
}

// shelves returns the snapshots of every backend that was opened, and the backups of those
// on which the policy grants any: others may have no backup service.
func (r *volumeRun) shelves() (all []shelf) {
	for i, opened := range r.imports {
		name, snapshots := opened.Backend.Name, r.lifecycles[i].Snapshots()
		all = append(all, shelf{name, snapshots})
		if policy.GrantsBackups(r.policy, name) {
			all = append(all, shelf{name, snapshots.Backups()})
		}
	}
	return all
}

func (l snapshotList) print(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BACKEND\tID\tNAME\tGIB\tSTATUS\tVOLUME\tOWNER\tIMPORTABLE")
	for _, s := range l.Snapshots {
		row(table, s.Backend, s.ID, s.Name, fmt.Sprint(s.SizeGiB), string(s.Status), s.Volume, s.Owner(), importable(s.Importable, s.Why))
	}
	return table.Flush()
}

// snapshotImporter checks imports with the backends that were opened. Snapshots on
// other backends do not exist for the command.
func (r *volumeRun) snapshotImporter() *imports.SnapshotImporter {
	return &imports.SnapshotImporter{
		Client: r.client, SnapshotClient: r.snapshots, Policy: r.policy, Cluster: r.cluster, ClusterUID: r.clusterUID,
		Snapshots: func(backend, id string) (imports.Snapshots, error) {
			for i, opened := range r.imports {
				if opened.Backend.Name == backend {
					return snapshotsWith(r.lifecycles[i], id), nil
				}
			}
			return nil, nil
		},
	}
}

// snapshotsWith returns those of a backend's snapshots or backups that an ID is one of.
func snapshotsWith(lifecycle *backends.Lifecycle, id string) backends.Snapshots {
	if backends.IsBackup(id) {
		return lifecycle.Snapshots().Backups()
	}
	return lifecycle.Snapshots()
}

// snapshotImportFlags are the flags of snapshot import.
type snapshotImportFlags struct {
	VolumeOptions
	wish       imports.SnapshotWish
	deletion   string
	volumeMode string
	apply      bool
}

func newSnapshotImportCommand(protocols mappers.Protocols) *cobra.Command {
	flags := snapshotImportFlags{VolumeOptions: VolumeOptions{Protocols: protocols, SecretNamespace: defaultMapNamespace}}
	command := &cobra.Command{
		Use:   "import --policy FILE --backend NAME --snapshot ID --namespace NS --volume-snapshot NAME",
		Short: "Make the VolumeSnapshot of a snapshot that exists at Cinder",
		Long: `Make the VolumeSnapshot of a snapshot that exists at Cinder, and its
VolumeSnapshotContent. The cluster's snapshot-controller binds them, and the running
program stamps the snapshot. If the command is interrupted, run it again.

Without --apply, it checks everything that can be checked without a change, and
prints the objects and the steps.

It refuses a snapshot that is not available, that another object needs, or that the
policy does not grant: the rule of the StorageClass must have import, unless the
tenant of the namespace kept the snapshot. The command never forces anything.

Exit codes: 0 the objects exist, or can be created, 1 refused or failed, 2 wrong
usage, or the cluster cannot be read.`,
		Example: `  standalone-cinder snapshot import --policy policy.yaml --backend gold --snapshot 0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a11 --namespace team-a --volume-snapshot nightly --storage-class fast
  standalone-cinder snapshot import --policy policy.yaml --backend gold --snapshot old-data --namespace team-a --volume-snapshot nightly --storage-class fast --apply`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := flags.read(command); err != nil {
				return err
			}
			return flags.run(command.Context(), command.OutOrStdout())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.Backend, "backend", "", "`name` of the snapshot's backend (required)")
	set.StringVar(&flags.wish.Snapshot, "snapshot", "", "`ID` of the snapshot, or its name if no other has it; a backup's ID begins with backup: (required)")
	set.StringVarP(&flags.wish.Namespace, "namespace", "n", "", "`namespace` of the VolumeSnapshot (required)")
	set.StringVar(&flags.wish.Name, "volume-snapshot", "", "`name` of the VolumeSnapshot (required)")
	set.StringVar(&flags.wish.StorageClass, "storage-class", "", "`name` of the StorageClass whose rule must grant the snapshot; default is that of a snapshot that was kept")
	set.StringVar(&flags.deletion, "deletion-policy", string(snapshotv1.VolumeSnapshotContentRetain), "deletion `policy` of the VolumeSnapshotContent: Retain or Delete")
	set.StringVar(&flags.volumeMode, "volume-mode", string(corev1.PersistentVolumeFilesystem), "volume `mode` of the snapshot's volume: Filesystem or Block")
	set.BoolVar(&flags.apply, "apply", false, "create the objects; without it, the command only checks")
	return command
}

// read checks the flags.
func (f *snapshotImportFlags) read(command *cobra.Command) error {
	if err := required(command, "policy", "backend", "snapshot", "namespace", "volume-snapshot"); err != nil {
		return err
	}
	f.wish.Driver = f.ProvisionerName
	f.wish.DeletionPolicy = snapshotv1.DeletionPolicy(f.deletion)
	if f.wish.DeletionPolicy != snapshotv1.VolumeSnapshotContentRetain && f.wish.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return volumeUsage("--deletion-policy must be Retain or Delete, not %q", f.deletion)
	}
	f.wish.VolumeMode = corev1.PersistentVolumeMode(f.volumeMode)
	return checkVolumeMode(f.wish.VolumeMode)
}

func (f *snapshotImportFlags) run(ctx context.Context, stdout io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, false) // only the running program changes anything at Cinder
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	importer := opened.snapshotImporter()
	var objects *imports.SnapshotObjects
	all, err := snapshotsWith(opened.lifecycles[0], f.wish.Snapshot).AllSnapshots(ctx)
	if err == nil {
		objects, err = importer.PlanObjects(ctx, all, f.wish)
	}
	if err == nil && f.apply {
		err = importer.ApplyObjects(ctx, objects)
	}
	var refusal *imports.RefusedError
	if errors.As(err, &refusal) && refusal.Why != "" {
		err = fmt.Errorf("%w (%s)", err, refusal.Why)
	}
	if err != nil {
		return policycli.Exit(policycli.ExitFailed, fmt.Errorf("snapshot %s is not imported: %s", f.wish.Snapshot, statusreport.OneLine(err.Error())))
	}
	return policycli.Exit(policycli.ExitUsage, f.report(stdout, objects))
}

// report prints the objects and, as comments, what was or would be done.
func (f *snapshotImportFlags) report(w io.Writer, objects *imports.SnapshotObjects) error {
	name := f.wish.Namespace + "/" + f.wish.Name
	lines := []string{fmt.Sprintf("VolumeSnapshot %s and VolumeSnapshotContent %s exist; the running program imports the snapshot", name, objects.Content.Name)}
	switch {
	case len(objects.Steps) == 0:
		lines[0] += "; nothing to do"
	case !f.apply:
		lines = wouldDo(objects.Steps)
	}
	content, snapshot := objects.Content.DeepCopy(), objects.Snapshot.DeepCopy()
	content.ManagedFields, snapshot.ManagedFields = nil, nil
	var documents []string
	for _, object := range []any{content, snapshot} {
		document, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("write the objects of VolumeSnapshot %s: %w", name, err)
		}
		documents = append(documents, string(document))
	}
	_, err := fmt.Fprintf(w, "# %s\n%s", strings.Join(lines, "\n# "), strings.Join(documents, "---\n"))
	return err
}
