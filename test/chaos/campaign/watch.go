package campaign

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordinationlisters "k8s.io/client-go/listers/coordination/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/checker"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// Annotations of PersistentVolumes and Secrets, as operators read them.
const (
	annotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	annotationVolume        = policy.StampPrefix + "volume-id"
	annotationCluster       = policy.StampPrefix + "cluster"
	annotationForPV         = policy.StampPrefix + "persistent-volume"
	annotationEndpoint      = policy.StampPrefix + "endpoint"
	annotationProject       = policy.StampPrefix + "project-id"
)

// watch follows claims, PersistentVolumes and the replicas' lease. While the
// API server is away it shows the last known state.
type watch struct {
	names  names
	client kubernetes.Interface

	mu     sync.Mutex
	bound  map[types.UID]bool
	claims corelisters.PersistentVolumeClaimLister
	pvs    corelisters.PersistentVolumeLister
	leases coordinationlisters.LeaseNamespaceLister
	// attachments are the VolumeAttachments.
	attachments storagelisters.VolumeAttachmentLister
	cancel      context.CancelFunc
}

func newWatch(client kubernetes.Interface, n names) *watch {
	return &watch{names: n, client: client, bound: map[types.UID]bool{}, cancel: func() {}}
}

// start begins to watch, or begins again: informers that have failed a few
// times take up to a minute to retry.
func (w *watch) start(ctx context.Context) error {
	running, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactory(w.client, 0)
	end := func() {
		cancel()
		factory.Shutdown()
	}
	claims, pvs := factory.Core().V1().PersistentVolumeClaims(), factory.Core().V1().PersistentVolumes()
	leases := factory.Coordination().V1().Leases()
	attachments := factory.Storage().V1().VolumeAttachments()
	pvs.Informer()
	leases.Informer()
	attachments.Informer()
	_, err := claims.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.note,
		UpdateFunc: func(_, claim any) { w.note(claim) },
	})
	if err != nil {
		end()
		return err
	}
	factory.Start(running.Done())
	for kind, synced := range factory.WaitForCacheSync(running.Done()) {
		if !synced {
			end()
			return fmt.Errorf("cannot read %s from the API server", kind)
		}
	}
	w.mu.Lock()
	before := w.cancel
	w.claims, w.pvs, w.leases, w.cancel = claims.Lister(), pvs.Lister(), leases.Lister().Leases(harness.Namespace), end
	w.attachments = attachments.Lister()
	w.mu.Unlock()
	before()
	return nil
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel()
}

// term returns the leader according to the last seen lease, and since when it
// leads.
func (w *watch) term() (holder string, since time.Time) {
	w.mu.Lock()
	leases := w.leases
	w.mu.Unlock()
	lease, err := leases.Get(w.names.lease())
	if err != nil {
		return "", time.Time{}
	}
	return termOf(lease)
}

// termNow returns the same as term, but asks the API server.
func (w *watch) termNow(ctx context.Context) (holder string, since time.Time, err error) {
	lease, err := w.client.CoordinationV1().Leases(harness.Namespace).Get(ctx, w.names.lease(), metav1.GetOptions{})
	if err != nil {
		return "", time.Time{}, err
	}
	holder, since = termOf(lease)
	return holder, since, nil
}

func termOf(lease *coordinationv1.Lease) (holder string, since time.Time) {
	if lease.Spec.AcquireTime == nil || lease.Spec.HolderIdentity == nil {
		return "", time.Time{}
	}
	return *lease.Spec.HolderIdentity, lease.Spec.AcquireTime.Time
}

func (w *watch) note(object any) {
	claim, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok || !w.names.isNamespace(claim.Namespace) || claim.Status.Phase != corev1.ClaimBound {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bound[claim.UID] = true
}

func (w *watch) everBound() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.bound)
}

// recorded lists the PersistentVolumes that are not being deleted, and the
// claims that are bound.
func (w *watch) recorded() (pvs []checker.PV, bound map[string]bool) {
	bound = map[string]bool{}
	w.mu.Lock()
	claimLister, pvLister := w.claims, w.pvs
	w.mu.Unlock()
	claims, err := claimLister.List(labels.Everything())
	if err != nil {
		return nil, bound // the cache of an informer never fails
	}
	for _, claim := range claims {
		if claim.Status.Phase == corev1.ClaimBound {
			bound[string(claim.UID)] = true
		}
	}
	all, err := pvLister.List(labels.Everything())
	if err != nil {
		return nil, bound
	}
	for _, pv := range all {
		if w.names.made(pv) && pv.DeletionTimestamp == nil {
			pvs = append(pvs, pvOf(pv))
		}
	}
	return pvs, bound
}

// pods lists the VolumeAttachments of pods.
func (w *watch) pods() []*storagev1.VolumeAttachment {
	w.mu.Lock()
	lister := w.attachments
	w.mu.Unlock()
	all, err := lister.List(labels.Everything())
	if err != nil {
		return nil // the cache of an informer never fails
	}
	return slices.DeleteFunc(all, func(a *storagev1.VolumeAttachment) bool { return !w.names.isPods(a) })
}

// volumes lists the PersistentVolumes, except those of movers and of the CSI driver:
// nobody breaks what pods use.
func (w *watch) volumes() []*corev1.PersistentVolume {
	w.mu.Lock()
	lister := w.pvs
	w.mu.Unlock()
	all, err := lister.List(labels.Everything())
	if err != nil {
		return nil // the cache of an informer never fails
	}
	all = slices.DeleteFunc(all, func(pv *corev1.PersistentVolume) bool { return !w.names.made(pv) || w.names.isOthers(pv) })
	slices.SortFunc(all, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// isOthers reports whether a PersistentVolume is that of a pod, of a mover or of a machine.
func (n names) isOthers(pv *corev1.PersistentVolume) bool {
	return pv.Spec.CSI != nil || n.isApart(pv.Spec.StorageClassName)
}

// made reports whether the seed's program made a PersistentVolume.
func (n names) made(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[annotationProvisionedBy] == n.provisioner()
}

func pvOf(pv *corev1.PersistentVolume) checker.PV {
	out := checker.PVOf(pv)
	if pv.Annotations[annotationEndpoint] == otherLabEndpoint {
		out.Place = otherLabEndpoint
	}
	return out
}

// pollInterval is the pause between two samples.
const pollInterval = 100 * time.Millisecond

// sample watches the course until the returned function is called.
func (w *world) sample(ctx context.Context) (stop func()) {
	sampling, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for sleep(sampling, pollInterval) {
			w.look()
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-ended
	})
}

// look takes one sample. The order of its parts is what makes it a proof.
func (w *world) look() {
	_, term := w.watch.term()
	pvs, bound := w.watch.recorded()
	w.fates.NoteSeen(pvs)
	recorded, volumeOf := map[string]bool{}, map[string]string{}
	for _, pv := range pvs {
		recorded[pv.VolumeID] = true
		volumeOf[pv.Name] = pv.VolumeID
	}
	var attached []checker.Attachment
	for _, a := range w.watch.pods() {
		if a.Status.Attached {
			w.attachments.NoteAttached(a.UID)
		}
		attached = append(attached, w.attachmentOf(a, volumeOf))
	}
	w.mu.Lock()
	foreign := maps.Clone(w.foreign)
	elsewhere := w.elsewhere
	w.elsewhere = nil
	w.mu.Unlock()
	at, volumes := time.Now(), w.sim.Volumes()
	known := len(w.course.Findings())
	w.course.Look(checker.Sample{
		At:  at,
		PVs: pvs, Bound: bound, Volumes: volumes, Foreign: foreign,
		Asked: func(uid string) bool { return w.claims.DeletionRequested(types.UID(uid)) },
		Fates: w.fates.All(), TooLate: w.tooLate,
		Writes:      w.writes(),
		Attachments: attached, AttachmentAsked: func(uid string) bool { return w.attachments.DeletionRequested(types.UID(uid)) },
	})
	for _, f := range elsewhere {
		w.course.Note(f)
	}
	w.mu.Lock()
	exceeded := w.quotas.Exceeded(volumes, func(kind policy.ScopeKind, v cindersim.Volume) bool {
		if w.late[v.Metadata[checker.StampClaimUID]] || !recorded[v.ID] && w.isOutOfSight(v) {
			return false
		}
		// A tenant does not wait for a backend that does not answer, where an earlier
		// leader may have left unrecorded volumes.
		return kind == policy.BackendScope || recorded[v.ID] || v.Created.After(term)
	})
	w.mu.Unlock()
	for _, f := range exceeded {
		w.course.Note(f)
	}
	w.lookAtMemory()
	for _, f := range w.course.Findings()[known:] {
		w.timeline.Say("FOUND %s: %s: %s", f.Kind, f.Object, strings.TrimSpace(firstLine(f.Text)))
	}
}

// isOutOfSight reports whether the program may not know of an unrecorded
// volume: it forgets what it knows of volumes when a backend leads elsewhere.
// The caller has the world's mutex.
func (w *world) isOutOfSight(v cindersim.Volume) bool {
	const reload = 3 * time.Second
	if v.Created.Before(w.moved.Add(reload)) {
		return true
	}
	return w.isOther[v.Project]
}
