package books

import (
	"cmp"
	"slices"
	"sync"

	"github.com/standalone-cinder/standalone-cinder/test/chaos/machine"
)

// Pods knows which pods are meant to run on which machines.
type Pods struct {
	mu sync.Mutex
	// on are the volumes of pods, by node and PersistentVolume.
	on map[string]map[string]machine.Volume
}

// NewPods makes an empty book.
func NewPods() *Pods { return &Pods{on: map[string]map[string]machine.Volume{}} }

// Put notes that a pod is meant to run on a node, in place of an earlier one that has the
// same volume.
func (b *Pods) Put(node string, v machine.Volume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on[node] == nil {
		b.on[node] = map[string]machine.Volume{}
	}
	b.on[node][v.PV] = v
}

// Remove notes that a node is meant to run no pod any more that has a volume.
func (b *Pods) Remove(node, pv string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.on[node], pv)
}

// On returns the volumes of the pods that are meant to run on a node, in order.
func (b *Pods) On(node string) []machine.Volume {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []machine.Volume
	for _, v := range b.on[node] {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b machine.Volume) int { return cmp.Compare(a.PV, b.PV) })
	return all
}
