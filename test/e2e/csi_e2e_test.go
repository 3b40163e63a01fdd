//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// csiProvisioner is another installation beside the one of the native tests.
const csiProvisioner = "csi.example/standalone-cinder"

const csiProject = 0xc51

// csiCluster is a cluster with the program in mode csi and the real sidecars. Its test
// stands in for kubelet, and for kube-controller-manager where that makes
// VolumeAttachments.
type csiCluster struct {
	*harness.Suite
	// test is the one that the cluster lasts for.
	test     *testing.T
	replica  *harness.Replica
	attacher *harness.Sidecar
	policy   string
	socket   string
	// arguments are further ones of the program.
	arguments []string
}

func startCSI(ctx context.Context, t *testing.T, policy string, classes ...string) csiCluster {
	t.Helper()
	return startCSIWith(ctx, t, harness.SuiteOptions{}, "", policy, classes...)
}

// startCSIWith also builds the sidecars that the options name. A program replaces the
// suite's build.
func startCSIWith(ctx context.Context, t *testing.T, options harness.SuiteOptions, program, policy string, classes ...string) csiCluster {
	t.Helper()
	options.Attacher, options.Log = true, os.Stderr
	suite, err := harness.StartSuite(ctx, options)
	must(t, err)
	t.Cleanup(func() { must(t, suite.Stop()) })
	must(t, suite.CreateNamespace(ctx, "team-c", nil))
	for _, class := range classes {
		must(t, suite.CreateClass(ctx, class, csiProvisioner, func(*storagev1.StorageClass) {}))
	}
	c := csiCluster{Suite: suite, test: t, policy: policy, socket: filepath.Join(t.TempDir(), "csi.sock")}
	c.lead(ctx, t, program)
	must(t, suite.AllowCSINodes(ctx, csiProvisioner))
	c.attacher, err = suite.Attacher(ctx, csiProvisioner)(c.socket)
	must(t, err)
	t.Cleanup(c.attacher.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the attacher said:\n%s", c.attacher.Log())
		}
	})
	return c
}

// lead starts a build of the program, or the suite's, which runs until the cluster's test
// ends.
func (c *csiCluster) lead(ctx context.Context, t *testing.T, program string) {
	t.Helper()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	clouds, err := os.ReadFile(env.CloudsFile)
	must(t, err)
	replica, err := c.StartReplica(ctx, harness.ReplicaOptions{
		Policy: c.policy, Clouds: string(clouds), Provisioner: csiProvisioner, Program: program, Arguments: append([]string{"--csi-endpoint", "unix://" + c.socket}, c.arguments...),
	})
	must(t, err)
	c.test.Cleanup(replica.Kill)
	c.test.Cleanup(func() {
		if c.test.Failed() {
			c.test.Logf("the program said:\n%s", replica.Log())
		}
	})
	c.replica = replica
}

// join registers a node as its kubelet does.
func (c csiCluster) join(ctx context.Context, t *testing.T, n *csiNode) {
	t.Helper()
	info, err := n.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	must(t, err)
	_, err = c.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: n.name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: info.NodeId}}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	must(t, err)
	c.use(ctx, t, n)
}

// use reports the boot of a node, as its kubelet does, and the volumes of which the node has
// state files, as its plugin would if it reached the API server.
func (c csiCluster) use(ctx context.Context, t *testing.T, n *csiNode) {
	t.Helper()
	machine := harness.Machine(n.name, strings.TrimSpace(n.run(ctx, t, "cat /proc/sys/kernel/random/boot_id")))
	node, err := c.Client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	must(t, err)
	node.Status.NodeInfo.BootID, node.Status.NodeInfo.SystemUUID = machine.Boot, machine.SystemUUID
	_, err = c.Client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	must(t, err)
	must(t, c.ReportStaged(ctx, n.name, machine, n.staged(ctx, t)...))
}

// staged returns the handles of the volumes of which the node has state files.
func (n *csiNode) staged(ctx context.Context, t *testing.T) (handles []string) {
	t.Helper()
	for name := range strings.FieldsSeq(n.run(ctx, t, "ls "+stateDir+"/volumes 2>/dev/null; true")) {
		if escaped, found := strings.CutSuffix(name, ".json"); found {
			handle, err := url.PathUnescape(escaped)
			must(t, err)
			handles = append(handles, handle)
		}
	}
	slices.Sort(handles)
	return handles
}

// claim makes a claim, and returns its PersistentVolume.
func (c csiCluster) claim(ctx context.Context, t *testing.T, name, class string) *corev1.PersistentVolume {
	t.Helper()
	pv := c.bound(ctx, t, harness.Claim("team-c", name, class, "1Gi", nil))
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != wire.DriverName {
		t.Fatalf("the PersistentVolume is %+v", pv)
	}
	return pv
}

// bound makes a claim, and returns its PersistentVolume, of whatever mode.
func (c csiCluster) bound(ctx context.Context, t *testing.T, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	t.Helper()
	_, err := c.CreateClaim(ctx, claim)
	must(t, err)
	return c.served(ctx, t, claim)
}

func (c csiCluster) served(ctx context.Context, t *testing.T, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	t.Helper()
	var pv *corev1.PersistentVolume
	must(t, harness.Eventually(ctx, func() (string, error) {
		claim, err := c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || claim.Status.Phase != corev1.ClaimBound {
			return "claim " + claim.Name + " is not bound", err
		}
		pv, err = c.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		return "", err
	}))
	return pv
}

func volumeID(t *testing.T, pv *corev1.PersistentVolume) string {
	t.Helper()
	handle, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
	must(t, err)
	return handle.ID
}

func attachmentName(pv *corev1.PersistentVolume, n *csiNode) string {
	return "csi-" + pv.Name + "-" + n.name
}

// ask asks for a volume on a node.
func (c csiCluster) ask(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode) {
	t.Helper()
	_, err := c.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(pv, n)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: n.name, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// attached waits for a volume that was asked for, and reads what kubelet would.
func (c csiCluster) attached(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode) csiVolume {
	t.Helper()
	v := csiVolume{id: volumeID(t, pv), backend: pv.Annotations["standalone-cinder.openstack.org/backend"], secrets: map[string]string{}, attributes: pv.Spec.CSI.VolumeAttributes}
	must(t, harness.Eventually(ctx, func() (string, error) {
		attachment, err := c.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(pv, n), metav1.GetOptions{})
		if err != nil || attachment.Status.Attached {
			v.context = attachment.Status.AttachmentMetadata
			return "", err
		}
		return fmt.Sprintf("not attached: %+v", attachment.Status.AttachError), nil
	}))
	reference := pv.Spec.CSI.NodeStageSecretRef
	secret, err := c.Client.CoreV1().Secrets(reference.Namespace).Get(ctx, reference.Name, metav1.GetOptions{})
	must(t, err)
	for key, value := range secret.Data {
		v.secrets[key] = string(value)
	}
	return v
}

func (c csiCluster) attach(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode) csiVolume {
	t.Helper()
	c.ask(ctx, t, pv, n)
	return c.attached(ctx, t, pv, n)
}

// giveUp asks for the end of an attachment.
func (c csiCluster) giveUp(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode) {
	t.Helper()
	must(t, c.Client.StorageV1().VolumeAttachments().Delete(ctx, attachmentName(pv, n), metav1.DeleteOptions{}))
}

// detached waits for the end of an attachment.
func (c csiCluster) detached(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		attachment, err := c.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(pv, n), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return fmt.Sprintf("not detached from %s: %+v", n.name, attachment.Status.DetachError), err
	}))
}

func (c csiCluster) detach(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode) {
	t.Helper()
	c.giveUp(ctx, t, pv, n)
	c.detached(ctx, t, pv, n)
}

// says waits until an attachment's error says why it is not made, or not ended.
func (c csiCluster) says(ctx context.Context, t *testing.T, pv *corev1.PersistentVolume, n *csiNode, why ...string) {
	t.Helper()
	must(t, harness.Eventually(ctx, func() (string, error) {
		attachment, err := c.Client.StorageV1().VolumeAttachments().Get(ctx, attachmentName(pv, n), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		var said string
		for _, failed := range []*storagev1.VolumeError{attachment.Status.AttachError, attachment.Status.DetachError} {
			if failed != nil {
				said += failed.Message
			}
		}
		for _, fragment := range why {
			if !strings.Contains(said, fragment) {
				return fmt.Sprintf("the attachment says %q, want %q", said, why), nil
			}
		}
		return "", nil
	}))
}

// reaches takes a claim from its creation to a file on a node and back, and again.
func (c csiCluster) reaches(ctx context.Context, t *testing.T, n *csiNode, class string) {
	pv := c.claim(ctx, t, "first", class)

	for round := range 2 {
		v := c.attach(ctx, t, pv, n)
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.publish(ctx, v, "ext4"))
		if round == 0 {
			n.run(ctx, t, "echo written on a node > "+podPath(v)+"/data; sync")
		}
		if content := n.run(ctx, t, "cat "+podPath(v)+"/data"); content != "written on a node\n" {
			t.Errorf("round %d: the file has %q", round, content)
		}
		must(t, n.unpublish(ctx, v))
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		c.detach(ctx, t, pv, n)
		secret, err := c.Client.CoreV1().Secrets(harness.Namespace).Get(ctx, pv.Spec.CSI.NodeStageSecretRef.Name, metav1.GetOptions{})
		must(t, err)
		if len(secret.Data) > 0 {
			t.Error("the Secret still has the node's password")
		}
		for _, password := range v.secrets {
			for what, log := range map[string]string{"the program": c.replica.Log(), "the attacher": c.attacher.Log()} {
				if _, at, found := strings.Cut(password, `"password":"`); found && strings.Contains(log, strings.Split(at, `"`)[0]) {
					t.Errorf("%s has logged a password", what)
				}
			}
		}
	}

	must(t, c.DeleteClaims(ctx, "team-c"))
	must(t, c.WaitForNoPersistentVolumes(ctx, csiProvisioner))
	if _, err := c.Client.CoreV1().Secrets(harness.Namespace).Get(ctx, pv.Spec.CSI.NodeStageSecretRef.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the volume's Secret: %v", err)
	}
}
