package backends

import (
	"context"
	"math/rand/v2"
	"time"
)

// run tells of changes and probes until the breaker is closed or the term
// ends. That one goroutine does both keeps the news in order.
func (b *breaker) run() {
	for {
		pause, open := b.announce()
		if !open {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.hold.Done():
		}
		timer.Stop()
		if b.hold.Err() != nil {
			return
		}
		b.probeOnce()
	}
}

// announce tells of what has changed, without the lock. It returns the pause
// before the next probe, or false when the breaker is closed and all is told:
// the goroutine then ends, and the next opening starts another.
func (b *breaker) announce() (pause time.Duration, open bool) {
	for {
		b.mu.Lock()
		if len(b.news) == 0 {
			defer b.mu.Unlock()
			b.running = b.held != nil
			// Up to a fifth less, so that replicas and backends that failed
			// together are not probed together.
			return b.coolDown - rand.N(b.coolDown/5), b.running
		}
		change := b.news[0]
		b.news = b.news[1:]
		b.mu.Unlock()
		if change.err != nil {
			b.logger.Warn("Requests to the backend are held back", "error", change.err)
		} else {
			b.logger.Info("The backend answers again", "outage", change.after)
		}
		if b.hold.Err() == nil {
			b.changed(change.err)
		}
	}
}

// probeOnce asks the backend once and draws the conclusion.
func (b *breaker) probeOnce() {
	ctx, cancel := context.WithCancel(b.hold)
	defer cancel()
	b.mu.Lock()
	epoch := b.epoch
	b.cancelProbe = cancel
	b.mu.Unlock()
	err := b.probe(ctx)
	found := verdictOf(ctx, err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancelProbe = nil
	if b.ended || epoch != b.epoch {
		return
	}
	switch found {
	case backendAnswers:
		b.close()
	case backendFails:
		b.held = b.heldBack(err)
		b.coolDown = longerCoolDown(b.coolDown, err)
	}
}

// probeNow has an open breaker probe at once, also when a probe is under way:
// that one may hang on what was mended meanwhile.
func (b *breaker) probeNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held == nil {
		return
	}
	if b.cancelProbe != nil {
		b.cancelProbe()
	}
	select {
	case b.wake <- struct{}{}:
	default:
	}
}
