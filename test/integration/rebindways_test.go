package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// The ways of this file give the volume of one claim to another, step by step as
// administrators and other programs do: with their kinds of patches, in their order,
// and with what they clear and leave.

// way is one of them. Its parts are functions of a site and of the volume.
type way struct {
	name string
	// from and to are the ends of the names of the namespaces of the claim that the volume
	// is made for, and of the claim that gets it.
	from, to string
	// retain means that the StorageClass has the policy Retain.
	retain bool
	// prepare leads to a volume that a claim has, handOver until another is bound to its
	// PersistentVolume, finish cleans up after that; nil does nothing.
	prepare, handOver, finish func(ctx context.Context, s *rebindSite, r *rebinding) error
}

func (w way) String() string { return w.name }

// rebinding is a volume on its way from one claim to another.
type rebinding struct {
	way
	// made is the claim that the volume was made for, to the claim that gets it.
	made, to *corev1.PersistentVolumeClaim
	// pv is the name of the PersistentVolume, volume the ID of its volume.
	pv, volume string
	// policy is the reclaim policy that the PersistentVolume had at first.
	policy corev1.PersistentVolumeReclaimPolicy
	// source is the VolumeSnapshot that the volume is made from, if it is.
	source string
	// besides is what the tenant of the claim that gets the volume has besides it.
	besides counted
	// before is how often the volume changed its claim before.
	before int
}

// class returns the StorageClass of both claims.
func (s *rebindSite) classOf(r *rebinding) string {
	if r.retain {
		return s.class + "-kept"
	}
	return s.class
}

// in returns a namespace.
func (s *rebindSite) in(end string) string { return s.namespace + end }

// newClaim describes a claim for a volume of the site. Claims ask for devices, since
// nothing must happen on a node when these grow.
func (s *rebindSite) newClaim(r *rebinding, namespaceEnd, name string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	return harness.Claim(s.in(namespaceEnd), name, s.classOf(r), "1Gi", func(claim *corev1.PersistentVolumeClaim) {
		asBlock(claim)
		if change != nil {
			change(claim)
		}
	})
}

// makeFor makes the claim that a volume is made for, and waits for that.
func (s *rebindSite) makeFor(ctx context.Context, r *rebinding, name string, change func(*corev1.PersistentVolumeClaim)) error {
	claim, err := suite.CreateClaim(ctx, s.newClaim(r, r.from, name, change))
	if err != nil {
		return err
	}
	if err := s.addDecoys(claim); err != nil {
		return err
	}
	return s.has(ctx, r, claim)
}

// has waits until a claim has a volume, and notes which.
func (s *rebindSite) has(ctx context.Context, r *rebinding, claim *corev1.PersistentVolumeClaim) error {
	var pv *corev1.PersistentVolume
	err := s.eventually(ctx, func() (string, error) {
		now, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || now.Status.Phase != corev1.ClaimBound {
			return "claim " + claim.Name + " is not bound", err
		}
		r.made = now
		if pv, err = suite.Client.CoreV1().PersistentVolumes().Get(ctx, now.Spec.VolumeName, metav1.GetOptions{}); err != nil {
			return "", err
		}
		v, _ := s.sim.Volume(pv.Annotations[annotation("volume-id")])
		return s.unlikeInUse(v), nil
	})
	if err != nil {
		return err
	}
	r.pv, r.volume, r.policy = pv.Name, pv.Annotations[annotation("volume-id")], pv.Spec.PersistentVolumeReclaimPolicy
	return nil
}

func (s *rebindSite) patchPV(ctx context.Context, r *rebinding, kind types.PatchType, patch string) error {
	_, err := suite.Client.CoreV1().PersistentVolumes().Patch(ctx, r.pv, kind, []byte(patch), metav1.PatchOptions{})
	return err
}

// pvIs waits until the PersistentVolume has a phase.
func (s *rebindSite) pvIs(ctx context.Context, r *rebinding, phase corev1.PersistentVolumePhase) error {
	return s.eventually(ctx, func() (string, error) {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		if err == nil && pv.Status.Phase != phase {
			return fmt.Sprintf("PersistentVolume %s is %s, not %s", r.pv, pv.Status.Phase, phase), nil
		}
		return "", err
	})
}

// claimIs waits until a claim has a phase.
func (s *rebindSite) claimIs(ctx context.Context, claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase) error {
	return s.eventually(ctx, func() (string, error) {
		now, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != phase {
			return fmt.Sprintf("claim %s/%s is %s, not %s", claim.Namespace, claim.Name, now.Status.Phase, phase), nil
		}
		return "", err
	})
}

// drop deletes a claim and waits until it is gone.
func (s *rebindSite) drop(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	claims := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	if err := claims.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		_, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "claim " + claim.Name + " is not gone", err
	})
}

// take makes the claim that gets the volume, and waits until it is bound.
func (s *rebindSite) take(ctx context.Context, r *rebinding, name string, change func(*corev1.PersistentVolumeClaim)) (err error) {
	if r.to, err = suite.CreateClaim(ctx, s.newClaim(r, r.way.to, name, change)); err != nil {
		return err
	}
	return s.claimIs(ctx, r.to, corev1.ClaimBound)
}

// naming makes a claim name the PersistentVolume.
func naming(pv string) func(*corev1.PersistentVolumeClaim) {
	return func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = pv }
}

// An administrator keeps a volume, and gives it to another claim:
// https://kubernetes.io/docs/concepts/storage/persistent-volumes (reserving a
// PersistentVolume), by kubectl patch.

// made makes the volume for a claim named data.
func made(ctx context.Context, s *rebindSite, r *rebinding) error {
	return s.makeFor(ctx, r, "data", nil)
}

// keep sets the policy Retain, deletes the claim, and waits until the volume is
// released.
func (s *rebindSite) keep(ctx context.Context, r *rebinding) error {
	if err := s.patchPV(ctx, r, types.StrategicMergePatchType, `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`); err != nil {
		return err
	}
	if err := s.drop(ctx, r.made); err != nil {
		return err
	}
	return s.pvIs(ctx, r, corev1.VolumeReleased)
}

// free removes the reference to the claim.
func (s *rebindSite) free(ctx context.Context, r *rebinding) error {
	if err := s.patchPV(ctx, r, types.JSONPatchType, `[{"op": "remove", "path": "/spec/claimRef"}]`); err != nil {
		return err
	}
	return s.pvIs(ctx, r, corev1.VolumeAvailable)
}

// policyBack gives the PersistentVolume the policy that it had.
func policyBack(ctx context.Context, s *rebindSite, r *rebinding) error {
	return s.patchPV(ctx, r, types.StrategicMergePatchType, fmt.Sprintf(`{"spec": {"persistentVolumeReclaimPolicy": %q}}`, r.policy))
}

// byVolumeName gives the volume to a claim that names it.
func byVolumeName(name string) func(ctx context.Context, s *rebindSite, r *rebinding) error {
	return func(ctx context.Context, s *rebindSite, r *rebinding) error {
		if err := s.keep(ctx, r); err != nil {
			return err
		}
		if err := s.free(ctx, r); err != nil {
			return err
		}
		return s.take(ctx, r, name, naming(r.pv))
	}
}

// byReservation reserves the volume for a claim, by a reference without UID.
func byReservation(name string) func(ctx context.Context, s *rebindSite, r *rebinding) error {
	return func(ctx context.Context, s *rebindSite, r *rebinding) error {
		if err := s.keep(ctx, r); err != nil {
			return err
		}
		if err := s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"spec": {"claimRef": {"namespace": %q, "name": %q, "uid": null, "resourceVersion": null}}}`, s.in(r.way.to), name)); err != nil {
			return err
		}
		if err := s.pvIs(ctx, r, corev1.VolumeAvailable); err != nil {
			return err
		}
		return s.take(ctx, r, name, nil)
	}
}

// Populators fill a volume through a claim of their own, and hand its PersistentVolume
// over. The claim that gets it exists from the beginning, and has its UID.

// ask makes the claim of a user whose content a populator provides.
func (s *rebindSite) ask(ctx context.Context, r *rebinding, name string) (err error) {
	group := "populator.example"
	r.to, err = suite.CreateClaim(ctx, s.newClaim(r, r.way.to, name, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "Hello", Name: "world"}
	}))
	return err
}

// patchFinalizers patches the finalizers of the user's claim.
func (s *rebindSite) patchFinalizers(ctx context.Context, r *rebinding, patch string) error {
	_, err := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace).Patch(ctx, r.to.Name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// libPopulatorFinalizer is on the user's claim until the population is over.
const libPopulatorFinalizer = "populator.example/populate-target-protection"

// prepareByLibPopulator, handOverByLibPopulator and finishByLibPopulator: kubernetes-csi/
// lib-volume-populator v3.2.0, populator-machinery/controller.go, syncPvc. The claim prime
// is in the populator's namespace.
func prepareByLibPopulator(ctx context.Context, s *rebindSite, r *rebinding) error {
	if err := s.ask(ctx, r, "data"); err != nil {
		return err
	}
	prime := s.newClaim(r, r.from, "prime-"+string(r.to.UID), func(prime *corev1.PersistentVolumeClaim) {
		prime.Spec = corev1.PersistentVolumeClaimSpec{
			AccessModes: r.to.Spec.AccessModes, Resources: r.to.Spec.Resources, StorageClassName: r.to.Spec.StorageClassName, VolumeMode: r.to.Spec.VolumeMode,
		}
	})
	if _, err := suite.CreateClaim(ctx, prime); err != nil {
		return err
	}
	finalizers, err := json.Marshal(r.to.Finalizers)
	if err != nil {
		return err
	}
	if err := s.patchFinalizers(ctx, r, fmt.Sprintf(`[{"op": "test", "path": "/metadata/finalizers", "value": %s}, {"op": "add", "path": "/metadata/finalizers/-", "value": %q}]`,
		finalizers, libPopulatorFinalizer)); err != nil {
		return err
	}
	// Here a pod writes through the claim prime.
	return s.has(ctx, r, prime)
}

func handOverByLibPopulator(ctx context.Context, s *rebindSite, r *rebinding) error {
	return s.patchClaimRef(ctx, r, "populator.example/populated-from")
}

// patchClaimRef applies a whole PersistentVolume as a strategic merge patch.
func (s *rebindSite) patchClaimRef(ctx context.Context, r *rebinding, from string) error {
	patch, err := json.Marshal(corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: r.pv, Annotations: map[string]string{from: r.to.Namespace + "/world"}},
		Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{
			Namespace: r.to.Namespace, Name: r.to.Name, UID: r.to.UID, ResourceVersion: r.to.ResourceVersion,
		}},
	})
	if err != nil {
		return err
	}
	if err := s.patchPV(ctx, r, types.StrategicMergePatchType, string(patch)); err != nil {
		return err
	}
	return s.handedOver(ctx, r)
}

func finishByLibPopulator(ctx context.Context, s *rebindSite, r *rebinding) error {
	if err := dropLost(ctx, s, r); err != nil {
		return err
	}
	now, err := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace).Get(ctx, r.to.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	path := fmt.Sprintf("/metadata/finalizers/%d", slices.Index(now.Finalizers, libPopulatorFinalizer))
	return s.patchFinalizers(ctx, r, fmt.Sprintf(`[{"op": "test", "path": %q, "value": %q}, {"op": "remove", "path": %q}]`, path, libPopulatorFinalizer, path))
}

// dropLost waits until Kubernetes calls the populator's claim Lost, and deletes it.
func dropLost(ctx context.Context, s *rebindSite, r *rebinding) error {
	if err := s.claimIs(ctx, r.made, corev1.ClaimLost); err != nil {
		return err
	}
	return s.drop(ctx, r.made)
}

// handedOver waits until the user's claim has the PersistentVolume. The leader waits until
// the populator's claim shows that it has lost it: Kubernetes looks at claims when they
// change, and every 15 s.
func (s *rebindSite) handedOver(ctx context.Context, r *rebinding) error {
	if err := s.claimIs(ctx, r.to, corev1.ClaimBound); err != nil || s.patient {
		return err
	}
	return s.show(ctx, r.made)
}

// show makes Kubernetes look at a claim.
func (s *rebindSite) show(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := suite.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType,
		[]byte(`{"metadata": {"annotations": {"example.com/look": "now"}}}`), metav1.PatchOptions{})
	return err
}

// ownedByTarget makes the user's claim the controller of the populator's.
func ownedByTarget(r *rebinding) []metav1.OwnerReference {
	yes := true
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: r.to.Name, UID: r.to.UID, Controller: &yes, BlockOwnerDeletion: &yes}}
}

// prepareByCDI and handOverByCDI: kubevirt/containerized-data-importer v1.66.0,
// pkg/controller/populators/populator-base.go (createPVCPrime, reconcileCleanup) and
// pkg/controller/common/util.go (Rebind). The claim prime is in the user's namespace; the
// PersistentVolume is replaced, not patched. Forklift's populator uses the same code.
func prepareByCDI(ctx context.Context, s *rebindSite, r *rebinding) error {
	if err := s.ask(ctx, r, "data"); err != nil {
		return err
	}
	return s.makeFor(ctx, r, "prime-"+string(r.to.UID), func(prime *corev1.PersistentVolumeClaim) {
		prime.Labels = map[string]string{"app": "containerized-data-importer", "velero.io/exclude-from-backup": "true"}
		prime.Annotations = map[string]string{"cdi.kubevirt.io/storage.bind.immediate.requested": "", "cdi.kubevirt.io/storage.populator.kind": "VolumeImportSource"}
		prime.OwnerReferences = ownedByTarget(r)
	})
}

func handOverByCDI(ctx context.Context, s *rebindSite, r *rebinding) error {
	claims := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace)
	for {
		now, err := claims.Get(ctx, r.to.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Annotations = map[string]string{"cdi.kubevirt.io/storage.populator.pvcPrime": r.made.Name, "cdi.kubevirt.io/storage.pod.phase": "Succeeded"}
		if r.to, err = claims.Update(ctx, now, metav1.UpdateOptions{}); err == nil {
			break
		}
		if !apierrors.IsConflict(err) {
			return err
		}
	}
	for {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != r.made.UID {
			return fmt.Errorf("PersistentVolume %s is for %+v", r.pv, pv.Spec.ClaimRef)
		}
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: r.to.Namespace, Name: r.to.Name, UID: r.to.UID, ResourceVersion: r.to.ResourceVersion}
		if _, err = suite.Client.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err == nil {
			return s.handedOver(ctx, r)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// prepareByVolSync and handOverByVolSync: backube/volsync v0.16.0, internal/controller/
// volumepopulator_controller.go. The claim prime is in the user's namespace, and is made
// from a VolumeSnapshot.
func prepareByVolSync(ctx context.Context, s *rebindSite, r *rebinding) error {
	original := &rebinding{way: r.way}
	if err := s.makeFor(ctx, original, "replicated", nil); err != nil {
		return err
	}
	snapshot, err := s.snapshot(ctx, original.made, original.volume)
	if err != nil {
		return err
	}
	r.source, r.besides = snapshot.Name, counted{1, 1, 1}
	if err := s.ask(ctx, r, "data"); err != nil {
		return err
	}
	return s.makeFor(ctx, r, "vs-prime-"+string(r.to.UID), func(prime *corev1.PersistentVolumeClaim) {
		group := snapshotv1.GroupName
		prime.Labels = map[string]string{"volsync.backube/populator-pvc-for": r.to.Name, "app.kubernetes.io/created-by": "volsync"}
		prime.OwnerReferences = ownedByTarget(r)
		prime.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: snapshot.Name}
	})
}

func handOverByVolSync(ctx context.Context, s *rebindSite, r *rebinding) error {
	return s.patchClaimRef(ctx, r, "volsync.backube/populated-from")
}

func finishByVolSync(ctx context.Context, s *rebindSite, r *rebinding) error {
	if err := dropLost(ctx, s, r); err != nil {
		return err
	}
	if err := s.removeSnapshot(ctx, r.to.Namespace, r.source); err != nil {
		return err
	}
	r.source, r.besides = "", counted{}
	return s.drop(ctx, harness.Claim(s.in(r.from), "replicated", s.classOf(r), "1Gi", nil))
}

// prepareByVelero, handOverByVelero and finishByVelero: vmware-tanzu/velero v1.18.1,
// pkg/exposer/generic_restore.go (Expose, RebindVolume) and pkg/util/kube/pvc_pv.go
// (SetPVReclaimPolicy, EnsureDeletePVC, RebindPVC, ResetPVBinding). Its claim is in Velero's
// namespace, and named after a DataDownload; the user's has a selector
// (pkg/restore/actions/csi/pvc_action.go), so nothing is made for it meanwhile.
func prepareByVelero(ctx context.Context, s *rebindSite, r *rebinding) (err error) {
	r.to, err = suite.CreateClaim(ctx, s.newClaim(r, r.way.to, "data", func(claim *corev1.PersistentVolumeClaim) {
		claim.Labels = map[string]string{"velero.io/backup-name": "backup", "velero.io/restore-name": "restore"}
		claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"velero.io/dynamic-pv-restore": s.in(r.way.to) + ".data.x7k2p"}}
	}))
	if err != nil {
		return err
	}
	return s.makeFor(ctx, r, "restore-7k2px", func(claim *corev1.PersistentVolumeClaim) {
		yes := true
		claim.Labels, claim.Annotations = r.to.Labels, r.to.Annotations
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v2alpha1", Kind: "DataDownload", Name: claim.Name, UID: "8f0c2a5e-7c7d-4a36-8c0a-2a1e0d5f4b11", Controller: &yes}}
	})
}

func handOverByVelero(ctx context.Context, s *rebindSite, r *rebinding) error {
	if r.policy != corev1.PersistentVolumeReclaimRetain {
		if err := s.patchPV(ctx, r, types.MergePatchType, `{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}`); err != nil {
			return err
		}
	}
	if err := s.drop(ctx, r.made); err != nil {
		return err
	}
	if _, err := suite.Client.CoreV1().PersistentVolumeClaims(r.to.Namespace).Patch(ctx, r.to.Name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec": {"volumeName": %q}}`, r.pv), metav1.PatchOptions{}); err != nil {
		return err
	}
	labels, err := json.Marshal(r.to.Spec.Selector.MatchLabels)
	if err != nil {
		return err
	}
	// A typed client decodes no kind, so the reference has none.
	if err := s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"metadata": {"labels": %s, "annotations": {"pv.kubernetes.io/bound-by-controller": null}},
		"spec": {"claimRef": {"apiVersion": null, "kind": null, "namespace": %q, "name": %q, "uid": null, "resourceVersion": null}}}`, labels, r.to.Namespace, r.to.Name)); err != nil {
		return err
	}
	return s.claimIs(ctx, r.to, corev1.ClaimBound)
}

func finishByVelero(ctx context.Context, s *rebindSite, r *rebinding) error {
	return s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"spec": {"persistentVolumeReclaimPolicy": %q}}`, r.policy))
}

// Objects that are restored from a backup or from files have new UIDs.

// exported is what a backup has of a volume.
type exported struct {
	pv     *corev1.PersistentVolume
	claim  *corev1.PersistentVolumeClaim
	secret []corev1.Secret
}

// export reads the objects.
func (s *rebindSite) export(ctx context.Context, r *rebinding) (e exported, err error) {
	if e.pv, err = suite.Client.CoreV1().PersistentVolumes().Get(ctx, r.pv, metav1.GetOptions{}); err != nil {
		return e, err
	}
	if e.claim, err = suite.Client.CoreV1().PersistentVolumeClaims(r.made.Namespace).Get(ctx, r.made.Name, metav1.GetOptions{}); err != nil {
		return e, err
	}
	e.secret, err = s.secrets(ctx)
	return e, err
}

// anew removes what the API server gives every object.
func anew(meta *metav1.ObjectMeta) {
	meta.GenerateName, meta.UID, meta.ResourceVersion, meta.Generation = "", "", "", 0
	meta.CreationTimestamp, meta.DeletionTimestamp, meta.DeletionGracePeriodSeconds = metav1.Time{}, nil, nil
	meta.OwnerReferences, meta.ManagedFields = nil, nil
}

const (
	bindCompleted     = "pv.kubernetes.io/bind-completed"
	boundByController = "pv.kubernetes.io/bound-by-controller"
)

// forget deletes claim and PersistentVolume, and keeps the volume at Cinder.
func (s *rebindSite) forget(ctx context.Context, r *rebinding) error {
	if err := s.keep(ctx, r); err != nil {
		return err
	}
	pvs := suite.Client.CoreV1().PersistentVolumes()
	if err := pvs.Delete(ctx, r.pv, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.eventually(ctx, func() (string, error) {
		_, err := pvs.Get(ctx, r.pv, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "PersistentVolume " + r.pv + " is not gone", err
	})
}

// restore makes the objects again. Secrets are restored only if they are missing.
func (s *rebindSite) restore(ctx context.Context, r *rebinding, e exported) error {
	for _, secret := range e.secret {
		anew(&secret.ObjectMeta)
		if _, err := suite.Client.CoreV1().Secrets(secret.Namespace).Create(ctx, &secret, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	anew(&e.pv.ObjectMeta)
	e.pv.Status = corev1.PersistentVolumeStatus{}
	if _, err := suite.Client.CoreV1().PersistentVolumes().Create(ctx, e.pv, metav1.CreateOptions{}); err != nil {
		return err
	}
	anew(&e.claim.ObjectMeta)
	e.claim.Status = corev1.PersistentVolumeClaimStatus{}
	var err error
	if r.to, err = suite.CreateClaim(ctx, e.claim); err != nil {
		return err
	}
	return s.claimIs(ctx, r.to, corev1.ClaimBound)
}

// handOverByRestore: vmware-tanzu/velero v1.18.1, pkg/restore/restore.go (restoreItem,
// handleSkippedPVHasRetainPolicy, resetVolumeBindingInfo, resetMetadata) and
// pkg/restore/actions/pvc_action.go. Of PersistentVolumes without a snapshot, Velero
// restores only those with the policy Retain; finalizers, labels and annotations stay.
func handOverByRestore(ctx context.Context, s *rebindSite, r *rebinding) error {
	e, err := s.export(ctx, r)
	if err != nil {
		return err
	}
	if err := s.forget(ctx, r); err != nil {
		return err
	}
	labels := map[string]string{"velero.io/backup-name": "backup", "velero.io/restore-name": "restore"}
	e.pv.Labels = labels
	e.pv.Spec.ClaimRef.UID, e.pv.Spec.ClaimRef.ResourceVersion = "", ""
	delete(e.pv.Annotations, bindCompleted)
	delete(e.pv.Annotations, boundByController)
	e.claim.Labels = labels
	maps.DeleteFunc(e.claim.Annotations, func(key, _ string) bool {
		return slices.Contains([]string{
			bindCompleted, boundByController, "volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner", "volume.kubernetes.io/selected-node",
		}, key)
	})
	return s.restore(ctx, r, e)
}

// handOverByKubectl applies exported objects again. Kubernetes binds them if the
// reference to the claim has no UID and the claim is not marked as bound.
func handOverByKubectl(change func(pv *corev1.PersistentVolume)) func(ctx context.Context, s *rebindSite, r *rebinding) error {
	return func(ctx context.Context, s *rebindSite, r *rebinding) error {
		e, err := s.export(ctx, r)
		if err != nil {
			return err
		}
		if err := s.forget(ctx, r); err != nil {
			return err
		}
		e.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		e.pv.Spec.ClaimRef.UID, e.pv.Spec.ClaimRef.ResourceVersion = "", ""
		delete(e.claim.Annotations, bindCompleted)
		if change != nil {
			change(e.pv)
		}
		return s.restore(ctx, r, e)
	}
}

// handOverByOldAdvice does what events of earlier versions told an operator to do after
// that: it writes the UID that the PersistentVolume's reference has.
func handOverByOldAdvice(ctx context.Context, s *rebindSite, r *rebinding) error {
	if err := handOverByKubectl(nil)(ctx, s, r); err != nil {
		return err
	}
	return s.patchPV(ctx, r, types.MergePatchType, fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, annotation("claim-uid"), r.to.UID))
}

// handOverToAnotherCluster applies exported objects to a cluster that has none of these,
// with the same clusterID. The UID of that cluster's namespace kube-system is another.
func handOverToAnotherCluster(ctx context.Context, s *rebindSite, r *rebinding) error {
	e, err := s.export(ctx, r)
	if err != nil {
		return err
	}
	for _, n := range s.living() {
		s.kill(n)
	}
	if err := s.drop(ctx, r.made); err != nil {
		return err
	}
	pvs := suite.Client.CoreV1().PersistentVolumes()
	if err := s.eventually(ctx, func() (string, error) {
		// Kubernetes may protect the object again meanwhile.
		_, err := pvs.Patch(ctx, r.pv, types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
		if err == nil {
			err = pvs.Delete(ctx, r.pv, metav1.DeleteOptions{})
		}
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "PersistentVolume " + r.pv + " is not gone", err
	}); err != nil {
		return err
	}
	for _, secret := range e.secret {
		if err := suite.Client.CoreV1().Secrets(secret.Namespace).Delete(ctx, secret.Name, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	v, _ := s.sim.Volume(r.volume)
	v.Metadata[annotation("kube-system-uid")] = "0b4f6c1e-5d1e-4f6f-9f7c-3c7c1b1c0a01"
	if err := s.sim.SetVolumeMetadata(r.volume, v.Metadata); err != nil {
		return err
	}
	e.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	e.pv.Spec.ClaimRef.UID, e.pv.Spec.ClaimRef.ResourceVersion = "", ""
	delete(e.claim.Annotations, bindCompleted)
	if err := s.restore(ctx, r, e); err != nil {
		return err
	}
	_, err = s.start(ctx)
	return err
}
