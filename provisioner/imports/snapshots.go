package imports

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// Snapshots are the snapshots of one backend; *backends.Lifecycle implements it.
type Snapshots interface {
	// FindSnapshot reads a snapshot of any owner.
	FindSnapshot(ctx context.Context, id string) (s cinder.Snapshot, found bool, err error)
	// Volume reads a volume of any owner.
	Volume(ctx context.Context, id string) (cinder.Volume, error)
	ImportableSnapshot(s cinder.Snapshot, stamp stamps.Snapshot) error
}

// SnapshotImporter checks whether VolumeSnapshots may have snapshots that exist at
// Cinder. It changes nothing.
type SnapshotImporter struct {
	Client         kubernetes.Interface
	SnapshotClient snapshotclient.Interface
	Policy         *policy.Policy
	// Snapshots returns an error if a backend cannot be read now, and nil for a backend
	// that is left out.
	Snapshots func(backend string) (Snapshots, error)
	Cluster   string
	// ClusterUID is the UID of namespace kube-system.
	ClusterUID string
}

// SnapshotRequest describes the VolumeSnapshot that is to get a snapshot.
type SnapshotRequest struct {
	// ID is the ID of the snapshot.
	ID              string
	Namespace, Name string
	// UID is that of the VolumeSnapshot; Content is the name of its
	// VolumeSnapshotContent.
	UID, Content string
	// StorageClass names the rule that is to grant the snapshot.
	StorageClass string
}

// SnapshotPlan is an import that nothing prevents.
type SnapshotPlan struct {
	Snapshot cinder.Snapshot
	Backend  string
	// Stamp is the stamp that the snapshot gets.
	Stamp    stamps.Snapshot
	Decision policy.Decision

	request  SnapshotRequest
	importer *SnapshotImporter
	volume   cinder.Volume
}

// Plan finds the snapshot and checks everything that can be checked without a change.
// An error that is a *RefusedError, or comes from the state of the snapshot, says what
// prevents the import. A snapshot that the rule does not grant, or that was made for
// another tenant or cluster, counts as missing.
func (i *SnapshotImporter) Plan(ctx context.Context, r SnapshotRequest) (*SnapshotPlan, error) {
	asked := policy.SnapshotRequest{Namespace: r.Namespace, StorageClass: r.StorageClass}
	namespace, err := i.Client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
		return nil, refused("namespace %s does not exist, or is being deleted", r.Namespace)
	case err != nil:
		return nil, fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", r.Namespace, err)
	}
	asked.NamespaceLabels = namespace.Labels
	decision := i.Policy.DecideSnapshotImport(asked)
	if decision.Denial != nil {
		return nil, refusedBy(decision.Denial)
	}
	plan := &SnapshotPlan{request: r, importer: i}
	var from Snapshots
	for _, name := range decision.Backends {
		if from, err = i.Snapshots(name); err != nil {
			return nil, err
		}
		if from == nil {
			continue
		}
		var found bool
		if plan.Snapshot, found, err = from.FindSnapshot(ctx, r.ID); err != nil {
			return nil, err
		}
		if found {
			plan.Backend = name
			break
		}
	}
	if plan.Backend == "" {
		return nil, refusedBy(policy.NoSuchSnapshot(decision.Rule, r.ID))
	}
	plan.volume, err = from.Volume(ctx, plan.Snapshot.VolumeID)
	if err != nil && !cinder.IsKind(err, cinder.KindNotFound) {
		return nil, err
	}
	asked.Backend, asked.Import = plan.Backend, plan.existing(plan.Snapshot)
	if plan.Decision = i.Policy.DecideSnapshot(asked); plan.Decision.Denial != nil {
		return nil, refusedBy(plan.Decision.Denial)
	}
	plan.Stamp = stamps.Snapshot{
		Cluster: i.Cluster, ClusterUID: i.ClusterUID, Namespace: r.Namespace, Snapshot: r.Name, SnapshotUID: r.UID, Content: r.Content,
		Tenant: plan.Decision.Tenant, StorageClass: r.StorageClass,
	}
	if err := plan.Granted(plan.Snapshot); err != nil {
		return nil, err
	}
	if plan.volume.Encrypted {
		return nil, refused("snapshot %s is of a volume that Cinder encrypts, and nodes cannot open one with its content", plan.Snapshot.ID)
	}
	if err := from.ImportableSnapshot(plan.Snapshot, plan.Stamp); err != nil {
		return nil, err
	}
	if stamps.OfSnapshot(plan.Snapshot).Cluster != "" && !plan.Stamp.Owns(plan.Snapshot) {
		if err := plan.Unclaimed(ctx, plan.Snapshot); err != nil {
			return nil, err
		}
	}
	return plan, nil
}

func refusedBy(denial *policy.Denial) error {
	return &RefusedError{message: denial.Message, Denial: denial}
}

// existing describes a snapshot to the policy.
func (p *SnapshotPlan) existing(s cinder.Snapshot) *policy.Existing {
	return &policy.Existing{Wanted: p.request.ID, Name: s.Name, Type: p.volume.Type, Metadata: s.Metadata}
}

// Granted checks the snapshot as it is now, because somebody may rename it, or change
// its metadata, at any time.
func (p *SnapshotPlan) Granted(s cinder.Snapshot) error {
	i, stamp := p.importer, stamps.OfSnapshot(s)
	isOthers := stamp.Cluster != "" && (stamp.Cluster != i.Cluster || stamp.ClusterUID != "" && stamp.ClusterUID != i.ClusterUID || stamp.Tenant != p.Decision.Tenant)
	if !isOthers && !IsForeign(p.volume, i.Cluster, i.ClusterUID, p.Decision.Tenant) && p.Decision.Import.Grants(*p.existing(s)) {
		return nil
	}
	return refusedBy(policy.NoSuchSnapshot(p.Decision.Rule, p.request.ID))
}

// Unclaimed refuses a snapshot with a stamp of this cluster as long as Kubernetes
// has the VolumeSnapshotContent or the VolumeSnapshot that it was stamped for.
func (p *SnapshotPlan) Unclaimed(ctx context.Context, s cinder.Snapshot) error {
	stamp, from := stamps.OfSnapshot(s), p.importer.SnapshotClient.SnapshotV1()
	_, err := from.VolumeSnapshotContents().Get(ctx, stamp.Content, metav1.GetOptions{})
	switch {
	case err == nil && stamp.Content == p.request.Content:
		// Another content was made under the name of an earlier one.
	case err == nil:
		return refused("snapshot %s belongs to VolumeSnapshotContent %s, which exists; to free the snapshot, set its deletionPolicy to Retain, and delete its VolumeSnapshot and the object", s.ID, stamp.Content)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether VolumeSnapshotContent %s exists: %w", stamp.Content, err)
	}
	live, err := from.VolumeSnapshots(stamp.Namespace).Get(ctx, stamp.Snapshot, metav1.GetOptions{})
	switch {
	case err == nil && string(live.UID) == stamp.SnapshotUID && stamp.SnapshotUID != p.request.UID:
		return refused("snapshot %s belongs to VolumeSnapshot %s/%s, which exists; delete it first", s.ID, stamp.Namespace, stamp.Snapshot)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether VolumeSnapshot %s/%s exists: %w", stamp.Namespace, stamp.Snapshot, err)
	}
	return nil
}

// LeftBy returns the UID of the VolumeSnapshot that left the snapshot behind; empty if
// there is none.
func (p *SnapshotPlan) LeftBy() string {
	if uid := stamps.OfSnapshot(p.Snapshot).SnapshotUID; uid != p.request.UID {
		return uid
	}
	return ""
}

// Content returns the VolumeSnapshotContent that leads to the snapshot.
func (p *SnapshotPlan) Content(driver string, deletion snapshotv1.DeletionPolicy, mode corev1.PersistentVolumeMode) *snapshotv1.VolumeSnapshotContent {
	return record.NewImportedSnapshotContent(p.Snapshot.ID, p.request.Namespace, p.request.Name, driver, p.request.StorageClass, deletion, &mode)
}
