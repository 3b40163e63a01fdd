package placement

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

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

// NoteFull remembers that Cinder's own quota rejected a volume. When this expires, denied
// claims are retried.
func (p *Placer) NoteFull(backend string, volume policy.VolumeProperties, refusal error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := fullAt{backend, volume.Type}
	until := time.Now().Add(fullFor)
	size := volume.SizeGiB
	if before, ok := p.full[at]; ok {
		size = min(size, before.sizeGiB)
	} else {
		time.AfterFunc(fullFor, func() { p.fullnessPasses(at) })
	}
	p.full[at] = fullness{until: until, sizeGiB: size, refusal: refusal}
}

// fullnessPasses forgets a refusal, unless a later one has replaced it.
func (p *Placer) fullnessPasses(at fullAt) {
	p.mu.Lock()
	left := time.Until(p.full[at].until)
	if left <= 0 {
		delete(p.full, at)
		p.expired = append(p.expired, at.backend)
	} else {
		time.AfterFunc(left, func() { p.fullnessPasses(at) })
	}
	p.mu.Unlock()
	if left <= 0 {
		p.roomFreed()
	}
}

// isFull returns Cinder's refusal until it expires.
func (p *Placer) isFull(backend string, volume policy.VolumeProperties) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	full, ok := p.full[fullAt{backend, volume.Type}]
	if !ok || volume.SizeGiB < full.sizeGiB {
		return nil
	}
	return full.refusal
}

// CouldGoElsewhere reports whether a claim without a position in the ledger has another
// backend that can be tried at once and has room.
func (p *Placer) CouldGoElsewhere(uid types.UID, d ledger.Decided) bool {
	if _, counts := p.Ledger.PositionOf(uid); counts {
		return false
	}
	return slices.ContainsFunc(d.Backends, func(name string) bool { return p.canTakeNow(name, d) })
}

// canTakeNow reports whether a backend can be tried at once and has room.
func (p *Placer) canTakeNow(name string, d ledger.Decided) bool {
	return (p.IsCounted(name) || !p.isSilent(name)) && p.Health(name) == nil && p.isFull(name, d.Volume) == nil &&
		p.Ledger.HasRoom(d.Only([]string{name}, nil))
}
