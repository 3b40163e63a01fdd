package provisioner

import (
	"context"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// examineListed searches the term's listing of a backend for volumes that
// nothing seems to need.
func (p *Provisioner) examineListed(ctx context.Context, name string) error {
	volumes, err := p.Backends.Volumes(name)
	if err != nil {
		return err
	}
	all, err := volumes.Volumes(ctx)
	if err != nil {
		return err
	}
	return p.examine(name, all)
}

// Recount counts a backend again that has changed its endpoint, and brings back
// what failed at the old endpoint. Changed credentials may have brought
// that back too early: only the next login shows the new endpoint.
func (p *Provisioner) Recount(name string) {
	p.placement.recount(name)
	p.wake(parking.Trigger{Kind: parking.Backend, Name: name})
}

// CountBackends counts every backend when the term begins, and those that a
// reload adds, so that it also finds volumes on backends that no rule uses any
// longer. It queues for removal what an earlier leader left unfinished. It ends
// with the context.
func (p *Provisioner) CountBackends(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, name := range p.Backends.Names() {
		p.placement.requestCount(name)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case name := <-p.placement.wanted():
			group.Go(func() { p.countUntilDone(ctx, name) })
		}
	}
}

// countUntilDone counts one backend as soon as it answers.
func (p *Provisioner) countUntilDone(ctx context.Context, name string) {
	const maxWait = 15 * time.Second
	for wait := time.Second; ; wait = min(2*wait, maxWait) {
		if p.placement.health(name) == nil {
			err := p.placement.countBackend(ctx, name)
			if err == nil {
				err = p.examineListed(ctx, name)
			}
			if err == nil {
				return
			}
			p.Logger.Warn("Counting a backend's volumes failed and will be retried", "backend", name, "error", err)
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// NoteEarlier records which claims existed before the term. An earlier leader
// can only have created volumes for those. Before this call, every claim counts
// as an earlier one.
func (p *Provisioner) NoteEarlier(claims record.EarlierClaims) {
	p.placement.noteEarlier(claims)
	p.wake(parking.Trigger{Kind: parking.Earlier})
}
