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

// TestCSISanityOnCinder runs the specification's own tests of controllers against a
// replica with real Cinder.
func TestCSISanityOnCinder(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	suite, err := harness.StartSuite(ctx, harness.SuiteOptions{Snapshots: true, Snapshotter: true, Log: os.Stderr})
	must(t, err)
	t.Cleanup(func() { must(t, suite.Stop()) })
	must(t, suite.CreateNamespace(ctx, "team-c", nil))
	must(t, suite.CreateClass(ctx, "sanity", wire.DriverName, func(*storagev1.StorageClass) {}))
	socket := filepath.Join(t.TempDir(), "csi.sock")
	replica, err := suite.StartReplica(ctx, harness.ReplicaOptions{
		Policy: sanityPolicy(env), Provisioner: sanityProvisioner, Arguments: []string{"--csi-endpoint", "unix://" + socket, "--csi-trust-parameters"},
	})
	must(t, err)
	t.Cleanup(replica.Kill)
	must(t, suite.AllowCSINodes(ctx, sanityProvisioner))
	must(t, suite.TrustParameters(ctx, sanityProvisioner))
	node := wire.Node{Name: "node-sanity", InitiatorName: "iqn.2026-01.example:node-sanity"}
	id, err := node.NodeID()
	must(t, err)
	_, err = suite.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: wire.DriverName, NodeID: id}}},
	}, metav1.CreateOptions{})
	must(t, err)
	must(t, suite.InstallSnapshots(ctx))
	snapshots, err := snapshotclient.NewForConfig(suite.Config)
	must(t, err)
	_, err = snapshots.SnapshotV1().VolumeSnapshotClasses().Create(ctx, &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "sanity"}, Driver: wire.DriverName, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = suite.Client.StorageV1().VolumeAttributesClasses().Create(ctx, &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: "other"}, DriverName: wire.DriverName, Parameters: map[string]string{"type": "other"}}, metav1.CreateOptions{})
	must(t, err)
	snapshotter, err := suite.Snapshotter(ctx, sanityProvisioner)(socket)
	must(t, err)
	t.Cleanup(snapshotter.Stop)
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer connection.Close()
	must(t, harness.Eventually(ctx, func() (string, error) {
		probe, err := csi.NewIdentityClient(connection).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && !probe.GetReady().GetValue() {
			return "the driver is not ready", nil
		}
		return "", err
	}))
	for _, test := range []string{"TestIdentity", "TestController"} {
		output, err := suite.CSISanity(ctx, test, harness.SanityReplica{
			Endpoint: "unix://" + socket, Backend: "lab", NodeID: id, Parameters: map[string]string{"namespace": "team-c", "storageClass": "sanity"},
			SnapshotParameters: map[string]string{"volumeSnapshotClass": "sanity"}, MutableParameters: map[string]string{"type": "other"},
		})
		t.Log(output)
		if err != nil {
			t.Errorf("%v; the program said:\n%s", err, replica.Log())
		}
	}
	must(t, suite.WaitNoPersistentVolumes(ctx, sanityProvisioner))
	var left struct{ Volumes, Snapshots []volume }
	must(t, askProject(ctx, env, fmt.Sprintf("%032x", sanityProject), "/volumes/detail", &left))
	must(t, askProject(ctx, env, fmt.Sprintf("%032x", sanityProject), "/snapshots", &left))
	if len(left.Volumes)+len(left.Snapshots) > 0 {
		t.Errorf("left at Cinder: %+v", left.Volumes)
	}
}
