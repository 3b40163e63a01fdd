package placement

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/provisioner/term/ledger"
)

// Grow reserves room for a volume's growth on its backend, the only one of the decision.
// Like Choose, it first makes sure that the quotas count what exists. The error is
// ledger.ErrPolicyChanged if the decision is outdated.
func (p *Placer) Grow(ctx context.Context, claim types.UID, d ledger.Decided) (*Denial, error) {
	backend := d.Backends[0]
	p.countElsewhere(ctx, d)
	unhealthy, err := p.prepare(ctx, backend)
	switch {
	case err != nil:
		return nil, err
	case unhealthy != nil:
		return p.Unanswered(backend, unhealthy), nil
	}
	refused, err := p.Ledger.Grow(claim, d)
	if err != nil {
		return nil, fmt.Errorf("cannot reserve room: %w", err)
	}
	if refused == nil {
		return nil, nil
	}
	denied := DenialOf(refused.Denial)
	for _, s := range refused.Scopes {
		denied.Triggers = append(denied.Triggers, RoomIn(s))
	}
	return &denied, nil
}

// Unanswered returns the denial of a claim whose only backend does not answer.
func (p *Placer) Unanswered(backend string, unhealthy error) *Denial {
	return p.Unavailable([]ledger.PassedOver{{Backend: backend, Why: unhealthy.Error()}}, nil)
}

// HoldGrowth reserves room, until SettleGrowth, for a growth that may have been
// requested from Cinder.
func (p *Placer) HoldGrowth(claim types.UID, sizeGiB int64) { p.Ledger.HoldGrowth(claim, sizeGiB) }

// IsGrowing reports whether room is reserved for a growth.
func (p *Placer) IsGrowing(claim types.UID) bool { return p.Ledger.IsGrowing(claim) }

// GiveUpGrowth frees what Grow reserved and offers it to denied claims. It returns false
// if the growth may have been requested from Cinder.
func (p *Placer) GiveUpGrowth(claim types.UID) bool {
	over, freed := p.Ledger.GiveUpGrowth(claim)
	if freed {
		p.freed.set()
	}
	return over
}

// SettleGrowth ends a growth when nothing extends the volume anymore. The volume then
// counts with the size that Cinder shows, and freed room is offered to denied claims.
func (p *Placer) SettleGrowth(claim types.UID, sizeGiB int64) {
	if p.Ledger.SettleGrowth(claim, sizeGiB) {
		p.freed.set()
	}
}
