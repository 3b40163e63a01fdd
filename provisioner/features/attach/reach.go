package attach

import (
	"errors"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/mappers"
)

// refusalKept is how long a refusal counts, from when its volume was made. What is wrong
// may have been repaired at Cinder meanwhile, and then only a volume made since shows that.
const refusalKept = time.Hour

// Reach remembers for a term, by backend and volume type, whether nodes can use volumes
// in mode csi. Cinder says how a volume is reached only when it is attached: until the
// first attachment of a type, nothing is known, and its claims are granted.
//
// A refusal counts only while no volume of the type was ever attached in the term, because
// Cinder may place the volumes of one type on different storage, and no longer than
// refusalKept: Kubernetes asks for an old volume again as long as its pod exists. The
// refusals of other reasons than these concern single volumes.
type Reach struct {
	mu   sync.Mutex
	seen map[ofType]refusal
}

type ofType struct{ backend, volumeType string }

// refusal is why volumes of a type are of no use to nodes; err is nil if a node has one.
type refusal struct {
	err error
	// cephSecret is what the policy said then.
	cephSecret string
	// made is when the volume was made.
	made time.Time
}

// NewReach makes the memory of one term.
func NewReach() *Reach { return &Reach{seen: map[ofType]refusal{}} }

// note remembers how the attachment of a volume ended.
func (r *Reach) note(backend string, v cinder.Volume, cephSecret string, err error) {
	var refused *mappers.Refusal
	if err != nil && (!errors.As(err, &refused) || refused.Reason != mappers.UnsupportedProtocol && refused.Reason != mappers.InvalidMapping) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of, made := ofType{backend, v.Type}, v.CreatedAt
	if now := time.Now(); made.After(now) { // by Cinder's clock
		made = now
	}
	before, known := r.seen[of]
	if err != nil && known && (before.err == nil || before.cephSecret == cephSecret && before.made.After(made)) {
		return
	}
	r.seen[of] = refusal{err, cephSecret, made}
}

// Refusal returns why nodes cannot use volumes of a type; nil if they can, or if that is
// not known. cephSecret is what the policy says now.
func (r *Reach) Refusal(backend, volumeType, cephSecret string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.seen[ofType{backend, volumeType}]
	if found.cephSecret != cephSecret || time.Since(found.made) > refusalKept {
		return nil
	}
	return found.err
}
