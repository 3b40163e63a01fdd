package machine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// process is a machine as one process sees it, until that is killed. The goroutines of a
// killed one change nothing any more, nor do they end locks that the next one has taken.
type process struct {
	node *csinode.Node

	mu   sync.RWMutex // held for reading during every call
	dead bool
}

// root returns the machine as the Root of a Host.
func (p *process) root() host.Root { return host.Root{Files: p, Devices: p, Tools: p, Network: p} }

// kill returns when no call of the process is under way.
func (p *process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

// begin begins a call, unless the process is dead.
func (p *process) begin() (end func(), err error) {
	p.mu.RLock()
	if p.dead {
		p.mu.RUnlock()
		return nil, csinode.ErrCrashed
	}
	return p.mu.RUnlock, nil
}

func (p *process) do(call func() error) error {
	end, err := p.begin()
	if err != nil {
		return err
	}
	defer end()
	return call()
}

func get[T any](p *process, call func() (T, error)) (T, error) {
	end, err := p.begin()
	if err != nil {
		return *new(T), err
	}
	defer end()
	return call()
}

// ReadFile implements host.Files.
func (p *process) ReadFile(path string) ([]byte, error) {
	return get(p, func() ([]byte, error) { return p.node.ReadFile(path) })
}

// Resolve implements host.Files.
func (p *process) Resolve(path string) string { return p.node.Resolve(path) }

// ReadDir implements host.Files.
func (p *process) ReadDir(path string) ([]string, error) {
	return get(p, func() ([]string, error) { return p.node.ReadDir(path) })
}

// Modified implements node.Files.
func (p *process) Modified(path string) (time.Time, error) {
	return get(p, func() (time.Time, error) { return p.node.Modified(path) })
}

// Set implements host.Files.
func (p *process) Set(ctx context.Context, path, value string) error {
	return p.do(func() error { return p.node.Set(ctx, path, value) })
}

// Replace implements node.Files.
func (p *process) Replace(path string, content []byte) error {
	return p.do(func() error { return p.node.Replace(path, content) })
}

// MakeDir implements host.Files.
func (p *process) MakeDir(path string) error {
	return p.do(func() error { return p.node.MakeDir(path) })
}

// MakeFile implements host.Files.
func (p *process) MakeFile(path string) error {
	return p.do(func() error { return p.node.MakeFile(path) })
}

// Remove implements host.Files.
func (p *process) Remove(path string) error {
	return p.do(func() error { return p.node.Remove(path) })
}

// Lock implements node.Files. No call is under way while it waits.
func (p *process) Lock(ctx context.Context, path string, wait bool) (func(), error) {
	for {
		release, err := get(p, func() (func(), error) { return p.node.Lock(ctx, path, false) })
		if err == nil {
			return func() {
				_ = p.do(func() error {
					release()
					return nil
				})
			}, nil
		}
		if !errors.Is(err, host.ErrLocked) || !wait {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// SCSI implements host.Devices.
func (p *process) SCSI(ctx context.Context, disk string, command []byte, length int) ([]byte, error) {
	return get(p, func() ([]byte, error) { return p.node.SCSI(ctx, disk, command, length) })
}

// ConnectNVMe implements host.Devices.
func (p *process) ConnectNVMe(ctx context.Context, portal, options string) error {
	return p.do(func() error { return p.node.ConnectNVMe(ctx, portal, options) })
}

// TellRBD implements host.RBDKernel.
func (p *process) TellRBD(ctx context.Context, c host.RBDCall) error {
	return p.do(func() error { return p.node.TellRBD(ctx, c) })
}

// TellsRBD implements host.RBDKernel.
func (p *process) TellsRBD(image string) bool { return p.node.TellsRBD(image) }

// Identify implements host.Devices.
func (p *process) Identify(ctx context.Context, controller string, structure byte, namespace uint32) ([]byte, error) {
	return get(p, func() ([]byte, error) { return p.node.Identify(ctx, controller, structure, namespace) })
}

// ReadDevice implements host.Devices.
func (p *process) ReadDevice(ctx context.Context, device string, offset int64, length int) ([]byte, error) {
	return get(p, func() ([]byte, error) { return p.node.ReadDevice(ctx, device, offset, length) })
}

// Claimed implements host.Devices.
func (p *process) Claimed(ctx context.Context, device string) (bool, error) {
	return get(p, func() (bool, error) { return p.node.Claimed(ctx, device) })
}

// Usage implements host.Devices.
func (p *process) Usage(ctx context.Context, path string) (host.Usage, error) {
	return get(p, func() (host.Usage, error) { return p.node.Usage(ctx, path) })
}

// Has implements host.Tools.
func (p *process) Has(tool string) bool { return p.node.Has(tool) }

// toolTime is how long a program runs on a machine.
const toolTime = 10 * time.Millisecond

// Run implements host.Tools. What a program does, it does at its end; a killed process takes
// its programs along. No call is under way while the program runs.
func (p *process) Run(ctx context.Context, c host.Command) (string, error) {
	time.Sleep(toolTime)
	return get(p, func() (string, error) { return p.node.Run(ctx, c) })
}

// Dial implements host.Network.
func (p *process) Dial(ctx context.Context, address string) error {
	return p.do(func() error { return p.node.Dial(ctx, address) })
}
