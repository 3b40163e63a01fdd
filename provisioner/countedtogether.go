package provisioner

import "context"

// tally is a count of a backend's volumes that is under way.
type tally struct {
	generation int
	done       chan struct{}
	err        error
}

// countTogether counts a backend once for all claims that want it counted at
// that time. Each would else go through a copy of the backend's whole listing:
// the claims that a new leader finds, a thousand at once, took minutes and a
// GiB for what one of them can do for all.
func (p *Provisioner) countTogether(ctx context.Context, name string, generation int) error {
	c := p.counting
	c.mu.Lock()
	t := c.underWay[name]
	if t == nil || t.generation != generation {
		t = &tally{generation: generation, done: make(chan struct{})}
		c.underWay[name] = t
		c.listings++
		go p.tally(name, t)
	}
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.done:
		return t.err
	}
}

// tally counts on behalf of whoever waits, and so for as long as the term lasts.
func (p *Provisioner) tally(name string, t *tally) {
	t.err = p.countListed(p.Hold, name)
	c := p.counting
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underWay[name] == t {
		delete(c.underWay, name)
	}
	if t.err == nil && c.generation[name] == t.generation {
		c.done[name] = true
	}
	c.listings--
	if c.listings == 0 {
		p.ledger.ForgetGone()
	}
	close(t.done)
}
