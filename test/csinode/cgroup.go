package csinode

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"syscall"
)

const cgroupRoot = "/sys/fs/cgroup"

func (n *Node) cgroupTree(files map[string]string) {
	if n.Cgroups == nil {
		return
	}
	files[cgroupRoot+"/cgroup.controllers"] = "cpuset cpu io memory hugetlb pids rdma misc\n"
	for name, limits := range n.Cgroups {
		at := cgroupRoot + "/" + name + "/"
		files[at+"cgroup.procs"] = ""
		if limits == nil {
			continue
		}
		files[at+"io.max"] = ""
		for _, number := range slices.Sorted(maps.Keys(limits)) {
			files[at+"io.max"] += number + " " + limits[number] + "\n"
		}
	}
}

// limit writes to io.max as the kernel does: to the rates that the text names, of a device
// that there is.
func (n *Node) limit(at, value string) error {
	limits := n.Cgroups[strings.TrimPrefix(at, cgroupRoot+"/")]
	if limits == nil {
		return fs.ErrNotExist
	}
	number, text, _ := strings.Cut(strings.TrimSpace(value), " ")
	if _, known := n.tree()["/sys/dev/block/"+number+"/uevent"]; !known {
		return syscall.ENODEV
	}
	rates := map[string]string{}
	for _, field := range strings.Fields(cmp.Or(limits[number], "rbps=max wbps=max riops=max wiops=max") + " " + text) {
		key, rate, found := strings.Cut(field, "=")
		if !found || rate == "0" || !slices.Contains([]string{"rbps", "wbps", "riops", "wiops"}, key) {
			return syscall.EINVAL
		}
		rates[key] = rate
	}
	limits[number] = fmt.Sprintf("rbps=%s wbps=%s riops=%s wiops=%s", rates["rbps"], rates["wbps"], rates["riops"], rates["wiops"])
	if limits[number] == "rbps=max wbps=max riops=max wiops=max" {
		delete(limits, number)
	}
	return nil
}

// IOMax returns the lines of a cgroup's io.max.
func (n *Node) IOMax(cgroup string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.FieldsFunc(n.tree()[cgroupRoot+"/"+cgroup+"/io.max"], func(r rune) bool { return r == '\n' })
}
