package app

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner"
)

// retiredBackends remembers the backends that a reload removed from the policy,
// with the last policy that had them. Volumes that exist there must still be
// deleted. It lasts as long as the process.
type retiredBackends struct {
	mu     sync.Mutex
	byName map[string]retiredBackend
}

type retiredBackend struct {
	of      *policy.Policy
	backend *policy.Backend
}

// retire records what the next policy omits, before that policy is in force.
func (r *retiredBackends) retire(before, next *policy.Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range before.Backends {
		backend := &before.Backends[i]
		if _, stays := next.Backend(backend.Name); !stays {
			if r.byName == nil {
				r.byName = map[string]retiredBackend{}
			}
			r.byName[backend.Name] = retiredBackend{before, backend}
		}
	}
}

// restore forgets the backends that are in the policy again.
func (r *retiredBackends) restore(inForce *policy.Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, backend := range inForce.Backends {
		delete(r.byName, backend.Name)
	}
}

func (r *retiredBackends) get(name string) (retiredBackend, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	retired, ok := r.byName[name]
	return retired, ok
}

func (r *retiredBackends) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.byName))
}

// missingBackends counts the PersistentVolumes whose backend is not in the
// policy.
func (r *replica) missingBackends() map[string]int {
	counts, err := provisioner.CountByBackend(r.factory.Core().V1().PersistentVolumes().Lister(), r.options.ProvisionerName)
	if err != nil {
		return nil
	}
	for _, backend := range r.policy.Load().Backends {
		delete(counts, backend.Name)
	}
	return counts
}

// warnOfMissingBackends reports, after a reload and at the start of a term,
// which volumes can be deleted only until a restart, or not at all.
func (r *replica) warnOfMissingBackends() {
	missing := r.missingBackends()
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		consequence := "they cannot be deleted"
		if _, ok := r.retired.get(name); ok {
			consequence = "they can be deleted only until this replica restarts"
		}
		message := fmt.Sprintf("backend %s is not in the policy, but has PersistentVolumes (%d): %s; add it back, with suspended: true if it is to take no more volumes",
			name, missing[name], consequence)
		r.logger.Warn("Policy: " + message)
		r.tell(corev1.EventTypeWarning, "BackendMissing", message)
	}
}

// missingCollector exports missingBackends.
type missingCollector struct {
	replica     *replica
	description *prometheus.Desc
}

func newMissingCollector(of *replica) *missingCollector {
	return &missingCollector{of, prometheus.NewDesc("standalone_cinder_missing_backend_persistentvolumes",
		"PersistentVolumes whose backend is not in the policy.", []string{"backend"}, nil)}
}

func (c *missingCollector) Describe(to chan<- *prometheus.Desc) { to <- c.description }

func (c *missingCollector) Collect(to chan<- prometheus.Metric) {
	for name, count := range c.replica.missingBackends() {
		to <- prometheus.MustNewConstMetric(c.description, prometheus.GaugeValue, float64(count), name)
	}
}
