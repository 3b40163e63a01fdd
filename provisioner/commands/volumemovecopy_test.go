package commands

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/move"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
)

// oneVolume is a Cinder with one volume, that no node has.
type oneVolume struct {
	swap.Volumes
	volume cinder.Volume
}

func (v oneVolume) Volume(context.Context, string) (cinder.Volume, cinder.Place, error) {
	return v.volume, cinder.Place{}, nil
}

// TestADrainMovesOnlyWhatItListed: with --wait, the list may be hours old. A claim that was
// made anew on another backend meanwhile, or got another volume, is not to be moved.
func TestADrainMovesOnlyWhatItListed(t *testing.T) {
	parsed, err := policy.Parse([]byte(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: old, auth: {cloud: old}}
  - {name: new, auth: {cloud: new}}
  - {name: third, auth: {cloud: third}}
tenants:
  - name: a
    namespaces: [team-a]
    classes:
      - {storageClasses: [fast], backends: [new, third, old], mode: csi}
`), "policy.yaml", mappers.Protocols{}.Describe())
	if err != nil {
		t.Fatal(err)
	}
	const uid = "0b1c9a52-5f0e-4a36-9f0e-2b9d7c3c1a10"
	class, size := "fast", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	stamp := stamps.Volume{Cluster: "cluster-1", ClaimUID: uid, PV: objects.PVNameFor(uid), Tenant: "a"}
	volume := oneVolume{volume: cinder.Volume{ID: "volume-2", SizeGiB: 1, Status: cinder.StatusAvailable, Metadata: stamp.Metadata(map[string]string{stamps.KeyMode: stamps.ModeCSI, stamps.KeyAttached: "true"})}}
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}}, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: uid},
			Spec:       corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: objects.PVNameFor(uid), Resources: corev1.VolumeResourceRequirements{Requests: size}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: size},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: objects.PVNameFor(uid), UID: "pv", Annotations: map[string]string{
				objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: "volume-2", objects.AnnotationBackend: "third", objects.AnnotationTenant: "a",
				objects.AnnotationCluster: "cluster-1", objects.AnnotationClaimUID: uid,
			}},
			Spec: corev1.PersistentVolumeSpec{
				Capacity: size, StorageClassName: class, ClaimRef: &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: uid},
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: "third/volume-2", VolumeAttributes: wire.Volume{}.Context()}},
			},
		})
	c := &copies{backend: "new", say: func(string) {}, mover: move.Mover{Swapper: swap.Swapper{
		Client: client, Policy: parsed, Volumes: func(string) (swap.Volumes, error) { return volume, nil }, Nodes: nodeuse.New(nodeuse.Options{Client: client}), ProvisionerName: "test", Cluster: "cluster-1",
	}}}
	listed := &oneMove{namespace: "team-a", claim: "data", pv: "pvc-of-the-former-claim", backend: "old", volume: cinder.Volume{ID: "volume-1"}}
	if _, err := c.move(t.Context(), listed, false); err == nil {
		t.Error("volume-1 of backend old was listed; the claim was made anew with third/volume-2, and that would be moved")
	}
}

// TestATenantDoesNotChooseTheImageOfCopyingPods: a Deployment of a tenant has the labels that
// the command looks for. Its image would run as root beside the volumes of every tenant that is
// moved.
func TestATenantDoesNotChooseTheImageOfCopyingPods(t *testing.T) {
	deployment := func(namespace, image string) *appsv1.Deployment {
		labels := map[string]string{"app.kubernetes.io/name": "standalone-cinder", "app.kubernetes.io/component": "provisioner"}
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "provisioner", Labels: labels}, Spec: appsv1.DeploymentSpec{
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "standalone-cinder", Image: image}}}},
		}}
	}
	tenants := deployment("team-a", "tenant.example/evil")
	if image, err := programImage(t.Context(), fake.NewClientset(tenants)); err == nil || !strings.Contains(err.Error(), "give --image") {
		t.Errorf("without a Deployment of the program: image %q, %v", image, err)
	}
	if image, err := programImage(t.Context(), fake.NewClientset(tenants, deployment(defaultMapNamespace, "program"))); image != "program" {
		t.Errorf("image %q, %v", image, err)
	}
}

// TestADrainThatWaitsLooksOnceForWhatNodesHave: of each round, hundreds of volumes in use would
// otherwise make thousands of lists.
func TestADrainThatWaitsLooksOnceForWhatNodesHave(t *testing.T) {
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pvc-used")}}}
	inline := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "inline"}}
	client := fake.NewClientset(attachment, inline)
	used, free := &oneMove{pv: "pvc-used"}, &oneMove{pv: "pvc-free"}
	if got := detached(t.Context(), client, []*oneMove{used, free}); len(got) != 1 || got[0] != free || len(client.Actions()) != 1 {
		t.Errorf("%d of them are planned after %d requests", len(got), len(client.Actions()))
	}
	client.PrependReactor("list", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(storagev1.Resource("volumeattachments"), "", nil)
	})
	if got := detached(t.Context(), client, []*oneMove{used, free}); len(got) != 2 {
		t.Errorf("without the right to list attachments, %d of them are planned", len(got))
	}
}

// unanswered is a move of which a request gets no answer.
type unanswered struct{}

func (unanswered) target() string { return "backend new" }

func (unanswered) move(context.Context, *oneMove, bool) (string, error) {
	return "", fmt.Errorf("%w; run the command again in a minute", &cinder.Error{Kind: cinder.KindUnavailable, Message: "no answer", EffectUnknown: true})
}

// TestADrainLooksAgainAtASwapWhoseAnswerWasLost: the swap leaves both volumes marked, and perhaps
// reserved, so no pod of the claim starts.
func TestADrainLooksAgainAtASwapWhoseAnswerWasLost(t *testing.T) {
	f, one := &moveFlags{atOnce: 2}, &oneMove{namespace: "team-a", claim: "data"}
	f.apply = true
	f.moveOne(t.Context(), unanswered{}, one)
	if one.state != moveBusy {
		t.Errorf("it is %s (%s), so runMany does not look at it again this night", one.state, one.why)
	}
}
