// Package schedules takes snapshots of volumes again and again, as the rules of the policy say
// (protect), and deletes old ones when newer ones are good. They are VolumeSnapshots in the
// namespaces of the claims, which tenants see, restore and delete like their own. Whatever
// takes and removes snapshots for tenants does it for these, too, inside the same quotas.
//
// Nothing is remembered between terms: the names, labels and times of the VolumeSnapshots say
// what was done. It needs the component snapshot-schedules, which has the rights.
package schedules

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	eventrecord "k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// ReasonLate is that of events about claims without a good snapshot for too long.
const ReasonLate = "ScheduledSnapshotLate"

const (
	// lookEvery is how often the caches are looked through for what is due.
	lookEvery = 10 * time.Second
	workers   = 4
	// listsPerSecond bounds what a new schedule, a leader after a night without one, or an
	// API server that refuses everything causes. A write follows a list.
	listsPerSecond = 10
	// refusedAtOnce bounds an attempt in which others refuse deletions.
	refusedAtOnce  = 3
	requestTimeout = 10 * time.Second
)

// Snapshots are the cluster's VolumeSnapshots.
type Snapshots interface {
	// Scheduled returns those that schedules made, from the cache, and false until all are
	// known.
	Scheduled() (made []*snapshotv1.VolumeSnapshot, known bool)
}

// Options configure a Controller.
type Options struct {
	// Name is the provisioner's name, and Cluster the cluster's ID.
	Name, Cluster     string
	Policy            func() *policy.Policy
	Snapshots         Snapshots
	Client            snapshotclient.Interface
	Kubernetes        kubernetes.Interface
	Claims            corelisters.PersistentVolumeClaimLister
	PersistentVolumes corelisters.PersistentVolumeLister
	Namespaces        corelisters.NamespaceLister
	Recorder          eventrecord.EventRecorder
	// Tell reports to operators.
	Tell    func(message string)
	Metrics *Metrics
	Logger  *slog.Logger
	// Board is the term's.
	Board *parking.Board

	// Monitor watches the work. MaxWorkTime exceeds anything that the work may wait for.
	Monitor     *liveness.Monitor
	MaxWorkTime liveness.Bound
}

// Controller works for one term.
type Controller struct {
	Options
	loop  *worker.Loop[types.NamespacedName]
	limit flowcontrol.RateLimiter
	// without is since when this term knows that a claim has a schedule and no good snapshot
	// of it. Only look uses it.
	without map[claimSchedule]time.Time
	// late are the claims whose snapshots are late.
	late *parking.Lot[*corev1.PersistentVolumeClaim]

	mu sync.Mutex
	// failures are by the claims whose last attempt failed, which the loop retries.
	failures map[types.NamespacedName]error
	// told means that operators know of missing rights.
	told bool
}

// claimSchedule is a schedule of a claim.
type claimSchedule struct {
	claim    types.UID
	schedule string
}

// New makes the Controller of one term.
func New(options Options) *Controller {
	c := &Controller{
		Options: options, late: parking.NewLot[*corev1.PersistentVolumeClaim](), failures: map[types.NamespacedName]error{},
		limit: flowcontrol.NewTokenBucketRateLimiter(listsPerSecond, 2*listsPerSecond),
	}
	c.loop = worker.New(worker.Options[types.NamespacedName]{
		Name: "schedules", Workers: workers, Do: c.do,
		Describe: func(claim types.NamespacedName) string {
			return "the worker that makes scheduled VolumeSnapshots of claim " + claim.String()
		},
		Board: options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
	})
	return c
}

// Run works until the context ends.
func (c *Controller) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { c.loop.Run(ctx) })
	defer c.Metrics.forget()
	defer group.Wait()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			c.look(time.Now())
		}
	}
}

// Parked returns the claims whose snapshots are late.
func (c *Controller) Parked() *parking.Lot[*corev1.PersistentVolumeClaim] { return c.late }

// look queues the claims for which something is due, according to the caches, and finds
// those whose snapshots are late.
func (c *Controller) look(now time.Time) {
	inForce := c.Policy()
	if !hasSchedules(inForce) {
		c.without = nil
		c.settle(nil, nil)
		return
	}
	made, known := c.Snapshots.Scheduled()
	claims, err := c.Claims.List(labels.Everything())
	if err != nil {
		return // the cache never returns an error
	}
	taken := map[types.UID][]*snapshotv1.VolumeSnapshot{}
	for _, one := range made {
		_, claim := objects.ScheduleOf(one.Labels)
		taken[claim] = append(taken[claim], one)
	}
	restored := restoredBy(claims)
	without := map[claimSchedule]time.Time{}
	late, tenants := map[types.UID]bool{}, map[string]int{}
	for _, claim := range claims {
		of, tenant, schedules := c.schedulesOf(inForce, claim)
		key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
		for _, s := range schedules {
			p := planOf(of, s, ofSchedule(of, s, taken[claim.UID]), restored, now)
			if p.never {
				// The volume may be older than its schedule.
				this := claimSchedule{claim.UID, s.Name}
				since, seen := c.without[this]
				if !seen {
					since = now
				}
				if p.waits != "" && p.waitsSince.Before(since) {
					since = p.waitsSince // an earlier leader took it
				}
				without[this] = since
				p.good = later(p.good, since.Add(-s.Every))
			}
			if known && (p.take != "" || len(p.expired) > 0) && c.failureOf(key) == nil {
				c.loop.Add(key)
			}
			if now.Sub(p.good) > lateAfter(s) && !late[claim.UID] {
				late[claim.UID] = true
				tenants[tenant]++
				c.report(claim, s, p, known)
			}
		}
	}
	c.without = without
	c.settle(late, tenants)
}

// settle drops what is late no longer, and shows the rest.
func (c *Controller) settle(late map[types.UID]bool, tenants map[string]int) {
	for _, one := range c.late.List() {
		if uid := one.Object.UID; !late[uid] {
			c.late.Forget(uid)
		}
	}
	c.Metrics.show(tenants)
}

func hasSchedules(p *policy.Policy) bool {
	return slices.ContainsFunc(p.Tenants, func(t policy.Tenant) bool {
		return slices.ContainsFunc(t.Classes, func(rule policy.Class) bool { return len(rule.Protect) > 0 })
	})
}

// schedulesOf returns the schedules for a claim's volume; none if the claim has none of this
// program's.
func (c *Controller) schedulesOf(p *policy.Policy, claim *corev1.PersistentVolumeClaim) (protected, string, []policy.Schedule) {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return protected{}, "", nil
	}
	pv, err := c.PersistentVolumes.Get(claim.Spec.VolumeName)
	if err != nil || !objects.IsOurs(pv) || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return protected{}, "", nil
	}
	namespace, err := c.Namespaces.Get(claim.Namespace)
	if err != nil || namespace.DeletionTimestamp != nil {
		return protected{}, "", nil
	}
	tenant, denial := p.TenantOf(namespace.Name, namespace.Labels)
	if denial != nil {
		return protected{}, "", nil
	}
	schedules := tenant.SchedulesOf(pv.Spec.StorageClassName, claim.Labels[objects.LabelProtect])
	if len(schedules) == 0 {
		return protected{}, "", nil
	}
	origin, err := objects.OriginOf(pv)
	if err != nil || origin.Cluster != c.Cluster || !origin.CSI && pv.Annotations[objects.AnnotationProvisionedBy] != c.Name {
		return protected{}, "", nil
	}
	return protected{claim.Namespace, claim.Name, claim.UID, claim.CreationTimestamp.Time}, tenant.Name, schedules
}

// ofSchedule returns the VolumeSnapshots that a schedule made of a volume.
func ofSchedule(of protected, s policy.Schedule, taken []*snapshotv1.VolumeSnapshot) []*snapshotv1.VolumeSnapshot {
	return slices.DeleteFunc(slices.Clone(taken), func(one *snapshotv1.VolumeSnapshot) bool {
		return !isOf(of, s, one)
	})
}

func isOf(of protected, s policy.Schedule, one *snapshotv1.VolumeSnapshot) bool {
	schedule, uid := objects.ScheduleOf(one.Labels)
	claim := one.Spec.Source.PersistentVolumeClaimName
	return one.Namespace == of.Namespace && schedule == s.Name && uid == of.UID && claim != nil && *claim == of.Claim
}

// restoredBy returns the VolumeSnapshots of which claims wait for a copy. The provisioner makes
// none of one that is being deleted.
func restoredBy(claims []*corev1.PersistentVolumeClaim) map[types.NamespacedName]bool {
	restored := map[types.NamespacedName]bool{}
	for _, claim := range claims {
		if claim.Status.Phase != corev1.ClaimPending {
			continue
		}
		if from := claim.Spec.DataSource; from != nil {
			restored[types.NamespacedName{Namespace: claim.Namespace, Name: from.Name}] = true
		}
		if from := claim.Spec.DataSourceRef; from != nil {
			namespace := claim.Namespace
			if from.Namespace != nil {
				namespace = *from.Namespace
			}
			restored[types.NamespacedName{Namespace: namespace, Name: from.Name}] = true
		}
	}
	return restored
}

// report says on a claim, once, that its snapshots are late.
func (c *Controller) report(claim *corev1.PersistentVolumeClaim, s policy.Schedule, p plan, known bool) {
	message := fmt.Sprintf("schedule %s has taken no good snapshot since %s, though one is due every %s", s.Name, p.good.UTC().Format(time.RFC3339), s.Period())
	if p.never {
		message = fmt.Sprintf("schedule %s has taken no good snapshot yet, though one is due every %s", s.Name, s.Period())
	}
	failed := c.failureOf(types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name})
	switch {
	case !known:
		message += ": the VolumeSnapshots of the cluster are not known; their CRDs may be missing"
	case p.waits != "":
		message += fmt.Sprintf(": VolumeSnapshot %s is not ready; its events say why", p.waits)
	case failed != nil:
		message += ": " + failed.Error()
	}
	c.late.Park(claim, parking.Failing)
	if c.late.IsNews(claim.UID, ReasonLate, message, false) {
		described := claim.DeepCopy()
		described.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"))
		c.Recorder.Event(described, corev1.EventTypeWarning, ReasonLate, message)
		c.Logger.Warn("The snapshots of a claim are late", "claim", claim.Namespace+"/"+claim.Name, "why", message)
	}
}
