package provisioner

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

type nvmeBackends struct{ fakeBackends }

func (nvmeBackends) Mappings(string) map[string]mapping.Mapping {
	return map[string]mapping.Mapping{"nvmeof": {As: mapping.CSI, Driver: "csi.nvmf.com", VolumeHandle: "{{ .nvmeof.uuid }}"}}
}

func nvmeDocument(uuid string) string {
	return fmt.Sprintf(`{"driver_volume_type": "nvmeof", "data": {"target_nqn": "nqn.2015-09.com.example:shared", "vol_uuid": %q,
  "portals": [["192.0.2.11", "4420", "tcp"]]}}`, uuid)
}

const (
	firstDisk  = "84d0c5f7-2349-401c-8672-f76214d10001"
	secondDisk = "84d0c5f7-2349-401c-8672-f76214d10002"
)

func newNVMeFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.useBackends(nvmeBackends{f.backends})
	for _, volumes := range f.backends {
		volumes.document, volumes.apart = nvmeDocument(firstDisk), true
	}
	f.count()
	return f
}

// handleOf returns a PersistentVolume that anybody may have made.
func handleOf(name, driver, volumeHandle string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: volumeHandle}},
	}}
}

// provisionUID provisions another claim of the tenant.
func (f *fixture) provisionUID(uid string) (*corev1.PersistentVolume, error) {
	return f.provision(f.claim(func(c *corev1.PersistentVolumeClaim) { c.Name, c.UID = "data-"+uid, types.UID(uid) }))
}

// TestHandleOfAnotherVolumeIsRefused: kubelet would mount one volume for another with
// the same driver and handle.
func TestHandleOfAnotherVolumeIsRefused(t *testing.T) {
	refusedBy := func(name string) string {
		return `InvalidMapping: backend gold: volumeHandle "` + firstDisk + `" is already used by PersistentVolume ` + name + ` of driver csi.nvmf.com, so nodes would mount the wrong volume; ` +
			`correct mapping.nvmeof of the backend so that the handle names one volume, as {{ .volume.id }} does, or remove that PersistentVolume if its volume is gone`
	}
	for name, test := range map[string]struct {
		prepare func(*fixture)
		want    string
	}{
		"a PersistentVolume of the program": {func(f *fixture) { f.record(f.provisionClaim("uid-1")) }, refusedBy("pvc-uid-1")},
		"one that the cache holds trimmed": {func(f *fixture) {
			trimmed, err := objects.NewTrimmer().Trim(f.provisionClaim("uid-1"))
			f.must(err)
			f.record(trimmed.(*corev1.PersistentVolume))
		}, refusedBy("pvc-uid-1")},
		"one that is being saved":      {func(f *fixture) { f.provisionClaim("uid-1") }, refusedBy("pvc-uid-1")},
		"one that was written by hand": {func(f *fixture) { f.cache(handleOf("by-hand", "csi.nvmf.com", firstDisk)) }, refusedBy("by-hand")},
		"one of another driver":        {func(f *fixture) { f.cache(handleOf("other", "csi.other.com", firstDisk)) }, ""},
		"one of another handle":        {func(f *fixture) { f.cache(handleOf("other", "csi.nvmf.com", secondDisk)) }, ""},
		"another volume with its own": {func(f *fixture) {
			f.record(f.provisionClaim("uid-1"))
			f.backends["gold"].document = nvmeDocument(secondDisk)
		}, ""},
		"the claim's own, saved already":    {func(f *fixture) { f.cache(handleOf("pvc-uid-2", "csi.nvmf.com", firstDisk)) }, ""},
		"a claim that was undone meanwhile": {func(f *fixture) { f.provisionClaim("uid-1"); f.endClaim("uid-1") }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newNVMeFixture(t)
			test.prepare(f)
			f.backends["gold"].calls = nil
			pv, err := f.provisionUID("uid-2")
			if test.want == "" {
				if err != nil || pv.Spec.CSI == nil {
					t.Fatalf("%v, %v", pv, err)
				}
				// Try once more, as after a failed save.
				if _, err := f.provisionUID("uid-2"); err != nil {
					t.Errorf("the next attempt: %v", err)
				}
				return
			}
			var refusal *mappers.Refusal
			if !errors.As(err, &refusal) || err.Error() != test.want {
				t.Errorf("error is %v, want %s", err, test.want)
			}
			if calls := strings.Join(f.backends["gold"].calls, "; "); !strings.Contains(calls, "abandon pvc-uid-2") {
				t.Errorf("the volume was not undone: %s", calls)
			}
		})
	}
}

// TestHandlesAreIndexed: a handle that is the volume's ID is found by the other index.
func TestHandlesAreIndexed(t *testing.T) {
	f := newFixture(t)
	own := handleOf("pvc-uid-1", "csi.example.org", "volume-1")
	own.Annotations = map[string]string{objects.AnnotationVolume: "volume-1"}
	f.cache(own)
	if taken := objects.OtherByHandle(f.Records, handleOf("", "csi.example.org", "volume-1").Spec.PersistentVolumeSource, "pvc-uid-2"); taken != "pvc-uid-1" {
		t.Errorf("found %q", taken)
	}
	if taken := objects.OtherByHandle(f.Records, corev1.PersistentVolumeSource{}, "pvc-uid-2"); taken != "" {
		t.Errorf("without a handle: %q", taken)
	}
}
