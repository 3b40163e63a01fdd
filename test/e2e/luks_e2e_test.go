//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
)

// encrypted gives a node what the CSI controller gives it for an encrypted volume.
func (n *csiNode) encrypted(ctx context.Context, t *testing.T, v csiVolume, passphrase string) csiVolume {
	t.Helper()
	var said struct {
		KeyID    string `json:"encryption_key_id"`
		Location string `json:"control_location"`
		KeyBits  int    `json:"key_size"`
		Cipher   string
		Provider string
	}
	must(t, ask(ctx, n.env, "/volumes/"+v.id+"/encryption", &said))
	how, err := objects.EncryptionOf(cinder.Encryption{KeyID: said.KeyID, ControlLocation: said.Location, KeyBits: said.KeyBits, Cipher: said.Cipher, Provider: said.Provider})
	must(t, err)
	connection, err := wire.ParsePublishContext(v.context)
	must(t, err)
	connection.Encryption = &wire.Encryption{LUKS: how.LUKS, Cipher: how.Cipher, KeyBits: how.KeyBits}
	v.context, err = connection.PublishContext()
	must(t, err)
	credentials, err := wire.CredentialsFor(n.name, v.secrets)
	must(t, err)
	credentials.Passphrase = passphrase
	key, entry, err := wire.SecretEntry(n.name, credentials)
	must(t, err)
	v.secrets = map[string]string{key: string(entry)}
	return v
}

// holds reports whether the file of a volume of the rig holds a text.
func holds(t *testing.T, env rig.Env, id, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(env.StateDirectory, "data", "volumes", "*", "volume-"+id))
	if err != nil || len(files) != 1 {
		t.Fatalf("the volume has the files %q, %v", files, err)
	}
	file, err := os.Open(files[0])
	must(t, err)
	defer func() { _ = file.Close() }()
	const chunk = 1 << 20
	before := []byte(nil)
	for buffer := make([]byte, chunk); ; {
		read, err := file.Read(buffer)
		window := append(before, buffer[:read]...)
		if bytes.Contains(window, []byte(text)) {
			return true
		}
		if err != nil || read == 0 {
			return false
		}
		before = bytes.Clone(window[max(0, len(window)-len(text)):])
	}
}

// TestNodesOpenEncryptedVolumes uses volumes of Cinder's encrypted types with the real
// plugin on two nodes.
func TestNodesOpenEncryptedVolumes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	const marker = "nobody else may read this"
	n := startNode(ctx, t, env, "node-1")
	// What programs were called with, as anybody on the node sees it.
	n.run(ctx, t, `setsid sh -c 'while :; do cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\0" " " | grep -a -o "cryptsetup [^/]*" >> /tmp/cmdlines; sleep 0.3; done' > /dev/null 2>&1 < /dev/null &`)

	for _, c := range []struct {
		filesystem, kind string
		multipath        bool
		luks             string
	}{{"ext4", env.Types.LUKS, false, "1"}, {"xfs", env.Types.LUKS2, true, "2"}, {"", env.Types.LUKS, false, "1"}} {
		t.Run("a volume of type "+c.kind+" with "+c.filesystem, func(t *testing.T) {
			id, err := createVolume(ctx, env, "node-"+c.kind, c.kind)
			must(t, err)
			v := n.encrypted(ctx, t, n.attach(ctx, t, id, c.multipath), env.FixedKey)
			must(t, n.stage(ctx, t, v, c.filesystem))
			must(t, n.stage(ctx, t, v, c.filesystem)) // kubelet repeats calls
			must(t, n.publish(ctx, v, c.filesystem))
			file := podPath(v)
			if c.filesystem != "" {
				file += "/data"
			}
			n.run(ctx, t, "printf '"+marker+"' | dd of="+file+" conv=notrunc,fsync status=none; sync")
			if dump := n.run(ctx, t, "cryptsetup status standalone-cinder-"+id+" | tee /tmp/status; cryptsetup luksUUID $(awk '/device:/ {print $2}' /tmp/status)"); !strings.Contains(dump, "LUKS"+c.luks) || !strings.Contains(dump, id) {
				t.Errorf("it is open as %s", dump)
			}
			if holds(t, env, id, marker) {
				t.Error("the storage can read what the pod wrote")
			}
			n.extend(ctx, t, id, 2)
			_, err = n.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
				VolumeId: handle(v), VolumePath: podPath(v), StagingTargetPath: stagingPath(v),
				CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, VolumeCapability: mountOf(c.filesystem),
			})
			must(t, err)
			size := "blockdev --getsize64 " + podPath(v)
			if c.filesystem != "" {
				size = "df -B1 --output=size " + podPath(v) + " | tail -1"
			}
			var bytes int64
			if _, err := fmt.Sscan(n.run(ctx, t, size), &bytes); err != nil || bytes < 19<<30/10 {
				t.Errorf("it has grown to %d bytes, %v", bytes, err)
			}
			must(t, n.unpublish(ctx, v))
			must(t, n.unstage(ctx, v))
			must(t, n.unstage(ctx, v))
			n.checkNothingLeft(ctx, t)

			wrong := n.encrypted(ctx, t, v, strings.Repeat("00", 32))
			if err := n.stage(ctx, t, wrong, c.filesystem); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "WrongKey: ") {
				t.Errorf("a wrong key: %v", err)
			}
			n.checkNothingLeft(ctx, t)
			n.detach(ctx, t, v)
			// Another attachment is another export.
			v = n.encrypted(ctx, t, n.attach(ctx, t, id, c.multipath), env.FixedKey)
			must(t, n.stage(ctx, t, v, c.filesystem))
			must(t, n.publish(ctx, v, c.filesystem))
			if content := n.run(ctx, t, fmt.Sprintf("head -c %d %s", len(marker), file)); content != marker {
				t.Errorf("the volume has %q", content)
			}
			must(t, n.unpublish(ctx, v))
			must(t, n.unstage(ctx, v))
			n.checkNothingLeft(ctx, t)
			n.detach(ctx, t, v)
		})
	}

	t.Run("disks that are gone", func(t *testing.T) {
		id, err := createVolume(ctx, env, "node-luks-gone", env.Types.LUKS)
		must(t, err)
		v := n.encrypted(ctx, t, n.attach(ctx, t, id, false), env.FixedKey)
		must(t, n.stage(ctx, t, v, "ext4"))
		n.run(ctx, t, "for d in /sys/block/sd*/device/delete; do echo 1 > $d; done; sleep 1")
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		must(t, n.stage(ctx, t, v, "ext4"))
		must(t, n.unstage(ctx, v))
		n.checkNothingLeft(ctx, t)
		n.detach(ctx, t, v)
	})

	t.Run("os-brick", func(t *testing.T) { n.sharesWithOSBrick(ctx, t, env, marker) })

	t.Run("a plugin that is killed", func(t *testing.T) {
		id, err := createVolume(ctx, env, "node-luks-killed", env.Types.LUKS)
		must(t, err)
		v := n.encrypted(ctx, t, n.attach(ctx, t, id, false), env.FixedKey)
		n.survivesKills(ctx, t, v, 900*time.Millisecond)
		n.detach(ctx, t, v)
	})

	t.Run("a new passphrase", func(t *testing.T) {
		if testing.Short() {
			t.Skip("each key takes an emulated processor ten seconds")
		}
		n.changesPassphrases(ctx, t, marker)
	})

	t.Run("another node", func(t *testing.T) {
		other := startNode(ctx, t, env, "node-2")
		id, err := createVolume(ctx, env, "node-luks-moves", env.Types.LUKS)
		must(t, err)
		v := n.encrypted(ctx, t, n.attach(ctx, t, id, false), env.FixedKey)
		must(t, n.stage(ctx, t, v, "ext4"))
		n.run(ctx, t, "printf '"+marker+"' > "+stagingPath(v)+"/data")
		must(t, n.unstage(ctx, v))
		n.detach(ctx, t, v)
		v = other.encrypted(ctx, t, other.attach(ctx, t, id, false), env.FixedKey)
		must(t, other.stage(ctx, t, v, "ext4"))
		if content := other.run(ctx, t, "cat "+stagingPath(v)+"/data"); content != marker {
			t.Errorf("the other node reads %q", content)
		}
		must(t, other.unstage(ctx, v))
		other.checkNothingLeft(ctx, t)
		other.detach(ctx, t, v)
	})

	// The state files are gone by now; what is left of them is the log.
	lines := n.run(ctx, t, "sort -u /tmp/cmdlines")
	if !strings.Contains(lines, "cryptsetup") {
		t.Error("no call of cryptsetup was seen")
	}
	if seen := lines + n.run(ctx, t, "cat /tmp/plugin.log; find "+stateDir+" -type f -exec cat {} +; dmesg"); strings.Contains(strings.ToLower(seen), env.FixedKey) {
		t.Error("the key is in an argument, a state file or a log")
	}
}

// changesPassphrases gives a volume a new passphrase, as volume rewrap --new-keys does: both
// open it, and then the new one alone. The header is changed while the device is open.
func (n *csiNode) changesPassphrases(ctx context.Context, t *testing.T, marker string) {
	t.Helper()
	id, err := createVolume(ctx, n.env, "node-luks-new", n.env.Types.LUKS2)
	must(t, err)
	former, next := n.env.FixedKey, strings.Repeat("5a", 32)
	attached := n.attach(ctx, t, id, false)
	with := func(passphrase, also, gone string) csiVolume {
		v := n.encrypted(ctx, t, attached, passphrase)
		credentials, err := wire.CredentialsFor(n.name, v.secrets)
		must(t, err)
		credentials.AlsoPassphrase, credentials.FormerPassphrase = also, gone
		key, entry, err := wire.SecretEntry(n.name, credentials)
		must(t, err)
		v.secrets = map[string]string{key: string(entry)}
		return v
	}
	for _, step := range []struct {
		v     csiVolume
		slots int
	}{{with(former, "", ""), 1}, {with(former, next, ""), 2}, {with(next, former, ""), 2}, {with(next, "", former), 1}, {with(next, "", ""), 1}} {
		must(t, n.stage(ctx, t, step.v, "xfs"))
		must(t, n.stage(ctx, t, step.v, "xfs"))
		if content := n.run(ctx, t, "cd "+stagingPath(step.v)+" && test -e data || printf '"+marker+"' > data; cat data"); content != marker {
			t.Errorf("it has %q", content)
		}
		dump := n.run(ctx, t, "cryptsetup luksDump $(cryptsetup status standalone-cinder-"+id+" | awk '/device:/ {print $2}')")
		if slots := strings.Count(dump, ": luks2\n"); slots != step.slots {
			t.Errorf("%d passphrases open it, want %d:\n%s", slots, step.slots, dump)
		}
		must(t, n.unstage(ctx, step.v))
	}
	if err := n.stage(ctx, t, with(former, "", ""), "xfs"); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "WrongKey: ") {
		t.Errorf("the former passphrase: %v", err)
	}
	n.checkNothingLeft(ctx, t)
	n.detach(ctx, t, attached)
}

// osBrick runs os-brick's own code, whose programs run on the node: each line of its output
// is a program, and each line of its input what came of it.
const osBrick = `
import json, sys
from oslo_concurrency import processutils
from os_brick.encryptors import luks

def execute(*command, process_input=None, check_exit_code=True, **kwargs):
    print(json.dumps({'command': command, 'input': process_input or ''}), flush=True)
    code, output = json.loads(sys.stdin.readline())
    if check_exit_code is True and code or isinstance(check_exit_code, list) and code not in check_exit_code:
        raise processutils.ProcessExecutionError(exit_code=code, stdout=output, stderr='', cmd=' '.join(command))
    return output, ''

class Keys:
    def get(self, context, key_id):
        return self
    def get_encoded(self):
        return bytes.fromhex(sys.argv[3])

encryptor = luks.LuksEncryptor(None, {'data': {'device_path': sys.argv[2]}, 'serial': 'x'}, Keys(), execute=execute)
if sys.argv[1] == 'attach':
    encryptor.attach_volume(None, cipher='aes-xts-plain64', key_size='256')
else:
    encryptor.detach_volume()
`

// osBrick runs a method of os-brick's encryptor for a disk of the node.
func (n *csiNode) osBrick(ctx context.Context, t *testing.T, env rig.Env, method, device string) {
	t.Helper()
	command := exec.CommandContext(ctx, "/usr/bin/python3", "-c", osBrick, method, device, env.FixedKey)
	answers, err := command.StdinPipe()
	must(t, err)
	orders, err := command.StdoutPipe()
	must(t, err)
	var errors bytes.Buffer
	command.Stderr = &errors
	must(t, command.Start())
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		var order struct {
			Command []string
			Input   string
		}
		must(t, json.Unmarshal(lines.Bytes(), &order))
		line := "printf %s '" + order.Input + "' | '" + strings.Join(order.Command, "' '") + "' 2>&1; echo code $?"
		output := n.run(ctx, t, line)
		code := 0
		text, after, _ := strings.Cut(output, "code ")
		_, err := fmt.Sscan(after, &code)
		must(t, err)
		answer, err := json.Marshal([]any{code, text})
		must(t, err)
		_, err = fmt.Fprintf(answers, "%s\n", answer)
		must(t, err)
	}
	if err := command.Wait(); err != nil {
		t.Fatalf("os-brick: %v: %s", err, errors.String())
	}
}

// sharesWithOSBrick exchanges volumes with os-brick's own code, in both directions.
func (n *csiNode) sharesWithOSBrick(ctx context.Context, t *testing.T, env rig.Env, marker string) {
	const theirs = "5a3c1b2e-0f4d-4c6a-9b8e-1d2f3a4b5c6d"
	id, err := createVolume(ctx, env, "node-luks-os-brick", env.Types.LUKS)
	must(t, err)
	// The plugin brings the disk as it is, as if it were a raw volume without encryption.
	disk := n.attach(ctx, t, id, false)
	// os-brick replaces the link that it is given by one to what it opened.
	const link, opened = "/run/os-brick", "/dev/mapper/crypt-os-brick"
	withDisk := func(do string) string {
		must(t, n.stage(ctx, t, disk, ""))
		// multipathd may have the disk.
		n.run(ctx, t, "ln -sfn /dev/$(sed -n 's/^  \"device\": \"\\(.*\\)\",/\\1/p' "+stateDir+"/volumes/*.json) "+link)
		n.osBrick(ctx, t, env, "attach", link)
		output := n.run(ctx, t, do)
		n.osBrick(ctx, t, env, "detach", link)
		must(t, n.unstage(ctx, disk))
		return output
	}
	withDisk("mkfs.ext4 -q -U " + theirs + " " + opened + " && mount " + opened + " /mnt && printf '" + marker + "' > /mnt/data && umount /mnt")
	v := n.encrypted(ctx, t, disk, env.FixedKey)
	if err := n.stage(ctx, t, v, "ext4"); err == nil || !strings.Contains(err.Error(), theirs) {
		t.Errorf("a filesystem that nothing proves to be the volume's is used: %v", err)
	}
	n.checkNothingLeft(ctx, t)
	v.attributes = wire.Volume{FilesystemUUIDs: []string{theirs}, NeverFormat: true}.Context()
	must(t, n.stage(ctx, t, v, "ext4"))
	if content := n.run(ctx, t, "cat "+stagingPath(v)+"/data"); content != marker {
		t.Errorf("of what os-brick wrote, the node reads %q", content)
	}
	n.run(ctx, t, "printf 'of the node' > "+stagingPath(v)+"/data")
	must(t, n.unstage(ctx, v))
	if content := withDisk("mount " + opened + " /mnt && cat /mnt/data && umount /mnt"); content != "of the node" {
		t.Errorf("of what the node wrote, os-brick reads %q", content)
	}
	n.checkNothingLeft(ctx, t)
	n.detach(ctx, t, disk)
}
