package commands

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// importFlags are the flags of volume import.
type importFlags struct {
	VolumeOptions
	request     imports.Request
	size        string
	accessModes []string
	volumeMode  string
	reclaim     string
	filesystems []string
	apply       bool
	// fromPVs names a file with PersistentVolumes of other drivers; classes are the
	// StorageClasses for the claims of theirs. override means that the access modes are
	// those of the flag, not theirs.
	fromPVs  string
	classes  map[string]string
	override bool
}

func newVolumeImportCommand(protocols mappers.Protocols) *cobra.Command {
	flags := importFlags{VolumeOptions: VolumeOptions{Protocols: protocols}}
	command := &cobra.Command{
		Use:   "import --policy FILE --backend NAME --volume ID --namespace NS --claim NAME --storage-class CLASS",
		Short: "Give a volume that exists at Cinder to a claim",
		Long: `Give a volume that exists at Cinder to a claim. The command creates the claim,
stamps the volume, connects it as the running program does, writes the Secret if the
connection has credentials, and creates the PersistentVolume. The running program
takes the last step. If the command is interrupted, run it again.

If the rule makes volumes in mode csi, the volume is not connected: it stays available,
and the CSI driver attaches it to each node that uses it. The driver never formats an
imported volume. It mounts a filesystem only if its UUID is the volume's ID, as for
a volume made in mode csi, or is recorded on the volume, or is given with
--filesystem-uuid.

Without --apply, it checks everything that can be checked without a change, and
prints the PersistentVolume and the steps. In mode native, the source of the
PersistentVolume follows from the connection, so it is missing there.

It refuses a volume that is not available, or that a claim or a PersistentVolume
needs, and an import for which the policy would deny a claim of the volume's size. A
volume that a claim of this cluster left behind (Retain) may still be in use by the
cluster's connector, unless it is imported in mode csi. The command never forces
anything.

With --from-pvs, it imports all volumes that PersistentVolumes of cinder-csi or of the
historic program name, for claims of the same names. Save the PersistentVolumes (kubectl
get pv -o json) while the claims exist. Before --apply, delete the claims, with the
reclaim policy Retain, so that the names are free and the volumes are not attached. What
is refused is reported, and stops no other; run the command again to continue. A
PersistentVolume in the file may have the annotation
standalone-cinder.openstack.org/filesystem-uuids, instead of --filesystem-uuid.

Exit codes: 0 imported, or can be imported, 1 refused or failed, 2 wrong usage, or
the cluster cannot be read.`,
		Example: `  standalone-cinder volume import --policy policy.yaml --backend gold --volume 6f2ce4b9-1c5b-4f8e-a2b6-1d0c9b3f7a55 --namespace team-a --claim data --storage-class cinder-gold
  standalone-cinder volume import --policy policy.yaml --backend gold --volume old-data --namespace team-a --claim data --storage-class cinder-gold --apply
  standalone-cinder volume import --policy policy.yaml --backend gold --from-pvs pvs.json --storage-class standard=cinder-gold`,
		Args: policycli.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := flags.read(command); err != nil {
				return err
			}
			if flags.fromPVs != "" {
				return flags.runMany(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
			}
			return flags.run(command.Context(), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags.addFlags(command)
	set := command.Flags()
	set.StringVar(&flags.Backend, "backend", "", "`name` of the volume's backend (required)")
	set.StringVar(&flags.request.Volume, "volume", "", "`ID` of the volume, or its name if no other has it (required without --from-pvs)")
	set.StringVarP(&flags.request.Namespace, "namespace", "n", "", "`namespace` of the claim (required without --from-pvs, where it selects claims)")
	set.StringVar(&flags.request.Claim, "claim", "", "`name` of the claim (required without --from-pvs)")
	set.StringVar(&flags.request.StorageClass, "storage-class", "", "`name` of the claim's StorageClass (required); with --from-pvs, OLD=NEW[,OLD=NEW...]")
	set.StringVar(&flags.fromPVs, "from-pvs", "", "`file` with a list of PersistentVolumes whose volumes are imported, instead of --volume and --claim; - is standard input")
	set.StringVar(&flags.size, "size", "", "`size` that the claim requests; default is the volume's")
	set.StringSliceVar(&flags.accessModes, "access-mode", []string{"RWO"}, "access `mode` of the claim: RWO, ROX, RWX or RWOP; may be repeated; replaces those of --from-pvs")
	set.StringVar(&flags.volumeMode, "volume-mode", string(corev1.PersistentVolumeFilesystem), "volume `mode` of the claim: Filesystem or Block")
	set.StringVar(&flags.reclaim, "reclaim-policy", string(corev1.PersistentVolumeReclaimRetain), "reclaim `policy` of the PersistentVolume: Retain or Delete")
	set.StringSliceVar(&flags.filesystems, "filesystem-uuid", nil, "`UUID` of the filesystem on a volume that was not made in mode csi, or is a copy; for mode csi; may be repeated")
	set.StringVar(&flags.SecretNamespace, "secret-namespace", "", "`namespace` of the volumes' Secrets; default is $POD_NAMESPACE, else the pod's namespace, else "+defaultMapNamespace)
	set.BoolVar(&flags.apply, "apply", false, "import the volume; without it, the command only checks")
	return command
}

// read checks the flags, and builds the claim from them.
func (f *importFlags) read(command *cobra.Command) error {
	if f.fromPVs != "" {
		for _, other := range []string{"volume", "claim", "size", "volume-mode", "filesystem-uuid"} {
			if command.Flags().Changed(other) {
				return volumeUsage("--%s cannot be used with --from-pvs, which takes it from the PersistentVolumes", other)
			}
		}
		if err := required(command, "policy", "backend", "storage-class"); err != nil {
			return err
		}
		classes, err := readClasses(f.request.StorageClass)
		if err != nil {
			return err
		}
		f.classes, f.override = classes, command.Flags().Changed("access-mode")
	} else if err := required(command, "policy", "backend", "volume", "namespace", "claim", "storage-class"); err != nil {
		return err
	}
	if f.size != "" {
		size, err := resource.ParseQuantity(f.size)
		if err != nil || size.Sign() <= 0 {
			return volumeUsage("--size must be a quantity such as 10Gi, not %q", f.size)
		}
		f.request.Size = &size
	}
	modes, err := readAccessModes(f.accessModes)
	if err != nil {
		return err
	}
	f.request.AccessModes = modes
	f.request.VolumeMode = corev1.PersistentVolumeMode(f.volumeMode)
	if err := checkVolumeMode(f.request.VolumeMode); err != nil {
		return err
	}
	f.request.ReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(f.reclaim)
	if f.request.ReclaimPolicy != corev1.PersistentVolumeReclaimRetain && f.request.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete {
		return volumeUsage("--reclaim-policy must be Retain or Delete, not %q", f.reclaim)
	}
	if f.request.FilesystemUUIDs, err = readFilesystems(f.filesystems); err != nil {
		return err
	}
	f.SecretNamespace = secretNamespace(f.SecretNamespace)
	return nil
}

// secretNamespace returns the namespace of the volumes' Secrets: that of the flag, or else
// the pod's, or else the one of the manifests.
func secretNamespace(flag string) string {
	namespace, err := wiring.OwnNamespace(flag)
	if err != nil {
		return defaultMapNamespace
	}
	return namespace
}

// readFilesystems reads UUIDs of filesystems in the form that blkid prints.
func readFilesystems(texts []string) ([]string, error) {
	var read []string
	for _, text := range texts {
		id, err := uuid.Parse(text)
		if err != nil || id == uuid.Nil || !strings.EqualFold(text, id.String()) {
			return nil, volumeUsage("--filesystem-uuid must be a UUID such as 6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11, not %q", text)
		}
		if !slices.Contains(read, id.String()) {
			read = append(read, id.String())
		}
	}
	return read, nil
}

func readAccessModes(texts []string) ([]corev1.PersistentVolumeAccessMode, error) {
	var modes []corev1.PersistentVolumeAccessMode
	for _, text := range texts {
		mode, err := accessMode(text)
		if err != nil {
			return nil, volumeUsage("%w", err)
		}
		if !slices.Contains(modes, mode) {
			modes = append(modes, mode)
		}
	}
	return modes, nil
}

func (f *importFlags) run(ctx context.Context, stdout, stderr io.Writer) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, f.apply)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	importer := opened.imports[0]
	plan, err := importer.Plan(ctx, f.request)
	var pv *corev1.PersistentVolume
	if err == nil {
		if pv = plan.PersistentVolume; f.apply {
			pv, err = importer.Apply(ctx, plan)
		}
	}
	if err != nil {
		return policycli.Exit(policycli.ExitFailed, fmt.Errorf("volume %s is not imported: %s", f.request.Volume, statusreport.OneLine(err.Error())))
	}
	return policycli.Exit(policycli.ExitUsage, f.report(stdout, stderr, plan, pv))
}

// report prints the PersistentVolume and, as comments, what was or would be done. Text
// that the volume's owners wrote must not end a comment.
func (f *importFlags) report(w, stderr io.Writer, plan *imports.Plan, pv *corev1.PersistentVolume) error {
	warn(stderr, plan.Warnings)
	claim := plan.Claim.Namespace + "/" + plan.Claim.Name
	lines := []string{fmt.Sprintf("volume %s is imported for claim %s", plan.Volume.ID, claim)}
	switch {
	case plan.Done:
		lines = []string{fmt.Sprintf("volume %s was already imported for claim %s; nothing to do", plan.Volume.ID, claim)}
	case !f.apply:
		lines = wouldDo(plan.Steps)
		if pv.Spec.CSI == nil {
			lines = append(lines, "the source of the PersistentVolume follows from the connection")
		}
	}
	shown := pv.DeepCopy()
	shown.ManagedFields = nil
	document, err := yaml.Marshal(shown)
	if err != nil {
		return fmt.Errorf("write PersistentVolume %s: %w", pv.Name, err)
	}
	_, err = fmt.Fprintf(w, "# %s\n%s", strings.Join(lines, "\n# "), document)
	return err
}
