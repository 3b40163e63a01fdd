package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

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
	sessions *host.ISCSI
	// iface is open-iscsi's name for the transport.
	iface string
	// replacement is how long a session may be lost before its commands fail; zero means
	// iscsid.conf's value.
	replacement time.Duration

	// failed is when the last login failed.
	mu     sync.Mutex
	failed map[host.Target]time.Time
}

// loginPause is how long a portal is avoided after a failed login, if others answer.
const loginPause = 5 * time.Minute

func (p *iscsi) identify(_ context.Context, n *wire.Node) error {
	err := p.sessions.Need("iscsiadm", "open-iscsi")
	if err != nil {
		return err
	}
	n.InitiatorName, err = p.sessions.InitiatorName()
	return err
}

func (p *iscsi) initiator(context.Context) (string, error) { return p.sessions.InitiatorName() }

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
	// A login at a dead portal is slow, and all volumes of the target would wait.
	paths, failures := p.answering(ctx, r.Initiator, r.Paths)
	if len(paths) == 0 {
		paths, failures = r.Paths, nil
	}
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	multipath := p.multipath(ctx, r, len(r.Paths))
	login := host.Login{
		Interface: p.iface, Initiator: r.Initiator, Replacement: p.replacement,
		Credentials: host.Credentials{User: credentials.User, Password: credentials.Password},
	}
	var disks []host.Disk
	for _, path := range paths {
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
		if !multipath {
			break
		}
	}
	return p.accept(r, disks, failures, multipath)
}

// logIn logs in at a path's portal and remembers whether that worked.
func (p *iscsi) logIn(ctx context.Context, path wire.Path, login host.Login) (host.Session, error) {
	session, err := p.sessions.LogIn(ctx, target(path), login)
	var refusal *host.Refusal
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil || errors.As(err, &refusal) {
		delete(p.failed, target(path))
	} else {
		maps.DeleteFunc(p.failed, func(_ host.Target, at time.Time) bool { return time.Since(at) >= loginPause })
		p.failed[target(path)] = time.Now()
	}
	return session, err
}

// answers returns an error if a login at a path's portal would not succeed.
func (p *iscsi) answers(ctx context.Context, initiator string, path wire.Path) error {
	sessions, err := p.sessions.SessionsTo(initiator, target(path))
	if err != nil {
		return err
	}
	if slices.ContainsFunc(sessions, host.Session.Works) {
		return nil
	}
	p.mu.Lock()
	failed, known := p.failed[target(path)]
	p.mu.Unlock()
	switch {
	case known && time.Since(failed) < loginPause:
		return fmt.Errorf("a login has failed %s ago", time.Since(failed).Round(time.Second))
	case p.iface == "default": // by TCP
		return p.sessions.Dial(ctx, path.Portal)
	}
	return nil
}

// answering returns the paths whose portals answer, and why the others do not.
func (p *iscsi) answering(ctx context.Context, initiator string, paths []wire.Path) (answer []wire.Path, failures []error) {
	errs := make([]error, len(paths))
	var dialing sync.WaitGroup
	for i, path := range paths {
		dialing.Go(func() { errs[i] = p.answers(ctx, initiator, path) })
	}
	dialing.Wait()
	for i, path := range paths {
		if errs[i] == nil {
			answer = append(answer, path)
		} else {
			failures = append(failures, fmt.Errorf("path by %s: %w", path.Portal, errs[i]))
		}
	}
	return answer, failures
}

// complete logs in at portals that were down earlier, and adds their disks to the
// volume's map.
func (p *iscsi) complete(ctx context.Context, r *record) error {
	switch {
	case len(r.Paths) < 2 || r.Map != "" && p.sessions.MapID(r.Device) != r.Map:
		return nil
	case r.Map == "":
		return errors.New("multipathd made no map when the volume was staged, so it has one path until its pods have moved")
	}
	if err := p.refresh(ctx, r); err != nil {
		return err
	}
	used, err := p.sessions.Paths(r.Device)
	if err != nil {
		return err
	}
	var lacking []wire.Path
	login := host.Login{Interface: p.iface, Initiator: r.Initiator, Replacement: p.replacement}
	var knows *wire.Path
	for _, path := range r.Paths {
		addresses, err := p.places(&record{Initiator: r.Initiator, Paths: []wire.Path{path}})
		if err != nil {
			return err
		}
		if slices.ContainsFunc(r.Disks, func(d host.Disk) bool {
			return slices.Contains(addresses, d.Address) && slices.Contains(used, d.Name)
		}) {
			knows = &path
			continue
		}
		lacking = append(lacking, path)
	}
	if len(lacking) == 0 || knows == nil || !p.sessions.MultipathRuns(ctx) {
		return nil
	}
	lacking, failures := p.answering(ctx, r.Initiator, lacking)
	if len(lacking) == 0 {
		return errors.Join(failures...)
	}
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	// The password is stored nowhere else.
	if login.Credentials, err = p.sessions.Known(ctx, target(*knows), p.iface); err != nil {
		return err
	}
	for _, path := range lacking {
		if err := p.completePath(ctx, r, path, login); err != nil {
			failures = append(failures, fmt.Errorf("path by %s: %w", path.Portal, err), p.sessions.LogOut(ctx, target(path), p.iface, r.Initiator))
		}
	}
	return errors.Join(failures...)
}

func (p *iscsi) completePath(ctx context.Context, r *record, path wire.Path, login host.Login) error {
	places, err := p.places(&record{Initiator: r.Initiator, Paths: []wire.Path{path}})
	if err != nil {
		return err
	}
	known := slices.IndexFunc(r.Disks, func(d host.Disk) bool { return slices.Contains(places, d.Address) })
	var disk host.Disk
	if known >= 0 {
		disk = r.Disks[known]
	} else if disk, err = p.attachPath(ctx, r, path, login); err != nil {
		return err
	}
	if disk.Identity != r.Disks[0].Identity {
		// multipathd may have mistaken it for the volume's.
		_, err := p.sessions.RemoveWithMap(ctx, disk.Address, func(string) (bool, error) { return true, nil })
		return errors.Join(host.Refuse(host.WrongDisk, "it leads to %s, and the volume is %s", disk.Identity, r.Disks[0].Identity), err)
	}
	// A path shorter than the map would fail its writes.
	size, err := p.sessions.Size(r.Device)
	if err != nil {
		return err
	}
	if disk, err = p.sessions.Rescan(ctx, disk, max(size, r.Bytes)); err != nil {
		return err
	}
	if known < 0 {
		r.Disks = append(r.Disks, disk)
		if err := p.state.save(r); err != nil {
			return err
		}
	}
	if err := p.sessions.Extend(ctx, r.Device, r.Map, disk); err != nil {
		return err
	}
	p.logger.Info("path has joined the volume", "volume", r.Volume, "portal", path.Portal, "disk", disk.Name)
	return nil
}

// places returns the places of the disks in the record's sessions.
func (p *iscsi) places(r *record) ([]host.Address, error) {
	var all []host.Address
	for _, path := range r.Paths {
		sessions, err := p.sessions.SessionsTo(r.Initiator, target(path))
		if err != nil {
			return nil, err
		}
		for _, session := range sessions {
			if place := session.Disk(path.LUN); !slices.Contains(all, place) {
				all = append(all, place)
			}
		}
	}
	return all, nil
}

func (p *iscsi) refresh(ctx context.Context, r *record) error { return p.update(ctx, r, p.places) }

// cutOff also covers disks that returned under other names.
func (p *iscsi) cutOff(ctx context.Context, r *record) error {
	addresses, err := p.places(r)
	if err != nil {
		return err
	}
	return p.cutOffAt(ctx, r, addresses)
}

func (p *iscsi) join(ctx context.Context, r *record) (string, error) {
	return p.joinAll(ctx, r, p.places)
}

func (p *iscsi) attachPath(ctx context.Context, r *record, path wire.Path, login host.Login) (host.Disk, error) {
	// Remove old disks before the login, because a lost session cannot be replaced
	// while it has a disk. A new session has no disks, because it is not scanned.
	existing, err := p.sessions.SessionsTo(r.Initiator, target(path))
	if err != nil {
		return host.Disk{}, err
	}
	for _, session := range existing {
		if err := p.clear(ctx, r, session.Disk(path.LUN), path.Target); err != nil {
			return host.Disk{}, err
		}
	}
	session, err := p.logIn(ctx, path, login)
	if err != nil {
		return host.Disk{}, err
	}
	address := session.Disk(path.LUN)
	name, err := p.sessions.Scan(ctx, address)
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
	addresses, err := p.places(r)
	if err != nil {
		return err
	}
	if err := p.remove(ctx, r, addresses); err != nil {
		return err
	}
	if err := p.removeStrays(ctx, r, addresses); err != nil {
		return err
	}
	return p.logOut(ctx, r)
}

// removeStrays removes other disks in the sessions of the volume's places: they were
// found by another program's scan, and would keep the sessions and their passwords. Disks
// in use stay.
func (p *iscsi) removeStrays(ctx context.Context, r *record, places []host.Address) error {
	var strays []host.Address
	for _, place := range places {
		disks, err := p.sessions.DisksOf(place.Host)
		if err != nil {
			return err
		}
		for _, disk := range disks {
			if disk.Channel == place.Channel && disk.Target == place.Target && !slices.Contains(places, disk) {
				strays = append(strays, disk)
			}
		}
	}
	for _, address := range strays {
		other, err := p.state.claimant(address, r.Volume)
		if err != nil {
			return err
		}
		if other != "" {
			continue
		}
		_, err = p.sessions.RemoveWithMap(ctx, address, p.foreign(r, address))
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

// logOut ends the record's sessions and removes their passwords, unless disks need them.
// The caller must hold the locks of the targets.
func (p *iscsi) logOut(ctx context.Context, r *record) error {
	var errs []error
	for _, path := range r.Paths {
		errs = append(errs, p.sessions.LogOut(ctx, target(path), p.iface, r.Initiator))
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
		session, found, err := p.sessions.SessionOf(disk.Address)
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
