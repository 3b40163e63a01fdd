package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// completion is the pause between two checks of the volumes' paths.
const completion = time.Minute

// Paths are those of the volumes that a Service has staged.
type Paths struct {
	service *Service
	// lacking holds, by volume, the paths that were lacking at the last check.
	mu      sync.Mutex
	lacking map[string]string
}

// NewPaths returns the paths of a Service's volumes.
func NewPaths(of *Service) *Paths { return &Paths{service: of} }

// Keep adds paths that were down when a volume was staged, and limits that pods lack, until ctx
// ends.
func (p *Paths) Keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(completion):
			p.Complete(ctx)
		}
	}
}

// Complete adds the paths that staged volumes lack, and the limits that their pods lack, and
// logs which paths they still lack.
func (p *Paths) Complete(ctx context.Context) {
	s := p.service
	records, err := s.state.all()
	if err != nil {
		s.logger.Warn("state files could not be read", "error", err)
	}
	before, lacking := p.lacking, map[string]string{}
	for _, r := range records {
		if r.unreadable != nil || !r.Staged || ctx.Err() != nil {
			continue
		}
		switch err := p.completeOne(ctx, r.Volume); {
		case errors.Is(err, host.ErrLocked):
			if why, known := before[r.Volume]; known {
				lacking[r.Volume] = why
			}
		case err != nil:
			lacking[r.Volume] = err.Error()
			if before[r.Volume] != err.Error() {
				s.logger.Warn("volume has fewer paths than it could", "volume", r.Volume, "error", err)
			}
		case before[r.Volume] != "":
			s.logger.Info("volume has all its paths again", "volume", r.Volume)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lacking = lacking
}

// Lacking counts the staged volumes that lacked paths at the last check.
func (p *Paths) Lacking() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lacking)
}

func (p *Paths) completeOne(ctx context.Context, volume string) error {
	s := p.service
	release, err := s.state.lock(ctx, "volume", volume, false)
	if err != nil {
		return err
	}
	defer release()
	r, err := s.state.load(volume)
	if err != nil || r == nil || !r.Staged {
		return err
	}
	s.limiter.holdAgain(ctx, r)
	if r.Outdated {
		return nil
	}
	protocol, err := s.protocolOf(r)
	if err != nil {
		return err
	}
	return protocol.complete(ctx, r)
}
