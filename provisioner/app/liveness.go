package app

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/pprof"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/liveness"
)

// electorBound returns how long the elector may go without turning: longer than all
// pauses, requests and drains that it waits for.
func (o *Options) electorBound() time.Duration { return 4*o.LeaseDuration + o.DrainTimeout }

// watchElector watches the elector, which also waits for the end of a term whose lease
// is lost. If the API server does not answer, the elector's requests fail, and it still
// turns.
func (e *elector) watchElector() *liveness.Task {
	return e.monitor.Begin("the leader elector", liveness.Always(e.options.electorBound()))
}

// informerBound is how long a notification, or a step of an informer, may take. Both
// work only in memory.
const informerBound = 2 * time.Minute

// watchInformer watches an informer until the context ends: the cache must catch up
// with what was read from the API server. While nothing can be read, it has caught up.
func (r *replica) watchInformer(ctx context.Context, informer processInformer) {
	r.monitor.Follow(ctx, "the informer of "+informer.of, liveness.Always(informerBound), func() (waiting bool, mark string) {
		// cached is empty if an environment variable switches client-go's feature off.
		cached := informer.GetIndexer().LastStoreSyncResourceVersion()
		return cached != "" && cached != informer.LastSyncResourceVersion(), cached
	})
}

// watchHandler watches every notification of a handler.
func (r *replica) watchHandler(of string, next cache.ResourceEventHandler) cache.ResourceEventHandler {
	return &watchedHandler{next: next, begin: func() *liveness.Task {
		return r.monitor.Begin("the handler of "+of, liveness.Always(informerBound))
	}}
}

type watchedHandler struct {
	next  cache.ResourceEventHandler
	begin func() *liveness.Task
}

// OnAdd implements cache.ResourceEventHandler.
func (h *watchedHandler) OnAdd(object any, initial bool) {
	defer h.begin().End()
	h.next.OnAdd(object, initial)
}

// OnUpdate implements cache.ResourceEventHandler.
func (h *watchedHandler) OnUpdate(before, after any) {
	defer h.begin().End()
	h.next.OnUpdate(before, after)
}

// OnDelete implements cache.ResourceEventHandler.
func (h *watchedHandler) OnDelete(object any) {
	defer h.begin().End()
	h.next.OnDelete(object)
}

// workSlack is the allowance for what has no timeout in the policy, such as requests to
// the API server.
const workSlack = 10 * time.Minute

// maxWorkTime returns more time than a worker may need for one object at any backend.
// It never becomes shorter, because work goes on with the timeouts of the policy under
// which it began.
func (r *replica) maxWorkTime() time.Duration {
	return max(workSlack, time.Duration(r.maxByPolicy.Load()))
}

// noteTimeouts lets work take as long as a policy that comes into force allows.
func (r *replica) noteTimeouts(next *policy.Policy) {
	longest := r.maxByPolicy.Load()
	for _, backend := range next.Backends {
		// An attempt may make one volume and remove another, with several requests for
		// each.
		longest = max(longest, int64(workSlack+2*(backend.Timeouts.Create+backend.Timeouts.Delete)+10*backend.Timeouts.Request))
	}
	r.maxByPolicy.Store(longest)
}

// watchQueue watches the queue of requests to a backend: while requests wait, one
// of them gets its turn at least as often as a request under way times out.
func (r *replica) watchQueue(ctx context.Context, backend string) {
	r.monitor.Follow(ctx, "the request queue of backend "+backend, r.maxWorkTime, func() (waiting bool, mark string) { return r.pool.Progress(backend) })
}

// healthz answers the kubelet, which restarts a replica in which something is
// stuck. An API server or a Cinder that does not answer is no reason, because a restart
// would not help.
type healthz struct {
	monitor *liveness.Monitor
	logger  *slog.Logger
	// logged means that the present standstill is in the log.
	logged atomic.Bool
}

// maxStacks bounds the goroutines' stacks in the log.
const maxStacks = 256 << 10

// ServeHTTP implements http.Handler.
func (h *healthz) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	err := h.monitor.Check()
	if err == nil {
		h.logged.Store(false)
		fmt.Fprintln(w, "ok")
		return
	}
	if !h.logged.Swap(true) {
		// In this form, the stacks have no arguments, and so no secrets.
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		text := stacks.String()
		h.logger.Error("This replica is stuck, so its liveness probe fails", "error", err, "goroutines", text[:min(len(text), maxStacks)])
	}
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}
