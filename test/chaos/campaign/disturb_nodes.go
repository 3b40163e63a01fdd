package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// disturbNode makes a new node use some volumes, deletes their claims, and
// releases the volumes. Steps overlap. The node is gone when it returns.
func (w *world) disturbNode(ctx, trouble context.Context, number int, step plan.NodeStep) {
	if !w.until(trouble, step.At) {
		return
	}
	name := fmt.Sprintf("%s-node-%d", w.names.id(), number)
	used := w.volumesToUse(step)
	if len(used) == 0 {
		return
	}
	w.timeline.Note("%s: %s", name, step)
	if err := w.useVolumes(ctx, trouble, name, used, step); err != nil && ctx.Err() == nil {
		w.timeline.Say("%s: %s: %s", name, step, err)
	}
	if err := destroy(ctx, w.suite.Client.CoreV1().Nodes(), name); err != nil && ctx.Err() == nil {
		w.timeline.Say("%s: %s", name, err)
	}
}

// volumesToUse picks some of the bound PersistentVolumes.
func (w *world) volumesToUse(step plan.NodeStep) []*corev1.PersistentVolume {
	var bound []*corev1.PersistentVolume
	for _, pv := range w.watch.volumes() {
		if pv.Status.Phase == corev1.VolumeBound && pv.Spec.ClaimRef != nil && len(nodeuse.Names(pv)) > 0 {
			bound = append(bound, pv)
		}
	}
	var used []*corev1.PersistentVolume
	for i := range min(step.Volumes, len(bound)) {
		used = append(used, bound[(step.Pick+i)%len(bound)])
	}
	return used
}

func (w *world) useVolumes(ctx, trouble context.Context, name string, used []*corev1.PersistentVolume, step plan.NodeStep) error {
	nodes := w.suite.Client.CoreV1().Nodes()
	err := insist(ctx, func(ctx context.Context) error {
		_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	var names []corev1.UniqueVolumeName
	for _, pv := range used {
		names = append(names, nodeuse.Names(pv)...)
	}
	report := func(boot string, names []corev1.UniqueVolumeName) error {
		return w.patchNode(ctx, name, map[string]any{"status": map[string]any{"nodeInfo": map[string]any{"bootID": boot}, "volumesInUse": names}}, "status")
	}
	if err := report("first", names); err != nil {
		return err
	}
	from := time.Now()
	w.change(func(c *Counts) { c.NodeUses += len(used) })
	for _, pv := range used {
		w.timeline.Note("%s uses %s", name, pv.Name)
	}
	sleep(trouble, step.Deletes)
	for _, pv := range used {
		ref := pv.Spec.ClaimRef
		if err := w.deleteClaim(ctx, ref.Namespace, ref.Name, ref.UID); err != nil {
			return err
		}
	}
	sleep(trouble, step.For)
	w.mu.Lock()
	for _, pv := range used {
		w.uses = append(w.uses, checker.NodeUse{Node: name, PV: pvOf(pv), From: from, Until: time.Now(), Released: string(step.Kind)})
	}
	w.mu.Unlock()
	w.timeline.Note("%s %s", name, step.Kind)
	switch step.Kind {
	case plan.Unmount:
		return report("first", nil)
	case plan.NodeLost:
		err = w.patchNode(ctx, name, map[string]any{"spec": map[string]any{"taints": []corev1.Taint{
			{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}}})
	case plan.NodeBoots:
		// The status until kubelet has checked.
		err = report("second", names)
	case plan.NodeGone:
		return nil // the caller deletes the node
	}
	sleep(trouble, lookAfter)
	return err
}

// lookAfter is how long a node that was lost or rebooted stays, although its
// volumes may be removed.
const lookAfter = 3 * time.Second

func (w *world) patchNode(ctx context.Context, name string, change any, subresources ...string) error {
	patch, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return insist(ctx, func(ctx context.Context) error {
		_, err := w.suite.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
		return err
	})
}
