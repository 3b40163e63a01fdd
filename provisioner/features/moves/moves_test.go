package moves

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	eventrecord "k8s.io/client-go/tools/record"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const name, cluster = "example.com/cinder", "c1"

var noon = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func claimNamed(claim, copy string, hours int) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: claim, UID: types.UID("uid-" + claim), CreationTimestamp: metav1.NewTime(noon.Add(-time.Duration(hours) * time.Hour))},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-uid-" + claim},
	}
	if copy != "" {
		c.Labels = map[string]string{objects.LabelCopy: copy}
	}
	return c
}

// volumeOf returns the PersistentVolume of a claim, with its first volume.
func volumeOf(c *corev1.PersistentVolumeClaim, backend, id string, gib string, change func(annotations map[string]string)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.VolumeName, Annotations: map[string]string{
			objects.AnnotationProvisionedBy: name, objects.AnnotationCluster: cluster, objects.AnnotationBackend: backend, objects.AnnotationVolume: id, objects.AnnotationProtocol: objects.ProtocolCSI,
		}},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(gib)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: backend + "/" + id}},
		},
	}
	change(pv.Annotations)
	return pv
}

func unchanged(map[string]string) {}

func copyOf(annotations map[string]string) { annotations[objects.AnnotationCopyOf] = "uid-data" }

// swappedTo makes a PersistentVolume record another volume.
func swappedTo(t *testing.T, handle, backend, id string) func(map[string]string) {
	text, err := json.Marshal(objects.Swapped{Handle: handle, With: []string{"pvc-other"}, Volume: wire.Volume{}})
	if err != nil {
		t.Fatal(err)
	}
	return func(annotations map[string]string) {
		annotations[objects.AnnotationBackend], annotations[objects.AnnotationVolume], annotations[objects.AnnotationSwapped] = backend, id, string(text)
	}
}

func reporter(t *testing.T, known ...any) (*Reporter, *eventrecord.FakeRecorder) {
	claims := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	volumes, events := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}), eventrecord.NewFakeRecorder(10)
	for _, object := range known {
		in := claims
		if _, is := object.(*corev1.PersistentVolume); is {
			in = volumes
		}
		if err := in.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	return New(Options{
		Name: name, Cluster: cluster, Claims: corelisters.NewPersistentVolumeClaimLister(claims),
		PersistentVolumes: corelisters.NewPersistentVolumeLister(volumes), Recorder: events,
	}), events
}

func TestAClaimIsToldOfItsOtherVolume(t *testing.T) {
	data := claimNamed("data", "", 1)
	first := volumeOf(data, "old", "v1", "1Gi", unchanged)
	moved := volumeOf(data, "old", "v1", "1Gi", swappedTo(t, "old/v1", "new", "v2"))
	const told = "Normal VolumeSwapped it now has volume v2 on backend new; before, it had volume v1 on backend old"
	with := func(pv *corev1.PersistentVolume, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
		pv = pv.DeepCopy()
		change(pv)
		return pv
	}
	for name, test := range map[string]struct {
		before, after *corev1.PersistentVolume
		want          string
	}{
		"moved":                       {first, moved, told},
		"moved back":                  {moved, first, "Normal VolumeSwapped it now has volume v1 on backend old; before, it had volume v2 on backend new"},
		"something else changed":      {moved, with(moved, func(pv *corev1.PersistentVolume) { pv.Annotations["x"] = "y" }), ""},
		"moved before the term":       {nil, moved, ""},
		"gone":                        {moved, nil, ""},
		"given to another claim":      {first, with(moved, func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "another" }), ""},
		"free":                        {first, with(moved, func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef = nil }), ""},
		"another provisioner's":       {first, with(moved, func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationProvisionedBy] = "other" }), ""},
		"another cluster's":           {first, with(moved, func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationCluster] = "other" }), ""},
		"a record that was damaged":   {first, with(moved, func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationSwapped] = "{" }), ""},
		"a record that was corrected": {with(moved, func(pv *corev1.PersistentVolume) { pv.Annotations[objects.AnnotationSwapped] = "{" }), moved, ""},
		"another of that name":        {with(first, func(pv *corev1.PersistentVolume) { pv.UID, pv.Spec.CSI = "before", nil }), moved, ""},
		"native": {first, with(moved, func(pv *corev1.PersistentVolume) {
			pv.Annotations[objects.AnnotationProtocol], pv.Spec.CSI = "iscsi", nil
		}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, events := reporter(t, data)
			r.VolumeChanged(test.before, test.after)
			got := ""
			select {
			case got = <-events.Events:
			default:
			}
			if got != test.want {
				t.Errorf("told %q; want %q", got, test.want)
			}
		})
	}
}

func TestCountsWhatMovesLeave(t *testing.T) {
	var known []any
	add := func(claim, copy, backend, gib string, hours int, change func(map[string]string)) {
		c := claimNamed(claim, copy, hours)
		known = append(known, c, volumeOf(c, backend, "v-"+claim, gib, change))
	}
	former := func(claim string) func(map[string]string) {
		return swappedTo(t, "new/v-"+claim, "old", "v-"+claim)
	}
	add("data", "", "old", "8Gi", 90, unchanged)
	add("partial", objects.CopyPartial, "new", "1Gi", 1, copyOf)
	add("former-1", objects.CopyFormer, "old", "2Gi", 5, former("former-1"))
	add("former-2", objects.CopyFormer, "old", "3Gi", 7, former("former-2"))
	add("written-by-a-user", objects.CopyFormer, "old", "4Gi", 9, unchanged)
	add("another-value", "x", "old", "4Gi", 9, copyOf)
	add("another-cluster", objects.CopyFormer, "old", "4Gi", 9, func(annotations map[string]string) {
		copyOf(annotations)
		annotations[objects.AnnotationCluster] = "other"
	})
	pending := claimNamed("pending", objects.CopyPartial, 9)
	pending.Spec.VolumeName = ""
	taken := claimNamed("taken", objects.CopyFormer, 9)
	taken.Spec.VolumeName = "pvc-uid-former-1"
	r, _ := reporter(t, append(known, pending, taken)...)
	got, err := r.Counts()
	if err != nil {
		t.Fatal(err)
	}
	want := map[Group]Count{
		{"new", objects.CopyPartial}: {1, 1, noon.Add(-time.Hour)},
		{"old", objects.CopyFormer}:  {2, 5, noon.Add(-7 * time.Hour)},
	}
	if !maps.Equal(got, want) {
		t.Errorf("counted %v of %v; want %v", got, slices.Collect(maps.Keys(got)), want)
	}
}
