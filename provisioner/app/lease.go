package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/leasecheck"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/library"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/attach"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/expand"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/outofservice"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/schedules"
	"github.com/standalone-cinder/standalone-cinder/provisioner/features/snapshot"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// elector runs for the lease, and leads while it holds it.
type elector struct {
	*replica
	// leaseClient has a rate limit of its own, so that a flood of claims cannot
	// delay the renewal of the lease.
	leaseClient kubernetes.Interface
	// leaseWatch is read at once, while a follower's other watches are read in batches.
	leaseWatch kubernetes.Interface
	// leaseReleased is called when another replica has released the lease, or ended; nil
	// unless this replica is a candidate.
	leaseReleased atomic.Pointer[func()]
	// deaths knows which holder of the lease has ended.
	deaths *leasecheck.Deaths
	// terminationLog tells the next leader how this process ended.
	terminationLog *leasecheck.TerminationLog
	// patience is how long a leader waits for its csi-attacher; standsBack lets others take
	// the lease that a leader has given up because of it.
	patience   *patience
	standsBack bool
	// longestLease is the longest duration of a lease that earlier candidacies have seen.
	longestLease time.Duration

	// All terms share the metrics; libraryMetrics are those of the provisioning library.
	provisionerMetrics  *provisioner.Metrics
	expandMetrics       *expand.Metrics
	audits              *auditMetrics
	snapshotMetrics     *snapshot.Metrics
	scheduleMetrics     *schedules.Metrics
	importMetrics       *importMetrics
	attachMetrics       *attach.Metrics
	outOfServiceMetrics *outofservice.Metrics
	libraryMetrics      metrics.Metrics
}

// newElector makes an elector with connections of its own to the API server.
func newElector(of *replica, config *rest.Config) (*elector, error) {
	registry := of.options.Metrics
	e := &elector{
		replica:             of,
		patience:            newPatience(of.options.AttacherTimeout),
		terminationLog:      &leasecheck.TerminationLog{},
		provisionerMetrics:  provisioner.NewMetrics(registry, append(of.mappers.Protocols(), objects.ProtocolCSI)),
		expandMetrics:       expand.NewMetrics(registry),
		audits:              newAuditMetrics(registry),
		snapshotMetrics:     snapshot.NewMetrics(registry),
		scheduleMetrics:     schedules.NewMetrics(registry),
		importMetrics:       newImportMetrics(registry),
		attachMetrics:       attach.NewMetrics(registry),
		outOfServiceMetrics: outofservice.NewMetrics(registry),
		libraryMetrics:      library.NewMetrics(registry),
	}
	var err error
	if e.leaseWatch, err = wiring.KubeClient(config); err != nil {
		return nil, err
	}
	e.deaths = &leasecheck.Deaths{
		Client: e.leaseWatch.CoreV1().RESTClient(), Namespace: of.namespace, PodOf: wiring.PodOf, Learned: e.askForLease, ReadLag: of.options.ReadLag,
		Watched: func(handler cache.ResourceEventHandler) cache.ResourceEventHandler {
			return of.watchHandler("pods", handler)
		},
	}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 20, 40
	// A renewal that hangs must fail early enough for another try.
	config.Timeout = of.options.RenewDeadline / 2
	e.leaseClient, err = wiring.KubeClient(config)
	return e, err
}

// lead runs terms until the context ends: when elected it runs one, and after losing
// the lease it becomes a candidate again. It returns once the lease is released.
func (e *elector) lead(ctx context.Context) error {
	if !e.options.LeaderElect {
		termCtx, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		return e.runTerm(ctx, termCtx, termCtx.Err, time.Now())
	}
	var err error
	if e.terminationLog, err = leasecheck.OpenTerminationLog(cmp.Or(e.options.TerminationLog, leasecheck.TerminationLogOf(os.Getpid())), e.identity, e.options.ReadLag); err != nil {
		e.logger.Warn("If this process dies while it leads, others will wait until the lease has expired", "error", err)
	}
	elector := e.watchElector()
	defer elector.End()
	for ctx.Err() == nil {
		elector.Beat()
		if err := e.elect(ctx, elector.Beat); err != nil {
			return err
		}
		if e.standsBack {
			e.standsBack = false
			select {
			case <-ctx.Done():
			case <-time.After(e.options.LeaseDuration):
			}
		}
	}
	return nil
}

// elect runs for the lease once, and leads if elected. The elector does not use the
// process's context: it renews the lease while the term drains, and releases it only
// when nothing is under way. elect calls turns for as long as the elector is not
// stuck.
func (e *elector) elect(ctx context.Context, turns func()) error {
	candidacy, release := context.WithCancel(context.WithoutCancel(ctx))
	defer release()

	var (
		mu      sync.Mutex
		leading bool
		term    sync.WaitGroup
		failed  error
		elector *leaderelection.LeaderElector
	)
	// A follower that receives the signal to stop leaves at once.
	defer context.AfterFunc(ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		if !leading {
			release()
		}
	})()

	lock := &leasecheck.Lock{LeaseLock: resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: wiring.LeaseName(e.options.ProvisionerName), Namespace: e.namespace},
		Client:     e.leaseClient.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity, EventRecorder: e.recorder},
	}, Timeout: e.options.RenewDeadline, Turns: turns, EndOf: e.deaths.EndOf, Longest: e.longestLease}
	// A request sent at the last instant has the other half of the leaderless interval
	// in which to arrive.
	validity := (e.options.LeaseDuration + e.options.RenewDeadline) / 2
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   e.options.LeaseDuration,
		RenewDeadline:   e.options.RenewDeadline,
		RetryPeriod:     e.options.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            e.options.ProvisionerName,
		Callbacks: leaderelection.LeaderCallbacks{
			// The elector starts this on a goroutine of its own and does not wait for
			// it; termCtx ends when the lease is lost or released.
			OnStartedLeading: func(termCtx context.Context) {
				mu.Lock()
				leading = true
				term.Add(1)
				mu.Unlock()
				defer term.Done()
				defer release()
				e.terminationLog.Lead(lock.LastChange())
				failed = e.runTerm(ctx, termCtx, func() error { return lock.StillLeading(termCtx, elector.IsLeader, validity) }, lock.LastChange())
				failed = errors.Join(failed, e.terminationLog.Follow())
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				e.status.setLeader(identity)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// A new elector asks for the lease at once instead of at the next poll.
	reacquire := func() {
		mu.Lock()
		defer mu.Unlock()
		if !leading && !elector.IsLeader() {
			release()
		}
	}
	e.leaseReleased.Store(&reacquire)
	defer e.leaseReleased.Store(nil)
	elector.Run(candidacy)
	e.longestLease = lock.Longest
	mu.Lock()
	wasLeading := leading
	mu.Unlock()
	if wasLeading {
		term.Wait()
		if ctx.Err() == nil && !e.standsBack {
			e.logger.Warn("Lost the lease; trying to acquire it again")
		}
	}
	return failed
}

// askForLease lets a candidate ask for the lease at once.
func (e *elector) askForLease() {
	if reacquire := e.leaseReleased.Load(); reacquire != nil {
		(*reacquire)()
	}
}

// watchLease notifies a candidate as soon as the lease is released, or its holder has
// ended. Without it, or if the account may not watch Leases and pods, followers notice a
// released lease at their next poll, once every retry period, and a dead leader when its
// lease has expired.
func (e *elector) watchLease(ctx context.Context) {
	given := func(object any) {
		lease, ok := object.(*coordinationv1.Lease)
		if !ok {
			return
		}
		holder := ""
		if lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != e.identity {
			holder = *lease.Spec.HolderIdentity
		}
		e.deaths.Follow(ctx, holder)
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			e.askForLease()
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(e.leaseWatch.CoordinationV1().RESTClient(), "leases", e.namespace,
			fields.OneTermEqualSelector("metadata.name", wiring.LeaseName(e.options.ProvisionerName))),
		ObjectType: &coordinationv1.Lease{},
		Handler:    e.watchHandler("leases", cache.ResourceEventHandlerFuncs{AddFunc: given, UpdateFunc: func(_, after any) { given(after) }}),
	})
	informer.RunWithContext(ctx)
}

// newIdentity names the pod, which the status commands look for, and distinguishes two
// processes of one pod or host. A pod's host name is not always its name: with
// hostNetwork it is the node's, and long names are truncated.
func newIdentity(environment func(string) string) string {
	name := environment("POD_NAME")
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			name = "unknown"
		}
	}
	return wiring.Identity(name, uuid.NewString())
}
