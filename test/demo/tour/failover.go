package tour

import (
	"context"
	"fmt"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

const (
	// burst is how many claims are created around the failover, one per
	// burstPause. The leader dies when half of them are created and at least one
	// volume is half made.
	burst      = 20
	burstPause = 100 * time.Millisecond
)

// failOver kills the leader in the middle of its work.
func (t *tour) failOver(ctx context.Context) error {
	t.out.Step("The leader is killed while claims arrive")
	leader, err := t.leader(ctx, 30)
	if err != nil {
		return err
	}
	before := t.filed.Load()
	// The burst ends with this function, whatever happens.
	ctx, cancel := context.WithCancel(ctx)
	half, all := make(chan struct{}), make(chan error, 1)
	go func() { all <- t.fileBurst(ctx, half) }()
	ended := false
	defer func() {
		cancel()
		if !ended {
			<-all
		}
	}()

	select {
	case <-half:
	case err := <-all:
		ended = true
		return err
	}
	if err := t.waitBegun(ctx, 30); err != nil {
		return err
	}
	leader.dismiss()
	leader.Kill()
	killed := time.Now()
	made := t.filed.Load() - before
	begun, err := t.begunWithoutRecord(ctx)
	if err != nil {
		return err
	}
	t.out.Command(fmt.Sprintf("kill -9 %d", leader.PID()))
	t.out.Say("Replica %d is gone, with %d of %d new claims created; Cinder has %d volumes that no PV names yet. Its lease lasts 15 s from the last renewal (the default, which the tour does not change); until then no other replica may take over.",
		leader.number, made, burst, len(begun))
	err, ended = <-all, true
	if err != nil {
		return err
	}

	next, err := t.leader(ctx, 60)
	if err != nil {
		return fmt.Errorf("after the leader was killed: %w", err)
	}
	tookOver := time.Since(killed)
	bound, err := t.waitBound(ctx, 60)
	if err != nil {
		return err
	}
	done := time.Since(killed)
	adopted := 0
	for _, b := range bound {
		if begun[b.volume.ID] {
			adopted++
		}
	}
	t.out.Table([][]string{
		{after(tookOver), fmt.Sprintf("replica %d leads", next.number)},
		{after(done), fmt.Sprintf("all %d claims of both tenants are Bound, their volumes in use", len(bound))},
	})
	t.out.Say("%d claims, %d PVs, %d volumes at Cinder: none lost, none duplicated. Of %d half-made volumes, the new leader found %d by their stamp and finished them.",
		t.filed.Load(), len(bound), len(t.sim.Volumes()), len(begun), adopted)
	return nil
}

// after returns the time since an event.
func after(d time.Duration) string { return fmt.Sprintf("+%.1f s", d.Seconds()) }

// fileBurst creates claims for both tenants at a steady pace.
func (t *tour) fileBurst(ctx context.Context, half chan<- struct{}) error {
	ticker := time.NewTicker(burstPause)
	defer ticker.Stop()
	for i := range burst {
		var err error
		if i%2 == 0 {
			err = t.file(ctx, t.names.shop(), fmt.Sprintf("order-%d", i/2+1), t.names.fast(), "1Gi")
		} else {
			err = t.file(ctx, t.names.research(), fmt.Sprintf("run-%d", i/2+1), t.names.lab(), "1Gi")
		}
		if err != nil {
			return err
		}
		if i+1 == burst/2 {
			close(half)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

// waitBegun waits until Cinder has a volume that no PersistentVolume names: a
// leader that dies then leaves something to find.
func (t *tour) waitBegun(ctx context.Context, seconds int) error {
	ctx, cancel := within(ctx, seconds)
	defer cancel()
	return wrapped(harness.Eventually(ctx, func() (string, error) {
		begun, err := t.begunWithoutRecord(ctx)
		if err != nil || len(begun) > 0 {
			return "", err
		}
		return "no volume is half made", nil
	}), "%d s after claims were created", seconds)
}

// begunWithoutRecord returns the IDs of the volumes at Cinder that no
// PersistentVolume names.
func (t *tour) begunWithoutRecord(ctx context.Context) (map[string]bool, error) {
	pvs, err := t.suite.PersistentVolumes(ctx, t.names.provisioner)
	if err != nil {
		return nil, err
	}
	recorded := map[string]bool{}
	for _, pv := range pvs {
		recorded[pv.Annotations[annotationVolume]] = true
	}
	begun := map[string]bool{}
	for _, v := range t.sim.Volumes() {
		if !recorded[v.ID] {
			begun[v.ID] = true
		}
	}
	return begun, nil
}
