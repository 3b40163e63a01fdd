package swap

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// eachToOne fails unless each volume is recorded by one PersistentVolume, whose stamp it has.
func (f *fixture) eachToOne(t *testing.T) {
	t.Helper()
	recordedBy := map[string]string{}
	pvs, err := f.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pvs.Items {
		pv := &pvs.Items[i]
		id := pv.Annotations[objects.AnnotationVolume]
		if other := recordedBy[id]; other != "" {
			t.Errorf("PersistentVolumes of claims %s and %s both record %s", other, pv.Spec.ClaimRef.Name, id)
		}
		recordedBy[id] = pv.Spec.ClaimRef.Name
		if stamp := stamps.Of(*f.fakeVolumes.volumes[id]); stamp.PV != pv.Name {
			t.Errorf("claim %s records %s, which is stamped for PersistentVolume %s", pv.Spec.ClaimRef.Name, id, stamp.PV)
		}
	}
	for id, v := range f.fakeVolumes.volumes {
		if recordedBy[id] == "" {
			t.Errorf("no PersistentVolume records %s, which is stamped for %s", id, stamps.Of(*v).PV)
		}
	}
}

// volumeOf returns the volume that the PersistentVolume of a claim records.
func (f *fixture) volumeOf(t *testing.T, claim string) string {
	t.Helper()
	c, err := f.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), claim, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), c.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pv.Annotations[objects.AnnotationVolume]
}

// TestTheLastIntentOfAnEndedSwapIsNoNewSwap: the last request of a swap, which forgets the
// intent that decides, fails. The other claim, on which nothing shows, is swapped with a third,
// and then the first command is run again, as it said.
func TestTheLastIntentOfAnEndedSwapIsNoNewSwap(t *testing.T) {
	f := newFixture()
	f.third()
	f.swapper(t)
	lost := false
	f.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if !lost && patch.GetName() == f.pvs[0].Name && strings.Contains(string(patch.GetPatch()), `"`+AnnotationIntent+`":null`) {
			lost = true
			return true, nil, errors.New("the API server does not answer")
		}
		return false, nil, nil
	})
	if err := f.run(t, request); err == nil || !lost {
		t.Fatal("the case is wrong")
	}
	if err := f.run(t, Request{Namespace: "team-a", Claims: [2]string{"old", "third"}}); err != nil {
		t.Fatal(err)
	}
	f.eachToOne(t)
	if t.Failed() {
		t.Fatal("the case is wrong")
	}
	t.Logf("run again: %v", f.run(t, request))
	f.eachToOne(t)
}

// TestALateRunOfACommittedSwap: a command finds that a swap is committed, and pauses. Another
// run ends the swap, and one of its claims is swapped with a third. Then the first goes on.
func TestALateRunOfACommittedSwap(t *testing.T) {
	f := newFixture()
	f.third()
	f.killed(t, 3)
	versioned(t, f)
	r := f.swapper(t)
	late, err := r.Plan(t.Context(), request)
	if err != nil || !late.finishes {
		t.Fatal("the case is wrong")
	}
	for _, of := range []Request{request, withThird} {
		if err := f.run(t, of); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the late run: %v", r.Apply(t.Context(), late))
	f.eachToOne(t)
}

// TestAnotherSwapIsNotTakenForTheOneAskedFor: a swap died before its intents were forgotten,
// and the second claim was deleted, with its volume and PersistentVolume. Then the claim is to
// be swapped with a third one.
func TestAnotherSwapIsNotTakenForTheOneAskedFor(t *testing.T) {
	f := newFixture()
	f.third()
	f.killed(t, 6) // the last End has worked
	for _, err := range []error{
		f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "old", metav1.DeleteOptions{}),
		f.client.CoreV1().PersistentVolumes().Delete(t.Context(), f.pvs[1].Name, metav1.DeleteOptions{}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	delete(f.fakeVolumes.volumes, "volume-1")
	swapper := f.swapper(t)
	plan, err := swapper.Plan(t.Context(), withThird)
	if err == nil {
		err = swapper.Apply(t.Context(), plan)
	}
	if data := f.volumeOf(t, "data"); err == nil && data != "volume-3" {
		t.Errorf("the command succeeds, and says %q, but claim data has %s, and third has %s", plan.Describe(), data, f.volumeOf(t, "third"))
	}
}

// TestASwapWhoseClaimWasMadeAnewEnds: after a kill between stamps and records, the claim is
// deleted, its PersistentVolume is kept, and a StatefulSet makes it anew. The command ends the
// swap of the former claim, and must not say that it has swapped the new one.
func TestASwapWhoseClaimWasMadeAnewEnds(t *testing.T) {
	f := newFixture()
	f.killed(t, 4)
	f.third()
	claims := f.client.CoreV1().PersistentVolumeClaims("team-a")
	if err := claims.Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pv, claim := f.more[0].(*corev1.PersistentVolume), f.more[1].(*corev1.PersistentVolumeClaim)
	claim.Name, pv.Spec.ClaimRef.Name = "old", "old"
	if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	swapper := f.swapper(t)
	plan, err := swapper.Plan(t.Context(), request)
	if err == nil {
		err = swapper.Apply(t.Context(), plan)
	}
	if left := f.left(t); left != "" {
		t.Errorf("%s\nerror: %v", left, err)
	}
	if old := f.volumeOf(t, "old"); err == nil && old == "volume-3" {
		t.Errorf("the command succeeds, and says %q, but the claim old of now still has %s", plan.Describe(), old)
	}
}

// versioned makes the fake API server count versions of PersistentVolumes, and refuse a patch of
// an earlier one.
func versioned(t *testing.T, f *fixture) {
	t.Helper()
	gvr := corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	version := 100
	all, err := f.client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pv := range all.Items {
		pv.ResourceVersion = "100"
		if err := f.client.Tracker().Update(gvr, &pv, ""); err != nil {
			t.Fatal(err)
		}
	}
	f.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		object, err := f.client.Tracker().Get(gvr, "", patch.GetName())
		if err != nil {
			return true, nil, err
		}
		pv := object.(*corev1.PersistentVolume).DeepCopy()
		var change struct {
			Metadata struct {
				ResourceVersion string             `json:"resourceVersion"`
				Annotations     map[string]*string `json:"annotations"`
				Labels          map[string]*string `json:"labels"`
			} `json:"metadata"`
		}
		if err := json.Unmarshal(patch.GetPatch(), &change); err != nil {
			return true, nil, err
		}
		if want := change.Metadata.ResourceVersion; want != "" && want != pv.ResourceVersion {
			return true, nil, apierrors.NewConflict(gvr.GroupResource(), pv.Name, errors.New("it has been changed"))
		}
		for key, value := range change.Metadata.Annotations {
			if delete(pv.Annotations, key); value != nil {
				pv.Annotations[key] = *value
			}
		}
		version++
		pv.ResourceVersion = strconv.Itoa(version)
		return true, pv, f.client.Tracker().Update(gvr, pv, "")
	})
}

// fails lets one patch of a PersistentVolume fail that contains a text.
func (f *fixture) fails(pv int, part string) {
	failed := false
	f.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if failed || patch.GetName() != f.pvs[pv].Name || !strings.Contains(string(patch.GetPatch()), part) {
			return false, nil, nil
		}
		failed = true
		return true, nil, errors.New("it has been changed")
	})
}

// TestWhatWasTakenBackIsNotCommitted: a run dies once it has begun. The next run takes that
// back, and its last request, which forgets the intent that decides, fails. By then a node uses
// the claims, or the other claim gets a third one's volume.
func TestWhatWasTakenBackIsNotCommitted(t *testing.T) {
	for name, meanwhile := range map[string]func(*testing.T, *fixture){
		"in use": func(_ *testing.T, f *fixture) { f.users = []string{"n1"} },
		"swapped with a third": func(t *testing.T, f *fixture) {
			if err := f.run(t, Request{Namespace: "team-a", Claims: [2]string{"old", "third"}}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			f.third()
			f.killed(t, 2)
			f.fails(0, `"`+AnnotationIntent+`":null`)
			if err := f.run(t, Request{Namespace: "team-a", Claims: [2]string{"old", "data"}}); err == nil {
				t.Fatal("the case is wrong")
			}
			meanwhile(t, f)
			err := f.run(t, request)
			if got := f.has(t); len(f.users) > 0 && (err == nil || got != before) {
				t.Errorf("the claims, which node n1 uses, have %s; error %v", got, err)
			}
			f.eachToOne(t)
		})
	}
}

// TestOneIntentDecides: the intent that decides is committed, and the request that commits the
// other one fails, or the object has been changed. Nobody can take the swap back from then on,
// in whatever order the claims are named; whoever comes next finishes it.
func TestOneIntentDecides(t *testing.T) {
	for _, first := range []Request{request, {Namespace: "team-a", Claims: [2]string{"old", "data"}}} {
		for _, second := range []Request{request, {Namespace: "team-a", Claims: [2]string{"old", "data"}}} {
			for committed, decides := range []bool{true, false} {
				f := newFixture()
				r := f.swapper(t)
				f.fails(1-committed, `\"committed\":true`)
				if err := f.run(t, first); err == nil {
					t.Fatal("the case is wrong")
				}
				plan, err := r.Plan(t.Context(), second)
				if err != nil {
					t.Fatal(err)
				}
				if plan.finishes != decides {
					t.Errorf("committed: %v, want %v", !decides, decides)
				}
				if err := r.Apply(t.Context(), plan); err != nil || f.has(t) != after {
					t.Errorf("the claims have %s, %v", f.has(t), err)
				}
			}
		}
	}
}

// TestTheIntentThatDecidesGoesLast: a run that is killed between the two removals leaves the
// one that says whether the swap was committed.
func TestTheIntentThatDecidesGoesLast(t *testing.T) {
	f := newFixture()
	f.swapper(t)
	f.fails(0, `"`+AnnotationIntent+`":null`)
	if err := f.run(t, Request{Namespace: "team-a", Claims: [2]string{"old", "data"}}); err == nil {
		t.Fatal("the case is wrong")
	}
	for i, want := range []bool{true, false} {
		pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), f.pvs[i].Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := pv.Annotations[AnnotationIntent] != ""; got != want {
			t.Errorf("PersistentVolume %d has an intent: %v", i, got)
		}
	}
}

// TestASwappedVolumeCanBeAttached: a claim was restored from snapshots and swapped each
// night for 108 nights, so its volume's filesystem may have 108 UUIDs. As attributes they keep to the limit
// of 4 KiB; in a publish context, they share it with the paths.
func TestASwappedVolumeCanBeAttached(t *testing.T) {
	f := newFixture()
	var uuids []string
	for i := range 108 {
		uuids = append(uuids, fmt.Sprintf("0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c%04d", i))
	}
	f.pvs[1].Spec.CSI.VolumeAttributes = wire.Volume{FilesystemUUIDs: uuids}.Context()
	connection := wire.Connection{Protocol: "iscsi", Paths: []wire.Path{{Portal: "192.0.2.1:3260", Target: "iqn.2010-10.org.openstack:volume-1", LUN: 1}}}
	if _, err := connection.PublishContext(); err != nil {
		t.Fatal(err)
	}
	if err := f.run(t, request); err != nil {
		return // refused
	}
	pv, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), f.pvs[0].Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	connection.Volume = &wire.SwappedVolume{ID: pv.Annotations[objects.AnnotationVolume], Volume: objects.VolumeContextOf(pv)}
	if _, err := connection.PublishContext(); err != nil {
		t.Errorf("no node gets the volume of claim data any more: %v", err)
	}
}
