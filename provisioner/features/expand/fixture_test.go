package expand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/placement"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
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
    volumeSize: {max: 50Gi}
    classes:
      - {storageClasses: [one], backends: [gold, silver]}
`

// fakeRoom answers in place of the ledger.
type fakeRoom struct {
	mu       sync.Mutex
	denied   *placement.Denial
	health   error
	reserved map[types.UID]int64
	held     map[types.UID]bool
	grew     map[types.UID]int64
}

func (r *fakeRoom) Grow(_ context.Context, claim types.UID, d ledger.Decided) (*placement.Denial, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.denied == nil {
		r.reserved[claim] = d.Volume.SizeGiB
	}
	return r.denied, nil
}

func (r *fakeRoom) HoldGrowth(claim types.UID, sizeGiB int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved[claim], r.held[claim] = sizeGiB, true
}

func (r *fakeRoom) IsGrowing(claim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reserved[claim] > 0
}

func (r *fakeRoom) GiveUpGrowth(claim types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.held[claim] {
		delete(r.reserved, claim)
	}
	return !r.held[claim]
}

func (r *fakeRoom) SettleGrowth(claim types.UID, sizeGiB int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reserved, claim)
	delete(r.held, claim)
	r.grew[claim] = sizeGiB
}

func (r *fakeRoom) Health(string) error { return r.health }

func (r *fakeRoom) Unanswered(_ string, unhealthy error) *placement.Denial {
	return &placement.Denial{Reason: placement.ReasonBackendUnavailable, Message: unhealthy.Error()}
}

// fakeVolumes extends volumes as backends.Lifecycle does.
type fakeVolumes struct {
	mu     sync.Mutex
	size   int64
	err    error
	asked  []int64
	onAsk  func()
	onTurn func()
}

func (v *fakeVolumes) Extend(ctx context.Context, target backends.Target, sizeGiB int64) (cinder.Volume, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.size >= sizeGiB {
		return cinder.Volume{ID: target.VolumeID, SizeGiB: v.size}, nil
	}
	if err := target.Permit(ctx, cinder.Volume{ID: target.VolumeID, SizeGiB: v.size}); err != nil {
		return cinder.Volume{}, err
	}
	if v.onTurn != nil {
		v.onTurn()
	}
	if err := target.Permit(ctx, cinder.Volume{ID: target.VolumeID, SizeGiB: v.size}); err != nil {
		return cinder.Volume{}, err
	}
	if v.onAsk != nil {
		v.onAsk()
	}
	v.asked = append(v.asked, sizeGiB)
	if answered := turns.CallerOf(ctx).Answered; answered != nil {
		answered(cinder.OperationExtend, "req-extend")
	}
	if v.err != nil {
		return cinder.Volume{}, v.err
	}
	v.size = sizeGiB
	return cinder.Volume{ID: target.VolumeID, SizeGiB: sizeGiB}, nil
}

type fixture struct {
	*Controller
	t       *testing.T
	room    *fakeRoom
	volumes map[string]*fakeVolumes
	client  *fake.Clientset
	events  *eventrecord.FakeRecorder
	factory informers.SharedInformerFactory
	policy  atomic.Pointer[policy.Policy]
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	parsed, err := policy.Parse([]byte(testPolicy), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{
		t: t, room: &fakeRoom{reserved: map[types.UID]int64{}, held: map[types.UID]bool{}, grew: map[types.UID]int64{}},
		volumes: map[string]*fakeVolumes{"gold": {size: 10}, "silver": {size: 10}},
		client:  fake.NewClientset(), events: eventrecord.NewFakeRecorder(20),
	}
	f.policy.Store(parsed)
	f.factory = informers.NewSharedInformerFactory(f.client, 0)
	f.Controller = New(Options{
		Name: "test", Cluster: "cluster-1", Policy: f.policy.Load, Room: f.room, Growths: f.room,
		Volumes: func(backend string) (Volumes, error) {
			if volumes, ok := f.volumes[backend]; ok {
				return volumes, nil
			}
			return nil, fmt.Errorf("backend %q is not in the policy", backend)
		},
		OnBehalfOf:        func(ctx context.Context, _ string) context.Context { return ctx },
		Client:            f.client,
		Claims:            f.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: f.factory.Core().V1().PersistentVolumes().Lister(),
		Namespaces:        f.factory.Core().V1().Namespaces().Lister(),
		Recorder:          f.events, Workers: 4,
		Board:   parking.NewBoard(),
		Monitor: liveness.New(), MaxWorkTime: liveness.Always(time.Hour),
		Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	t.Cleanup(f.loop.Queue.ShutDown)
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func size(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

// pair returns a claim of 10 GiB that asks for 20 GiB, and its PersistentVolume.
func pair(name string) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	class, block := "one", corev1.PersistentVolumeBlock
	uid := types.UID("uid-" + name)
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: uid, ResourceVersion: "1"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeMode: &block, VolumeName: "pvc-" + string(uid),
			Resources: corev1.VolumeResourceRequirements{Requests: size("20Gi")}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size("10Gi")},
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(uid), UID: "pv-" + uid, ResourceVersion: "1", Annotations: map[string]string{
			"pv.kubernetes.io/provisioned-by":            "test",
			"standalone-cinder.openstack.org/volume-id":  "volume-" + name,
			"standalone-cinder.openstack.org/backend":    "gold",
			"standalone-cinder.openstack.org/cluster":    "cluster-1",
			"standalone-cinder.openstack.org/tenant":     "a",
			"standalone-cinder.openstack.org/claim-uid":  string(uid),
			"standalone-cinder.openstack.org/connector":  `{"host":"k8s"}`,
			"standalone-cinder.openstack.org/protocol":   "iscsi",
			"standalone-cinder.openstack.org/project-id": "p1",
		}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size("10Gi"), StorageClassName: class, VolumeMode: &block,
			ClaimRef:               &corev1.ObjectReference{Namespace: "team-a", Name: name, UID: uid},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{IQN: "iqn.2026-01.example:" + name}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	return claim, pv
}

// add puts the objects where the controller finds them.
func (f *fixture) add(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	f.t.Helper()
	_, err := f.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(f.t.Context(), claim, metav1.CreateOptions{})
	f.must(err)
	_, err = f.client.CoreV1().PersistentVolumes().Create(f.t.Context(), pv, metav1.CreateOptions{})
	f.must(err)
	f.cache()
}

// cache brings the caches up to date.
func (f *fixture) cache() {
	f.t.Helper()
	claims, err := f.client.CoreV1().PersistentVolumeClaims("").List(f.t.Context(), metav1.ListOptions{})
	f.must(err)
	for i := range claims.Items {
		f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(&claims.Items[i]))
	}
	pvs, err := f.client.CoreV1().PersistentVolumes().List(f.t.Context(), metav1.ListOptions{})
	f.must(err)
	for i := range pvs.Items {
		f.must(f.factory.Core().V1().PersistentVolumes().Informer().GetStore().Update(&pvs.Items[i]))
	}
}

// sync works on a claim once, after bringing the caches up to date.
func (f *fixture) sync(name string) {
	f.t.Helper()
	f.cache()
	f.loop.Try(f.t.Context(), "team-a/"+name)
	f.cache()
}

// state describes a claim, its PersistentVolume and what is reserved in one line. The
// size that Cinder showed at the end of a growth stays reserved.
func (f *fixture) state(name string) string {
	f.t.Helper()
	claim, err := f.client.CoreV1().PersistentVolumeClaims("team-a").Get(f.t.Context(), name, metav1.GetOptions{})
	f.must(err)
	text := "claim " + claim.Status.Capacity.Storage().String()
	if pv, err := f.client.CoreV1().PersistentVolumes().Get(f.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{}); err == nil {
		text = "pv " + pv.Spec.Capacity.Storage().String() + ", " + text
	}
	if allocated, ok := claim.Status.AllocatedResources[corev1.ResourceStorage]; ok {
		text += ", allocated " + allocated.String()
	}
	if status := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; status != "" {
		text += ", " + string(status)
	}
	for _, condition := range claim.Status.Conditions {
		text += ", " + string(condition.Type)
	}
	return fmt.Sprintf("%s, reserved %d", text, max(f.room.reserved[claim.UID], f.room.grew[claim.UID]))
}

func (f *fixture) is(name, want string) {
	f.t.Helper()
	if got := f.state(name); got != want {
		f.t.Errorf("%s is: %s\nwant: %s", name, got, want)
	}
}

func (f *fixture) newEvents() []string {
	var events []string
	for {
		select {
		case event := <-f.events.Events:
			events = append(events, event)
		default:
			return events
		}
	}
}

// queued returns the keys in the queue, and empties it.
func (f *fixture) queued() []string {
	var keys []string
	for f.loop.Queue.Len() > 0 {
		key, _ := f.loop.Queue.Get()
		f.loop.Queue.Done(key)
		keys = append(keys, key)
	}
	return keys
}

func failure(kind cinder.Kind, message string) error {
	return &cinder.Error{Backend: "gold", Kind: kind, Message: message, Status: 400, RequestID: "req-1", Operation: cinder.OperationExtend}
}

var errSilent = errors.New("backend gold does not answer")
