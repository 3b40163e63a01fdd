package copies

import (
	"context"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/keyedmutex"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/admission"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/nodeuse"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// Options configure a Resolver.
type Options struct {
	Client            kubernetes.Interface
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	// IndexedClaims is the cache of claims, with the indexes of objects.ClaimIndexers.
	IndexedClaims cache.Indexer
	// Snapshots reads VolumeSnapshots from caches; SnapshotClient from the API server.
	Snapshots      objects.SnapshotReader
	SnapshotClient snapshotclient.Interface
	// Name is the driver's name in VolumeSnapshotContents.
	Name string
	// Cluster is the cluster ID that this cluster's PersistentVolumes record.
	Cluster string
	// Attachments lists the VolumeAttachments of a PersistentVolume. known is false until
	// the cache shows all.
	Attachments func(pv string) (attachments []nodeuse.Attachment, known bool, err error)
}

// Resolver finds the sources of claims for one term.
type Resolver struct {
	Options
	// copying keeps Live and the Protector from deciding about one source at the same
	// time. It locks the source's name.
	copying *keyedmutex.Mutex
}

// NewResolver makes the Resolver of one term.
func NewResolver(options Options) *Resolver {
	return &Resolver{Options: options, copying: keyedmutex.New()}
}

// Cached finds the source of a claim in the caches. It returns nil if the claim wants
// an empty volume.
func (r *Resolver) Cached(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*objects.Source, *policy.Denial) {
	named, refused := admission.DataSourceOf(claim, class.Parameters)
	if named == nil {
		return nil, refused
	}
	source, denial, err := r.find(claim, named, cached{r.Claims, r.PersistentVolumes}, r.Snapshots)
	if err == nil && denial == nil {
		// If the VolumeAttachments are not known yet, Live says so.
		_, denial, _ = r.keptFromCinder(source)
	}
	if err != nil {
		denial = &policy.Denial{Reason: policy.SourceNotReady, Message: err.Error()}
	}
	return source, denial
}

// Live finds the source of a claim at the API server, because the caches may be late.
// It protects the source from deletion until the claim is served; see Protector.
func (r *Resolver) Live(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (*objects.Source, *policy.Denial, error) {
	named, refused := admission.DataSourceOf(claim, class.Parameters)
	if named == nil {
		return nil, refused, nil
	}
	// The caches show the claim. A Protector that gets its turn later finds it there,
	// and one that had its turn earlier has removed the finalizer before it is read
	// here.
	done, err := r.copying.Acquire(ctx, triggerOf(claim, named).Name)
	if err != nil {
		return nil, nil, err
	}
	defer done()
	reader := &live{ctx: ctx, client: r.Client}
	source, denial, err := r.find(claim, named, reader, liveSnapshots{ctx, r.SnapshotClient})
	if err == nil && denial == nil {
		_, denial, err = r.keptFromCinder(source)
	}
	if denial != nil || err != nil {
		return nil, denial, err
	}
	if named.Kind == admission.SnapshotKind {
		return source, nil, nil // the snapshot-controller protects the sources of pending claims
	}
	return source, nil, protect(ctx, r.Client, reader.read)
}

func (r *Resolver) find(claim *corev1.PersistentVolumeClaim, named *admission.DataSource, claims objects.SourceReader, snapshots objects.SnapshotReader) (*objects.Source, *policy.Denial, error) {
	if named.Kind == admission.SnapshotKind {
		return objects.SnapshotSourceOf(claim, named, r.Name, r.Cluster, snapshots)
	}
	return objects.SourceOf(claim, named, r.Cluster, claims)
}

// keptFromCinder denies the copy of a volume that was taken from a lost node: the node
// that has it now keeps out Cinder, too, so the copy would end in error.
func (r *Resolver) keptFromCinder(source *objects.Source) (node string, denied *policy.Denial, err error) {
	if source.Decided.Mode != policy.ModeCSI || source.Content.Volume == nil {
		return "", nil, nil
	}
	attachments, known, err := r.Attachments(source.Content.Volume.Stamp.PV)
	if err == nil && !known {
		err = fmt.Errorf("the VolumeAttachments are not read yet, so it is not known whether Cinder can copy %s", source.Decided.Name)
	}
	taken := slices.IndexFunc(attachments, func(a nodeuse.Attachment) bool { return a.Taken })
	if err != nil || taken < 0 {
		return "", nil, err
	}
	node = attachments[taken].Node
	return node, &policy.Denial{Reason: policy.SourceNotReady, Message: fmt.Sprintf("%s, whose content this claim asks for, was taken from a lost node, so node %s has its image mapped in a way that keeps out Cinder, too; it can be copied once the lost node has let go of it and the pods on node %s have ended and started again",
		source.Decided.Name, node, node)}, nil
}

// TriggersOf returns what may unblock a claim that was denied because of its source.
func (r *Resolver) TriggersOf(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) []parking.Trigger {
	named, _ := admission.DataSourceOf(claim, class.Parameters)
	if named == nil {
		return nil
	}
	triggers := []parking.Trigger{triggerOf(claim, named)}
	source, denial, err := r.find(claim, named, cached{r.Claims, r.PersistentVolumes}, r.Snapshots)
	if err == nil && denial == nil {
		if node, _, _ := r.keptFromCinder(source); node != "" {
			triggers = append(triggers, parking.Trigger{Kind: parking.Node, Name: node})
		}
	}
	return triggers
}

// triggerOf returns what fires when a claim's source has changed.
func triggerOf(claim *corev1.PersistentVolumeClaim, named *admission.DataSource) parking.Trigger {
	if named.Kind == admission.SnapshotKind {
		return parking.SourceSnapshot(claim.Namespace, named.Name)
	}
	return parking.SourceClaim(claim.Namespace, named.Name)
}

// cached reads from the caches.
type cached struct {
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

func (c cached) Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	return c.claims.PersistentVolumeClaims(namespace).Get(name)
}

func (c cached) PersistentVolume(name string) (*corev1.PersistentVolume, error) {
	return c.volumes.Get(name)
}

// live reads from the API server, and keeps the claim that it read.
type live struct {
	ctx    context.Context
	client kubernetes.Interface
	read   *corev1.PersistentVolumeClaim
}

func (l *live) Claim(namespace, name string) (claim *corev1.PersistentVolumeClaim, err error) {
	l.read, err = l.client.CoreV1().PersistentVolumeClaims(namespace).Get(l.ctx, name, metav1.GetOptions{})
	return l.read, err
}

func (l *live) PersistentVolume(name string) (*corev1.PersistentVolume, error) {
	return l.client.CoreV1().PersistentVolumes().Get(l.ctx, name, metav1.GetOptions{})
}

// liveSnapshots reads from the API server.
type liveSnapshots struct {
	ctx    context.Context
	client snapshotclient.Interface
}

func (l liveSnapshots) VolumeSnapshot(namespace, name string) (*snapshotv1.VolumeSnapshot, error) {
	return l.client.SnapshotV1().VolumeSnapshots(namespace).Get(l.ctx, name, metav1.GetOptions{})
}

func (l liveSnapshots) VolumeSnapshotContent(name string) (*snapshotv1.VolumeSnapshotContent, error) {
	return l.client.SnapshotV1().VolumeSnapshotContents().Get(l.ctx, name, metav1.GetOptions{})
}
