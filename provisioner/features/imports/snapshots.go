package imports

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// Snapshots are the snapshots of one backend; backends.Snapshots implements it.
type Snapshots interface {
	// FindSnapshot reads a snapshot of any owner.
	FindSnapshot(ctx context.Context, id string) (s cinder.Snapshot, found bool, err error)
	Look(ctx context.Context, target backends.Target) (cinder.Volume, cinder.Place, error)
	ImportableSnapshot(s cinder.Snapshot, stamp stamps.Snapshot) error
}

// SnapshotImporter checks whether VolumeSnapshots may have snapshots that exist at
// Cinder. It changes nothing.
type SnapshotImporter struct {
	Client         kubernetes.Interface
	SnapshotClient snapshotclient.Interface
	Policy         *policy.Policy
	// Snapshots returns those of a backend that an ID is one of: its snapshots or its
	// backups. It returns an error if the backend cannot be read now, and nil for one that
	// is left out.
	Snapshots func(backend, id string) (Snapshots, error)
	Cluster   string
	// ClusterUID is the UID of namespace kube-system.
	ClusterUID string
}

// SnapshotRequest describes the VolumeSnapshot that is to get a snapshot.
type SnapshotRequest struct {
	// ID is the ID of the snapshot.
	ID string
	// Backend has the snapshot; empty for any of those that the policy grants.
	Backend         string
	Namespace, Name string
	// UID is that of the VolumeSnapshot; Content is the name of its
	// VolumeSnapshotContent.
	UID, Content string
	// StorageClass names the rule that is to grant the snapshot. If it is empty, the
	// stamp of a snapshot that was kept names the rule.
	StorageClass string
}

// SnapshotPlan is an import that nothing prevents.
type SnapshotPlan struct {
	Snapshot cinder.Snapshot
	// Volume is the snapshot's; zero if it is gone.
	Volume  cinder.Volume
	Backend string
	// Stamp is the stamp that the snapshot gets.
	Stamp    stamps.Snapshot
	Decision policy.Decision

	request  SnapshotRequest
	importer *SnapshotImporter
	// asked is the request to the policy; found is its decision before the search.
	asked policy.SnapshotRequest
	found policy.Decision
}

// Plan finds the snapshot and checks everything that can be checked without a change.
// An error that is a *RefusedError, or comes from the state of the snapshot, says what
// prevents the import. A snapshot that was made for another tenant or cluster, or that
// neither the rule grants nor the tenant kept, counts as missing.
func (i *SnapshotImporter) Plan(ctx context.Context, r SnapshotRequest) (*SnapshotPlan, error) {
	plan := &SnapshotPlan{request: r, importer: i, asked: policy.SnapshotRequest{Namespace: r.Namespace, StorageClass: r.StorageClass}}
	namespace, err := i.Client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && namespace.DeletionTimestamp != nil:
		return nil, refused("namespace %s does not exist, or is being deleted", r.Namespace)
	case err != nil:
		return nil, fmt.Errorf("cannot read the labels of namespace %s, which determine its tenant: %w", r.Namespace, err)
	}
	plan.asked.NamespaceLabels = namespace.Labels
	if plan.found = i.Policy.DecideSnapshotImport(plan.asked); plan.found.Denial != nil {
		return nil, refusedBy(plan.found.Denial)
	}
	from, err := plan.find(ctx)
	if err != nil {
		return nil, err
	}
	plan.Volume, _, err = from.Look(ctx, backends.Target{VolumeID: plan.Snapshot.VolumeID})
	if err != nil && !cinder.IsKind(err, backends.KindElsewhere) {
		return nil, err
	}
	if plan.Decision, err = plan.decide(plan.Snapshot); err != nil {
		return nil, err
	}
	plan.Stamp = stamps.Snapshot{
		Cluster: i.Cluster, ClusterUID: i.ClusterUID, Namespace: r.Namespace, Snapshot: r.Name, SnapshotUID: r.UID, Content: r.Content,
		Tenant: plan.Decision.Tenant, StorageClass: plan.asked.StorageClass,
	}
	if _, byNodes := plan.Volume.Metadata[stamps.KeyEncryption]; (byNodes || plan.Volume.Encrypted) && backends.IsBackup(plan.Snapshot.ID) {
		return nil, refused("snapshot %s is of an encrypted volume, and such backups cannot be imported", plan.Snapshot.ID)
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

// find finds the snapshot on one of the backends where the policy grants one.
func (p *SnapshotPlan) find(ctx context.Context) (from Snapshots, err error) {
	var searched []string
	for _, name := range p.found.Backends {
		if p.request.Backend != "" && p.request.Backend != name {
			continue
		}
		if from, err = p.importer.Snapshots(name, p.request.ID); err != nil {
			return nil, err
		}
		if from == nil {
			continue
		}
		searched = append(searched, name)
		var found bool
		if p.Snapshot, found, err = from.FindSnapshot(ctx, p.request.ID); err != nil {
			return nil, err
		}
		if found {
			p.Backend, p.asked.Backend = name, name
			return from, nil
		}
	}
	if len(searched) == 0 {
		return nil, p.noSuch("backend %s is not one that the policy grants tenant %s here: %s", p.request.Backend, p.found.Tenant, strings.Join(p.found.Backends, ", "))
	}
	return nil, p.noSuch("the projects of the backends have no snapshot with this ID: %s", strings.Join(searched, ", "))
}

// noSuch refuses a snapshot that counts as missing. The rest of the arguments say why
// to those who may read all objects of the cluster.
func (p *SnapshotPlan) noSuch(format string, arguments ...any) error {
	why := fmt.Sprintf(format, arguments...)
	if p.asked.StorageClass == "" {
		return &RefusedError{Why: why, message: fmt.Sprintf(
			"tenant %s has kept no snapshot with the ID %q, and VolumeSnapshotContent %s does not say which rule grants another one; correct its spec.source.snapshotHandle, or name the StorageClass of the rule in the annotation %s",
			p.found.Tenant, p.request.ID, p.request.Content, objects.AnnotationStorageClass)}
	}
	denial := p.found.NoSuchSnapshot(p.request.ID)
	return &RefusedError{message: denial.Message, Denial: denial, Why: why}
}

// decide applies the policy to the snapshot as it was read. It belongs to the tenant of
// its stamp; if it has none, to that of its volume's stamp.
func (p *SnapshotPlan) decide(s cinder.Snapshot) (policy.Decision, error) {
	i, stamp, asked := p.importer, stamps.OfSnapshot(s), p.asked
	if backends.IsBackup(p.request.ID) {
		asked.Parameters = map[string]string{policy.ParameterType: policy.TypeBackup}
	}
	asked.Import = &policy.Existing{Wanted: p.request.ID, Name: s.Name, Type: p.Volume.Type, Metadata: s.Metadata}
	switch {
	case stamp.Cluster == "" && IsForeign(p.Volume, i.Cluster, i.ClusterUID, p.found.Tenant):
		of := stamps.Of(p.Volume)
		return policy.Decision{}, p.noSuch("it has no stamp, and its volume %s carries that of tenant %q in cluster %q; if nothing there needs the volume, remove the stamp: openstack volume unset --property %s %s",
			p.Volume.ID, of.Tenant, of.Cluster, stamps.KeyCluster, p.Volume.ID)
	case stamp.Cluster == "":
	case stamp.Cluster != i.Cluster:
		return policy.Decision{}, p.noSuch("it carries the stamp of cluster %q, VolumeSnapshot %s/%s; if nothing there needs it, remove the stamp: openstack volume snapshot unset --property %s %s",
			stamp.Cluster, stamp.Namespace, stamp.Snapshot, stamps.KeyCluster, s.ID)
	case stamp.ClusterUID != "" && stamp.ClusterUID != i.ClusterUID:
		return policy.Decision{}, p.noSuch("it carries the stamp of another cluster with the clusterID %q, whose namespace kube-system has the UID %s, VolumeSnapshot %s/%s; if that cluster is gone for good, give the snapshot to this one: openstack volume snapshot set --property %s=%s %s",
			stamp.Cluster, stamp.ClusterUID, stamp.Namespace, stamp.Snapshot, stamps.KeyClusterUID, i.ClusterUID, s.ID)
	default:
		if tenant, ok := i.Policy.Tenant(p.found.Tenant); !ok || !tenant.MayTakeUp(stamp.Tenant) {
			return policy.Decision{}, p.noSuch("it was made for tenant %q, VolumeSnapshot %s/%s; name it in a namespace of that tenant, or of a tenant with restoreAnySnapshot", stamp.Tenant, stamp.Namespace, stamp.Snapshot)
		}
		asked.Import.KeptBy, asked.StorageClass = stamp.Tenant, cmp.Or(asked.StorageClass, stamp.StorageClass)
	}
	if asked.StorageClass == "" {
		return policy.Decision{}, p.noSuch("it has no stamp of this program")
	}
	decision := i.Policy.DecideSnapshot(asked)
	if decision.Denial == nil {
		p.asked.StorageClass = asked.StorageClass
		return decision, nil
	}
	switch decision.Denial.Reason {
	case policy.ImportNotGranted:
		return decision, p.noSuch("it has no stamp of this program")
	case policy.ImportedSnapshotNotFound:
		return decision, p.noSuch("its name, the type of its volume or its metadata are not what the rule imports")
	}
	return decision, refusedBy(decision.Denial)
}

// Granted checks the snapshot as it is now, because somebody may rename it, or change
// its metadata, at any time.
func (p *SnapshotPlan) Granted(s cinder.Snapshot) error {
	_, err := p.decide(s)
	return err
}

// Unclaimed refuses a snapshot with a stamp of this cluster as long as Kubernetes
// has the VolumeSnapshotContent or the VolumeSnapshot that it was stamped for.
func (p *SnapshotPlan) Unclaimed(ctx context.Context, s cinder.Snapshot) error {
	stamp, from := stamps.OfSnapshot(s), p.importer.SnapshotClient.SnapshotV1()
	content, err := from.VolumeSnapshotContents().Get(ctx, stamp.Content, metav1.GetOptions{})
	switch {
	case err == nil && (stamp.Content == p.request.Content || namesOther(content, s.ID)):
		// Another content was made under the name of an earlier one.
	case err == nil:
		refusal := &RefusedError{Content: stamp.Content, message: fmt.Sprintf(
			"snapshot %s belongs to VolumeSnapshotContent %s, which exists; to free the snapshot, set its deletionPolicy to Retain, and delete its VolumeSnapshot and the object", s.ID, stamp.Content)}
		if content.DeletionTimestamp != nil {
			refusal.message = fmt.Sprintf("snapshot %s belongs to VolumeSnapshotContent %s, which is being deleted with the deletionPolicy %s; the snapshot is free once the object is gone, unless it is deleted with it",
				s.ID, stamp.Content, content.Spec.DeletionPolicy)
		}
		return refusal
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether VolumeSnapshotContent %s exists: %w", stamp.Content, err)
	}
	live, err := from.VolumeSnapshots(stamp.Namespace).Get(ctx, stamp.Snapshot, metav1.GetOptions{})
	switch {
	case err == nil && string(live.UID) == stamp.SnapshotUID && stamp.SnapshotUID != p.request.UID:
		return &RefusedError{Snapshot: stamp.Namespace + "/" + stamp.Snapshot, message: fmt.Sprintf(
			"snapshot %s belongs to VolumeSnapshot %s/%s, which exists; delete it first", s.ID, stamp.Namespace, stamp.Snapshot)}
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("cannot tell whether VolumeSnapshot %s/%s exists: %w", stamp.Namespace, stamp.Snapshot, err)
	}
	return nil
}

// namesOther reports whether a content names snapshots, but not this one.
func namesOther(content *snapshotv1.VolumeSnapshotContent, id string) bool {
	named := objects.SnapshotHandlesOf(content)
	return len(named) > 0 && !slices.Contains(named, id)
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
	content := objects.NewImportedSnapshotContent(p.Snapshot.ID, p.request.Namespace, p.request.Name, driver, p.request.StorageClass, deletion, &mode)
	if objects.IsCSISnapshot(content) {
		handle := objects.SnapshotHandle{Backend: p.Backend, ID: p.Snapshot.ID}.String()
		content.Spec.Source.SnapshotHandle = &handle
	}
	return content
}
