package native

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
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
		if wanted.name == "" {
			wanted.name = claim + "-csi"
		}
		return r.copyToCSI(ctx, namespace, claim, wanted)
	})
	command.Use = "to-csi CLAIM --storage-class CLASS"
	command.Short = "Clone a claim of mode native into one of mode csi"
	command.Long = `Clone a claim of mode native into a new claim of mode csi, in the same namespace. The old
claim stays as it is.

The CSI driver mounts a filesystem only if it knows its UUID. Unless an administrator has
recorded it on the PersistentVolume, a pod must use the claim when the command begins: as
kubectl cinder grow does, the command has a privileged pod read the UUID on the node (component
node-grow, with the rights of its roles), and records it, which needs the right to patch
PersistentVolumes. Then it waits until the workload is stopped and its node has written
everything, creates the new claim, and waits until it is Bound. If the command is
interrupted, run it again.

Exit codes: 0 the new claim is Bound; 1 refused, or failed; 2 wrong usage, or no
connection to the cluster.`
	command.Example = "  kubectl cinder to-csi data -n team-a --storage-class fast-csi"
	command.Flags().StringVar(&wanted.class, "storage-class", "", "`name` of the new claim's StorageClass, which a rule in mode csi lists (required)")
	command.Flags().StringVar(&wanted.name, "name", "", "`name` of the new claim (default CLAIM-csi)")
	command.PreRunE = func(*cobra.Command, []string) error {
		if wanted.class == "" {
			return usage("--storage-class is missing; give a StorageClass that a rule in mode csi lists")
		}
		return nil
	}
	return command
}

// copyToCSI clones a claim. The order matters: the UUID can be read only while the
// filesystem is mounted, and the content is complete only when it no longer is.
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
	case wants.Cmp(size) > 0 || has.Cmp(size) < 0:
		return fmt.Errorf("it grows; wait, or see kubectl cinder why %s -n %s", name, namespace)
	}
	made, err := r.copyOf(ctx, claim, wanted)
	if err != nil {
		return err
	}
	if made == nil {
		if err := r.recordUUID(ctx, claim, pv); err != nil {
			return err
		}
		if err := r.unused(ctx, claim, pv); err != nil {
			return err
		}
		copied := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: wanted.name}, Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &wanted.class, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			Resources:  corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: size}},
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name},
		}}
		if made, err = r.client.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, copied, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("claim %s is not created: %w", wanted.name, err)
		}
		r.say(fmt.Sprintf("created claim %s/%s", namespace, made.Name))
	}
	if made, err = r.bound(ctx, made); err != nil {
		return err
	}
	copied, err := r.client.CoreV1().PersistentVolumes().Get(ctx, made.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case err != nil:
		return withRights(err)
	case !objects.IsCSI(copied):
		return fmt.Errorf("claim %s has PersistentVolume %s, which is not in mode csi: the rule for StorageClass %s is in mode native. Delete the claim, and give the class of a rule in mode csi", made.Name, copied.Name, wanted.class)
	}
	if users, err := r.usersOf(ctx, claim); err == nil && len(users) > 0 {
		r.say(fmt.Sprintf("warning: pod %s used claim %s again meanwhile, so the copy may be only crash-consistent", namesOf(users), name))
	}
	r.say(fmt.Sprintf("claim %s/%s has the content, in mode csi (PersistentVolume %s). Start the workload with it, and delete claim %s once you trust it", namespace, made.Name, copied.Name, name))
	return nil
}

// copyOf returns the copy that an earlier run has created; nil if there is none.
func (r *runner) copyOf(ctx context.Context, claim *corev1.PersistentVolumeClaim, wanted copyRequest) (*corev1.PersistentVolumeClaim, error) {
	found, err := r.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, wanted.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, withRights(err)
	}
	source := found.Spec.DataSource
	if source == nil || source.Kind != "PersistentVolumeClaim" || source.Name != claim.Name || objects.ClassName(found) != wanted.class {
		return nil, fmt.Errorf("claim %s exists, and is no clone of it with StorageClass %s; give another --name", wanted.name, wanted.class)
	}
	return found, nil
}

// recordUUID records the UUID of the filesystem on the PersistentVolume.
func (r *runner) recordUUID(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	if objects.IsBlock(claim) || pv.Annotations[objects.AnnotationFilesystemUUIDs] != "" {
		return nil
	}
	v, err := r.mounted(ctx, claim, pv)
	if err != nil {
		return fmt.Errorf("the UUID of its filesystem is not recorded, and cannot be read: %w; or record it yourself in the annotation %s of PersistentVolume %s", err, objects.AnnotationFilesystemUUIDs, pv.Name)
	}
	found, err, stays := r.grown(ctx, v)
	if err == nil && found.UUID == "" {
		err = errors.New("the pod does not say which UUID the filesystem has; install the component node-grow of this version")
	}
	if err != nil {
		return errors.Join(err, stays)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pv.UID, "annotations": map[string]string{objects.AnnotationFilesystemUUIDs: found.UUID}}})
	if err == nil {
		_, err = r.client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the UUID of its filesystem, %s, is not recorded on PersistentVolume %s: %w", found.UUID, pv.Name, err), stays)
	}
	r.say(fmt.Sprintf("recorded the UUID of the %s filesystem, %s, on PersistentVolume %s", found.Filesystem, found.UUID, pv.Name))
	return stays
}

// unused waits until no pod and no node uses the volume: a node writes the rest of the data
// after the last pod is gone.
func (r *runner) unused(ctx context.Context, claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	tracker, told := nodeuse.New(nodeuse.Options{Client: r.client}), ""
	for {
		waits := ""
		users, err := r.usersOf(ctx, claim)
		if err == nil && len(users) > 0 {
			waits = "pod " + namesOf(users) + " uses it; stop the workload"
		} else if err == nil {
			var nodes []string
			if nodes, err = tracker.Users(ctx, nodeuse.VolumeOf(pv)); len(nodes) > 0 {
				waits = "node " + strings.Join(nodes, ", ") + " still has it mounted"
			}
		}
		switch {
		case err != nil:
			return withRights(err)
		case waits == "":
			return nil
		case waits != told:
			told = waits
			r.say("waiting: " + waits)
		}
		if err := r.wait(ctx); err != nil {
			return fmt.Errorf("%s: %w", waits, err)
		}
	}
}

// bound waits until a claim is Bound.
func (r *runner) bound(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	for {
		now, err := r.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && now.UID != claim.UID:
			return nil, fmt.Errorf("claim %s was deleted meanwhile", claim.Name)
		case err == nil && now.Status.Phase == corev1.ClaimBound:
			return now, nil
		}
		if stopped := r.wait(ctx); stopped != nil {
			return nil, fmt.Errorf("claim %s is not Bound; see kubectl cinder why %s -n %s: %w", claim.Name, claim.Name, claim.Namespace, errors.Join(err, stopped))
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
