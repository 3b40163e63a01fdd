package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/frozen"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// freezing returns a node with two volumes that pods use.
func freezing(t *testing.T) (*fixture, []use, *Freezing) {
	f := newFixture(t)
	f.add("vol-2", &csinode.Volume{Bytes: gibibyte})
	first, second := plain(), plain()
	second.id, second.target = secondID, "vol-2"
	for i, u := range []use{first, second} {
		f.must(f.stage(u))
		f.must(f.publish(u, i, false))
	}
	return f, []use{first, second}, NewFreezing(f.service, f.node)
}

func handles(uses []use) (all []string) {
	for _, u := range uses {
		all = append(all, u.handle())
	}
	return all
}

// blocked checks whether writers wait.
func (f *fixture) blocked(uses []use, want bool) {
	f.t.Helper()
	for i, u := range uses {
		if err := f.node.Write(u.pod(i), "data"); errors.Is(err, csinode.ErrBlocked) != want || err != nil && !want {
			f.t.Errorf("writing to volume %d: %v", i, err)
		}
	}
}

// end unpublishes and unstages everything, and checks that nothing is left.
func (f *fixture) end(uses []use) {
	f.t.Helper()
	for i, u := range uses {
		f.must(f.unpublish(u, i))
		f.must(f.unstage(u))
	}
	f.clean()
}

// TestAFrozenVolumeIsNeitherWrittenNorTakenAway: calls for it are to be repeated, except the
// one that asks how full it is.
func TestAFrozenVolumeIsNeitherWrittenNorTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, uses, freezing := freezing(t)
		held, err := freezing.Freeze(t.Context(), handles(uses), time.Minute)
		f.must(err)
		f.blocked(uses, true)
		const text = "another call for volume"
		for _, u := range uses {
			f.refuses(f.stage(u), codes.Aborted, text)
			f.refuses(f.publish(u, 5, false), codes.Aborted, text)
			f.refuses(f.unpublish(u, 1), codes.Aborted, text)
			f.refuses(f.unstage(u), codes.Aborted, text)
			_, err := f.expand(u, 2*gibibyte)
			f.refuses(err, codes.Aborted, text)
			_, err = f.service.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: u.handle(), VolumePath: u.staging()})
			f.must(err)
		}
		if _, err := freezing.Freeze(t.Context(), handles(uses), time.Minute); !isRefused(err, frozen.Busy, "") {
			t.Errorf("they are frozen twice: %v", err)
		}
		for range 2 {
			f.must(held.Thaw())
		}
		<-held.Ended()
		f.blocked(uses, false)
		f.end(uses)
	})
}

func isRefused(err error, reason frozen.Reason, volume string) bool {
	var refusal *frozen.Refusal
	return errors.As(err, &refusal) && refusal.Reason == reason && refusal.Volume == volume
}

// TestAHoldEnds without having been asked to: it says why, and nothing stays frozen.
func TestAHoldEnds(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(f *fixture, uses []use, stop func())
		want string
	}{
		"time is up":                     {func(*fixture, []use, func()) { time.Sleep(11 * time.Second) }, host.ErrTimeUp.Error()},
		"the plugin is stopped":          {func(_ *fixture, _ []use, stop func()) { stop(); time.Sleep(time.Second) }, "the node plugin was stopped"},
		"the guard is killed":            {func(f *fixture, _ []use, _ func()) { f.node.KillGuards(); time.Sleep(time.Second) }, "a filesystem may still be frozen"},
		"somebody else thaws one":        {func(f *fixture, uses []use, _ func()) { f.node.ThawByHand(uses[1].pod(1)) }, "somebody else has thawed it"},
		"the guard is killed as it ends": {func(f *fixture, _ []use, stop func()) { f.node.KillGuards(); stop() }, "a filesystem may still be frozen"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, uses, freezing := freezing(t)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				held, err := freezing.Freeze(ctx, handles(uses), 10*time.Second)
				f.must(err)
				c.do(f, uses, stop)
				if err := held.Thaw(); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("the error is %v", err)
				}
				synctest.Wait()
				f.blocked(uses, false)
				f.end(uses)
			})
		})
	}
}

// TestNoNodeKeepsAnythingFrozenForLong: whatever it is told.
func TestNoNodeKeepsAnythingFrozenForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, uses, freezing := freezing(t)
		_, err := freezing.Freeze(t.Context(), handles(uses), 24*time.Hour)
		f.must(err)
		time.Sleep(frozen.Longest - time.Millisecond)
		f.blocked(uses, true)
		time.Sleep(2 * time.Millisecond)
		f.blocked(uses, false)
		f.end(uses)
	})
}

// TestWhatCannotBeFrozen is refused, and nothing else of the order is frozen either.
func TestWhatCannotBeFrozen(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(f *fixture, second *use)
		reason  frozen.Reason
		text    string
	}{
		"a raw volume": {func(f *fixture, second *use) {
			f.must(f.unpublish(*second, 1))
			f.must(f.unstage(*second))
			second.block = true
			f.node.Targets[iqn("vol-2")].LUNs[1] = &csinode.Volume{Bytes: gibibyte}
			f.must(f.stage(*second))
		}, frozen.Raw, "it is a raw block volume"},
		"frozen by others": {func(f *fixture, second *use) { f.node.FreezeByHand(second.staging()) }, frozen.Foreign, "somebody else has frozen it"},
		"half staged": {func(f *fixture, second *use) {
			r, err := f.service.state.load(second.handle())
			f.must(err)
			r.Staged = false
			f.must(f.service.state.save(r))
		}, frozen.Busy, "it is being staged"},
		"detached while it was staged": {func(f *fixture, second *use) {
			r, err := f.service.state.load(second.handle())
			f.must(err)
			r.Outdated = true
			f.must(f.service.state.save(r))
		}, frozen.Failed, "it was detached"},
		"a damaged state file": {func(f *fixture, second *use) {
			f.node.PutFile(f.service.state.file(kindVolumes, second.handle()), "{")
		}, frozen.Failed, "cannot be read"},
		"no state file": {func(f *fixture, second *use) {
			f.node.RemoveFiles(f.service.state.file(kindVolumes, second.handle()))
			f.node.MountByHand("sdx", "/data/kubelet"+stagedByKubelet(second.handle()), "ext4")
		}, frozen.Failed, "its state file is missing"},
		"not mounted": {func(f *fixture, second *use) { f.node.UnmountByHand(second.staging()) }, frozen.Failed, "it is no longer mounted"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, uses, freezing := freezing(t)
				c.prepare(f, &uses[1])
				before := f.node.Frozen()
				_, err := freezing.Freeze(t.Context(), handles(uses), time.Minute)
				if !isRefused(err, c.reason, uses[1].handle()) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("the error is %v", err)
				}
				f.blocked(uses[:1], false)
				if f.node.Frozen() != before {
					t.Error("what others had frozen is thawed")
				}
				f.must(f.unpublish(uses[0], 0)) // Nothing is locked.
			})
		})
	}
}

// TestWhatNeedsNoFreezing is kept from being staged meanwhile, or cannot be written.
func TestWhatNeedsNoFreezing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		freezing := NewFreezing(f.service, f.node)
		held, err := freezing.Freeze(t.Context(), []string{u.handle()}, 10*time.Second)
		f.must(err)
		f.refuses(f.stage(u), codes.Aborted, "another call for volume")
		f.must(held.Thaw())
		f.must(f.stage(u))
		held, err = freezing.Freeze(t.Context(), []string{"gold/" + foreignID}, 10*time.Second)
		f.must(err)
		time.Sleep(10 * time.Second)
		if err := held.Thaw(); !errors.Is(err, host.ErrTimeUp) {
			t.Errorf("the error is %v", err)
		}
		f.must(f.unstage(u))
		f.volume().Filesystem, f.volume().UUID = "ext4", u.id
		u.mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		f.must(f.stage(u))
		held, err = freezing.Freeze(t.Context(), []string{u.handle()}, 10*time.Second)
		f.must(err)
		if f.node.Frozen() != 0 {
			t.Error("a read-only filesystem is frozen")
		}
		f.must(held.Thaw())
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAKernelThatHangsBlocksNothing: what it hangs in is thawed when it answers.
func TestAKernelThatHangsBlocksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, uses, freezing := freezing(t)
		f.node.FreezeDelay = time.Hour
		_, err := freezing.Freeze(t.Context(), handles(uses), 10*time.Second)
		if err == nil || !strings.Contains(err.Error(), "the kernel has not answered in time") {
			t.Errorf("the error is %v", err)
		}
		f.must(f.unpublish(uses[1], 1))
		if _, err := freezing.Freeze(t.Context(), handles(uses), 10*time.Second); !isRefused(err, frozen.Busy, "") {
			t.Errorf("it hangs twice: %v", err)
		}
		time.Sleep(time.Hour + time.Second)
		f.blocked(uses[:1], false)
		f.end(uses)
	})
}

// TestNothingStaysFrozenWhereverThePluginIsKilled: with its guard, or alone; and what somebody
// else has frozen stays so, unless the guard was killed at the very moment.
func TestNothingStaysFrozenWhereverThePluginIsKilled(t *testing.T) {
	for _, c := range []struct{ guardsDie, foreign, after bool }{
		{false, false, false}, {false, false, true}, {false, true, false}, {false, true, true}, {true, false, false}, {true, false, true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			t.Parallel()
			reached := true
			for nth := 1; reached; nth++ {
				synctest.Test(t, func(t *testing.T) {
					f, uses, freezing := freezing(t)
					f.node.GuardsDie = c.guardsDie
					if c.foreign {
						f.node.FreezeByHand(uses[1].staging())
					}
					f.node.CrashAt(nth, c.after)
					ctx, kill := context.WithCancel(t.Context())
					if held, err := freezing.Freeze(ctx, handles(uses), 10*time.Second); err == nil {
						_ = held.Thaw()
					}
					kill()
					synctest.Wait()
					reached = f.node.Restart()
					f.start()
					f.must(NewFreezing(f.service, f.node).Recover(t.Context()))
					f.blocked(uses[:1], false)
					if c.foreign && !f.node.ThawByHand(uses[1].staging()) {
						t.Errorf("killed at change %d, what somebody else had frozen is thawed", nth)
					}
					f.blocked(uses, false)
					f.end(uses)
				})
				if nth > 20 {
					t.Fatal("freezing makes more than 20 changes")
				}
			}
		})
	}
}

// TestARecordOfAnEarlierBootThawsNothing: nor one that is damaged.
func TestARecordOfAnEarlierBootThawsNothing(t *testing.T) {
	for _, content := range []string{"{", `{"boot":"boot-0","points":[{"at":"` + plain().staging() + `","number":"8:0"}]}`} {
		synctest.Test(t, func(t *testing.T) {
			f, uses, freezing := freezing(t)
			f.node.FreezeByHand(uses[0].staging())
			f.node.PutFile(stateDir+"/frozen.json", content)
			f.must(freezing.Recover(t.Context()))
			if !f.node.ThawByHand(uses[0].staging()) {
				t.Error("what somebody else had frozen is thawed")
			}
			f.end(uses)
		})
	}
}

// TestAnyLifeEndsThawed: orders, calls, kills and administrators in orders that seeds decide.
func TestAnyLifeEndsThawed(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			f, uses, freezing := freezing(t)
			var steps []string
			var held frozen.Hold
			life := func() (context.Context, func()) { return context.WithCancel(t.Context()) }
			ctx, kill := life()
			defer func() { kill() }()
			for range 12 {
				u := uses[random.IntN(2)]
				step := random.IntN(8)
				steps = append(steps, fmt.Sprint(step))
				switch step {
				case 0, 1:
					f.node.FreezeDelay = time.Duration(random.IntN(3)) * time.Second
					if now, err := freezing.Freeze(ctx, handles(uses[random.IntN(2):]), time.Duration(random.IntN(8))*time.Second); err == nil {
						held = now
					}
				case 2:
					if held != nil {
						_ = held.Thaw()
					}
				case 3:
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
				case 4:
					f.node.KillGuards()
				case 5:
					_ = f.unpublish(u, 1)
					_ = f.stage(u)
				case 6:
					f.node.GuardsDie = random.IntN(2) == 0
					f.node.CrashAt(1+random.IntN(4), random.IntN(2) == 0)
					_ = f.stage(u)
					_, _ = freezing.Freeze(ctx, handles(uses), time.Second)
					kill()
					synctest.Wait()
					f.node.Restart()
					f.start()
					ctx, kill = life()
					freezing, held = NewFreezing(f.service, f.node), nil
					f.must(freezing.Recover(ctx))
				case 7:
					f.node.ThawByHand(u.staging())
				}
			}
			time.Sleep(time.Minute)
			if n := f.node.Frozen(); n > 0 {
				t.Errorf("seed %d: after steps %v, %d filesystems are frozen\n%s", seed, steps, n, f.log.String())
			}
			for i, u := range uses {
				f.must(f.unpublish(u, i))
				f.must(f.unstage(u))
			}
			f.clean()
		})
		if t.Failed() {
			break
		}
	}
}
