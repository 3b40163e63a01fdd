package attach

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

// places counts the volumes of each backend on each node.
type places struct {
	mu sync.Mutex
	// taken are the volumes that this term attached or is attaching, because the cache
	// of VolumeAttachments shows them later. The values say whether it has shown them.
	taken map[place]map[string]bool // by handle
}

// place is a node, as far as the volumes of one backend are concerned.
type place struct{ backend, node string }

// take reserves a place on a node for a volume, unless the limit leaves none, and
// reports whether the volume had none before. A volume that is attached there keeps its
// place, whatever the limit.
func (p *places) take(at place, volume string, limit int, attached map[string]bool) (taken bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	used := len(attached)
	for other := range p.taken[at] {
		if !attached[other] {
			used++
		}
	}
	if _, has := p.taken[at][volume]; !attached[volume] && !has {
		if limit > 0 && used >= limit {
			return false, &controller.Failure{Kind: controller.NodeFull, Message: fmt.Sprintf("node %s has %d of the %d volumes of backend %s that the policy allows (csi.maxVolumesPerNode); the volume will be attached once another one is detached there", at.node, used, limit, at.backend)}
		}
		if p.taken[at] == nil {
			p.taken[at] = map[string]bool{}
		}
		p.taken[at][volume], taken = false, true
	}
	return taken, nil
}

// keep reserves a place for a volume that an earlier term began to attach.
func (p *places) keep(at place, volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, has := p.taken[at][volume]; has {
		return
	}
	if p.taken[at] == nil {
		p.taken[at] = map[string]bool{}
	}
	p.taken[at][volume] = false
}

// tidy gives back the places whose VolumeAttachments are gone although the driver was
// never asked to detach the volumes, because somebody removed them by hand. present
// holds the handles that VolumeAttachments name for each place.
func (p *places) tidy(present map[place]map[string]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, volumes := range p.taken {
		for volume, shown := range volumes {
			switch {
			case present[at][volume]:
				volumes[volume] = true
			case shown:
				delete(volumes, volume)
			}
		}
		if len(volumes) == 0 {
			delete(p.taken, at)
		}
	}
}

// room keeps the places of the volumes that nodes have, where backends have a limit.
type room struct{ *Engine }

// tidyPlaces passes all VolumeAttachments to places.tidy.
func (e room) tidyPlaces() {
	if !e.Attachments.Known() {
		return
	}
	present := map[place]map[string]bool{}
	for on := range e.attachmentsOn("") {
		at := place{e.backendOf(on.volume), on.node}
		if present[at] == nil {
			present[at] = map[string]bool{}
		}
		present[at][on.volume.String()] = true
	}
	e.places.tidy(present)
}

// leave gives back the place of a volume, or its places on all nodes if the name is
// empty.
func (p *places) leave(at place, volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, volumes := range p.taken {
		if of == at || at.node == "" && of.backend == at.backend {
			delete(volumes, volume)
			if len(volumes) == 0 {
				delete(p.taken, of)
			}
		}
	}
}

// takePlace calls take if the backend has a limit.
func (e room) takePlace(ctx context.Context, volumes Volumes, volume wire.Handle, at place) (taken bool, err error) {
	limit := e.Rules(at.backend).VolumesPerNode
	if limit == 0 {
		return false, nil
	}
	if !e.Attachments.Known() {
		return false, fmt.Errorf("the VolumeAttachments are not read yet, so it is not known how many volumes node %s has", at.node)
	}
	if err := e.rounds.know(ctx, volumes, at.backend); err != nil {
		return false, err
	}
	attached := map[string]bool{}
	for on, a := range e.attachmentsOn(at.node) {
		if e.backendOf(on.volume) == at.backend && a.Status.Attached {
			attached[on.volume.String()] = true
		}
	}
	return e.places.take(at, volume.String(), limit, attached)
}

// handleOf returns the volume of a VolumeAttachment, if it is one of the driver's.
func (e *Engine) handleOf(a *storagev1.VolumeAttachment) (wire.Handle, bool) {
	if a.Spec.Attacher != wire.DriverName || a.Spec.Source.PersistentVolumeName == nil {
		return wire.Handle{}, false
	}
	return e.handleIn(*a.Spec.Source.PersistentVolumeName)
}

// cachedPV returns a PersistentVolume from the cache; nil if it is not there.
func cachedPV(pvs cache.Store, name string) *corev1.PersistentVolume {
	object, exists, err := pvs.GetByKey(name)
	if pv, ok := object.(*corev1.PersistentVolume); ok && exists && err == nil {
		return pv
	}
	return nil
}

// handleIn returns the volume that a PersistentVolume in the cache names.
func (e *Engine) handleIn(pvName string) (wire.Handle, bool) {
	pv := cachedPV(e.PersistentVolumes, pvName)
	if pv == nil || !objects.IsCSI(pv) {
		return wire.Handle{}, false
	}
	handle, err := wire.ParseHandle(pv.Spec.CSI.VolumeHandle)
	return handle, err == nil
}

// waiting returns the VolumeAttachments that are not attached yet, by PersistentVolume.
func (e room) waiting() map[string][]*storagev1.VolumeAttachment {
	found := map[string][]*storagev1.VolumeAttachment{}
	for a := range e.Attachments.All() {
		if !a.Status.Attached && a.Spec.Attacher == wire.DriverName && a.Spec.Source.PersistentVolumeName != nil {
			found[*a.Spec.Source.PersistentVolumeName] = append(found[*a.Spec.Source.PersistentVolumeName], a)
		}
	}
	return found
}

// Awaited returns the name of a VolumeAttachment for which csi-attacher has something to
// do, according to the cache; empty if there is none.
func (e *Engine) Awaited() string {
	for a := range e.Attachments.All() {
		if !a.Status.Attached || a.DeletionTimestamp != nil {
			if _, ours := e.handleOf(a); ours {
				return a.Name
			}
		}
	}
	return ""
}

// keepPlaces reserves the places of a volume on nodes for which an earlier term made an
// attachment, although their VolumeAttachments do not show it yet. A record without a
// VolumeAttachment holds no place: nobody would ever give it back.
func (e room) keepPlaces(v cinder.Volume, handle wire.Handle, backend string, waiting []*storagev1.VolumeAttachment) {
	if len(waiting) == 0 {
		return
	}
	records := stamps.NodeRecordsOf(v)
	for _, a := range waiting {
		// The record may have no room for the whole name of the node.
		if records[wire.NodeKey(a.Spec.NodeName)].AttachmentID != "" {
			e.places.keep(place{backend, a.Spec.NodeName}, handle.String())
		}
	}
}
