// Package nodegrow grows the filesystem of a native volume on the node where the kubelet has
// mounted it. It trusts nobody about the device: it takes what the node's mount table shows
// for the PersistentVolume, and grows nothing unless the kernel shows that every path of it
// leads to the volume. It never formats, and a second run changes nothing.
package nodegrow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Options are the flags of `node grow`.
type Options struct {
	HostRoot        string
	ToolDirectories string
	KubeletDir      string
	// ResultFile gets the result; empty for none.
	ResultFile string
	wire.Growth

	// Root is the node; empty for the one at HostRoot.
	Root   host.Root
	Logger *slog.Logger
}

// AddFlags binds the options to flags, with their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.HostRoot, "host-root", "/", "where the node's root `directory` is mounted")
	flags.StringVar(&o.ToolDirectories, "tool-directories", "", "further `directories` of programs on the node, separated by colons, searched before the usual ones")
	flags.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "root `directory` of the kubelet on the node")
	flags.StringVar(&o.ResultFile, "result-file", "", "`file` that gets the result, too")
	flags.StringVar(&o.PersistentVolume, wire.FlagPersistentVolume, "", "`name` of the PersistentVolume (required)")
	flags.StringSliceVar(&o.Disks, wire.FlagDisk, nil, "`TARGET/LUN`, or WWID, of a disk of the volume; may be repeated (required)")
	flags.StringSliceVar(&o.Pods, wire.FlagPod, nil, "`UID` of a pod that uses the volume; may be repeated (required)")
	flags.Int64Var(&o.Bytes, wire.FlagBytes, 0, "size of the PersistentVolume in `bytes` (required)")
}

// Complete reports every invalid option.
func (o *Options) Complete() error {
	var problems []error
	if o.PersistentVolume == "" || strings.Contains(o.PersistentVolume, "/") {
		problems = append(problems, fmt.Errorf("--%s is %q; give the name of a PersistentVolume", wire.FlagPersistentVolume, o.PersistentVolume))
	}
	if len(o.Disks) == 0 {
		problems = append(problems, fmt.Errorf("--%s is missing; give the target and the LUN of the volume", wire.FlagDisk))
	}
	if len(o.Pods) == 0 {
		problems = append(problems, fmt.Errorf("--%s is missing; give the UID of a pod that uses the volume", wire.FlagPod))
	}
	if o.Bytes <= 0 {
		problems = append(problems, fmt.Errorf("--%s is %d; give the size of the PersistentVolume", wire.FlagBytes, o.Bytes))
	}
	for _, directory := range append(filepath.SplitList(o.ToolDirectories), o.HostRoot, o.KubeletDir) {
		if !path.IsAbs(directory) {
			problems = append(problems, fmt.Errorf("%q in --host-root, --kubelet-dir or --tool-directories is not absolute; give an absolute path", directory))
		}
	}
	return errors.Join(problems...)
}

// Run grows the filesystem, and writes what came of it.
func Run(ctx context.Context, o Options) (wire.Grown, error) {
	if o.Root == (host.Root{}) {
		o.Root = host.NewLocal(o.HostRoot, filepath.SplitList(o.ToolDirectories)...).Root()
	}
	disks := &host.SCSI{Host: host.New(o.Root, o.Logger)}
	g := &grower{Options: o, host: disks, sessions: &host.ISCSI{SCSI: disks}, ports: &host.FibreChannel{SCSI: disks}}
	grown, err := g.grow(ctx)
	if err != nil {
		err = fmt.Errorf("PersistentVolume %s: %w", o.PersistentVolume, err)
		grown = wire.Grown{Error: wire.Bounded(err.Error())}
	}
	if o.ResultFile != "" {
		content, problem := json.Marshal(grown)
		if problem == nil {
			problem = os.WriteFile(o.ResultFile, content, 0o600)
		}
		err = errors.Join(err, problem)
	}
	return grown, err
}

type grower struct {
	Options
	host     *host.SCSI
	sessions *host.ISCSI
	ports    *host.FibreChannel
}

func (g *grower) grow(ctx context.Context) (wire.Grown, error) {
	mount, err := g.mounted()
	if err != nil {
		return wire.Grown{}, err
	}
	device, err := g.host.DeviceOf(mount)
	if err != nil {
		return wire.Grown{}, err
	}
	paths, err := g.host.Paths(device)
	if err != nil {
		return wire.Grown{}, err
	}
	var disks []host.Disk
	for _, name := range paths {
		disk, err := g.prove(ctx, name)
		var refusal *host.Refusal
		if err != nil && len(paths) > 1 && !errors.As(err, &refusal) {
			err = fmt.Errorf("repair it, or take it out of the map (multipathd del path %s): %w", name, err)
		}
		if err != nil {
			return wire.Grown{}, fmt.Errorf("nothing was changed: path %s of %s, which is mounted at %s: %w", name, device, mount.At, err)
		}
		if len(disks) > 0 && disk.Identity != disks[0].Identity {
			return wire.Grown{}, host.Refuse(host.WrongDisk, "nothing was changed: %s is %s, and %s, a path of the same device %s, is %s", name, disk.Identity, disks[0].Name, device, disks[0].Identity)
		}
		disks = append(disks, disk)
	}
	size, err := g.host.Enlarge(ctx, device, disks, g.Bytes, g.host.Rescan)
	if err == nil {
		err = g.still(mount)
	}
	if err == nil {
		err = g.host.Grow(ctx, device, mount.At, mount.Type)
	}
	if err != nil {
		return wire.Grown{}, err
	}
	grown := wire.Grown{Device: device, Paths: paths, Filesystem: mount.Type, Bytes: size}
	// If the pod has ended meanwhile, the filesystem has grown nevertheless.
	if content, err := g.host.Look(ctx, device); err == nil && g.still(mount) == nil {
		grown.UUID = content.UUID
	}
	return grown, nil
}

// still returns an error if the kubelet has undone a mount, for example while the new size
// was awaited: the device's name may be another's by now.
func (g *grower) still(mount host.Mount) error {
	all, err := g.host.MountsAt(mount.At)
	if err == nil && !slices.ContainsFunc(all, func(m host.Mount) bool { return m.Number == mount.Number }) {
		err = fmt.Errorf("device %s is no longer mounted at %s; run the command again when a pod uses the volume", mount.Number, mount.At)
	}
	return err
}

// mounted returns a mount of the PersistentVolume for one of its pods, through which its
// filesystem can grow. Other pods may have a volume in the pod itself that has its name.
func (g *grower) mounted() (host.Mount, error) {
	all, err := g.host.Mounts()
	if err != nil {
		return host.Mount{}, err
	}
	pods := g.Root.Resolve(g.KubeletDir) + "/pods/"
	found := slices.DeleteFunc(all, func(m host.Mount) bool {
		below, isBelow := strings.CutPrefix(m.At, pods)
		parts := strings.Split(below, "/")
		return !isBelow || len(parts) != 4 || !slices.Contains(g.Pods, parts[0]) || parts[1] != "volumes" || parts[2] != "kubernetes.io~iscsi" && parts[2] != "kubernetes.io~fc" || parts[3] != g.PersistentVolume
	})
	if len(found) == 0 {
		return host.Mount{}, fmt.Errorf("the kubelet has not mounted it for a pod below %s; is --kubelet-dir the kubelet's --root-dir?", pods)
	}
	first := found[0]
	for _, m := range found {
		if m.Number != first.Number {
			return host.Mount{}, host.Refuse(host.WrongDisk, "device %s is mounted at %s, but device %s at %s", first.Number, first.At, m.Number, m.At)
		}
	}
	if !slices.Contains([]string{host.Ext4, "ext3", host.XFS}, first.Type) {
		return host.Mount{}, host.Refuse(host.WrongFilesystem, "its filesystem is %s, and only ext4, ext3 and xfs can be grown; grow it by hand", first.Type)
	}
	i := slices.IndexFunc(found, func(m host.Mount) bool { return !m.ReadOnly && !m.FilesystemReadOnly })
	if i < 0 {
		return host.Mount{}, fmt.Errorf("it is mounted read-only at %s, and only a filesystem that can be written can grow", first.At)
	}
	return found[i], nil
}

// prove returns the disk with a name if it is the volume's.
func (g *grower) prove(ctx context.Context, name string) (host.Disk, error) {
	address, err := g.host.AddressOf(name)
	if err != nil {
		return host.Disk{}, err
	}
	disk, err := g.host.Inspect(ctx, address, name)
	if err != nil {
		return host.Disk{}, err
	}
	// A WWID begins with the type of the identifier.
	designator, _, _ := strings.Cut(disk.Identity, "/")
	is := []string{strings.NewReplacer("naa.", "3", "eui.", "2").Replace(designator)}
	session, found, err := g.sessions.SessionOf(address)
	if err != nil {
		return host.Disk{}, err
	}
	if found {
		is = append(is, wire.DiskAt(session.Target.Name, address.LUN))
	}
	route, found, err := g.ports.PathOf(address)
	if err != nil {
		return host.Disk{}, err
	}
	if found {
		is = append(is, wire.DiskAt(route.Target, address.LUN))
	}
	if !slices.ContainsFunc(is, func(one string) bool { return slices.Contains(g.Disks, one) }) {
		return host.Disk{}, host.Refuse(host.WrongDisk, "it is %s, and the volume is %s", strings.Join(is, ", "), strings.Join(g.Disks, ", "))
	}
	return disk, nil
}
