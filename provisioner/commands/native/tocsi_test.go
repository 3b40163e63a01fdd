package native

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const filesystem = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"

// mounts is a node that still has the volume mounted.
func mounts() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{
		VolumesInUse: []corev1.UniqueVolumeName{"kubernetes.io/iscsi/192.0.2.1:3260:iqn.2026-01.example:V1:1"},
	}}
}

// copies is a cluster whose claim does not grow.
func copies() *cluster {
	c := newCluster()
	c.pv.Spec.ISCSI.TargetPortal = "192.0.2.1:3260"
	c.claim.Status.Capacity = c.pv.Spec.Capacity
	c.claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.ends = terminated(corev1.PodSucceeded, `{"device": "sdb", "filesystem": "ext4", "uuid": "`+filesystem+`", "bytes": 21474836480}`)
	return c
}

// toCSI runs the command. The workload stops after a minute, its node writes for another
// one, and the program makes the copy with this driver.
func (c *cluster) toCSI(t *testing.T, driver string) error {
	t.Helper()
	node := mounts()
	all := []runtime.Object{c.claim, c.pv, c.template, node}
	for _, pod := range c.pods {
		all = append(all, pod)
	}
	for _, claim := range c.others {
		all = append(all, claim)
	}
	c.client = fake.NewClientset(all...)
	c.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.UID, pod.Status = "p1", c.ends
		return false, nil, nil
	})
	copied := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-copy"}}
	if driver != "" {
		copied.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
	}
	if err := c.client.Tracker().Add(copied); err != nil {
		t.Fatal(err)
	}
	c.client.PrependReactor("create", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		claim := action.(clienttesting.CreateAction).GetObject().(*corev1.PersistentVolumeClaim)
		claim.UID, claim.Spec.VolumeName, claim.Status.Phase = "u2", "pvc-copy", corev1.ClaimBound
		return false, nil, nil
	})
	ctx, end := context.WithCancel(t.Context())
	defer end()
	begin := time.Now()
	go func() {
		for sleeps := range 2 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Minute):
			}
			if sleeps == 0 {
				for _, pod := range c.pods {
					_ = c.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "team-a", pod.Name)
				}
				continue
			}
			after := node.DeepCopy()
			after.Status.VolumesInUse = nil
			_ = c.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("nodes"), after, "")
		}
	}()
	r := &runner{client: c.client, namespace: "grow", timeout: 10 * time.Minute, pause: time.Second, say: func(text string) { c.said = append(c.said, text) }}
	err := r.copyToCSI(t.Context(), "team-a", "data", copyRequest{"data-csi", "files-csi"})
	c.took = time.Since(begin)
	return err
}

func TestAClaimIsCopiedOnceItsNodeHasWrittenEverything(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	created := `create data-csi of files-csi from data with 20Gi [ReadWriteOnce]`
	read := []string{
		"create grow-u1 on n1: node grow --persistent-volume=pvc-u1 --bytes=21474836480 --disk=iqn.2026-01.example:v1/1 --pod=uid-app", "delete grow-u1",
		`patch {"metadata":{"annotations":{"standalone-cinder.openstack.org/filesystem-uuids":"` + filesystem + `"},"uid":"pv1"}}`,
	}
	for name, test := range map[string]struct {
		change func(*cluster)
		did    []string
		took   time.Duration
	}{
		"a filesystem":            {func(*cluster) {}, append(read, created), 2 * time.Minute},
		"whose UUID is recorded":  {func(c *cluster) { c.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem }, []string{created}, 2 * time.Minute},
		"a raw device":            {func(c *cluster) { c.claim.Spec.VolumeMode = &block }, []string{created + " Block"}, 2 * time.Minute},
		"the command was stopped": {func(c *cluster) { c.others = []*corev1.PersistentVolumeClaim{copied("files-csi", "data")} }, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := copies()
				c.pv.UID = "pv1"
				test.change(c)
				if err := c.toCSI(t, policy.CSIDriver); err != nil {
					t.Fatalf("%v, and said %q", err, c.said)
				}
				if did := c.did(); !slices.Equal(did, test.did) {
					t.Errorf("it did %q, want %q", did, test.did)
				}
				if c.took < test.took || c.took > test.took+5*time.Second {
					t.Errorf("it took %s", c.took)
				}
				if last := c.said[len(c.said)-1]; !strings.Contains(last, "claim team-a/data-csi has the content, in mode csi (PersistentVolume pvc-copy)") {
					t.Errorf("it said %q", c.said)
				}
				said := strings.Join(c.said, "\n")
				if waits := strings.Contains(said, "waiting: pod app uses it; stop the workload\nwaiting: node n1 still has it mounted"); waits != (test.took > 0) {
					t.Errorf("it said %q", c.said)
				}
			})
		})
	}
}

// copied is a claim that an earlier run has made.
func copied(class, source string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data-csi", UID: "u2"},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, VolumeName: "pvc-copy",
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}
}

func TestNothingIsCopiedThatCouldNotBeUsed(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*cluster)
		driver string
		want   string
		did    int
	}{
		"in mode csi": {func(c *cluster) {
			c.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: policy.CSIDriver}}
		}, policy.CSIDriver, "it is in mode csi already", 0},
		"it grows":                  {func(c *cluster) { c.claim.Status.Capacity = nil }, policy.CSIDriver, "it grows; wait", 0},
		"a claim of that name":      {func(c *cluster) { c.others = []*corev1.PersistentVolumeClaim{copied("files-csi", "other")} }, policy.CSIDriver, "claim data-csi exists, and is no clone of it", 0},
		"a copy of another class":   {func(c *cluster) { c.others = []*corev1.PersistentVolumeClaim{copied("other", "data")} }, policy.CSIDriver, "with StorageClass files-csi; give another --name", 0},
		"no pod shows its UUID":     {func(c *cluster) { c.pods = nil }, policy.CSIDriver, "the UUID of its filesystem is not recorded, and cannot be read: no pod on a node uses it", 0},
		"another disk":              {func(c *cluster) { c.ends = terminated(corev1.PodFailed, `{"error": "WrongDisk"}`) }, policy.CSIDriver, "node n1: WrongDisk", 2},
		"an older component":        {func(c *cluster) { c.ends = terminated(corev1.PodSucceeded, `{"bytes": 21474836480}`) }, policy.CSIDriver, "does not say which UUID the filesystem has", 2},
		"the class is of the other": {func(c *cluster) { c.pv.Annotations[objects.AnnotationFilesystemUUIDs] = filesystem }, "", "the rule for StorageClass files-csi is in mode native", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := copies()
				test.change(c)
				if err := c.toCSI(t, test.driver); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if did := c.did(); len(did) != test.did {
					t.Errorf("it did %q", did)
				}
			})
		})
	}
}
