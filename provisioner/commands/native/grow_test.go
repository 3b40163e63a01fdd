package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	policycli "github.com/standalone-cinder/standalone-cinder/policy/cli"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/podrun"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// cluster is a claim whose filesystem can grow, and what belongs to it.
type cluster struct {
	claim    *corev1.PersistentVolumeClaim
	pv       *corev1.PersistentVolume
	pods     []*corev1.Pod
	template *corev1.PodTemplate
	// ends is how the pod of the command ends; without a phase, it does not.
	ends   corev1.PodStatus
	client *fake.Clientset
	said   []string

	// others are claims beside it.
	others []*corev1.PersistentVolumeClaim
	took   time.Duration
}

func newCluster() *cluster {
	sizes := func(size string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	}
	return &cluster{
		claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "data", UID: "u1"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pvc-u1", Resources: corev1.VolumeResourceRequirements{Requests: sizes("20Gi")}},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, Capacity: sizes("10Gi")},
		},
		pv: &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pvc-u1", Annotations: map[string]string{objects.AnnotationVolume: "v1"}},
			Spec: corev1.PersistentVolumeSpec{Capacity: sizes("20Gi"), ClaimRef: &corev1.ObjectReference{UID: "u1"}, PersistentVolumeSource: corev1.PersistentVolumeSource{
				ISCSI: &corev1.ISCSIPersistentVolumeSource{IQN: "iqn.2026-01.example:V1", Lun: 1},
			}},
		},
		pods: []*corev1.Pod{podOn("app", "n1")},
		template: &corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "grow", Name: "grow"}, Template: corev1.PodTemplateSpec{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "grow", Args: []string{"node", "grow"}}}},
		}},
		ends: terminated(corev1.PodSucceeded, `{"device": "sdb", "paths": ["sdb"], "filesystem": "xfs", "bytes": 21474836480}`),
	}
}

// podOn is a pod that uses the claim on a node.
func podOn(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	}}}
}

func terminated(phase corev1.PodPhase, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{Name: "grow", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}}}}}
}

// grow runs the command. The pod ends at once, and the program follows the annotation.
func (c *cluster) grow(ctx context.Context) error {
	return c.growWith(ctx, func(*fake.Clientset) {})
}

// growWith runs the command with other answers of the API server.
func (c *cluster) growWith(ctx context.Context, change func(*fake.Clientset)) error {
	all := []runtime.Object{c.claim, c.pv, c.template}
	for _, pod := range c.pods {
		all = append(all, pod)
	}
	c.client = fake.NewClientset(all...)
	change(c.client)
	c.client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		pod := action.(clienttesting.CreateAction).GetObject().(*corev1.Pod)
		pod.UID, pod.Status = "p1", c.ends
		return false, nil, nil
	})
	c.client.PrependReactor("patch", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		c.claim.Status.Capacity = c.claim.Spec.Resources.Requests
		return true, c.claim, c.client.Tracker().Update(action.GetResource(), c.claim, "team-a")
	})
	g := &runner{Runner: podrun.Runner{Client: c.client, Namespace: "grow", Pause: time.Second, Say: func(text string) { c.said = append(c.said, text) }}, timeout: time.Minute}
	return g.grow(ctx, "team-a", "data")
}

// did lists what the command changed.
func (c *cluster) did() (changes []string) {
	for _, action := range c.client.Actions() {
		switch does := action.(type) {
		case clienttesting.CreateAction:
			if claim, is := does.GetObject().(*corev1.PersistentVolumeClaim); is {
				size, mode := claim.Spec.Resources.Requests[corev1.ResourceStorage], ""
				if objects.IsBlock(claim) {
					mode = " Block"
				}
				changes = append(changes, fmt.Sprintf("create %s of %s from %s with %s %v%s", claim.Name, *claim.Spec.StorageClassName, claim.Spec.DataSource.Name, size.String(), claim.Spec.AccessModes, mode))
				continue
			}
			pod := does.GetObject().(*corev1.Pod)
			changes = append(changes, "create "+pod.Name+" on "+pod.Spec.NodeName+": "+strings.Join(pod.Spec.Containers[0].Args, " "))
		case clienttesting.PatchAction:
			changes = append(changes, "patch "+string(does.GetPatch()))
		case clienttesting.DeleteAction:
			changes = append(changes, "delete "+does.GetName())
		}
	}
	return changes
}

func TestThePodIsToldTheVolume(t *testing.T) {
	lun := int32(3)
	for name, test := range map[string]struct {
		source corev1.PersistentVolumeSource
		disks  string
	}{
		"iSCSI": {corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{IQN: "iqn.2026-01.example:V1", Lun: 1}}, "--disk=iqn.2026-01.example:v1/1"},
		"Fibre Channel": {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{TargetWWNs: []string{"500A098190feeb01", "0x500a098180feeb01"}, Lun: &lun}},
			"--disk=500a098180feeb01/3 --disk=500a098190feeb01/3"},
		"a WWID": {corev1.PersistentVolumeSource{FC: &corev1.FCVolumeSource{WWIDs: []string{"3600A098038303053"}}}, "--disk=3600a098038303053"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				c.pv.Spec.PersistentVolumeSource = test.source
				if err := c.grow(t.Context()); err != nil {
					t.Fatal(err)
				}
				want := []string{
					"create grow-u1 on n1: node grow --persistent-volume=pvc-u1 --bytes=21474836480 " + test.disks + " --pod=uid-app", "delete grow-u1",
					`patch {"metadata":{"annotations":{"standalone-cinder.openstack.org/filesystem-grown":"20Gi"},"uid":"u1"}}`,
				}
				if did := c.did(); !slices.Equal(did, want) {
					t.Errorf("it did %q", did)
				}
				if said := strings.Join(c.said, "\n"); !strings.HasSuffix(said, "grew the xfs filesystem on sdb (sdb) of node n1 to 20Gi\nclaim team-a/data has 20Gi") {
					t.Errorf("it said %s", said)
				}
			})
		})
	}
}

func TestWhatNeedsNoNodeIsRefused(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	for name, test := range map[string]struct {
		change func(*cluster)
		want   string
	}{
		"no claim":              {func(c *cluster) { c.claim.Name = "other" }, "there is no such claim; give its namespace with -n"},
		"not bound":             {func(c *cluster) { c.claim.Status.Phase = corev1.ClaimPending }, "it is Pending, so it has no volume; see kubectl cinder why data -n team-a"},
		"raw block":             {func(c *cluster) { c.claim.Spec.VolumeMode = &block }, "rescan its disks on the node, and let its program read the size again"},
		"no volume":             {func(c *cluster) { c.pv.Name = "other" }, `"pvc-u1" not found`},
		"another claim's":       {func(c *cluster) { c.pv.Spec.ClaimRef.UID = "u2" }, "PersistentVolume pvc-u1 belongs to another claim, so its volume is left alone"},
		"another provisioner's": {func(c *cluster) { c.pv.Annotations = nil }, "PersistentVolume pvc-u1 belongs to another provisioner, or lost its annotation standalone-cinder.openstack.org/volume-id, so its volume is left alone; see kubectl cinder why pv/pvc-u1"},
		"mode csi": {func(c *cluster) {
			c.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example"}}
		}, "is one of CSI driver d.example, whose filesystem the kubelet has the driver grow when a pod uses it, so there is nothing to do"},
		"Ceph": {func(c *cluster) {
			c.pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{RBD: &corev1.RBDPersistentVolumeSource{}}
		},
			"is neither an iSCSI nor a Fibre Channel volume"},
		"not extended yet": {func(c *cluster) { c.pv.Spec.Capacity = c.claim.Status.Capacity }, "it asks for 20Gi, and its volume still has 10Gi; see kubectl cinder why"},
		"nothing to grow":  {func(c *cluster) { c.claim.Status.Capacity = c.pv.Spec.Capacity }, "it already has the 20Gi of its volume, so there is no growth to confirm; if its filesystem is smaller, as that of a larger copy, run resize2fs"},
		"no pod":           {func(c *cluster) { c.pods = nil }, "no pod on a node uses it"},
		"no node":          {func(c *cluster) { c.pods[0].Spec.NodeName = "" }, "no pod on a node uses it"},
		"a pod that ended": {func(c *cluster) { c.pods[0].Status.Phase = corev1.PodSucceeded }, "no pod on a node uses it"},
		"two nodes":        {func(c *cluster) { c.pods = append(c.pods, podOn("b", "n2"), podOn("c", "n1")) }, "pods use it on the nodes n1, n2; wait until one node is left"},
		"no component":     {func(c *cluster) { c.template.Name = "other" }, "namespace grow has no PodTemplate grow: the component node-grow is not installed there"},
		"another template": {func(c *cluster) { c.template.Template.Spec.Containers = nil }, "has 0 containers instead of one"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				test.change(c)
				if err := c.grow(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if did := c.did(); len(did) > 0 {
					t.Errorf("it did %q", did)
				}
			})
		})
	}
}

// TestThePodIsAlwaysDeleted: and nothing is confirmed that the node did not say.
func TestThePodIsAlwaysDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		ends corev1.PodStatus
		stop time.Duration
		want string
	}{
		"the node refuses":    {terminated(corev1.PodFailed, `{"error": "WrongDisk: it is another"}`), 0, "node n1: WrongDisk: it is another"},
		"it says nothing":     {terminated(corev1.PodSucceeded, ""), 0, "node n1: the pod ended as Succeeded without a result: it says nothing"},
		"it says less":        {terminated(corev1.PodSucceeded, `{"bytes": 1}`), 0, "node n1: the device has 1 bytes, and the PersistentVolume 21474836480"},
		"it fails with bytes": {terminated(corev1.PodFailed, `{"bytes": 21474836480}`), 0, "the pod ended as Failed"},
		"it takes too long":   {corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded", Message: "too long"}, 0, "without a result: DeadlineExceeded too long"},
		"it never ends": {corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: "grow", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}}},
			0, "the pod has not ended on node n1 (ErrImagePull): context deadline exceeded"},
		"the command is stopped": {corev1.PodStatus{Phase: corev1.PodRunning}, time.Second, "the pod has not ended on node n1 (it has not begun, or works): context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				c.ends = test.ends
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if test.stop > 0 {
					time.AfterFunc(test.stop, stop)
				}
				if err := c.grow(ctx); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %q", err, test.want)
				}
				if did := c.did(); len(did) != 2 || !strings.HasPrefix(did[0], "create ") || did[1] != "delete grow-u1" {
					t.Errorf("it did %q", did)
				}
			})
		})
	}
}

// TestThePodOfAnotherCall stops the command while that works, and is replaced afterwards.
func TestThePodOfAnotherCall(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]string{
		corev1.PodRunning: "pod grow/grow-u1 of another call has been working on it since 2026-01-02T03:04:05Z; wait for it, or delete the pod",
		corev1.PodFailed:  "<nil>",
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster()
			c.pods = append(c.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "grow", Name: "grow-u1", UID: "p0", CreationTimestamp: metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			}, Status: corev1.PodStatus{Phase: phase}})
			if err := c.grow(t.Context()); fmt.Sprint(err) != want {
				t.Errorf("%s: got %v, want %s", phase, err, want)
			}
		})
	}
}

func TestAPodThatStaysIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		g := &runner{Runner: podrun.Runner{Client: fake.NewClientset(), Namespace: "grow", Pause: time.Second}}
		g.Client.(*fake.Clientset).PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("no answer")
		})
		if err := g.Remove(t.Context(), c.pods[0]); err == nil || !strings.Contains(err.Error(), "is not deleted; delete it once its node answers: no answer") {
			t.Errorf("got %v", err)
		}
	})
}

// TestGrowthIsConfirmedAlthoughThePodStays: the kubelet stopped answering once the pod had ended.
func TestGrowthIsConfirmedAlthoughThePodStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		err := c.growWith(t.Context(), func(client *fake.Clientset) {
			client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, nil })
		})
		if err == nil || !strings.Contains(err.Error(), "is not deleted") {
			t.Errorf("got %v", err)
		}
		if did := strings.Join(c.did(), "\n"); !strings.Contains(did, "patch ") {
			t.Errorf("the growth is not recorded; it did\n%s\nand said %q, %v", did, c.said, err)
		}
	})
}

// TestAFailedLookDoesNotEndTheWait for the status.
func TestAFailedLookDoesNotEndTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, looks := newCluster(), 0
		err := c.growWith(t.Context(), func(client *fake.Clientset) {
			client.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				looks++
				if looks == 2 {
					return true, nil, apierrors.NewInternalError(errors.New("etcd has no leader"))
				}
				return false, nil, nil
			})
		})
		if err != nil {
			t.Errorf("got %v", err)
		}
	})
}

// TestAnotherClaimOfTheNameConfirmsNothing: the tenant deletes the claim, and makes a larger one.
func TestAnotherClaimOfTheNameConfirmsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, looks := newCluster(), 0
		err := c.growWith(t.Context(), func(client *fake.Clientset) {
			client.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
				looks++
				if looks < 2 {
					return false, nil, nil
				}
				other := c.claim.DeepCopy()
				other.UID, other.Status.Capacity = "u2", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("50Gi")}
				return true, other, nil
			})
		})
		if err == nil || !strings.Contains(err.Error(), "another") {
			t.Errorf("got %v, and said %q", err, c.said)
		}
	})
}

// TestNoClusterIsNotARefusal of the claim.
func TestNoClusterIsNotARefusal(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "config")
	content := "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: a, context: {cluster: a}}]\ncurrent-context: a\n"
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	command := newGrowCommand()
	command.SilenceErrors, command.SilenceUsage = true, true
	command.SetArgs([]string{"data", "--kubeconfig", kubeconfig})
	err := command.ExecuteContext(t.Context())
	var exit *policycli.ExitError
	if !errors.As(err, &exit) || exit.Code != policycli.ExitUsage || !strings.HasPrefix(err.Error(), "no connection to the cluster: ") {
		t.Errorf("got %v", err)
	}
}

// TestAClaimIsGivenByItsNameAlone: kubectl's own forms would be read as names.
func TestAClaimIsGivenByItsNameAlone(t *testing.T) {
	for _, given := range []string{"pvc/data", "team-a/data"} {
		for _, command := range NewCommands() {
			err := command.Args(command, []string{given})
			var exit *policycli.ExitError
			if !errors.As(err, &exit) || exit.Code != policycli.ExitUsage || err.Error() != strconv.Quote(given)+" is not the name of a claim; give the name alone, and its namespace with -n" {
				t.Errorf("%s %s: %v", command.Name(), given, err)
			}
		}
	}
}

// TestMissingRightsAreNamed wherever the first request for something is refused.
func TestMissingRightsAreNamed(t *testing.T) {
	for _, right := range []string{"get persistentvolumeclaims", "get persistentvolumes", "list pods", "get podtemplates"} {
		verb, resource, _ := strings.Cut(right, " ")
		synctest.Test(t, func(t *testing.T) {
			c := newCluster()
			err := c.growWith(t.Context(), func(client *fake.Clientset) {
				client.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
				})
			})
			if err == nil || !strings.Contains(err.Error(), "; bind the Role and the ClusterRoles of the component node-grow to this account") {
				t.Errorf("%s: got %v", right, err)
			}
		})
	}
}
