package cindersim

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/random"
)

// Endpoint names one of the simulator's three services.
type Endpoint string

// The endpoints.
const (
	Noauth   Endpoint = "noauth"   // Cinder with auth_strategy=noauth
	Cinder   Endpoint = "cinder"   // Cinder behind Keystone
	Keystone Endpoint = "keystone" // Keystone
)

// Request is the description of a request for faults and the journal. It never
// contains credentials, bodies or header values.
type Request struct {
	Endpoint Endpoint
	// Operation is a stable name: volume.create, volume.list, volume.get,
	// volume.update, volume.delete, metadata.list, metadata.update (POST),
	// metadata.replace (PUT of all), metadata.get, metadata.set, metadata.delete,
	// action.<name> as in action.os-reserve, attachment.create, attachment.get,
	// attachment.list, attachment.update, attachment.complete, attachment.delete,
	// snapshot.create, snapshot.get, snapshot.list, snapshot.delete, snapshot.metadata.update, backup.create, backup.get,
	// backup.list, backup.update, backup.delete, message.get, message.list,
	// type.list, type.get, volume.encryption, key.get, zone.list, limits.get, quota.get, quota.defaults,
	// quota.update, quota.delete, service.list, pool.list, version.list,
	// version.get, healthcheck, auth.tokens.create, auth.tokens.get,
	// auth.tokens.delete, or unknown.
	Operation string
	Method    string
	// Path is the URL's path and Query its query, as sent.
	Path, Query string
	// Project is the project of the token, if known.
	Project string
	// VolumeID and VolumeName identify the volume. A create has no ID before
	// its effect; the journal adds it.
	VolumeID, VolumeName string
}

// Kind is what a fault does to a request.
type Kind int

// The kinds of fault.
const (
	// RespondBefore answers with Code instead of performing the request.
	RespondBefore Kind = iota + 1
	// RespondAfter performs the request and then answers with Code, like a
	// gateway that stopped waiting.
	RespondAfter
	// HangBefore never answers and has no effect: a timeout before the effect.
	HangBefore
	// HangAfter performs the request and never answers: a timeout after the
	// effect.
	HangAfter
	// DropBefore closes the connection without effect.
	DropBefore
	// DropAfter performs the request and closes the connection without an answer.
	DropAfter
	// Delay performs and answers the request after Fault.Delay.
	Delay
	// FailBackend makes Cinder accept the request and its storage backend fail:
	// creates end in error, deletes in error_deleting, extends in
	// error_extending, connecting and terminating in a 500.
	FailBackend
)

// String returns the kind's name in the journal.
func (k Kind) String() string {
	names := []string{
		RespondBefore: "respond-before", RespondAfter: "respond-after", HangBefore: "hang-before", HangAfter: "hang-after",
		DropBefore: "drop-before", DropAfter: "drop-after", Delay: "delay", FailBackend: "fail-backend",
	}
	if k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", int(k))
}

// Fault defines which requests fail, and how. All given conditions must be met.
type Fault struct {
	Kind Kind
	// Operation is an operation's name, a prefix ending in "*", or empty for all.
	Operation string
	// Volume is a volume's id or name.
	Volume string
	// Match, if set, is a further condition. It must not call the simulator.
	Match func(Request) bool
	// Nth picks the nth matching request only, counting from 1.
	Nth int
	// Probability is the chance that a matching request gets the fault. Zero
	// means always.
	Probability float64
	// Times limits how often the fault is applied. Zero means without limit.
	Times int

	// Code is the status of RespondBefore and RespondAfter; the default is 503.
	Code int
	// Body replaces the error body that the endpoint would send with Code.
	Body string
	// RetryAfter is the Retry-After header sent with Code.
	RetryAfter string
	// Delay passes before the request is handled, for every kind. Latency comes
	// on top.
	Delay time.Duration
}

// Injection is an active fault.
type Injection struct {
	set   *faultSet
	fault Fault

	// removed is closed by Remove.
	removed chan struct{}

	// Guarded by the set's mutex.
	matched, applied int
}

// Matched counts the requests that met the fault's conditions, except Nth and
// Probability.
func (i *Injection) Matched() int {
	i.set.mu.Lock()
	defer i.set.mu.Unlock()
	return i.matched
}

// Applied counts the requests that the fault was applied to.
func (i *Injection) Applied() int {
	i.set.mu.Lock()
	defer i.set.mu.Unlock()
	return i.applied
}

// Remaining returns how often the fault may still be applied; -1 is without
// limit.
func (i *Injection) Remaining() int {
	i.set.mu.Lock()
	defer i.set.mu.Unlock()
	switch {
	case i.isRemoved():
		return 0
	case i.fault.Times == 0:
		return -1
	}
	return i.fault.Times - i.applied
}

// Remove ends the fault. Requests that wait for its delay go on at once; those
// that hang continue to hang until their clients leave.
func (i *Injection) Remove() {
	i.set.mu.Lock()
	defer i.set.mu.Unlock()
	if !i.isRemoved() {
		close(i.removed)
	}
	i.set.active = slices.DeleteFunc(i.set.active, func(other *Injection) bool { return other == i })
}

func (i *Injection) isRemoved() bool {
	select {
	case <-i.removed:
		return true
	default:
		return false
	}
}

// faultSet contains the faults in the order of their injection.
type faultSet struct {
	ids *random.Source

	mu     sync.Mutex
	active []*Injection
}

func (s *faultSet) inject(fault Fault) *Injection {
	fault.Code = cmp.Or(fault.Code, http.StatusServiceUnavailable)
	injection := &Injection{set: s, fault: fault, removed: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active = append(s.active, injection)
	return injection
}

// pick applies the faults to a request. The first that applies decides; faults
// that only delay add up and let others apply too. The request must wait for the
// delays of all that it returns.
func (s *faultSet) pick(request Request) (chosen *Fault, delays []*Injection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var spent []*Injection
	for _, injection := range s.active {
		f := &injection.fault
		if !matchOperation(f.Operation, request.Operation) ||
			f.Volume != "" && f.Volume != request.VolumeID && f.Volume != request.VolumeName ||
			f.Match != nil && !f.Match(request) {
			continue
		}
		injection.matched++
		if f.Nth > 0 && injection.matched != f.Nth || f.Probability > 0 && !s.ids.Chance(f.Probability) {
			continue
		}
		injection.applied++
		if f.Delay > 0 {
			delays = append(delays, injection)
		}
		if f.Times > 0 && injection.applied == f.Times {
			spent = append(spent, injection)
		}
		if f.Kind != Delay {
			chosen = f
			break
		}
		if chosen == nil {
			chosen = f
		}
	}
	for _, injection := range spent {
		s.active = slices.DeleteFunc(s.active, func(other *Injection) bool { return other == injection })
	}
	return chosen, delays
}
