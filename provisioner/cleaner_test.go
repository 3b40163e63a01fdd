package provisioner

import (
	"cmp"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func credentialsOf(pv string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: objects.SecretName(pv),
		Labels: map[string]string{objects.LabelManagedBy: objects.ManagedBy}, Annotations: map[string]string{objects.AnnotationForPV: pv, objects.AnnotationCluster: "cluster-1"}}}
}

func (f *fixture) hasSecret(pv string) bool {
	f.t.Helper()
	_, err := f.client.CoreV1().Secrets("own").Get(f.t.Context(), objects.SecretName(pv), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		f.t.Fatal(err)
	}
	return err == nil
}

func TestCleanerRemovesOnlyWhatNothingCanNeed(t *testing.T) {
	claim := func(uid types.UID, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: uid},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	pv := func(volume string) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", Annotations: map[string]string{
			objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: volume, objects.AnnotationBackend: "gold", objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "uid-1", objects.AnnotationConnector: "{}",
		}}}
	}
	foreign := func() *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", Annotations: map[string]string{objects.AnnotationProvisionedBy: "cinder.csi.openstack.org"}}}
	}
	for _, c := range []struct {
		name    string
		objects []runtime.Object
		stamp   func(*stamps.Volume)
		want    string // error; empty if the volume is removed
	}{
		{name: "neither claim nor PersistentVolume exists"},
		{name: "the claim's name is another claim's now", objects: []runtime.Object{claim("uid-2", "")}},
		{name: "the claim uses another PersistentVolume", objects: []runtime.Object{claim("uid-1", "pv-static")}},
		{name: "the claim waits", objects: []runtime.Object{claim("uid-1", "")}, want: "volume volume-1 of claim team-a/data: its claim is pending and may still be bound to it"},
		{name: "the PersistentVolume names another volume", objects: []runtime.Object{claim("uid-1", "pvc-uid-1"), pv("volume-2")}},
		{name: "the PersistentVolume names it", objects: []runtime.Object{pv("volume-1")}, want: "volume volume-1 is recorded by PersistentVolume pvc-uid-1"},
		{name: "a PersistentVolume of that name says nothing", objects: []runtime.Object{&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1"}}},
			want: "volume volume-1: it may belong to PersistentVolume pvc-uid-1: PersistentVolume pvc-uid-1: annotation standalone-cinder.openstack.org/volume-id is missing, and so is cinderVolumeId; nothing is deleted until it is fixed"},
		{name: "another provisioner serves the claim under that name", objects: []runtime.Object{claim("uid-1", "pvc-uid-1"), foreign()}},
		{name: "another provisioner has that name, and the claim waits", objects: []runtime.Object{claim("uid-1", ""), foreign()},
			want: "volume volume-1 of claim team-a/data: its claim is pending and may still be bound to it"},
		{name: "the claim was bound to its PersistentVolume, which is gone", objects: []runtime.Object{claim("uid-1", "pvc-uid-1")},
			want: "volume volume-1: claim team-a/data was bound to PersistentVolume pvc-uid-1, which is gone"},
		{name: "another cluster of the same id", stamp: func(s *stamps.Volume) { s.ClusterUID = "another-uid" },
			want: `volume volume-1 is stamped by cluster "cluster-1" under kube-system UID "another-uid", but this cluster's is "kube-system-uid": two clusters seem to share one clusterID; give each its own in the policy`},
		{name: "made before there was a second mark of the cluster", stamp: func(s *stamps.Volume) { s.ClusterUID = "" },
			want: `volume volume-1 was made by an earlier version, whose stamps do not distinguish two clusters with the same clusterID; remove it by hand if no other cluster has clusterID "cluster-1"`},
		{name: "another cluster's stamp", stamp: func(s *stamps.Volume) { s.Cluster = "cluster-2" },
			want: "volume volume-1: its stamp was not written by this program for this cluster"},
		{name: "a stamp that contradicts itself", stamp: func(s *stamps.Volume) { s.PV = "pvc-uid-2" },
			want: "volume volume-1: its stamp was not written by this program for this cluster"},
		{name: "a stamp that names no claim", stamp: func(s *stamps.Volume) { s.Claim = "" }, want: "volume volume-1: its stamp does not name its claim, so the claim may still need it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, append(c.objects, credentialsOf("pvc-uid-1"))...)
			stamp := stamps.Volume{Cluster: "cluster-1", ClusterUID: "kube-system-uid", Namespace: "team-a", Claim: "data", ClaimUID: "uid-1", PV: "pvc-uid-1"}
			if c.stamp != nil {
				c.stamp(&stamp)
			}
			err := f.Cleaner().RemoveVolume(t.Context(), "gold", "volume-1", stamp)
			if c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if c.want == "" {
				wantCalls(t, f.backends["gold"], "remove unrecorded volume-1 of pvc-uid-1")
			} else {
				wantCalls(t, f.backends["gold"])
			}
			// The Secret may belong to another volume of the claim, which is kept.
			if !f.hasSecret("pvc-uid-1") {
				t.Error("the Secret is gone")
			}
		})
	}
}

// TestVolumeRestoredForAClaimThatIsGoneIsUnneeded: a claim may be deleted during the hours
// in which its volume gets a backup's content. Then the volume names only the claim's UID.
func TestVolumeRestoredForAClaimThatIsGoneIsUnneeded(t *testing.T) {
	claim := func(uid types.UID, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: uid},
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}}
	}
	for name, test := range map[string]struct {
		objects []runtime.Object
		cluster string
		want    string
	}{
		"no claim exists":                  {},
		"only another claim does":          {objects: []runtime.Object{claim("uid-2", "")}},
		"the claim uses another one":       {objects: []runtime.Object{claim("uid-1", "pv-static")}},
		"the claim waits":                  {objects: []runtime.Object{claim("uid-1", "")}, want: "volume volume-1 of claim team-a/data: its claim is pending and may still be bound to it"},
		"the claim had a PersistentVolume": {objects: []runtime.Object{claim("uid-1", "pvc-uid-1")}, want: "volume volume-1: claim team-a/data was bound to PersistentVolume pvc-uid-1, which is gone"},
		"another cluster of the same id": {cluster: "another-uid",
			want: `volume volume-1 is stamped by cluster "cluster-1" under kube-system UID "another-uid", but this cluster's is "kube-system-uid": two clusters seem to share one clusterID; give each its own in the policy`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.objects...)
			made := stamps.Volume{Cluster: "cluster-1", ClusterUID: cmp.Or(test.cluster, "kube-system-uid"), ClaimUID: "uid-1", PV: "pvc-uid-1"}
			v := stamps.Settled(cinder.Volume{ID: "volume-1", Name: "pvc-uid-1", Status: cinder.StatusAvailable, Description: made.RestoredFrom("backup-1"),
				Metadata: map[string]string{cinder.MetadataSourceBackup: "backup-1"}})
			if err := f.Cleaner().IsUnneeded(t.Context(), v); authtest.ErrorText(err) != test.want {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

// TestCleanerKeepsAVolumeThatIsRecordedDuringTheProof: what an earlier leader sent is saved
// between two of the proof's requests, whatever their order. The model of the proofs in
// objects/removal found it.
func TestCleanerKeepsAVolumeThatIsRecordedDuringTheProof(t *testing.T) {
	for _, after := range []int{1, 2} {
		for name, usedUp := range map[string]bool{"and bound": false, "bound, used and released": true} {
			t.Run(fmt.Sprintf("%s, after request %d", name, after), func(t *testing.T) {
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "uid-1"}}
				f := newFixture(t, claim)
				requests := 0
				f.client.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
					requests++
					if requests != after+1 {
						return false, nil, nil
					}
					pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-1", Annotations: map[string]string{
						objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "volume-1", objects.AnnotationBackend: "gold", objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: "uid-1", objects.AnnotationConnector: "{}",
					}}}
					f.must(f.client.Tracker().Add(pv))
					claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
					if usedUp {
						return false, nil, f.client.Tracker().Delete(claims, "team-a", "data")
					}
					bound := claim.DeepCopy()
					bound.Spec.VolumeName = pv.Name
					return false, nil, f.client.Tracker().Update(claims, bound, "team-a")
				})
				stamp := stamps.Volume{Cluster: "cluster-1", ClusterUID: "kube-system-uid", Namespace: "team-a", Claim: "data", ClaimUID: "uid-1", PV: "pvc-uid-1"}
				if err := f.Cleaner().RemoveVolume(t.Context(), "gold", "volume-1", stamp); err == nil {
					t.Error("the proof succeeds")
				}
				wantCalls(t, f.backends["gold"])
			})
		}
	}
}

func TestCleanerRemovesSecretsOfAbsentPersistentVolumes(t *testing.T) {
	f := newFixture(t, credentialsOf("pvc-gone"), credentialsOf("pvc-there"), &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-there"}})
	f.must(f.Cleaner().RemoveSecret(t.Context(), "pvc-gone"))
	if err := f.Cleaner().RemoveSecret(t.Context(), "pvc-there"); err == nil || err.Error() != "PersistentVolume pvc-there still exists; its Secret is kept" {
		t.Errorf("error %v", err)
	}
	if f.hasSecret("pvc-gone") || !f.hasSecret("pvc-there") {
		t.Error("the wrong Secret is gone")
	}
}
