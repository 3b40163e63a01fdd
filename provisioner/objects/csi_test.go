package objects

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

func TestPolicyAndNodesKnowTheDriverByOneName(t *testing.T) {
	if policy.CSIDriver != wire.DriverName {
		t.Errorf("the policy knows %q, the nodes %q", policy.CSIDriver, wire.DriverName)
	}
}

func TestVolumesThatTheDriverCannotServe(t *testing.T) {
	const remedy = `needs a volume that several hosts may use at once, and Cinder says multiattach is false; use a volume type with the extra spec multiattach="<is> True", or use ReadWriteOnce`
	for want, v := range map[string]CSIVolume{
		"":                                   {AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}},
		"access mode ReadOnlyMany " + remedy: {AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}},
		// csi-attacher refuses to attach such a volume.
		"access modes ReadOnlyMany and ReadWriteOnce cannot": {AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadOnlyMany}, MultiAttach: true},
		"access mode ReadWriteMany " + remedy:                {AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, Block: true},
		"access mode ReadWriteMany is for volum":             {AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, MultiAttach: true},
	} {
		_, err := MapCSI(v)
		var refused *mappers.Refusal
		if want == "" && err != nil || want != "" && (!errors.As(err, &refused) || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%+v: %v\nwant %s", v, err, want)
		}
	}
}

func TestFilesystemsThatAnAdministratorRecords(t *testing.T) {
	const one, two = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11", "0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a11"
	for text, want := range map[string]string{
		"":                                     "",
		one:                                    one,
		strings.ToUpper(one) + ", " + two:      one + "," + two,
		"/dev/sdb":                             "",
		"6f3d7f7c":                             "",
		"00000000-0000-0000-0000-000000000000": "",
		"sdb," + two:                           two,
	} {
		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationFilesystemUUIDs: text}}}
		if got := strings.Join(FilesystemUUIDsOf(pv, "volume-1"), ","); got != want {
			t.Errorf("%q is read as %q, want %q", text, got, want)
		}
		block := corev1.PersistentVolumeBlock
		pv.Spec.VolumeMode = &block
		if got := FilesystemUUIDsOf(pv, "volume-1"); got != nil {
			t.Errorf("a raw block volume has the filesystems %q", got)
		}
	}
}

func TestHandlesOfTheDriverNameTheirVolumes(t *testing.T) {
	pvs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, Indexers())
	source := func(driver, handle string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	}
	for name, s := range map[string]corev1.PersistentVolumeSource{"ours": source(wire.DriverName, "gold/v1"), "another": source("ebs.csi.example", "gold/v1"), "bad": source(wire.DriverName, "v2")} {
		if err := pvs.Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: s}}); err != nil {
			t.Fatal(err)
		}
	}
	if found := ByVolumeID(pvs, "v1"); len(found) != 1 || found[0].Name != "ours" {
		t.Errorf("volume v1 is named by %v", found)
	}
	if taken := OtherByHandle(pvs, source(wire.DriverName, "gold/v1"), "mine"); taken != "ours" {
		t.Errorf("the handle is that of %q", taken)
	}
}

func TestWhatAClusterHasForModeCSI(t *testing.T) {
	node := func(name, driver string) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, NodeID: name}}}}
	}
	driver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: wire.DriverName}}
	for name, test := range map[string]struct {
		objects []runtime.Object
		want    review.CSI
	}{
		"nothing":    {nil, review.CSI{}},
		"two of all": {[]runtime.Object{driver, node("a", wire.DriverName), node("b", "ebs.csi.example"), node("c", wire.DriverName)}, review.CSI{Driver: true, Nodes: 2}},
	} {
		if got, err := ReadCSI(t.Context(), fake.NewClientset(test.objects...)); err != nil || *got != test.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, resource := range []string{"csidrivers", "csinodes"} {
		client := fake.NewClientset()
		client.PrependReactor("*", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
		if _, err := ReadCSI(t.Context(), client); err == nil {
			t.Errorf("%s cannot be read, and there is no error", resource)
		}
	}
}

func TestClaimsOfTheDriversStorageClassesAreReviewed(t *testing.T) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "driver"}, Provisioner: wire.DriverName}
	name := class.Name
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}}}
	existing, err := ReadExisting(t.Context(), fake.NewClientset(class, claim), "test")
	if err != nil || len(existing.Claims) != 1 || len(existing.Classes) != 1 || existing.Claims[0].Request.Driver != wire.DriverName || !existing.Claims[0].OnePod {
		t.Errorf("read %+v, %v", existing, err)
	}
}

// TestKubeletsSeeThatAVolumeIsWritten: a kubelet looks at the first access mode alone.
// If that is ReadOnlyMany, it assumes that nobody writes to the volume.
func TestKubeletsSeeThatAVolumeIsWritten(t *testing.T) {
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{AccessModes: modes}}
	mapped, err := MapCSI(CSIVolume{AccessModes: modes, Block: true, MultiAttach: true})
	if err != nil {
		t.Fatal(err)
	}
	pv := NewPersistentVolume(Provisioned{Claim: claim, Class: &storagev1.StorageClass{}, Mapped: mapped})
	if got := pv.Spec.AccessModes; len(got) != 2 || got[0] != corev1.ReadWriteMany || got[1] != corev1.ReadOnlyMany || modes[0] != corev1.ReadOnlyMany {
		t.Errorf("access modes %q of %q", got, modes)
	}
}

// TestARawVolumesOriginReachesItsNodes: a raw volume used to be never formatted, so its
// PersistentVolume says nothing. Now its node makes a LUKS header on a disk that seems blank,
// unless it is told not to, and needs the sources to know the header of a copy.
func TestARawVolumesOriginReachesItsNodes(t *testing.T) {
	result, err := MapCSI(CSIVolume{PVName: "pvc-1", Backend: "gold", VolumeID: "86a25cac-e84c-4ef1-816f-76fcd478cebd", SecretNamespace: "own",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Block: true, NeverFormat: true, FilesystemUUIDs: []string{"0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"}})
	if err != nil {
		t.Fatal(err)
	}
	told := wire.ParseVolumeContext(result.Source.CSI.VolumeAttributes)
	if !told.NeverFormat {
		t.Error("the node is not told that a raw volume existed before its claim, so it may make a LUKS header on it")
	}
	if !slices.Contains(told.FilesystemUUIDs, "0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11") {
		t.Error("the node is not told the sources of a raw copy, whose LUKS header the copy has")
	}
	block := corev1.PersistentVolumeBlock
	copied := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{VolumeMode: &block, PersistentVolumeSource: result.Source}}
	if !NeverFormat(copied) {
		t.Error("a copy of a raw volume that existed before its claim may be formatted")
	}
}
