package csinode

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// ErrBlocked is what a writer gets that would wait for a frozen filesystem.
var ErrBlocked = errors.New("the filesystem is frozen, so the writer waits")

// freezer is who froze a filesystem: a guard, or an administrator.
type freezer struct {
	guard *Guard
	// at is where the guard has it open.
	at string
}

// Guard is a guard of package host. It implements host.Frozen.
type Guard struct {
	node    *Node
	order   host.FreezeOrder
	ended   chan struct{}
	err     error
	over    bool
	expires *time.Timer
}

var _ host.Freezer = (*Node)(nil)

// FreezeByHand freezes the filesystem at a path, as an administrator does.
func (n *Node) FreezeByHand(at string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen[n.mountedAt(at).device] = freezer{}
}

// ThawByHand thaws the filesystem at a path, as an administrator does. It reports whether it
// was frozen.
func (n *Node) ThawByHand(at string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	device := n.mountedAt(at).device
	_, frozen := n.frozen[device]
	delete(n.frozen, device)
	return frozen
}

// Frozen reports how many filesystems are frozen.
func (n *Node) Frozen() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.frozen)
}

// KillGuards kills what has filesystems frozen. They stay frozen.
func (n *Node) KillGuards() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.killGuards()
}

func (n *Node) killGuards() {
	for _, h := range n.guards {
		h.end(host.ErrMayBeFrozen)
	}
	n.guards = nil
}

// orphan does what guards do when the plugin is killed.
func (n *Node) orphan() {
	if n.GuardsDie {
		n.killGuards()
		return
	}
	for _, h := range slices.Clone(n.guards) {
		h.thaw(host.ErrTimeUp)
	}
}

// mountedAt returns the topmost mount of a path; an empty one if there is none.
func (n *Node) mountedAt(at string) mount {
	for _, m := range slices.Backward(n.mounts) {
		if m.at == n.Resolve(at) {
			return *m
		}
	}
	return mount{}
}

// Freeze implements host.Freezer.
func (n *Node) Freeze(order host.FreezeOrder) (host.Frozen, error) {
	time.Sleep(n.FreezeDelay)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.crashed {
		return nil, ErrCrashed
	}
	h := &Guard{node: n, order: order, ended: make(chan struct{})}
	n.guards = append(n.guards, h)
	if err := n.change("write "+order.Record, func() error {
		n.files[order.Record] = []byte(order.Content)
		return nil
	}); err != nil {
		h.thaw(nil)
		return nil, err
	}
	for _, p := range order.Points {
		m := n.mountedAt(p.At)
		var err error
		switch _, frozen := n.frozen[m.device]; {
		case n.crashed:
			err = ErrCrashed
		case m.device == "" || number(m.device) != p.Number:
			err = syscall.ENOENT
		case frozen:
			err = host.ErrFrozenByOthers
		default:
			err = n.change("freeze "+p.At, func() error {
				n.frozen[m.device] = freezer{h, m.at}
				return nil
			})
		}
		if err != nil && h.over {
			return nil, h.err // The plugin is dead, and the guard did what it does then.
		}
		if err != nil {
			h.thaw(nil)
			return nil, &failed{p.At, err}
		}
	}
	h.expires = time.AfterFunc(order.AtMost, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		h.thaw(host.ErrTimeUp)
	})
	return h, nil
}

// failed is an error about a path.
type failed struct {
	at  string
	err error
}

func (f *failed) Error() string { return f.at + ": " + f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

// Thaw implements host.Freezer.
func (n *Node) Thaw(_ context.Context, p host.FreezePoint) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.mountedAt(p.At)
	by, frozen := n.frozen[m.device]
	if n.crashed || !frozen || number(m.device) != p.Number {
		return nil
	}
	return n.change("thaw "+p.At, func() error {
		if by.guard == nil {
			n.harm = append(n.harm, "what somebody else had frozen was thawed at "+p.At)
		}
		delete(n.frozen, m.device)
		return nil
	})
}

// Thaw implements host.Frozen.
func (h *Guard) Thaw() error {
	h.node.mu.Lock()
	defer h.node.mu.Unlock()
	h.thaw(nil)
	return h.err
}

// Ended implements host.Frozen.
func (h *Guard) Ended() <-chan struct{} { return h.ended }

// thaw thaws what the guard has frozen.
func (h *Guard) thaw(why error) {
	if h.over {
		return
	}
	mine := 0
	for device, by := range h.node.frozen {
		if by.guard == h {
			delete(h.node.frozen, device)
			mine++
		}
	}
	if why == nil && mine < len(h.order.Points) {
		why = errors.New("somebody else has thawed it")
	}
	delete(h.node.files, h.order.Record)
	h.node.guards = slices.DeleteFunc(h.node.guards, func(other *Guard) bool { return other == h })
	h.end(why)
}

func (h *Guard) end(why error) {
	if h.expires != nil {
		h.expires.Stop()
	}
	h.over, h.err = true, why
	close(h.ended)
}
