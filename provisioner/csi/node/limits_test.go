package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

const (
	firstPod  = "0b3e1a52-3a3f-4a64-9a59-2b7e2a6f1c11"
	secondPod = "9d1c5a52-3a3f-4a64-9a59-2b7e2a6f1c22"
)

// publishedTo is where a kubelet publishes a volume to a pod.
func (u use) publishedTo(uid string) string {
	if u.block {
		return "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/" + uid
	}
	return "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/pvc-1/mount"
}

func (f *fixture) publishTo(u use, uid string) {
	f.t.Helper()
	_, err := f.service.NodePublishVolume(f.t.Context(), &csi.NodePublishVolumeRequest{
		PublishContext: u.stageRequest(f.t).PublishContext, VolumeId: u.handle(), StagingTargetPath: u.staging(), TargetPath: u.publishedTo(uid), VolumeCapability: u.capability(),
	})
	f.must(err)
}

func (f *fixture) unpublishFrom(u use, uid string) {
	f.t.Helper()
	_, err := f.service.NodeUnpublishVolume(f.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: u.handle(), TargetPath: u.publishedTo(uid)})
	f.must(err)
}

func (f *fixture) wantIOMax(cgroup string, want ...string) {
	f.t.Helper()
	if got := f.node.IOMax(cgroup); !slices.Equal(got, want) {
		f.t.Errorf("io.max of %s has %q, want %q", cgroup, got, want)
	}
}

func (f *fixture) numberOf(device string) string {
	f.t.Helper()
	content, err := f.node.ReadFile("/sys/block/" + device + "/dev")
	f.must(err)
	return strings.TrimSpace(string(content))
}

const rates = "rbps=2097152 wbps=max riops=max wiops=50"

// TestLimitsAreThePods: whatever the device is, the limits are those of the topmost.
func TestLimitsAreThePods(t *testing.T) {
	cgroup := "kubepods/burstable/pod" + firstPod
	for name, prepare := range map[string]func(*fixture, *use){
		"a single disk":  func(*fixture, *use) {},
		"a map of paths": func(f *fixture, u *use) { f.node.Multipathd, u.portals = true, []string{onePortal, twoPortal} },
		"a namespace":    func(f *fixture, u *use) { byNVMe(u, f.node) },
		"an image":       func(f *fixture, u *use) { byRBD(u, f.node) },
		"a LUKS mapping": func(_ *fixture, u *use) { encrypt(u, 2) },
		"a raw volume":   func(_ *fixture, u *use) { u.block = true },
		"a restart":      func(f *fixture, _ *use) { f.start() },
	} {
		t.Run(name, func(t *testing.T) {
			f, u := newFixture(t), plain()
			f.node.Cgroups = map[string]map[string]string{cgroup: {}}
			u.limits = &wire.Limits{ReadBytes: 2 << 20, WriteOperations: 50}
			prepare(f, &u)
			f.must(f.stage(u))
			for range 2 { // The kubelet repeats calls.
				f.publishTo(u, firstPod)
			}
			r, err := f.service.state.load(u.handle())
			f.must(err)
			f.wantIOMax(cgroup, f.numberOf(r.used())+" "+rates)
			f.start()
			for range 2 {
				f.unpublishFrom(u, firstPod)
			}
			f.wantIOMax(cgroup)
			f.must(f.unstage(u))
			f.clean()
			if got := strings.Join(f.observed, "\n"); strings.Contains(got, "unlimited") {
				t.Error(got)
			}
		})
	}
}

// TestEachPodHasTheLimits: a pod that ends takes no limits from another, and a cgroup that
// is gone harms nothing.
func TestEachPodHasTheLimits(t *testing.T) {
	f, u := newFixture(t), plain()
	first, second := "kubepods/pod"+firstPod, "kubepods/besteffort/pod"+secondPod
	f.node.Cgroups = map[string]map[string]string{first: {}, second: {}}
	u.limits = &wire.Limits{ReadBytes: 2 << 20, WriteOperations: 50}
	f.must(f.stage(u))
	f.publishTo(u, firstPod)
	f.publishTo(u, secondPod)
	r, err := f.service.state.load(u.handle())
	f.must(err)
	line := f.numberOf(r.used()) + " " + rates
	f.wantIOMax(first, line)
	f.wantIOMax(second, line)
	f.unpublishFrom(u, firstPod)
	f.wantIOMax(first)
	f.wantIOMax(second, line)
	delete(f.node.Cgroups, second)
	f.unpublishFrom(u, secondPod)
	f.must(f.unstage(u))
	f.clean()
}

// TestNoLimitStopsAPod lists why a limit may not hold. The pod gets the volume, and the
// metric tells.
func TestNoLimitStopsAPod(t *testing.T) {
	cgroup := "kubepods/burstable/pod" + firstPod
	for name, test := range map[string]struct {
		cgroups map[string]map[string]string
		limits  *wire.Limits
		want    string
	}{
		"cgroup v1":                  {limits: &wire.Limits{ReadBytes: 1}, want: string(host.CgroupV1)},
		"no cgroup of the pod":       {cgroups: map[string]map[string]string{"kubepods/burstable/pod" + secondPod: {}}, limits: &wire.Limits{ReadBytes: 1}, want: string(host.NoPodCgroup)},
		"no controller":              {cgroups: map[string]map[string]string{cgroup: nil}, limits: &wire.Limits{ReadBytes: 1}, want: string(host.NoIOController)},
		"staged by an older release": {cgroups: map[string]map[string]string{cgroup: {}}},
	} {
		t.Run(name, func(t *testing.T) {
			f, u := newFixture(t), plain()
			f.node.Cgroups, u.limits = test.cgroups, test.limits
			f.must(f.stage(u))
			f.publishTo(u, firstPod)
			f.wantIOMax(cgroup)
			told := slices.DeleteFunc(slices.Clone(f.observed), func(what string) bool { return !strings.HasPrefix(what, "unlimited ") })
			if want := "unlimited " + test.want; test.want != "" && !slices.Equal(told, []string{want}) || test.want == "" && len(told) > 0 {
				t.Errorf("told %q, want %q", told, test.want)
			}
			f.unpublishFrom(u, firstPod)
			f.must(f.unstage(u))
			f.clean()
		})
	}
}

// TestLimitsComeBack: the kubelet mounts the volumes of a pod that waits for the node's
// network before the pod has a cgroup, and whoever manages cgroups may take the controller
// away for a moment.
func TestLimitsComeBack(t *testing.T) {
	cgroup := "kubepods/burstable/pod" + firstPod
	for name, block := range map[string]bool{"a filesystem": false, "a raw volume": true} {
		t.Run(name, func(t *testing.T) {
			f, u := newFixture(t), plain()
			u.block, u.limits = block, &wire.Limits{ReadBytes: 2 << 20, WriteOperations: 50}
			f.node.Cgroups = map[string]map[string]string{"kubepods": nil}
			f.must(f.stage(u))
			f.publishTo(u, firstPod)
			f.publishTo(u, secondPod)
			r, err := f.service.state.load(u.handle())
			f.must(err)
			line := f.numberOf(r.used()) + " " + rates
			for _, becomes := range []map[string]string{{}, nil, {}} {
				f.node.Cgroups[cgroup] = becomes
				f.start()
				f.paths.Complete(t.Context())
				if becomes != nil {
					f.wantIOMax(cgroup, line)
				}
			}
			// Another device may have the number when the pod has let go of the volume.
			f.unpublishFrom(u, firstPod)
			f.paths.Complete(t.Context())
			f.wantIOMax(cgroup)
			if told := strings.Count(strings.Join(f.observed, " "), "unlimited"); told != 2 {
				t.Errorf("the metric counts %d pods, want 2", told)
			}
			f.unpublishFrom(u, secondPod)
			f.must(f.unstage(u))
			f.clean()
		})
	}
}

// TestHugeRatesAreNone: some kernels multiply a rate by a time in 64 bits.
func TestHugeRatesAreNone(t *testing.T) {
	f, u, cgroup := newFixture(t), plain(), "kubepods/pod"+firstPod
	u.limits = &wire.Limits{ReadBytes: 1 << 62, WriteBytes: 1<<63 - 1, ReadOperations: 1 << 62, WriteOperations: 50}
	f.node.Cgroups = map[string]map[string]string{cgroup: {}}
	f.must(f.stage(u))
	f.publishTo(u, firstPod)
	r, err := f.service.state.load(u.handle())
	f.must(err)
	f.wantIOMax(cgroup, f.numberOf(r.used())+" rbps=max wbps=max riops=max wiops=50")
}

// TestLimitsInAnyCgroup has the names that kubelets give to pods.
func TestLimitsInAnyCgroup(t *testing.T) {
	inside := strings.ReplaceAll(firstPod, "-", "_")
	for _, cgroup := range []string{
		"kubepods/pod" + firstPod, "kubepods/burstable/pod" + firstPod, "kubepods/besteffort/pod" + firstPod, "kubelet/kubepods/burstable/pod" + firstPod,
		"kubepods.slice/kubepods-pod" + inside + ".slice", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + inside + ".slice",
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + inside + ".slice",
	} {
		f, u := newFixture(t), plain()
		u.limits = &wire.Limits{ReadBytes: 2 << 20, WriteOperations: 50}
		f.node.Cgroups = map[string]map[string]string{cgroup: {}}
		// The kubelet's own services, and other pods, must not exhaust the search.
		for i := range 600 {
			f.node.Cgroups[fmt.Sprintf("kubepods/burstable/pod%08x-0000-4000-8000-000000000000/container", i)] = nil
			f.node.Cgroups[fmt.Sprintf("system.slice/service-%d.service", i)] = nil
		}
		f.must(f.stage(u))
		f.publishTo(u, firstPod)
		if len(f.node.IOMax(cgroup)) != 1 {
			t.Errorf("pod is not limited in %s: %q", cgroup, f.observed)
		}
	}
}

func TestPodOfAPath(t *testing.T) {
	for path, want := range map[string]string{
		plain().publishedTo(firstPod):                                                                  firstPod,
		use{block: true}.publishedTo(firstPod):                                                         firstPod,
		"/kubelet/pods/8d2f0c6f4be001ab/volumes/kubernetes.io~csi/pods/mount":                          "8d2f0c6f4be001ab",
		"/var/lib/kubelet/pods/../volumes/kubernetes.io~csi/pvc-1/mount":                               "",
		"/var/lib/kubelet/pods/" + firstPod:                                                            "",
		"/var/lib/kubelet/pods/" + firstPod + "*/volumes/kubernetes.io~csi/pvc-1/mount":                "",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1":                       "",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/" + firstPod + "/more": "",
	} {
		if got := host.PodOf(path); got != want {
			t.Errorf("the pod of %s is %q, want %q", path, got, want)
		}
	}
}
