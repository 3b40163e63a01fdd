//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	sanityProvisioner = "sanity.example/standalone-cinder"
	sanityProject     = 0xc52
)

func sanityPolicy(env rig.Env) string {
	return fmt.Sprintf(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: e2e-csi-sanity
backends:
  - name: lab
    auth: {noauth: {endpoint: %q, user: %s, project: "%032x"}}
    mode: csi
tenants:
  - name: team-c
    namespaces: [team-c]
    classes:
      - {storageClasses: [sanity], backends: [lab], volumeType: %s, volumeTypes: [other], fsType: ext4}
`, env.Noauth.Endpoint, env.Noauth.User, sanityProject, env.Types.ISCSI)
}

// sanityReplica is a replica with real Cinder whose CSI driver trusts its callers.
type sanityReplica struct {
	env    rig.Env
	suite  *harness.Suite
	socket string
	*harness.Replica
}

// startSanity starts a replica, and waits until its driver serves.
func startSanity(ctx context.Context, t *testing.T, env rig.Env) *sanityReplica {
	t.Helper()
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Snapshots: true, Snapshotter: true, Log: os.Stderr})
	must(t, err)
	t.Cleanup(func() { must(t, suite.Stop()) })
	must(t, suite.CreateNamespace(ctx, "team-c", nil))
	must(t, suite.CreateClass(ctx, "sanity", wire.DriverName, func(*storagev1.StorageClass) {}))
	s := &sanityReplica{env: env, suite: suite, socket: filepath.Join(t.TempDir(), "csi.sock")}
	s.Replica, err = suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy: sanityPolicy(env), Provisioner: sanityProvisioner, Arguments: []string{"--csi-endpoint", "unix://" + s.socket, "--csi-trust-parameters"},
	})
	must(t, err)
	t.Cleanup(s.Kill)
	must(t, suite.AllowCSINodes(ctx, sanityProvisioner))
	must(t, suite.TrustParameters(ctx, sanityProvisioner))
	connection, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer connection.Close()
	must(t, harness.Eventually(ctx, func() (string, error) {
		probe, err := csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !probe.GetReady().GetValue() {
			return "the driver is not ready", nil
		}
		return "", err
	}))
	return s
}

// register makes the CSINode of a node, as its kubelet does.
func (s *sanityReplica) register(ctx context.Context, t *testing.T, name, id string) {
	t.Helper()
	_, err := s.suite.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: id}}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// run runs a test of test/csisanity.
func (s *sanityReplica) run(ctx context.Context, t *testing.T, test string, replica harness.SanityReplica) {
	t.Helper()
	replica.Endpoint, replica.Backend = "unix://"+s.socket, "lab"
	replica.Parameters = map[string]string{"namespace": "team-c", "storageClass": "sanity"}
	output, err := s.suite.CSISanity(ctx, test, replica)
	t.Log(output)
	if err != nil {
		t.Errorf("%v; the program said:\n%s", err, s.Log())
	}
}

// checkNothingLeft makes sure that neither Kubernetes nor Cinder has anything left.
func (s *sanityReplica) checkNothingLeft(ctx context.Context, t *testing.T) {
	t.Helper()
	must(t, s.suite.WaitForNoPersistentVolumes(ctx, sanityProvisioner))
	var left struct{ Volumes, Snapshots []volume }
	must(t, askProject(ctx, s.env, fmt.Sprintf("%032x", sanityProject), "/volumes/detail", &left))
	must(t, askProject(ctx, s.env, fmt.Sprintf("%032x", sanityProject), "/snapshots", &left))
	if len(left.Volumes)+len(left.Snapshots) > 0 {
		t.Errorf("left at Cinder: %+v", left.Volumes)
	}
}

// TestCSISanityOnCinder runs the specification's own tests of controllers against a
// replica with real Cinder.
func TestCSISanityOnCinder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	s := startSanity(ctx, t, env)
	node := wire.Node{Name: "node-sanity", InitiatorName: "iqn.2026-01.example:node-sanity"}
	id, err := node.NodeID()
	must(t, err)
	s.register(ctx, t, node.Name, id)
	must(t, s.suite.InstallSnapshots(ctx))
	snapshots, err := snapshotclient.NewForConfig(s.suite.Config)
	must(t, err)
	_, err = snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "sanity"}, Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = s.suite.Client.StorageV1().VolumeAttributesClasses().Create(ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "other"}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "other"}}, metav1.CreateOptions{})
	must(t, err)
	snapshotter, err := s.suite.Snapshotter(ctx, sanityProvisioner)(s.socket)
	must(t, err)
	t.Cleanup(snapshotter.Stop)
	for _, test := range []string{"TestIdentity", "TestController"} {
		s.run(ctx, t, test, harness.SanityReplica{
			NodeID: id, SnapshotParameters: map[string]string{"volumeSnapshotClass": "sanity"}, MutableParameters: map[string]string{"type": "other"},
		})
	}
	s.checkNothingLeft(ctx, t)
}

// TestCSISanityOfANode runs the specification's own tests of nodes against the node
// plugin in a virtual machine, with a controller in front of real Cinder.
func TestCSISanityOfANode(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	n := startNode(ctx, t, env, "node-sanity")
	s := startSanity(ctx, t, env)
	info, err := n.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	must(t, err)
	s.register(ctx, t, n.name, info.GetNodeId())
	k := startKubeletStandIn(t, n, s.suite)
	s.run(ctx, t, "TestNode", harness.SanityReplica{NodeEndpoint: "unix://" + k.socket, NodePaths: k.paths})
	n.checkNothingLeft(ctx, t)
	s.checkNothingLeft(ctx, t)
}
