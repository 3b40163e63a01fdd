package rebind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

const testPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [fast], backends: [gold]}
  - name: b
    namespaces: [team-b]
    classes:
      - {storageClasses: [fast], backends: [gold]}
`

const pvName = "pvc-c1"

// fixture is a cluster and a volume. Its fields may be changed until mover is called.
type fixture struct {
	*testing.T
	claim              *corev1.PersistentVolumeClaim
	pv                 *corev1.PersistentVolume
	others             []runtime.Object
	volume             cinder.Volume
	missing, elsewhere bool
	request            Request

	client *fake.Clientset
	// before is called before each request of the command. If it returns an error, the
	// request is not sent.
	before func(verb, resource string) error
	denies bool
	// settle is how long something that has begun may take to show; zero means 20 ms.
	settle time.Duration
	// still means that Kubernetes and the leader do nothing.
	still bool

	mu   sync.Mutex
	said []string
}

func newFixture(t *testing.T) *fixture {
	stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: "c1", PV: pvName, Tenant: "a"}
	return &fixture{
		T:       t,
		request: Request{PersistentVolume: pvName, Namespace: "team-b", Claim: "moved"},
		claim:   newTestClaim("team-a", "data", "c1"),
		pv: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pvName, UID: "pv1", Annotations: map[string]string{
				objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a",
				objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "c1", objects.AnnotationConnector: "{}",
			}},
			Spec: corev1.PersistentVolumeSpec{
				ClaimRef:                      &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "team-a", Name: "data", UID: "c1", ResourceVersion: "7"},
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
				StorageClassName:              "fast",
				PersistentVolumeSource:        corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1:3260", IQN: "iqn.1"}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		},
		volume: cinder.Volume{ID: "volume-1", SizeGiB: 2, Status: cinder.StatusInUse, Metadata: stamp.Metadata(nil)},
	}
}

// newTestClaim returns a claim that is bound to the PersistentVolume.
func newTestClaim(namespace, name, uid string) *corev1.PersistentVolumeClaim {
	class := "fast"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeName: pvName, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
}

// target adds a claim under the name that gets the PersistentVolume.
func (f *fixture) target(change func(*corev1.PersistentVolumeClaim)) {
	claim := newTestClaim("team-b", "moved", "c2")
	claim.Status.Phase = corev1.ClaimPending
	if change != nil {
		change(claim)
	}
	f.others = append(f.others, claim)
}

// released makes the PersistentVolume one whose claim is gone.
func (f *fixture) released() {
	f.claim, f.pv.Status.Phase = nil, corev1.VolumeReleased
}

func (f *fixture) Look(context.Context, backends.Target) (cinder.Volume, cinder.Place, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.missing:
		return cinder.Volume{}, cinder.Place{}, nil
	case f.elsewhere:
		return cinder.Volume{}, cinder.Place{}, &cinder.Error{Backend: "gold", Kind: backends.KindElsewhere, Message: "volume volume-1 was recorded elsewhere"}
	}
	return f.volume, cinder.Place{}, nil
}

// mover starts the cluster.
func (f *fixture) mover() *Rebinder {
	f.Helper()
	p, err := policy.Parse([]byte(testPolicy), "policy.yaml", nil)
	if err != nil {
		f.Fatal(err)
	}
	if f.client == nil {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "test"}
		objects := append(f.others, f.pv, class)
		for _, name := range []string{"team-a", "team-b", "stranger"} {
			objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		if f.claim != nil {
			objects = append(objects, f.claim)
		}
		f.client = fake.NewClientset(objects...)
		f.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if f.before != nil {
				if err := f.before(action.GetVerb(), action.GetResource().Resource); err != nil {
					return true, nil, err
				}
			}
			if create, ok := action.(clienttesting.CreateAction); ok {
				if claim, ok := create.GetObject().(*corev1.PersistentVolumeClaim); ok {
					claim.UID = "new"
					claim.Status.Phase = corev1.ClaimPending
				}
			}
			return false, nil, nil
		})
		if f.still {
			return f.newMover(p)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for sleep(ctx, time.Millisecond) == nil {
				f.reconcile()
			}
		}()
		f.Cleanup(func() { stop(); <-done })
	}
	return f.newMover(p)
}

func (f *fixture) newMover(p *policy.Policy) *Rebinder {
	return &Rebinder{
		Client: f.client, Policy: p, ProvisionerName: "test", Cluster: "cluster-1",
		Volumes: func(backend string) (Volumes, error) {
			if backend != "gold" {
				return nil, errors.New("the policy has no backend " + backend)
			}
			return f, nil
		},
		Nodes: nodeuse.New(nodeuse.Options{Client: f.client}),
		Say: func(what string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.said = append(f.said, what)
		},
		Pause: time.Millisecond, Settle: cmp.Or(f.settle, 20*time.Millisecond),
	}
}

var (
	pvResource    = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	claimResource = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	eventResource = corev1.SchemeGroupVersion.WithResource("events")
)

// reconcile does what Kubernetes and the leader do, and checks that the volume of a
// PersistentVolume without a claim is never left to be deleted.
func (f *fixture) reconcile() {
	// The tracker knows no resource versions. The fake holds this lock during each request.
	f.client.Lock()
	defer f.client.Unlock()
	tracker := f.client.Tracker()
	object, err := tracker.Get(pvResource, "", pvName)
	if err != nil {
		return
	}
	pv := object.(*corev1.PersistentVolume).DeepCopy()
	ref := pv.Spec.ClaimRef
	if ref == nil {
		return
	}
	var claim *corev1.PersistentVolumeClaim
	if object, err := tracker.Get(claimResource, ref.Namespace, ref.Name); err == nil && object.(*corev1.PersistentVolumeClaim).UID == ref.UID {
		claim = object.(*corev1.PersistentVolumeClaim).DeepCopy()
	}
	switch {
	case claim == nil && pv.Status.Phase == corev1.VolumeBound:
		if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			f.Error("the claim was deleted before the reclaim policy was Retain")
		}
		f.patchPV(func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeReleased })
	case claim == nil:
	case claim.Status.Phase != corev1.ClaimBound || pv.Status.Phase != corev1.VolumeBound:
		claim.Status.Phase = corev1.ClaimBound
		if err := tracker.Update(claimResource, claim, claim.Namespace); err != nil {
			f.Error(err)
		}
		f.patchPV(func(pv *corev1.PersistentVolume) { pv.Status.Phase = corev1.VolumeBound })
	case objects.HolderOf(pv) == claim.UID:
	case f.denies:
		for _, event := range []corev1.Event{
			{ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace}, InvolvedObject: corev1.ObjectReference{UID: claim.UID}, Message: "no rule grants it"},
			{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault}, InvolvedObject: corev1.ObjectReference{UID: pv.UID}, Message: "no rule grants it, says the operator's"},
		} {
			event.Name, event.Reason = "denied", rebindDenied
			_ = tracker.Create(eventResource, &event, event.Namespace) // unless it is there already
		}
	default:
		f.patchPV(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationReboundTo] = string(claim.UID) })
	}
}

// patchPV changes the PersistentVolume. The caller holds the lock of the fake.
func (f *fixture) patchPV(change func(*corev1.PersistentVolume)) {
	object, err := f.client.Tracker().Get(pvResource, "", pvName)
	if err != nil {
		f.Error(err)
		return
	}
	pv := object.(*corev1.PersistentVolume).DeepCopy()
	change(pv)
	if err := f.client.Tracker().Update(pvResource, pv, ""); err != nil {
		f.Error(err)
	}
}

// run plans and applies with what is there.
func (f *fixture) run() error {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), 10*time.Second)
	defer cancel()
	m := f.mover()
	plan, err := m.Plan(ctx, f.request)
	if err != nil {
		return err
	}
	return m.Apply(ctx, plan)
}

func (f *fixture) livePV() *corev1.PersistentVolume {
	f.Helper()
	object, err := f.client.Tracker().Get(pvResource, "", pvName)
	if err != nil {
		f.Fatal(err)
	}
	return object.(*corev1.PersistentVolume)
}

// uidOf returns the UID of a claim; empty if there is none.
func (f *fixture) uidOf(namespace, name string) types.UID {
	object, err := f.client.Tracker().Get(claimResource, namespace, name)
	if err != nil {
		return ""
	}
	return object.(*corev1.PersistentVolumeClaim).UID
}

// moved checks the end of a move.
func (f *fixture) moved(uid types.UID, reclaim corev1.PersistentVolumeReclaimPolicy) {
	f.Helper()
	pv := f.livePV()
	want := corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: f.request.Namespace, Name: f.request.Claim, UID: uid}
	if pv.Spec.ClaimRef == nil || *pv.Spec.ClaimRef != want || objects.HolderOf(pv) != uid || pv.Spec.PersistentVolumeReclaimPolicy != reclaim {
		f.Errorf("the PersistentVolume is %+v", pv)
	}
	if _, left := pv.Annotations[AnnotationReclaimPolicy]; left {
		f.Error("the annotation is left")
	}
	object, err := f.client.Tracker().Get(claimResource, f.request.Namespace, f.request.Claim)
	if err != nil {
		f.Fatal(err)
	}
	if claim := object.(*corev1.PersistentVolumeClaim); claim.UID != uid || claim.Spec.VolumeName != pvName {
		f.Errorf("the claim is %+v", claim)
	}
}

func TestAClaimGetsThePersistentVolume(t *testing.T) {
	retain := func(f *fixture) { f.pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain }
	for name, test := range map[string]struct {
		change  func(*fixture)
		uid     types.UID
		reclaim corev1.PersistentVolumeReclaimPolicy
		steps   []string
		// keeps means that the claim that has only the name is left.
		keeps bool
	}{
		"of another tenant": {
			change: func(f *fixture) { f.request.DeleteClaim = true },
			steps: []string{
				"set the reclaim policy of PersistentVolume pvc-c1 from Delete to Retain, and note Delete in its annotation " + AnnotationReclaimPolicy,
				"create claim team-b/moved, which names PersistentVolume pvc-c1 (2Gi, StorageClass fast)",
				"delete claim team-a/data, and wait until it is gone",
				"bind PersistentVolume pvc-c1 to claim team-b/moved (spec.claimRef) once no node uses it",
				"wait until both are Bound",
				"wait until the leader has stamped volume volume-1 for the claim, which then counts for tenant b (2 GiB, tenants[1].classes[0]) instead of tenant a, who loses it with its data",
				"set the reclaim policy of PersistentVolume pvc-c1 to Delete, as it was",
			},
		},
		"of the same tenant": {
			change: func(f *fixture) { f.request.DeleteClaim, f.request.Namespace = true, "team-a" },
			steps:  []string{"which still counts for tenant a (2 GiB, tenants[0].classes[0])"},
		},
		"after a volume was kept": {
			change: func(f *fixture) { f.released(); retain(f) }, reclaim: corev1.PersistentVolumeReclaimRetain,
			steps: []string{"create claim team-b/moved", "bind PersistentVolume", "wait until both", "wait until the leader"},
		},
		"under the name of the one that is gone": {
			change: func(f *fixture) { f.released(); f.request.Namespace, f.request.Claim = "team-a", "data" },
		},
		"of which another has only the name": {
			change: func(f *fixture) { f.claim.UID = "c9"; f.pv.Status.Phase = corev1.VolumeReleased },
		},
		"although claimRef names one with a volume of its own": {
			change: func(f *fixture) {
				f.request.DeleteClaim, f.claim.Spec.VolumeName, f.pv.Status.Phase = true, "other", corev1.VolumeReleased
			}, keeps: true,
			steps: []string{"set the reclaim policy", "create claim team-b/moved", "bind PersistentVolume"},
		},
		"although it is reserved for one with a volume of its own": {
			change: func(f *fixture) {
				f.request.DeleteClaim, f.claim.Spec.VolumeName, f.pv.Status.Phase = true, "other", corev1.VolumeAvailable
				f.pv.Spec.ClaimRef.UID = ""
			}, keeps: true,
		},
		"although claimRef was cleared": {
			change: func(f *fixture) { f.released(); f.pv.Spec.ClaimRef, f.pv.Status.Phase = nil, corev1.VolumeAvailable },
		},
		"that is reserved for it": {
			change: func(f *fixture) {
				f.released()
				f.pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-b", Name: "moved"}
				f.pv.Status.Phase = corev1.VolumeAvailable
			},
		},
		"that exists": {
			change: func(f *fixture) { f.target(nil); f.released() }, uid: "c2",
		},
		"whose selector selects it": {
			change: func(f *fixture) {
				f.released()
				f.pv.Labels = map[string]string{"app": "x"}
				f.target(func(claim *corev1.PersistentVolumeClaim) {
					claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: f.pv.Labels}
				})
			}, uid: "c2",
		},
		"that was bound by hand": {
			change: func(f *fixture) {
				f.target(nil)
				f.released()
				f.pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "team-b", Name: "moved", UID: "c2"}
			}, uid: "c2",
			steps: []string{"wait until both", "wait until the leader"},
		},
		"of mode csi": {
			change: func(f *fixture) {
				f.released()
				f.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: wire.Handle{Backend: "gold", ID: "volume-1"}.String()}}
				delete(f.pv.Annotations, objects.AnnotationConnector)
				f.volume.Status = cinder.StatusAvailable
			},
		},
		"after an interruption": {
			change: func(f *fixture) {
				f.released()
				retain(f)
				f.pv.Annotations[AnnotationReclaimPolicy] = "Delete"
			},
			steps: []string{"create claim team-b/moved", "bind PersistentVolume", "wait until both", "wait until the leader", "set the reclaim policy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			test.change(f)
			plan, err := f.mover().Plan(t.Context(), f.request)
			if err != nil {
				t.Fatal(err)
			}
			if len(f.client.Actions()) == 0 || slices.ContainsFunc(f.client.Actions(), changes) {
				t.Errorf("the plan requested %v", f.client.Actions())
			}
			for i, step := range test.steps {
				if !strings.Contains(strings.Join(plan.Steps[min(i, len(plan.Steps)):], "\n"), step) {
					t.Errorf("no step %q in this order in\n%s", step, strings.Join(plan.Steps, "\n"))
				}
			}
			if err := f.run(); err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(f.said, "\n"))
			}
			uid, reclaim := test.uid, test.reclaim
			if uid == "" {
				uid = "new"
			}
			if reclaim == "" {
				reclaim = corev1.PersistentVolumeReclaimDelete
			}
			f.moved(uid, reclaim)
			if test.keeps && f.uidOf("team-a", "data") != "c1" {
				t.Error("another claim was deleted")
			}
			if plan, err := f.mover().Plan(t.Context(), f.request); err != nil || !plan.Done {
				t.Errorf("planned again: %+v, %v", plan, err)
			}
		})
	}
}

func changes(action clienttesting.Action) bool {
	return !slices.Contains([]string{"get", "list", "watch"}, action.GetVerb())
}

// TestNothingIsDeletedUnlessAskedFor: without --delete-claim, the command makes the
// volume safe and stops, and then continues.
func TestNothingIsDeletedUnlessAskedFor(t *testing.T) {
	f := newFixture(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pod"}, Spec: corev1.PodSpec{Volumes: volumesOf("data")}}
	f.others = append(f.others, pod)
	plan, err := f.mover().Plan(t.Context(), f.request)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(plan.Steps, "\n"); !strings.Contains(text, "stop until you have deleted claim team-a/data (kubectl -n team-a delete pvc data)") {
		t.Errorf("the steps are\n%s", text)
	}
	if text := strings.Join(plan.Warnings, "\n"); !strings.Contains(text, "pod pod uses claim team-a/data") {
		t.Errorf("the warnings are\n%s", text)
	}
	for range 2 {
		var held *HeldError
		if err := f.run(); !errors.As(err, &held) || !strings.Contains(err.Error(), "kubectl -n team-a delete pvc data") {
			t.Fatalf("error %v", err)
		}
		pv := f.livePV()
		if pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Annotations[AnnotationReclaimPolicy] != "Delete" || pv.Spec.ClaimRef.UID != "c1" {
			t.Errorf("the PersistentVolume is %+v", pv)
		}
		if f.uidOf("team-b", "moved") != "" {
			t.Error("the claim exists already")
		}
	}
	if err := f.client.Tracker().Delete(claimResource, "team-a", "data"); err != nil {
		t.Fatal(err)
	}
	if err := f.run(); err != nil {
		t.Fatal(err)
	}
	f.moved("new", corev1.PersistentVolumeReclaimDelete)
}

func volumesOf(claim string) []corev1.Volume {
	return []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
}

func TestWhatIsRefused(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		change func(*fixture)
		want   []string
	}{
		"no PersistentVolume": {func(f *fixture) { f.pv.Name = "other" }, []string{"PersistentVolume pvc-c1 does not exist; its volume may: see volume list, and import it"}},
		"of the historic provisioner": {func(f *fixture) {
			f.pv.Annotations = map[string]string{objects.HistoricIdentity: "x", objects.HistoricVolume: "volume-1"}
		}, []string{"PersistentVolume pvc-c1 was made by the historic provisioner, so its volume has no stamp; import the volume for the claim"}},
		"of another provisioner":      {func(f *fixture) { f.pv.Annotations[objects.AnnotationProvisionedBy] = "x" }, []string{"PersistentVolume pvc-c1 was not made by test"}},
		"a damaged record":            {func(f *fixture) { delete(f.pv.Annotations, objects.AnnotationBackend) }, []string{"PersistentVolume pvc-c1: annotation standalone-cinder.openstack.org/backend is missing; nothing is deleted until it is fixed"}},
		"a record without its volume": {func(f *fixture) { delete(f.pv.Annotations, objects.AnnotationVolume) }, []string{"PersistentVolume pvc-c1: annotation standalone-cinder.openstack.org/volume-id is missing"}},
		"several problems at once": {func(f *fixture) {
			f.pv.Annotations[objects.AnnotationCluster], f.request.Namespace, f.volume.Status = "x", "stranger", cinder.StatusDeleting
			f.pv.DeletionTimestamp, f.pv.Finalizers = &now, []string{"kubernetes.io/pv-protection"}
		}, []string{
			`PersistentVolume pvc-c1 was made for cluster "x", but this is "cluster-1"`,
			"PersistentVolume pvc-c1 is being deleted; to keep its volume, set the reclaim policy to Retain, wait until the object is gone, and import the volume",
			"the policy denies it: NoMatchingTenant: namespace stranger belongs to no tenant of the policy",
			`volume volume-1 is stamped cluster "cluster-1", PersistentVolume "pvc-c1", claim UID "c1", not for PersistentVolume pvc-c1`,
		}},
		"failed":         {func(f *fixture) { f.pv.Status.Phase = corev1.VolumeFailed }, []string{`PersistentVolume pvc-c1 is "Failed", neither Available nor Bound nor Released`}},
		"a damaged note": {func(f *fixture) { f.pv.Annotations[AnnotationReclaimPolicy] = "Recycle" }, []string{"the annotation " + AnnotationReclaimPolicy + ` of PersistentVolume pvc-c1 must be Delete or Retain, not "Recycle"`}},
		"reserved":       {func(f *fixture) { f.pv.Spec.ClaimRef.UID = "" }, []string{"PersistentVolume pvc-c1 is reserved for claim team-a/data, which exists, and may be bound to it at any time"}},
		"no namespace":   {func(f *fixture) { f.request.Namespace = "nowhere" }, []string{"namespace nowhere does not exist, or is being deleted"}},
		"claim is deleted": {func(f *fixture) {
			f.target(func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp, c.Finalizers = &now, []string{"x.io/x"} })
		}, []string{"claim team-b/moved is being deleted; wait until it is gone"}},
		"claim is lost": {func(f *fixture) {
			f.target(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })
		}, []string{"claim team-b/moved has lost its PersistentVolume and cannot be bound again; delete it"}},
		"claim is for any":   {func(f *fixture) { f.target(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }) }, []string{"claim team-b/moved exists and does not name a PersistentVolume, so a new volume is made for it; delete it, or create it with spec.volumeName: pvc-c1"}},
		"claim is for other": {func(f *fixture) { f.target(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "other" }) }, []string{"claim team-b/moved is for PersistentVolume other"}},
		"claim does not fit": {func(f *fixture) {
			f.target(func(c *corev1.PersistentVolumeClaim) {
				class, mode, attributes := "slow", corev1.PersistentVolumeBlock, "silver"
				c.Spec.StorageClassName, c.Spec.VolumeMode, c.Spec.VolumeAttributesClassName = &class, &mode, &attributes
				c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadOnlyMany)
				c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Gi")
				c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
				c.Annotations = map[string]string{objects.AnnotationImport: "x"}
			})
		}, []string{
			`claim team-b/moved has StorageClass "slow", but PersistentVolume pvc-c1 has "fast"`,
			"claim team-b/moved requests 3Gi, but PersistentVolume pvc-c1 has 2Gi; request less, and grow the claim once it is bound",
			"claim team-b/moved and PersistentVolume pvc-c1 have different volume modes",
			"claim team-b/moved has the access mode ReadOnlyMany, but PersistentVolume pvc-c1 does not",
			`claim team-b/moved has VolumeAttributesClass "silver", but PersistentVolume pvc-c1 has ""; change it once the claim is bound`,
			"the selector of claim team-b/moved does not select PersistentVolume pvc-c1",
			"claim team-b/moved asks for the content of another object, but PersistentVolume pvc-c1 has its own",
			"claim team-b/moved asks for the import of a volume (annotation " + objects.AnnotationImport + ")",
		}},
		"used by pods": {func(f *fixture) {
			f.request.DeleteClaim = true
			for name, spec := range map[string]corev1.PodSpec{"runs": {Volumes: volumesOf("data")}, "ended": {Volumes: volumesOf("data")}, "other": {Volumes: volumesOf("other")}} {
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Spec: spec}
				if name == "ended" {
					pod.Status.Phase = corev1.PodSucceeded
				}
				f.others = append(f.others, pod)
			}
		}, []string{"pod runs uses claim team-a/data; stop it first"}},
		"used by an ephemeral volume": {func(f *fixture) {
			f.request.DeleteClaim = true
			yes := true
			f.claim.Name, f.pv.Spec.ClaimRef.Name = "pod-v", "pod-v"
			f.claim.OwnerReferences = []metav1.OwnerReference{{UID: "pod", Controller: &yes}}
			f.others = append(f.others, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pod", UID: "pod"}, Spec: corev1.PodSpec{
				Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}},
			}})
		}, []string{"pod pod uses claim team-a/pod-v; stop it first"}},
		"used by a node": {func(f *fixture) {
			f.request.DeleteClaim = true
			f.others = append(f.others, node("n1", f.pv))
		}, []string{"node n1 still uses the volume of PersistentVolume pvc-c1"}},
		"attached to a lost node": {func(f *fixture) {
			f.request.DeleteClaim = true
			name := pvName
			f.others = append(f.others, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n9", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}}})
		}, []string{"VolumeAttachment va (node n9) still attaches the volume of PersistentVolume pvc-c1"}},
		"no backend":         {func(f *fixture) { f.pv.Annotations[objects.AnnotationBackend] = "old" }, []string{"the policy denies it: NoMatchingClass: tenant b may not use backend old, which has the volume, for StorageClass fast (tenants[1].classes[0].backends)", "the policy has no backend old"}},
		"no volume":          {func(f *fixture) { f.missing = true }, []string{"volume volume-1 no longer exists at backend gold"}},
		"a volume elsewhere": {func(f *fixture) { f.elsewhere = true }, []string{"backend gold: volume volume-1 was recorded elsewhere"}},
		"a foreign volume":   {func(f *fixture) { f.volume.Metadata = nil }, []string{"volume volume-1 is stamped with nothing, not for PersistentVolume pvc-c1"}},
		"deletion has begun": {func(f *fixture) { f.volume.Status = cinder.StatusErrorDeleting }, []string{"volume volume-1 is error_deleting"}},
		"disconnected":       {func(f *fixture) { f.volume.Status = cinder.StatusAvailable }, []string{"volume volume-1 is available: a deletion that was stopped has disconnected it; delete PersistentVolume pvc-c1 with the reclaim policy Retain, and import the volume for the claim"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.still = true // a plan changes nothing, and Kubernetes might
			test.change(f)
			_, err := f.mover().Plan(t.Context(), f.request)
			var refusal *RefusedError
			if !errors.As(err, &refusal) {
				t.Fatalf("error %v", err)
			}
			for i, want := range test.want {
				if i >= len(refusal.Problems) || !strings.HasPrefix(refusal.Problems[i], want) {
					t.Fatalf("the problems are\n%s\nwant\n%s", strings.Join(refusal.Problems, "\n"), strings.Join(test.want, "\n"))
				}
			}
			if len(refusal.Problems) != len(test.want) {
				t.Errorf("the problems are\n%s", strings.Join(refusal.Problems, "\n"))
			}
		})
	}
}

func node(name string, pv *corev1.PersistentVolume) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{VolumesInUse: nodeuse.Names(pv)}}
}

var errKilled = errors.New("the process is gone")

// TestAMoveThatIsKilledContinues kills the command before each of its requests, and runs
// it again.
func TestAMoveThatIsKilledContinues(t *testing.T) {
	for n, finished := 1, false; !finished; n++ {
		t.Run(fmt.Sprintf("before request %d", n), func(t *testing.T) {
			f := newFixture(t)
			f.request.DeleteClaim = true
			ctx, kill := context.WithTimeout(t.Context(), 10*time.Second)
			defer kill()
			requests := 0
			f.before = func(string, string) error {
				if requests++; requests >= n {
					kill()
					return errKilled
				}
				return nil
			}
			m := f.mover()
			plan, err := m.Plan(ctx, f.request)
			if err == nil {
				err = m.Apply(ctx, plan)
			}
			finished = err == nil
			f.before = nil
			if err := f.run(); err != nil {
				t.Fatal(err)
			}
			f.moved("new", corev1.PersistentVolumeReclaimDelete)
			if f.uidOf("team-a", "data") != "" {
				t.Error("the earlier claim is left")
			}
		})
		if n > 100 {
			t.Fatal("there is no end")
		}
	}
}

// TestWhatChangesWhileACommandRuns: what the plan found is checked again before what
// cannot be undone.
func TestWhatChangesWhileACommandRuns(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*fixture)
		verb    string
		of      string
		change  func(*fixture)
		refused string
		check   func(*fixture)
	}{
		"a pod starts": {verb: "create", of: "persistentvolumeclaims", change: func(f *fixture) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "late"}, Spec: corev1.PodSpec{Volumes: volumesOf("data")}}
			if err := f.client.Tracker().Add(pod); err != nil {
				f.Error(err)
			}
		}, refused: "pod late uses claim team-a/data; stop it first", check: func(f *fixture) {
			if f.uidOf("team-a", "data") == "" {
				f.Error("the claim was deleted")
			}
		}},
		"a node uses the volume": {verb: "create", of: "persistentvolumeclaims", change: func(f *fixture) {
			if err := f.client.Tracker().Add(node("late", f.pv)); err != nil {
				f.Error(err)
			}
		}, refused: "node late still uses the volume of PersistentVolume pvc-c1", check: func(f *fixture) {
			if f.uidOf("team-a", "data") == "" {
				f.Error("the claim was deleted")
			}
		}},
		"the policy is Delete again": {verb: "create", of: "persistentvolumeclaims", change: func(f *fixture) {
			f.patchPV(func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			})
		}, refused: "somebody changed PersistentVolume pvc-c1 in the meantime: it names claim team-a/data (UID \"c1\"), with the reclaim policy Delete", check: func(f *fixture) {
			if f.uidOf("team-a", "data") == "" {
				f.Error("the claim was deleted")
			}
		}},
		"another claim gets it": {prepare: func(f *fixture) { f.released() }, verb: "create", of: "persistentvolumeclaims", change: func(f *fixture) {
			f.patchPV(func(pv *corev1.PersistentVolume) {
				pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "rival", UID: "r1"}
			})
		}, refused: "somebody changed PersistentVolume pvc-c1 in the meantime: it names claim team-a/rival (UID \"r1\"), with the reclaim policy Retain"},
		"the volume is deleted": {prepare: func(f *fixture) { f.released() }, verb: "create", of: "persistentvolumeclaims", change: func(f *fixture) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.volume.Status = cinder.StatusDeleting
		}, refused: "volume volume-1 is deleting", check: func(f *fixture) {
			if pv := f.livePV(); pv.Spec.ClaimRef.UID != "c1" || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
				f.Errorf("the PersistentVolume is %+v", pv)
			}
		}},
		"the PersistentVolume is deleted": {prepare: func(f *fixture) { f.released() }, verb: "create", of: "persistentvolumeclaims", change: func(f *fixture) {
			if err := f.client.Tracker().Delete(pvResource, "", pvName); err != nil {
				f.Error(err)
			}
		}, refused: "PersistentVolume pvc-c1 was deleted in the meantime"},
		"the claim is deleted": {prepare: func(f *fixture) { f.denies, f.settle = true, time.Second }, verb: "list", of: "events", change: func(f *fixture) {
			if err := f.client.Tracker().Delete(claimResource, "team-b", "moved"); err != nil {
				f.Error(err)
			}
			f.patchPV(func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationReboundTo] = "new" })
		}, refused: "claim team-b/moved was deleted in the meantime; PersistentVolume pvc-c1 stays, with the reclaim policy Retain", check: func(f *fixture) {
			if pv := f.livePV(); pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
				f.Errorf("the PersistentVolume is %+v", pv)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.request.DeleteClaim = true
			if test.prepare != nil {
				test.prepare(f)
			}
			once := false
			f.before = func(verb, of string) error {
				if verb == test.verb && of == test.of && !once {
					once = true
					test.change(f)
				}
				return nil
			}
			if err := f.run(); err == nil || err.Error() != test.refused {
				t.Errorf("error %v", err)
			}
			if test.check != nil {
				test.check(f)
			}
		})
	}
}

// TestAConflictIsTriedAgain: Kubernetes and the leader write on the PersistentVolume, too.
func TestAConflictIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	f.request.DeleteClaim = true
	patches := 0
	f.before = func(verb, of string) error {
		if verb == "patch" {
			if patches++; patches%2 == 1 {
				return apierrors.NewConflict(corev1.Resource(of), pvName, errors.New("changed"))
			}
		}
		return nil
	}
	if err := f.run(); err != nil {
		t.Fatal(err)
	}
	f.moved("new", corev1.PersistentVolumeReclaimDelete)
}

// TestADenialOfTheLeaderIsTold: the policy in force may be another one than the file.
func TestADenialOfTheLeaderIsTold(t *testing.T) {
	f := newFixture(t)
	f.request.DeleteClaim, f.denies = true, true
	err := f.run()
	if err == nil || err.Error() != "claim team-b/moved is bound to PersistentVolume pvc-c1, but the leader does not give it the volume (RebindDenied): no rule grants it, says the operator's; do what the event says, and run this command again" {
		t.Errorf("error %v", err)
	}
	if pv := f.livePV(); pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Annotations[AnnotationReclaimPolicy] != "Delete" {
		t.Errorf("the PersistentVolume is %+v", pv)
	}
	f.client.Lock()
	f.denies = false
	f.client.Unlock()
	f.settle = time.Minute // The event stays, and a busy machine stamps the volume late.
	if err := f.run(); err != nil {
		t.Fatal(err)
	}
	f.moved("new", corev1.PersistentVolumeReclaimDelete)
}

// TestAWaitSaysWhatItWaitedFor: the operator must know where to look.
func TestAWaitSaysWhatItWaitedFor(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		prepare func(*fixture)
		want    string
	}{
		"for a finalizer": {func(f *fixture) {
			f.claim.DeletionTimestamp, f.claim.Finalizers = &now, []string{"kubernetes.io/pvc-protection"}
			f.others = append(f.others, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "pod"}, Spec: corev1.PodSpec{Volumes: volumesOf("data")}})
		}, "claim team-a/data is being deleted, but has the finalizers kubernetes.io/pvc-protection; pod pod uses it"},
		"for a node": {func(f *fixture) { f.released(); f.others = append(f.others, node("n1", f.pv)) }, "node n1 still uses the volume of PersistentVolume pvc-c1"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			test.prepare(f)
			m := f.mover()
			plan, err := m.Plan(t.Context(), f.request)
			if err != nil {
				t.Fatal(err)
			}
			// A busy machine must reach the wait in this time.
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			want := "not finished (context deadline exceeded): " + test.want + "; run the same command again, and it continues"
			if err := m.Apply(ctx, plan); err == nil || err.Error() != want {
				t.Errorf("error %v", err)
			}
		})
	}
}
