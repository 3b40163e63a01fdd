package expand

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// A growth counts until it is known that nothing extends the volume: either Cinder was
// never asked, or it has shown what became of the growth. Only the worker that has the
// claim's key decides that, so that no room is freed under a running attempt.

// end ends the growth of a claim that wants nothing more. It returns false if only
// Cinder knows what became of the growth. pv is valid if err is nil.
func (c *Controller) end(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume, err error) bool {
	switch {
	case c.Growths.GiveUpGrowth(c.countedAs(claim)):
	case apierrors.IsNotFound(err):
		// Either the cache does not have the PersistentVolume yet, and its arrival
		// brings the claim back; or it is gone, and the volume's deletion ends the
		// growth.
	case err == nil && c.isMine(pv) && !isHistoric(pv):
		return false
	default:
		// This program does not extend such a volume.
		c.Growths.SettleGrowth(c.countedAs(claim), 0)
	}
	c.forget(claim)
	return true
}

// forget forgets a claim that is gone. Another claim may have the same key.
func (c *Controller) forget(claim *corev1.PersistentVolumeClaim) {
	c.parked.Forget(claim.UID)
	if c.gone.remove(claim) {
		c.loop.Queue.Add(keyOf(claim))
	}
}

// errLooked ends a look before anything is requested.
var errLooked = errors.New("nothing more is wanted")

// look asks Cinder what became of the growth of a claim that wants nothing more. It
// waits for an extension under way.
func (e *expansion) look(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	e.claim = claim
	pv, err := e.c.PersistentVolumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return fmt.Errorf("cannot read PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	if e.origin, err = objects.OriginOf(pv); err != nil {
		return err
	}
	volumes, err := e.c.Volumes(e.origin.Backend)
	if err != nil {
		return fmt.Errorf("PersistentVolume %s: %w", pv.Name, err)
	}
	shown := int64(0)
	target := e.origin.Target()
	target.Permit = func(_ context.Context, v cinder.Volume) error {
		shown = v.SizeGiB
		return errLooked
	}
	v, err := volumes.Extend(ctx, target, max(sizeOf(requested(claim)), sizeOf(storage(pv.Spec.Capacity))+1))
	switch {
	case err == nil:
		shown = v.SizeGiB
	case !errors.Is(err, errLooked) && !isInfeasible(err):
		return objects.WithRemedy(err, e.origin)
	}
	e.c.Growths.SettleGrowth(e.c.countedAs(claim), shown)
	e.c.forget(claim)
	return nil
}

// goneClaims holds claims that are gone, by key, in the order in which they went:
// another claim may take the name and then go, too.
type goneClaims struct {
	mu    sync.Mutex
	byKey map[string][]*corev1.PersistentVolumeClaim
}

func (g *goneClaims) add(claim *corev1.PersistentVolumeClaim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byKey == nil {
		g.byKey = map[string][]*corev1.PersistentVolumeClaim{}
	}
	key := keyOf(claim)
	if !slices.ContainsFunc(g.byKey[key], isSame(claim)) {
		g.byKey[key] = append(g.byKey[key], claim)
	}
}

func (g *goneClaims) first(key string) (*corev1.PersistentVolumeClaim, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.byKey[key]) == 0 {
		return nil, false
	}
	return g.byKey[key][0], true
}

// remove removes a claim, and reports whether it was there.
func (g *goneClaims) remove(claim *corev1.PersistentVolumeClaim) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := keyOf(claim)
	before := len(g.byKey[key])
	rest := slices.DeleteFunc(g.byKey[key], isSame(claim))
	if len(rest) == before {
		return false
	}
	if g.byKey[key] = rest; len(rest) == 0 {
		delete(g.byKey, key)
	}
	return true
}

func isSame(claim *corev1.PersistentVolumeClaim) func(*corev1.PersistentVolumeClaim) bool {
	return func(other *corev1.PersistentVolumeClaim) bool { return other.UID == claim.UID }
}
