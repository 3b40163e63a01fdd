package integration

import (
	"context"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// ofSnapshots are the suite's tests of snapshots, which take as long as all others.
const ofSnapshots = "Snapshot|snapshot"

// TestCSISanity runs the specification's own suite against the controller of a replica,
// which trusts its parameters: the suite has no claims.
func TestCSISanity(t *testing.T) {
	runCSISanity(t, "csisanity", harness.SanityReplica{Skip: ofSnapshots}, "TestIdentity", "TestController")
}

// TestCSISanityOfSnapshots runs the rest of the suite.
//
//tier:outage
func TestCSISanityOfSnapshots(t *testing.T) {
	runCSISanity(t, "csisnaps", harness.SanityReplica{Focus: ofSnapshots}, "TestController")
}

func runCSISanity(t *testing.T, name string, replica harness.SanityReplica, tests ...string) {
	t.Helper()
	w := newWorld(t, name, cindersim.Options{
		CreateDelay: 50 * time.Millisecond, Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{Name: "other", Backend: "iscsi", RequiresInitiator: true}),
	})
	w.attributesClass("other", map[string]string{"type": "other"})
	w.policy = w.change(`      - storageClasses: ["`+name+`-gold"]
        backends: [gold]
`, `      - storageClasses: ["`+name+`-driver"]
        backends: [gold]
        mode: csi
        volumeTypes: [other]
`)
	w.must(suite.CreateClass(w.ctx, name+"-driver", wire.DriverName, nil))
	c := csiCluster{name: w.name, cluster: "cluster-" + w.name, sim: w.sim, project: "team-a", backend: "gold"}
	w.must(suite.AllowCSINodes(w.ctx, w.provisioner))
	w.must(c.register(w.ctx, 1))
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := c.remove(ctx, nil, 1); err != nil {
			w.Error(err)
		}
	})
	if replica.Focus == ofSnapshots {
		w.must(suite.InstallSnapshots(w.ctx))
	}
	endpoint := "unix://" + w.socket()
	w.start("--csi-endpoint", endpoint, "--csi-trust-parameters")
	w.must(suite.TrustParameters(w.ctx, w.provisioner))
	w.sidecarOf(endpoint)
	if replica.Focus == ofSnapshots {
		snapshots := &snapshotWorld{world: w}
		var err error
		snapshots.client, err = snapshotclient.NewForConfig(suite.Config)
		w.must(err)
		snapshots.addClass(name+"-snapshots", wire.DriverName, snapshotv1.VolumeSnapshotContentDelete, nil)
		snapshotter, err := suite.Snapshotter(w.ctx, w.provisioner)(endpoint)
		w.must(err)
		w.Cleanup(snapshotter.Stop)
	}
	node, err := suite.Client.StorageV1().CSINodes().Get(w.ctx, c.node(0), metav1.GetOptions{})
	w.must(err)
	replica.Endpoint, replica.Backend, replica.NodeID = endpoint, "gold", node.Spec.Drivers[0].NodeID
	replica.Parameters = map[string]string{"namespace": name + "-a", "storageClass": name + "-driver"}
	replica.SnapshotParameters = map[string]string{"volumeSnapshotClass": name + "-snapshots"}
	replica.MutableParameters = map[string]string{"type": "other"}
	for _, test := range tests {
		output, err := suite.CSISanity(w.ctx, test, replica)
		if err != nil {
			t.Errorf("%v:\n%s", err, output)
		}
		t.Log(output)
	}
	w.noResidue()
}
