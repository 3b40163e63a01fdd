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
