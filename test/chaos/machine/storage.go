package machine

import (
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// VolumeBytes is the size of every volume.
const VolumeBytes = 1 << 30

// Storage is the arrays of the simulated Cinder, as machines reach them.
type Storage struct {
	// any is a node of the storage, on which nothing runs.
	any *csinode.Node

	mu      sync.Mutex
	volumes map[string]*csinode.Volume
	ids     map[*csinode.Volume]string
}

// NewStorage makes a storage of arrays.
func NewStorage(arrays ...*drivers.Array) *Storage {
	s := &Storage{any: csinode.New(), volumes: map[string]*csinode.Volume{}, ids: map[*csinode.Volume]string{}}
	for _, array := range arrays {
		s.any.Targets[array.Target] = &csinode.Target{Portals: []string{array.Portal}, Behind: func(initiator string, lun int) *csinode.Volume {
			return s.volume(array.Behind(initiator, lun))
		}}
	}
	return s
}

// volume returns a volume's content; nil if the ID is empty.
func (s *Storage) volume(id string) *csinode.Volume {
	if id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.volumes[id]
	if v == nil {
		v = &csinode.Volume{Bytes: VolumeBytes, Identity: identity(id)}
		s.volumes[id], s.ids[v] = v, id
	}
	return v
}

// Encryption returns the passphrases that open a volume, and whether there is content that
// can be read without one.
func (s *Storage) Encryption(id string) (passphrases []string, plain bool) {
	return s.any.Encryption(s.volume(id))
}

// identity returns what a volume's disks say: an NAA identifier.
func identity(id string) string {
	digits := strings.ReplaceAll(id, "-", "")
	if _, err := hex.DecodeString(digits); err != nil || len(digits) != 32 {
		return ""
	}
	return "6" + digits[1:]
}

// id returns the ID of a volume; empty for nil.
func (s *Storage) id(v *csinode.Volume) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[v]
}

// Write is where the kernel of a machine writes a volume.
type Write struct {
	// Node is the machine, and Volume the ID of the volume that it has mounted.
	Node, Volume string
	// Address is the place on the array that it writes to, and Behind the ID of the volume
	// that is there now; empty if the array shows it none.
	Address, Behind string
}

// Writes returns where the kernels of machines write, all at one moment. What a machine
// that is off had mounted is gone.
func (s *Storage) Writes(machines []*Machine) []Write {
	var nodes []*csinode.Node
	for _, m := range machines {
		nodes = append(nodes, m.kernel())
	}
	var all []Write
	for i, writes := range csinode.Writes(nodes...) {
		for _, w := range writes {
			all = append(all, Write{machines[i].Name, s.id(w.Of), fmt.Sprintf("LUN %d of %s", w.LUN, w.Target), s.id(w.Behind)})
		}
	}
	return all
}
