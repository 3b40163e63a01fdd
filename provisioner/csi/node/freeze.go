package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/frozen"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// Freezing freezes the filesystems of staged volumes. As long as they are frozen, it has
// the locks of the volumes, so that they are neither staged nor unstaged nor grown.
type Freezing struct {
	service *Service
	freezer host.Freezer
}

var _ frozen.Filesystems = (*Freezing)(nil)

// NewFreezing returns what freezes the filesystems of a Service's volumes.
func NewFreezing(of *Service, by host.Freezer) *Freezing { return &Freezing{of, by} }

// freezeRecord is the content of a guard's record. It matters only if the guard is killed.
type freezeRecord struct {
	Boot   string             `json:"boot"`
	Points []host.FreezePoint `json:"points"`
}

const (
	// lockPatience bounds the wait for calls that work on the volumes.
	lockPatience = 5 * time.Second
	// thawPatience bounds the wait for a filesystem to thaw, or for one that hangs while it
	// is frozen. Then the volume's calls may go on: only they get rid of dead disks.
	thawPatience = 5 * time.Second
	// thawPause is the time between two attempts to thaw what a guard has left.
	thawPause = time.Second
	// guardPatience bounds the wait for the guard of a plugin that was killed, and
	// guardPause is the time between two looks for its record.
	guardPatience = 3 * time.Second
	guardPause    = 100 * time.Millisecond
)

func (f *Freezing) file() string { return path.Join(f.service.state.dir, "frozen.json") }

// lock takes the lock of everything here: a node has one hold at a time, also if it has two
// plugins.
func (f *Freezing) lock(ctx context.Context) (func(), error) {
	return f.service.state.lock(ctx, "node", "frozen", false)
}

// Freeze implements frozen.Filesystems.
func (f *Freezing) Freeze(ctx context.Context, volumes []string, atMost time.Duration) (frozen.Hold, error) {
	end := time.Now().Add(min(atMost, frozen.Longest))
	unlock, err := f.lock(ctx)
	if err != nil {
		return nil, busy(err)
	}
	waiting, cancel := context.WithTimeout(ctx, min(lockPatience, time.Until(end)))
	release, err := f.service.state.lockAll(waiting, "volume", volumes)
	cancel()
	if err != nil {
		unlock()
		return nil, busy(err)
	}
	h := &hold{freezing: f, unlock: sync.OnceFunc(unlock), release: sync.OnceFunc(release), asked: make(chan struct{}), ended: make(chan struct{})}
	if err := f.look(h, volumes); err != nil {
		h.release()
		h.unlock()
		return nil, err
	}
	begun := make(chan error, 1)
	go h.run(ctx, begun, end)
	select {
	case err = <-begun:
	case <-ctx.Done():
		err = ctx.Err() // What is frozen nevertheless is thawed at once.
	case <-time.After(time.Until(end) + thawPatience):
		err = errors.New("the kernel has not answered in time")
		h.release()
	}
	if err != nil {
		return nil, err
	}
	return h, nil
}

func busy(err error) error {
	if errors.Is(err, host.ErrLocked) || errors.Is(err, context.DeadlineExceeded) {
		return frozen.Refuse(frozen.Busy, "", "another call for a volume is in progress on the node")
	}
	return err
}

// look finds the filesystems of the volumes that the node has and may write to.
func (f *Freezing) look(h *hold, volumes []string) error {
	mounts, err := f.service.host.Mounts()
	if err != nil {
		return err
	}
	for _, volume := range slices.Compact(slices.Sorted(slices.Values(volumes))) {
		r, err := f.service.state.load(volume)
		if err != nil {
			return frozen.Refuse(frozen.Failed, volume, "%v", err)
		}
		if r == nil {
			if slices.ContainsFunc(mounts, func(m host.Mount) bool { return strings.HasSuffix(m.At, stagedByKubelet(volume)) }) {
				return frozen.Refuse(frozen.Failed, volume, "it is mounted, but its state file is missing")
			}
			continue
		}
		switch {
		case !r.Staged:
			return frozen.Refuse(frozen.Busy, volume, "it is being staged or unstaged")
		case r.ReadOnly || r.NoWriters:
			continue
		case r.Filesystem == "":
			return frozen.Refuse(frozen.Raw, volume, "it is a raw block volume, which has no filesystem to freeze")
		case r.Outdated:
			return frozen.Refuse(frozen.Failed, volume, "it was detached from the node while it was staged")
		}
		top, err := f.service.host.MountsAt(r.StagingPath)
		if err != nil {
			return err
		}
		if len(top) == 0 || !f.service.host.Shows(top[len(top)-1], r.used()) {
			return frozen.Refuse(frozen.Failed, volume, "it is no longer mounted at %s", r.StagingPath)
		}
		h.points = append(h.points, host.FreezePoint{At: top[len(top)-1].At, Number: top[len(top)-1].Number})
		h.volumes = append(h.volumes, volume)
	}
	return nil
}

// stagedByKubelet is how the path ends at which kubelet has the driver mount a volume
// (makeDeviceMountPath in pkg/volume/csi/csi_attacher.go).
func stagedByKubelet(volume string) string {
	sum := sha256.Sum256([]byte(volume))
	return "/plugins/kubernetes.io/csi/" + wire.DriverName + "/" + hex.EncodeToString(sum[:]) + "/globalmount"
}

// hold implements frozen.Hold.
type hold struct {
	freezing *Freezing
	// points are the filesystems, and volumes their volumes.
	points  []host.FreezePoint
	volumes []string
	// unlock ends the lock of the node, and release those of the volumes.
	unlock, release func()

	asked chan struct{}
	ask   sync.Once
	ended chan struct{}
	// err says why they did not stay frozen until they were to be thawed, once ended is
	// closed.
	err error
}

// Thaw implements frozen.Hold.
func (h *hold) Thaw() error {
	h.ask.Do(func() { close(h.asked) })
	select {
	case <-h.ended:
		return h.err
	case <-time.After(thawPatience):
		h.release()
		return errors.New("the kernel has not thawed a filesystem in time")
	}
}

// Ended implements frozen.Hold.
func (h *hold) Ended() <-chan struct{} { return h.ended }

// run has everything frozen until it is to be thawed, and returns when nothing is frozen.
// begun gets an error, or nil once everything is frozen.
func (h *hold) run(ctx context.Context, begun chan<- error, end time.Time) {
	defer close(h.ended)
	defer h.unlock()
	defer h.release()
	if len(h.points) == 0 {
		begun <- nil
		h.err = h.wait(ctx, nil, end)
		return
	}
	// A record of strings has a form.
	content, _ := json.Marshal(freezeRecord{h.freezing.service.state.boot, h.points})
	by, err := h.freezing.freezer.Freeze(host.FreezeOrder{Points: h.points, AtMost: time.Until(end), Record: h.freezing.file(), Content: string(content)})
	if err != nil {
		h.over(ctx, err)
		h.release()
		h.unlock()
		begun <- h.explain(err)
		return
	}
	begun <- nil
	waited := h.wait(ctx, by.Ended(), end)
	err = by.Thaw()
	h.err = errors.Join(waited, err)
	if errors.Is(err, host.ErrTimeUp) {
		h.err = err
	}
	h.over(ctx, err)
}

// wait returns when filesystems are to be thawed, or are thawed. The error says why
// without having been asked.
func (h *hold) wait(ctx context.Context, ended <-chan struct{}, end time.Time) error {
	select {
	case <-h.asked:
		return nil
	case <-ended:
		return nil // The guard says why.
	case <-ctx.Done():
		return fmt.Errorf("the node plugin was stopped: %w", ctx.Err())
	case <-time.After(time.Until(end)):
		return host.ErrTimeUp
	}
}

// over thaws what a guard has left.
func (h *hold) over(ctx context.Context, ended error) {
	for errors.Is(ended, host.ErrMayBeFrozen) {
		err := h.freezing.thaw(ctx, h.points)
		if err == nil {
			return
		}
		h.freezing.service.logger.Error("filesystems cannot be thawed, so their pods wait", "error", err)
		select {
		case <-ctx.Done():
			return // The next process does it, by the record.
		case <-time.After(thawPause):
		}
	}
}

// thaw thaws what a guard may have left, and removes its record.
func (f *Freezing) thaw(ctx context.Context, points []host.FreezePoint) error {
	var errs []error
	for _, point := range points {
		// Also while the plugin is being stopped.
		errs = append(errs, f.freezer.Thaw(context.WithoutCancel(ctx), point))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return f.service.state.files.Remove(f.file())
}

// explain names the volume that could not be frozen.
func (h *hold) explain(err error) error {
	reason, volume := frozen.Failed, ""
	if errors.Is(err, host.ErrFrozenByOthers) {
		reason = frozen.Foreign
	}
	for i, point := range h.points {
		if strings.HasPrefix(err.Error(), point.At+":") {
			volume = h.volumes[i]
		}
	}
	return frozen.Refuse(reason, volume, "%v", err)
}

// Recover implements frozen.Filesystems. A guard that outlives the plugin thaws everything
// and removes its record. What remains was left by one that was killed.
func (f *Freezing) Recover(ctx context.Context) error {
	unlock, err := f.lock(ctx)
	if errors.Is(err, host.ErrLocked) {
		return nil // Another plugin of the node has something frozen.
	}
	if err != nil {
		return err
	}
	defer unlock()
	for waited := time.Duration(0); ; waited += guardPause {
		content, err := f.service.state.files.ReadFile(f.file())
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if waited < guardPatience {
			time.Sleep(guardPause)
			continue
		}
		var record freezeRecord
		if json.Unmarshal(content, &record) != nil || record.Boot != f.service.state.boot {
			// It was killed before it froze anything, or the kernel has started again.
			return f.service.state.files.Remove(f.file())
		}
		f.service.logger.Warn("the process that kept filesystems frozen was killed, so they are thawed", "filesystems", len(record.Points))
		return f.thaw(ctx, record.Points)
	}
}
