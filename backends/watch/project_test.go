package watch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// project is a Cinder that only shows volumes. A change of a volume's state takes a
// number of reads.
type project struct {
	looks int
	// ignoreFilter answers a listing by status with every volume.
	ignoreFilter bool
	// fault fails a request before it reads anything; list alone decides about the
	// answer to a listing. Both may be nil.
	fault func(operation, id string) error
	list  func(ctx context.Context, status cinder.Status, pageSize int) (answered bool, err error)

	mu       sync.Mutex
	volumes  []*volume // the newest last
	requests map[string]int
}

type volume struct {
	id     string
	status cinder.Status
	// left is how many reads still show the status. After that, the status becomes end
	// or, if that is empty, the volume is gone.
	left int
	end  cinder.Status
	// hidden keeps it out of listings.
	hidden bool
	gone   bool
}

func newProject() *project { return &project{looks: 2, requests: map[string]int{}} }

// add adds a volume. One in creation becomes available, and one in deletion vanishes.
func (p *project) add(status cinder.Status) *volume {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := &volume{id: fmt.Sprintf("volume-%d", len(p.volumes)+1), status: status, left: p.looks}
	if status != cinder.StatusDeleting {
		v.end = cinder.StatusAvailable
	}
	p.volumes = append(p.volumes, v)
	return v
}

// look shows a volume, and brings the change of its state one read closer.
func (p *project) look(v *volume) (shown volume, exists bool) {
	switch v.status {
	case cinder.StatusCreating, cinder.StatusDeleting, "downloading":
		if v.left > 0 {
			v.left--
		} else {
			v.status, v.gone = v.end, v.end == ""
		}
	}
	return *v, !v.gone
}

func (p *project) count(operation string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[operation]
}

func (p *project) exists(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.volumes, func(v *volume) bool { return v.id == id && !v.gone })
}

func (p *project) request(operation, id string) error {
	p.mu.Lock()
	p.requests[operation]++
	p.mu.Unlock()
	if p.fault != nil {
		return p.fault(operation, id)
	}
	return nil
}

func (p *project) read(_ context.Context, id string) (volume, error) {
	if err := p.request("get", id); err != nil {
		return volume{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.volumes {
		if v.id == id {
			if shown, exists := p.look(v); exists {
				return shown, nil
			}
		}
	}
	return volume{}, &cinder.Error{Backend: "gold", Kind: cinder.KindNotFound, Message: "volume " + id + " was not found"}
}

func (p *project) listed(ctx context.Context, status cinder.Status, pageSize int, yield func([]volume) bool) error {
	for next := len(p.volumes) - 1; next >= 0; {
		if err := p.request("list", ""); err != nil {
			return err
		}
		if p.list != nil {
			if answered, err := p.list(ctx, status, pageSize); answered {
				return err
			}
		}
		var page []volume
		p.mu.Lock()
		for ; next >= 0 && len(page) < pageSize; next-- {
			v := p.volumes[next]
			if v.gone || v.hidden || status != "" && v.status != status && !p.ignoreFilter {
				continue
			}
			if shown, exists := p.look(v); exists {
				page = append(page, shown)
			}
		}
		p.mu.Unlock()
		if len(page) == 0 || !yield(page) {
			return nil
		}
	}
	return nil
}

// watcher returns a watcher of the project.
func (v volume) State() (string, cinder.Status, time.Time) { return v.id, v.status, time.Time{} }

func (p *project) watcher() *Watcher[volume] { return New(p.options()) }

func (p *project) options() Options[volume] {
	return Options[volume]{
		Backend:  "gold",
		Noun:     "volume",
		Interval: time.Millisecond,
		List:     p.listed,
		Get:      p.read,
		Observe:  func([]volume) {},
		Pause:    func(pause time.Duration, _ <-chan struct{}) { time.Sleep(pause) },
		Waiting:  func(int) {},
	}
}

// of tells the watcher how much a complete listing has.
func (w *Watcher[T]) of(total int) *Watcher[T] {
	w.total.Store(&total)
	return w
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
