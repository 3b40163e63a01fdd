package attach

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// tidyInterval is the time between two checks of lost nodes. A kubelet reports every 10
// seconds, and may list a volume again for the next pod.
const tidyInterval = 5 * time.Second

// Run watches nodes that were lost with volumes, until the context ends.
func (e *Engine) Run(ctx context.Context) {
	defer e.Metrics.forget()
	for {
		e.tidy(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(tidyInterval):
		}
	}
}

// tidy ends the notes about nodes that have let go. Otherwise they would end only when
// the node gets another volume, and never for a node that is gone. It consults caches
// first, so it costs no request as long as nothing has changed.
func (e *Engine) tidy(ctx context.Context) {
	for _, backend := range e.Backends() {
		if volumes, err := e.Volumes(backend); err == nil {
			// A failure is reported when a volume is attached.
			_ = e.know(ctx, volumes, backend)
		}
	}
	for _, node := range e.lost.nodes() {
		if !e.hasLetGo(node) {
			continue
		}
		if err := e.release(ctx, node); err != nil && ctx.Err() == nil && !cinder.IsKind(err, cinder.KindFenced) {
			e.Logger.Debug("Checking a lost node again", "node", node, "error", err)
		}
	}
	e.forgetDetachments()
	e.tidyPlaces()
	e.Metrics.show(e.count())
}

// release ends the notes about volumes that a node has let go of.
func (e *Engine) release(ctx context.Context, node string) error {
	var state nodeState
	var looked bool
	var first error
	for _, v := range e.lost.of(node) {
		volumes := e.showing(v)
		if volumes == nil {
			continue
		}
		if !looked {
			var err error
			if state, err = e.lookAt(ctx, node); err != nil {
				return err
			}
			looked = true
		}
		if !state.letGo(v.target.VolumeID, v.Unclean) {
			continue
		}
		// A backend that does not answer does not stop the others.
		if err := e.forget(ctx, volumes, node, state, v); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// showing returns a backend that leads to a volume that a node was lost with; nil if
// there is none.
func (e *Engine) showing(v lostVolume) Volumes {
	own, err := e.Volumes(v.backend)
	if err != nil {
		own = nil
	}
	for _, backend := range e.Backends() {
		if other, err := e.Volumes(backend); err == nil && other.Place() == v.target.Place {
			return e.holder(v, other)
		}
	}
	return own
}

// count counts what the metrics show.
func (e *Engine) count() map[string]counts {
	found := map[string]counts{}
	add := func(backend string, more counts) {
		c := found[backend]
		found[backend] = counts{c.attachments + more.attachments, c.unclean + more.unclean, c.quarantined + more.quarantined}
	}
	for _, backend := range e.Backends() {
		add(backend, counts{})
	}
	for _, object := range e.Attachments.List() {
		if a, ok := object.(*storagev1.VolumeAttachment); ok && a.Status.Attached {
			if handle, ours := e.handleOf(a); ours {
				add(handle.Backend, counts{attachments: 1})
			}
		}
	}
	barred := map[place]bool{}
	bar := func(at place) {
		if !barred[at] {
			barred[at] = true
			add(at.backend, counts{quarantined: 1})
		}
	}
	for _, node := range e.lost.nodes() {
		for _, v := range e.lost.of(node) {
			add(v.backend, counts{unclean: 1})
			bar(place{v.backend, node})
		}
	}
	for _, object := range e.Nodes.List() {
		node, ok := object.(*corev1.Node)
		if !ok {
			continue
		}
		for _, handle := range e.leftovers(node.Name) {
			// The node says which backend it is, so only those that are configured become
			// labels.
			for _, backend := range e.Backends() {
				if volumes, err := e.Volumes(backend); err == nil && e.mayLeadTo(handle.Backend, backend, volumes.Place()) {
					bar(place{backend, node.Name})
				}
			}
		}
	}
	return found
}

// hasLetGo reports whether, according to the cache, a node has let go of any volume
// that it was lost with.
func (e *Engine) hasLetGo(node string) bool {
	state := nodeState{}
	if object, exists, err := e.Nodes.GetByKey(node); err == nil && exists {
		state = stateOf(object.(*corev1.Node))
	}
	for _, v := range e.lost.of(node) {
		if state.letGo(v.target.VolumeID, v.Unclean) {
			return true
		}
	}
	return false
}

// forgetDetachments drops what is remembered of VolumeAttachments that are gone.
func (e *Engine) forgetDetachments() {
	present := map[types.UID]bool{}
	for _, object := range e.Attachments.List() {
		if a, ok := object.(*storagev1.VolumeAttachment); ok {
			present[a.UID] = true
		}
	}
	e.lost.mu.Lock()
	defer e.lost.mu.Unlock()
	for uid := range e.lost.clean {
		if !present[uid] {
			delete(e.lost.clean, uid)
		}
	}
}
