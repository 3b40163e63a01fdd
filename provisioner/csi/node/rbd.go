package node

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// protocolRBD is Cinder's name for images of Ceph.
const protocolRBD = "rbd"

// rbd maps images of Ceph. All paths of a volume lead to one image, by the monitors of
// its cluster, and the kernel finds the cluster's other servers by itself.
type rbd struct {
	kernel   *host.RBD
	state    *state
	observer Observer
	logger   *slog.Logger
}

// identify adds no name: Ceph knows its clients by their users.
func (p *rbd) identify(context.Context, *wire.Node) error { return p.kernel.Has() }

func (p *rbd) initiator(context.Context) (string, error) { return "", nil }

func (p *rbd) check(c wire.Connection) error {
	for _, path := range c.Paths {
		if path.Target != c.Paths[0].Target {
			return host.Refuse(host.Malformed, "the paths lead to several images, and a volume has one")
		}
	}
	_, err := imageOf(c.Paths)
	return err
}

func imageOf(paths []wire.Path) (host.Image, error) {
	var monitors []string
	for _, path := range paths {
		monitors = append(monitors, path.Portal)
	}
	return host.ImageAt(paths[0].Target, monitors)
}

// sharing returns what other nodes may do with a volume meanwhile. A volume for reading on
// one node is locked like others: the journal of its filesystem may have to be replayed.
func sharing(r *record) host.Sharing {
	switch {
	case r.NoWriters:
		return host.ManyReaders
	case r.ManyWriters:
		return host.ManyWriters
	case r.Taken:
		return host.Seized
	}
	return host.Locked
}

func (p *rbd) attach(ctx context.Context, r *record, credentials wire.Credentials) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	image, err := imageOf(r.Paths)
	if err != nil {
		return err
	}
	left, other, err := p.unmap(ctx, r, image)
	switch {
	case err != nil:
		return fmt.Errorf("the image is already mapped: %w", err)
	case other != "":
		return host.Refuse(host.InUse, "image %s is volume %s on this node, which is still staged, but the storage now gives it to volume %s", image, other, r.Volume)
	case left:
		p.observer.RemovedDisk()
		p.logger.Warn("image was still mapped and is unmapped", "volume", r.Volume, "image", image.String())
	}
	disk, err := p.kernel.Map(ctx, image, sharing(r), host.CephUser{Name: credentials.User, Key: credentials.Password})
	if err != nil {
		return err
	}
	if disk.Bytes < r.Bytes {
		return host.Refuse(host.WrongDisk, "volume %s has %d bytes, and its image %s has %d", r.Volume, r.Bytes, image, disk.Bytes)
	}
	r.Disks = []host.Disk{disk}
	return p.state.save(r)
}

// unmap unmaps an image, unless another volume has the mapping. The kernel shows mappings
// that an interrupted call made before it was recorded.
func (p *rbd) unmap(ctx context.Context, r *record, image host.Image) (unmapped bool, other string, err error) {
	mapped, err := p.kernel.MappingsOf(image)
	if err != nil {
		return false, "", err
	}
	for _, m := range mapped {
		if other, err = p.state.namesake(m.ID, r.Volume); other != "" || err != nil {
			return unmapped, other, err
		}
		if err := p.kernel.Unmap(ctx, m); err != nil {
			return unmapped, "", err
		}
		unmapped = true
	}
	return unmapped, "", nil
}

func (p *rbd) join(_ context.Context, r *record) (string, error) { return r.Disks[0].Name, nil }

func (p *rbd) detach(ctx context.Context, r *record) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	image, err := imageOf(r.Paths)
	if err == nil {
		_, _, err = p.unmap(ctx, r, image)
	}
	return err
}

// complete has nothing to do: the kernel learns the cluster's servers from any of them.
func (p *rbd) complete(context.Context, *record) error { return nil }

// forget has nothing to do: the kernel forgets its mappings.
func (p *rbd) forget(context.Context, *record) error { return nil }

// refresh has nothing to do: the kernel keeps the disk.
func (p *rbd) refresh(context.Context, *record) error { return nil }

func (p *rbd) inspect(ctx context.Context, disk host.Disk) (host.Disk, error) {
	return p.kernel.Inspect(ctx, disk)
}

func (p *rbd) rescan(ctx context.Context, disk host.Disk, least int64) (host.Disk, error) {
	return p.kernel.Rescan(ctx, disk, least)
}

func (p *rbd) cutOff(ctx context.Context, r *record) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	for _, disk := range r.Disks {
		if err := p.kernel.Fail(ctx, disk); err != nil {
			return err
		}
	}
	return nil
}

func (p *rbd) retrace(_ context.Context, r *record, names []string) (bool, error) {
	if len(names) != 1 {
		return false, nil
	}
	m, ours := p.kernel.MappedAt(names[0])
	if !ours {
		return false, nil
	}
	r.Disks = []host.Disk{{Image: m.String(), Name: m.Device}}
	for _, monitor := range m.Monitors {
		r.Paths = append(r.Paths, wire.Path{Portal: monitor, Target: m.String()})
	}
	return true, nil
}
