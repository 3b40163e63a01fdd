package app

import (
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/snapshot"
)

const (
	// snapshotWorkers take and remove snapshots.
	snapshotWorkers = 64
	// lookForSnapshots is how often to look for the snapshot CRDs while they are not
	// installed: one request each time.
	lookForSnapshots = 30 * time.Second
)

// newSnapshots makes what takes a term's snapshots.
func (a *App) newSnapshots(t *term) *snapshot.Controller {
	return snapshot.New(snapshot.Options{
		Name:              a.options.ProvisionerName,
		Cluster:           a.cluster,
		ClusterUID:        a.clusterUID,
		Policy:            a.policy.Load,
		Backends:          snapshotBackends{t.backends},
		Ledger:            t.provisioner.Ledger(),
		Client:            a.client,
		Snapshots:         a.snapshotClient,
		Claims:            a.factory.Core().V1().PersistentVolumeClaims().Lister(),
		PersistentVolumes: a.factory.Core().V1().PersistentVolumes().Lister(),
		Namespaces:        a.factory.Core().V1().Namespaces().Lister(),
		Recorder:          a.recorder,
		Caller:            t.provisioner.OnBehalfOf,
		Changed:           t.provisioner.SnapshotChanged,
		Gone:              t.provisioner.SnapshotGone,
		Workers:           snapshotWorkers,
		LookAgain:         lookForSnapshots,
		Monitor:           a.monitor,
		LongestWork:       a.longestWork,
		Logger:            a.logger,
		Metrics:           a.snapshotMetrics,
	})
}

// cachedSnapshots are those that a term's controller knows, which is made after
// the hub.
type cachedSnapshots struct{ of *term }

func (c cachedSnapshots) VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	return c.of.snapshots.VolumeSnapshot(namespace, name)
}

func (c cachedSnapshots) VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	return c.of.snapshots.VolumeSnapshotContent(name)
}

// snapshotBackends are the term's backends, as those who take snapshots see them.
type snapshotBackends struct{ *termBackends }

func (b snapshotBackends) Snapshots(name string) (snapshot.Snapshots, error) {
	lifecycle, moved, err := b.configured(name)
	if err != nil {
		return nil, err
	}
	if moved {
		b.tellMoved(name)
	}
	return lifecycle, nil
}
