package retype

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
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
      - {storageClasses: [fixed], backends: [gold], volumeType: hdd}
      - {storageClasses: [classes], backends: [gold], volumeTypes: [ssd]}
`

// oneVolume fakes a backend with one volume.
type oneVolume struct {
	volume cinder.Volume
	// before runs before the permit is asked.
	before   func()
	requests int
	migrated bool

	snapshots    []string
	snapshotsErr error
}

func (o *oneVolume) Look(context.Context, backends.Target) (cinder.Volume, cinder.Place, error) {
	return o.volume, cinder.Place{}, nil
}

func (o *oneVolume) HasType(_ context.Context, volumeType string) (bool, error) {
	if volumeType == "hidden" {
		return false, errors.New("forbidden")
	}
	return volumeType == "ssd", nil
}

func (o *oneVolume) SnapshotsOf(context.Context, string) ([]string, error) {
	return o.snapshots, o.snapshotsErr
}

func (o *oneVolume) Retype(ctx context.Context, target backends.Target, volumeType string, mayMigrate bool) (cinder.Volume, error) {
	if o.before != nil {
		o.before()
	}
	if err := target.Permit(ctx, o.volume); err != nil {
		return cinder.Volume{}, err
	}
	o.requests++
	o.migrated = mayMigrate
	o.volume.Type = volumeType
	return o.volume, nil
}

type fixture struct {
	claim  *corev1.PersistentVolumeClaim
	pv     *corev1.PersistentVolume
	class  *storagev1.StorageClass
	volume cinder.Volume

	snapshots    []string
	snapshotsErr error
}

func newFixture() *fixture {
	class := "fast"
	stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: "c1", PV: "pvc-c1", Tenant: "a"}
	return &fixture{
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "c1"},
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: "pvc-c1", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
		pv: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pvc-c1", UID: "pv1", Annotations: map[string]string{
				objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationTenant: "a",
				objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "c1", objects.AnnotationConnector: "{}",
			}},
			Spec: corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "c1"}},
		},
		class:  &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "test"},
		volume: cinder.Volume{ID: "volume-1", Type: "hdd", SizeGiB: 1, Status: cinder.StatusInUse, Metadata: stamp.Metadata(nil)},
	}
}

func (f *fixture) retyper(t *testing.T) (*Retyper, *oneVolume) {
	t.Helper()
	p, err := policy.Parse([]byte(testPolicy), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	one := &oneVolume{volume: f.volume, snapshots: f.snapshots, snapshotsErr: f.snapshotsErr}
	return &Retyper{
		Client: fake.NewClientset(f.claim, f.pv, f.class, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}),
		Policy: p, ProvisionerName: "test", Cluster: "cluster-1",
		Volumes: func(backend string) (Volumes, error) {
			if backend != "gold" {
				return nil, errors.New("no backend " + backend)
			}
			return one, nil
		},
	}, one
}

// TestWhoseVolumeGetsAnotherType: the program must record the volume for the claim in
// this cluster, and the stamp must say the same.
func TestWhoseVolumeGetsAnotherType(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*fixture)
		to      string // ssd if empty
		done    bool
		warning string
		refused string
	}{
		"in use":                  {change: func(*fixture) {}},
		"available":               {change: func(f *fixture) { f.volume.Status = cinder.StatusAvailable }},
		"already changing":        {change: func(f *fixture) { f.volume.Status = cinder.StatusRetyping }},
		"it has the type":         {change: func(f *fixture) { f.volume.Type = "ssd" }, done: true},
		"no such type":            {change: func(*fixture) {}, to: "tape", refused: `backend gold: there is no volume type "tape", or the project may not use it`},
		"types may not be listed": {change: func(*fixture) {}, to: "hidden", warning: `whether there is a volume type "hidden" cannot be read: forbidden`},
		"the StorageClass asks for another": {change: func(f *fixture) { f.class.Parameters = map[string]string{"type": "hdd"} },
			warning: `StorageClass fast asks for volumes of type "hdd", and new claims still get that`},
		"by a class until now": {change: func(f *fixture) { f.claim.Status.CurrentVolumeAttributesClassName = new("fast") },
			warning: "claim team-a/data keeps the VolumeAttributesClass fast, which may name another type"},
		"no claim":       {change: func(f *fixture) { f.claim.Name = "other" }, refused: "claim team-a/data does not exist"},
		"not bound":      {change: func(f *fixture) { f.claim.Status.Phase = corev1.ClaimPending }, refused: "claim team-a/data is not bound; its volume will get the type that the rule and the StorageClass give"},
		"for many hosts": {change: func(f *fixture) { f.claim.Spec.AccessModes[0] = corev1.ReadWriteMany }, refused: "claim team-a/data has the access mode ReadWriteMany, for which its volume needs its current type"},
		"another's":      {change: func(f *fixture) { f.pv.Annotations[objects.AnnotationProvisionedBy] = "other" }, refused: "PersistentVolume pvc-c1 was not made by test"},
		"without its volume": {change: func(f *fixture) { delete(f.pv.Annotations, objects.AnnotationVolume) },
			refused: "PersistentVolume pvc-c1: annotation standalone-cinder.openstack.org/volume-id is missing, and so is cinderVolumeId; nothing is deleted until it is fixed"},
		"of the historic provisioner": {change: func(f *fixture) {
			delete(f.pv.Annotations, objects.AnnotationVolume)
			f.pv.Annotations[objects.HistoricIdentity], f.pv.Annotations[objects.HistoricVolume] = "x", "volume-1"
		}, refused: "PersistentVolume pvc-c1 was made by the historic provisioner, so nothing proves whose volume it names; import the volume first"},
		"another cluster": {change: func(f *fixture) { f.pv.Annotations[objects.AnnotationCluster] = "x" }, refused: `PersistentVolume pvc-c1 was made for cluster "x", but this is "cluster-1"`},
		"another claim":   {change: func(f *fixture) { f.pv.Spec.ClaimRef.UID, f.pv.Annotations[objects.AnnotationClaimUID] = "c2", "c2" }, refused: "PersistentVolume pvc-c1 does not belong to claim team-a/data, or is being deleted"},
		"another stamp":   {change: func(f *fixture) { f.volume.Metadata = nil }, refused: "volume volume-1 does not carry the stamp of claim team-a/data; it is not touched"},
		"reserved":        {change: func(f *fixture) { f.volume.Status = cinder.StatusReserved }, refused: "volume volume-1 is reserved; only an available volume, or one in use, can get another type"},
		"the rule fixes another type": {change: func(f *fixture) { class := "fixed"; f.claim.Spec.StorageClassName, f.class.Name = &class, class },
			refused: `the policy denies it: ParameterNotAllowed: tenants[0].classes[1].volumeType grants only volumes of type "hdd"; change the rule first`},
		"another tenant": {change: func(f *fixture) { f.pv.Annotations[objects.AnnotationTenant] = "b" },
			refused: "the policy denies it: NoMatchingTenant: namespace team-a belongs to tenant a now, but the volume counts for tenant b (tenants[0])"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			test.change(f)
			r, one := f.retyper(t)
			plan, err := r.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Type: cmp.Or(test.to, "ssd")})
			if test.refused != "" {
				if err == nil || err.Error() != test.refused {
					t.Errorf("error %v, want %s", err, test.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if plan.Done != test.done || strings.Join(plan.Warnings, "") != test.warning || one.requests != 0 {
				t.Errorf("plan %+v, %d requests", plan, one.requests)
			}
			v, err := r.Apply(t.Context(), plan)
			if err != nil || v.Type != cmp.Or(test.to, "ssd") || (one.requests == 0) != test.done {
				t.Errorf("volume %+v, %d requests, error %v", v, one.requests, err)
			}
		})
	}
}

func TestVolumeThatIsReleasedMeanwhileKeepsItsType(t *testing.T) {
	f := newFixture()
	r, one := f.retyper(t)
	plan, err := r.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Type: "ssd"})
	if err != nil {
		t.Fatal(err)
	}
	one.before = func() {
		if err := r.Client.CoreV1().PersistentVolumes().Delete(t.Context(), "pvc-c1", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Apply(t.Context(), plan); err == nil || err.Error() != "PersistentVolume pvc-c1 was deleted or bound to another claim in the meantime" || one.requests != 0 {
		t.Errorf("error %v, %d requests", err, one.requests)
	}
}

// TestWhichVolumesMove: Cinder copies volumes that are attached nowhere, and a native
// PersistentVolume cannot follow them.
func TestWhichVolumesMove(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*fixture)
		done    bool
		warning string
		refused string
	}{
		"attached nowhere": {},
		"being moved":      {change: func(f *fixture) { f.volume.Status = cinder.StatusRetyping }},
		"moved":            {change: func(f *fixture) { f.volume.Type, f.snapshots = "ssd", []string{"s1"} }, done: true},
		"in use": {change: func(f *fixture) { f.volume.Status = cinder.StatusInUse },
			refused: "volume volume-1 is in use, and Cinder cannot copy it then; stop the pods that use claim team-a/data, and wait until it is available"},
		"native": {change: func(f *fixture) { f.pv.Spec.CSI = nil },
			refused: "PersistentVolume pvc-c1 is native, so it records for good how its present storage is reached; move the claim to mode csi first"},
		"with snapshots": {change: func(f *fixture) { f.snapshots = []string{"s1", "s2"} },
			refused: "volume volume-1 has snapshots, such as s1, and Cinder copies no volume with snapshots; delete them first"},
		"with unknown snapshots": {change: func(f *fixture) { f.snapshotsErr = errors.New("forbidden") },
			warning: "whether the volume has snapshots, with which Cinder copies none, cannot be read: forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			f.volume.Status = cinder.StatusAvailable
			f.pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/volume-1"}
			if test.change != nil {
				test.change(f)
			}
			r, one := f.retyper(t)
			plan, err := r.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Type: "ssd", Migrate: true})
			if test.refused != "" {
				if err == nil || err.Error() != test.refused {
					t.Errorf("error %v, want %s", err, test.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if plan.Done != test.done || strings.Join(plan.Warnings, "") != test.warning {
				t.Errorf("plan %+v", plan)
			}
			if v, err := r.Apply(t.Context(), plan); err != nil || v.Type != "ssd" || one.migrated == test.done {
				t.Errorf("volume %+v, migrated %t, error %v", v, one.migrated, err)
			}
		})
	}
}

// TestTypeByAVolumeAttributesClass: any tenant may name any class, so the rule must
// list its type.
func TestTypeByAVolumeAttributesClass(t *testing.T) {
	for name, test := range map[string]struct {
		change        func(*fixture)
		kind, message string
	}{
		"listed":     {},
		"not listed": {func(f *fixture) { class := "fast"; f.claim.Spec.StorageClassName, f.class.Name = &class, class }, "Invalid", `the policy denies it: ParameterNotAllowed: a VolumeAttributesClass asks for volumes of type "ssd", which tenants[0].classes[0].volumeTypes does not list`},
		"reserved":   {func(f *fixture) { f.volume.Status = cinder.StatusReserved }, "Conflict", "volume volume-1 is reserved; only an available volume, or one in use, can get another type"},
		"no claim":   {func(f *fixture) { f.claim.Name = "other" }, "", "claim team-a/data does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture()
			class := "classes"
			f.claim.Spec.StorageClassName, f.class.Name = &class, class
			if test.change != nil {
				test.change(f)
			}
			r, one := f.retyper(t)
			err := r.RetypeVolume(t.Context(), f.pv, "ssd")
			var refused interface{ FailureKind() string }
			kind, message := "", ""
			if errors.As(err, &refused) {
				kind = refused.FailureKind()
			}
			if err != nil {
				message = err.Error()
			}
			if kind != test.kind || message != test.message || (err == nil) != (one.requests == 1) {
				t.Errorf("got  %s: %s, %d requests\nwant %s: %s", kind, message, one.requests, test.kind, test.message)
			}
		})
	}
}

// TestAVolumeThatManyNodesReadKeepsItsType: in mode csi, each node has its own
// attachment, which requires a type with multiattach, like the present one.
func TestAVolumeThatManyNodesReadKeepsItsType(t *testing.T) {
	for _, csi := range []bool{true, false} {
		f := newFixture()
		class := "classes"
		f.claim.Spec.StorageClassName, f.class.Name = &class, class
		f.claim.Spec.AccessModes[0] = corev1.ReadOnlyMany
		if csi {
			f.pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "gold/volume-1"}
		}
		r, one := f.retyper(t)
		err := r.RetypeVolume(t.Context(), f.pv, "ssd")
		if want := "claim team-a/data has the access mode ReadOnlyMany, for which its volume needs its current type"; csi && (err == nil || err.Error() != want) || !csi && err != nil {
			t.Errorf("error %v", err)
		}
		if (one.requests == 0) != csi {
			t.Errorf("%d requests", one.requests)
		}
	}
}
