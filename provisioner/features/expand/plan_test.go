package expand

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pairOf returns a pair with the given status and sizes: what the claim asks for, what
// it has, and what the PersistentVolume has.
func pairOf(wanted, has, capacity string, status corev1.ClaimResourceStatus) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim, pv := pair("data")
	claim.Spec.Resources.Requests, claim.Status.Capacity, pv.Spec.Capacity = size(wanted), size(has), size(capacity)
	if status != "" {
		claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{corev1.ResourceStorage: status}
	}
	return claim, pv
}

func asFilesystem(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	claim.Spec.VolumeMode, pv.Spec.VolumeMode = nil, nil
}

func asCSI(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	asFilesystem(claim, pv)
	pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "rbd.csi.ceph.com"}}
}

func grown(to string) func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	return func(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
		asFilesystem(claim, pv)
		claim.Annotations = map[string]string{AnnotationGrown: to}
	}
}

func TestPlan(t *testing.T) {
	const (
		progress   = corev1.PersistentVolumeClaimControllerResizeInProgress
		infeasible = corev1.PersistentVolumeClaimControllerResizeInfeasible
		pending    = corev1.PersistentVolumeClaimNodeResizePending
		growing    = corev1.PersistentVolumeClaimNodeResizeInProgress
		failed     = corev1.PersistentVolumeClaimNodeResizeInfeasible
	)
	for name, c := range map[string]struct {
		wanted, has, capacity string
		status                corev1.ClaimResourceStatus
		change                func(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume)
		want                  action
	}{
		"has what it asks for":             {"10Gi", "10Gi", "10Gi", "", nil, nothing},
		"has more, by rounding":            {"9500Mi", "10Gi", "10Gi", "", nil, nothing},
		"asks for more":                    {"20Gi", "10Gi", "10Gi", "", nil, extend},
		"a leader died":                    {"20Gi", "10Gi", "10Gi", progress, nil, extend},
		"refused before":                   {"20Gi", "10Gi", "10Gi", infeasible, nil, extend},
		"asks for less after that":         {"15Gi", "10Gi", "10Gi", infeasible, nil, extend},
		"the PersistentVolume is done":     {"20Gi", "10Gi", "20Gi", progress, nil, finish},
		"the same, of a filesystem":        {"20Gi", "10Gi", "20Gi", progress, asFilesystem, awaitFS},
		"its filesystem is to grow":        {"20Gi", "10Gi", "20Gi", pending, asFilesystem, awaitFS},
		"kubelet is at it":                 {"20Gi", "10Gi", "20Gi", growing, asCSI, awaitFS},
		"kubelet gave up":                  {"20Gi", "10Gi", "20Gi", failed, asCSI, awaitFS},
		"asks for even more":               {"30Gi", "10Gi", "20Gi", pending, asFilesystem, extend},
		"asks for even more under kubelet": {"30Gi", "10Gi", "20Gi", pending, asCSI, nothing},
		"acknowledged":                     {"20Gi", "10Gi", "20Gi", pending, grown("20Gi"), finish},
		"acknowledged in other words":      {"20Gi", "10Gi", "20Gi", pending, grown("20480Mi"), finish},
		"acknowledged after rounding":      {"19500Mi", "10Gi", "20Gi", pending, grown("20Gi"), finish},
		"acknowledged too much":            {"20Gi", "10Gi", "20Gi", pending, grown("21Gi"), refuseFS},
		"acknowledged too little":          {"20Gi", "10Gi", "20Gi", pending, grown("15Gi"), refuseFS},
		"acknowledged nonsense":            {"20Gi", "10Gi", "20Gi", pending, grown("all"), refuseFS},
		"acknowledged nothing":             {"20Gi", "10Gi", "20Gi", pending, grown("-1"), refuseFS},
		"acknowledged the time before":     {"20Gi", "10Gi", "20Gi", pending, grown("10Gi"), awaitFS},
		"being deleted": {"20Gi", "10Gi", "10Gi", "", func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.DeletionTimestamp = &metav1.Time{}
		}, nothing},
		"lost": {"20Gi", "10Gi", "10Gi", "", func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			claim.Status.Phase = corev1.ClaimLost
		}, nothing},
		"the PersistentVolume is released": {"20Gi", "10Gi", "10Gi", "", func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Status.Phase = corev1.VolumeReleased
		}, nothing},
		"the PersistentVolume is being deleted": {"20Gi", "10Gi", "10Gi", "", func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.DeletionTimestamp = &metav1.Time{}
		}, nothing},
		"the PersistentVolume is another claim's": {"20Gi", "10Gi", "10Gi", "", func(_ *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
			pv.Spec.ClaimRef.UID = "other"
		}, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			claim, pv := pairOf(c.wanted, c.has, c.capacity, c.status)
			if c.change != nil {
				c.change(claim, pv)
			}
			if got := plan(claim, pv); got != c.want {
				t.Errorf("the next step is %d, want %d", got, c.want)
			}
		})
	}
}

func TestHowToGrow(t *testing.T) {
	fc := corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{}}
	iscsi := corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{IQN: "iqn.2026-01.example:" + strings.Repeat("x", 203)}}
	csi := corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "rbd.csi.ceph.com"}}
	flex := corev1.PersistentVolumeSource{FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "example.org/flex"}}
	for _, c := range []struct {
		source corev1.PersistentVolumeSource
		want   []string
		never  string
	}{
		{fc, []string{"the kubelet does not grow", "echo 1 > /sys/class/block/DEVICE/device/rescan", "multipathd resize map MAP"}, "iscsiadm"},
		{iscsi, []string{"the kubelet does not grow", "iscsiadm -m node -T " + iscsi.ISCSI.IQN + " -R", "multipathd resize map MAP"}, "CSI"},
		{csi, []string{"the kubelet and CSI driver rbd.csi.ceph.com grow its filesystem"}, "iscsiadm"},
		{flex, []string{"the kubelet and FlexVolume driver example.org/flex grow its filesystem"}, "iscsiadm"},
	} {
		claim, pv := pairOf("20Gi", "10Gi", "20Gi", "")
		claim.Namespace, claim.Name, pv.Spec.PersistentVolumeSource = strings.Repeat("n", 63), strings.Repeat("c", 253), c.source
		text := howToGrow(claim, pv)
		for _, want := range append(c.want, "the volume has 20Gi", "resize2fs", "xfs_growfs",
			"kubectl annotate pvc -n "+claim.Namespace+" "+claim.Name+" --overwrite standalone-cinder.openstack.org/filesystem-grown=20Gi") {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in: %s", want, text)
			}
		}
		if strings.Contains(text, c.never) || len(text) > 1024 {
			t.Errorf("%d bytes: %s", len(text), text)
		}
	}
}
