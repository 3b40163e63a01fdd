package app

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// status serves health, readiness, metrics and a page for people. Every replica
// serves them, leader or follower.
type status struct {
	app    *App
	leader prometheus.Gauge

	mu      sync.Mutex
	ready   bool
	leading bool
	holder  string
	// refused is what is wrong with the policy file, nil if nothing is; unreadable
	// is what is wrong with credentials, by backend.
	refused    error
	unreadable map[string]error
}

func newStatus(a *App, registry prometheus.Registerer) *status {
	s := &status{
		app:        a,
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
	info.WithLabelValues(a.options.Build.Version, a.options.Build.Commit, a.options.Build.GoVersion).Set(1)
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

// setRefused records what is wrong with the policy file.
func (s *status) setRefused(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = err
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

// troubles returns the current ones.
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

// page shows what an operator asks first. It contains names, never credentials.
// It is complete before it is written: a client that does not read must not
// block anything.
func (s *status) page(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, s.text())
}

func (s *status) text() string {
	unreadable, refused := s.troubles()
	health := s.app.backendHealth()
	p := s.app.policy.Load()
	s.mu.Lock()
	leading, holder := s.leading, s.holder
	s.mu.Unlock()

	var b strings.Builder
	fmt.Fprintf(&b, "standalone-cinder %s\n\nidentity  %s\nleading   %t\nleader    %s\npolicy    %s, revision %s%s\n",
		s.app.options.Build.Version, s.app.identity, leading, holder, s.app.options.PolicyFile, cmp.Or(p.Revision(), "none yet"), s.app.keptWhere())
	if refused != nil {
		fmt.Fprintf(&b, "\nthe policy file is refused:\n%s\n", refused)
	}
	for _, err := range unreadable {
		fmt.Fprintf(&b, "\ncredentials cannot be read: %s\n", err)
	}
	if leading {
		fmt.Fprintln(&b, "\nbackends")
	} else {
		fmt.Fprintln(&b, "\nbackends (only the leader knows whether they answer)")
	}
	for _, backend := range p.Backends {
		fmt.Fprintf(&b, "  %s%s\n", backend.Name, backendState(backend.Suspended, health[backend.Name]))
	}
	for _, name := range s.app.retired.names() {
		fmt.Fprintf(&b, "  %s  (not in the policy; kept for deletions)\n", name)
	}
	fmt.Fprintln(&b, "\ntenants")
	for _, tenant := range p.Tenants {
		fmt.Fprintf(&b, "  %s  rules: %d\n", tenant.Name, len(tenant.Classes))
	}
	return b.String()
}

// backendHealth is what keeps each backend from being used, as far as this
// replica knows: only a leader sends requests.
func (a *App) backendHealth() map[string]error {
	health := map[string]error{}
	if term := a.term(); term != nil {
		for name, lifecycle := range term.backends.present() {
			health[name] = lifecycle.Health()
		}
	}
	return health
}

func backendState(suspended bool, unhealthy error) string {
	state := ""
	if suspended {
		state += "  (suspended)"
	}
	if unhealthy != nil {
		state += "  " + unhealthy.Error()
	}
	return state
}
