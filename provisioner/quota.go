package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

// reserve holds room for a granted claim on one of its backends. What every
// candidate holds is counted first: PersistentVolumes from the term's
// beginning on, and volumes at Cinder that no PersistentVolume records yet,
// the claim's own perhaps among them. The error says that a backend cannot be
// counted; only claims that could go there wait for it.
func (p *Provisioner) reserve(ctx context.Context, claim *corev1.PersistentVolumeClaim, class string, decision policy.Decision) (backend string, passedOver []PassedOver, denied *policy.Denial, err error) {
	if _, counts := p.ledger.Holds(claim.UID); !counts {
		for _, candidate := range decision.Backends {
			if err := p.countBackend(ctx, candidate); err != nil {
				return "", nil, nil, fmt.Errorf("cannot tell what backend %s holds already: %w", candidate, err)
			}
		}
	}
	backend, passedOver, denied = p.ledger.Reserve(claim.UID, class, decision)
	return backend, passedOver, denied, nil
}

// countBackend counts the stamped volumes of a backend, once in a term. It
// costs no request of its own: looking before creating needs the same listing.
func (p *Provisioner) countBackend(ctx context.Context, name string) error {
	p.mu.Lock()
	counted := p.counted[name]
	p.mu.Unlock()
	if counted {
		return nil
	}
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return err
	}
	for _, v := range all {
		stamp := backends.StampOf(v)
		p.ledger.Found(types.UID(stamp.ClaimUID), Holding{Tenant: stamp.Tenant, StorageClass: stamp.StorageClass, GiB: v.SizeGiB}, name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counted[name] = true
	return nil
}

// CountRecorded counts the PersistentVolumes in the cache. It comes before the
// term's first decision; later ones are counted as they are seen.
func (p *Provisioner) CountRecorded() error {
	pvs, err := p.PersistentVolumes.List(labels.Everything())
	for _, pv := range pvs {
		p.countRecorded(pv)
	}
	return err
}

// countRecorded counts a PersistentVolume, whatever its phase: its volume
// exists until the object is gone.
func (p *Provisioner) countRecorded(pv *corev1.PersistentVolume) {
	uid := types.UID(pv.Annotations[annotationClaimUID])
	if !p.isMine(pv) || uid == "" {
		return
	}
	const gib = 1 << 30
	bytes := policy.Bytes(pv.Spec.Capacity[corev1.ResourceStorage])
	p.ledger.Record(uid, Holding{
		Tenant:       pv.Annotations[annotationTenant],
		StorageClass: pv.Spec.StorageClassName,
		GiB:          (bytes + gib - 1) / gib,
	}, pv.Annotations[annotationBackend])
}

// isMine reports whether this program wrote the object under its present name
// for this cluster.
func (p *Provisioner) isMine(pv *corev1.PersistentVolume) bool {
	return isOurs(pv) && pv.Annotations[annotationProvisionedBy] == p.Name && pv.Annotations[annotationCluster] == p.Cluster
}

// release gives back what a claim's volume counted as, and lets those have
// another look that were turned away for want of room.
func (p *Provisioner) release(uid types.UID) {
	if p.ledger.Release(uid) {
		p.roomFreed()
	}
}

func (p *Provisioner) roomFreed() {
	select {
	case p.freed <- struct{}{}:
	default: // somebody is told already
	}
}

// gatherFreedRoom is how long freed room is gathered before the claims that
// want it are looked at: they are as many for one volume as for a hundred.
const gatherFreedRoom = 200 * time.Millisecond

// offerFreedRoom brings claims that were turned away for want of room back, the
// eldest first, whenever room was freed. It ends with the context.
func (p *Provisioner) offerFreedRoom(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.freed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(gatherFreedRoom):
		}
		p.reconsider(func(d denial) bool { return d.reason == string(policy.QuotaExceeded) })
	}
}

// reconsider brings denied claims of a kind back to the library.
func (p *Provisioner) reconsider(which func(denial) bool) {
	p.mu.Lock()
	var denied []denial
	for _, d := range p.denied {
		if which(d) {
			denied = append(denied, d)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(denied, func(a, b denial) int { return a.claim.CreationTimestamp.Compare(b.claim.CreationTimestamp.Time) })
	for _, d := range denied {
		if claim, err := p.Claims.PersistentVolumeClaims(d.claim.Namespace).Get(d.claim.Name); err == nil && claim.UID == d.claim.UID {
			p.requeue(claim)
		}
	}
}

// passedOverText says why earlier backends of the rule were not chosen.
func passedOverText(decision policy.Decision, passedOver []PassedOver) string {
	var reasons []string
	for _, step := range decision.Trace {
		if strings.HasPrefix(step.Path, "backends[") && !step.Matched {
			reasons = append(reasons, step.Name+": "+step.Detail)
		}
	}
	for _, over := range passedOver {
		reasons = append(reasons, over.Denial.Message)
	}
	if len(reasons) == 0 {
		return ""
	}
	return "; passed over: " + strings.Join(reasons, ", ")
}
