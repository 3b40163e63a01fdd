package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
)

// limiter makes the kernel hold the limits of volumes, for each pod apart. A limit that it
// cannot hold stops no pod: at night, a pod that is too fast harms less than one that does
// not start. The metric tells the operators, who can act.
type limiter struct {
	host     *host.SCSI
	observer Observer
	logger   *slog.Logger
	// patience is how long the pod's cgroup may take to appear.
	patience time.Duration
}

const (
	cgroupPatience = time.Second
	cgroupPoll     = 100 * time.Millisecond
)

// ReasonNotLimited counts limits that could not be set for a reason of the kernel.
const ReasonNotLimited = "Failed"

// hold limits a pod before it can use the volume, and again if the call is repeated.
func (l limiter) hold(ctx context.Context, r *record, target string) {
	if r.Limits == nil {
		return
	}
	rates := host.Rates(*r.Limits)
	var err error
	for started := time.Now(); ; {
		_, err = l.set(ctx, r, target, rates)
		if !host.IsUnready(err) || time.Since(started) >= l.patience {
			break
		}
		time.Sleep(cgroupPoll)
	}
	if err == nil {
		l.tell(r, target)
		return
	}
	reason := ReasonNotLimited
	if refusal := new(host.Refusal); errors.As(err, &refusal) {
		reason = string(refusal.Reason)
	}
	l.observer.Unlimited(reason)
	l.logger.Error("pod uses a volume without its limits", "volume", r.Volume, "path", target, "error", err)
}

// holdAgain limits the pods that see a volume and lack its limits. The kubelet mounts volumes
// while a pod waits for the node's network, which may be long before the pod has a cgroup, and
// does not repeat the call; and what manages cgroups may take the controller away for a
// moment. hold has told what fails.
func (l limiter) holdAgain(ctx context.Context, r *record) {
	if r.Limits == nil {
		return
	}
	for _, target := range r.Targets {
		mounts, err := l.host.MountsAt(target)
		if err != nil || len(mounts) == 0 || !l.host.Shows(mounts[len(mounts)-1], r.used()) {
			continue
		}
		if changed, err := l.set(ctx, r, target, host.Rates(*r.Limits)); changed && err == nil {
			l.tell(r, target)
		}
	}
}

func (l limiter) tell(r *record, target string) {
	l.logger.Info("volume is limited for a pod", "volume", r.Volume, "device", r.used(), "pod", host.PodOf(target), "limits", *r.Limits)
}

// lift removes a pod's limits after its last path to the volume was unmounted: while the
// pod lives on, its next volume may get the device's number.
func (l limiter) lift(ctx context.Context, r *record, target string) {
	pod := host.PodOf(target)
	others := slices.ContainsFunc(r.Targets, func(at string) bool { return at != target && host.PodOf(at) == pod })
	if r.Limits == nil || others {
		return
	}
	// The kernel forgets the limits with the cgroup, and with the device.
	if _, err := l.set(ctx, r, target, host.Rates{}); err != nil && !host.IsUnready(err) {
		l.logger.Warn("limits of a volume could not be removed from its pod", "volume", r.Volume, "path", target, "error", err)
	}
}

func (l limiter) set(ctx context.Context, r *record, target string, rates host.Rates) (changed bool, err error) {
	pod := host.PodOf(target)
	if pod == "" {
		return false, errors.New("the path does not name a pod")
	}
	return l.host.LimitPod(ctx, pod, r.used(), rates)
}
