package node

import (
	"context"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// protocol brings volumes to the node by the storage's protocol.
type protocol struct {
	identity
	disks
	attacher
}

// by returns the protocol that one value implements.
func by[P interface {
	identity
	disks
	attacher
}](p P) protocol {
	return protocol{p, p, p}
}

// attacher brings a volume's disks to the node.
type attacher interface {
	// check refuses an invalid connection.
	check(wire.Connection) error
	// attach attaches the disks of a record's paths, proves that they are one volume, and
	// saves the record with them while no other call can touch them. Before, nothing of
	// the volume is on the node. detach removes what a failed attach left.
	attach(ctx context.Context, r *record, credentials wire.Credentials) error
	// complete adds the paths that a staged volume lacks. Its error lists those still
	// missing, and why.
	complete(ctx context.Context, r *record) error
	// detach removes the disks of the record's paths, their maps, and everything else
	// that only they needed. It also works if attach was interrupted at any point.
	detach(ctx context.Context, r *record) error
	// forget removes what outlives the boot in which a record was written.
	forget(ctx context.Context, r *record) error
	// retrace fills in the disks and paths of a record from the kernel's names of the
	// disks. It returns false if the disks are not of this protocol.
	retrace(ctx context.Context, r *record, names []string) (bool, error)
}

// identity is the node's identity for the storage.
type identity interface {
	// identify adds the names by which the storage knows the node. Its error names what
	// the node lacks.
	identify(context.Context, *wire.Node) error
	// initiator returns the one of these names that connections use.
	initiator(context.Context) (string, error)
}

// disks are the disks of attached volumes, as the kernel shows them.
type disks interface {
	// join returns the device for all of a record's disks.
	join(ctx context.Context, r *record) (string, error)
	// refresh updates the disks in a staged volume's record, if the kernel can lose disks
	// and find them again under other names.
	refresh(ctx context.Context, r *record) error
	// inspect asks a disk itself for its identity and size.
	inspect(ctx context.Context, disk host.Disk) (host.Disk, error)
	// rescan makes the kernel see that a disk has grown to at least the given size.
	rescan(ctx context.Context, disk host.Disk, least int64) (host.Disk, error)
	// cutOff makes the kernel fail all pending writes to a record's disks.
	cutOff(ctx context.Context, r *record) error
}
