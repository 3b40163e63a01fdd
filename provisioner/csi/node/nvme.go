package node

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// protocolNVMeOF is Cinder's name for NVMe over fabrics.
const protocolNVMeOF = "nvmeof"

// nvme is NVMe over TCP. The kernel shows all namespaces of a connected subsystem, with
// one disk for all connections. A subsystem may have the namespaces of several volumes,
// so its connections are shared.
type nvme struct {
	host     *host.NVMe
	state    *state
	observer Observer
	logger   *slog.Logger
}

func (p *nvme) identify(ctx context.Context, n *wire.Node) error {
	names, err := p.host.Names(ctx)
	if err != nil {
		return err
	}
	n.HostNQN = names.NQN
	// A node ID has little room.
	if !strings.HasSuffix(names.NQN, ":"+names.ID) {
		n.HostID = names.ID
	}
	return nil
}

func (p *nvme) initiator(ctx context.Context) (string, error) {
	names, err := p.host.Names(ctx)
	return names.NQN, err
}

func (p *nvme) check(c wire.Connection) error {
	for _, path := range c.Paths {
		if err := host.CheckSubsystem(path.Target, path.Portal, path.LUN); err != nil {
			return err
		}
		if path.Target != c.Paths[0].Target || path.LUN != c.Paths[0].LUN {
			return host.Refuse(host.Malformed, "the paths lead to several subsystems or namespaces, and a volume has one")
		}
	}
	if c.Paths[0].LUN == 0 && len(c.Identities) == 0 {
		return host.Refuse(host.Malformed, "the connection says neither which namespace of %s the volume is nor how it is identified", c.Paths[0].Target)
	}
	return nil
}

// connections are this plugin's connections to a subsystem.
type connections struct {
	Boot      string   `json:"boot"`
	Subsystem string   `json:"subsystem"`
	Portals   []string `json:"portals"`
}

func (p *nvme) made(subsystem string) (connections, error) {
	none := connections{Boot: p.state.boot, Subsystem: subsystem}
	content, err := p.state.files.ReadFile(p.state.file(kindConnections, subsystem))
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	var found connections
	if err := json.Unmarshal(content, &found); err != nil {
		p.logger.Warn("state file of a subsystem's connections cannot be read; those of its volumes count as the plugin's", "subsystem", subsystem, "error", err)
		return p.ofVolumes(none)
	}
	if found.Boot != p.state.boot {
		return none, nil
	}
	return found, nil
}

// ofVolumes adds the connections that a subsystem's volumes have.
func (p *nvme) ofVolumes(of connections) (connections, error) {
	records, err := p.state.all()
	for _, r := range records {
		for _, path := range r.Paths {
			if r.Protocol == protocolNVMeOF && path.Target == of.Subsystem {
				of.Portals = append(of.Portals, path.Portal)
			}
		}
	}
	return of, err
}

// own records connections before they are created, or adopts existing ones.
func (p *nvme) own(of connections, portals ...string) error {
	for _, portal := range portals {
		if !slices.Contains(of.Portals, portal) {
			of.Portals = append(of.Portals, portal)
		}
	}
	return p.state.write(p.state.file(kindConnections, of.Subsystem), of)
}

// sharer returns another volume that is, or will be, in a subsystem.
func (p *nvme) sharer(subsystem, but string) (string, error) {
	return p.state.other(but, func(r *record) bool {
		return r.Protocol == protocolNVMeOF && slices.ContainsFunc(r.Paths, func(path wire.Path) bool { return path.Target == subsystem })
	})
}

// used returns how a subsystem's disk is used; nil if none is.
func (p *nvme) used(ctx context.Context, subsystem string) (inUse, err error) {
	names, err := p.host.NamespacesOf(subsystem)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if inUse, err := p.host.Use(ctx, name); inUse != nil || err != nil {
			return inUse, err
		}
	}
	return nil, nil
}

func (p *nvme) attach(ctx context.Context, r *record, _ wire.Credentials) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	subsystem := r.Paths[0].Target
	names, err := p.host.Names(ctx)
	if err != nil {
		return err
	}
	if err := p.clear(ctx, r, subsystem); err != nil {
		return err
	}
	if err := p.connect(ctx, r, subsystem, names); err != nil {
		return err
	}
	disk, err := p.host.FindNamespace(ctx, host.WantedNamespace{Subsystem: subsystem, ID: r.Paths[0].LUN, Identities: r.Identities})
	if err != nil {
		return err
	}
	other, err := p.state.other(r.Volume, func(of *record) bool {
		return slices.ContainsFunc(of.Disks, func(d host.Disk) bool { return d.Namespace == disk.Namespace || d.Identity == disk.Identity })
	})
	if err != nil {
		return err
	}
	if other != "" {
		return host.Refuse(host.InUse, "namespace %d of %s is volume %s on this node, which is still staged, but the storage now gives it to volume %s", disk.Namespace.ID, subsystem, other, r.Volume)
	}
	inUse, err := p.host.Use(ctx, disk.Name)
	if err == nil {
		err = inUse
	}
	if err != nil {
		return err
	}
	if disk.Bytes < r.Bytes {
		return host.Refuse(host.WrongDisk, "volume %s has %d bytes, and its disk %s has %d", r.Volume, r.Bytes, disk.Name, disk.Bytes)
	}
	r.Disks = []host.Disk{disk}
	return p.state.save(r)
}

// clear ends the plugin's leftover connections to a subsystem that nothing else needs, so
// that the kernel scans its namespaces again.
func (p *nvme) clear(ctx context.Context, r *record, subsystem string) error {
	other, err := p.sharer(subsystem, r.Volume)
	if err != nil || other != "" {
		return err
	}
	inUse, err := p.used(ctx, subsystem)
	if err != nil || inUse != nil {
		return err
	}
	disks, err := p.host.NamespacesOf(subsystem)
	if err != nil {
		return err
	}
	ended, err := p.disconnect(ctx, subsystem)
	if err == nil && ended && len(disks) > 0 {
		p.observer.RemovedDisk()
		p.logger.Warn("subsystem of an earlier volume was still connected and is disconnected", "volume", r.Volume, "subsystem", subsystem)
	}
	return err
}

// connect creates the missing connections. One working connection is enough.
func (p *nvme) connect(ctx context.Context, r *record, subsystem string, names host.NVMeHost) error {
	controllers, err := p.host.Controllers(subsystem)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if c.HostNQN != names.NQN {
			return host.Refuse(host.ForeignPath, "subsystem %s is also connected under the name %s, by controller %s; disconnect that one", subsystem, c.HostNQN, c.Name)
		}
	}
	made, err := p.made(subsystem)
	if err != nil {
		return err
	}
	var missing []string
	for _, path := range r.Paths {
		if !slices.ContainsFunc(controllers, func(c host.Controller) bool { return c.At(path.Portal) }) {
			missing = append(missing, path.Portal)
		}
	}
	if len(missing) > 0 {
		if err := p.own(made, missing...); err != nil {
			return err
		}
	}
	var failures []error
	for _, path := range r.Paths {
		if err := p.host.Connect(ctx, subsystem, path.Portal, names); err != nil {
			failures = append(failures, err)
		}
	}
	if len(failures) == len(r.Paths) {
		return errors.Join(failures...)
	}
	if len(failures) > 0 {
		p.logger.Warn("volume has fewer paths than it could", "volume", r.Volume, "paths", len(r.Paths)-len(failures), "error", errors.Join(failures...))
	}
	return nil
}

// complete creates connections that failed earlier. The kernel keeps existing ones and
// retries them by itself.
func (p *nvme) complete(ctx context.Context, r *record) error {
	subsystem := r.Paths[0].Target
	controllers, err := p.host.Controllers(subsystem)
	if err != nil || len(controllers) == 0 {
		return err
	}
	lacking := *r
	lacking.Paths = nil
	var failures []error
	for _, path := range r.Paths {
		if slices.ContainsFunc(controllers, func(c host.Controller) bool { return c.At(path.Portal) }) {
			continue
		}
		if err := p.host.Dial(ctx, path.Portal); err != nil {
			failures = append(failures, err)
			continue
		}
		lacking.Paths = append(lacking.Paths, path)
	}
	if len(lacking.Paths) == 0 {
		return errors.Join(failures...)
	}
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	names, err := p.host.Names(ctx)
	if err == nil {
		err = p.connect(ctx, &lacking, subsystem, names)
	}
	if err == nil {
		p.logger.Info("paths have joined the volume", "volume", r.Volume, "paths", len(lacking.Paths))
	}
	return errors.Join(append(failures, err)...)
}

// disconnect ends this plugin's connections to a subsystem.
func (p *nvme) disconnect(ctx context.Context, subsystem string) (ended bool, err error) {
	made, err := p.made(subsystem)
	if err != nil {
		return false, err
	}
	controllers, err := p.host.Controllers(subsystem)
	if err != nil {
		return false, err
	}
	for _, c := range controllers {
		if !slices.ContainsFunc(made.Portals, c.At) {
			continue
		}
		if err := p.host.Disconnect(ctx, c); err != nil {
			return false, err
		}
		ended = true
	}
	return ended, p.state.files.Remove(p.state.file(kindConnections, subsystem))
}

func (p *nvme) join(_ context.Context, r *record) (string, error) { return r.Disks[0].Name, nil }

func (p *nvme) detach(ctx context.Context, r *record) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	for _, disk := range r.Disks {
		// Its name may belong to another disk by now.
		if at, ok := p.host.NamespaceOf(disk.Name); !ok || at != disk.Namespace {
			continue
		}
		inUse, err := p.host.Use(ctx, disk.Name)
		if err == nil {
			err = inUse
		}
		if err != nil {
			return err
		}
		p.host.Unlayer(ctx, disk.Name)
	}
	subsystem := r.Paths[0].Target
	other, err := p.sharer(subsystem, r.Volume)
	if err != nil || other != "" {
		return err
	}
	inUse, err := p.used(ctx, subsystem)
	if err != nil {
		return err
	}
	if inUse != nil {
		p.logger.Warn("subsystem stays connected, since something else uses it", "volume", r.Volume, "subsystem", subsystem, "use", inUse)
		return nil
	}
	_, err = p.disconnect(ctx, subsystem)
	return err
}

// forget has nothing to do: the kernel forgets its connections.
func (p *nvme) forget(context.Context, *record) error { return nil }

// refresh has nothing to do: the kernel joins the paths itself, and keeps the disk.
func (p *nvme) refresh(context.Context, *record) error { return nil }

func (p *nvme) inspect(ctx context.Context, disk host.Disk) (host.Disk, error) {
	return p.host.InspectNamespace(ctx, disk)
}

func (p *nvme) rescan(ctx context.Context, disk host.Disk, least int64) (host.Disk, error) {
	return p.host.RescanNamespace(ctx, disk, least)
}

// cutOff disconnects the subsystem, so that pending writes never reach the namespace. A
// single namespace cannot be cut off. So a shared subsystem stays connected, and cutOff
// refuses unless the kernel drops the namespace, as it does when the storage has replaced
// it with another one.
func (p *nvme) cutOff(ctx context.Context, r *record) error {
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return err
	}
	defer release()
	subsystem := r.Paths[0].Target
	sharing, err := p.sharing(ctx, r, subsystem)
	if err != nil {
		return err
	}
	if sharing != "" {
		for _, disk := range r.Disks {
			dropped, err := p.host.DropExchanged(ctx, disk)
			if err != nil {
				return err
			}
			if !dropped {
				return host.Refuse(host.InUse, "cannot discard the pending writes of volume %s alone: it shares its NVMe subsystem (%s); stop the pods on this node that use the volume", r.Volume, sharing)
			}
		}
		return nil
	}
	controllers, err := p.host.Controllers(subsystem)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if err := p.host.Disconnect(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// sharing returns the other users of a subsystem; empty if there are none.
func (p *nvme) sharing(ctx context.Context, r *record, subsystem string) (string, error) {
	other, err := p.sharer(subsystem, r.Volume)
	if err != nil || other != "" {
		return "volume " + other + " is staged", err
	}
	names, err := p.host.NamespacesOf(subsystem)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if name == r.Device {
			continue
		}
		if inUse, err := p.host.Use(ctx, name); err != nil {
			return "", err
		} else if inUse != nil {
			return inUse.Error(), nil
		}
	}
	return "", nil
}

func (p *nvme) retrace(ctx context.Context, r *record, names []string) (bool, error) {
	if len(names) != 1 {
		return false, nil
	}
	at, ok := p.host.NamespaceOf(names[0])
	if !ok {
		return false, nil
	}
	controllers, err := p.host.Controllers(at.Subsystem)
	if err != nil || len(controllers) == 0 {
		return false, err
	}
	r.Disks = []host.Disk{{Name: names[0], Namespace: at}}
	var portals []string
	for _, c := range controllers {
		if c.Transport != "tcp" {
			return false, nil // a disk of the node itself
		}
		r.Initiator = c.HostNQN
		portals = append(portals, c.Portal)
		r.Paths = append(r.Paths, wire.Path{Portal: c.Portal, Target: at.Subsystem, LUN: at.ID})
	}
	release, err := p.state.lockTargets(ctx, r.Paths)
	if err != nil {
		return false, err
	}
	defer release()
	made, err := p.made(at.Subsystem)
	if err != nil {
		return false, err
	}
	// The mount's path shows that the connections are the plugin's.
	return true, p.own(made, portals...)
}
