package provisioner

import (
	"context"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/parking"
	"github.com/standalone-cinder/standalone-cinder/provisioner/record"
)

// examineListed looks for what nobody needs in the term's listing of a backend.
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

// Recount forgets what a backend holds, because its name leads to another
// endpoint now, has it counted again, and brings back what failed at the one
// before. Changed credentials may have brought it back too early: only the next
// login shows where they lead.
func (p *Provisioner) Recount(name string) {
	p.placement.recount(name)
	p.help(parking.Help{Kind: parking.Backend, Name: name})
}

// CountBackends counts every backend as the term begins, and those that a
// reload brings, so that volumes are found also where no rule sends their claims
// any more, and takes over what an earlier leader left. It ends with the
// context.
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

// countUntilDone counts one backend, whenever it answers.
func (p *Provisioner) countUntilDone(ctx context.Context, name string) {
	const most = 15 * time.Second
	for pause := time.Second; ; pause = min(2*pause, most) {
		if p.placement.health(name) == nil {
			err := p.placement.countBackend(ctx, name)
			if err == nil {
				err = p.examineListed(ctx, name)
			}
			if err == nil {
				return
			}
			p.Logger.Warn("A backend cannot be counted yet", "backend", name, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// NoteEarlier tells which claims existed before the term. No earlier leader can
// have made a volume for any other. Until this is called, every claim counts as
// an earlier one.
func (p *Provisioner) NoteEarlier(claims record.EarlierClaims) {
	p.placement.noteEarlier(claims)
	p.help(parking.Help{Kind: parking.Earlier})
}
