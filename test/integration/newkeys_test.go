package integration

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestVolumesInUseGetNewKeys: volume rewrap --new-keys, run by run, with the leader and the
// node's reports. At each step the node's entry and the metadata have what opens the volume, a
// clone has the records of its source, and the keys are nowhere else.
func TestVolumesInUseGetNewKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "newkeys", cindersim.Options{})
	w.policy = w.change("        fsType: xfs\n", "        fsType: xfs\n        mode: csi\n        encrypt: {keySecret: newkeys-keys, entry: first}\n")
	keySecret(w, "newkeys-keys", map[string]string{"first": firstKEK, "second": secondKEK})
	t.Cleanup(func() {
		_ = suite.Client.CoreV1().Secrets(harness.Namespace).Delete(t.Context(), "newkeys-keys", metav1.DeleteOptions{})
	})
	c, _ := w.csi(1, 0)
	s := w.startWithSidecar()
	bound := func(name string) csiVolume {
		t.Helper()
		var pv string
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			claim, err := suite.Client.CoreV1().PersistentVolumeClaims("newkeys-a").Get(w.ctx, name, metav1.GetOptions{})
			if err != nil || claim.Status.Phase != corev1.ClaimBound {
				return "claim " + name + " is not bound", err
			}
			pv = claim.Spec.VolumeName
			return "", nil
		}))
		object, err := suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, pv, metav1.GetOptions{})
		w.must(err)
		return csiVolume{strings.TrimPrefix(object.Spec.CSI.VolumeHandle, "gold/"), pv}
	}
	w.claim("a", "data", "gold", "1Gi")
	v := bound("data")
	w.must(c.attachTo(w.ctx, v, 0))
	_, err := c.attached(w.ctx, v, 0)
	w.must(err)

	record := func(of csiVolume, name string) string {
		v, _ := w.sim.Volume(of.id)
		return v.Metadata[annotation(name)]
	}
	entry := func() wire.Credentials {
		t.Helper()
		entries, err := c.credentials(w.ctx, v)
		w.must(err)
		found, err := wire.CredentialsFor(c.node(0), entries)
		w.must(err)
		return found
	}
	open := func(record, kek string) string {
		t.Helper()
		passphrase, err := passphraseOf(record, kek)
		w.must(err)
		return passphrase
	}
	var said strings.Builder
	run := func(want string) {
		t.Helper()
		code, output := w.volumeCommand("rewrap", "--secret-namespace", harness.Namespace, "--from", "newkeys-keys/first", "--to", "newkeys-keys/second", "--new-keys", "--apply")
		said.WriteString(output)
		if code != 0 || !strings.Contains(output, want) {
			t.Fatalf("it ended with %d: %s\nwant %q", code, output, want)
		}
	}
	anHourLater := func(of csiVolume) {
		t.Helper()
		found, _ := w.sim.Volume(of.id)
		metadata := maps.Clone(found.Metadata)
		metadata[annotation("encryption-since")] = time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
		w.must(w.sim.SetVolumeMetadata(of.id, metadata))
	}
	node := w.node("node-0")
	machine := harness.Machine(c.node(0), "boot-1")
	node.Status.NodeInfo = corev1.NodeSystemInfo{SystemUUID: machine.SystemUUID, MachineID: machine.MachineID, BootID: machine.Boot}
	w.updateStatus(node)
	report := func(names ...string) {
		t.Helper()
		w.must(suite.Report(w.ctx, c.node(0), staged.Report{Machine: machine, Volumes: []string{"gold/" + v.id}, Passphrases: map[string][]string{"gold/" + v.id: names}}))
	}

	former := entry().Passphrase
	run("1 volumes begin to get a new key, 0 switch to it, 0 have lost the former one, 0 wait; run the command again in an hour")
	next := open(record(v, "encryption-next"), secondKEK)
	if got := entry(); got.Passphrase != former || got.AlsoPassphrase != next || open(record(v, "encryption"), firstKEK) != former || next == former {
		t.Errorf("begun: the entry or the records do not fit")
	}
	_, err = suite.CreateClaim(w.ctx, harness.Claim("newkeys-a", "clone", "newkeys-gold", "1Gi", contentOf("data")))
	w.must(err)
	clone := bound("clone")
	for _, name := range []string{"encryption", "encryption-next", "encryption-since"} {
		if record(clone, name) != record(v, name) {
			t.Errorf("the clone has another %s than its source", name)
		}
	}
	run("waits: the next step can be taken from")
	if code, output := w.volumeCommand("rewrap", "--secret-namespace", harness.Namespace); code != 0 || !strings.Contains(output, "newkeys-keys/second  gold     2        0\n") || !strings.Contains(output, "Some of them get new keys") {
		t.Errorf("the list ended with %d: %s", code, output)
	}
	anHourLater(v)
	report(wire.PassphraseName(former), wire.Absent(wire.PassphraseName(next)))
	run("its node has not added the new key yet")
	report(wire.PassphraseName(former), wire.PassphraseName(next))
	run("1 switch to it")
	if got := entry(); got.Passphrase != next || got.AlsoPassphrase != former || got.FormerPassphrase != "" || open(record(v, "encryption"), secondKEK) != next || open(record(v, "encryption-former"), firstKEK) != former || record(v, "encryption-next") != "" {
		t.Errorf("switched: the entry or the records do not fit")
	}
	anHourLater(v)
	run("its node has not removed the former key yet")
	if got := entry(); got.Passphrase != next || got.AlsoPassphrase != "" || got.FormerPassphrase != former {
		t.Errorf("settled: the entry does not fit")
	}
	// The leader says the same when the volume moves.
	w.must(c.detachFrom(w.ctx, v, 0))
	w.must(c.answered(w.ctx, v, 0))
	w.must(c.attachTo(w.ctx, v, 0))
	_, err = c.attached(w.ctx, v, 0)
	w.must(err)
	if got := entry(); got.Passphrase != next || got.AlsoPassphrase != "" || got.FormerPassphrase != former {
		t.Errorf("attached again: the entry does not fit")
	}
	report(wire.PassphraseName(next), wire.Absent(wire.PassphraseName(former)))
	run("1 have lost the former one")
	if got := entry(); got.Passphrase != next || len(got.Passphrases()) != 1 || record(v, "encryption-former") != "" || open(record(v, "encryption"), secondKEK) != next {
		t.Errorf("ended: the entry or the records do not fit")
	}
	w.must(suite.Report(w.ctx, c.node(0), staged.Report{Machine: machine}))
	w.must(c.detachFrom(w.ctx, v, 0))
	w.must(c.answered(w.ctx, v, 0))

	_, metrics, err := s.Get(w.ctx, "/metrics")
	w.must(err)
	everything := s.Replica.Log() + s.Attacher.Log() + w.readable() + metrics + said.String() + fmt.Sprint(w.sim.Volumes())
	for name, secret := range map[string]string{"the former key": former, "the new key": next, "a key-encryption key": firstKEK, "another": secondKEK} {
		if strings.Contains(everything, secret) {
			t.Errorf("%s is where it must not be", name)
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "newkeys-a"))
	w.noResidue()
}
