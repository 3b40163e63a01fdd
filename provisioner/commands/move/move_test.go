package move

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

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
  - {name: old, auth: {cloud: old}}
  - {name: new, auth: {cloud: new}}
  - {name: native, auth: {cloud: native}}
  - {name: another, auth: {cloud: another}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [old], backends: [old, new, native], mode: csi}
      - {storageClasses: [new], backends: [new, old], mode: csi}
      - {storageClasses: [native], backends: [native]}
`

// fixture has a claim "data" with volume 1 of backend "old".
type fixture struct {
	claim  *corev1.PersistentVolumeClaim
	pv     *corev1.PersistentVolume
	volume cinder.Volume
	users  []string
}

func newFixture() *fixture {
	const uid = "0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a10"
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: uid, PV: objects.PVNameFor(uid), Tenant: "a"}
	return &fixture{
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: uid},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: new("old"), VolumeName: stamp.PV, AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size},
		},
		pv: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: stamp.PV, Annotations: map[string]string{
				objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "1", objects.AnnotationBackend: "old", objects.AnnotationTenant: "a",
				objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: uid,
			}},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, AccessModes: modes, StorageClassName: "old", ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: uid},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "old/1", FSType: "ext4", VolumeAttributes: wire.Volume{}.Context()}},
			},
		},
		volume: cinder.Volume{ID: "1", SizeGiB: 1, Status: cinder.StatusAvailable, Metadata: stamp.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyAttached: "true"})},
	}
}

func (f *fixture) Volume(context.Context, string) (cinder.Volume, cinder.Place, error) {
	return f.volume, cinder.Place{}, nil
}

func (f *fixture) Users(context.Context, nodeuse.Volume) ([]string, error) { return f.users, nil }

func (f *fixture) Attachments(context.Context, string) ([]nodeuse.Attachment, error) { return nil, nil }

func (f *fixture) Staging(context.Context, string) ([]string, error) { return nil, nil }

// Begin, Restamp and End are for those who change something.
func (f *fixture) Begin(context.Context, string, string) error { return errors.New("a plan changes") }

func (f *fixture) Restamp(context.Context, string, stamps.Volume, string) error {
	return errors.New("a plan changes")
}

func (f *fixture) End(context.Context, string, string) error { return errors.New("a plan changes") }

func (f *fixture) mover(t *testing.T) *Mover {
	t.Helper()
	parsed, err := policy.Parse([]byte(testPolicy), "policy.yaml", mappers.Protocols{}.Describe())
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, f.claim, f.pv)
	for _, name := range []string{"old", "new", "native"} {
		if err := client.Tracker().Add(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	return &Mover{Swapper: swap.Swapper{
		Client: client, Policy: parsed, Volumes: func(string) (swap.Volumes, error) { return f, nil }, Nodes: f, ProvisionerName: "test", Cluster: "cluster-1",
	}}
}

func TestPlan(t *testing.T) {
	for name, test := range map[string]struct {
		change         func(f *fixture)
		backend, class string
		want           string // of the description, or of the refusal
		refused, busy  bool
	}{
		"to a class of the new backend": {backend: "new", class: "new", want: "claim team-a/data gets a copy of volume old/1 on backend new, and claim data-former, of StorageClass new, keeps that volume"},
		"already there":                 {backend: "old", want: "claim team-a/data has volume old/1; nothing to do"},
		"the rule prefers another":      {backend: "new", want: "a new claim of StorageClass old goes to backend old before new; set suspended: true on that one", refused: true},
		"not granted to the claim":      {backend: "another", class: "new", want: "claim data could not have a volume of backend another: ", refused: true},
		"not granted to the new claim":  {backend: "another", class: "new", want: "a new claim of StorageClass new gets no volume on backend another; add it to the rule", refused: true},
		"no rule for the class":         {backend: "native", class: "native", want: "a new claim of StorageClass native is not in mode csi on backend native", refused: true},
		"in use":                        {backend: "new", class: "new", change: func(f *fixture) { f.users = []string{"n1"} }, want: "claim data is in use on node n1; stop its pods first", refused: true, busy: true},
		"already there, and in use":     {backend: "old", change: func(f *fixture) { f.users = []string{"n1"} }, want: "nothing to do"},
		"not bound":                     {backend: "new", change: func(f *fixture) { f.claim.Status.Phase = corev1.ClaimPending }, want: "claim team-a/data does not exist, is not Bound", refused: true},
		"native": {backend: "new", change: func(f *fixture) {
			f.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}
		}, want: "is native", refused: true},
		"encrypted": {backend: "new", class: "new", change: func(f *fixture) { f.volume.Encrypted = true }, want: "volume old/1 is encrypted", refused: true},
		"of a pod": {backend: "new", class: "new", change: func(f *fixture) {
			f.claim.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "web", UID: "p", Controller: new(true)}}
		}, want: "claim team-a/data is an ephemeral volume of pod web, and goes with it", refused: true},
		"read-only": {backend: "new", class: "new", change: func(f *fixture) {
			f.pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}, want: "is ReadOnlyMany only", refused: true},
		"a former one": {backend: "new", class: "new", change: func(f *fixture) { f.claim.Labels = map[string]string{objects.LabelCopy: objects.CopyFormer} },
			want: "claim team-a/data was made by a move itself", refused: true},
		"a long name": {backend: "new", class: "new", change: func(f *fixture) { f.rename(strings.Repeat("n", 250)) }, want: "too long", refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			if test.change != nil {
				test.change(f)
			}
			plan, err := f.mover(t).Plan(t.Context(), Request{Namespace: "team-a", Claim: f.claim.Name, Backend: test.backend, StorageClass: test.class})
			refusal, refused := errors.AsType[*swap.RefusedError](err)
			said := ""
			switch {
			case refused:
				said = refusal.Error()
			case err != nil:
				t.Fatal(err)
			default:
				said = plan.Describe()
			}
			if refused != test.refused || refused && refusal.Busy != test.busy || !strings.Contains(said, test.want) {
				t.Errorf("refused %t: %s", refused, said)
			}
		})
	}
}

func (f *fixture) rename(name string) {
	f.claim.Name, f.pv.Spec.ClaimRef.Name = name, name
}

// TestASecondClaimOfSomebodyElseIsLeftAlone: a copy removes what is in its target.
func TestASecondClaimOfSomebodyElseIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"made by hand":                   func(second *corev1.PersistentVolumeClaim) { second.Labels, second.Annotations = nil, nil },
		"for a former claim of the name": func(second *corev1.PersistentVolumeClaim) { second.Annotations[objects.AnnotationCopyOf] = "another" },
		"a copy of another command":      func(second *corev1.PersistentVolumeClaim) { second.Labels = nil },
		"one that is being deleted already": func(second *corev1.PersistentVolumeClaim) {
			second.DeletionTimestamp, second.Finalizers = &metav1.Time{}, []string{"a/b"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			m := f.mover(t)
			plan, err := m.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "new", StorageClass: "new"})
			if err != nil {
				t.Fatal(err)
			}
			second := plan.second()
			second.UID = types.UID("second")
			change(second)
			if err := m.Swapper.Client.(*fake.Clientset).Tracker().Add(second); err != nil {
				t.Fatal(err)
			}
			_, err = m.Apply(t.Context(), plan, func(string) {})
			if _, refused := errors.AsType[*swap.RefusedError](err); !refused {
				t.Errorf("error %v", err)
			}
			pods, err := m.Swapper.Client.CoreV1().Pods("team-a").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(pods.Items) > 0 {
				t.Errorf("pods %+v, %v", pods.Items, err)
			}
		})
	}
}
