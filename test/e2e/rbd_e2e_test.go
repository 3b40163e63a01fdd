//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// ceph runs the administrator's program.
func ceph(ctx context.Context, t *testing.T, env rig.Env, arguments ...string) string {
	t.Helper()
	output, err := exec.CommandContext(ctx, "ceph", append([]string{"--conf", env.CephConfig, "--connect-timeout", "30"}, arguments...)...).Output()
	must(t, err)
	return string(output)
}

// rbdImage runs the program for images.
func rbdImage(ctx context.Context, t *testing.T, env rig.Env, arguments ...string) string {
	t.Helper()
	output, err := exec.CommandContext(ctx, "rbd", append([]string{"--conf", env.CephConfig}, arguments...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("rbd %q: %v: %s", arguments, err, output)
	}
	return string(output)
}

// cephKey reads the key of Cinder's user.
func cephKey(t *testing.T, env rig.Env) string {
	t.Helper()
	keyring, err := os.ReadFile(env.CephKeyring)
	must(t, err)
	_, key, found := strings.Cut(string(keyring), "key = ")
	if !found {
		t.Fatal("the keyring holds no key")
	}
	return strings.Fields(key)[0]
}

// startRBD boots a node that reaches the Ceph cluster.
func startRBD(ctx context.Context, t *testing.T, env rig.Env, name string) *csiNode {
	t.Helper()
	n := bootNode(ctx, t, name)
	n.env = env
	for _, address := range cephAddresses(ctx, t, env) {
		var err error
		n.cuts[address], err = n.Reach(address)
		must(t, err)
	}
	n.startPlugin(ctx, t)
	return n
}

// cephAddresses returns what a node must reach: the monitor and all OSDs.
func cephAddresses(ctx context.Context, t *testing.T, env rig.Env) []string {
	t.Helper()
	var known struct {
		OSDs []struct {
			Addresses struct {
				All []struct{ Addr string } `json:"addrvec"`
			} `json:"public_addrs"`
		} `json:"osds"`
	}
	must(t, json.Unmarshal([]byte(ceph(ctx, t, env, "osd", "dump", "--format", "json")), &known))
	addresses := []string{env.CephMonitor}
	for _, osd := range known.OSDs {
		for _, address := range osd.Addresses.All {
			addresses = append(addresses, address.Addr)
		}
	}
	return addresses
}

// attachRBD attaches a volume to a node as the CSI controller does. The operator's key is
// for connections without one.
func (n *csiNode) attachRBD(ctx context.Context, t *testing.T, id string, operators bool) csiVolume {
	t.Helper()
	made := n.attachment(ctx, t, id, false)
	document, err := json.Marshal(made.Attachment.Connection)
	must(t, err)
	connection, err := mappers.ParseConnection(document)
	must(t, err)
	var request mappers.NodeRequest
	if operators {
		request.CephUser = &mappers.NodeCredentials{User: "cinder", Password: cephKey(t, n.env)}
	}
	read, err := mappers.ForNode(connection, request)
	must(t, err)
	c := wire.Connection{Protocol: read.Protocol, Credentials: read.Credentials != nil, Bytes: 1 << 30, Attachment: made.Attachment.ID}
	for _, path := range read.Paths {
		c.Paths = append(c.Paths, wire.Path(path))
	}
	context, err := c.PublishContext()
	must(t, err)
	key, entry, err := wire.SecretEntry(n.name, wire.Credentials(*read.Credentials))
	must(t, err)
	return csiVolume{backend: "lab", id: id, attachment: made.Attachment.ID, context: context, secrets: map[string]string{key: string(entry)}}
}

// to returns what another node would get of the same attachment. Cinder's driver tells
// all nodes the same.
func (v csiVolume) to(n *csiNode) csiVolume {
	for _, entry := range v.secrets { // there is one
		v.secrets = map[string]string{wire.SecretKey(n.name): entry}
	}
	return v
}

// checkNoKey makes sure that the key is nowhere on the node but in the kernel.
func (n *csiNode) checkNoKey(ctx context.Context, t *testing.T) {
	t.Helper()
	found := n.run(ctx, t, `k='`+cephKey(t, n.env)+`'
grep -l -F "$k" /tmp/plugin.log /sys/bus/rbd/devices/*/* 2>/dev/null
dmesg | grep -F "$k"; grep -r -l -F "$k" `+stateDir+` /var/lib/kubelet 2>/dev/null; grep ceph /proc/keys; true`)
	if found != "" {
		t.Errorf("the key is on the node:\n%s", found)
	}
}

func (n *csiNode) dd(ctx context.Context, into, text string) error {
	_, err := n.Run(ctx, "printf '"+text+"' | dd of="+into+" conv=notrunc,fsync status=none")
	return err
}

func dataOf(v csiVolume, filesystem string) string {
	if filesystem == "" {
		return podPath(v)
	}
	return podPath(v) + "/data"
}

func needsCeph(t *testing.T) rig.Env {
	t.Helper()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	if env.Types.RBD == "" {
		t.Skip("the rig has no Ceph cluster (RIG_CEPH=1)")
	}
	return env
}

func TestNodeUsesVolumesByRBD(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	env := needsCeph(t)
	n := startRBD(ctx, t, env, "node-rbd")
	for i, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem, func(t *testing.T) {
			// Every second time, the key comes with the connection.
			kind, operators := env.Types.RBD, true
			if i == 1 {
				kind, operators = env.Types.RBDKeyring, false
			}
			id, err := createVolume(ctx, env, "rbd-"+filesystem, kind)
			must(t, err)
			v := n.attachRBD(ctx, t, id, operators)
			file := dataOf(v, filesystem)
			for round := range 2 {
				must(t, n.stage(ctx, t, v, filesystem))
				must(t, n.stage(ctx, t, v, filesystem)) // kubelet repeats calls
				must(t, n.publish(ctx, v, filesystem))
				must(t, n.publish(ctx, v, filesystem))
				if round == 0 {
					must(t, n.dd(ctx, file, "a node wrote this"))
					n.checkNoKey(ctx, t)
					if line := n.run(ctx, t, "cat /sys/bus/rbd/devices/0/config_info"); !strings.Contains(line, "name=cinder,key=standalone-cinder,lock_timeout=50 volumes ") || strings.Contains(line, "secret") {
						t.Errorf("the kernel shows %q", line)
					}
				}
				if content := n.run(ctx, t, "head -c 17 "+file); content != "a node wrote this" {
					t.Errorf("round %d: the volume has %q", round, content)
				}
				must(t, n.unpublish(ctx, v))
				must(t, n.unpublish(ctx, v))
				must(t, n.unstage(ctx, v))
				must(t, n.unstage(ctx, v))
				n.checkNothingLeft(ctx, t)
				n.detach(ctx, t, v)
				v = n.attachRBD(ctx, t, id, operators)
			}
			n.detach(ctx, t, v)
		})
	}

	for _, filesystem := range []string{"ext4", "xfs", ""} {
		t.Run("a volume of "+filesystem+" grows while it is used", func(t *testing.T) {
			id, err := createVolume(ctx, env, "rbd-grows-"+filesystem, env.Types.RBD)
			must(t, err)
			v := n.attachRBD(ctx, t, id, true)
			must(t, n.stage(ctx, t, v, filesystem))
			must(t, n.publish(ctx, v, filesystem))
			must(t, n.dd(ctx, dataOf(v, filesystem), "before"))
			n.extend(ctx, t, id, 2)
			grown, err := n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: handle(v), VolumePath: podPath(v), StagingTargetPath: stagingPath(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, VolumeCapability: mountOf(filesystem),
			})
			must(t, err)
			size := "blockdev --getsize64 " + podPath(v)
			if filesystem != "" {
				size = "df -B1 --output=size " + podPath(v) + " | tail -1"
			}
			var bytes int64
			if _, err := fmt.Sscan(n.run(ctx, t, size), &bytes); err != nil || bytes < 19<<30/10 || grown.CapacityBytes != 2<<30 {
				t.Errorf("it has %d bytes, says %d, %v", bytes, grown.CapacityBytes, err)
			}
			must(t, n.unpublish(ctx, v))
			must(t, n.unstage(ctx, v))
			n.checkNothingLeft(ctx, t)
			n.detach(ctx, t, v)
		})
	}

	t.Run("what the kernel cannot map", func(t *testing.T) {
		id, err := createVolume(ctx, env, "rbd-refused", env.Types.RBD)
		must(t, err)
		v := n.attachRBD(ctx, t, id, true)
		image := "volumes/volume-" + id
		refused := func(code codes.Code, text string) {
			t.Helper()
			if err := n.stage(ctx, t, v, "ext4"); status.Code(err) != code || !strings.Contains(err.Error(), text) {
				t.Errorf("the error is %v, want %s with %q", err, code, text)
			}
			n.checkNothingLeft(ctx, t)
		}
		rbdImage(ctx, t, env, "feature", "enable", image, "journaling")
		refused(codes.FailedPrecondition, "UnsupportedImage: image "+image+" has features that the node's kernel lacks: journaling;")
		rbdImage(ctx, t, env, "feature", "disable", image, "journaling")
		rbdImage(ctx, t, env, "feature", "disable", image, "fast-diff", "object-map", "exclusive-lock")
		refused(codes.FailedPrecondition, "UnsupportedImage: image "+image+" lacks the feature exclusive-lock")
		rbdImage(ctx, t, env, "feature", "enable", image, "exclusive-lock")
		right := v.secrets
		key, entry, err := wire.SecretEntry(n.name, wire.Credentials{User: "cinder", Password: "AQDh1uVlAAAAABAAqZ0Jw2zXn3sHk8pPp2mWlA=="})
		must(t, err)
		v.secrets = map[string]string{key: string(entry)}
		refused(codes.Unauthenticated, "LoginRefused: the Ceph cluster refuses the user cinder")
		v.secrets = right
		must(t, n.stage(ctx, t, v, "ext4"))
		n.checkNoKey(ctx, t)
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		n.detach(ctx, t, v)
	})

	t.Run("a mapping that an interrupted call left", func(t *testing.T) {
		id, err := createVolume(ctx, env, "rbd-left", env.Types.RBD)
		must(t, err)
		v := n.attachRBD(ctx, t, id, true)
		must(t, n.stage(ctx, t, v, "ext4"))
		// What a call leaves that was killed between the mapping and its record.
		n.run(ctx, t, "umount "+stagingPath(v)+"; rm "+stateDir+"/volumes/*")
		must(t, n.stage(ctx, t, v, "ext4"))
		// Something has it open.
		n.run(ctx, t, "umount "+stagingPath(v)+"; setsid sleep 1000 3</dev/rbd0 >/dev/null 2>&1 & sleep 1")
		if err := n.unstage(ctx, v); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "InUse: something on the node still has rbd0 open") {
			t.Errorf("a device that is open is unmapped: %v", err)
		}
		n.run(ctx, t, "pkill -x sleep; sleep 1")
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		n.detach(ctx, t, v)
	})

	t.Run("a plugin that is killed", func(t *testing.T) {
		id, err := createVolume(ctx, env, "rbd-killed", env.Types.RBD)
		must(t, err)
		v := n.attachRBD(ctx, t, id, true)
		n.survivesKills(ctx, t, v, 200*time.Millisecond)
		n.detach(ctx, t, v)
	})
}

// TestAnImageHasOneWriter maps an image on a second node while the first one is paused,
// lives, and is dead.
func TestAnImageHasOneWriter(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
	defer cancel()
	env := needsCeph(t)
	first, second := startRBD(ctx, t, env, "node-1"), startRBD(ctx, t, env, "node-2")
	volumes := map[string]csiVolume{}
	for _, name := range []string{"paused", "kept", "alive", "dead"} {
		id, err := createVolume(ctx, env, "rbd-"+name, env.Types.RBD)
		must(t, err)
		v := first.attachRBD(ctx, t, id, true)
		volumes[name] = v
		must(t, first.stage(ctx, t, v, "ext4"))
		must(t, first.publish(ctx, v, "ext4"))
		must(t, first.dd(ctx, dataOf(v, "ext4"), "by the first node"))
	}
	paused, kept, alive, dead := volumes["paused"], volumes["kept"], volumes["alive"], volumes["dead"]
	// take stages a volume on the second node, which writes to it.
	take := func(v csiVolume) {
		t.Helper()
		began := time.Now()
		must(t, harness.Eventually(ctx, func() (string, error) {
			if err := second.stage(ctx, t, v, "ext4"); err != nil {
				return err.Error(), nil
			}
			return "", nil
		}))
		t.Logf("the second node has the volume after %s", time.Since(began).Round(time.Second))
		must(t, second.publish(ctx, v, "ext4"))
		if now := second.run(ctx, t, "cat "+dataOf(v, "ext4")); now != "by the first node" {
			t.Errorf("the second node reads %q", now)
		}
		must(t, second.dd(ctx, dataOf(v, "ext4"), "by the other one.."))
	}
	// keptOut checks that the first node cannot write to a volume, and lets it go.
	keptOut := func(v csiVolume) {
		t.Helper()
		if err := first.dd(ctx, dataOf(v, "ext4"), "too late to write"); err == nil {
			t.Error("the first node still writes to a volume that it lost")
		}
		must(t, second.dd(ctx, dataOf(v, "ext4"), "by the other one.."))
		if now := second.run(ctx, t, "echo 3 > /proc/sys/vm/drop_caches; cat "+dataOf(v, "ext4")); now != "by the other one.." {
			t.Errorf("the second node reads %q", now)
		}
		must(t, first.unpublish(ctx, v))
		must(t, first.unstage(ctx, v))
		if left := first.run(ctx, t, "grep -l "+v.id+" /sys/bus/rbd/devices/*/name || true"); left != "" {
			t.Errorf("the first node still maps the volume: %s", left)
		}
	}
	giveUp := func(v csiVolume) {
		t.Helper()
		must(t, second.unpublish(ctx, v))
		must(t, second.unstage(ctx, v))
	}

	address := strings.TrimSpace(first.run(ctx, t, `for d in /sys/bus/rbd/devices/*; do grep -q `+paused.id+` $d/name && cat $d/client_addr; done; true`))
	must(t, first.Pause())
	take(paused.to(second))
	if blocked := ceph(ctx, t, env, "osd", "blocklist", "ls"); !strings.Contains(blocked, address) {
		t.Errorf("%s is not blocklisted: %s", address, blocked)
	}
	must(t, first.Resume())
	keptOut(paused)
	giveUp(paused.to(second))
	// Another volume of the first node is not concerned, and the node can have this one
	// again at once.
	must(t, first.dd(ctx, dataOf(kept, "ext4"), "on the first node"))
	must(t, first.stage(ctx, t, paused.to(first), "ext4"))
	must(t, first.unstage(ctx, paused))

	// The leader says that it has taken the volume from a node that may write.
	taken := alive.to(second)
	taken.context = maps.Clone(taken.context)
	taken.context["taken"] = "true"
	take(taken)
	keptOut(alive)
	if err := first.stage(ctx, t, alive.to(first), "ext4"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "InUse: image volumes/volume-"+alive.id+" is mapped elsewhere") {
		t.Errorf("an image that the second node keeps: %v", err)
	}
	giveUp(taken)

	first.Kill()
	take(dead.to(second))
	giveUp(dead.to(second))
	second.checkNothingLeft(ctx, t)
}
