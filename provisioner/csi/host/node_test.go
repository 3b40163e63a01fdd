package host_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

const (
	target = "iqn.2026-01.org.example:vol-1"
	portal = "10.0.0.1:3260"
)

// owners are all that reach a node.
type owners struct {
	*host.Host
	*host.SCSI
	*host.ISCSI
	*host.FibreChannel
	*host.NVMe
}

func over(n *csinode.Node) owners {
	h := host.New(n.Root(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	scsi := &host.SCSI{Host: h}
	return owners{h, scsi, &host.ISCSI{SCSI: scsi}, &host.FibreChannel{SCSI: scsi}, &host.NVMe{Host: h}}
}

// found returns a node with one disk.
func found(t *testing.T) (*csinode.Node, owners, host.Address, string) {
	t.Helper()
	n := csinode.New()
	n.Targets[target] = &csinode.Target{Portals: []string{portal}, LUNs: map[int]*csinode.Volume{1: {Bytes: 1 << 30, Identity: "6001", Serial: "s 1"}}}
	number, session := n.LogIn(target, portal, csinode.Initiator)
	return n, over(n), host.Address{Host: number, LUN: 1}, n.Find(session, 1)
}

func refusal(err error) host.Reason {
	var r *host.Refusal
	errors.As(err, &r)
	if r == nil {
		return ""
	}
	return r.Reason
}

func TestADiskSaysWhatItIs(t *testing.T) {
	n, h, address, name := found(t)
	ctx := context.Background()
	disk, err := h.Inspect(ctx, address, name)
	if want := (host.Disk{Address: address, Name: name, Identity: "naa.6001/s 1", Bytes: 1 << 30}); err != nil || disk != want {
		t.Errorf("%+v, %v", disk, err)
	}
	// The target no longer has the LUN, but the kernel still has the disk.
	delete(n.Targets[target].LUNs, 1)
	if _, err := h.Inspect(ctx, address, name); refusal(err) != host.WrongDisk || !strings.HasSuffix(err.Error(), "is no longer a disk: its type is 0x7f") {
		t.Errorf("%v", err)
	}
}

func TestADiskThatChangesWhileItGrowsIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h, address, name := found(t)
		ctx := context.Background()
		disk, err := h.Inspect(ctx, address, name)
		if err != nil {
			t.Fatal(err)
		}
		n.Targets[target].LUNs[1].Bytes = 2 << 30
		if disk, err = h.Rescan(ctx, disk, 2<<30); err != nil || disk.Bytes != 2<<30 {
			t.Errorf("%+v, %v", disk, err)
		}
		if size, err := h.Size(name); err != nil || size != 2<<30 {
			t.Errorf("the kernel has %d bytes, %v", size, err)
		}
		n.Targets[target].LUNs[1].Identity = "6002"
		if _, err := h.Rescan(ctx, disk, 2<<30); refusal(err) != host.WrongDisk {
			t.Errorf("%v", err)
		}
	})
}

func TestADiskInUseIsNotRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, h, address, name := found(t)
		ctx := context.Background()
		n.MountByHand(name, "/mnt", "ext4")
		if err := h.RemoveDisk(ctx, address); refusal(err) != host.InUse {
			t.Errorf("%v", err)
		}
		n.UnmountByHand("/mnt")
		n.Hidden[name] = true
		if err := h.RemoveDisk(ctx, address); refusal(err) != host.InUse {
			t.Errorf("%v", err)
		}
		n.Hidden[name] = false
		for range 2 {
			if err := h.RemoveDisk(ctx, address); err != nil {
				t.Error(err)
			}
		}
		if len(n.Devices()) > 0 || len(n.Harm()) > 0 {
			t.Errorf("%q, %q", n.Devices(), n.Harm())
		}
	})
}
