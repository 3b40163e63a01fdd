package app

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app/leasecheck"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// lead runs terms until the context ends: when elected it runs one, and after losing
// the lease it becomes a candidate again. It returns once the lease is released.
func (a *App) lead(ctx context.Context) error {
	if !a.options.LeaderElect {
		termCtx, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		return a.runTerm(ctx, termCtx, termCtx.Err, time.Now())
	}
	elector := a.watchElector()
	defer elector.End()
	for ctx.Err() == nil {
		elector.Beat()
		if err := a.elect(ctx, elector.Beat); err != nil {
			return err
		}
		if a.standsBack {
			a.standsBack = false
			select {
			case <-ctx.Done():
			case <-time.After(a.options.LeaseDuration):
			}
		}
	}
	return nil
}

// elect runs for the lease once, and leads if elected. The elector does not use the
// process's context: it renews the lease while the term drains, and releases it only
// when nothing is under way. elect calls turns for as long as the elector is not
// stuck.
func (a *App) elect(ctx context.Context, turns func()) error {
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
		LeaseMeta:  metav1.ObjectMeta{Name: wiring.LeaseName(a.options.ProvisionerName), Namespace: a.namespace},
		Client:     a.leaseClient.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: a.identity, EventRecorder: a.recorder},
	}, Timeout: a.options.RenewDeadline, Turns: turns}
	// A request sent at the last instant has the other half of the leaderless interval
	// in which to arrive.
	validity := (a.options.LeaseDuration + a.options.RenewDeadline) / 2
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   a.options.LeaseDuration,
		RenewDeadline:   a.options.RenewDeadline,
		RetryPeriod:     a.options.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            a.options.ProvisionerName,
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
				failed = a.runTerm(ctx, termCtx, func() error { return lock.StillLeading(termCtx, elector.IsLeader, validity) },
					lock.LastChange(a.options.LeaseDuration-validity))
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				a.status.setLeader(identity)
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
	a.leaseReleased.Store(&reacquire)
	defer a.leaseReleased.Store(nil)
	elector.Run(candidacy)
	mu.Lock()
	wasLeading := leading
	mu.Unlock()
	if wasLeading {
		term.Wait()
		if ctx.Err() == nil && !a.standsBack {
			a.logger.Warn("Lost the lease; trying to acquire it again")
		}
	}
	return failed
}

// watchLease notifies a candidate as soon as the lease is released. Without it, or if
// the account may not watch Leases, followers notice at their next poll, once every
// retry period.
func (a *App) watchLease(ctx context.Context) {
	given := func(object any) {
		lease, ok := object.(*coordinationv1.Lease)
		if !ok || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
			return
		}
		if reacquire := a.leaseReleased.Load(); reacquire != nil {
			(*reacquire)()
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(a.leaseWatch.CoordinationV1().RESTClient(), "leases", a.namespace,
			fields.OneTermEqualSelector("metadata.name", wiring.LeaseName(a.options.ProvisionerName))),
		ObjectType: &coordinationv1.Lease{},
		Handler:    a.watchHandler("leases", cache.ResourceEventHandlerFuncs{AddFunc: given, UpdateFunc: func(_, after any) { given(after) }}),
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
