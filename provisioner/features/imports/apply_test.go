package imports

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/secrets"
)

const importPolicy = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - name: gold
    auth: {cloud: gold}
tenants:
  - name: team-a
    namespaces: [team-a]
    classes: [{storageClasses: [gold], backends: [gold]}]
`

const importDocument = `{"driver_volume_type": "iscsi", "data": {"target_portal": "10.0.0.1:3260", "target_iqn": "iqn.2010-10.org.openstack:volume-1", "target_lun": 1}}`

// project fakes a backend's project with one volume. It stamps and connects the volume
// as a Lifecycle does.
type project struct {
	volume   cinder.Volume
	document string
	// connected is called when the volume is connected.
	connected func()
	canceled  int
	// spec is the last import, and imports is how many there were.
	spec    backends.Import
	imports int
}

func (p *project) All(context.Context) ([]cinder.Volume, error) {
	return []cinder.Volume{p.volume}, nil
}

func (p *project) Importable(cinder.Volume, stamps.Volume, cinder.Connector, bool) error { return nil }

func (p *project) Import(ctx context.Context, spec backends.Import) (backends.Connected, error) {
	p.spec = spec
	p.imports++
	if !spec.Stamp.Owns(p.volume) {
		if stamps.Of(p.volume).Cluster != "" {
			if err := spec.Unclaimed(ctx, p.volume); err != nil {
				return backends.Connected{}, err
			}
		}
		p.volume.Metadata = spec.Stamp.Metadata(nil)
	}
	if !spec.CSI {
		p.volume.Status = cinder.StatusAttaching
	}
	if p.connected != nil {
		p.connected()
	}
	return backends.Connected{Volume: p.volume, Document: []byte(p.document), Fresh: true}, nil
}

func (p *project) CancelImport(context.Context, backends.Target) error {
	p.canceled++
	return nil
}

// operator is an importer for claims of tenant team-a, with the cluster that it
// works on.
type operator struct {
	*Importer
	client  *fake.Clientset
	project *project
	request Request
}

func newOperator(t *testing.T, policyText string, v cinder.Volume, objects ...runtime.Object) *operator {
	t.Helper()
	parsed, err := policy.Parse([]byte(policyText), "policy.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	registry, err := mappers.New(mappers.Options{SecretNamespace: "own", Protocols: mappers.BuiltIn()})
	if err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset(append(objects,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}},
		&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Provisioner: "test"},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}},
	)...)
	client.PrependReactor("create", "persistentvolumeclaims", func(action ktesting.Action) (bool, runtime.Object, error) {
		created := action.(ktesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim)
		created.UID = types.UID("uid-of-" + created.Name)
		return false, nil, nil
	})
	volumes := &project{volume: v, document: importDocument}
	return &operator{
		Importer: &Importer{
			Policy: parsed, Backend: &parsed.Backends[0], Connector: cinder.Connector{Host: "standalone-cinder", Initiator: "iqn.2026-11.org.example:nodes"},
			Volumes: volumes,
			Site: Site{
				Client: client, Mappers: registry, Nodes: nodeuse.New(nodeuse.Options{Client: client}),
				Secrets:         secrets.New(secrets.Options{Client: client, Namespace: "own", Cluster: "cluster-1"}),
				ProvisionerName: "test", Cluster: "cluster-1", ClusterUID: "cluster-1", Namespace: "own",
			},
		},
		client: client, project: volumes,
		request: Request{Volume: v.ID, Namespace: "team-a", Claim: "data", StorageClass: "gold", ReclaimPolicy: corev1.PersistentVolumeReclaimRetain},
	}
}

// run runs the command once with --apply.
func (o *operator) run(t *testing.T) (*Plan, error) {
	t.Helper()
	plan, err := o.Plan(t.Context(), o.request)
	if err != nil {
		return nil, err
	}
	_, err = o.Apply(t.Context(), plan)
	return plan, err
}

// saved returns the PersistentVolume of the imported volume; nil if there is none.
func (o *operator) saved(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	pv, err := o.client.CoreV1().PersistentVolumes().Get(t.Context(), objects.ImportedPVName(o.project.volume.ID), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

func wantRefusal(t *testing.T, err error, part string) {
	t.Helper()
	var refusal *RefusedError
	if !errors.As(err, &refusal) || !strings.Contains(err.Error(), part) {
		t.Errorf("error %v, want a refusal with %q", err, part)
	}
}

// keptVolume returns a volume that claim uid-old left behind.
func keptVolume(created time.Time) cinder.Volume {
	metadata := stamps.Volume{Cluster: "cluster-1", ClusterUID: "cluster-1", Namespace: "team-a", Claim: "old", ClaimUID: "uid-old", PV: "pvc-uid-old"}.Metadata(nil)
	metadata["standalone-cinder.openstack.org/requested-at"] = time.Date(2026, 11, 20, 15, 0, 0, 0, time.UTC).Format(time.RFC3339)
	return cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusInUse, Metadata: metadata, CreatedAt: created}
}

func attachedThrough(pv string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "attachment-1"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: "csi.example.org", NodeName: "node-1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
	}}
}

// TestNodeThatUsesAKeptVolumeStopsEveryRun: a node uses the volume under the name of
// the PersistentVolume that is gone. Only the stamp, which an import replaces, has that
// name.
func TestNodeThatUsesAKeptVolumeStopsEveryRun(t *testing.T) {
	o := newOperator(t, importPolicy, keptVolume(time.Date(2026, 11, 20, 15, 0, 1, 0, time.UTC)), attachedThrough("pvc-uid-old"))
	for range 2 {
		_, err := o.run(t)
		wantRefusal(t, err, "node node-1 still uses volume volume-1")
	}
	if o.saved(t) != nil {
		t.Error("another node can mount the volume now")
	}
	if err := o.client.StorageV1().VolumeAttachments().Delete(t.Context(), "attachment-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := o.run(t); err != nil || o.saved(t) == nil {
		t.Errorf("the node has released it, and yet: %v", err)
	}
}

// TestRestoredBackupIsImportedWhileItsOriginalIsInUse: the name in its stamp is that of
// the original, and so nodes that use this name use the original.
func TestRestoredBackupIsImportedWhileItsOriginalIsInUse(t *testing.T) {
	restored := keptVolume(time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC))
	restored.Status = cinder.StatusAvailable
	o := newOperator(t, importPolicy, restored, attachedThrough("pvc-uid-old"), naming("pvc-uid-old", "the-original"), claim("old", "uid-old", "pvc-uid-old"))
	if _, err := o.run(t); err != nil || o.saved(t) == nil {
		t.Errorf("error %v", err)
	}
}

// TestClaimThatWentDuringTheImportTakesNoVolumeWithIt: a PersistentVolume of a claim
// that is gone is released at once, and with Delete, its volume is removed.
func TestClaimThatWentDuringTheImportTakesNoVolumeWithIt(t *testing.T) {
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	for name, change := range map[string]func(o *operator) error{
		"deleted": func(o *operator) error { return o.client.Tracker().Delete(claims, "team-a", "data") },
		"replaced": func(o *operator) error {
			return o.client.Tracker().Update(claims, claim("data", "uid-other", "imported-volume-1"), "team-a")
		},
		"being deleted": func(o *operator) error {
			going := claim("data", "uid-of-data", "imported-volume-1")
			going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: time.Now()}, []string{"kubernetes.io/pvc-protection"}
			return o.client.Tracker().Update(claims, going, "team-a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOperator(t, importPolicy, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable})
			o.request.ReclaimPolicy = corev1.PersistentVolumeReclaimDelete
			o.project.connected = func() {
				if err := change(o); err != nil {
					t.Fatal(err)
				}
			}
			_, err := o.run(t)
			wantRefusal(t, err, "claim team-a/data")
			if pv := o.saved(t); pv != nil {
				t.Errorf("PersistentVolume %s has the policy %s", pv.Name, pv.Spec.PersistentVolumeReclaimPolicy)
			}
		})
	}
}

// TestVolumeThatAnotherRunImportedStaysConnected: this run may fail at any step.
func TestVolumeThatAnotherRunImportedStaysConnected(t *testing.T) {
	o := newOperator(t, importPolicy, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable})
	o.project.connected = func() {
		pv := naming("imported-volume-1", "volume-1")
		pv.Annotations[objects.AnnotationCluster] = "cluster-1"
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "uid-of-data"}
		if err := o.client.Tracker().Add(pv); err != nil {
			t.Fatal(err)
		}
		o.project.document = `{"driver_volume_type": "unknown", "data": {}}`
	}
	if _, err := o.run(t); err == nil || o.project.canceled > 0 {
		t.Errorf("error %v, disconnected %d times", err, o.project.canceled)
	}
	alone := newOperator(t, importPolicy, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable})
	alone.project.document = `{"driver_volume_type": "unknown", "data": {}}`
	if _, err := alone.run(t); err == nil || alone.project.canceled != 1 {
		t.Errorf("error %v, disconnected %d times", err, alone.project.canceled)
	}
}

// TestClaimThatWasToBeProvisionedIsRefused: spec.volumeName may be set when the program
// is already working on the claim. Both volumes would then count as one.
func TestClaimThatWasToBeProvisionedIsRefused(t *testing.T) {
	for _, key := range []string{objects.AnnotationStorageProvisioner, objects.AnnotationBetaStorageProvisioner} {
		waiting := newClaim(&Plan{Volume: cinder.Volume{ID: "volume-1", SizeGiB: 1}, Class: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}}}, Request{Namespace: "team-a", Claim: "data"})
		waiting.UID, waiting.Annotations = "uid-1", map[string]string{key: "test"}
		o := newOperator(t, importPolicy, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable}, waiting)
		_, err := o.run(t)
		wantRefusal(t, err, "claim team-a/data")
		if stamps.Of(o.project.volume).Cluster != "" || o.saved(t) != nil {
			t.Errorf("imported: %+v", o.project.volume)
		}
	}
}

// TestVolumeInAnotherZoneThanTheRulesIsRefused: the backend need not map its zones to
// nodes.
func TestVolumeInAnotherZoneThanTheRulesIsRefused(t *testing.T) {
	fixed := strings.Replace(importPolicy, "backends: [gold]}", "backends: [gold], availabilityZone: az1}", 1)
	for zone, ok := range map[string]bool{"az1": true, "az2": false, "": false} {
		o := newOperator(t, fixed, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable, Zone: zone})
		_, err := o.run(t)
		if ok != (err == nil) {
			t.Errorf("zone %q: %v", zone, err)
		}
		if !ok {
			wantRefusal(t, err, `"az1"`)
		}
	}
}

// TestOtherReclaimPolicyOfAnImportedVolumeIsTold: nobody must believe that a volume is
// kept if it is not.
func TestOtherReclaimPolicyOfAnImportedVolumeIsTold(t *testing.T) {
	o := newOperator(t, importPolicy, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable})
	o.request.ReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	if _, err := o.run(t); err != nil {
		t.Fatal(err)
	}
	told := func(plan *Plan) bool {
		return slices.ContainsFunc(plan.Warnings, func(warning string) bool { return strings.Contains(warning, "the reclaim policy Delete") })
	}
	if plan, err := o.run(t); err != nil || told(plan) {
		t.Errorf("the same again: error %v, warnings %q", err, plan.Warnings)
	}
	o.request.ReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	if plan, err := o.run(t); err != nil || !told(plan) {
		t.Errorf("now with Retain: error %v, warnings %q", err, plan.Warnings)
	}
}

// TestOperatorsAreToldWhatANodeFormats: a kubelet formats a native volume whose content
// it does not recognize, and nothing in a PersistentVolume can prevent that.
func TestOperatorsAreToldWhatANodeFormats(t *testing.T) {
	for _, test := range []struct {
		mode corev1.PersistentVolumeMode
		told bool
	}{{corev1.PersistentVolumeFilesystem, true}, {corev1.PersistentVolumeBlock, false}} {
		o := newOperator(t, importPolicy, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable})
		o.request.VolumeMode = test.mode
		plan, err := o.Plan(t.Context(), o.request)
		if err != nil {
			t.Fatal(err)
		}
		const warning = "a node that gets volume volume-1 as a disk formats it unless it recognizes a filesystem, partition table or encryption on it; if the volume has other data, import it with --volume-mode Block"
		if slices.Contains(plan.Warnings, warning) != test.told {
			t.Errorf("%s: warnings %q", test.mode, plan.Warnings)
		}
	}
}

// TestVolumeThatWasMadeForAnotherClaimIsTold: other drivers leave such metadata, and a
// volume without a stamp may belong to another cluster even if no pod uses it now.
func TestVolumeThatWasMadeForAnotherClaimIsTold(t *testing.T) {
	v := cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable, Metadata: map[string]string{
		"csi.storage.k8s.io/pvc/namespace": "shop", "csi.storage.k8s.io/pvc/name": "orders", "csi.storage.k8s.io/pv/name": "pvc-7",
	}}
	o := newOperator(t, importPolicy, v)
	plan, err := o.Plan(t.Context(), o.request)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(plan.Warnings, func(warning string) bool {
		return strings.Contains(warning, "claim shop/orders") && strings.Contains(warning, "PersistentVolume pvc-7")
	}) {
		t.Errorf("error %v, warnings %q", err, plan.Warnings)
	}
}

// TestImportPutsBackNoOlderKey: after the import has written the shared Secret, the leader
// writes a newer key.
func TestImportPutsBackNoOlderKey(t *testing.T) {
	text := strings.Replace(importPolicy, "auth: {cloud: gold}", "auth: {cloud: gold}\n    mapping: {rbd: {as: csi, clusterID: ceph-1}}", 1)
	o := newOperator(t, text, cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable})
	o.project.document = `{"driver_volume_type": "rbd", "data": {"name": "volumes/volume-volume-1", "hosts": ["192.0.2.11"], "ports": ["6789"],
  "auth_enabled": true, "auth_username": "cinder", "keyring": "[client.cinder]\n\tkey = QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQQ==\n"}}`
	newer := map[string][]byte{"userID": []byte("cinder"), "userKey": []byte("newer")}
	stored := func(pv *corev1.PersistentVolume) *corev1.Secret {
		live, err := o.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("secrets"), "own", pv.Annotations[objects.AnnotationSecret])
		if err != nil {
			t.Fatal(err)
		}
		return live.(*corev1.Secret)
	}
	o.client.PrependReactor("create", "persistentvolumes", func(action ktesting.Action) (bool, runtime.Object, error) {
		secret := stored(action.(ktesting.CreateAction).GetObject().(*corev1.PersistentVolume)).DeepCopy()
		secret.Data = newer
		return false, nil, o.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("secrets"), secret, "own")
	})
	if _, err := o.run(t); err != nil {
		t.Fatal(err)
	}
	if got := string(stored(o.saved(t)).Data["userKey"]); got != "newer" {
		t.Errorf("the key of every volume of the backend is %q again, want the newer one", got)
	}
}
