package swap

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// run plans and applies what is asked for, like the command.
func (f *fixture) run(t *testing.T, r Request) error {
	t.Helper()
	swapper := f.swapper(t)
	plan, err := swapper.Plan(t.Context(), r)
	if err == nil {
		err = swapper.Apply(t.Context(), plan)
	}
	return err
}

// killed runs the swap until its nth change at Cinder, from which on nothing works.
func (f *fixture) killed(t *testing.T, n int) {
	t.Helper()
	f.fail = n
	if err := f.run(t, request); err == nil {
		t.Fatal("the swap was not killed")
	}
	f.fail = 0
}

// left returns what is still marked, reserved or intended.
func (f *fixture) left(t *testing.T) string {
	t.Helper()
	var all []string
	for id, v := range f.fakeVolumes.volumes {
		if v.Metadata[stamps.KeySwap] != "" || v.Status == cinder.StatusAttaching {
			all = append(all, id+" is marked and "+string(v.Status))
		}
	}
	pvs, err := f.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pv := range pvs.Items {
		if pv.Annotations[AnnotationIntent] != "" {
			all = append(all, pv.Name+" has an intent")
		}
	}
	return strings.Join(all, ", ")
}

// third adds a claim "third" with volume 3 at gold.
func (f *fixture) third() {
	pv, claim, v := f.pvs[0].DeepCopy(), f.claims[0].DeepCopy(), *f.volumes[0]
	uid := "0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a19"
	pv.Name, pv.UID = objects.PVNameFor(uid), types.UID("pv-"+uid)
	pv.Annotations[objects.AnnotationVolume], pv.Annotations[objects.AnnotationClaimUID] = "volume-3", uid
	pv.Spec.ClaimRef.Name, pv.Spec.ClaimRef.UID = "third", types.UID(uid)
	pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.VolumeAttributes = "gold/volume-3", wire.Volume{FilesystemUUIDs: []string{"uuid-of-third"}}.Context()
	claim.Name, claim.UID, claim.Spec.VolumeName = "third", types.UID(uid), pv.Name
	v.ID, v.Status = "volume-3", cinder.StatusAvailable
	v.Metadata = stamps.Volume{Cluster: "cluster-1", ClaimUID: uid, PV: pv.Name, Tenant: "a"}.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyAttached: "true"})
	f.fakeVolumes.volumes["volume-3"] = &v
	f.more = append(f.more, pv, claim)
}

var withThird = Request{Namespace: "team-a", Claims: [2]string{"data", "third"}}

// TestTwoSwapsAtOnceLeaveEachVolumeToOneClaim: two operators, or two jobs, swap one claim with
// two others at the same time. The second has made its plan before the first has finished.
func TestTwoSwapsAtOnceLeaveEachVolumeToOneClaim(t *testing.T) {
	f := newFixture()
	f.third()
	r := f.swapper(t)
	late, err := r.Plan(t.Context(), withThird)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.run(t, request); err != nil {
		t.Fatal(err)
	}
	_ = r.Apply(t.Context(), late)
	f.eachToOne(t)
}

// TestASwapThatWasKilledBeforeAStampCanBeEnded: nothing has been given away yet, and meanwhile
// something has come that prevents the swap.
func TestASwapThatWasKilledBeforeAStampCanBeEnded(t *testing.T) {
	for name, meanwhile := range map[string]func(*testing.T, *fixture){
		"the other claim was deleted": func(t *testing.T, f *fixture) {
			if err := f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"a rule no longer grants it": func(t *testing.T, f *fixture) {
			pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), f.pvs[0].Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pv.Spec.StorageClassName = "gold-only"
			if _, err := f.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"the claim is to grow, which its reservation prevents": func(t *testing.T, f *fixture) {
			claim := f.claims[0].DeepCopy()
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
			if _, err := f.client.CoreV1().PersistentVolumeClaims("team-a").Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"a volume is gone": func(_ *testing.T, f *fixture) { delete(f.fakeVolumes.volumes, "volume-2") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			f.killed(t, 2) // both are marked and reserved, and no stamp is written
			meanwhile(t, f)
			var errs []error
			for _, back := range []bool{false, true} {
				errs = append(errs, f.run(t, Request{request.Namespace, request.Claims, back}))
			}
			if left := f.left(t); left != "" {
				t.Errorf("after the command, also with --back: %s\nerrors: %q", left, errs)
			}
		})
	}
}

// TestASwapWhosePersistentVolumeIsReboundEnds: after a kill, the PersistentVolume (policy
// Retain, or volume rebind) gets another claim. The leader cannot record that, since it may
// not stamp a marked volume.
func TestASwapWhosePersistentVolumeIsReboundEnds(t *testing.T) {
	f := newFixture()
	f.killed(t, 4)
	claims, pvs := f.client.CoreV1().PersistentVolumeClaims("team-a"), f.client.CoreV1().PersistentVolumes()
	if err := claims.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := f.claims[1].DeepCopy()
	claim.UID, claim.ResourceVersion = "uid-of-the-second-claim-old", ""
	if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pv, err := pvs.Get(t.Context(), f.pvs[1].Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.ClaimRef.UID = claim.UID
	if _, err := pvs.Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = f.run(t, request)
	if left := f.left(t); left != "" {
		t.Errorf("%s\nerror: %v", left, err)
	}
}

// TestAnIntentAloneDoesNotBlockAClaim: the command dies after its very first change, the intent
// on the first PersistentVolume. The other claim, on which nothing shows, is then swapped with
// a third.
func TestAnIntentAloneDoesNotBlockAClaim(t *testing.T) {
	f := newFixture()
	f.third()
	r := f.swapper(t)
	plan, err := r.Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.annotate(t.Context(), plan.sides[0], map[string]any{AnnotationIntent: plan.sides[0].intent}); err != nil {
		t.Fatal(err)
	}
	if err := f.run(t, Request{Namespace: "team-a", Claims: [2]string{"old", "third"}}); err != nil {
		t.Fatal(err)
	}
	var errs []error
	for _, with := range []string{"old", "third"} {
		for _, back := range []bool{false, true} {
			errs = append(errs, f.run(t, Request{"team-a", [2]string{"data", with}, back}))
		}
	}
	if left := f.left(t); left != "" {
		t.Errorf("%s\nerrors: %q", left, errs)
	}
}

// TestACapacityIsNotLargerThanItsVolume: the claim grows between plan and reservation.
func TestACapacityIsNotLargerThanItsVolume(t *testing.T) {
	f := newFixture()
	r := f.swapper(t)
	plan, err := r.Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	pvs := f.client.CoreV1().PersistentVolumes()
	pv, err := pvs.Get(t.Context(), f.pvs[0].Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.Capacity[corev1.ResourceStorage], f.volumes[0].SizeGiB = resource.MustParse("2Gi"), 2
	if _, err := pvs.Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = r.Apply(t.Context(), plan)
	if pv, getErr := pvs.Get(t.Context(), pv.Name, metav1.GetOptions{}); getErr != nil || f.fakeVolumes.volumes[pv.Annotations[objects.AnnotationVolume]].SizeGiB < 2 {
		t.Errorf("PersistentVolume of 2Gi has volume %s of 1 GiB; error %v", pv.Annotations[objects.AnnotationVolume], err)
	}
}

// TestACommandRunAgainDoesNotSwapBack: the claims have each other's volumes, and one of them was
// swapped with a third and back since.
func TestACommandRunAgainDoesNotSwapBack(t *testing.T) {
	f := newFixture()
	f.third()
	back := withThird
	back.Back = true
	for _, r := range []Request{request, withThird, back} {
		if err := f.run(t, r); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.has(t); got != after {
		t.Fatalf("the claims have %s", got)
	}
	if err := f.run(t, request); err != nil || f.has(t) != after {
		t.Errorf("the claims have %s, %v", f.has(t), err)
	}
}

// vanishing are volumes of which one is deleted at Cinder just before it is reserved.
type vanishing struct{ *fakeVolumes }

func gone(id string) error {
	return &cinder.Error{Kind: cinder.KindNotFound, Message: "volume " + id + " does not exist"}
}

func (f vanishing) Begin(ctx context.Context, id, with string) error {
	if id == "volume-1" {
		delete(f.volumes, id)
		return gone(id)
	}
	return f.fakeVolumes.Begin(ctx, id, with)
}

// TestAVolumeThatIsGoneDoesNotKeepIntents: the volume is deleted, with its claim, between plan
// and reservation.
func TestAVolumeThatIsGoneDoesNotKeepIntents(t *testing.T) {
	f := newFixture()
	r := f.swapper(t)
	r.Volumes = func(string) (Volumes, error) { return vanishing{&f.fakeVolumes}, nil }
	plan, err := r.Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Apply(t.Context(), plan)
	if left := f.left(t); left != "" {
		t.Error(left)
	}
}

// TestAClaimThatIsBeingCopiedIsNotSwapped: while Cinder copies the volume of a claim, its status
// stays available, and a finalizer on the claim says so. What is being made of it is recorded
// with the filesystem, and the volume, that the claim had.
func TestAClaimThatIsBeingCopiedIsNotSwapped(t *testing.T) {
	for _, finalizer := range []string{objects.CopyFinalizer, "snapshot.storage.kubernetes.io/pvc-as-source-protection"} {
		f := newFixture()
		f.claims[0].Finalizers = []string{finalizer}
		if _, err := f.swapper(t).Plan(t.Context(), request); err == nil {
			t.Errorf("a claim with the finalizer %s can be swapped", finalizer)
		}
	}
}

// TestASwapThatWasKilledAtItsEndSurvivesTheDeletionOfTheOtherClaim: the records are switched,
// and one of two volumes is available again when the command dies. The owner deletes the
// second claim; the leader removes its volume and its PersistentVolume.
func TestASwapThatWasKilledAtItsEndSurvivesTheDeletionOfTheOtherClaim(t *testing.T) {
	f := newFixture()
	f.killed(t, 5) // the first End has worked
	if f.volumes[0].Metadata[stamps.KeySwap] != "" || f.volumes[1].Metadata[stamps.KeySwap] == "" {
		t.Fatal("the case is wrong")
	}
	if err := f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.client.CoreV1().PersistentVolumes().Delete(t.Context(), f.pvs[1].Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	delete(f.fakeVolumes.volumes, "volume-1")
	err := f.run(t, request)
	if left := f.left(t); left != "" {
		t.Errorf("%s\nerror: %v", left, err)
	}
}

// TestTwoSwapsThatAreKilledCanBeEnded: the first dies after its reservations, and the second has
// overwritten its intent. The volume is marked for one swap, and its PersistentVolume intends
// the other.
func TestTwoSwapsThatAreKilledCanBeEnded(t *testing.T) {
	f := newFixture()
	f.third()
	r := f.swapper(t)
	late, err := r.Plan(t.Context(), withThird)
	if err != nil {
		t.Fatal(err)
	}
	f.killed(t, 2)
	f.volumes[0].Metadata[stamps.KeySwap], f.volumes[0].Status = f.pvs[1].Name, cinder.StatusAttaching // its End did not work either
	for _, s := range late.sides {
		if err := r.annotate(t.Context(), s, map[string]any{AnnotationIntent: s.intent}); err != nil {
			t.Fatal(err)
		}
	}
	errs := []error{f.run(t, request), f.run(t, withThird), f.run(t, request)}
	if left := f.left(t); left != "" {
		t.Errorf("%s\nerrors: %q", left, errs)
	}
}

// TestPersistentVolumesRestoredFromBeforeASwapCanBeRepaired: etcd, or the two PersistentVolumes,
// come back from a backup that is older than the swap. Their records are the former ones, and
// the stamps those of after the swap, so neither claim gets its volume.
func TestPersistentVolumesRestoredFromBeforeASwapCanBeRepaired(t *testing.T) {
	f := newFixture()
	if err := f.run(t, request); err != nil {
		t.Fatal(err)
	}
	for _, pv := range newFixture().pvs {
		if _, err := f.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var errs []error
	for _, back := range []bool{false, true} {
		errs = append(errs, f.run(t, Request{request.Namespace, request.Claims, back}))
	}
	if got := f.has(t); got != before && got != after {
		t.Errorf("the claims have %s\nerrors: %q", got, errs)
	}
}

// TestASwapOfWhichOneVolumeIsLostEnds: after a kill beyond the first stamp, the array loses the
// former volume, or an administrator deletes it.
func TestASwapOfWhichOneVolumeIsLostEnds(t *testing.T) {
	f := newFixture()
	f.killed(t, 4)
	delete(f.fakeVolumes.volumes, "volume-1")
	r := f.swapper(t)
	plan, err := r.Plan(t.Context(), request)
	if err == nil {
		err = r.Apply(t.Context(), plan)
	}
	if v := f.volumes[1]; v.Metadata[stamps.KeySwap] != "" || v.Status != cinder.StatusAvailable {
		t.Errorf("volume-2 is still %s and marked; error %v", v.Status, err)
	}
}

// TestTwoRunsOfOneSwap: the second takes back what the first has begun, while that one still
// runs. The first cannot commit it any more: whoever writes an intent requires that the object
// is as it was read, and taking back changes it.
func TestTwoRunsOfOneSwap(t *testing.T) {
	f := newFixture()
	for _, pv := range f.pvs {
		pv.ResourceVersion = "7"
	}
	r := f.swapper(t)
	first, err := r.Plan(t.Context(), request)
	if err == nil {
		_, err = r.intend(t.Context(), first)
	}
	if err == nil {
		err = r.begin(t.Context(), first)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.client.ClearActions()
	second, err := r.Plan(t.Context(), request)
	if err == nil {
		err = r.takeBack(t.Context(), *second.earlier)
	}
	if err != nil {
		t.Fatal(err)
	}
	var patches []string
	for _, action := range f.client.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			patches = append(patches, string(patch.GetPatch()))
		}
	}
	if len(patches) != 4 || patches[0] == patches[1] {
		t.Fatalf("the second run has made the patches %q", patches)
	}
	for _, patch := range patches[:2] {
		if !strings.Contains(patch, `takenBack`) || !strings.Contains(patch, `"resourceVersion":"7"`) {
			t.Errorf("patch %s", patch)
		}
	}
	if got := f.has(t); got != before {
		t.Errorf("the claims have %s", got)
	}
	f.client.ClearActions()
	first.sides[0].intent.Committed = true
	if _, err := r.intend(t.Context(), first); err != nil || !strings.Contains(string(f.client.Actions()[0].(clienttesting.PatchAction).GetPatch()), `"resourceVersion":"7"`) {
		t.Errorf("the first run commits with %v, %v", f.client.Actions(), err)
	}
}
