package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/imports"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/statusreport"
)

// cinderCSI is the driver of clusters on OpenStack.
const cinderCSI = "cinder.csi.openstack.org"

// oneImport is a volume that another driver's PersistentVolume names.
type oneImport struct {
	imports.Request
	pv string
	// fsType is the filesystem on the volume; empty if it is not known.
	fsType       string
	mountOptions []string
	// unbound means that the claim was already gone when the file was written.
	unbound bool
	// state is one of the states below, and why says more.
	state, why string
}

const (
	stateReady    = "ready"
	stateImported = "imported"
	stateAlready  = "already imported"
	stateRefused  = "refused"
)

// runMany imports the volumes that PersistentVolumes of other drivers name, one after the
// other. What is refused or fails stops no other. Run again, it continues.
func (f *importFlags) runMany(ctx context.Context, stdout, stderr io.Writer) error {
	text, err := f.readPVs()
	var all []oneImport
	var skipped []string
	if err == nil {
		all, skipped, err = f.requestsOf(text)
	}
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	for _, why := range skipped {
		fmt.Fprintln(stderr, "not considered: "+statusreport.OneLine(why))
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	opened, err := f.open(ctx, f.apply)
	if err != nil {
		return policycli.Exit(policycli.ExitUsage, err)
	}
	importer := opened.imports[0]
	importer.Volumes = &listedOnce{Volumes: importer.Volumes}
	failed := 0
	for n := range all {
		one := &all[n]
		if err := ctx.Err(); err != nil {
			return policycli.Exit(policycli.ExitFailed, fmt.Errorf("interrupted after %d of %d volumes; run the command again to continue", n, len(all)))
		}
		f.importOne(ctx, importer, one)
		if one.state == stateRefused {
			failed++
		}
		fmt.Fprintf(stderr, "[%*d/%d] %s/%s: %s\n", len(fmt.Sprint(len(all))), n+1, len(all), one.Namespace, one.Claim, one.state)
	}
	if err := writeImports(stdout, all); err != nil {
		return policycli.Exit(policycli.ExitFailed, err)
	}
	if failed > 0 {
		return policycli.Exit(policycli.ExitFailed, fmt.Errorf("%d of %d volumes are not imported", failed, len(all)))
	}
	return nil
}

// listedOnce lists the volumes of a project once, since a thousand imports would list
// thousands of volumes each. An import reads its volume again before it changes it.
type listedOnce struct {
	imports.Volumes
	listed []cinder.Volume
}

// All implements imports.Volumes.
func (l *listedOnce) All(ctx context.Context) (all []cinder.Volume, err error) {
	if l.listed == nil {
		l.listed, err = l.Volumes.All(ctx)
	}
	return l.listed, err
}

func (f *importFlags) readPVs() ([]byte, error) {
	if f.fromPVs == "-" {
		return io.ReadAll(os.Stdin)
	}
	text, err := os.ReadFile(f.fromPVs)
	if err != nil {
		return nil, fmt.Errorf("--from-pvs: %w", err)
	}
	return text, nil
}

// requestsOf returns what to import, in the order of the claims, and sentences about the
// PersistentVolumes that are left out.
func (f *importFlags) requestsOf(text []byte) (all []oneImport, skipped []string, err error) {
	var list corev1.PersistentVolumeList
	if err := yaml.Unmarshal(text, &list); err != nil || len(list.Items) == 0 {
		return nil, nil, errors.Join(fmt.Errorf("--from-pvs %s has no list of PersistentVolumes; write it with kubectl get pv -o json", f.fromPVs), err)
	}
	ofClaim, ofVolume := map[string][]*corev1.PersistentVolume{}, map[string][]*corev1.PersistentVolume{}
	for i := range list.Items {
		pv := &list.Items[i]
		claim, volume := claimOf(pv), foreignVolume(pv)
		ofClaim[claim], ofVolume[volume] = append(ofClaim[claim], pv), append(ofVolume[volume], pv)
	}
	for i := range list.Items {
		pv := &list.Items[i]
		request, why := f.requestOf(pv)
		if why == "" {
			why = cmp.Or(isNotTheOnly(pv, ofClaim[claimOf(pv)], "claim "+claimOf(pv)), isNotTheOnly(pv, ofVolume[request.Volume], "volume "+request.Volume))
		}
		if why != "" {
			skipped = append(skipped, fmt.Sprintf("PersistentVolume %s: %s", pv.Name, why))
			continue
		}
		all = append(all, oneImport{Request: request, pv: pv.Name, fsType: foreignFSType(pv), mountOptions: pv.Spec.MountOptions, unbound: pv.Status.Phase != corev1.VolumeBound})
	}
	slices.SortFunc(all, func(x, y oneImport) int {
		return strings.Compare(x.Namespace+"/"+x.Claim, y.Namespace+"/"+y.Claim)
	})
	return all, skipped, nil
}

// claimOf returns the claim that a PersistentVolume names.
func claimOf(pv *corev1.PersistentVolume) string {
	claim := ptr.Deref(pv.Spec.ClaimRef, corev1.ObjectReference{})
	return claim.Namespace + "/" + claim.Name
}

// isNotTheOnly says why another PersistentVolume of the same claim or volume decides, or
// why none does: an earlier claim, perhaps of another tenant, left one behind.
func isNotTheOnly(pv *corev1.PersistentVolume, all []*corev1.PersistentVolume, what string) string {
	if len(all) == 1 {
		return ""
	}
	var bound []string
	for _, other := range all {
		if other.Status.Phase == corev1.VolumeBound {
			bound = append(bound, other.Name)
		}
	}
	switch {
	case len(bound) != 1:
		return fmt.Sprintf("%d PersistentVolumes name %s, and the file does not tell which is its own: exactly one must be Bound", len(all), what)
	case bound[0] != pv.Name:
		return fmt.Sprintf("%s is bound to PersistentVolume %s", what, bound[0])
	}
	return ""
}

// requestOf returns the request for a PersistentVolume, or says why there is none.
func (f *importFlags) requestOf(pv *corev1.PersistentVolume) (r imports.Request, why string) {
	volume := foreignVolume(pv)
	claim := ptr.Deref(pv.Spec.ClaimRef, corev1.ObjectReference{})
	class, wanted := f.classes[pv.Spec.StorageClassName]
	switch {
	case volume == "":
		return r, "neither cinder-csi nor the historic program made it"
	case claim.Name == "" || claim.Namespace == "":
		return r, "it has no claim"
	case f.request.Namespace != "" && claim.Namespace != f.request.Namespace:
		return r, "its claim is in namespace " + claim.Namespace
	case !wanted:
		return r, fmt.Sprintf("--storage-class does not say what becomes of StorageClass %q", pv.Spec.StorageClassName)
	}
	r = f.request
	r.Volume, r.OnlyID, r.Namespace, r.Claim, r.StorageClass = volume, true, claim.Namespace, claim.Name, class
	r.VolumeMode = ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
	if !f.override {
		r.AccessModes = pv.Spec.AccessModes
	}
	filesystems, err := readFilesystems(strings.FieldsFunc(pv.Annotations[objects.AnnotationFilesystemUUIDs], func(c rune) bool { return c == ',' || c == ' ' }))
	if err != nil {
		return r, fmt.Sprintf("its annotation %s is not a UUID", objects.AnnotationFilesystemUUIDs)
	}
	r.FilesystemUUIDs = filesystems
	return r, ""
}

// foreignVolume returns the ID of the Cinder volume that another driver's PersistentVolume
// names; empty if it names none.
func foreignVolume(pv *corev1.PersistentVolume) string {
	switch {
	case pv.Spec.CSI != nil && pv.Spec.CSI.Driver == cinderCSI:
		return pv.Spec.CSI.VolumeHandle
	case pv.Spec.Cinder != nil:
		return pv.Spec.Cinder.VolumeID
	}
	return pv.Annotations[objects.HistoricVolume]
}

// foreignFSType returns the filesystem by which another driver mounts the volume.
func foreignFSType(pv *corev1.PersistentVolume) string {
	switch {
	case ptr.Deref(pv.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) == corev1.PersistentVolumeBlock:
		return ""
	case pv.Spec.CSI != nil:
		return pv.Spec.CSI.FSType
	case pv.Spec.Cinder != nil:
		return pv.Spec.Cinder.FSType
	}
	return ""
}

// checkFSType refuses a volume that nodes could not mount: they mount what the rule and the
// StorageClass say, and nobody can change that in a PersistentVolume.
func (one *oneImport) checkFSType(plan *imports.Plan) error {
	if wanted := plan.Decision.Volume.FSType; one.fsType != "" && one.fsType != wanted {
		return fmt.Errorf("PersistentVolume %s has a filesystem %s, but volumes of %s get %s; give it a StorageClass of %s", one.pv, one.fsType, plan.Decision.Rule, wanted, one.fsType)
	}
	return nil
}

// lostMountOptions tells which mount options the new PersistentVolume does not have.
func (one *oneImport) lostMountOptions(pv *corev1.PersistentVolume) []string {
	lost := slices.DeleteFunc(slices.Clone(one.mountOptions), func(option string) bool { return slices.Contains(pv.Spec.MountOptions, option) })
	if len(lost) == 0 {
		return nil
	}
	at := "the StorageClass"
	if one.state != stateReady {
		at = "PersistentVolume " + pv.Name
	}
	return []string{fmt.Sprintf("mountOptions %s are not kept; set them on %s", strings.Join(lost, ", "), at)}
}

// importOne plans an import and, with --apply, carries it out.
func (f *importFlags) importOne(ctx context.Context, importer *imports.Importer, one *oneImport) {
	plan, err := importer.Plan(ctx, one.Request)
	one.state = stateReady
	if err == nil && !plan.Done {
		err = one.checkFSType(plan)
	}
	switch {
	case err == nil && plan.Done:
		one.state = stateAlready
	case err == nil && f.apply:
		one.state = stateImported
		plan.PersistentVolume, err = importer.Apply(ctx, plan)
	}
	if err != nil {
		one.state, one.why = stateRefused, err.Error()
		return
	}
	warnings := append(plan.Warnings, one.lostMountOptions(plan.PersistentVolume)...)
	if one.unbound && one.state != stateAlready {
		// Its namespace may be another tenant's by now.
		warnings = append([]string{fmt.Sprintf("PersistentVolume %s was not Bound when the file was written: make sure that its volume still belongs to namespace %s", one.pv, one.Namespace)}, warnings...)
	}
	one.why = strings.Join(warnings, "; ")
}

// writeImports prints what became of each volume.
func writeImports(w io.Writer, all []oneImport) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CLAIM\tSTORAGECLASS\tPERSISTENTVOLUME\tVOLUME\tSTATE\tWHY")
	for _, one := range all {
		row(table, one.Namespace+"/"+one.Claim, one.StorageClass, one.pv, one.Volume, one.state, one.why)
	}
	return table.Flush()
}

// readClasses reads OLD=NEW pairs.
func readClasses(text string) (map[string]string, error) {
	classes := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		old, wanted, found := strings.Cut(pair, "=")
		if _, twice := classes[old]; !found || wanted == "" || twice {
			return nil, volumeUsage("--storage-class must be OLD=NEW with --from-pvs, once for each StorageClass of the PersistentVolumes, such as standard=cinder-gold,ssd=cinder-fast, not %q", text)
		}
		classes[old] = wanted
	}
	return classes, nil
}
