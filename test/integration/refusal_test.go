package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestClaimsThatCannotBeHonoredSayWhy covers claims that are rejected before
// any request to Cinder.
//
//tier:oldest
func TestClaimsThatCannotBeHonoredSayWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "refuse", cindersim.Options{})
	w.start()
	w.must(suite.CreateClass(w.ctx, "refuse-odd", w.provisioner, func(class *storagev1.StorageClass) {
		class.Parameters = map[string]string{"iops": "1000"}
	}))
	group := "snapshot.storage.k8s.io"
	for _, c := range []struct {
		name, namespace, class, size string
		change                       func(*corev1.PersistentVolumeClaim)
		reason, message              string
	}{
		{name: "stranger", namespace: "stranger", class: "gold", size: "1Gi", reason: "NoMatchingTenant", message: "refuse-stranger"},
		{name: "class", namespace: "b", class: "gold", size: "1Gi", reason: "NoMatchingClass", message: "refuse-gold"},
		{name: "large", namespace: "b", class: "lab", size: "11Gi", reason: "VolumeTooLarge", message: "11"},
		{name: "snapshot", namespace: "a", class: "gold", size: "1Gi", reason: "SourceNotFound", message: `/s1, whose content this claim asks for, does not exist`,
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s1"}
			}},
		{name: "clone", namespace: "a", class: "gold", size: "1Gi", reason: "UnsupportedDataSource", message: "k8s.io/CloneRequest",
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.Annotations = map[string]string{"k8s.io/CloneRequest": "refuse-b/data"}
			}},
		{name: "selector", namespace: "a", class: "gold", size: "1Gi", reason: "UnsupportedSelector", message: "spec.selector",
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
			}},
		{name: "classless", namespace: "a", class: "missing", size: "1Gi", reason: "StorageClassNotFound", message: `"refuse-missing" does not exist`,
			// kube-controller-manager wrote it before the class was deleted.
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": w.provisioner}
			}},
		{name: "many", namespace: "a", class: "gold", size: "1Gi", reason: "UnsupportedAccessMode", message: "ReadWriteMany",
			change: func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := suite.CreateClaim(w.ctx, harness.Claim("refuse-"+c.namespace, c.name, "refuse-"+c.class, c.size, c.change))
			w.must(err)
			_, err = suite.WaitEvent(w.ctx, "refuse-"+c.namespace, c.name, c.reason, c.message)
			w.must(err)
		})
	}
	if asked := w.sim.CountByOperation()["volume.create"]; asked != 0 {
		t.Errorf("%d volumes were made for claims that are refused", asked)
	}
}

// TestNamespaceThatIsLabeledLaterIsAdmitted shows that a denial ends when its
// reason does, not by retries.
func TestNamespaceThatIsLabeledLaterIsAdmitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "label", cindersim.Options{})
	w.policy = strings.Replace(w.policy, `namespaces: ["label-a"]`, `namespaceSelector: {matchLabels: {tenant: label-a}}`, 1)
	w.start()
	w.claim("stranger", "data", "gold", "1Gi")
	_, err := suite.WaitEvent(w.ctx, "label-stranger", "data", "NoMatchingTenant", "")
	w.must(err)
	_, err = suite.Client.CoreV1().Namespaces().Patch(w.ctx, "label-stranger", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"tenant":"label-a"}}}`), metav1.PatchOptions{})
	w.must(err)
	_, err = suite.WaitBound(w.ctx, "label-stranger", 1)
	w.must(err)
}

// TestConnectionsThatCannotBeMappedAreUndone covers what is found out only
// when Cinder answers.
//
//tier:oldest
func TestConnectionsThatCannotBeMappedAreUndone(t *testing.T) {
	t.Parallel()
	types := append(drivers.DefaultVolumeTypes(),
		drivers.VolumeType{Name: "strange", Connection: drivers.FixedConnection("vmdk", map[string]any{"vmdk_size": 1})},
		drivers.VolumeType{Name: "unequal", Connection: drivers.FixedConnection("iscsi", map[string]any{
			"target_portals": []string{"10.0.0.1:3260", "10.0.0.2:3260"}, "target_iqns": []string{"iqn.2010-10.org.openstack:a", "iqn.2010-10.org.openstack:b"}, "target_luns": []int{1}})},
		drivers.VolumeType{Name: "single"},
		drivers.VolumeType{Name: "encrypted", Connection: drivers.FixedConnection("iscsi", map[string]any{
			"target_portal": "10.0.0.1:3260", "target_iqn": "iqn.2010-10.org.openstack:a", "target_lun": 1, "encrypted": true})},
	)
	w := newWorld(t, "undo", cindersim.Options{Types: types})
	w.allow("undo-lab-*")
	w.start()
	for _, c := range []struct {
		kind, message string
		change        func(*corev1.PersistentVolumeClaim)
	}{
		{kind: "strange", message: "UnsupportedProtocol: backend lab"},
		{kind: "unequal", message: "InvalidConnection: backend lab"},
		{kind: "encrypted", message: "EncryptedVolume: backend lab"},
		{kind: "fail", message: "went to error and was removed"},
		{kind: "nosuch", message: "Volume type with name nosuch could not be found"},
		{kind: "iscsi", message: "UnsupportedAccessMode: backend lab", change: func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}},
		{kind: "single", message: "multiattach is false", change: manyWriters},
	} {
		t.Run(c.kind, func(t *testing.T) {
			w.must(suite.CreateClass(w.ctx, "undo-lab-"+c.kind, w.provisioner, func(class *storagev1.StorageClass) {
				class.Parameters = map[string]string{"type": c.kind}
			}))
			_, err := suite.CreateClaim(w.ctx, harness.Claim("undo-b", c.kind, "undo-lab-"+c.kind, "1Gi", c.change))
			w.must(err)
			_, err = suite.WaitEvent(w.ctx, "undo-b", c.kind, "ProvisioningFailed", c.message)
			w.must(err)
			w.must(harness.Eventually(w.ctx, func() (string, error) {
				if left := w.sim.Volumes(); len(left) > 0 {
					return fmt.Sprintf("volume %s is %s", left[0].Name, left[0].Status), nil
				}
				return "", nil
			}))
		})
	}
}

// manyWriters makes a claim ask for a raw volume that every node may write to.
func manyWriters(claim *corev1.PersistentVolumeClaim) {
	block := corev1.PersistentVolumeBlock
	claim.Spec.VolumeMode, claim.Spec.AccessModes = &block, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
}

// allow lets namespace NAME-b use another StorageClass.
func (w *world) allow(class string) {
	w.policy = strings.Replace(w.policy, `storageClasses: ["`+w.name+`-lab"`, `storageClasses: ["`+w.name+`-lab", "`+class+`"`, 1)
}

// TestVolumesOfEveryShape covers every access mode, block volumes, Retain, RBD
// and multipath.
//
//tier:oldest
func TestVolumesOfEveryShape(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "shape", cindersim.Options{CreateDelay: 50 * time.Millisecond,
		Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "shared", Multiattach: true})})
	for _, kind := range []string{"rbd", "iscsi-mp", "shared", "retain"} {
		w.allow("shape-" + kind)
	}
	w.policy = strings.Replace(w.policy, "    auth: {noauth:", "    mapping: {rbd: {as: csi, clusterID: ceph-1, nodeStageSecretRef: {name: ceph, namespace: ceph-csi}}}\n    auth: {noauth:", 1)
	w.start()
	for _, kind := range []string{"rbd", "iscsi-mp", "shared"} {
		w.must(suite.CreateClass(w.ctx, "shape-"+kind, w.provisioner, func(class *storagev1.StorageClass) {
			class.Parameters = map[string]string{"type": kind}
		}))
	}
	retain := corev1.PersistentVolumeReclaimRetain
	w.must(suite.CreateClass(w.ctx, "shape-retain", w.provisioner, func(class *storagev1.StorageClass) { class.ReclaimPolicy = &retain }))
	block := corev1.PersistentVolumeBlock
	claims := []*corev1.PersistentVolumeClaim{
		harness.Claim("shape-b", "block", "shape-lab", "1Gi", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeMode = &block }),
		harness.Claim("shape-b", "readonly", "shape-lab", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}),
		harness.Claim("shape-b", "rbd", "shape-rbd", "1Gi", nil),
		harness.Claim("shape-b", "one-pod", "shape-rbd", "1Gi", func(claim *corev1.PersistentVolumeClaim) {
			claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}),
		harness.Claim("shape-b", "multipath", "shape-iscsi-mp", "1Gi", nil),
		harness.Claim("shape-b", "shared", "shape-shared", "1Gi", manyWriters),
		harness.Claim("shape-b", "retain", "shape-retain", "1Gi", nil),
	}
	for _, claim := range claims {
		_, err := suite.CreateClaim(w.ctx, claim)
		w.must(err)
	}
	bound, err := suite.WaitBound(w.ctx, "shape-b", len(claims))
	w.must(err)
	specs := map[string]corev1.PersistentVolumeSpec{}
	for _, claim := range bound {
		pv, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		w.must(err)
		specs[claim.Name] = pv.Spec
	}
	if mode := specs["block"].VolumeMode; mode == nil || *mode != block || specs["block"].ISCSI.FSType != "" {
		t.Errorf("block volume: mode %v, fsType %q", mode, specs["block"].ISCSI.FSType)
	}
	if !specs["readonly"].ISCSI.ReadOnly {
		t.Error("a ReadOnlyMany claim got a writable source")
	}
	if csi := specs["rbd"].CSI; csi == nil || csi.Driver != "rbd.csi.ceph.com" || csi.VolumeAttributes["clusterID"] != "ceph-1" || csi.VolumeAttributes["staticVolume"] != "true" {
		t.Errorf("rbd source %+v", specs["rbd"].PersistentVolumeSource)
	}
	if modes := specs["one-pod"].AccessModes; !slices.Equal(modes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}) {
		t.Errorf("a ReadWriteOncePod claim got a volume of modes %v", modes)
	}
	if portals := specs["multipath"].ISCSI.Portals; len(portals) == 0 {
		t.Error("a volume with two portals has no list of portals")
	}
	w.must(suite.DeleteClaims(w.ctx, "shape-b"))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		left := w.sim.Volumes()
		if len(left) == 1 && left[0].Status == "in-use" {
			return "", nil
		}
		return fmt.Sprintf("%d volumes are left", len(left)), nil
	}))
	var pvs []corev1.PersistentVolume
	w.must(harness.Eventually(w.ctx, func() (complaint string, err error) {
		if pvs, err = suite.PersistentVolumes(w.ctx, w.provisioner); err == nil && len(pvs) != 1 {
			complaint = fmt.Sprintf("%d PersistentVolumes are left, want the retained one", len(pvs))
		}
		return complaint, err
	}))
	if pvs[0].Spec.PersistentVolumeReclaimPolicy != retain {
		t.Fatalf("PersistentVolume %s is left", pvs[0].Name)
	}
	w.must(suite.Client.CoreV1().PersistentVolumes().Delete(w.ctx, pvs[0].Name, metav1.DeleteOptions{}))
}
