package host

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Why the kernel does not limit what a pod reads and writes.
const (
	// CgroupV1 means that the node has no cgroup v2, whose io.max counts buffered writes
	// for who made them.
	CgroupV1 Reason = "CgroupV1"
	// NoPodCgroup means that no cgroup of the pod was found.
	NoPodCgroup Reason = "NoPodCgroup"
	// NoIOController means that the pod's cgroup has no io.max: the kernel lacks it, or a
	// cgroup above does not pass the controller io on.
	NoIOController Reason = "NoIOController"
)

// Rates are what a cgroup may do with a device, per second. 0 means any rate.
type Rates struct {
	ReadBytes, WriteBytes, ReadOperations, WriteOperations int64
}

// Linux multiplied a rate of bytes by a time in 64 bits until 6.0 (blk-throttle.c), which
// makes of a huge rate any other. It keeps operations in 32 bits.
const (
	mostBytes      = 1 << 50
	mostOperations = 1<<32 - 1
)

// line returns the rates in the form of io.max (cgroup-v2.rst of the kernel).
func (r Rates) line(number string) string {
	rate := func(n, most int64) string {
		if n <= 0 || n >= most {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%s rbps=%s wbps=%s riops=%s wiops=%s\n", number,
		rate(r.ReadBytes, mostBytes), rate(r.WriteBytes, mostBytes), rate(r.ReadOperations, mostOperations), rate(r.WriteOperations, mostOperations))
}

// cgroups is where the node's first process has its cgroups. The mount is the node's, so
// it shows all of them in a container's namespace, too.
const cgroups = "/sys/fs/cgroup"

// CheckLimits returns an error if the kernel can hold no rates for any pod.
func CheckLimits(files Files) error {
	controllers, err := files.ReadFile(cgroups + "/cgroup.controllers")
	if err != nil {
		return Refuse(CgroupV1, "the node has no cgroup v2 at %s", cgroups)
	}
	if !slices.Contains(strings.Fields(string(controllers)), "io") {
		return Refuse(NoIOController, "the controllers of %s lack io", cgroups)
	}
	return nil
}

// LimitPod makes the kernel hold the rates of a device for a pod, and lifts those that are
// 0. A request counts where a process submits it, so device must be the topmost: what was
// opened from a disk, the map of its paths, or the head of a namespace. It returns false if
// the kernel holds just these rates.
func (h *Host) LimitPod(ctx context.Context, uid, device string, rates Rates) (changed bool, err error) {
	if err := CheckLimits(h.root); err != nil {
		return false, err
	}
	number := h.attribute("/sys/block/" + device + "/dev")
	if number == "" {
		return false, fmt.Errorf("the kernel has no device %s", device)
	}
	at := podCgroup(h.root, uid)
	if at == "" {
		return false, Refuse(NoPodCgroup, "no cgroup of pod %s is below %s", uid, cgroups)
	}
	file := at + "/io.max"
	content, err := h.root.ReadFile(file)
	if err != nil {
		return false, Refuse(NoIOController, "%s cannot be read: %v", file, err)
	}
	// A device without limits has no line.
	present, wanted := Rates{}.line(number), rates.line(number)
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, number+" ") {
			present = line
		}
	}
	if present == wanted {
		return false, nil
	}
	return true, h.root.Set(ctx, file, wanted)
}

// The search for a pod's cgroup is bounded: a node may have thousands of cgroups of others.
const (
	deepestCgroup = 7
	mostCgroups   = 500
)

// podCgroup returns the cgroup that the kubelet made for a pod, with either driver, and
// perhaps below another cgroup; empty if there is none. It looks level by level, and on
// each first where kubelets put pods.
func podCgroup(files Files, uid string) string {
	inside := strings.ReplaceAll(uid, "-", "_")
	level, read := []string{cgroups}, 0
	for depth := 0; depth < deepestCgroup && len(level) > 0; depth++ {
		var next []string
		for _, directory := range level {
			if read++; read > mostCgroups {
				return ""
			}
			names, err := files.ReadDir(directory)
			if err != nil {
				continue // it has just been removed
			}
			for _, name := range names {
				if name == "pod"+uid || name == "pod"+inside+".slice" || strings.HasSuffix(name, "-pod"+inside+".slice") {
					return path.Join(directory, name)
				}
				if mayHavePods(directory, name) {
					next = append(next, path.Join(directory, name))
				}
			}
		}
		slices.SortStableFunc(next, func(a, b string) int {
			return strings.Count(b, "kubepods") - strings.Count(a, "kubepods")
		})
		level = next
	}
	return ""
}

// mayHavePods reports whether pods may be below a name in a directory of cgroups. Files
// have a dot; of cgroups with a dot, only slices have others below. Within kubepods, there
// are two further classes, and other pods.
func mayHavePods(directory, name string) bool {
	stem, isSlice := strings.CutSuffix(name, ".slice")
	if strings.Contains(name, ".") && !isSlice {
		return false
	}
	if strings.Contains(directory, "kubepods") {
		return strings.HasSuffix(stem, "burstable") || strings.HasSuffix(stem, "besteffort")
	}
	return true
}

// podUID is the form of UIDs, of which those of static pods are digests.
var podUID = regexp.MustCompile(`^[0-9a-f][0-9a-f-]{7,63}$`)

// PodOf returns the UID of the pod in a path to which the kubelet publishes a volume; an
// empty one if there is none. The directory of a pod's filesystems is
// pods/UID/volumes, and the file of its device volumeDevices/publish/VOLUME/UID
// (pkg/volume/csi of Kubernetes). Unlike the volume context, the path is always there.
func PodOf(target string) string {
	parts := strings.Split(path.Clean(target), "/")
	uid := ""
	for i := range parts {
		switch {
		case i+2 < len(parts) && parts[i] == "pods" && parts[i+2] == "volumes":
			uid = parts[i+1]
		case i+4 == len(parts) && parts[i] == "volumeDevices" && parts[i+1] == "publish":
			uid = parts[i+3]
		}
	}
	if !podUID.MatchString(uid) {
		return ""
	}
	return uid
}

// IsUnready reports whether an error of LimitPod may end by itself: the kubelet may ask for
// a pod's volumes a moment before it has made the pod's cgroup.
func IsUnready(err error) bool {
	var refusal *Refusal
	return errors.As(err, &refusal) && (refusal.Reason == NoPodCgroup || refusal.Reason == NoIOController)
}
