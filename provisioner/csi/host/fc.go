package host

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FibreChannel is a node's Fibre Channel ports, and their disks.
type FibreChannel struct{ *SCSI }

// FCPort is a Fibre Channel port of the node.
type FCPort struct {
	// Host is the number of the port's SCSI host.
	Host int
	// Name and NodeName are the names of the port and of its adapter: 16 digits in lower
	// case. NodeName is empty if the adapter has none.
	Name, NodeName string
	// State is the kernel's term, such as Online or Linkdown.
	State string
}

// FCPath is a path to a logical unit, from ports of the node to one of the storage.
type FCPath struct {
	From   []string
	Target string
	LUN    int
}

// Route is the kernel's view of an FCPath: one of the node's ports, and the target.
type Route struct {
	Address      Address
	From, Target string
	// Usable means that the two ports reach each other.
	Usable bool
}

// String names the ports and the LUN.
func (r Route) String() string {
	return fmt.Sprintf("LUN %d of port %s from port %s (%s)", r.Address.LUN, r.Target, r.From, r.Address)
}

const (
	fcHosts = "/sys/class/fc_host"
	// fcRemotePorts has the ports that the kernel has found in the fabric.
	fcRemotePorts = "/sys/class/fc_remote_ports"
)

var portDigits = regexp.MustCompile(`^[0-9a-f]{16}$`)

// fcName reads a name in the form of sysfs. It returns an empty string for a value that
// stands for no name.
func fcName(text string) string {
	name := strings.TrimPrefix(strings.ToLower(text), "0x")
	if !portDigits.MatchString(name) || strings.Trim(name, "0") == "" || strings.Trim(name, "f") == "" {
		return ""
	}
	return name
}

// CheckFC refuses an invalid path.
func CheckFC(p FCPath) error {
	for _, name := range append([]string{p.Target}, p.From...) {
		if name == "" || fcName(name) != name {
			return Refuse(Malformed, "%q is not the name of a Fibre Channel port", name)
		}
	}
	if len(p.From) == 0 {
		return Refuse(Malformed, "no port of the node reaches port %s", p.Target)
	}
	if p.LUN < 0 || p.LUN > math.MaxInt32 {
		return Refuse(Malformed, "%d is not a LUN", p.LUN)
	}
	return nil
}

// FCPorts lists the node's ports, sorted by name.
func (h *FibreChannel) FCPorts() ([]FCPort, error) {
	names, err := list(h.root, fcHosts)
	if err != nil {
		return nil, err
	}
	var ports []FCPort
	for _, name := range names {
		number, err := strconv.Atoi(strings.TrimPrefix(name, "host"))
		if err != nil {
			continue
		}
		directory := fcHosts + "/" + name + "/"
		port := FCPort{Host: number, Name: fcName(h.attribute(directory + "port_name")), NodeName: fcName(h.attribute(directory + "node_name")), State: h.attribute(directory + "port_state")}
		// A port that is not set up has no name.
		if port.Name != "" {
			ports = append(ports, port)
		}
	}
	slices.SortFunc(ports, func(a, b FCPort) int { return strings.Compare(a.Name, b.Name) })
	return ports, nil
}

// isUp reports whether a port, of the node or remote, can be used. A marginal port has
// errors, but works.
func isUp(state string) bool { return state == "Online" || state == "Marginal" }

// FCPortsOnline returns those of the node's ports that are connected to something. If
// there is none, the error says why.
func (h *FibreChannel) FCPortsOnline() ([]FCPort, error) {
	ports, err := h.FCPorts()
	if err != nil {
		return nil, err
	}
	online := slices.DeleteFunc(slices.Clone(ports), func(p FCPort) bool { return !isUp(p.State) })
	switch {
	case len(ports) == 0:
		return nil, fmt.Errorf("the node has no Fibre Channel port; %s lists none, so it has no HBA, or no driver for it", fcHosts)
	case len(online) == 0:
		return nil, fmt.Errorf("no Fibre Channel port of the node is online: %s; look at its cables and the switches", states(ports))
	}
	return online, nil
}

func states(ports []FCPort) string {
	var all []string
	for _, p := range ports {
		all = append(all, p.Name+" is "+p.State)
	}
	return some(all)
}

// maxNamed bounds the number of ports in a message.
const maxNamed = 8

func some(names []string) string {
	if len(names) > maxNamed {
		names = append(slices.Clone(names[:maxNamed]), fmt.Sprintf("and %d more", len(names)-maxNamed))
	}
	return strings.Join(names, ", ")
}

// remotePort is a port of the fabric, as one port of the node sees it.
type remotePort struct {
	host, channel, target int
	name                  string
	up                    bool
}

// remotePorts lists the ports of storage in the fabric. The kernel keeps vanished ports
// and their numbers.
func (h *FibreChannel) remotePorts() ([]remotePort, error) {
	names, err := list(h.root, fcRemotePorts)
	if err != nil {
		return nil, err
	}
	var ports []remotePort
	for _, name := range names {
		var port remotePort
		var number int
		if _, err := fmt.Sscanf(name, "rport-%d:%d-%d", &port.host, &port.channel, &number); err != nil {
			continue
		}
		directory := fcRemotePorts + "/" + name + "/"
		port.name, port.up = fcName(h.attribute(directory+"port_name")), isUp(h.attribute(directory+"port_state"))
		// Ports that are not storage, such as other nodes', have the number -1.
		if port.target, err = strconv.Atoi(h.attribute(directory + "scsi_target_id")); err != nil || port.target < 0 || port.name == "" {
			continue
		}
		ports = append(ports, port)
	}
	return ports, nil
}

// Routes lists the routes that the kernel has for paths, usable or not, sorted by
// address.
func (h *FibreChannel) Routes(paths []FCPath) ([]Route, error) {
	own, err := h.FCPorts()
	if err != nil {
		return nil, err
	}
	remote, err := h.remotePorts()
	if err != nil {
		return nil, err
	}
	routes := map[Address]Route{}
	for _, path := range paths {
		for _, port := range own {
			if !slices.Contains(path.From, port.Name) {
				continue
			}
			for _, r := range remote {
				if r.host != port.Host || r.name != path.Target {
					continue
				}
				route := Route{Address{r.host, r.channel, r.target, path.LUN}, port.Name, r.name, r.up && isUp(port.State)}
				if known, ok := routes[route.Address]; !ok || !known.Usable {
					routes[route.Address] = route
				}
			}
		}
	}
	var sorted []Route
	for _, route := range routes {
		sorted = append(sorted, route)
	}
	slices.SortFunc(sorted, func(a, b Route) int {
		return slices.Compare([]int{a.Address.Host, a.Address.Channel, a.Address.Target, a.Address.LUN}, []int{b.Address.Host, b.Address.Channel, b.Address.Target, b.Address.LUN})
	})
	return sorted, nil
}

// Reach waits until a port of the node reaches one of the storage, and returns all
// routes. If a zone was created for the volume, its ports appear a moment later.
func (h *FibreChannel) Reach(ctx context.Context, paths []FCPath) ([]Route, error) {
	var routes []Route
	found, err := until(ctx, patience, func() (bool, error) {
		var err error
		routes, err = h.Routes(paths)
		return slices.ContainsFunc(routes, func(r Route) bool { return r.Usable }), err
	})
	if err == nil && !found {
		err = h.unreachable(paths)
	}
	return routes, err
}

// unreachable returns an error that says why no port of the storage is reached.
func (h *FibreChannel) unreachable(paths []FCPath) error {
	own, err := h.FCPorts()
	if err != nil {
		return err
	}
	remote, err := h.remotePorts()
	if err != nil {
		return err
	}
	var from, targets, present, met []string
	for _, path := range paths {
		from, targets = append(from, path.From...), append(targets, path.Target)
	}
	slices.Sort(from)
	from = slices.Compact(from)
	named := slices.DeleteFunc(slices.Clone(own), func(p FCPort) bool { return !slices.Contains(from, p.Name) })
	for _, port := range own {
		present = append(present, port.Name)
	}
	for _, port := range remote {
		if port.up {
			met = append(met, port.name)
		}
	}
	slices.Sort(met)
	met = slices.Compact(met)
	switch {
	case len(named) == 0:
		return fmt.Errorf("the storage exposes the volume to the ports %s, but the node has %s; if its HBAs were replaced, restart the node plugin, and stop the pod until the volume is detached", some(from), orNone(present))
	case !slices.ContainsFunc(named, func(p FCPort) bool { return isUp(p.State) }):
		return fmt.Errorf("none of the node's ports that the storage exposes the volume to is online: %s; check their cables and the switches", states(named))
	}
	return fmt.Errorf("none of the storage's ports %s is visible from the node's ports %s after %s; check the switches' zones. Visible ports: %s", some(targets), some(from), patience, orNone(met))
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return some(names)
}

// straggling is how long after a volume's first disk another one may appear.
const straggling = 5 * time.Second

// ScanRoutes makes the kernel scan one LUN on each route and waits for the disks. After
// the first, the others get only a little longer. It returns the names of the disks, and
// why routes have none.
func (h *FibreChannel) ScanRoutes(ctx context.Context, routes []Route) (map[Address]string, []error, error) {
	names := map[Address]string{}
	scanned, failed := map[Address]time.Time{}, map[Address]error{}
	var first time.Time
	_, err := until(ctx, patience, func() (bool, error) {
		for _, route := range routes {
			a := route.Address
			if names[a] != "" {
				continue
			}
			name, known, err := h.diskAt(a)
			if err != nil {
				return false, err
			}
			if name != "" {
				names[a] = name
				if first.IsZero() {
					first = time.Now()
				}
				continue
			}
			// The array may take a moment to export the LUN.
			if !known && time.Since(scanned[a]) >= scanPause {
				failed[a], scanned[a] = h.scan(ctx, a), time.Now()
			}
		}
		return len(names) == len(routes) || len(names) > 0 && time.Since(first) >= straggling, nil
	})
	if err != nil {
		return nil, nil, err
	}
	var failures []error
	for _, route := range routes {
		switch {
		case names[route.Address] != "":
		case failed[route.Address] != nil:
			failures = append(failures, failed[route.Address])
		default:
			failures = append(failures, fmt.Errorf("the storage exposes no disk as %s; check the array's masking", route))
		}
	}
	return names, failures, nil
}

// PathOf returns a disk's path, and false if the disk is not on Fibre Channel. From is
// empty if the node's port no longer has a name.
func (h *FibreChannel) PathOf(a Address) (FCPath, bool, error) {
	own, err := h.FCPorts()
	if err != nil {
		return FCPath{}, false, err
	}
	remote, err := h.remotePorts()
	if err != nil {
		return FCPath{}, false, err
	}
	for _, r := range remote {
		if r.host != a.Host || r.channel != a.Channel || r.target != a.Target {
			continue
		}
		path := FCPath{Target: r.name, LUN: a.LUN}
		for _, port := range own {
			if port.Host == a.Host {
				path.From = []string{port.Name}
			}
		}
		return path, true, nil
	}
	return FCPath{}, false, nil
}
