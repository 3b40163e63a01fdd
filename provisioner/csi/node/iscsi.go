package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Cinder's names for the iSCSI protocols.
const (
	protocolISCSI = "iscsi"
	protocolISER  = "iser"
)

// iscsi is iSCSI over TCP or RDMA.
type iscsi struct {
	scsi
	// iface is open-iscsi's name for the transport.
	iface string
}

func (p *iscsi) identify(_ context.Context, n *wire.Node) error {
	if !p.host.Has("iscsiadm") {
		return errors.New("iscsiadm is not installed on the node; install open-iscsi")
	}
	var err error
	n.InitiatorName, err = p.host.InitiatorName()
	return err
}

func (p *iscsi) initiator(context.Context) (string, error) { return p.host.InitiatorName() }

func (p *iscsi) check(c wire.Connection) error {
	for _, path := range c.Paths {
		if err := host.CheckTarget(target(path), path.LUN); err != nil {
			return err
		}
	}
	return nil
}

func target(p wire.Path) host.Target { return host.Target{Name: p.Target, Portal: p.Portal} }

func (p *iscsi) attach(ctx context.Context, r *record, credentials wire.Credentials) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	multipath := p.host.MultipathRuns(ctx)
	login := host.Login{
		Interface: p.iface, Initiator: r.Initiator, Multipath: multipath && len(r.Paths) > 1,
		Credentials: host.Credentials{User: credentials.User, Password: credentials.Password},
	}
	var disks []host.Disk
	var failures []error
	for _, path := range r.Paths {
		disk, err := p.attachPath(ctx, r, path, login)
		var refusal *host.Refusal
		if errors.As(err, &refusal) {
			return err
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("path by %s: %w", path.Portal, err))
			continue
		}
		disks = append(disks, disk)
		// Without multipathd, several disks would bypass each other's caches.
		if !multipath {
			break
		}
	}
	return p.accept(r, disks, failures, multipath)
}

func (p *iscsi) attachPath(ctx context.Context, r *record, path wire.Path, login host.Login) (host.Disk, error) {
	// Remove old disks before the login, because a lost session cannot be replaced
	// while it has a disk. A new session has no disks, because it is not scanned.
	existing, err := p.host.SessionsTo(r.Initiator, target(path))
	if err != nil {
		return host.Disk{}, err
	}
	for _, session := range existing {
		if err := p.clear(ctx, r, session.Disk(path.LUN), path.Target); err != nil {
			return host.Disk{}, err
		}
	}
	session, err := p.host.LogIn(ctx, target(path), login)
	if err != nil {
		return host.Disk{}, err
	}
	address := session.Disk(path.LUN)
	name, err := p.host.Scan(ctx, address)
	if err != nil {
		return host.Disk{}, err
	}
	return p.inspectNew(ctx, r, address, name)
}

func (p *iscsi) detach(ctx context.Context, r *record) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	addresses, strays := map[host.Address]bool{}, map[host.Address]bool{}
	for _, path := range r.Paths {
		sessions, err := p.host.SessionsTo(r.Initiator, target(path))
		if err != nil {
			return err
		}
		for _, session := range sessions {
			addresses[session.Disk(path.LUN)] = true
			disks, err := p.host.DisksOf(session)
			if err != nil {
				return err
			}
			for _, address := range disks {
				strays[address] = true
			}
		}
	}
	if err := p.remove(ctx, r, slices.Collect(maps.Keys(addresses))); err != nil {
		return err
	}
	for address := range addresses {
		delete(strays, address)
	}
	if err := p.removeStrays(ctx, r, slices.Collect(maps.Keys(strays))); err != nil {
		return err
	}
	return p.logOut(ctx, r)
}

// removeStrays removes disks that somebody's scan found in the volume's sessions, and
// that would keep them and their passwords. What something uses stays.
func (p *iscsi) removeStrays(ctx context.Context, r *record, addresses []host.Address) error {
	for _, address := range addresses {
		other, err := p.state.claimant(address, r.Volume)
		if err != nil {
			return err
		}
		if other != "" {
			continue
		}
		_, err = p.host.RemoveWithMap(ctx, address, p.foreign(r, address))
		var refusal *host.Refusal
		switch {
		case errors.As(err, &refusal) && refusal.Reason == host.InUse:
			p.logger.Warn("session stays, since something uses another disk of it", "volume", r.Volume, "disk", address.String(), "error", err)
		case err != nil:
			return err
		default:
			p.logger.Warn("disk that no volume has is removed with the volume's session", "volume", r.Volume, "disk", address.String())
		}
	}
	return nil
}

// logOut ends the record's sessions, and removes their passwords, unless disks need
// them. The caller must hold the locks of the targets.
func (p *iscsi) logOut(ctx context.Context, r *record) error {
	var errs []error
	for _, path := range r.Paths {
		errs = append(errs, p.host.LogOut(ctx, target(path), p.iface, r.Initiator))
	}
	return errors.Join(errs...)
}

// forget removes open-iscsi's records, which hold passwords.
func (p *iscsi) forget(ctx context.Context, r *record) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	return p.logOut(ctx, r)
}

func (p *iscsi) retrace(_ context.Context, r *record, names []string) (bool, error) {
	r.Disks = p.disks(names)
	for _, disk := range r.Disks {
		session, found, err := p.host.SessionOf(disk.Address)
		if err != nil {
			return false, err
		}
		if !found || session.Interface != "" && session.Interface != p.iface {
			return false, nil
		}
		r.Initiator = session.Initiator
		r.Paths = append(r.Paths, wire.Path{Portal: session.Target.Portal, Target: session.Target.Name, LUN: disk.Address.LUN})
	}
	return len(r.Disks) > 0, nil
}
