package app

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// status serves health, readiness, metrics and a page for people. Leaders and followers
// serve them alike.
type status struct {
	leader prometheus.Gauge

	mu      sync.Mutex
	ready   bool
	leading bool
	holder  string
	// refused is what is wrong with the policy file; nil if nothing is. refusedRevision
	// is the file's, unless it cannot be read. unreadable is what is wrong with
	// credentials, by backend.
	refused         error
	refusedRevision string
	unreadable      map[string]error
}

func newStatus(build wiring.Build, registry prometheus.Registerer) *status {
	s := &status{
		unreadable: map[string]error{},
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "standalone_cinder_leader",
			Help: "1 while this replica leads, else 0.",
		}),
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "standalone_cinder_build_info",
		Help: "1, with the version, its commit and the version of Go as labels.",
	}, []string{"version", "revision", "goversion"})
	info.WithLabelValues(build.Version, build.Commit, build.GoVersion).Set(1)
	registry.MustRegister(s.leader, info)
	return s
}

func (s *status) setReady() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = true
}

func (s *status) setLeading(leading bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = leading
	s.leader.Set(0)
	if leading {
		s.leader.Set(1)
	}
}

func (s *status) setLeader(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holder = identity
}

// setRefused records what is wrong with the policy file of a revision.
func (s *status) setRefused(revision string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused, s.refusedRevision = err, revision
}

// refusal returns which revision was refused, and why.
func (s *status) refusal() (revision string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusedRevision, s.refused
}

// setUnreadable records what is wrong with a backend's credentials, and reports
// whether that is new.
func (s *status) setUnreadable(backend string, err error) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.unreadable[backend]
	if err == nil {
		delete(s.unreadable, backend)
		return before != nil
	}
	s.unreadable[backend] = err
	return before == nil || before.Error() != err.Error()
}

// unreadableByBackend returns the present troubles with credentials.
func (s *status) unreadableByBackend() map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.unreadable)
}

// troubles returns the present troubles.
func (s *status) troubles() (unreadable []error, refused error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, backend := range slices.Sorted(maps.Keys(s.unreadable)) {
		unreadable = append(unreadable, s.unreadable[backend])
	}
	return unreadable, s.refused
}

func (s *status) readyz(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		http.Error(w, "the caches of the API server's objects are not filled yet", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
