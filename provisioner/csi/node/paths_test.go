package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// logins counts the attempts to log in at a portal.
func (f *fixture) logins(portal string) int {
	count := 0
	for _, call := range f.node.Calls() {
		if strings.Contains(call, " -p "+portal+" ") && strings.HasSuffix(call, "--login") {
			count++
		}
	}
	return count
}

// down takes a portal of either protocol down, or up again.
func (f *fixture) down(portal string, down bool) {
	for _, t := range f.node.Targets {
		t.Down[portal] = down
	}
	for _, s := range f.node.Subsystems {
		s.Down[portal] = down
	}
}

// TestADeadPortalHoldsNobodyUp: a login there takes most of a minute, under a lock that
// all volumes of the target need.
func TestADeadPortalHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.node.Multipathd = true
		f.down(onePortal, true)
		f.node.Before = func(command string) error {
			if strings.Contains(command, onePortal) && strings.HasSuffix(command, "--login") {
				time.Sleep(53 * time.Second)
			}
			return nil
		}
		var uses []use
		for i := range 10 {
			u := plain()
			u.id, u.lun, u.portals = fmt.Sprintf("%08d-e84c-4ef1-816f-76fcd478cebd", i), i+1, []string{onePortal, twoPortal}
			f.target().LUNs[u.lun] = &csinode.Volume{Bytes: gibibyte}
			uses = append(uses, u)
		}
		for _, u := range uses {
			f.must(f.stage(u))
		}
		if tried := f.logins(onePortal); tried > 0 {
			t.Errorf("logged in at the dead portal %d times", tried)
		}
		if told := f.log.String(); !strings.Contains(told, "volume has fewer paths than it could") || !strings.Contains(told, "path by "+onePortal) {
			t.Error("nobody is told")
		}
		for _, u := range uses {
			f.must(f.unstage(u))
		}
		f.clean()
	})
}

// TestAPortalAtWhichALoginFailedIsLeftAlone: it answers, but not to a login.
func TestAPortalAtWhichALoginFailedIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		ways["multipath"](&u, f.node)
		hangs := true
		f.node.Before = func(command string) error {
			if hangs && strings.Contains(command, onePortal) && strings.HasSuffix(command, "--login") {
				return fmt.Errorf("%s did not finish within 1m30s", command)
			}
			return nil
		}
		for range 3 {
			f.must(f.stage(u))
			f.paths.Complete(context.Background())
			f.must(f.unstage(u))
		}
		f.must(f.stage(u))
		hangs = false
		f.paths.Complete(context.Background())
		if len(f.node.Devices()) != 1 {
			t.Error("the login was tried again at once")
		}
		time.Sleep(loginPause)
		f.paths.Complete(context.Background())
		if len(f.node.Devices()) != 2 {
			t.Errorf("the portal did not join:\n%s", f.log.String())
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestAPathThatWasDownJoinsLater: also for raw volumes, after a restart of the plugin,
// and at every kill.
func TestAPathThatWasDownJoinsLater(t *testing.T) {
	for name, c := range map[string]struct {
		way      string
		portal   string
		password bool
	}{
		"iscsi":             {"multipath", onePortal, true},
		"raw":               {"raw by multipath", twoPortal, true},
		"without passwords": {"multipath", twoPortal, false},
		"nvme":              {"nvme by two portals", twoNVMe, true},
	} {
		t.Run(name, func(t *testing.T) {
			crashed := true
			for nth := 0; crashed || nth < 2; nth++ {
				synctest.Test(t, func(t *testing.T) {
					f, u := newFixture(t), plain()
					ways[c.way](&u, f.node)
					if !c.password {
						u.open, f.target().Password = true, ""
					}
					f.down(c.portal, true)
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
					f.paths.Complete(context.Background())
					if f.paths.Lacking() != 1 {
						t.Error("nobody is told")
					}
					f.down(c.portal, false)
					f.start()
					if nth > 0 {
						f.node.CrashAt(nth, nth%2 == 0)
						f.paths.Complete(context.Background())
						crashed = f.node.Restart()
						f.start()
					}
					f.paths.Complete(context.Background())
					if f.paths.Lacking() != 0 {
						t.Errorf("change %d: the path is missing:\n%s", nth, f.log.String())
					}
					f.must(f.stage(u))
					// Now the other path goes.
					other := map[string]string{onePortal: twoPortal, twoPortal: onePortal, twoNVMe: oneNVMe}[c.portal]
					f.down(other, true)
					if err := f.node.Write(u.pod(1), "by the other path"); err != nil {
						t.Errorf("change %d: the pod has lost its volume: %v\n%s", nth, err, f.log.String())
					}
					f.down(other, false)
					f.must(f.unpublish(u, 1))
					f.must(f.unstage(u))
					f.clean()
				})
			}
		})
	}
}

// TestAPathThatLeadsElsewhereDoesNotJoin: the storage has given the LUN at that portal to
// another volume meanwhile.
func TestAPathThatLeadsElsewhereDoesNotJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		ways["multipath"](&u, f.node)
		f.add("vol-2", &csinode.Volume{Bytes: gibibyte})
		f.down(twoPortal, true)
		f.must(f.stage(u))
		f.must(f.publish(u, 1, false))
		f.down(twoPortal, false)
		theirs := &csinode.Volume{Bytes: gibibyte, Identity: "6002"}
		f.target().At = map[string]map[int]*csinode.Volume{twoPortal: {1: theirs}}
		for range 2 {
			f.paths.Complete(context.Background())
		}
		if len(f.node.Devices()) != 1 || !strings.Contains(f.log.String(), "WrongDisk: ") {
			t.Errorf("disks %q\n%s", f.node.Devices(), f.log.String())
		}
		f.must(f.node.Write(u.pod(1), "mine"))
		if theirs.Data != "" {
			t.Error("another volume was written")
		}
		f.must(f.unpublish(u, 1))
		f.must(f.unstage(u))
		f.clean()
	})
}

func TestAVolumeThatHasOnePathForGoodIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.portals = []string{onePortal, twoPortal}
		f.must(f.stage(u))
		if !strings.Contains(f.log.String(), "multipathd is not running, so the volume has only one of its paths") {
			t.Error("nobody is told")
		}
		f.must(f.unstage(u))
		f.clean()
	})
}

// TestGrowthWaitsForNoPathThatIsNotUsed: an operator has taken a dead path out of the
// map. When it comes back, it joins with its new size.
func TestGrowthWaitsForNoPathThatIsNotUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		ways["multipath"](&u, f.node)
		f.must(f.stage(u))
		r, err := f.service.state.load(u.handle())
		f.must(err)
		dead := r.Disks[0].Name
		f.down(onePortal, true)
		f.volume().Bytes = 2 * gibibyte
		// A map cannot be larger than any of its paths.
		_, err = f.expand(u, 2*gibibyte)
		f.refuses(err, codes.Internal, "path "+dead+" of the volume does not answer")
		f.node.DropPath(dead)
		size, err := f.expand(u, 2*gibibyte)
		f.must(err)
		if size != 2*gibibyte || f.volume().FilesystemBytes != 2*gibibyte {
			t.Errorf("%d bytes, and the filesystem %d", size, f.volume().FilesystemBytes)
		}
		f.down(onePortal, false)
		f.paths.Complete(context.Background())
		f.down(twoPortal, true)
		f.must(f.publish(u, 1, false))
		f.must(f.node.Write(u.pod(1), "by the first path"))
		f.down(twoPortal, false)
		f.must(f.unpublish(u, 1))
		f.must(f.unstage(u))
		f.clean()
	})
}
