package placement

import (
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// fullFor is how long a backend counts as full after Cinder's own quota rejected a volume
// there. Meanwhile, claims that can use another backend do so.
const fullFor = time.Minute

// fullAt identifies an exhausted Cinder quota: a backend and a volume type, because
// Cinder also has quotas per type.
type fullAt struct{ backend, volumeType string }

// fullness is a backend's refusal of volumes of a certain size or larger.
type fullness struct {
	until   time.Time
	sizeGiB int64
	refusal error
}

// cinderQuotas remembers where Cinder's own quotas lack room.
type cinderQuotas struct {
	ledger *ledger.Ledger

	mu   sync.Mutex
	full map[fullAt]fullness
	// expired lists the backends whose entry in full has expired since the last
	// takeExpired.
	expired []string
}

// NoteFull remembers that Cinder's own quota rejected a volume. When this expires, denied
// claims are retried.
func (q *cinderQuotas) NoteFull(backend string, volume policy.VolumeProperties, refusal error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := fullAt{backend, volume.Type}
	until := time.Now().Add(fullFor)
	size := volume.SizeGiB
	if before, ok := q.full[at]; ok {
		size = min(size, before.sizeGiB)
	} else {
		time.AfterFunc(fullFor, func() { q.expire(at) })
	}
	q.full[at] = fullness{until: until, sizeGiB: size, refusal: refusal}
}

// expire forgets a refusal, unless a later one has replaced it.
func (q *cinderQuotas) expire(at fullAt) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if left := time.Until(q.full[at].until); left > 0 {
		time.AfterFunc(left, func() { q.expire(at) })
		return
	}
	delete(q.full, at)
	q.expired = append(q.expired, at.backend)
	q.ledger.Offer()
}

// takeExpired takes the backends that count as full no longer.
func (q *cinderQuotas) takeExpired() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	expired := q.expired
	q.expired = nil
	return expired
}

// isFull returns Cinder's refusal until it expires.
func (q *cinderQuotas) isFull(backend string, volume policy.VolumeProperties) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	full, ok := q.full[fullAt{backend, volume.Type}]
	if !ok || volume.SizeGiB < full.sizeGiB {
		return nil
	}
	return full.refusal
}
