package node

import (
	"context"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// protocol brings a volume's disks to the node.
type protocol interface {
	identity
	disks
	// check refuses a connection that cannot be made.
	check(wire.Connection) error
	// attach brings the disks of a record's paths, proves that they are one, and saves
	// the record with them while nobody else can touch them. Nothing of the volume is
	// on the node before; what an attempt that fails left is for detach.
	attach(ctx context.Context, r *record, credentials wire.Credentials) error
	// detach removes the disks of the record's paths, with their maps, and what only
	// they needed. It works for records whose attach was interrupted anywhere.
	detach(ctx context.Context, r *record) error
	// retrace fills in the disks and paths of a record by the kernel's names of the
	// disks, and is false if they are not of this protocol.
	retrace(ctx context.Context, r *record, names []string) (bool, error)
}

// identity is who the node is for the storage.
type identity interface {
	// identify adds the names that the storage knows the node by. Its error names
	// what the node lacks.
	identify(context.Context, *wire.Node) error
	// initiator is the one of these names that connections have.
	initiator(context.Context) (string, error)
}

// disks are those of attached volumes, as the kernel shows them.
type disks interface {
	// join returns the device that stands for all of a record's disks.
	join(ctx context.Context, r *record) (string, error)
	// refresh brings the disks of a staged volume's record up to date, if the kernel can
	// lose some and find them again under other names.
	refresh(ctx context.Context, r *record) error
	// inspect asks a disk itself what it is and how large.
	inspect(ctx context.Context, disk host.Disk) (host.Disk, error)
	// rescan makes the kernel see that a disk has grown, to at least so many bytes.
	rescan(ctx context.Context, disk host.Disk, least int64) (host.Disk, error)
	// cutOff makes the kernel fail whatever it still writes to the disks of a record.
	cutOff(ctx context.Context, r *record) error
}
