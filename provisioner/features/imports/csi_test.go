package imports

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

var csiPolicy = strings.Replace(importPolicy, "backends: [gold]}", "backends: [gold], mode: csi}", 1)

const (
	filesystem1 = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	filesystem2 = "0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"
)

// drivers returns a volume that claim uid-old in mode csi left behind.
func drivers(more map[string]string) cinder.Volume {
	v := keptVolume(time.Date(2026, 11, 20, 15, 0, 1, 0, time.UTC))
	v.Status = cinder.StatusAvailable
	v.Metadata["standalone-cinder.openstack.org/mode"] = "csi"
	maps.Copy(v.Metadata, more)
	return v
}

// TestVolumeOfTheDriverIsImportedAgain: the PersistentVolume is like that of a normal
// attempt, but says that the volume must not be formatted.
func TestVolumeOfTheDriverIsImportedAgain(t *testing.T) {
	o := newOperator(t, csiPolicy, drivers(nil))
	plan, err := o.Plan(t.Context(), o.request)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"create claim team-a/data, which waits for PersistentVolume imported-volume-1",
		"stamp volume volume-1 (, 1 GiB) for that claim, tenant team-a, in mode csi",
		"write the Secret own/imported-volume-1-node, which is empty until a node gets the volume",
		"create PersistentVolume imported-volume-1 with the reclaim policy Retain, and annotate the claim",
	}
	if !slices.Equal(plan.Steps, want) {
		t.Errorf("steps %q", plan.Steps)
	}
	source := &corev1.CSIPersistentVolumeSource{
		Driver: "standalone-cinder.openstack.org", VolumeHandle: "gold/volume-1", FSType: "ext4", VolumeAttributes: map[string]string{"neverFormat": "true"},
		NodeStageSecretRef: &corev1.SecretReference{Namespace: "own", Name: "imported-volume-1-node"},
	}
	equal := func(pv *corev1.PersistentVolume) {
		t.Helper()
		has := pv.Spec.CSI
		if has == nil || has.Driver != source.Driver || has.VolumeHandle != source.VolumeHandle || has.FSType != source.FSType || !maps.Equal(has.VolumeAttributes, source.VolumeAttributes) ||
			*has.NodeStageSecretRef != *source.NodeStageSecretRef || pv.Annotations[objects.AnnotationProtocol] != "csi" || pv.Annotations[objects.AnnotationConnector] != "" {
			t.Errorf("PersistentVolume %+v\n%v", has, pv.Annotations)
		}
	}
	equal(plan.PersistentVolume)
	for range 2 {
		if _, err := o.run(t); err != nil {
			t.Fatal(err)
		}
	}
	equal(o.saved(t))
	if v := o.project.volume; v.Status != cinder.StatusAvailable || !o.project.spec.CSI || len(o.project.spec.FilesystemUUIDs) > 0 {
		t.Errorf("volume %+v, import %+v", v, o.project.spec)
	}
	secret, err := o.client.CoreV1().Secrets("own").Get(t.Context(), "imported-volume-1-node", metav1.GetOptions{})
	if err != nil || len(secret.Data) > 0 {
		t.Errorf("Secret %+v, error %v", secret, err)
	}
}

// TestTheAccessModeThatOnlyCSISourcesHaveIsRefusedBeforeTheClaimIsMade: only the connection
// shows the protocol, but nothing maps any of them to a CSI source.
func TestTheAccessModeThatOnlyCSISourcesHaveIsRefusedBeforeTheClaimIsMade(t *testing.T) {
	mapped := func(forms string) string {
		return strings.Replace(importPolicy, "auth: {cloud: gold}", "auth: {cloud: gold}\n    mapping: {"+forms+"}", 1)
	}
	const want = "UnsupportedAccessMode: backend gold: access mode ReadWriteOncePod needs a CSI source, and its mapping has none (as: csi); use ReadWriteOnce, or a rule with mode: csi"
	for name, test := range map[string]struct{ policy, want string }{
		"native":                    {importPolicy, want},
		"mapped to native":          {mapped("iscsi: {as: native}"), want},
		"one is mapped to a driver": {mapped("iscsi: {as: native}, rbd: {as: csi, clusterID: ceph-1}"), ""},
		"in mode csi":               {csiPolicy, ""},
	} {
		o := newOperator(t, test.policy, drivers(nil))
		o.request.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		_, err := o.Plan(t.Context(), o.request)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %s\nwant %s", name, got, test.want)
		}
	}
}

// TestFilesystemOfAnImportedVolume: its UUIDs come from the program's own records or
// from an administrator.
func TestFilesystemOfAnImportedVolume(t *testing.T) {
	free := cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable}
	recorded := free
	recorded.Metadata = map[string]string{"standalone-cinder.openstack.org/filesystem-uuids": filesystem1}
	restored := drivers(nil)
	restored.CreatedAt = time.Date(2026, 11, 22, 15, 0, 0, 0, time.UTC)
	native := drivers(nil)
	delete(native.Metadata, "standalone-cinder.openstack.org/mode")
	original := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-uid-old", Annotations: map[string]string{
		objects.AnnotationProvisionedBy: "test", objects.AnnotationVolume: filesystem2, objects.AnnotationCluster: "cluster-1"}}}
	original.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "standalone-cinder.openstack.org", VolumeHandle: "gold/" + filesystem2, VolumeAttributes: map[string]string{"filesystemUUIDs": filesystem1}}
	const unknown = "volume volume-1 was not in mode csi, or was restored from a backup, and the UUID of its filesystem, by which the CSI driver identifies it, is not recorded; give it with --filesystem-uuid"
	for name, test := range map[string]struct {
		volume  cinder.Volume
		objects []runtime.Object
		policy  string
		block   bool
		given   []string
		want    string // the PersistentVolume's
		stamped string
		refused string
	}{
		"the driver's own":                {volume: drivers(nil)},
		"the driver's own, a copy":        {volume: drivers(map[string]string{"standalone-cinder.openstack.org/filesystem-uuids": filesystem2 + "," + filesystem1}), want: filesystem2 + "," + filesystem1, stamped: filesystem2 + "," + filesystem1},
		"nothing is known":                {volume: free, refused: unknown},
		"a native one":                    {volume: native, refused: unknown},
		"an administrator knows it":       {volume: free, given: []string{filesystem1}, want: filesystem1, stamped: filesystem1},
		"it is the volume's ID":           {volume: free, given: []string{"volume-1"}, stamped: "volume-1"},
		"it is recorded":                  {volume: recorded, want: filesystem1, stamped: filesystem1},
		"it is recorded, and another too": {volume: recorded, given: []string{filesystem2}, want: filesystem2 + "," + filesystem1, stamped: filesystem2 + "," + filesystem1},
		"restored, original gone":         {volume: restored, refused: unknown},
		"restored, original in use":       {volume: restored, objects: []runtime.Object{original}, want: filesystem2 + "," + filesystem1, stamped: filesystem2 + "," + filesystem1},
		"a raw block device":              {volume: free, block: true},
		"a raw block device with one": {volume: free, block: true, given: []string{filesystem1},
			refused: "claim team-a/data asks for a raw block device, on which the driver looks for no filesystem; omit the UUID"},
		"mode native": {volume: free, policy: importPolicy, given: []string{filesystem1},
			refused: "tenants[0].classes[0] makes native volumes on backend gold, and their filesystems are not identified by UUID; omit the UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			text := csiPolicy
			if test.policy != "" {
				text = test.policy
			}
			o := newOperator(t, text, test.volume, test.objects...)
			o.request.FilesystemUUIDs = test.given
			if test.block {
				o.request.VolumeMode = corev1.PersistentVolumeBlock
			}
			_, err := o.run(t)
			if test.refused != "" {
				if err == nil || err.Error() != test.refused || o.saved(t) != nil {
					t.Errorf("error %v\nwant %s", err, test.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			pv := o.saved(t)
			attributes := pv.Spec.CSI.VolumeAttributes
			if attributes["filesystemUUIDs"] != test.want || attributes["neverFormat"] != "true" {
				t.Errorf("attributes %v, want %q", attributes, test.want)
			}
			if got := strings.Join(o.project.spec.FilesystemUUIDs, ","); got != test.stamped {
				t.Errorf("recorded %q, want %q", got, test.stamped)
			}
		})
	}
}

// TestNodeThatHasTheDriversVolumeStopsAnImport: it is found by the handle, by the ID in
// the name of another driver, or by a VolumeAttachment, before anything is changed.
func TestNodeThatHasTheDriversVolumeStopsAnImport(t *testing.T) {
	uses := func(name corev1.UniqueVolumeName) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}, Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{name}}}
	}
	free := cinder.Volume{ID: "volume-1", SizeGiB: 1, Status: cinder.StatusAvailable}
	for name, test := range map[string]struct {
		volume cinder.Volume
		object runtime.Object
		node   string
	}{
		"its handle":            {drivers(nil), uses("kubernetes.io/csi/standalone-cinder.openstack.org^gold/volume-1"), "node-9"},
		"an old backend's name": {drivers(nil), uses("kubernetes.io/csi/standalone-cinder.openstack.org^former/volume-1"), "node-9"},
		"another driver":        {free, uses("kubernetes.io/csi/cinder.csi.openstack.org^volume-1"), "node-9"},
		"a VolumeAttachment":    {drivers(nil), attachedThrough("pvc-uid-old"), "node-1"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOperator(t, csiPolicy, test.volume, test.object)
			if test.volume.Metadata == nil {
				o.request.FilesystemUUIDs = []string{filesystem1}
			}
			for range 2 {
				_, err := o.run(t)
				wantRefusal(t, err, "node "+test.node+" still uses volume volume-1; run the command again when it has unmounted it")
			}
			if o.project.imports > 0 || o.saved(t) != nil {
				t.Error("the volume was changed")
			}
			if claims, err := o.client.CoreV1().PersistentVolumeClaims("team-a").List(t.Context(), metav1.ListOptions{}); err != nil || len(claims.Items) > 0 {
				t.Errorf("claims %v, error %v", claims, err)
			}
		})
	}
}

// TestNodeThatGetsTheDriversVolumeDuringAnImportStopsIt: the nodes are read again
// before the volume is recorded.
func TestNodeThatGetsTheDriversVolumeDuringAnImportStopsIt(t *testing.T) {
	o := newOperator(t, csiPolicy, drivers(nil))
	o.project.connected = func() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}, Status: corev1.NodeStatus{VolumesInUse: []corev1.UniqueVolumeName{"kubernetes.io/csi/standalone-cinder.openstack.org^gold/volume-1"}}}
		if err := o.client.Tracker().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	_, err := o.run(t)
	wantRefusal(t, err, "node node-9 still uses volume volume-1")
	if o.saved(t) != nil {
		t.Error("another node can mount the volume now")
	}
}

// TestFilesystemThatAnImportedVolumeLacksIsTold: the source of a PersistentVolume
// cannot be changed.
func TestFilesystemThatAnImportedVolumeLacksIsTold(t *testing.T) {
	o := newOperator(t, csiPolicy, drivers(nil))
	if _, err := o.run(t); err != nil {
		t.Fatal(err)
	}
	o.request.FilesystemUUIDs = []string{"volume-1"}
	if plan, err := o.run(t); err != nil || len(plan.Warnings) > 0 {
		t.Errorf("error %v, warnings %q", err, plan.Warnings)
	}
	o.request.FilesystemUUIDs = []string{filesystem1}
	plan, err := o.run(t)
	want := "PersistentVolume imported-volume-1 does not have the filesystem UUID " + filesystem1 + ", and its source cannot be changed; to import the volume with it, delete the claim and then the PersistentVolume, and run the command again"
	if err != nil || !slices.Equal(plan.Warnings, []string{want}) {
		t.Errorf("error %v, warnings %q", err, plan.Warnings)
	}
}

// TestImportsOfVolumesThatNodesEncrypt: an operator may import them under a rule that
// encrypts, and no others there.
func TestImportsOfVolumesThatNodesEncrypt(t *testing.T) {
	const record = "1 keys/2026-11 claim-of-the-key BwcH"
	plain, encrypts := csiPolicy, strings.Replace(csiPolicy, "mode: csi}", "mode: csi, encrypt: {keySecret: keys, entry: a}}", 1)
	for name, test := range map[string]struct {
		policy, record string
		refused        string
	}{
		"encrypted, by a rule that encrypts": {policy: encrypts, record: record},
		"encrypted, by one that does not": {policy: plain, record: record,
			refused: "volume volume-1 is encrypted by nodes (its metadata has standalone-cinder.openstack.org/encryption), but tenants[0].classes[0] has no encrypt; import it with a StorageClass whose rule has it"},
		"not encrypted, by a rule that encrypts": {policy: encrypts,
			refused: "volume volume-1 is not encrypted by nodes, but tenants[0].classes[0] encrypts its volumes (encrypt); import it with a StorageClass whose rule does not"},
		"with a damaged record": {policy: encrypts, record: "1 keys/2026-11 BwcH",
			refused: "volume volume-1 is encrypted by nodes, and the record of its key (standalone-cinder.openstack.org/encryption) is damaged, or of a later release; restore it from a copy of the volume"},
	} {
		t.Run(name, func(t *testing.T) {
			v := drivers(nil)
			if test.record != "" {
				v.Metadata["standalone-cinder.openstack.org/encryption"] = test.record
			}
			o := newOperator(t, test.policy, v)
			plan, planErr := o.Plan(t.Context(), o.request)
			_, err := o.run(t)
			if test.refused != "" {
				wantRefusal(t, err, test.refused)
				if o.project.imports > 0 || o.saved(t) != nil {
					t.Error("it is imported")
				}
				return
			}
			if planErr != nil || err != nil {
				t.Fatal(planErr, err)
			}
			if got := objects.EncryptedOf(o.saved(t)); got != "claim-of-the-key" || objects.EncryptedOf(plan.PersistentVolume) != got {
				t.Errorf("the PersistentVolume says %q", got)
			}
			const want = "nodes will open volume volume-1 with the key that was made for claim UID claim-of-the-key; make sure that its content is not another tenant's"
			if !slices.Contains(plan.Warnings, want) {
				t.Errorf("warnings %q", plan.Warnings)
			}
		})
	}
}

// TestImportInModeCSIIsRefused: nothing is changed before.
func TestImportInModeCSIIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*operator)
		refused string
	}{
		"readers on several nodes": {func(o *operator) { o.request.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany} }, "multiattach"},
		"a VolumeAttributesClass": {func(o *operator) {
			waiting := newClaim(&Plan{Volume: o.project.volume, Class: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}}}, o.request)
			fast := "fast"
			waiting.UID, waiting.Spec.VolumeAttributesClassName = "uid-of-data", &fast
			if err := o.client.Tracker().Add(waiting); err != nil {
				t.Fatal(err)
			}
		}, "claim team-a/data names a VolumeAttributesClass, and an imported volume keeps its type; create the claim without it, and name the class when the claim is bound"},
		"another object has the handle": {func(o *operator) {
			other := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "by-hand"}}
			other.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "standalone-cinder.openstack.org", VolumeHandle: "gold/volume-1"}
			if err := o.client.Tracker().Add(other); err != nil {
				t.Fatal(err)
			}
		}, "by-hand"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOperator(t, csiPolicy, drivers(nil))
			test.change(o)
			_, err := o.run(t)
			if err == nil || !strings.Contains(err.Error(), test.refused) || o.project.imports > 0 || o.saved(t) != nil {
				t.Errorf("error %v, want %q", err, test.refused)
			}
		})
	}
}
