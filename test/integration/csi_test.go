package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// csiCluster keeps apart what tests of CSI do with objects that have no
// namespace: CSINodes and VolumeAttachments.
type csiCluster struct {
	name, cluster string
	sim           *cindersim.Simulator
	// project and backend are those of its volumes.
	project, backend string
	// provisioner is on record for its PersistentVolumes, which the sidecars' account
	// may change then; if it is empty, no hub looks after them.
	provisioner string
	// types are the volume types of its volumes, if they are not all iscsi. Its nodes
	// then have names for every protocol.
	types []string
}

// csiVolume is a volume as the program provisions it in mode csi.
type csiVolume struct{ id, pv string }

func (c csiCluster) node(n int) string { return fmt.Sprintf("%s-node-%d", c.name, n) }

// register registers nodes with the driver, as their plugins do.
func (c csiCluster) register(ctx context.Context, nodes int) error {
	for n := range nodes {
		if err := c.registerNode(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (c csiCluster) registerNode(ctx context.Context, n int) error {
	name := c.node(n)
	node := wire.Node{Name: name, InitiatorName: "iqn.2026-01.example:" + name}
	if len(c.types) > 0 {
		node.HostNQN = "nqn.2014-08.example:" + name
		for port := range 2 {
			node.PortNames = append(node.PortNames, fmt.Sprintf("10000000c9%06x", 16*n+port))
			node.NodeNames = append(node.NodeNames, fmt.Sprintf("20000000c9%06x", 16*n+port))
		}
	}
	id, err := node.NodeID()
	if err != nil {
		return err
	}
	_, err = suite.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: id}}},
	}, metav1.CreateOptions{})
	return err
}

// volume makes a volume, its PersistentVolume and its empty Secret, as provisioning
// leaves them.
func (c csiCluster) volume(ctx context.Context, n int) (csiVolume, error) {
	uid := fmt.Sprintf("%s-uid-%d", c.name, n)
	v := csiVolume{pv: "pvc-" + uid}
	metadata := map[string]string{
		annotation("cluster"): c.cluster, annotation("claim-uid"): uid, "csi.storage.k8s.io/pv/name": v.pv, annotation("tenant"): "tenant-a",
		annotation("mode"): "csi", annotation("attached"): "true",
	}
	kind := "iscsi"
	if n < len(c.types) {
		kind = c.types[n]
	}
	var err error
	if v.id, err = c.sim.AddVolume(cindersim.Volume{Name: v.pv, Project: c.project, Type: kind, Metadata: metadata}); err != nil {
		return v, err
	}
	secret := v.pv + "-node"
	if _, err := suite.Client.CoreV1().Secrets(harness.Namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: secret, Labels: map[string]string{"app.kubernetes.io/managed-by": "standalone-cinder"}, Annotations: map[string]string{annotation("persistent-volume"): v.pv},
	}}, metav1.CreateOptions{}); err != nil {
		return v, err
	}
	annotations := map[string]string{
		annotation("volume-id"): v.id, annotation("backend"): c.backend, annotation("cluster"): c.cluster, annotation("claim-uid"): uid, annotation("tenant"): "tenant-a",
	}
	if c.provisioner != "" {
		annotations[objects.AnnotationProvisionedBy] = c.provisioner
	}
	_, err = suite.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: v.pv, Annotations: annotations},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: wire.DriverName, VolumeHandle: wire.Handle{Backend: c.backend, ID: v.id}.String(), FSType: "ext4",
				NodeStageSecretRef: &corev1.SecretReference{Namespace: harness.Namespace, Name: secret},
			}},
		},
	}, metav1.CreateOptions{})
	return v, err
}

// remove removes what a test of CSI made.
func (c csiCluster) remove(ctx context.Context, volumes []csiVolume, nodes int) error {
	for _, v := range volumes {
		if err := suite.Client.CoreV1().PersistentVolumes().Delete(ctx, v.pv, metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := suite.Client.CoreV1().Secrets(harness.Namespace).Delete(ctx, v.pv+"-node", metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	for n := range nodes {
		if err := suite.Client.StorageV1().CSINodes().Delete(ctx, c.node(n), metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// attachTo asks for a volume on a node, as the attach-detach controller does.
func (c csiCluster) attachTo(ctx context.Context, v csiVolume, n int) error {
	_, err := suite.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: c.attachment(v, n)},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: wire.DriverName, NodeName: c.node(n), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.pv}},
	}, metav1.CreateOptions{})
	return err
}

func (c csiCluster) attachment(v csiVolume, n int) string {
	return fmt.Sprintf("csi-%s-%s", v.pv, c.node(n))
}

func (c csiCluster) detachFrom(ctx context.Context, v csiVolume, n int) error {
	return suite.Client.StorageV1().VolumeAttachments().Delete(ctx, c.attachment(v, n), metav1.DeleteOptions{})
}

// attached waits until a volume is attached to a node, and returns how.
func (c csiCluster) attached(ctx context.Context, v csiVolume, n int) (wire.Connection, error) {
	var connection wire.Connection
	err := harness.Eventually(ctx, func() (string, error) {
		va, err := suite.Client.StorageV1().VolumeAttachments().Get(ctx, c.attachment(v, n), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if !va.Status.Attached {
			return fmt.Sprintf("%s is not attached: %v", va.Name, va.Status.AttachError), nil
		}
		connection, err = wire.ParsePublishContext(va.Status.AttachmentMetadata)
		return "", err
	})
	if err != nil {
		return connection, err
	}
	return connection, c.onlyOn(v, c.node(n))
}

// detached waits until nothing of an attachment is left.
func (c csiCluster) detached(ctx context.Context, v csiVolume, n int) error {
	if err := c.answered(ctx, v, n); err != nil {
		return err
	}
	return c.onlyOn(v)
}

// answered waits until a detachment is answered, whatever became of it at Cinder.
func (c csiCluster) answered(ctx context.Context, v csiVolume, n int) error {
	return harness.Eventually(ctx, func() (string, error) {
		va, err := suite.Client.StorageV1().VolumeAttachments().Get(ctx, c.attachment(v, n), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s is there: %v", va.Name, va.Status.DetachError), nil
	})
}

// onlyOn returns an error unless Cinder and the volume's records show that exactly
// these nodes have a volume.
func (c csiCluster) onlyOn(v csiVolume, nodes ...string) error {
	now, found := c.sim.Volume(v.id)
	if !found {
		return fmt.Errorf("volume %s is gone", v.id)
	}
	have := map[string]string{}
	for _, a := range now.Attachments {
		if a.Status != "attached" || have[a.Host] != "" {
			return fmt.Errorf("volume %s (%s) has the attachments %+v", v.id, now.Status, now.Attachments)
		}
		have[a.Host] = a.ID
	}
	recorded := map[string]string{}
	for key, value := range now.Metadata {
		if strings.HasPrefix(key, stamps.NodeRecordPrefix) && value != "" {
			id, node, _ := strings.Cut(value, " ")
			recorded[node] = id
		}
	}
	if len(have) != len(nodes) || len(recorded) != len(nodes) {
		return fmt.Errorf("volume %s is on %v, recorded on %v, want %v", v.id, have, recorded, nodes)
	}
	for host, id := range have {
		if node, _, _ := strings.Cut(host, "."); recorded[node] != id || !slices.Contains(nodes, node) {
			return fmt.Errorf("volume %s is on %v, recorded on %v, want %v", v.id, have, recorded, nodes)
		}
	}
	return nil
}

// credentials returns the entries of a volume's Secret.
func (c csiCluster) credentials(ctx context.Context, v csiVolume) (map[string]string, error) {
	secret, err := suite.Client.CoreV1().Secrets(harness.Namespace).Get(ctx, v.pv+"-node", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	entries := map[string]string{}
	for key, value := range secret.Data {
		entries[key] = string(value)
	}
	return entries, nil
}

// sidecar is a replica with its external-attacher.
type sidecar struct {
	*harness.Replica
	Attacher *harness.Sidecar
}

// socket returns a path for the driver's socket, short enough for a socket.
func (w *world) socket() string {
	w.Helper()
	dir, err := os.MkdirTemp("", "csi-")
	w.must(err)
	w.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "csi.sock")
}

// startWithSidecar starts a replica whose pod has an external-attacher.
func (w *world) startWithSidecar(arguments ...string) sidecar {
	w.Helper()
	replica, sidecars := w.startBeside(arguments, suite.Attacher(w.ctx, w.provisioner))
	return sidecar{Replica: replica, Attacher: sidecars[0]}
}

// startBeside starts a replica, and sidecars in its pod.
func (w *world) startBeside(arguments []string, start ...func(socket string) (*harness.Sidecar, error)) (*harness.Replica, []*harness.Sidecar) {
	w.Helper()
	path := w.socket()
	replica := w.start(append([]string{"--csi-endpoint", "unix://" + path}, arguments...)...)
	var sidecars []*harness.Sidecar
	for _, begin := range start {
		s, err := begin(path)
		w.must(err)
		w.Cleanup(func() {
			s.Stop()
			if w.Failed() {
				lines := strings.Split(s.Log(), "\n")
				w.Logf("a sidecar said:\n%s", strings.Join(lines[max(0, len(lines)-200):], "\n"))
			}
		})
		sidecars = append(sidecars, s)
	}
	return replica, sidecars
}

// csi makes nodes and volumes for a world's backend gold.
func (w *world) csi(nodes, volumes int, types ...string) (csiCluster, []csiVolume) {
	w.Helper()
	c := csiCluster{name: w.name, cluster: "cluster-" + w.name, sim: w.sim, project: "team-a", backend: "gold", provisioner: w.provisioner, types: types}
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.must(c.register(w.ctx, nodes))
	var made []csiVolume
	for n := range volumes {
		v, err := c.volume(w.ctx, n)
		w.must(err)
		made = append(made, v)
	}
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, v := range made {
			for n := range nodes {
				name := c.attachment(v, n)
				_ = suite.Client.StorageV1().VolumeAttachments().Delete(ctx, name, metav1.DeleteOptions{})
			}
		}
		if err := c.remove(ctx, made, nodes); err != nil {
			w.Error(err)
		}
	})
	return c, made
}

// TestVolumesMoveFromNodeToNode: the real external-attacher gets a volume attached,
// another node gets it when the first has given it up, and no credential is anywhere
// but in the volume's Secret.
func TestVolumesMoveFromNodeToNode(t *testing.T) {
	w := newWorld(t, "csimove", cindersim.Options{})
	c, volumes := w.csi(2, 1)
	v := volumes[0]
	s := w.startWithSidecar()
	w.must(c.attachTo(w.ctx, v, 0))
	connection, err := c.attached(w.ctx, v, 0)
	w.must(err)
	now, _ := w.sim.Volume(v.id)
	if connection.Protocol != "iscsi" || len(connection.Paths) != 1 || !connection.Credentials || connection.Bytes != 1<<30 {
		t.Errorf("the connection is %+v", connection)
	}
	if got := now.Attachments[0].Connector["initiator"]; got != "iqn.2026-01.example:"+c.node(0) {
		t.Errorf("Cinder knows the node as %v", got)
	}
	entries, err := c.credentials(w.ctx, v)
	w.must(err)
	found, err := wire.CredentialsFor(c.node(0), entries)
	if err != nil || found.User != now.Export.Username || found.Password != now.Export.Password {
		t.Errorf("the node finds user %q (%v), want %q", found.User, err, now.Export.Username)
	}

	w.must(c.attachTo(w.ctx, v, 1))
	why := fmt.Sprintf("volume %s is attached to node %s, and must be detached there before it can be attached to node %s", v.id, c.node(0), c.node(1))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		va, err := suite.Client.StorageV1().VolumeAttachments().Get(w.ctx, c.attachment(v, 1), metav1.GetOptions{})
		if err != nil || va.Status.AttachError == nil || !strings.Contains(va.Status.AttachError.Message, why) {
			return fmt.Sprintf("the second attachment says %v", va.Status), err
		}
		return "", nil
	}))
	w.must(c.onlyOn(v, c.node(0)))
	w.must(c.detachFrom(w.ctx, v, 0))
	_, err = c.attached(w.ctx, v, 1)
	w.must(err)
	last, _ := w.sim.Volume(v.id)
	entries, err = c.credentials(w.ctx, v)
	w.must(err)
	if keys := slices.Collect(maps.Keys(entries)); !slices.Equal(keys, []string{wire.SecretKey(c.node(1))}) {
		t.Errorf("the Secret has entries %q", keys)
	}
	w.must(c.detachFrom(w.ctx, v, 1))
	w.must(c.detached(w.ctx, v, 1))
	entries, err = c.credentials(w.ctx, v)
	w.must(err)
	if len(entries) > 0 {
		t.Errorf("the Secret has %d entries", len(entries))
	}

	attachments, err := suite.Client.StorageV1().VolumeAttachments().List(w.ctx, metav1.ListOptions{})
	w.must(err)
	text, err := json.Marshal(attachments)
	w.must(err)
	everything := string(text) + s.Replica.Log() + s.Attacher.Log() + w.readable()
	for _, secret := range []string{now.Export.Password, last.Export.Password} {
		if secret == "" || strings.Contains(everything, secret) {
			t.Errorf("the password %.3s... is where it must not be, or there is none", secret)
		}
	}
	_, metrics, err := s.Get(w.ctx, "/metrics")
	w.must(err)
	// The attacher may publish again before it sees that it has written the answer.
	for _, want := range []string{`standalone_cinder_csi_requests_total{code="OK",method="ControllerPublishVolume"} `, `standalone_cinder_csi_requests_total{code="FailedPrecondition",method="ControllerPublishVolume"}`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics have no %s", want)
		}
	}
}

// TestVolumesOfOtherProtocolsAreAttached: the node's names reach Cinder, and how the node
// gets to the volume reaches its VolumeAttachment.
func TestVolumesOfOtherProtocolsAreAttached(t *testing.T) {
	ports := []string{"500a098280feeb01", "500a098290feeb01"}
	w := newWorld(t, "csiprotocols", cindersim.Options{Types: append(drivers.DefaultVolumeTypes(),
		drivers.VolumeType{Name: "fc", StorageProtocol: "FC", Connection: drivers.FibreChannelConnection(300, ports...)},
		drivers.VolumeType{Name: "nvme", StorageProtocol: "NVMe-oF", Connection: drivers.FixedConnection("nvmeof", map[string]any{
			"target_nqn": "nqn.2014-08.example:storage", "vol_uuid": "7c1f8b52-3d6e-4a0b-9a51-2f0c6f4be001", "portals": [][]any{{"192.0.2.1", 4420, "tcp"}},
		})})})
	c, volumes := w.csi(1, 2, "fc", "nvme")
	w.startWithSidecar()
	for n, want := range []wire.Connection{
		{Protocol: "fibre_channel", Paths: []wire.Path{
			{Portal: "10000000c9000000,10000000c9000001", Target: ports[0], LUN: 16384 + 300}, {Portal: "10000000c9000000,10000000c9000001", Target: ports[1], LUN: 16384 + 300},
		}},
		{Protocol: "nvmeof", Identities: []string{"uuid.7c1f8b52-3d6e-4a0b-9a51-2f0c6f4be001"}, Paths: []wire.Path{{Portal: "192.0.2.1:4420", Target: "nqn.2014-08.example:storage"}}},
	} {
		w.must(c.attachTo(w.ctx, volumes[n], 0))
		got, err := c.attached(w.ctx, volumes[n], 0)
		w.must(err)
		now, _ := w.sim.Volume(volumes[n].id)
		want.Bytes, want.Attachment = 1<<30, got.Attachment
		if !reflect.DeepEqual(got, want) {
			t.Errorf("the connection is %+v, want %+v", got, want)
		}
		connector := now.Attachments[0].Connector
		names := fmt.Sprintf("%v %v %v %v", connector["wwpns"], connector["wwnns"], connector["nqn"], connector["initiator"])
		if names != "[10000000c9000000 10000000c9000001] [20000000c9000000 20000000c9000001] nqn.2014-08.example:"+c.node(0)+" iqn.2026-01.example:"+c.node(0) {
			t.Errorf("Cinder knows the node as %s", names)
		}
		w.must(c.detachFrom(w.ctx, volumes[n], 0))
		w.must(c.detached(w.ctx, volumes[n], 0))
	}
}

// TestAttachmentsSurviveTheirLeaders: while twenty volumes are attached and detached,
// leaders are killed and paused. Each volume ends with the one attachment that it
// should have, or with none, and a replica that does not lead says so.
//
//tier:outage
func TestAttachmentsSurviveTheirLeaders(t *testing.T) {
	w := newWorld(t, "csileader", cindersim.Options{Latency: 30 * time.Millisecond})
	const volumes = 20
	c, all := w.csi(2, volumes)
	var replicas []sidecar
	for range 3 {
		replicas = append(replicas, w.startWithSidecar(shortLease...))
	}
	leading := func() sidecar {
		t.Helper()
		var leader sidecar
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			for _, s := range replicas {
				if s.Leads(w.ctx) {
					leader = s
					return "", nil
				}
			}
			return "no replica leads", nil
		}))
		return leader
	}
	under := func(what string, enough func(cindersim.Volume) bool) {
		t.Helper()
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			if n := len(slices.DeleteFunc(w.sim.Volumes(), func(v cindersim.Volume) bool { return !enough(v) })); n < volumes/4 {
				return fmt.Sprintf("only %d volumes are %s", n, what), nil
			}
			return "", nil
		}))
	}
	leader := leading()
	for _, v := range all {
		w.must(c.attachTo(w.ctx, v, 0))
	}
	under("attached", func(v cindersim.Volume) bool { return v.Status == "in-use" })
	leader.Kill()
	leader.Attacher.Stop()
	replicas = slices.DeleteFunc(replicas, func(s sidecar) bool { return s.Replica == leader.Replica })
	for _, v := range all {
		_, err := c.attached(w.ctx, v, 0)
		w.must(err)
	}

	// The next one sleeps through the end of its term.
	leader = leading()
	for _, v := range all {
		w.must(c.detachFrom(w.ctx, v, 0))
	}
	under("detached", func(v cindersim.Volume) bool { return v.Status == "available" })
	w.must(leader.Signal(syscall.SIGSTOP))
	for _, v := range all {
		w.must(c.detached(w.ctx, v, 0))
		w.must(c.attachTo(w.ctx, v, 1))
	}
	for _, v := range all {
		_, err := c.attached(w.ctx, v, 1)
		w.must(err)
	}
	w.must(leader.Signal(syscall.SIGCONT))
	// Until its renewal fails, it does what it still has to do.
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if leader.Leads(w.ctx) {
			return "the replica that was paused leads on", nil
		}
		return "", nil
	}))
	for _, v := range all {
		w.must(c.onlyOn(v, c.node(1)))
	}

	// And the last one is stopped in an orderly way.
	stopped := leading()
	for _, v := range all {
		w.must(c.detachFrom(w.ctx, v, 1))
	}
	under("detached", func(v cindersim.Volume) bool { return v.Status == "available" })
	ctx, cancel := context.WithTimeout(w.ctx, 25*time.Second)
	defer cancel()
	w.must(stopped.Replica.Stop(ctx))
	replicas = slices.DeleteFunc(replicas, func(s sidecar) bool { return s.Replica == stopped.Replica })
	for _, v := range all {
		w.must(c.detached(w.ctx, v, 1))
	}
}

// TestALeaderWithoutItsAttacherHandsOver: to a replica that has one, and says so. A leader
// with a csi-attacher leads on.
func TestALeaderWithoutItsAttacherHandsOver(t *testing.T) {
	w := newWorld(t, "csisilent", cindersim.Options{})
	c, volumes := w.csi(1, 2)
	patience := append([]string{"--csi-attacher-timeout", "5s"}, shortLease...)
	lame := w.startWithSidecar(patience...)
	w.must(c.attachTo(w.ctx, volumes[0], 0))
	_, err := c.attached(w.ctx, volumes[0], 0)
	w.must(err)
	lame.Attacher.Stop()
	next := w.startWithSidecar(patience...)
	w.must(c.attachTo(w.ctx, volumes[1], 0))
	_, err = c.attached(w.ctx, volumes[1], 0)
	w.must(err)
	if !next.Leads(w.ctx) || lame.Leads(w.ctx) {
		t.Error("the replica without csi-attacher leads")
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		events, err := suite.Client.CoreV1().Events("").List(w.ctx, metav1.ListOptions{FieldSelector: "reason=AttacherSilent"})
		if err != nil {
			return "", err
		}
		for _, e := range events.Items {
			if strings.HasPrefix(e.Message, "VolumeAttachment "+c.attachment(volumes[1], 0)+" has waited for 5s without a call from the csi-attacher beside replica ") {
				return "", nil
			}
		}
		return fmt.Sprintf("no event among %d says that csi-attacher is silent", len(events.Items)), nil
	}))
	for _, v := range volumes {
		w.must(c.detachFrom(w.ctx, v, 0))
		w.must(c.detached(w.ctx, v, 0))
	}
}
