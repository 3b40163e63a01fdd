package claims

import (
	"context"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// listing holds what a backend has, once done is closed.
type listing struct {
	done    chan struct{}
	volumes []cinder.Volume
	err     error
}

// list lists the volumes of a backend. A thousand claims that look for a volume at the
// same time share one listing, which may be a moment old. So a volume that is found in
// it must be read again.
func (c *Controller) list(ctx context.Context, backend string, volumes Volumes) ([]cinder.Volume, error) {
	c.mu.Lock()
	l, shared := c.listings[backend]
	if !shared {
		l = &listing{done: make(chan struct{})}
		c.listings[backend] = l
	}
	c.mu.Unlock()
	if shared {
		select {
		case <-l.done:
			return l.volumes, l.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	l.volumes, l.err = volumes.All(ctx)
	close(l.done)
	forget := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listings, backend)
	}
	if l.err != nil || c.ShareListings == 0 {
		forget()
	} else {
		time.AfterFunc(c.ShareListings, forget)
	}
	return l.volumes, l.err
}
