package objects

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// existingClaimOf returns a claim in namespace team-a, made the given minutes ago.
func existingClaimOf(name, class string, minutes int, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team-a", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{AnnotationStorageProvisioner: "test"},
			CreationTimestamp: metav1.NewTime(time.Unix(1_000_000, 0).Add(-time.Duration(minutes) * time.Minute)),
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1500Mi")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if change != nil {
		change(claim)
	}
	return claim
}

func existingVolumeOf(name string, annotations map[string]string, change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{AnnotationProvisionedBy: "test"}},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName:              "fast",
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-data"},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	for key, value := range annotations {
		pv.Annotations[key] = value
	}
	if change != nil {
		change(pv)
	}
	return pv
}

// recordedAnnotations returns the annotations of the PersistentVolume of claim data.
func recordedAnnotations() map[string]string {
	return map[string]string{
		AnnotationVolume: "volume-1", AnnotationBackend: "gold", AnnotationTenant: "a", AnnotationRule: "tenants[0].classes[1]",
		AnnotationCluster: "cluster-1", AnnotationClaimUID: "uid-data", AnnotationConnector: "{}",
		AnnotationEndpoint: "http://Cinder:8776/v3/", AnnotationProject: "p1",
	}
}

func TestReadExisting(t *testing.T) {
	class := func(name, provisioner string) *storagev1.StorageClass {
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, Parameters: map[string]string{"type": name}}
	}
	block := corev1.PersistentVolumeBlock
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system", UID: "cluster-1"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a", Labels: map[string]string{"tenant": "a"}}},
		class("fast", "test"), class("other", "other"),

		existingClaimOf("younger", "fast", 1, nil),
		existingClaimOf("data", "fast", 9, func(c *corev1.PersistentVolumeClaim) {
			c.Status.Phase, c.Spec.VolumeName = corev1.ClaimBound, "pvc-1"
		}),
		existingClaimOf("block", "fast", 8, func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = &block
			c.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		}),
		existingClaimOf("by-old-annotation", "fast", 7, func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{AnnotationBetaStorageProvisioner: "test"}
		}),
		// Claims that wait for the first consumer have no annotation until there is
		// one.
		existingClaimOf("unannotated", "fast", 6, func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }),
		existingClaimOf("class-gone", "gone", 5, nil),
		existingClaimOf("refused", "fast", 4, func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }),
		existingClaimOf("of-nobody", "fast", 3, func(c *corev1.PersistentVolumeClaim) { c.Namespace = "unlabeled" }),
		// These belong to others.
		existingClaimOf("foreign", "fast", 1, func(c *corev1.PersistentVolumeClaim) { c.Annotations[AnnotationStorageProvisioner] = "other" }),
		existingClaimOf("foreign-by-class", "other", 1, func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }),
		existingClaimOf("foreign-and-gone", "gone", 1, func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }),
		existingClaimOf("static", "", 1, func(c *corev1.PersistentVolumeClaim) { c.Annotations, c.Spec.StorageClassName = nil, nil }),

		existingVolumeOf("pvc-1", recordedAnnotations(), nil),
		existingVolumeOf("pvc-2", recordedAnnotations(), func(pv *corev1.PersistentVolume) {
			pv.Annotations[AnnotationCluster] = "cluster-0"
			pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2500Mi")
			pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			pv.Status.Phase = corev1.VolumeReleased
			pv.Spec.ClaimRef = nil
		}),
		existingVolumeOf("pvc-damaged", recordedAnnotations(), func(pv *corev1.PersistentVolume) { delete(pv.Annotations, AnnotationBackend) }),
		existingVolumeOf("old", map[string]string{HistoricIdentity: "x", HistoricVolume: "volume-9"}, nil),
		existingVolumeOf("old-pinned", map[string]string{HistoricIdentity: "x", HistoricVolume: "volume-9", AnnotationBackend: "gold"}, nil),
		existingVolumeOf("old-damaged", map[string]string{HistoricVolume: "volume-9"}, nil),
		// These belong to others, or to no provisioner.
		existingVolumeOf("foreign", recordedAnnotations(), func(pv *corev1.PersistentVolume) { pv.Annotations[AnnotationProvisionedBy] = "other" }),
		existingVolumeOf("static", nil, nil),
	)
	got, err := ReadExisting(t.Context(), client, "test")
	if err != nil {
		t.Fatal(err)
	}

	const bytes = 1500 << 20
	request := func(change func(*policy.Request)) policy.Request {
		r := policy.Request{
			Namespace: "team-a", NamespaceLabels: map[string]string{"tenant": "a"}, StorageClass: "fast", Parameters: map[string]string{"type": "fast"},
			Bytes: bytes, VolumeMode: policy.Filesystem,
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	recorded := review.Volume{
		Name: "pvc-1", Backend: "gold", Tenant: "a", StorageClass: "fast", GiB: 2,
		// Values written by hand are normalized.
		Place: review.Place{Endpoint: "http://cinder:8776/v3", Project: "p1"}, Cluster: "cluster-1", ClaimUID: "1",
	}
	retained, damaged := recorded, recorded
	retained.ClaimUID, damaged.ClaimUID = "2", "damaged"
	retained.Name, retained.Cluster, retained.GiB, retained.Retain = "pvc-2", "cluster-0", 3, true
	damaged.Name, damaged.Backend = "pvc-damaged", ""
	damaged.Damage = "PersistentVolume pvc-damaged: annotation standalone-cinder.openstack.org/backend is missing; nothing is deleted until it is fixed"
	historic := review.Volume{Name: "old", StorageClass: "fast", GiB: 2, ClaimUID: "uid-data", Historic: true}
	pinned, unclear := historic, historic
	pinned.Name, pinned.Backend = "old-pinned", "gold"
	unclear.Name, unclear.ClaimUID = "old-damaged", ""
	unclear.Damage = "PersistentVolume old-damaged: annotation standaloneCinderProvisionerIdentity is missing, so the volume cannot be distinguished from a foreign one; nothing is deleted until it is fixed"
	want := review.Existing{
		Cluster: "cluster-1",
		Claims: []review.Claim{
			{Request: request(nil), Name: "data", UID: "uid-data", ClassExists: true, Bound: true, Volume: "pvc-1"},
			{Request: request(func(r *policy.Request) { r.VolumeMode, r.LimitBytes = policy.Block, 2<<30 }), Name: "block", UID: "uid-block", ClassExists: true},
			{Request: request(nil), Name: "by-old-annotation", UID: "uid-by-old-annotation", ClassExists: true},
			{Request: request(nil), Name: "unannotated", UID: "uid-unannotated", ClassExists: true},
			{Request: request(func(r *policy.Request) { r.StorageClass, r.Parameters = "gone", nil }), Name: "class-gone", UID: "uid-class-gone"},
			{Request: request(nil), Name: "refused", UID: "uid-refused", ClassExists: true, Refusal: &policy.Denial{
				Reason:  "UnsupportedSelector",
				Message: "spec.selector cannot be honored for a volume that is yet to be created; remove the selector, or bind an existing PersistentVolume with spec.volumeName",
			}},
			{Request: request(func(r *policy.Request) { r.Namespace, r.NamespaceLabels = "unlabeled", nil }), Name: "of-nobody", UID: "uid-of-nobody", ClassExists: true},
			{Request: request(nil), Name: "younger", UID: "uid-younger", ClassExists: true},
		},
		Volumes: []review.Volume{historic, unclear, pinned, recorded, retained, damaged},
	}
	for i := range want.Claims {
		want.Claims[i].Request.Claim = want.Claims[i].Name
	}
	if got.Cluster != want.Cluster {
		t.Errorf("cluster %q, want %q", got.Cluster, want.Cluster)
	}
	compare(t, "claim", got.Claims, want.Claims)
	compare(t, "volume", got.Volumes, want.Volumes)
	for _, action := range client.Actions() {
		if action.GetVerb() != "list" {
			t.Errorf("it did more than list: %s %s", action.GetVerb(), action.GetResource().Resource)
		}
	}
}

func compare[T any](t *testing.T, what string, got, want []T) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			t.Errorf("%s %d is missing: %+v", what, i, want[i])
		case i >= len(want):
			t.Errorf("%s %d is one too many: %+v", what, i, got[i])
		case !reflect.DeepEqual(got[i], want[i]):
			t.Errorf("%s %d\n got %+v\nwant %+v", what, i, got[i], want[i])
		}
	}
}

// pages answers lists of namespaces with the given number of pages of one namespace
// each, and lets the continuation of one page expire once.
func pages(client *fake.Clientset, number, expired int) *[]metav1.ListOptions {
	var asked []metav1.ListOptions
	client.PrependReactor("list", "namespaces", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options := action.(clienttesting.ListActionImpl).ListOptions
		asked = append(asked, options)
		list := &corev1.NamespaceList{}
		page, _ := strconv.Atoi(options.Continue)
		if page == expired && expired > 0 {
			return true, nil, apierrors.NewResourceExpired("the continue token is too old")
		}
		for i := page; i < number; i++ {
			if options.Limit > 0 && i > page {
				list.Continue = strconv.Itoa(i)
				break
			}
			list.Items = append(list.Items, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("ns-%d", i), Labels: map[string]string{"n": strconv.Itoa(i)}}})
		}
		return true, list, nil
	})
	return &asked
}

func TestListsAreReadInPages(t *testing.T) {
	for name, test := range map[string]struct {
		expired int
		want    []metav1.ListOptions
	}{
		"to the end":      {0, []metav1.ListOptions{{Limit: 500}, {Limit: 500, Continue: "1"}, {Limit: 500, Continue: "2"}}},
		"expired halfway": {2, []metav1.ListOptions{{Limit: 500}, {Limit: 500, Continue: "1"}, {Limit: 500, Continue: "2"}, {}}},
	} {
		t.Run(name, func(t *testing.T) {
			class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "test"}
			client := fake.NewClientset(class)
			for i := range 3 {
				claim := existingClaimOf(fmt.Sprint(i), "fast", 0, func(c *corev1.PersistentVolumeClaim) { c.Namespace = fmt.Sprintf("ns-%d", i) })
				if err := client.Tracker().Add(claim); err != nil {
					t.Fatal(err)
				}
			}
			asked := pages(client, 3, test.expired)
			existing, err := ReadExisting(t.Context(), client, "test")
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*asked, test.want) {
				t.Errorf("asked %+v\nwant %+v", *asked, test.want)
			}
			for _, claim := range existing.Claims {
				if claim.Request.NamespaceLabels["n"] != claim.Name {
					t.Errorf("claim %s has the labels %v", claim.Name, claim.Request.NamespaceLabels)
				}
			}
			if len(existing.Claims) != 3 {
				t.Errorf("%d claims", len(existing.Claims))
			}
		})
	}
}

// TestAnExpiredListIsReadAnew checks that nothing is listed twice.

func TestListsThatCannotBeRead(t *testing.T) {
	for resource, what := range map[string]string{
		"persistentvolumeclaims": "PersistentVolumeClaims", "persistentvolumes": "PersistentVolumes", "namespaces": "Namespaces", "storageclasses": "StorageClasses",
	} {
		refused := errors.New("forbidden")
		client := fake.NewClientset()
		client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
		_, err := ReadExisting(t.Context(), client, "test")
		if !errors.Is(err, refused) || err.Error() != "cannot list "+what+": forbidden" {
			t.Errorf("%s: %v", resource, err)
		}
	}
}
