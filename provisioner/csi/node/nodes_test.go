package node

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

// TestVolumesOfLongTargetsAreIdentified: Linux's own target names itself and its port in
// the page that identifies a disk, so the page of one of Cinder's targets is longer than
// 252 bytes.
func TestVolumesOfLongTargetsAreIdentified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		for _, name := range []string{"volume-" + firstID, strings.Repeat("x", 190)} {
			f.add(name, &csinode.Volume{Bytes: gibibyte})
			u.target = name
			f.must(f.stage(u))
			f.must(f.unstage(u))
		}
		f.clean()
	})
}

// TestAKubeletBehindALinkGetsVolumes: kubelet's calls have the path with the link, and
// the kernel's table the one without.
func TestAKubeletBehindALinkGetsVolumes(t *testing.T) {
	for name, u := range map[string]use{"filesystem": plain(), "raw": func() use { u := plain(); u.block = true; return u }()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				f.node.Links = map[string]string{"/var/lib/kubelet": "/data/kubelet"}
				for range 2 {
					f.must(f.stage(u))
					f.must(f.publish(u, 1, false))
				}
				f.must(f.node.Write(u.pod(1), "data"))
				f.must(f.unpublish(u, 1))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestCredentialsOfTheNodeReachNoRecord: open-iscsi copies those of iscsid.conf into each
// new record, and then demands CHAP, or the storage's own credentials.
func TestCredentialsOfTheNodeReachNoRecord(t *testing.T) {
	for name, open := range map[string]bool{"a volume without credentials": true, "a volume with credentials": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				f.node.IscsidConf = map[string]string{
					"node.session.auth.authmethod": "CHAP", "node.session.auth.username": "someone", "node.session.auth.password": "elsewhere",
					"node.session.auth.username_in": "array", "node.session.auth.password_in": "elsewhere",
				}
				if u.open = open; open {
					f.target().User, f.target().Password = "", ""
				}
				f.must(f.stage(u))
				f.must(f.unstage(u))
				f.clean()
			})
		})
	}
}

// TestAnOperatorDecidesHowLongASessionMayBeLost: iscsid.conf does, unless the plugin is
// told.
func TestAnOperatorDecidesHowLongASessionMayBeLost(t *testing.T) {
	for _, c := range []struct {
		told time.Duration
		want string
	}{{0, ""}, {90 * time.Second, "node.session.timeo.replacement_timeout -v 90"}} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			f.with(func(o *Options) { o.Replacement = c.told })
			f.must(f.stage(u))
			calls := strings.Join(f.node.Calls(), "\n")
			if c.want == "" && strings.Contains(calls, "replacement_timeout") || !strings.Contains(calls, c.want) {
				t.Errorf("told %s:\n%s", c.told, calls)
			}
		})
	}
}

// TestAnOperatorDecidesWhichFeaturesFilesystemsHave, so that older nodes can mount them.
func TestAnOperatorDecidesWhichFeaturesFilesystemsHave(t *testing.T) {
	for filesystem, want := range map[string]string{
		"ext4": "mkfs.ext4 -q -F -E nodiscard -m 0 -U " + firstID + " -O ^orphan_file /dev/sd",
		"xfs":  "mkfs.xfs -q -K -m uuid=" + firstID + " -i nrext64=0 -m bigtime=0 /dev/sd",
	} {
		synctest.Test(t, func(t *testing.T) {
			f, u := newFixture(t), plain()
			f.with(func(o *Options) {
				o.MakeOptions = map[string][]string{"ext4": {"-O", "^orphan_file"}, "xfs": {"-i", "nrext64=0", "-m", "bigtime=0"}}
			})
			u.filesystem = filesystem
			f.must(f.stage(u))
			if !slices.ContainsFunc(f.node.Calls(), func(c string) bool { return strings.HasPrefix(c, want) }) {
				t.Errorf("%s was made otherwise: %q", filesystem, f.node.Calls())
			}
			f.must(f.unstage(u))
			f.clean()
		})
	}
}

// TestAFilesystemWhoseMkfsDiedWithItsNodeIsMadeAgain: the mark of the node that formatted
// is gone, but an unfinished XFS says itself whose it is.
func TestAFilesystemWhoseMkfsDiedWithItsNodeIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, u := newFixture(t), plain()
		u.filesystem = "xfs"
		*f.volume() = csinode.Volume{Bytes: gibibyte, Filesystem: "xfs", Unfinished: true, UUID: u.id}
		f.must(f.stage(u))
		f.must(f.unstage(u))
		*f.volume() = csinode.Volume{Bytes: gibibyte, Filesystem: "xfs", Unfinished: true, UUID: foreignID}
		if err := f.stage(u); err == nil || !strings.Contains(err.Error(), "NotEmpty: ") {
			t.Errorf("another volume's unfinished filesystem: %v", err)
		}
		f.clean()
	})
}

// TestADiskThatCinderNamesIsProven: some drivers name the disk's identifier, which proves
// even a raw volume.
func TestADiskThatCinderNamesIsProven(t *testing.T) {
	const own, foreign = "624a93709714b5cb91634c4700020001", "624a93709714b5cb91634c4700020002"
	for name, way := range map[string]func(*use, *csinode.Node){"iSCSI": func(*use, *csinode.Node) {}, "Fibre Channel": byFC} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, u := newFixture(t), plain()
				u.block = true
				way(&u, f.node)
				u.identities = []string{"naa." + own}
				f.volume().Identity = foreign
				f.refuses(f.stage(u), codes.FailedPrecondition, "is naa."+foreign+", but Cinder names naa."+own)
				f.volume().Identity = own
				f.must(f.stage(u))
				f.must(f.unstage(u))
				f.unharmed()
			})
		})
	}
}

// with starts the service with other options.
func (f *fixture) with(change func(*Options)) {
	f.t.Helper()
	o := Options{Root: f.node.Root(), Files: f.node, RBD: f.node, StateDir: stateDir, NodeName: nodeName, Observer: f, Logger: slog.New(slog.NewTextHandler(&f.log, nil))}
	change(&o)
	service, err := New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.service = service
}
