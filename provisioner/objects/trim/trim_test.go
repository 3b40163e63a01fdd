package trim

import (
	"encoding/json"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

func aClaim(name string) *corev1.PersistentVolumeClaim {
	class, mode := strings.Clone("gold"), corev1.PersistentVolumeBlock
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: strings.Clone("team-a"), Name: name, UID: "uid", ResourceVersion: "7",
			Labels: map[string]string{"big": "label"},
			Annotations: map[string]string{
				corev1.LastAppliedConfigAnnotation: "{}", "own": strings.Repeat("x", 1<<18),
				annotationRead: "p", corev1.BetaStorageClassAnnotation: "beta",
			},
			Finalizers:      []string{"kubernetes.io/pvc-protection", "read"},
			OwnerReferences: []metav1.OwnerReference{{Name: "owner"}},
			ManagedFields:   []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeMode: &mode, VolumeName: "pvc-uid",
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
				Limits:   corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("6Gi")},
			},
			DataSource: &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "s"},
			Selector:   &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
		},
		Status: corev1.PersistentVolumeClaimStatus{
			Phase: corev1.ClaimBound, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			AllocatedResources:        corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("7Gi")},
			AllocatedResourceStatuses: map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: corev1.PersistentVolumeClaimControllerResizeInProgress},
			Conditions:                []corev1.PersistentVolumeClaimCondition{{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue}},
		},
	}
}

func TestTrimmedClaimKeepsWhatIsRead(t *testing.T) {
	trimmer := New(testOptions())
	want := aClaim("data")
	want.Labels, want.ManagedFields, want.OwnerReferences = nil, nil, nil
	want.Finalizers, want.Spec.Selector = []string{"read"}, &metav1.LabelSelector{}
	delete(want.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(want.Annotations, "own")
	want.Status.Conditions = nil
	for range 2 {
		got := aClaim("data")
		for range 2 {
			if _, err := trimmer.Trim(got); err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Fatalf("trimmed to %+v, want %+v", got, want)
			}
		}
	}
}

func aVolume(claim types.UID) *corev1.PersistentVolume {
	name, id := "pvc-"+string(claim), "id-"+strings.TrimPrefix(string(claim), "uid-")
	initiator := strings.Clone("iqn.2026-01.example:x")
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "pv-uid", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{
				annotationUnread: "{}", strings.Clone(annotationBackend): strings.Clone("gold"), annotationVolume: id,
				annotationClaimUID: string(claim), annotationSecret: name + "-credentials", "others": "kept",
			},
			Finalizers:    []string{"kubernetes.io/pv-protection"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "team-a", Name: "data", UID: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{
				TargetPortal: "192.0.2.1:3260", IQN: "iqn.example:volume-" + id, InitiatorName: &initiator,
				SecretRef: &corev1.SecretReference{Name: name + "-credentials", Namespace: "own"},
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{"fc"}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
}

func TestTrimmedVolumeKeepsWhatIsRead(t *testing.T) {
	trimmer := New(testOptions())
	want := aVolume("uid-1")
	want.Labels, want.ManagedFields = nil, nil
	delete(want.Annotations, annotationUnread)
	for range 2 {
		got := aVolume("uid-1")
		for range 2 {
			if _, err := trimmer.Trim(got); err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(got, want) {
				t.Fatalf("trimmed to %+v, want %+v", got, want)
			}
		}
	}
}

// TestTrimmedVolumeKeepsItsHandle: without driver and handle, nobody would notice that
// two volumes have the same handle.
func TestTrimmedVolumeKeepsItsHandle(t *testing.T) {
	source := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.org", VolumeHandle: "disk-1"}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: *source.DeepCopy()}}
	if _, err := New(testOptions()).Trim(pv); err != nil || !equality.Semantic.DeepEqual(pv.Spec.PersistentVolumeSource, source) {
		t.Errorf("trimmed to %+v, %v", pv.Spec.CSI, err)
	}
}

func TestOtherObjectsAreTrimmedToWhatThePolicyReads(t *testing.T) {
	trimmer := New(testOptions())
	metadata := metav1.ObjectMeta{Name: "x", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}}
	namespace := &corev1.Namespace{ObjectMeta: *metadata.DeepCopy()}
	class := &storagev1.StorageClass{ObjectMeta: *metadata.DeepCopy(), Provisioner: "p", Parameters: map[string]string{"type": "t"}}
	for _, object := range []any{namespace, class, "a tombstone"} {
		if got, err := trimmer.Trim(object); err != nil || got != object {
			t.Errorf("%v: %v, %v", object, got, err)
		}
	}
	if namespace.Annotations != nil || namespace.ManagedFields != nil || namespace.Labels["a"] != "b" {
		t.Errorf("namespace: %+v", namespace)
	}
	if class.Annotations != nil || class.ManagedFields != nil || class.Parameters["type"] != "t" || class.Provisioner != "p" {
		t.Errorf("class: %+v", class)
	}
}

func TestTrimmedObjectsShareWhatIsTheSame(t *testing.T) {
	trimmer := New(testOptions())
	one, two := aVolume("uid-1"), aVolume("uid-2")
	for _, pv := range []*corev1.PersistentVolume{one, two} {
		if _, err := trimmer.Trim(pv); err != nil {
			t.Fatal(err)
		}
	}
	if unsafe.StringData(one.Annotations[annotationBackend]) != unsafe.StringData(two.Annotations[annotationBackend]) {
		t.Error("two volumes have each their own name of the backend")
	}
	if unsafe.SliceData(one.Finalizers) != unsafe.SliceData(two.Finalizers) {
		t.Error("two volumes have each their own finalizers")
	}
	if unsafe.StringData(one.Annotations[annotationSecret]) != unsafe.StringData(one.Spec.ISCSI.SecretRef.Name) {
		t.Error("annotation and reference have each their own name of the Secret")
	}
	parts := map[string]struct{ part, whole string }{
		"the volume's ID in the target's name": {one.Annotations[annotationVolume], one.Spec.ISCSI.IQN},
		"the name in that of the Secret":       {one.Name, one.Spec.ISCSI.SecretRef.Name},
		"the claim's UID in the name":          {string(one.Spec.ClaimRef.UID), one.Name},
		"the claim's UID in the annotation":    {one.Annotations[annotationClaimUID], one.Name},
	}
	for what, c := range parts {
		if at := strings.Index(c.whole, c.part); at < 0 || unsafe.StringData(c.part) != unsafe.StringData(c.whole[at:]) {
			t.Errorf("%s takes memory of its own: %q and %q", what, c.part, c.whole)
		}
	}
	// The library does this with a volume that lacks its finalizer.
	_ = append(one.Finalizers, "one")
	if got := append(two.Finalizers, "two"); !slices.Equal(got, []string{"kubernetes.io/pv-protection", "two"}) || len(one.Finalizers) != 1 {
		t.Errorf("finalizers %v and %v", one.Finalizers, got)
	}
}

func TestFinalizersAreAllThatThePatchOfATrimmedVolumeChanges(t *testing.T) {
	whole, trimmed := aVolume("uid-1"), aVolume("uid-1")
	if _, err := New(testOptions()).Trim(trimmed); err != nil {
		t.Fatal(err)
	}
	// Make the patch as the library does.
	changed := trimmed.DeepCopy()
	changed.Finalizers = append(changed.Finalizers, "external-provisioner.volume.kubernetes.io/finalizer")
	patch, err := strategicpatch.CreateTwoWayMergePatch(encoded(t, trimmed), encoded(t, changed), &corev1.PersistentVolume{})
	if err != nil {
		t.Fatal(err)
	}
	result, err := strategicpatch.StrategicMergePatch(encoded(t, whole), patch, &corev1.PersistentVolume{})
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.PersistentVolume
	if err := json.Unmarshal(result, &got); err != nil {
		t.Fatal(err)
	}
	want := aVolume("uid-1")
	want.Finalizers = changed.Finalizers
	if !equality.Semantic.DeepEqual(&got, want) {
		t.Errorf("patched to %+v, want %+v", got, want)
	}
}

func encoded(t *testing.T, object any) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestWhatIsSharedIsBounded(t *testing.T) {
	trimmer := New(testOptions())
	for i := range 3 * maxShared {
		claim := &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: map[string]string{annotationRead: strconv.Itoa(i)}},
			Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(int64(i), resource.BinarySI)},
			}},
		}
		if _, err := trimmer.Trim(claim); err != nil {
			t.Fatal(err)
		}
	}
	if len(trimmer.texts) > maxShared || len(trimmer.quantities) > maxShared {
		t.Errorf("%d texts, %d quantities", len(trimmer.texts), len(trimmer.quantities))
	}
	long := strings.Repeat("x", 1000)
	trimmer.share(&long)
	if slices.Contains(slices.Collect(maps.Keys(trimmer.texts)), long) {
		t.Error("a long text is remembered")
	}
}

const (
	annotationVolume   = "example.org/volume-id"
	annotationBackend  = "example.org/backend"
	annotationClaimUID = "example.org/claim-uid"
	annotationSecret   = "example.org/secret"
	annotationRead     = "example.org/read"
	annotationUnread   = "example.org/unread"
)

func testOptions() Options {
	return Options{
		IsReadFinalizer: func(name string) bool { return name == "read" },
		IsRead:          func(key string) bool { return key == annotationRead || key == corev1.BetaStorageClassAnnotation },
		IsUnique: func(key string) bool {
			return key == annotationVolume || key == annotationClaimUID || key == annotationSecret
		},
		KeepOnVolumes: func(key string) bool { return key != annotationUnread },
	}
}

// worst returns a claim with size bytes in every field for which the API server has no
// bound of its own.
func worst(size int) *corev1.PersistentVolumeClaim {
	big := func() string { return strings.Repeat("x", size) }
	claim := aClaim("data")
	for range 5000 {
		claim.Spec.AccessModes = append(claim.Spec.AccessModes, corev1.ReadWriteMany)
	}
	claim.Annotations[annotationRead] = big()
	claim.Labels = map[string]string{"a": big()}
	claim.Finalizers = []string{big()}
	claim.OwnerReferences = []metav1.OwnerReference{{Name: big()}}
	claim.GenerateName = big()
	claim.Spec.VolumeName = big()
	claim.Spec.Selector.MatchLabels["a"] = big()
	group, namespace := big(), big()
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: big(), Name: big()}
	claim.Spec.DataSourceRef = &corev1.TypedObjectReference{APIGroup: &group, Kind: big(), Name: big(), Namespace: &namespace}
	claim.Spec.Resources.Requests[corev1.ResourceName(big())] = resource.MustParse("1")
	claim.Spec.Resources.Limits[corev1.ResourceName(big())] = resource.MustParse("1")
	return claim
}

// TestTrimmedClaimsAreBounded: a tenant writes as much as the API server accepts into
// every field. The texts that are kept no longer name anything.
func TestTrimmedClaimsAreBounded(t *testing.T) {
	trimmer := New(testOptions())
	claim := worst(100 << 10)
	if _, err := trimmer.Trim(claim); err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(claim)
	if err != nil {
		t.Fatal(err)
	}
	if len(document) > 8<<10 {
		t.Errorf("a claim of %d bytes is kept: %.2000s", len(document), document)
	}
	if name := claim.Spec.DataSource.Name; !strings.HasSuffix(name, "... (cut)") {
		t.Errorf("the name is cut to %q", name)
	}
	again := claim.DeepCopy()
	if _, err := trimmer.Trim(again); err != nil || !equality.Semantic.DeepEqual(again, claim) {
		t.Errorf("trimmed again, it is another claim (%v)", err)
	}
}

// TestThousandsOfWorstClaimsTakeLittleMemory: nothing that is kept holds on to what was
// dropped.
func TestThousandsOfWorstClaimsTakeLittleMemory(t *testing.T) {
	heap := func() uint64 {
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		return now.HeapAlloc
	}
	trimmer := New(testOptions())
	kept := make([]*corev1.PersistentVolumeClaim, 2000)
	before := heap()
	for i := range kept {
		kept[i] = worst(20 << 10)
		if _, err := trimmer.Trim(kept[i]); err != nil {
			t.Fatal(err)
		}
	}
	if took := heap() - before; took > 32<<20 {
		t.Errorf("they take %d MiB", took>>20)
	}
	runtime.KeepAlive(kept)
}
