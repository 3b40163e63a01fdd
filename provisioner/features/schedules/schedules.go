// Package schedules takes snapshots of volumes again and again, as the rules of the policy say
// (protect), and deletes old ones when newer ones are good. They are VolumeSnapshots and
// VolumeGroupSnapshots in the namespaces of the claims, which tenants see, restore and delete
// like their own. Whatever takes and removes snapshots for tenants does it for these, too,
// inside the same quotas.
//
// Nothing is remembered between terms: the names, labels and times of these objects say what
// was done. It needs the component snapshot-schedules, which has the rights.
package schedules

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
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

// Snapshots are the cluster's VolumeSnapshots and VolumeGroupSnapshots, from the cache.
type Snapshots interface {
	// Scheduled returns the VolumeSnapshots that schedules made, and false until all are
	// known; ScheduledGroups does that for VolumeGroupSnapshots.
	Scheduled() (made []*snapshotv1.VolumeSnapshot, known bool)
	ScheduledGroups() (made []*groupv1.VolumeGroupSnapshot, known bool)
	// VolumesOfGroup returns the handles of the volumes of a VolumeGroupSnapshot; nil if they
	// are not known.
	VolumesOfGroup(group types.UID) []string
	// VolumeSnapshotClass returns an error until all classes are known.
	VolumeSnapshotClass(name string) (*snapshotv1.VolumeSnapshotClass, error)
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
	loop  *worker.Loop[target]
	limit flowcontrol.RateLimiter
	// without is since when this term knows that a series has no good snapshot. Only look
	// uses it.
	without map[series]time.Time
	// late are the claims whose snapshots are late.
	late *parking.Lot[*corev1.PersistentVolumeClaim]

	mu sync.Mutex
	// failures are by the targets whose last attempt failed, which the loop retries.
	failures map[target]error
	// told means that operators know of missing rights.
	told bool
}

// New makes the Controller of one term.
func New(options Options) *Controller {
	c := &Controller{
		Options: options, late: parking.NewLot[*corev1.PersistentVolumeClaim](), failures: map[target]error{},
		limit: flowcontrol.NewTokenBucketRateLimiter(listsPerSecond, 2*listsPerSecond),
	}
	c.loop = worker.New(worker.Options[target]{
		Name: "schedules", Workers: workers, Do: c.do,
		Describe: func(of target) string { return "the worker that makes scheduled snapshots of " + of.String() },
		Board:    options.Board, Monitor: options.Monitor, MaxWorkTime: options.MaxWorkTime,
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

// look queues the targets for which something is due, according to the caches, and finds the
// claims whose snapshots are late.
func (c *Controller) look(now time.Time) {
	inForce := c.Policy()
	if !hasSchedules(inForce) {
		c.without = nil
		c.settle(nil, nil)
		return
	}
	claims, err := c.Claims.List(labels.Everything())
	if err != nil {
		return // the cache never returns an error
	}
	taken, known := c.taken()
	restored := restoredBy(claims)
	without := map[series]time.Time{}
	late, tenants := map[types.UID]bool{}, map[string]int{}
	for _, of := range c.protectedBy(inForce, claims) {
		for _, s := range of.schedules {
			this := series{of.target, s.Name}
			p := planOf(of, s, taken[this], restored, now)
			if p.never {
				// The volume may be older than its schedule.
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
			known := known[of.isGroup()]
			if known && (p.take != "" || len(p.expired) > 0) && c.failureOf(of.target) == nil {
				c.loop.Add(of.target)
			}
			if now.Sub(p.good) <= lateAfter(s) {
				continue
			}
			for _, claim := range of.claims {
				if !late[claim.UID] {
					late[claim.UID] = true
					tenants[of.tenant]++
					c.report(of, claim, s, p, known)
				}
			}
		}
	}
	c.without = without
	c.settle(late, tenants)
}

// taken returns what schedules made, according to the caches, and whether these know all,
// by whether it is of groups.
func (c *Controller) taken() (made map[series][]*shot, known map[bool]bool) {
	made = map[series][]*shot{}
	add := func(one *shot) { made[one.series] = append(made[one.series], one) }
	snapshots, allSnapshots := c.Snapshots.Scheduled()
	for _, s := range snapshots {
		add(shotOf(s))
	}
	groups, allGroups := c.Snapshots.ScheduledGroups()
	for _, g := range groups {
		add(c.shotOfGroup(g))
	}
	return made, map[bool]bool{false: allSnapshots, true: allGroups}
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
	for rule := range p.Rules() {
		if len(rule.Protect) > 0 {
			return true
		}
	}
	return false
}

// protectedBy returns what schedules take of these claims. The claims of a group must all be
// among them.
func (c *Controller) protectedBy(p *policy.Policy, claims []*corev1.PersistentVolumeClaim) (all []*protected) {
	groups := map[target]*protected{}
	for _, claim := range claims {
		tenant, schedules := c.schedulesOf(p, claim)
		own := &protected{target: target{namespace: claim.Namespace, claim: claim.Name, uid: claim.UID}, tenant: tenant, since: claim.CreationTimestamp.Time, claims: []*corev1.PersistentVolumeClaim{claim}}
		together := target{namespace: claim.Namespace, group: claim.Labels[objects.LabelProtectGroup]}
		for _, s := range schedules {
			switch {
			case !s.IsOfGroups():
				own.schedules = append(own.schedules, s)
			case together.group == "":
			case groups[together] == nil:
				groups[together] = &protected{target: together, tenant: tenant, since: own.since, claims: own.claims, schedules: []policy.Schedule{s}}
				all = append(all, groups[together])
			default:
				groups[together].join(claim, s)
			}
		}
		if len(own.schedules) > 0 {
			all = append(all, own)
		}
	}
	return all
}

// join adds what a claim brings to its group. All rules of a tenant say the same of a schedule.
func (p *protected) join(claim *corev1.PersistentVolumeClaim, s policy.Schedule) {
	if p.claims[len(p.claims)-1] != claim {
		p.claims = append(p.claims, claim)
	}
	if !slices.Contains(p.schedules, s) {
		p.schedules = append(p.schedules, s)
	}
	if created := claim.CreationTimestamp.Time; created.Before(p.since) {
		p.since = created
	}
}

// schedulesOf returns the schedules for a claim's volume; none if the claim has none of this
// program's.
func (c *Controller) schedulesOf(p *policy.Policy, claim *corev1.PersistentVolumeClaim) (tenant string, schedules []policy.Schedule) {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return "", nil
	}
	pv, err := c.PersistentVolumes.Get(claim.Spec.VolumeName)
	if err != nil || !objects.IsOurs(pv) || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
		return "", nil
	}
	// What volume move makes, and what it leaves to a second claim, is a copy itself. A tenant can
	// write the label, but not on PersistentVolumes.
	if claim.Labels[objects.LabelCopy] != "" && (pv.Annotations[objects.AnnotationCopyOf] != "" || objects.IsSwapped(pv)) {
		return "", nil
	}
	namespace, err := c.Namespaces.Get(claim.Namespace)
	if err != nil || namespace.DeletionTimestamp != nil {
		return "", nil
	}
	of, denial := p.TenantOf(namespace.Name, namespace.Labels)
	if denial != nil {
		return "", nil
	}
	schedules = of.SchedulesOf(pv.Spec.StorageClassName, claim.Labels[objects.LabelProtect])
	if len(schedules) == 0 {
		return "", nil
	}
	origin, err := objects.OriginOf(pv)
	if err != nil || origin.Cluster != c.Cluster || !origin.CSI && pv.Annotations[objects.AnnotationProvisionedBy] != c.Name {
		return "", nil
	}
	return of.Name, schedules
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
func (c *Controller) report(of *protected, claim *corev1.PersistentVolumeClaim, s policy.Schedule, p plan, known bool) {
	what, kind, since := "snapshot", c.kindOf(of.target), "yet"
	if of.isGroup() {
		what += " of group " + of.group
	}
	if !p.never {
		since = "since " + p.good.UTC().Format(time.RFC3339)
	}
	message := fmt.Sprintf("schedule %s has taken no good %s %s, though one is due every %s", s.Name, what, since, s.Period())
	failed := c.failureOf(of.target)
	switch {
	case !known:
		message += fmt.Sprintf(": the %ss of the cluster are not known; their CRDs may be missing", kind)
	case p.waits != "":
		message += fmt.Sprintf(": %s %s is not ready (see kubectl cinder why); if its class was wrong, delete it", kind, p.waits)
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
