package swap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
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
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [fast], backends: [gold, silver], mode: csi}
      - {storageClasses: [gold-only], backends: [gold], mode: csi}
`

// fakeVolumes fakes the volumes of all backends, and fails the nth change.
type fakeVolumes struct {
	volumes map[string]*cinder.Volume
	changes int
	fail    int
}

var errKilled = errors.New("killed")

func (f *fakeVolumes) change() error {
	f.changes++
	if f.fail > 0 && f.changes >= f.fail {
		return errKilled
	}
	return nil
}

func (f *fakeVolumes) Volume(_ context.Context, id string) (cinder.Volume, cinder.Place, error) {
	if v := f.volumes[id]; v != nil {
		return *v, cinder.Place{}, nil
	}
	return cinder.Volume{}, cinder.Place{}, nil
}

func (f *fakeVolumes) Begin(_ context.Context, id, with string) error {
	v := f.volumes[id]
	if v == nil {
		return gone(id)
	}
	if v.Status == cinder.StatusInUse {
		return &cinder.Error{Kind: cinder.KindConflict, Message: "in use"}
	}
	v.Metadata[stamps.KeySwap] = with
	v.Status = cinder.StatusAttaching
	return f.change()
}

func (f *fakeVolumes) Restamp(_ context.Context, id string, stamp stamps.Volume, pvUID string) error {
	if f.volumes[id] == nil {
		return gone(id)
	}
	f.volumes[id].Metadata = stamp.Metadata(f.volumes[id].Metadata)
	f.volumes[id].Metadata[stamps.KeyPVUID] = pvUID
	return f.change()
}

func (f *fakeVolumes) End(_ context.Context, id, with string) error {
	if f.volumes[id] == nil {
		return gone(id)
	}
	if v := f.volumes[id]; v.Metadata[stamps.KeySwap] == with {
		v.Metadata[stamps.KeySwap], v.Status = "", cinder.StatusAvailable
	}
	return f.change()
}

type fixture struct {
	claims  [2]*corev1.PersistentVolumeClaim
	pvs     [2]*corev1.PersistentVolume
	volumes [2]*cinder.Volume
	more    []runtime.Object
	users   []string
	fakeVolumes
	client *fake.Clientset
}

func (f *fixture) Users(context.Context, nodeuse.Volume) ([]string, error) { return f.users, nil }

func (f *fixture) Staging(ctx context.Context, handle string) ([]string, error) {
	return nodeuse.New(nodeuse.Options{Client: f.client}).Staging(ctx, handle)
}

func (f *fixture) Attachments(context.Context, string) ([]nodeuse.Attachment, error) { return nil, nil }

// newFixture has a claim "data" with volume 1 at gold, and "old" with volume 2 at silver.
func newFixture() *fixture {
	f := &fixture{fakeVolumes: fakeVolumes{volumes: map[string]*cinder.Volume{}}}
	for i, name := range []string{"data", "old"} {
		uid, backend, id := fmt.Sprintf("0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a1%d", i), []string{"gold", "silver"}[i], fmt.Sprintf("volume-%d", i+1)
		class, pv := "fast", objects.PVNameFor(uid)
		size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		f.claims[i] = &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: pv, Resources: corev1.VolumeResourceRequirements{Requests: size.DeepCopy()}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size.DeepCopy()},
		}
		f.pvs[i] = &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pv, UID: types.UID("pv-" + uid), Annotations: map[string]string{
				objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: id, objects.AnnotationBackend: backend, objects.AnnotationTenant: "a",
				objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: uid,
			}},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, StorageClassName: class, ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: name, UID: types.UID(uid)},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: wire.DriverName, VolumeHandle: backend + "/" + id, FSType: "ext4", VolumeAttributes: wire.Volume{FilesystemUUIDs: []string{"uuid-of-" + name}}.Context(),
				}},
			},
		}
		stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: uid, PV: pv, Tenant: "a"}
		f.volumes[i] = &cinder.Volume{ID: id, SizeGiB: 1, Status: cinder.StatusAvailable, Metadata: stamp.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyAttached: "true"})}
		f.fakeVolumes.volumes[id] = f.volumes[i]
	}
	return f
}

func (f *fixture) swapper(t *testing.T) *Swapper {
	t.Helper()
	parsed, err := policy.Parse([]byte(testPolicy), "policy.yaml", mappers.Protocols{}.Describe())
	if err != nil {
		t.Fatal(err)
	}
	if f.client == nil {
		some := append([]runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}}, f.more...)
		for i := range f.claims {
			some = append(some, f.claims[i], f.pvs[i])
		}
		f.client = fake.NewClientset(some...)
	}
	return &Swapper{Client: f.client, Policy: parsed, Volumes: func(string) (Volumes, error) { return &f.fakeVolumes, nil }, Nodes: f, ProvisionerName: "test", Cluster: "cluster-1"}
}

var request = Request{Namespace: "team-a", Claims: [2]string{"data", "old"}}

// has returns what the PersistentVolumes record, whose the volumes are, and what is left
// of a swap.
func (f *fixture) has(t *testing.T) string {
	t.Helper()
	var all []string
	for i, pv := range f.pvs {
		now, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		at, err := objects.LocationOf(now)
		if err != nil {
			t.Fatal(err)
		}
		v := f.fakeVolumes.volumes[at.ID]
		if stamps.Of(*v).PV != pv.Name || stamps.Of(*v).ClaimUID != string(f.claims[i].UID) || now.Annotations[AnnotationIntent] != "" || v.Metadata[stamps.KeySwap] != "" || v.Status != cinder.StatusAvailable {
			all = append(all, "unfinished")
		}
		all = append(all, at.String()+" "+strings.Join(objects.VolumeContextOf(now).FilesystemUUIDs, ","))
	}
	return strings.Join(all, ", ")
}

const (
	before = "gold/volume-1 uuid-of-data, silver/volume-2 uuid-of-old"
	after  = "silver/volume-2 uuid-of-old, gold/volume-1 uuid-of-data"
)

// TestASwapThatIsKilledContinues fails every change at Cinder in turn, and from there on
// all, so that nothing can be taken back.
func TestASwapThatIsKilledContinues(t *testing.T) {
	for fail := 1; ; fail++ {
		f := newFixture()
		r := f.swapper(t)
		f.fail = fail
		plan, err := r.Plan(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		err = r.Apply(t.Context(), plan)
		if err == nil {
			if fail < 7 {
				t.Errorf("the swap makes only %d changes", fail-1)
			}
			return
		}
		f.fail = 0
		for range 2 { // the second time, nothing is left to do
			if plan, err = r.Plan(t.Context(), request); err == nil {
				err = r.Apply(t.Context(), plan)
			}
			if got := f.has(t); err != nil || got != after {
				t.Fatalf("failed at change %d, then: %s, %v", fail, got, err)
			}
		}
	}
}

// TestKeysGoWithTheirVolumes: the key of a volume that nodes encrypt is wrapped for the claim
// that it was made for, and of one that Cinder encrypts, nothing is recorded.
func TestKeysGoWithTheirVolumes(t *testing.T) {
	for _, byCinder := range []bool{false, true} {
		for fail := 0; fail < 9; fail++ {
			f := newFixture()
			f.encrypt(0)
			want := [2]string{"", "origin-0"}
			if byCinder {
				f.volumes[1].Encrypted = true
			} else {
				f.encrypt(1)
				want[0] = "origin-1"
			}
			r := f.swapper(t)
			f.fail = fail
			for _, back := range []bool{false, true} {
				for {
					plan, err := r.Plan(t.Context(), Request{request.Namespace, request.Claims, back})
					if err == nil {
						err = r.Apply(t.Context(), plan)
					}
					if err == nil {
						break
					}
					if f.fail == 0 {
						t.Fatal(err)
					}
					f.fail = 0
				}
				for i, pv := range f.pvs {
					now, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{})
					if got := objects.EncryptedOf(now); err != nil || got != want[i] {
						t.Errorf("by Cinder %t, failed at %d, back %t: PersistentVolume %d says %q, want %q (%v)", byCinder, fail, back, i, got, want[i], err)
					}
				}
				want[0], want[1] = want[1], want[0]
			}
			if got := f.has(t); got != before {
				t.Errorf("failed at %d: at the end, the claims have %s", fail, got)
			}
		}
	}
}

// encrypt makes a volume one that nodes encrypt.
func (f *fixture) encrypt(i int) {
	f.pvs[i].Spec.CSI.VolumeAttributes["encrypted"] = fmt.Sprintf("origin-%d", i)
	f.volumes[i].Metadata[stamps.KeyEncryption] = "1 keys/a"
}

func TestASwapIsMadeOnceAndSwappedBackOnce(t *testing.T) {
	f := newFixture()
	r := f.swapper(t)
	for _, step := range []struct {
		back, done bool
		want       string
	}{{true, true, before}, {false, false, after}, {false, true, after}, {true, false, before}, {true, true, before}, {false, false, after}} {
		request := request
		request.Back = step.back
		plan, err := r.Plan(t.Context(), request)
		if err == nil {
			err = r.Apply(t.Context(), plan)
		}
		if got := f.has(t); err != nil || plan.Done != step.done || got != step.want {
			t.Errorf("%+v: %s, %v", step, got, err)
		}
	}
	// What is as it was made needs no annotation.
	f = newFixture()
	r = f.swapper(t)
	for _, back := range []bool{false, true} {
		plan, err := r.Plan(t.Context(), Request{request.Namespace, request.Claims, back})
		if err == nil {
			err = r.Apply(t.Context(), plan)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, pv := range f.pvs {
		if now, err := f.client.CoreV1().PersistentVolumes().Get(t.Context(), pv.Name, metav1.GetOptions{}); err != nil || objects.IsSwapped(now) {
			t.Errorf("PersistentVolume %s has %v, %v", pv.Name, now.Annotations, err)
		}
	}
}

// TestASwapThatFailsBeforeAStampIsTakenBack: a pod took one of the volumes meanwhile.
func TestASwapThatFailsBeforeAStampIsTakenBack(t *testing.T) {
	f := newFixture()
	r := f.swapper(t)
	plan, err := r.Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	f.volumes[1].Status = cinder.StatusInUse
	if err := r.Apply(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("error %v", err)
	}
	f.volumes[1].Status = cinder.StatusAvailable
	if got := f.has(t); got != before {
		t.Errorf("the claims have %s", got)
	}
	if plan, err = r.Plan(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	f.users = []string{"node-1"}
	if err := r.Apply(t.Context(), plan); err == nil || !strings.Contains(err.Error(), "claim data is in use on node node-1") {
		t.Errorf("error %v", err)
	}
	if got := f.has(t); got != before {
		t.Errorf("the claims have %s", got)
	}
}

// TestASwapWhoseClaimIsDeletedMeanwhileEnds: otherwise its volumes would stay reserved.
func TestASwapWhoseClaimIsDeletedMeanwhileEnds(t *testing.T) {
	f := newFixture()
	r := f.swapper(t)
	f.fail = 4
	plan, err := r.Plan(t.Context(), request)
	if err == nil {
		err = r.Apply(t.Context(), plan)
	}
	if !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	f.fail = 0
	if err := f.client.CoreV1().PersistentVolumeClaims("team-a").Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if plan, err = r.Plan(t.Context(), request); err == nil {
		err = r.Apply(t.Context(), plan)
	}
	if got := f.has(t); err == nil || !strings.Contains(err.Error(), "was finished, but: claim team-a/old does not exist") || got != after {
		t.Errorf("the PersistentVolumes have %s, %v", got, err)
	}
}

func TestWhatIsNotSwapped(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*fixture)
		refused string
	}{
		"in use on a node":                     {func(f *fixture) { f.users = []string{"node-1"} }, "claim data is in use on node node-1; stop its pods first"},
		"attached":                             {func(f *fixture) { f.volumes[0].Status = cinder.StatusInUse }, "volume gold/volume-1 is in-use, has 0 attachments"},
		"recorded on a node":                   {func(f *fixture) { f.volumes[0].Metadata[stamps.NodeRecordPrefix+"k"] = "a node-1" }, "records those of 1 nodes"},
		"native":                               {func(f *fixture) { f.pvs[1].Spec.CSI = nil }, "is native, so it says for good which volume it is"},
		"imported":                             {func(f *fixture) { f.imported(t) }, "was imported, and its name says which volume it is"},
		"one of them encrypted by nodes":       {func(f *fixture) { f.encrypt(1) }, "only one of the volumes is encrypted"},
		"one of them encrypted by Cinder":      {func(f *fixture) { f.volumes[1].Encrypted = true }, "only one of the volumes is encrypted"},
		"its key is lost":                      {func(f *fixture) { f.encrypt(0); delete(f.volumes[0].Metadata, stamps.KeyEncryption) }, "volume gold/volume-1 and PersistentVolume"},
		"a key that no PersistentVolume knows": {func(f *fixture) { f.volumes[0].Metadata[stamps.KeyEncryption] = "x" }, "disagree whether nodes encrypt it"},
		"it gets a new key": {func(f *fixture) {
			f.encrypt(0)
			f.encrypt(1)
			f.volumes[0].Metadata[stamps.KeyEncryptionNext] = "x"
		}, "volume gold/volume-1 gets a new key, which its node completes"},
		"another size": {func(f *fixture) { f.pvs[1].Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi") }, "volume gold/volume-1 has 1 GiB, but PersistentVolume"},
		"growing": {func(f *fixture) {
			f.claims[0].Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
		}, "claim data is growing to 2Gi"},
		"another filesystem": {func(f *fixture) { f.pvs[0].Spec.CSI.FSType = "xfs" }, "csi.fsType of PersistentVolumes"},
		"raw":                {func(f *fixture) { f.pvs[0].Spec.VolumeMode = new(corev1.PersistentVolumeBlock) }, "volumeMode of PersistentVolumes"},
		"other access modes": {func(f *fixture) { f.pvs[0].Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"ReadWriteMany"} }, "accessModes of PersistentVolumes"},
		"multiattach":        {func(f *fixture) { f.volumes[0].MultiAttach = true }, "only one of the volumes can be attached to several nodes"},
		"another topology":   {func(f *fixture) { f.pvs[0].Spec.NodeAffinity = &corev1.VolumeNodeAffinity{} }, "nodeAffinity of PersistentVolumes"},
		"attributes class":   {func(f *fixture) { f.pvs[0].Spec.VolumeAttributesClassName = new("slow") }, "claim data has VolumeAttributesClass slow"},
		"not granted":        {func(f *fixture) { f.pvs[0].Spec.StorageClassName = "gold-only" }, "claim data may not have volume silver/volume-2: "},
		"another tenant's":   {func(f *fixture) { f.pvs[0].Annotations[objects.AnnotationTenant] = "b" }, "the tenant of PersistentVolumes"},
		"another's stamp":    {func(f *fixture) { f.volumes[0].Metadata[stamps.KeyPV] = "pvc-x" }, "volume gold/volume-1 is stamped"},
		"gone":               {func(f *fixture) { delete(f.fakeVolumes.volumes, "volume-1") }, "volume gold/volume-1 no longer exists"},
		"not recorded":       {func(f *fixture) { delete(f.volumes[0].Metadata, stamps.KeyAttached) }, "volume gold/volume-1 is not marked as recorded yet"},
		"of another cluster": {func(f *fixture) { f.pvs[0].Annotations[objects.AnnotationCluster] = "x" }, `was made for cluster "x"`},
		"damaged":            {func(f *fixture) { f.pvs[0].Annotations[objects.AnnotationVolume] = "x" }, `but spec.csi.volumeHandle has "gold/volume-1"`},
		"claim being deleted": {func(f *fixture) {
			f.claims[1].DeletionTimestamp, f.claims[1].Finalizers = &metav1.Time{}, []string{"x"}
		}, "claim team-a/old does not exist, is not Bound, or is being deleted"},
		"rebound, not recorded": {func(f *fixture) { f.claims[0].UID, f.pvs[0].Spec.ClaimRef.UID = "x", "x" }, "is not recorded for claim data yet"},
		"staged on a lost node": {func(f *fixture) {
			f.more = append(f.more, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lost"}},
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: staged.LeaseName("lost"), Labels: staged.Labels(), Annotations: map[string]string{staged.AnnotationVolumes: "silver/volume-2"}}})
		}, "claim old is in use on node lost"},
		"in another swap": {func(f *fixture) {
			f.third()
			f.pvs[0].Annotations[AnnotationIntent] = `{"with": "` + f.more[0].(*corev1.PersistentVolume).Name + `", "from": {"volume": "volume-1", "backend": "gold"}, "to": {"volume": "volume-3", "backend": "gold"}}`
		}, "the volume of claim data is being swapped with that of claim third"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			test.change(f)
			_, err := f.swapper(t).Plan(t.Context(), request)
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("error %v, want %s", err, test.refused)
			}
			if f.changes > 0 {
				t.Error("a plan has changed something")
			}
		})
	}
}

// imported makes the second PersistentVolume one of an imported volume.
func (f *fixture) imported(t *testing.T) {
	t.Helper()
	name := objects.ImportedPVName("volume-2")
	f.pvs[1].Name, f.claims[1].Spec.VolumeName = name, name
}

// TestRefusalsThatPass: a drain looks again at what is in use, and at what waits for a node.
func TestRefusalsThatPass(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"in use":            func(f *fixture) { f.users = []string{"node-1"} },
		"it gets a new key": func(f *fixture) { f.encrypt(0); f.encrypt(1); f.volumes[0].Metadata[stamps.KeyEncryptionNext] = "x" },
	} {
		f := newFixture()
		change(f)
		_, err := f.swapper(t).Plan(t.Context(), request)
		if refused, ok := errors.AsType[*RefusedError](err); !ok || !refused.Busy {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ending is what backends.Swaps is to a command that was told to stop: no request is sent.
type ending struct {
	*fakeVolumes
	stop func()
}

func (e ending) Begin(ctx context.Context, id, with string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err := e.fakeVolumes.Begin(ctx, id, with)
	e.stop()
	return err
}

func (e ending) End(ctx context.Context, id, with string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return e.fakeVolumes.End(ctx, id, with)
}

// TestASwapThatIsToldToStopEnds: a Job gets SIGTERM at its deadline, and has 30 seconds. The
// next night is a day later.
func TestASwapThatIsToldToStopEnds(t *testing.T) {
	f := newFixture()
	r := f.swapper(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	plan, err := r.Plan(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	r.Volumes = func(string) (Volumes, error) { return ending{&f.fakeVolumes, stop}, nil }
	err = r.Apply(ctx, plan)
	if got := f.has(t); err != nil || got != after {
		t.Errorf("the claims have %s; volume-1 is %s for swap %q; error %v", got, f.volumes[0].Status, f.volumes[0].Metadata[stamps.KeySwap], err)
	}
}
