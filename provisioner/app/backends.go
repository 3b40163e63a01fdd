package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
	"github.com/standalone-cinder/standalone-cinder/provisioner/app/portnames"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
	"github.com/standalone-cinder/standalone-cinder/provisioner/worker/parking"
)

// termBackends holds the lifecycles of one term. It makes each on first use and updates
// it when the policy changes.
type termBackends struct {
	board   *parking.Board
	policy  func() *policy.Policy
	retired *retiredBackends
	cluster string
	pool    *backends.Pool
	metrics *backends.Metrics
	fence   func() error
	// changing is that of backends.LifecycleOptions.
	changing func() (ended func(), err error)
	// changed is when an earlier leader can have changed something for the last time.
	changed time.Time
	readLag time.Duration
	termCtx context.Context
	logger  *slog.Logger
	nodes   *portnames.Pools
	// watchQueue watches the queue of requests to a backend, until the term ends.
	watchQueue func(name string)
	// moved is called when a backend's name leads to another endpoint.
	moved func(name string)

	names atomic.Pointer[namesOf]

	mu         sync.Mutex
	lifecycles map[string]*termBackend
}

// termBackend is a lifecycle with the policy that last configured it.
type termBackend struct {
	*backends.Lifecycle
	source *policy.Policy
}

var _ provisioner.Backends = (*termBackends)(nil)

func (t *termBackends) Unrecorded(name string) (provisioner.Unrecorded, error) {
	return t.current(name)
}
func (t *termBackends) Recorded(name string) (provisioner.Recorded, error) { return t.current(name) }
func (t *termBackends) Listing(name string) (provisioner.Listing, error)   { return t.current(name) }

// isGone reports whether a volume has disappeared since its backend was last listed.
func (t *termBackends) isGone(name, volumeID string) bool {
	lifecycle, err := t.current(name)
	return err == nil && lifecycle.IsGone(volumeID)
}

func (t *termBackends) reportMoved(name string) {
	t.logger.Warn("The backend now points to a different Cinder or project; volumes created earlier are expected there, too", "backend", name)
	t.moved(name)
}

// current returns a backend's lifecycle, configured by the policy in force.
func (t *termBackends) current(name string) (*backends.Lifecycle, error) {
	lifecycle, moved, err := t.configured(name)
	if err == nil && moved {
		t.reportMoved(name)
	}
	return lifecycle, err
}

// configured does that, and reports whether the backend's endpoint has changed.
// It reads the policy under the lock: of two callers, the later one must not
// restore an older configuration.
func (t *termBackends) configured(name string) (lifecycle *backends.Lifecycle, moved bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	source, backend, err := t.find(name)
	if err != nil {
		return nil, false, err
	}
	present, ok := t.lifecycles[name]
	if ok && present.source == source {
		return present.Lifecycle, false, nil
	}
	config := wiring.BackendConfig(source, backend, t.cluster)
	if !ok {
		present = &termBackend{Lifecycle: t.newLifecycle(config)}
		t.lifecycles[name] = present
	}
	present.source = source
	return present.Lifecycle, ok && present.Configure(config), nil
}

func (t *termBackends) newLifecycle(config backends.Config) *backends.Lifecycle {
	go t.watchQueue(config.Name)
	return backends.NewLifecycle(backends.LifecycleOptions{
		Config:   config,
		Pool:     t.pool,
		Cluster:  t.cluster,
		Fence:    t.fence,
		Changing: t.changing,
		Changed:  t.changed,
		ReadLag:  t.readLag,
		Term:     t.termCtx,
		Logger:   t.logger,
		Metrics:  t.metrics,
		HealthChanged: func(err error) {
			if err == nil {
				t.board.Publish(parking.Trigger{Kind: parking.Backend, Name: config.Name})
			}
		},
		Moved: func() { t.reportMoved(config.Name) },
	})
}

func (t *termBackends) Connector(name string) (cinder.Connector, error) {
	source, backend, err := t.find(name)
	if err != nil {
		return cinder.Connector{}, err
	}
	connector := wiring.BackendConfig(source, backend, t.cluster).Connector
	if selected := backend.Connector.NodeLabels; len(selected) > 0 && len(connector.WWPNs) == 0 {
		if connector.WWPNs, err = t.nodes.Of(t.termCtx, selected); err != nil {
			return connector, fmt.Errorf("backend %s: %w", name, err)
		}
	}
	return connector, nil
}

func (t *termBackends) NodeLabels(name string) map[string]string {
	_, backend, err := t.find(name)
	if err != nil {
		return nil
	}
	return backend.Connector.NodeLabels
}

func (t *termBackends) Mappings(name string) map[string]mapping.Mapping {
	_, backend, err := t.find(name)
	if err != nil {
		return nil
	}
	return backend.Mapping
}

// Names lists the backends of the policy, and those that a reload has removed. Callers
// need it for every volume, so the list is made only once for each policy.
func (t *termBackends) Names() []string {
	inForce := t.policy()
	known := t.names.Load()
	if known == nil || known.of != inForce {
		known = &namesOf{of: inForce}
		for _, backend := range inForce.Backends {
			known.names = append(known.names, backend.Name)
		}
		t.names.Store(known)
	}
	// Clip it, so that appending makes a copy.
	return append(slices.Clip(known.names), t.retired.names()...)
}

// namesOf holds the names of a policy's backends.
type namesOf struct {
	of    *policy.Policy
	names []string
}

// update gives every lifecycle of the term its new configuration.
func (t *termBackends) update() {
	for name := range t.present() {
		// A lifecycle whose backend is no longer in the policy keeps its
		// configuration.
		_, _ = t.current(name)
	}
}

// tryAgain probes the backends that did not answer, at once.
func (t *termBackends) tryAgain(names []string) {
	present := t.present()
	for _, name := range names {
		if lifecycle, ok := present[name]; ok {
			lifecycle.ProbeNow()
		}
	}
}

// present returns every lifecycle of the term by its backend's name.
func (t *termBackends) present() map[string]*backends.Lifecycle {
	t.mu.Lock()
	defer t.mu.Unlock()
	present := make(map[string]*backends.Lifecycle, len(t.lifecycles))
	for name, b := range t.lifecycles {
		present[name] = b.Lifecycle
	}
	return present
}

// find returns a backend and the policy that configures it: the one in force,
// or the last one that had the backend.
func (t *termBackends) find(name string) (*policy.Policy, *policy.Backend, error) {
	source := t.policy()
	if backend, ok := source.Backend(name); ok {
		return source, backend, nil
	}
	if retired, ok := t.retired.get(name); ok {
		return retired.of, retired.backend, nil
	}
	return nil, nil, fmt.Errorf("backend %q is not in the policy; add it back, at least with suspended: true, so that its volumes can be deleted", name)
}

// backendConfigs returns every backend that may be used, including those that a
// reload removed from the policy.
func (r *replica) backendConfigs() []backends.Config {
	inForce := r.policy.Load()
	var configs []backends.Config
	for i := range inForce.Backends {
		configs = append(configs, wiring.BackendConfig(inForce, &inForce.Backends[i], r.cluster))
	}
	for _, name := range r.retired.names() {
		if retired, ok := r.retired.get(name); ok {
			configs = append(configs, wiring.BackendConfig(retired.of, retired.backend, r.cluster))
		}
	}
	return configs
}
