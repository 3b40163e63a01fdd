package nodecheck

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// text reads a short file; empty if there is none.
func (c *checker) text(file string) string {
	content, err := c.root.ReadFile(file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

func (c *checker) exists(file string) bool {
	_, err := c.root.Modified(file)
	return err == nil
}

// ifMissing returns a remedy that writes a file, unless there is one that cannot be read:
// it may be good.
func ifMissing(err error, remedy string) string {
	var failed *fs.PathError
	if errors.As(err, &failed) && !errors.Is(err, fs.ErrNotExist) || errors.Is(err, context.DeadlineExceeded) {
		return "run the check as root; if that does not help, find out why the file cannot be read"
	}
	return remedy
}

// The families of distributions whose commands differ.
const (
	debian = "debian"
	ubuntu = "ubuntu"
	redHat = "rhel"
)

// distribution returns the family; empty if it is another one.
func (c *checker) distribution() string {
	words := map[string]bool{}
	for line := range strings.Lines(c.text("/etc/os-release")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "ID" || key == "ID_LIKE" {
			for _, word := range strings.Fields(strings.Trim(value, `"'`)) {
				words[word] = true
			}
		}
	}
	switch {
	case words["ubuntu"]:
		return ubuntu
	case words["debian"]:
		return debian
	case words["rhel"] || words["fedora"] || words["centos"]:
		return redHat
	}
	return ""
}

// install returns the command that installs packages.
func (c *checker) install(ofDebian, ofRedHat string) string {
	apt, dnf := "apt-get install "+ofDebian, "dnf install "+ofRedHat
	switch c.distro {
	case debian, ubuntu:
		return apt
	case redHat:
		return dnf
	}
	return apt + ", or " + dnf
}

func (c *checker) tool(name string, otherwise Status, ofDebian, ofRedHat string) bool {
	has := c.host.Has(name)
	if has {
		c.ok(name, "installed")
	} else {
		c.add(otherwise, name, "not installed", c.install(ofDebian, ofRedHat))
	}
	return has
}

// listening marks a socket that accepts connections, in the flags of /proc/net/unix.
const listening = "00010000"

// daemon checks that a daemon, or systemd in its place, listens on one of its sockets.
// Asking it could start it.
func (c *checker) daemon(name string, sockets ...string) {
	what := "daemon " + name
	// The sockets are in the node's network namespace, which is not always this process's.
	content, err := c.root.ReadFile("/proc/1/net/unix")
	if err != nil {
		c.warn(what, "unknown: "+err.Error(), "run the check as root")
		return
	}
	for line := range strings.Lines(string(content)) {
		// Num RefCount Protocol Flags Type St Inode Path; the kernel shows zeros as @.
		if fields := strings.Fields(line); len(fields) == 8 && fields[3] == listening && slices.Contains(sockets, strings.TrimRight(fields[7], "@")) {
			c.ok(what, "runs, or starts when it is needed")
			return
		}
	}
	c.fail(what, "does not run, and no socket would start it", "systemctl enable --now "+name)
}

// module checks that the kernel has a module, or can load it.
func (c *checker) module(name string) {
	what := "module " + name
	if _, err := c.root.ReadDir("/sys/module/" + name); err == nil {
		c.ok(what, "loaded")
		return
	}
	release, listed := c.text("/proc/sys/kernel/osrelease"), false
	for _, directory := range []string{"/lib/modules", "/run/booted-system/kernel-modules/lib/modules"} {
		for _, list := range []string{"modules.dep", "modules.builtin"} {
			content, err := c.root.ReadFile(path.Join(directory, release, list))
			listed = listed || err == nil
			for line := range strings.Lines(string(content)) {
				file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
				base, _, found := strings.Cut(path.Base(file), ".ko")
				if found && strings.ReplaceAll(base, "-", "_") == name {
					c.ok(what, "can be loaded")
					return
				}
			}
		}
	}
	if !listed {
		c.warn(what, "not loaded, and whether kernel "+release+" has it is unknown, for want of a list of its modules", "modprobe "+name)
		return
	}
	remedy := map[string]string{
		debian: "apt-get install linux-image-$(dpkg --print-architecture) && reboot",
		ubuntu: "apt-get install linux-modules-extra-$(uname -r)",
		redHat: "dnf install kernel-modules-$(uname -r)",
	}[c.distro]
	remedy = cmp.Or(remedy, "install the kernel's package with "+name)
	c.fail(what, "kernel "+release+" does not have it", remedy)
}

// kernel checks the version of Linux.
func (c *checker) kernel(major, minor int) {
	var has [2]int
	release := c.text("/proc/sys/kernel/osrelease")
	_, err := fmt.Sscanf(release, "%d.%d", &has[0], &has[1])
	if err != nil || slices.Compare(has[:], []int{major, minor}) < 0 {
		c.fail("kernel", fmt.Sprintf("Linux %s; %d.%d or later is needed", release, major, minor), "install a newer kernel, and reboot")
		return
	}
	c.ok("kernel", "Linux "+release)
}
