package move

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

const testPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}}
  - {name: bronze, auth: {cloud: bronze}}
  - {name: native, auth: {cloud: native}}
  - {name: another, auth: {cloud: another}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [gold], backends: [gold, silver, bronze, native], mode: csi}
      - {storageClasses: [native], backends: [native]}
      - {storageClasses: [silver], backends: [silver, gold, bronze], mode: csi}
      - {storageClasses: [bronze], backends: [bronze, gold, silver], mode: csi}
      - {storageClasses: [gold-only], backends: [gold], mode: csi}
      - {storageClasses: [silver-xfs], backends: [silver, gold], mode: csi, fsType: xfs}
      - {storageClasses: [silver-luks], backends: [silver, gold], mode: csi, encrypt: {keySecret: keys, entry: a}}
      - {storageClasses: [silver-type, silver-waits], backends: [silver, gold], mode: csi, volumeType: luks}
`

// world is a cluster with Cinder, where each claim is bound at once to a volume of the
// backend that is named like its class, and copying pods succeed at once.
type world struct {
	t      *testing.T
	client *fake.Clientset

	mu      sync.Mutex
	volumes map[string]*cinder.Volume
	made    int
	// meanwhile is called for each copying pod that is made, and may change its status.
	meanwhile func(pod *corev1.Pod)
	// copied are the copies that pods were made for, as source and target.
	copied []string
	// attached are the nodes of PersistentVolumes.
	attached map[string]string
	// block means that claims are for raw block volumes, and lags that the program has no
	// policy that encrypts yet.
	block, lags bool
	lists       atomic.Int64
}

var (
	podsResource   = corev1.SchemeGroupVersion.WithResource("pods")
	claimsResource = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	pvsResource    = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
)

func newWorld(t *testing.T) *world {
	w := &world{t: t, volumes: map[string]*cinder.Volume{}, attached: map[string]string{}}
	w.client = fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	for _, name := range []string{"gold", "silver", "bronze", "gold-only", "silver-xfs", "silver-luks", "silver-type", "silver-waits", "native"} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "test"}
		if name == "silver-waits" {
			class.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
		}
		must(t, w.client.Tracker().Add(class))
	}
	w.client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		watcher, err := w.client.Tracker().Watch(podsResource, action.GetNamespace())
		if err != nil {
			return true, nil, err
		}
		// A watch begins with what came after the list.
		list, err := w.client.Tracker().List(podsResource, corev1.SchemeGroupVersion.WithKind("Pod"), "team-a")
		if err == nil {
			for i := range list.(*corev1.PodList).Items {
				watcher.(*watch.RaceFreeFakeWatcher).Add(&list.(*corev1.PodList).Items[i])
			}
		}
		return true, watcher, err
	})
	w.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		list, err := w.client.Tracker().List(podsResource, corev1.SchemeGroupVersion.WithKind("Pod"), "team-a")
		if err == nil {
			list.(*corev1.PodList).ResourceVersion = "7"
			w.lists.Add(1)
		}
		return true, list, err
	})
	w.client.PrependReactor("create", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim)
		if _, err := w.client.Tracker().Get(claimsResource, claim.Namespace, claim.Name); err == nil {
			return false, nil, nil
		}
		w.bind(claim)
		return false, nil, nil
	})
	w.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		if _, err := w.client.Tracker().Get(podsResource, pod.Namespace, pod.Name); err == nil {
			return false, nil, nil
		}
		w.identify(pod)
		pod.Status.Phase = corev1.PodPending
		return false, nil, nil
	})
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if !strings.Contains(string(patch.GetPatch()), "schedulingGates") {
			return false, nil, nil
		}
		found, err := w.client.Tracker().Get(podsResource, "team-a", patch.GetName())
		if err != nil {
			return true, nil, err
		}
		pod := found.(*corev1.Pod).DeepCopy()
		pod.Spec.SchedulingGates = nil
		pod.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{Name: "copy", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: "{}"}}}}}
		at := map[string]string{}
		for _, v := range pod.Spec.Volumes {
			at["/"+v.Name] = w.volumeOf(v.PersistentVolumeClaim.ClaimName)
		}
		w.copied = append(w.copied, at[wire.CopyFrom]+" to "+at[wire.CopyTo])
		if w.meanwhile != nil {
			w.meanwhile(pod)
		}
		return true, pod, w.client.Tracker().Update(podsResource, pod, "team-a")
	})
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// identify gives an object what an API server would.
func (w *world) identify(object metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.made++
	object.SetUID(types.UID(fmt.Sprintf("0b1c9a52-5f0e-4a36-9f0e-%012d", w.made)))
	object.SetResourceVersion(fmt.Sprint(100 + w.made))
}

// bind gives a claim a PersistentVolume with a volume.
func (w *world) bind(claim *corev1.PersistentVolumeClaim) {
	w.identify(claim)
	claim.ResourceVersion = ""
	uid, backend := string(claim.UID), strings.SplitN(*claim.Spec.StorageClassName, "-", 2)[0]
	size := claim.Spec.Resources.Requests.DeepCopy()
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: objects.PVNameFor(uid), UID: types.UID("pv-" + uid)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: claim.Spec.AccessModes, StorageClassName: *claim.Spec.StorageClassName, ClaimRef: &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			VolumeMode: claim.Spec.VolumeMode,
		},
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id := fmt.Sprintf("volume-%d", w.made)
	pv.Annotations = map[string]string{
		objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: id, objects.AnnotationBackend: backend, objects.AnnotationTenant: "a",
		objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: uid,
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: backend + "/" + id, FSType: "ext4", VolumeAttributes: wire.Volume{FilesystemUUIDs: []string{uid}}.Context()}
	if objects.IsBlockVolume(pv) {
		pv.Spec.CSI.FSType = ""
	}
	if strings.HasSuffix(*claim.Spec.StorageClassName, "-xfs") {
		pv.Spec.CSI.FSType = "xfs"
	}
	capacity := size[corev1.ResourceStorage]
	stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: uid, PV: pv.Name, Tenant: "a"}
	w.volumes[id] = &cinder.Volume{ID: id, SizeGiB: capacity.Value() >> 30, Status: cinder.StatusAvailable, Metadata: stamp.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyAttached: "true"})}
	switch {
	case w.lags:
	case strings.HasSuffix(*claim.Spec.StorageClassName, "-luks"):
		pv.Spec.CSI.VolumeAttributes["encrypted"] = uid
		w.volumes[id].Metadata[stamps.KeyEncryption] = "1 keys/a"
	case strings.HasSuffix(*claim.Spec.StorageClassName, "-type"):
		w.volumes[id].Encrypted = true
	}
	must(w.t, w.client.Tracker().Add(pv))
	claim.Spec.VolumeName = pv.Name
	claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size}
}

// claim makes a claim.
func (w *world) claim(name, class string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	mode := corev1.PersistentVolumeFilesystem
	if w.block {
		mode = corev1.PersistentVolumeBlock
	}
	made, err := w.client.CoreV1().PersistentVolumeClaims("team-a").Create(w.t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name},
		Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeMode: &mode, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
	}, metav1.CreateOptions{})
	must(w.t, err)
	return made
}

// user makes a pod that uses a claim, from within or without a reactor.
func (w *world) user(name, claim string, annotations map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Annotations: annotations}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
	}}
	w.identify(pod)
	must(w.t, w.client.Tracker().Create(podsResource, pod, "team-a"))
	return pod
}

// pvOf returns the PersistentVolume of a claim.
func (w *world) pvOf(claim string) *corev1.PersistentVolume {
	w.t.Helper()
	found, err := w.client.Tracker().Get(claimsResource, "team-a", claim)
	must(w.t, err)
	pv, err := w.client.Tracker().Get(pvsResource, "", found.(*corev1.PersistentVolumeClaim).Spec.VolumeName)
	must(w.t, err)
	return pv.(*corev1.PersistentVolume)
}

// volumeOf returns what volume a claim has, as backend/ID.
func (w *world) volumeOf(claim string) string {
	w.t.Helper()
	at, err := objects.LocationOf(w.pvOf(claim))
	must(w.t, err)
	return at.String()
}

// The volumes at Cinder.
func (w *world) Volume(_ context.Context, id string) (cinder.Volume, cinder.Place, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.volumes[id]; v != nil {
		found := *v
		found.Metadata = maps.Clone(v.Metadata)
		return found, cinder.Place{}, nil
	}
	return cinder.Volume{}, cinder.Place{}, nil
}

func (w *world) Begin(_ context.Context, id, with string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.volumes[id].Metadata[stamps.KeySwap], w.volumes[id].Status = with, cinder.StatusAttaching
	return nil
}

func (w *world) Restamp(_ context.Context, id string, stamp stamps.Volume, pvUID string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.volumes[id].Metadata = stamp.Metadata(w.volumes[id].Metadata)
	w.volumes[id].Metadata[stamps.KeyPVUID] = pvUID
	return nil
}

func (w *world) End(_ context.Context, id, with string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v := w.volumes[id]; v != nil && v.Metadata[stamps.KeySwap] == with {
		v.Metadata[stamps.KeySwap], v.Status = "", cinder.StatusAvailable
	}
	return nil
}

// The nodes.
func (w *world) Users(context.Context, nodeuse.Volume) ([]string, error) { return nil, nil }
func (w *world) Staging(context.Context, string) ([]string, error)       { return nil, nil }
func (w *world) Attachments(_ context.Context, pv string) ([]nodeuse.Attachment, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if node := w.attached[pv]; node != "" {
		return []nodeuse.Attachment{{Node: node}}, nil
	}
	return nil, nil
}

func (w *world) detach(pv string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.attached, pv)
}

func (w *world) swapper() swap.Swapper {
	parsed, err := policy.Parse([]byte(testPolicy), "policy.yaml", mappers.Protocols{}.Describe())
	must(w.t, err)
	return swap.Swapper{Client: w.client, Policy: parsed, Volumes: func(string) (swap.Volumes, error) { return w, nil }, Nodes: w, ProvisionerName: "test", Cluster: "cluster-1"}
}

func (w *world) mover() *Mover {
	return &Mover{Swapper: w.swapper(), Image: "none.example/program", Patience: 2 * time.Second, Pause: 5 * time.Millisecond}
}

// move moves claim data to a backend, as the command does.
func (w *world) move(ctx context.Context, backend string, say func(string)) error {
	m := w.mover()
	plan, err := m.Plan(ctx, Request{Namespace: "team-a", Claim: "data", Backend: backend, StorageClass: backend})
	if err == nil {
		_, err = m.Apply(ctx, plan, say)
	}
	return err
}

func silent(string) {}

// swap does what volume swap does.
func (w *world) swap(a, b string, back bool) error {
	swapper := w.swapper()
	plan, err := swapper.Plan(w.t.Context(), swap.Request{Namespace: "team-a", Claims: [2]string{a, b}, Back: back})
	if err == nil {
		err = swapper.Apply(w.t.Context(), plan)
	}
	return err
}

// TestAMove shows that the world works.
func TestAMove(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	first := w.volumeOf("data")
	must(t, w.move(t.Context(), "silver", silent))
	if w.volumeOf("data-former") != first || w.volumeOf("data") != "silver/volume-2" {
		t.Errorf("the claims have %s and %s", w.volumeOf("data"), w.volumeOf("data-former"))
	}
	_, err := w.client.Tracker().Get(podsResource, "team-a", "copy-"+string(w.pvOf("data").Spec.ClaimRef.UID))
	if !apierrors.IsNotFound(err) {
		t.Errorf("the pod is left (%v)", err)
	}
}

// The former volume was not deleted yet, and the claim moves on, or back.
func TestAMoveAfterAMoveMovesOrFails(t *testing.T) {
	for _, to := range []string{"bronze", "gold"} {
		w := newWorld(t)
		w.claim("data", "gold")
		must(t, w.move(t.Context(), "silver", silent))
		err := w.move(t.Context(), to, silent)
		if at := w.volumeOf("data"); err == nil && !strings.HasPrefix(at, to+"/") {
			t.Errorf("the move to %s succeeds, but the claim has %s", to, at)
		}
	}
}

// Between copy and swap, another operator wants to give the claim another volume. No pod is
// needed for that.
func TestWhatIsBeingCopiedIsNotSwapped(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.claim("restored", "gold")
	asked := false
	must(t, w.move(t.Context(), "silver", func(text string) {
		if strings.HasPrefix(text, "copied and compared") {
			asked = true
			if err := w.swap("data", "restored", false); err == nil || !strings.Contains(err.Error(), "copies the volume of claim data, for volume move") {
				t.Errorf("the swap: %v", err)
			}
		}
	}))
	if at := w.volumeOf("data"); !asked || at != "silver/volume-3" {
		t.Errorf("the claim has %s", at)
	}
}

// Between copy and swap, the claim is deleted, and made anew from a snapshot.
func TestAClaimMadeAnewDoesNotGetTheCopyOfAnother(t *testing.T) {
	w := newWorld(t)
	claim, anew := w.claim("data", "gold"), ""
	err := w.move(t.Context(), "silver", func(text string) {
		if strings.HasPrefix(text, "copied and compared") {
			must(t, w.client.Tracker().Delete(claimsResource, "team-a", "data"))
			must(t, w.client.Tracker().Delete(pvsResource, "", claim.Spec.VolumeName))
			w.claim("data", "gold")
			anew = w.volumeOf("data")
		}
	})
	if got := w.volumeOf("data"); err == nil || got != anew {
		t.Errorf("error %v; the new claim was made with %s, and has %s; claim data-former, which is to be deleted, has %s", err, anew, got, w.volumeOf("data-former"))
	}
}

// slow calls a function, once, while a command that has listed pods reads a volume.
type slow struct {
	*world
	once func()
}

func (h *slow) Volume(ctx context.Context, id string) (cinder.Volume, cinder.Place, error) {
	v, place, err := h.world.Volume(ctx, id)
	if h.lists.Load() > 0 && h.once != nil {
		once := h.once
		h.once = nil
		once()
	}
	return v, place, err
}

// One command is slow; meanwhile, another moves the volume. The slow one must not copy over
// the former volume.
func TestTheFormerVolumeIsNotCopiedOver(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	former := w.volumeOf("data")
	m := w.mover()
	other := &slow{w, func() { must(t, w.move(t.Context(), "silver", silent)) }}
	m.Swapper.Volumes = func(string) (swap.Volumes, error) { return other, nil }
	plan, err := m.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"})
	must(t, err)
	_, err = m.Apply(t.Context(), plan, silent)
	for _, copied := range w.copied {
		if strings.HasSuffix(copied, " to "+former) {
			t.Errorf("after the other command has moved it, a pod copies %s, the former volume (%v); all copies: %v", copied, err, w.copied)
		}
	}
}

// After swap --back, data-former has what pods have written since the move, and the
// documented kubectl delete pvc -l ...copy=former would delete that.
func TestAClaimThatHasTheNewerDataIsNotLabeledForDeletion(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	must(t, w.move(t.Context(), "silver", silent))
	must(t, w.swap("data", "data-former", true))
	claim, err := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data-former", metav1.GetOptions{})
	must(t, err)
	if claim.Labels[objects.LabelCopy] == objects.CopyFormer {
		t.Errorf("claim data-former has %s, to which pods wrote since the move, and the label %s=%s", w.volumeOf("data-former"), objects.LabelCopy, objects.CopyFormer)
	}
}

// A node still has the second claim's volume: what a force-deleted pod left there may write.
func TestATargetThatANodeHasIsNotCopiedTo(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.meanwhile = func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].State.Terminated.Message = `{"error": "no"}` }
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Fatal("copied")
	}
	second := w.pvOf("data-former").Name
	w.attached[second] = "node-1"
	w.meanwhile = func(*corev1.Pod) { // the node lets go during the copy
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.attached, second)
	}
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Error("the volume was attached to node-1 when the copy began, and is swapped in")
	}
}

// kubectl debug --copy-to --keep-annotations, and whoever makes a pod after another one.
func TestAPodWithTheAnnotationsOfTheCopyingOneIsSeen(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.meanwhile = func(pod *corev1.Pod) { w.user("debug", "data", maps.Clone(pod.Annotations)) }
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Error("pod debug uses claim data while it is copied, and the copy is taken")
	}
}

// A copy of hours that is worth nothing must not keep the pods of the claim waiting.
func TestACopyThatIsWorthNothingEnds(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.meanwhile = func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
		w.user("data-0", "data", nil)
	}
	ctx, end := context.WithTimeout(t.Context(), 3*time.Second)
	defer end()
	err := w.move(ctx, "silver", silent)
	if ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "pod team-a/data-0 may have used claim data") {
		t.Errorf("3 s after pod data-0 was seen, the command still copies, and the pod waits for the volume (%v)", err)
	}
}

// killedAfterCommit moves the volume, up to the commit of the swap.
func (w *world) killedAfterCommit() {
	w.t.Helper()
	killed := errors.New("killed")
	var committed, alive atomic.Bool
	w.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(clienttesting.PatchAction); ok && strings.Contains(string(patch.GetPatch()), `\"committed\":true`) && !alive.Load() {
			if committed.Swap(true) { // the second PersistentVolume's
				return true, nil, killed
			}
			return false, nil, nil
		}
		return committed.Load() && !alive.Load(), nil, killed
	})
	if err := w.move(w.t.Context(), "silver", silent); !errors.Is(err, killed) {
		w.t.Fatalf("error %v", err)
	}
	alive.Store(true)
}

// A command was killed after the commit, and the next says that all is done.
func TestAMoveThatIsFinishedLaterLeavesNoPod(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.killedAfterCommit()
	must(t, w.move(t.Context(), "silver", silent))
	if at := w.volumeOf("data"); at != "silver/volume-2" {
		t.Fatalf("the claim has %s", at)
	}
	pods, err := w.client.CoreV1().Pods("team-a").List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, pod := range pods.Items {
		t.Errorf("the command succeeds, and pod %s is left", pod.Name)
	}
}

// A command was killed after the commit, and somebody has deleted the second claim.
func TestAMoveThatIsFinishedWithoutItsSecondClaimCopiesNothing(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.killedAfterCommit()
	must(t, w.client.Tracker().Delete(claimsResource, "team-a", "data-former"))
	err := w.move(t.Context(), "silver", silent)
	if at := w.volumeOf("data"); len(w.copied) != 1 || at != "silver/volume-2" {
		t.Errorf("the claim has the copy, and only the end of the swap is missing; the command copies %v, and the claim has %s (%v)", w.copied[1:], at, err)
	}
}

// The volume of the claim is being swapped with that of a third claim, or the policy does
// not grant the backend.
func TestAClaimThatIsBeingSwappedWithAnotherIsNotMoved(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold-only")
	third := w.claim("third", "gold-only")
	pv := w.pvOf("data").DeepCopy()
	pv.Annotations[swap.AnnotationIntent] = fmt.Sprintf(`{"with": %q, "from": {"volume": "volume-1", "backend": "gold"}, "to": {"volume": "volume-2", "backend": "gold"}}`, third.Spec.VolumeName)
	must(t, w.client.Tracker().Update(pvsResource, pv, ""))
	if _, err := w.mover().Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"}); err == nil {
		t.Error("a dry run says that the claim can be moved, to a backend that its rule does not name")
	}
	_ = w.move(t.Context(), "silver", silent)
	if _, err := w.client.Tracker().Get(claimsResource, "team-a", "data-former"); !apierrors.IsNotFound(err) {
		t.Errorf("the command has made claim data-former, at %s", w.volumeOf("data-former"))
	}
}

// The claim has grown since a copy of it failed.
func TestACopyThatIsTooSmallSaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	claim := w.claim("data", "gold")
	w.meanwhile = func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].State.Terminated.Message = `{"error": "no"}` }
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Fatal("copied")
	}
	grown := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	pv := w.pvOf("data").DeepCopy()
	pv.Spec.Capacity = grown
	must(t, w.client.Tracker().Update(pvsResource, pv, ""))
	claim = claim.DeepCopy()
	claim.Spec.Resources.Requests, claim.Status.Capacity = grown, grown
	must(t, w.client.Tracker().Update(claimsResource, claim, "team-a"))
	w.volumes["volume-1"].SizeGiB = 2
	if err := w.move(t.Context(), "silver", silent); err != nil && !strings.Contains(err.Error(), "delete") {
		t.Errorf("no remedy is named: %v", err)
	}
}

// The claim is on the backend that the command names, and somebody else moves it elsewhere.
func TestACommandWithNothingToDoDeletesNoPodThatCopies(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	working := make(chan struct{})
	w.meanwhile = func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning}
		close(working)
	}
	done := make(chan error, 1)
	go func() { done <- w.move(ctx, "silver", silent) }()
	<-working
	must(t, w.move(t.Context(), "gold", silent)) // nothing to do
	select {
	case err := <-done:
		t.Errorf("the pod that copies is deleted: %v", err)
	case <-time.After(300 * time.Millisecond):
		end()
		<-done
	}
}

// The filesystem of a new claim is known from the policy.
func TestAnotherFilesystemIsRefusedBeforeAnyChange(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	m := w.mover()
	plan, err := m.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver-xfs"})
	if err != nil {
		return
	}
	t.Error("a dry run says that the claim can be moved")
	_, err = m.Apply(t.Context(), plan, silent)
	if _, getErr := w.client.Tracker().Get(claimsResource, "team-a", "data-former"); getErr == nil {
		t.Errorf("the command refuses it then (%v), and leaves a claim with a volume that no command mentions or deletes", err)
	}
}

// Kubernetes denies a claim by a ResourceQuota before it looks whether there is one.
func TestAMoveContinuesWhenTheQuotaIsUsedUp(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.meanwhile = func(pod *corev1.Pod) { pod.Status.ContainerStatuses[0].State.Terminated.Message = `{"error": "no"}` }
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Fatal("copied")
	}
	w.meanwhile = nil
	w.client.PrependReactor("create", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("persistentvolumeclaims"), "data-former", errors.New("exceeded quota: some, requested: persistentvolumeclaims=1, used: persistentvolumeclaims=2, limited: persistentvolumeclaims=2"))
	})
	if err := w.move(t.Context(), "silver", silent); err != nil {
		t.Errorf("claim data-former is there, and the command does not continue: %v", err)
	}
}

// Nodes take a minute to let go, and a command makes up to 50 moves at once.
func TestTheWaitForNodesDoesNotListTheCluster(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	pv, lists := w.pvOf("data").Name, 0
	w.client.PrependReactor("list", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if len(w.copied) > 0 {
			lists++
		}
		return false, nil, nil
	})
	w.meanwhile = func(*corev1.Pod) {
		w.attached[pv] = "node-1"
		time.AfterFunc(300*time.Millisecond, func() { w.detach(pv) })
	}
	if err := w.move(t.Context(), "silver", silent); err != nil || lists > 5 {
		t.Errorf("a wait of 60 pauses lists the PersistentVolumes of the cluster %d times (%v)", lists, err)
	}
}

// The API server denies the commit, so the swap is taken back.
func TestASwapThatIsTakenBackIsNotSaidToBeMade(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	failed := false
	w.client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if failed || !strings.Contains(string(action.(clienttesting.PatchAction).GetPatch()), `\"committed\":true`) {
			return false, nil, nil
		}
		failed = true
		return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), "pvc", errors.New("changed"))
	})
	if err := w.move(t.Context(), "silver", silent); err == nil {
		t.Fatal("committed")
	}
	if err := w.move(t.Context(), "silver", silent); err != nil && strings.Contains(err.Error(), "has been swapped with this one before") {
		t.Errorf("the claim has %s, as ever, and the command says: %v", w.volumeOf("data"), err)
	}
}

// Namespaces of tenants often have a ResourceQuota of limits.cpu, and deny each pod without.
func TestTheCopyingPodFitsAQuotaOfLimits(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	var limits corev1.ResourceList
	w.meanwhile = func(pod *corev1.Pod) { limits = pod.Spec.Containers[0].Resources.Limits }
	must(t, w.move(t.Context(), "silver", silent))
	if _, limited := limits[corev1.ResourceCPU]; !limited {
		t.Errorf("the limits are %v", limits)
	}
}

// An old claim's StorageClass is often gone. A move that is only to be finished needs none.
func TestAMoveIsFinishedWithoutTheStorageClass(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.killedAfterCommit()
	must(t, w.client.Tracker().Delete(storagev1.SchemeGroupVersion.WithResource("storageclasses"), "", "silver"))
	if err := w.move(t.Context(), "silver", silent); err != nil {
		t.Errorf("both volumes stay reserved, and no pod starts: %v", err)
	}
}

// The second claim belongs to a copy that was given up: nothing tells who may delete it.
func TestACopyThatWasGivenUpGoesWithItsClaim(t *testing.T) {
	w := newWorld(t)
	w.claim("data", "gold")
	w.meanwhile = func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].State.Terminated.Message = `{"error": "no space left on device"}`
	}
	err := w.move(t.Context(), "silver", silent)
	second, getErr := w.client.CoreV1().PersistentVolumeClaims("team-a").Get(t.Context(), "data-former", metav1.GetOptions{})
	if err == nil || getErr != nil || !strings.Contains(err.Error(), "data-former") && len(second.OwnerReferences) == 0 {
		t.Errorf("the command fails (%v), and says nothing of claim data-former, which has %s and counts for quotas; its labels %v are not those that are documented for deletion", err, w.volumeOf("data-former"), second.Labels)
	}
}
