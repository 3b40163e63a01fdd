package native

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// copyRequest is a claim in mode csi that gets the content of a native one.
type copyRequest struct{ name, class string }

func newToCSICommand() *cobra.Command {
	var wanted copyRequest
	command, _ := newCommand(func(r *runner, ctx context.Context, namespace, claim string) error {
		wanted.name = cmp.Or(wanted.name, claim+"-csi")
		return r.copyToCSI(ctx, namespace, claim, wanted)
	})
	command.Use = "to-csi CLAIM --storage-class CLASS"
	command.Short = "Clone a claim of mode native into one of mode csi"
	command.Long = `Clone a claim of mode native into a new claim of mode csi, in the same namespace. The old
claim stays as it is.

The CSI driver mounts a filesystem only if it knows its UUID. Unless the UUID is recorded on
the PersistentVolume, a pod must use the claim when the command begins: as kubectl cinder grow
does, the command has a privileged pod read the UUID on the node (component node-grow, with
the rights of its roles), and records it. Raw block volumes need neither. Then the command
waits until you have stopped the workload, and no node reports the volume in use. It creates
the new claim, and waits until it is Bound. If it is interrupted, run it again.

The account also needs the rights to list nodes and VolumeAttachments, to get StorageClasses,
to create claims, and to patch PersistentVolumes.

Exit codes: 0 the new claim is Bound; 1 refused, or failed; 2 wrong usage, or no
connection to the cluster.`
	command.Example = "  kubectl cinder to-csi data -n team-a --storage-class fast-csi"
	command.Flags().StringVar(&wanted.class, "storage-class", "", "`name` of the StorageClass of the new claim; a rule in mode csi must list it (required)")
	command.Flags().StringVar(&wanted.name, "name", "", "`name` of the new claim (default CLAIM-csi)")
	command.PreRunE = func(*cobra.Command, []string) error {
		if wanted.class == "" {
			return usage("--storage-class is missing; give a StorageClass that a rule in mode csi lists")
		}
		return nil
	}
	return command
}

// copyToCSI clones a claim. The order matters: whatever prevents the copy must be known before
// the workload stops, the UUID can be read only while the filesystem is mounted, and the
// content is complete only when it no longer is.
func (r *runner) copyToCSI(ctx context.Context, namespace, name string, wanted copyRequest) error {
	ctx, end := context.WithTimeout(ctx, r.timeout)
	defer end()
	claim, pv, err := r.read(ctx, namespace, name)
	if err != nil {
		return err
	}
	wants, has, size := storage(claim.Spec.Resources.Requests), storage(claim.Status.Capacity), storage(pv.Spec.Capacity)
	switch {
	case objects.IsCSI(pv):
		return errors.New("it is in mode csi already")
	case claim.DeletionTimestamp != nil:
		return errors.New("it is being deleted, and once no pod uses it, its volume may be, too")
	case wants.Cmp(size) > 0 || has.Cmp(size) < 0:
		return fmt.Errorf("it grows; wait, or see kubectl cinder why %s -n %s", name, namespace)
	}
	class, err := r.classOf(ctx, wanted)
	if err != nil {
		return err
	}
	made, err := r.copyOf(ctx, claim, wanted)
	if err != nil {
		return err
	}
	filesystem := ""
	if made == nil {
		if filesystem, err = r.recordUUID(ctx, claim, pv, class); err == nil {
			err = r.unused(ctx, claim, pv)
		}
		if err == nil {
			made, err = r.makeCopy(ctx, claim, pv, wanted)
		}
		if err != nil {
			return err
		}
	}
	if made, err = r.bound(ctx, made, claim); err != nil {
		return err
	}
	copied, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, made.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return withRights(err)
	case objects.BoundElsewhere(made):
		return fmt.Errorf("claim %s is no copy: Kubernetes gave it PersistentVolume %s, which was there before; delete the claim, and see why that PersistentVolume was Available", made.Name, copied.Name)
	case !objects.IsCSI(copied):
		return fmt.Errorf("claim %s has PersistentVolume %s, which is not in mode csi: the rule for StorageClass %s is in mode native. Delete the claim, and give the class of a rule in mode csi", made.Name, copied.Name, wanted.class)
	case filesystem != "" && copied.Spec.CSI.FSType != filesystem:
		return fmt.Errorf("the volume has a filesystem %s, but claim %s gets %s, so no node would mount it. Delete the claim, and give a StorageClass with fsType %s", filesystem, made.Name, copied.Spec.CSI.FSType, filesystem)
	}
	if now, _, err := r.read(ctx, namespace, name); err != nil || now.UID != claim.UID {
		return cmp.Or(err, fmt.Errorf("it was replaced by another claim while it was copied, so nobody knows what claim %s has; delete claim %s, and run the command again", made.Name, made.Name))
	}
	r.Say(fmt.Sprintf("claim %s/%s, made at %s, has the content, in mode csi (PersistentVolume %s). Start the workload with it, and delete claim %s once you trust it",
		namespace, made.Name, made.CreationTimestamp.UTC().Format(time.RFC3339), copied.Name, name))
	return nil
}

// classOf returns a StorageClass by which a copy can be Bound before a pod uses it.
func (r *runner) classOf(ctx context.Context, wanted copyRequest) (*storagev1.StorageClass, error) {
	class, err := r.Client.StorageV1().StorageClasses().Get(ctx, wanted.class, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, err
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
		return nil, fmt.Errorf("StorageClass %s waits for a pod before it makes a volume (WaitForFirstConsumer), so the copy would be made only after the switch; give one with the volumeBindingMode Immediate", wanted.class)
	}
	return class, nil
}

// copyOf returns the copy that an earlier run has created; nil if there is none.
func (r *runner) copyOf(ctx context.Context, claim *corev1.PersistentVolumeClaim, wanted copyRequest) (*corev1.PersistentVolumeClaim, error) {
	found, err := r.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, wanted.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, withRights(err)
	}
	if found.DeletionTimestamp != nil || found.Annotations[objects.AnnotationCopyOf] != string(claim.UID) || objects.ClassName(found) != wanted.class {
		return nil, fmt.Errorf("claim %s exists, and this command did not make it of this claim with StorageClass %s; delete it, or give another --name", wanted.name, wanted.class)
	}
	if users, err := r.usersOf(ctx, claim); err != nil || len(users) > 0 {
		return nil, cmp.Or(err, fmt.Errorf("claim %s was copied at %s, and pod %s uses the old claim since or again, so what it wrote is missing; delete claim %s, and run the command again",
			found.Name, found.CreationTimestamp.UTC().Format(time.RFC3339), namesOf(users), found.Name))
	}
	return found, nil
}

// makeCopy creates the new claim, if the old one is still the one that was read.
func (r *runner) makeCopy(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, wanted copyRequest) (*corev1.PersistentVolumeClaim, error) {
	now, _, err := r.read(ctx, claim.Namespace, claim.Name)
	if err == nil && (now.UID != claim.UID || now.DeletionTimestamp != nil) {
		err = errors.New("it was deleted, or replaced by another, while its workload stopped; see persistentVolumeClaimRetentionPolicy if a StatefulSet made it")
	}
	if err != nil {
		return nil, err
	}
	made, err := r.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: wanted.name, Annotations: map[string]string{objects.AnnotationCopyOf: string(claim.UID)}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &wanted.class, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: storage(pv.Spec.Capacity)}},
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: claim.Name},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("claim %s is not created: %w", wanted.name, err)
	}
	r.Say(fmt.Sprintf("created claim %s/%s", claim.Namespace, made.Name))
	return made, nil
}

// recordUUID records the UUID of the filesystem on the PersistentVolume, and returns the
// filesystem's type if a node has told it.
func (r *runner) recordUUID(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, class *storagev1.StorageClass) (filesystem string, err error) {
	recorded := pv.Annotations[objects.AnnotationFilesystemUUIDs]
	switch {
	case objects.IsBlock(claim):
		return "", nil
	case len(objects.FilesystemUUIDsOf(pv, "")) > 0:
		return "", nil
	case recorded != "":
		return "", fmt.Errorf("the annotation %s of PersistentVolume %s is no UUID: %q; correct it, or remove it", objects.AnnotationFilesystemUUIDs, pv.Name, recorded)
	}
	v, err := r.mounted(ctx, claim, pv)
	if err != nil {
		return "", fmt.Errorf("the UUID of its filesystem is not recorded, and cannot be read: %w; or record it yourself in the annotation %s of PersistentVolume %s", err, objects.AnnotationFilesystemUUIDs, pv.Name)
	}
	found, err, stays := r.grown(ctx, v)
	fsType := cmp.Or(class.Parameters["fsType"], class.Parameters["csi.storage.k8s.io/fstype"], found.Filesystem)
	id, notUUID := uuid.Parse(found.UUID)
	switch {
	case err != nil:
	case found.Filesystem != "ext4" && found.Filesystem != "xfs":
		err = fmt.Errorf("its filesystem is %s, which mode csi does not have; copy its files in a pod that mounts both claims", found.Filesystem)
	case fsType != found.Filesystem:
		err = fmt.Errorf("its filesystem is %s, but StorageClass %s has fsType %s; give one with fsType %s", found.Filesystem, class.Name, fsType, found.Filesystem)
	case notUUID != nil || id == uuid.Nil:
		err = errors.New("the pod does not say which UUID the filesystem has; install the component node-grow of this version")
	}
	if err != nil {
		return "", errors.Join(err, stays)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pv.UID, "annotations": map[string]string{objects.AnnotationFilesystemUUIDs: id.String()}}})
	if err == nil {
		_, err = r.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("the UUID of its filesystem, %s, is not recorded on PersistentVolume %s: %w", id, pv.Name, err), stays)
	}
	r.Say(fmt.Sprintf("recorded the UUID of the %s filesystem, %s, on PersistentVolume %s", found.Filesystem, id, pv.Name))
	return found.Filesystem, stays
}

// unused waits until no pod and no node uses the volume: a node writes the rest of the data
// after the last pod is gone.
func (r *runner) unused(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	tracker, told := nodeuse.New(nodeuse.Options{Client: r.Client}), ""
	for {
		users, err := r.usersOf(ctx, claim)
		var nodes []string
		// Whether the nodes can be seen must be known before the workload stops.
		if err == nil && (told == "" || len(users) == 0) {
			nodes, err = tracker.Users(ctx, nodeuse.VolumeOf(pv))
		}
		var waits string
		switch {
		case apierrors.IsForbidden(err):
			return err
		case err != nil:
			waits = "the API server does not say whether it is in use: " + err.Error()
		case len(users) > 0:
			waits = "pod " + namesOf(users) + " uses it; stop the workload"
		case len(nodes) > 0:
			waits = "node " + strings.Join(nodes, ", ") + " still has it mounted"
		default:
			return nil
		}
		if waits != told {
			told = waits
			r.Say("waiting: " + waits)
		}
		if err := r.Wait(ctx); err != nil {
			return fmt.Errorf("%s: %w", waits, err)
		}
	}
}

// bound waits until a copy is Bound, and reports the pods that use its source meanwhile.
func (r *runner) bound(ctx context.Context, copied, source *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	warned := map[string]bool{}
	for {
		users, err := r.usersOf(ctx, source)
		for _, user := range users {
			if !warned[user.uid] {
				warned[user.uid] = true
				r.Say(fmt.Sprintf("warning: pod %s uses claim %s while it is copied, so the copy may be only crash-consistent", user.name, source.Name))
			}
		}
		now, getErr := r.Client.CoreV1().PersistentVolumeClaims(copied.Namespace).Get(ctx, copied.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(getErr), getErr == nil && now.UID != copied.UID:
			return nil, fmt.Errorf("claim %s was deleted meanwhile", copied.Name)
		case getErr == nil && err == nil && now.Status.Phase == corev1.ClaimBound:
			return now, nil
		}
		if stopped := r.Wait(ctx); stopped != nil {
			return nil, fmt.Errorf("claim %s is not Bound; see kubectl cinder why %s -n %s: %w", copied.Name, copied.Name, copied.Namespace, errors.Join(err, getErr, stopped))
		}
	}
}

func namesOf(users []user) string {
	var names []string
	for _, user := range users {
		names = append(names, user.name)
	}
	return strings.Join(slices.Sorted(slices.Values(names)), ", ")
}
