package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// protocolFibreChannel is Cinder's name for SCSI over Fibre Channel.
const protocolFibreChannel = "fibre_channel"

// fibreChannel has no sessions: the kernel finds the ports of the storage by itself, and
// looks for disks there whenever one appears. So a disk can disappear and return under
// another name while its volume is staged, and there can be disks that were not
// requested.
type fibreChannel struct {
	scsi
	ports *host.FibreChannel
}

func (p *fibreChannel) identify(_ context.Context, n *wire.Node) error {
	ports, err := p.ports.FCPortsOnline()
	if err != nil {
		return err
	}
	for _, port := range ports {
		n.PortNames, n.NodeNames = append(n.PortNames, port.Name), append(n.NodeNames, port.NodeName)
	}
	if slices.Contains(n.NodeNames, "") {
		n.NodeNames = nil
	}
	return nil
}

func (p *fibreChannel) initiator(context.Context) (string, error) {
	ports, err := p.ports.FCPortsOnline()
	var names []string
	for _, port := range ports {
		names = append(names, port.Name)
	}
	return strings.Join(names, ","), err
}

func (p *fibreChannel) check(c wire.Connection) error {
	for _, path := range fcPaths(c.Paths) {
		if err := host.CheckFC(path); err != nil {
			return err
		}
	}
	return nil
}

func fcPaths(paths []wire.Path) []host.FCPath {
	var all []host.FCPath
	for _, path := range paths {
		all = append(all, host.FCPath{From: strings.Split(path.Portal, ","), Target: path.Target, LUN: path.LUN})
	}
	return all
}

func targetsOf(paths []wire.Path) []string {
	var targets []string
	for _, path := range paths {
		targets = append(targets, path.Target)
	}
	return targets
}

// lock keeps other calls from the LUNs of a record. All volumes of an array may have the
// same ports, but they must not wait for one another.
func (p *fibreChannel) lock(ctx context.Context, r *record) (func(), error) {
	var names []string
	for _, path := range r.Paths {
		names = append(names, fmt.Sprintf("%s %d", path.Target, path.LUN))
	}
	return p.state.lockAll(ctx, "lun", names)
}

func (p *fibreChannel) attach(ctx context.Context, r *record, _ wire.Credentials) error {
	routes, err := p.ports.Reach(ctx, fcPaths(r.Paths))
	if err != nil {
		return err
	}
	release, err := p.lock(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	var failures []error
	cleared := map[host.Address]bool{}
	for _, route := range routes {
		err := p.clear(ctx, r, route.Address, route.Target)
		var refusal *host.Refusal
		if err != nil && (route.Usable || errors.As(err, &refusal)) {
			return err
		}
		// The kernel waits for a lost port before it removes its disks.
		if err != nil {
			failures = append(failures, err)
			continue
		}
		cleared[route.Address] = true
	}
	// A port that has since come up may have lost the disk that the kernel found there.
	usable, err := p.ports.Routes(fcPaths(r.Paths))
	if err != nil {
		return err
	}
	usable = slices.DeleteFunc(usable, func(route host.Route) bool { return !route.Usable || !cleared[route.Address] })
	if len(usable) == 0 {
		return errors.Join(append(failures, fmt.Errorf("the storage's ports %s were lost just now", strings.Join(targetsOf(r.Paths), ", ")))...)
	}
	multipath := p.multipath(ctx, r, len(usable))
	var disks []host.Disk
	for len(usable) > 0 && len(disks) == 0 {
		next := usable
		if !multipath {
			next = usable[:1]
		}
		usable = usable[len(next):]
		found, failed, err := p.bring(ctx, r, next)
		if err != nil {
			return err
		}
		disks, failures = found, append(failures, failed...)
	}
	return p.accept(r, disks, failures, multipath)
}

// bring makes the kernel find the disks on routes, and returns why some routes have none.
func (p *fibreChannel) bring(ctx context.Context, r *record, routes []host.Route) (disks []host.Disk, failures []error, err error) {
	names, failures, err := p.ports.ScanRoutes(ctx, routes)
	if err != nil {
		return nil, nil, err
	}
	for _, route := range routes {
		name := names[route.Address]
		if name == "" {
			continue
		}
		disk, err := p.inspectNew(ctx, r, route.Address, name)
		var refusal *host.Refusal
		if errors.As(err, &refusal) {
			return nil, nil, err
		}
		if err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", route, err))
			continue
		}
		disks = append(disks, disk)
	}
	return disks, failures, nil
}

// places returns where the kernel looks for disks of the record's paths.
func (p *fibreChannel) places(r *record) ([]host.Address, error) {
	routes, err := p.ports.Routes(fcPaths(r.Paths))
	var all []host.Address
	for _, route := range routes {
		all = append(all, route.Address)
	}
	return all, err
}

func (p *fibreChannel) refresh(ctx context.Context, r *record) error {
	return p.update(ctx, r, p.places)
}

func (p *fibreChannel) join(ctx context.Context, r *record) (string, error) {
	return p.joinAll(ctx, r, p.places)
}

func (p *fibreChannel) detach(ctx context.Context, r *record) error {
	release, err := p.lock(ctx, r)
	if err != nil {
		return err
	}
	defer release()
	addresses, err := p.addresses(r)
	if err != nil {
		return err
	}
	return p.remove(ctx, r, addresses)
}

// addresses returns the addresses of the record's paths, up or not, and of the record's
// remaining disks.
func (p *fibreChannel) addresses(r *record) ([]host.Address, error) {
	paths := fcPaths(r.Paths)
	all, err := p.places(r)
	if err != nil {
		return nil, err
	}
	for _, disk := range r.Disks {
		if slices.Contains(all, disk.Address) {
			continue
		}
		name, err := p.ports.DiskAt(disk.Address)
		if err != nil {
			return nil, err
		}
		of, known, err := p.ports.PathOf(disk.Address)
		if err != nil {
			return nil, err
		}
		// A port of the node that has lost its name has no route. The kernel gives the
		// numbers of HBAs that are gone to other hosts, such as those of iSCSI
		// sessions.
		still := known && len(of.From) == 0 && slices.ContainsFunc(paths, func(path host.FCPath) bool {
			return path.Target == of.Target && path.LUN == of.LUN
		})
		if name == disk.Name && still {
			all = append(all, disk.Address)
		}
	}
	return all, nil
}

// cutOff also covers disks that returned under other names.
func (p *fibreChannel) cutOff(ctx context.Context, r *record) error {
	addresses, err := p.addresses(r)
	if err != nil {
		return err
	}
	return p.cutOffAt(ctx, r, addresses)
}

func (p *fibreChannel) retrace(_ context.Context, r *record, names []string) (bool, error) {
	r.Disks = p.disks(names)
	for _, disk := range r.Disks {
		path, found, err := p.ports.PathOf(disk.Address)
		if err != nil || !found || len(path.From) == 0 {
			return false, err
		}
		r.Initiator = path.From[0]
		r.Paths = append(r.Paths, wire.Path{Portal: path.From[0], Target: path.Target, LUN: path.LUN})
	}
	return len(r.Disks) > 0, nil
}
