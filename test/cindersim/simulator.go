package cindersim

import (
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/random"
)

// Simulator is a Keystone and a Cinder. Create it with New and either Start it
// on loopback ports or mount its handlers.
type Simulator struct {
	options  Options
	ids      *random.Source
	cloud    *cloud
	keystone *keystone.Service
	faults   *faultSet
	journal  *journal

	urls struct{ noauth, cinder, keystone string }

	latencyMu sync.RWMutex

	mu      sync.Mutex
	started bool
	closing bool
	servers []*http.Server
	serving sync.WaitGroup // listeners, connections and requests
	closed  chan struct{}
}

// New makes a simulator from options. It returns an error if they contradict
// each other.
func New(options Options) (*Simulator, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	for options.Seed == 0 {
		options.Seed = rand.Uint64()
	}
	ids := random.New(options.Seed)
	s := &Simulator{options: options, ids: ids, faults: &faultSet{ids: ids}, journal: newJournal(), closed: make(chan struct{})}
	if s.cloud, err = newCloud(options, ids); err != nil {
		return nil, err
	}
	if s.cloud.typeIndex[options.DefaultType] == nil {
		return nil, fmt.Errorf("option DefaultType: no volume type is named %q", options.DefaultType)
	}
	if s.keystone, err = keystone.New(keystone.Options{Identity: options.Identity, Now: options.Now, IDs: ids}); err != nil {
		return nil, err
	}
	for _, p := range s.keystone.Projects() {
		if len(p.Quota) > 0 {
			s.cloud.setQuota(p.ID, p.Quota)
		}
	}
	operations := make(map[string]time.Duration, len(options.OperationLatency))
	for operation, latency := range options.OperationLatency {
		operations[operation] = latency
	}
	s.options.OperationLatency = operations
	s.SetURLs("http://noauth.invalid/v3", "http://cinder.invalid/v3", "http://keystone.invalid/v3")
	return s, nil
}

// NoauthHandler serves the noauth endpoint without Start, as CinderHandler and
// KeystoneHandler serve theirs; SetURLs then sets their addresses.
func (s *Simulator) NoauthHandler() http.Handler { return &handler{s, Noauth} }

// CinderHandler serves Cinder behind Keystone.
func (s *Simulator) CinderHandler() http.Handler { return &handler{s, Cinder} }

// KeystoneHandler serves Keystone.
func (s *Simulator) KeystoneHandler() http.Handler { return &handler{s, Keystone} }

// SetURLs sets the addresses, each ending in /v3, that the catalog and the
// accessors name. It must be called before the first request.
func (s *Simulator) SetURLs(noauth, cinder, keystone string) {
	s.urls.noauth, s.urls.cinder, s.urls.keystone = noauth, cinder, keystone
	s.keystone.SetURLs(keystone, cinder)
}

// Start listens on the ports of the options and serves until Close.
func (s *Simulator) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.closing {
		return errors.New("start the simulator: it has been started or closed before")
	}
	var listeners []net.Listener
	var urls []string
	for _, port := range []int{s.options.NoauthPort, s.options.CinderPort, s.options.KeystonePort} {
		listener, err := net.Listen("tcp", net.JoinHostPort(s.options.ListenHost, strconv.Itoa(port)))
		if err != nil {
			for _, other := range listeners {
				_ = other.Close()
			}
			return fmt.Errorf("start the simulator: %w", err)
		}
		scheme := "http://"
		if s.options.TLSConfig != nil {
			scheme = "https://"
		}
		listeners, urls = append(listeners, listener), append(urls, scheme+listener.Addr().String()+"/v3")
	}
	s.started = true
	s.SetURLs(urls[0], urls[1], urls[2])
	for i, endpoint := range []Endpoint{Noauth, Cinder, Keystone} {
		s.serve(listeners[i], s.options.Front(endpoint, &handler{s, endpoint}))
	}
	return nil
}

// serve runs one HTTP server, counting its goroutines so that Close can wait
// for all of them.
func (s *Simulator) serve(listener net.Listener, handler http.Handler) {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 30 * time.Second,
		// Dropped connections are deliberate here.
		ErrorLog: log.New(io.Discard, "", 0),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				s.serving.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.serving.Done()
			}
		},
	}
	if s.options.TLSConfig != nil {
		// Each server modifies its own copy of the configuration.
		server.TLSConfig = s.options.TLSConfig.Clone()
	}
	s.servers = append(s.servers, server)
	s.serving.Add(1)
	go func() {
		defer s.serving.Done()
		if server.TLSConfig != nil {
			_ = server.ServeTLS(listener, "", "")
			return
		}
		_ = server.Serve(listener)
	}()
}

// Close stops serving, ends all requests that hang, and returns when no
// goroutine of the simulator is left. The state can still be inspected.
func (s *Simulator) Close() {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.closed)
	}
	servers := s.servers
	s.servers = nil
	s.mu.Unlock()
	for _, server := range servers {
		_ = server.Close()
	}
	s.serving.Wait()
}

// enter counts a request, unless the simulator is closing.
func (s *Simulator) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.serving.Add(1)
	return true
}

func (s *Simulator) leave() { s.serving.Done() }

// NoauthEndpoint returns the address of the noauth Cinder, ending in /v3. Any
// hexadecimal project can be used with it, DefaultNoauthProject for one.
func (s *Simulator) NoauthEndpoint() string { return s.urls.noauth }

// CinderURL returns the address of the Cinder behind Keystone, ending in /v3.
// The catalog adds the project to it.
func (s *Simulator) CinderURL() string { return s.urls.cinder }

// KeystoneURL returns the address of Keystone, ending in /v3.
func (s *Simulator) KeystoneURL() string { return s.urls.keystone }

// Seed returns the seed that ids and chances come from.
func (s *Simulator) Seed() uint64 { return s.options.Seed }

// ProjectID returns the ID of a project, found by ID or, in the domain Default,
// by name; "" if there is none.
func (s *Simulator) ProjectID(nameOrID string) string { return s.keystone.ProjectID(nameOrID) }

// ApplicationCredentials lists the application credentials, with the ids that
// were made for them.
func (s *Simulator) ApplicationCredentials() []keystone.ApplicationCredential {
	return s.keystone.ApplicationCredentials()
}

// Trusts lists the trusts, with the ids that were made for them.
func (s *Simulator) Trusts() []keystone.Trust { return s.keystone.Trusts() }

// ExpireTokens ends the validity of every token issued so far, at once.
func (s *Simulator) ExpireTokens() { s.keystone.ExpireTokens() }

// SetPassword changes the password of a user, found by ID or name, and revokes
// the user's tokens. Cinder continues to accept those it has already validated
// for Identity.ValidationCache.
func (s *Simulator) SetPassword(user, password string) error {
	return s.keystone.SetPassword(user, password)
}

// SetApplicationCredentialSecret changes the secret of an application
// credential, given by id or name, and revokes the tokens issued for it.
func (s *Simulator) SetApplicationCredentialSecret(credential, secret string) error {
	return s.keystone.SetApplicationCredentialSecret(credential, secret)
}

// SetLatency changes the latency of an operation, of those with a prefix ending
// in "*", or, with the empty operation, of all that have none of their own.
func (s *Simulator) SetLatency(operation string, latency time.Duration) {
	s.latencyMu.Lock()
	defer s.latencyMu.Unlock()
	if operation == "" {
		s.options.Latency = latency
		return
	}
	s.options.OperationLatency[operation] = latency
}

func (s *Simulator) latency(operation string) time.Duration {
	s.latencyMu.RLock()
	defer s.latencyMu.RUnlock()
	return s.options.latency(operation)
}

// Inject activates a fault. Faults are tried in the order of their injection.
func (s *Simulator) Inject(fault Fault) *Injection { return s.faults.inject(fault) }

// BlackHole makes every request to every endpoint hang without effect until the
// injection is removed.
func (s *Simulator) BlackHole() *Injection { return s.Inject(Fault{Kind: HangBefore}) }

// StopVolumeServices freezes the storage side, as when cinder-volume hangs:
// creates and deletes are accepted and make no progress, synchronous actions
// answer 500 after Options.RPCTimeout.
func (s *Simulator) StopVolumeServices() { s.cloud.stopVolumeServices() }

// StartVolumeServices resumes the storage side, beginning with the requests
// that arrived meanwhile.
func (s *Simulator) StartVolumeServices() { s.cloud.startVolumeServices() }

// SetZoneFull makes the scheduler find no host for new volumes in a zone, or find
// one again: Cinder accepts the create, and the volume goes to error.
func (s *Simulator) SetZoneFull(zone string, full bool) {
	s.cloud.lock()
	defer s.cloud.unlock()
	s.cloud.fullZones[zone] = full
}

// Journal returns a copy of the journal, in the order of arrival.
func (s *Simulator) Journal() []Entry { return s.journal.snapshot() }

// Requests returns how many requests have arrived, which is the number of the last one.
func (s *Simulator) Requests() int { return s.journal.last() }

// CountByOperation counts the journal's requests by operation.
func (s *Simulator) CountByOperation() map[string]int { return s.journal.countByOperation() }

// ResetJournal empties the journal. Numbers continue.
func (s *Simulator) ResetJournal() { s.journal.reset() }

// SetQuota sets limits of a project by Cinder's resource names; -1 lifts one.
func (s *Simulator) SetQuota(project string, limits map[string]int) {
	if id := s.ProjectID(project); id != "" {
		project = id
	}
	s.cloud.lockToChange()
	defer s.cloud.unlock()
	s.cloud.setQuota(project, limits)
}

// CloudsYAML returns a clouds.yaml with an entry for every user in each of its
// projects, named user-project, or by the user alone where the names are equal.
func (s *Simulator) CloudsYAML() string { return s.keystone.CloudsYAML() }
