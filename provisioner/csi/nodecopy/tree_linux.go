package nodecopy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// seLinux is the extended attribute that the node gives each volume as its pods need it.
const seLinux = "security.selinux"

// directory is an open directory of a volume. Names are looked up in it one at a time, and
// never followed, so no symbolic link and no long path leads elsewhere.
type directory struct {
	*os.File
	// path is that in the volume; empty for the root.
	path string
}

// entry is all that a copy has of an entry of a directory, except its content.
type entry struct {
	unix.Stat_t
	link       string // where a symbolic link leads
	attributes map[string]string
}

func (e *entry) kind() uint32 { return e.Mode & unix.S_IFMT }

// linkable reports whether an entry may have several names.
func (e *entry) linkable() bool { return e.kind() != unix.S_IFDIR && e.Nlink > 1 }

func (d *directory) at(name string) string { return path.Join(d.path, name) }

// byFD is a path of an entry that follows no link but that of /proc.
func (d *directory) byFD(name string) string {
	return "/proc/self/fd/" + strconv.Itoa(int(d.Fd())) + "/" + name
}

func (d *directory) failed(name string, err error) error {
	return fmt.Errorf("%s: %w", strconv.Quote(d.at(name)), err)
}

// open opens a file or directory.
func (d *directory) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(d.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, d.failed(name, err)
	}
	return os.NewFile(uintptr(fd), strconv.Quote(d.at(name))), nil
}

func (d *directory) directory(name string) (*directory, error) {
	file, err := d.open(name, unix.O_RDONLY|unix.O_DIRECTORY)
	return &directory{file, d.at(name)}, err
}

// below calls a function with a directory by its path, which may be longer than Linux allows.
func (d *directory) below(path string, do func(d *directory) error) error {
	if path == "." || path == "" {
		return do(d)
	}
	name, rest, _ := strings.Cut(path, "/")
	next, err := d.directory(name)
	if err != nil {
		return err
	}
	defer shut(next)
	return next.below(rest, do)
}

// names lists the entries.
func (d *directory) names() ([]string, error) {
	again, err := d.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer shut(again)
	names, err := again.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// read reads what is known of an entry; "." is the directory itself.
func (d *directory) read(name string) (*entry, error) {
	var e entry
	err := unix.Fstatat(int(d.Fd()), name, &e.Stat_t, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && e.kind() == unix.S_IFLNK {
		buffer := make([]byte, unix.PathMax)
		var n int
		n, err = unix.Readlinkat(int(d.Fd()), name, buffer)
		e.link = string(buffer[:max(n, 0)])
	}
	if err == nil {
		e.attributes, err = attributesOf(d.byFD(name))
	}
	if err != nil {
		return nil, d.failed(name, err)
	}
	return &e, nil
}

// attributesOf reads extended attributes: capabilities, access control lists, and users'.
func attributesOf(file string) (map[string]string, error) {
	buffer := make([]byte, 1<<16) // the most that Linux allows
	n, err := unix.Llistxattr(file, buffer)
	if errors.Is(err, unix.ENOTSUP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for name := range strings.SplitSeq(string(buffer[:n]), "\x00") {
		if name == "" || name == seLinux {
			continue
		}
		size, err := unix.Lgetxattr(file, name, buffer)
		if err != nil {
			return nil, fmt.Errorf("extended attribute %q: %w", name, err)
		}
		all[name] = string(buffer[:size])
	}
	return all, nil
}

// describe gives an entry of the target everything but its content.
func (d *directory) describe(name string, e *entry) error {
	err := unix.Fchownat(int(d.Fd()), name, int(e.Uid), int(e.Gid), unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && e.kind() != unix.S_IFLNK {
		err = unix.Fchmodat(int(d.Fd()), name, e.Mode&0o7777, 0)
	}
	for _, attribute := range slices.Sorted(maps.Keys(e.attributes)) {
		if err == nil {
			if err = unix.Lsetxattr(d.byFD(name), attribute, []byte(e.attributes[attribute]), 0); err != nil {
				err = fmt.Errorf("extended attribute %q: %w", attribute, err)
			}
		}
	}
	if err == nil {
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, e.Mtim}
		err = unix.UtimesNanoAt(int(d.Fd()), name, times, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return d.failed(name, err)
	}
	return nil
}

// clear removes everything in a directory.
func (d *directory) clear(ctx context.Context) error {
	names, err := d.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := d.read(name)
		if err != nil {
			return err
		}
		flags := 0
		if e.kind() == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
			below, err := d.directory(name)
			if err != nil {
				return err
			}
			err = below.clear(ctx)
			shut(below)
			if err != nil {
				return err
			}
		}
		if err := unix.Unlinkat(int(d.Fd()), name, flags); err != nil {
			return d.failed(name, err)
		}
	}
	return nil
}

// forgetAttributes removes the extended attributes of the directory itself: what is made in it
// would inherit its access control list.
func (d *directory) forgetAttributes() error {
	all, err := attributesOf(d.byFD("."))
	for name := range all {
		if err == nil {
			err = unix.Lremovexattr(d.byFD("."), name)
		}
	}
	return err
}

// trees are two volumes with filesystems.
type trees struct {
	*copier
	target *directory
	device uint64
	// links are the source's files with several names, by inode, until all have been seen.
	links map[uint64]*linked
}

// linked is a file with several names.
type linked struct {
	left  int    // how many names were not seen yet
	first string // when copying
	copy  uint64 // when comparing: the inode of the copy
}

// link returns what is known of a file with several names, and whether it was seen before.
func (t *trees) link(e *entry) (file *linked, known bool) {
	if file, known = t.links[e.Ino]; !known {
		file = &linked{left: int(e.Nlink)}
		t.links[e.Ino] = file
	}
	if file.left--; file.left == 0 {
		delete(t.links, e.Ino)
	}
	return file, known
}

func newTrees(c *copier, target *directory, root *entry) *trees {
	return &trees{copier: c, target: target, device: root.Dev, links: map[uint64]*linked{}}
}

func (c *copier) runTree(ctx context.Context, source, target *directory) error {
	root, err := source.read(".")
	if err != nil {
		return err
	}
	t := newTrees(c, target, root)
	err = target.clear(ctx)
	if err == nil {
		err = target.forgetAttributes()
	}
	if err != nil {
		return fmt.Errorf("cannot clear the target: %w", err)
	}
	if err := t.copyDirectory(ctx, source, target); err != nil {
		return fmt.Errorf("cannot copy: %w", err)
	}
	if len(t.links) > 0 {
		return fmt.Errorf("%d files have names outside of what was copied, or got others meanwhile", len(t.links))
	}
	if err := unix.Syncfs(int(target.Fd())); err != nil {
		return fmt.Errorf("cannot make the copy durable: %w", err)
	}
	return t.compareDirectory(ctx, source, target)
}

// copyDirectory copies what is in a directory, and then what is known of the directory: its
// time changes with each entry, and its default access control list would be inherited.
func (t *trees) copyDirectory(ctx context.Context, source, target *directory) error {
	names, err := source.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.copyEntry(ctx, source, target, name); err != nil {
			return err
		}
		t.copied.files.Add(1)
	}
	e, err := source.read(".")
	if err != nil {
		return err
	}
	return target.describe(".", e)
}

func (t *trees) copyEntry(ctx context.Context, source, target *directory, name string) error {
	e, err := source.read(name)
	if err != nil {
		return err
	}
	if e.Dev != t.device {
		return source.failed(name, errors.New("another filesystem is mounted there"))
	}
	to := int(target.Fd())
	if e.linkable() {
		file, known := t.link(e)
		if known {
			return t.target.below(path.Dir(file.first), func(d *directory) error {
				if err := unix.Linkat(int(d.Fd()), path.Base(file.first), to, name, 0); err != nil {
					return target.failed(name, err)
				}
				return nil
			})
		}
		file.first = source.at(name)
	}
	switch e.kind() {
	case unix.S_IFDIR:
		return t.copyBelow(ctx, source, target, name)
	case unix.S_IFREG:
		err = inBoth(source, target, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, func(from, to *os.File) error { return t.copyFile(ctx, from, to, e.Size) })
	case unix.S_IFLNK:
		err = unix.Symlinkat(e.link, to, name)
	default: // a FIFO, a socket or a device
		err = unix.Mknodat(to, name, e.Mode, int(e.Rdev))
	}
	if err != nil {
		return target.failed(name, err)
	}
	return target.describe(name, e)
}

func (t *trees) copyBelow(ctx context.Context, source, target *directory, name string) error {
	if err := unix.Mkdirat(int(target.Fd()), name, 0o700); err != nil {
		return target.failed(name, err)
	}
	return inBoth(source, target, name, unix.O_RDONLY|unix.O_DIRECTORY, func(from, to *os.File) error {
		return t.copyDirectory(ctx, &directory{from, source.at(name)}, &directory{to, target.at(name)})
	})
}

// inBoth opens an entry of two directories, in the target with the flags, for a function.
func inBoth(source, target *directory, name string, flags int, do func(from, to *os.File) error) error {
	from, err := source.open(name, unix.O_RDONLY|flags&unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer shut(from)
	to, err := target.open(name, flags)
	if err != nil {
		return err
	}
	defer shut(to)
	return do(from, to)
}

// copyFile copies the content of a file, and leaves its holes.
func (t *trees) copyFile(ctx context.Context, from, to *os.File, size int64) error {
	if err := to.Truncate(size); err != nil {
		return err
	}
	buffer := make([]byte, chunk)
	return eachExtent(from, 0, size, func(begin, end int64) error {
		for at := begin; at < end; at += chunk {
			n := int(min(chunk, end-at))
			if err := t.limit.WaitN(ctx, n); err != nil {
				return err
			}
			if err := read(from, buffer[:n], at); err != nil {
				return err
			}
			if _, err := to.WriteAt(buffer[:n], at); err != nil {
				return err
			}
			t.copied.bytes.Add(int64(n))
		}
		return nil
	})
}

// eachExtent calls a function for each part of a range of a file that is no hole.
func eachExtent(file *os.File, from, to int64, do func(begin, end int64) error) error {
	for at := from; at < to; {
		begin, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(file.Fd()), begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if begin >= to {
			return nil
		}
		if err := do(begin, min(end, to)); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// compareDirectory compares two directories, with what is below.
func (t *trees) compareDirectory(ctx context.Context, source, target *directory) error {
	names, err := source.names()
	if err != nil {
		return err
	}
	copied, err := target.names()
	if err != nil {
		return err
	}
	if !slices.Equal(names, copied) {
		return fmt.Errorf("directory %q of the source has %d entries, and its copy %d, or others", source.path, len(names), len(copied))
	}
	for _, name := range append(names, ".") {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := t.compareEntry(ctx, source, target, name); err != nil {
			return err
		}
		t.compared.files.Add(1)
	}
	return nil
}

func (t *trees) compareEntry(ctx context.Context, source, target *directory, name string) error {
	want, err := source.read(name)
	if err != nil {
		return err
	}
	has, err := target.read(name)
	if err != nil {
		return err
	}
	if what := want.differsFrom(has); what != "" {
		return source.failed(name, fmt.Errorf("the copy has another %s", what))
	}
	if want.linkable() {
		file, known := t.link(want)
		if known && file.copy != has.Ino {
			return source.failed(name, errors.New("the copy is a file of its own, and not another name of one"))
		} else if known {
			return nil
		}
		file.copy = has.Ino
	}
	switch {
	case name == ".":
		return nil
	case want.kind() == unix.S_IFREG:
		return inBoth(source, target, name, unix.O_RDONLY, func(from, to *os.File) error { return t.compareFile(ctx, from, to, want.Size) })
	case want.kind() != unix.S_IFDIR:
		return nil
	}
	return inBoth(source, target, name, unix.O_RDONLY|unix.O_DIRECTORY, func(from, to *os.File) error {
		return t.compareDirectory(ctx, &directory{from, source.at(name)}, &directory{to, target.at(name)})
	})
}

// differsFrom names what differs.
func (e *entry) differsFrom(other *entry) string {
	isFile := e.kind() == unix.S_IFREG
	switch {
	case e.Mode != other.Mode:
		return "mode"
	case e.Uid != other.Uid || e.Gid != other.Gid:
		return "owner"
	case e.Rdev != other.Rdev:
		return "device number"
	case isFile && e.Size != other.Size:
		return "size"
	case e.kind() != unix.S_IFDIR && e.Nlink != other.Nlink:
		return "number of names"
	case e.link != other.link:
		return "target"
	case !maps.Equal(e.attributes, other.attributes):
		return "set of extended attributes"
	case e.Mtim != other.Mtim: // last: it follows from most others
		return "time of modification"
	}
	return ""
}

// compareFile compares the content of two files, holes included.
func (t *trees) compareFile(ctx context.Context, from, to *os.File, size int64) error {
	forget(to)
	at := int64(0)
	// hole checks what the copy has from at to the end of a hole of the source.
	hole := func(end int64) error {
		return eachExtent(to, at, end, func(begin, end int64) error { return onlyZeros(to, begin, end) })
	}
	err := eachExtent(from, 0, size, func(begin, end int64) error {
		if err := hole(begin); err != nil {
			return err
		}
		at = end
		return t.eachChunk(ctx, from, to, begin, end, &t.compared, func(where int64, want, has []byte) error {
			if !bytes.Equal(want, has) {
				return fmt.Errorf("%s: the copy differs between bytes %d and %d", from.Name(), where, where+int64(len(want)))
			}
			return nil
		})
	})
	if err == nil {
		err = hole(size)
	}
	return err
}

// onlyZeros fails unless a part of a file, a hole of the source, reads as zeros.
func onlyZeros(file *os.File, begin, end int64) error {
	buffer := make([]byte, chunk)
	for at := begin; at < end; at += chunk {
		n := int(min(chunk, end-at))
		if err := read(file, buffer[:n], at); err != nil {
			return err
		}
		if !bytes.Equal(buffer[:n], make([]byte, n)) {
			return fmt.Errorf("%s: the copy has data where the source has a hole, between bytes %d and %d", file.Name(), at, at+int64(n))
		}
	}
	return nil
}
