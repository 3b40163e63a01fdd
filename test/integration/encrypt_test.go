package integration

import (
	"crypto/aes"
	"crypto/cipher"
	encoding "encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// Key-encryption keys of tests.
const (
	firstKEK  = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	secondKEK = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// keySecret writes a Secret with key-encryption keys.
func keySecret(w *world, name string, entries map[string]string) {
	w.Helper()
	secrets := suite.Client.CoreV1().Secrets(harness.Namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{annotation("key-encryption"): "true"}}, StringData: entries}
	_ = secrets.Delete(w.ctx, name, metav1.DeleteOptions{})
	_, err := secrets.Create(w.ctx, secret, metav1.CreateOptions{})
	w.must(err)
}

// setRecord replaces a record as somebody with the project at Cinder would; an empty one
// removes it.
func setRecord(w *world, id, record string) error {
	v, _ := w.sim.Volume(id)
	metadata := maps.Clone(v.Metadata)
	delete(metadata, annotation("encryption"))
	if record != "" {
		metadata[annotation("encryption")] = record
	}
	return w.sim.SetVolumeMetadata(id, metadata)
}

// passphraseOf unwraps the key of a record as docs/how-to/volume-types.md describes it,
// independently of the program.
func passphraseOf(record, kek string) (string, error) {
	fields := strings.Split(record, " ")
	if len(fields) != 4 || fields[0] != "1" {
		return "", fmt.Errorf("the record is %q", record)
	}
	wrapped, err := encoding.StdEncoding.DecodeString(fields[3])
	if err != nil || len(wrapped) != 60 {
		return "", fmt.Errorf("the record is %q, %w", record, err)
	}
	key, err := hex.DecodeString(kek)
	if err != nil {
		return "", err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return "", err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return "", err
	}
	opened, err := gcm.Open(nil, wrapped[:12], wrapped[12:], []byte("standalone-cinder.openstack.org/encryption 1 "+fields[2]))
	return hex.EncodeToString(opened), err
}

// TestRulesEncryptVolumes: from the claim, which waits for the key-encryption key, to the
// node, which gets the key, through a clone and a rotation. Without the right
// key-encryption key, the pod's attachment says so. The keys are nowhere but in the Secrets.
func TestRulesEncryptVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "encrypt", cindersim.Options{})
	w.policy = w.change("        fsType: xfs\n", "        fsType: xfs\n        mode: csi\n        encrypt: {keySecret: encrypt-keys, entry: first}\n      - storageClasses: [\"encrypt-lab\"]\n        backends: [gold]\n        mode: csi\n")
	c, _ := w.csi(1, 0)
	s := w.startWithSidecar()
	bound := func(name string) (csiVolume, *corev1.PersistentVolume, string) {
		t.Helper()
		var pv *corev1.PersistentVolume
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			claim, err := suite.Client.CoreV1().PersistentVolumeClaims("encrypt-a").Get(w.ctx, name, metav1.GetOptions{})
			if err != nil || claim.Status.Phase != corev1.ClaimBound {
				return "claim " + name + " is not bound", err
			}
			pv, err = suite.Client.CoreV1().PersistentVolumes().Get(w.ctx, claim.Spec.VolumeName, metav1.GetOptions{})
			return "", err
		}))
		id := strings.TrimPrefix(pv.Spec.CSI.VolumeHandle, "gold/")
		v, _ := w.sim.Volume(id)
		return csiVolume{id, pv.Name}, pv, v.Metadata[annotation("encryption")]
	}
	attach := func(v csiVolume) string {
		t.Helper()
		w.must(c.attachTo(w.ctx, v, 0))
		connection, err := c.attached(w.ctx, v, 0)
		w.must(err)
		if connection.Encryption == nil || *connection.Encryption != (wire.Encryption{LUKS: 2}) {
			t.Errorf("the connection is %+v, %+v", connection, connection.Encryption)
		}
		entries, err := c.credentials(w.ctx, v)
		w.must(err)
		found, err := wire.CredentialsFor(c.node(0), entries)
		w.must(err)
		return found.Passphrase
	}
	detach := func(v csiVolume) {
		t.Helper()
		w.must(c.detachFrom(w.ctx, v, 0))
		w.must(c.answered(w.ctx, v, 0))
		if entries, err := c.credentials(w.ctx, v); err != nil || len(entries) > 0 {
			t.Errorf("after it is detached, the Secret has %d entries, %v", len(entries), err)
		}
	}
	refused := func(v csiVolume, why string) {
		t.Helper()
		w.must(c.attachTo(w.ctx, v, 0))
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			va, err := suite.Client.StorageV1().VolumeAttachments().Get(w.ctx, c.attachment(v, 0), metav1.GetOptions{})
			if err != nil || va.Status.AttachError == nil || !strings.Contains(va.Status.AttachError.Message, why) {
				return fmt.Sprintf("the attachment says %v", va.Status.AttachError), err
			}
			return "", nil
		}))
		detach(v)
	}

	// The claim waits for the key-encryption key, and nothing is made.
	w.claim("a", "data", "gold", "1Gi")
	_, err := suite.WaitEvent(w.ctx, "encrypt-a", "data", "ProvisioningFailed", "Secret standalone-cinder/encrypt-keys does not exist, whose entry first wraps the keys of new volumes; make or restore it")
	w.must(err)
	if volumes := w.sim.Volumes(); len(volumes) > 0 {
		t.Errorf("there are volumes: %s", describe(volumes))
	}
	keySecret(w, "encrypt-keys", map[string]string{"first": firstKEK})
	t.Cleanup(func() {
		_ = suite.Client.CoreV1().Secrets(harness.Namespace).Delete(t.Context(), "encrypt-keys", metav1.DeleteOptions{})
	})
	v, pv, record := bound("data")
	passphrase, err := passphraseOf(record, firstKEK)
	w.must(err)
	if origin := pv.Spec.CSI.VolumeAttributes["encrypted"]; origin != pv.Annotations[annotation("claim-uid")] || origin == "" || !strings.HasPrefix(record, "1 encrypt-keys/first "+origin+" ") {
		t.Errorf("the PersistentVolume says %q, the record %q", origin, record)
	}
	if got := attach(v); got != passphrase {
		t.Error("the node gets another key than the volume's")
	}
	detach(v)

	// A clone has the key of its source.
	_, err = suite.CreateClaim(w.ctx, harness.Claim("encrypt-a", "clone", "encrypt-gold", "1Gi", contentOf("data")))
	w.must(err)
	clone, clonePV, cloneRecord := bound("clone")
	if cloneRecord != record || clonePV.Spec.CSI.VolumeAttributes["encrypted"] != pv.Spec.CSI.VolumeAttributes["encrypted"] {
		t.Errorf("the clone has the record %q, and its PersistentVolume says %v", cloneRecord, clonePV.Spec.CSI.VolumeAttributes)
	}

	// The key goes with its volume to another claim, and to a clone of that.
	w.claim("a", "second", "gold", "1Gi")
	second, _, secondRecord := bound("second")
	secondPassphrase, err := passphraseOf(secondRecord, firstKEK)
	w.must(err)
	swap := func(flags ...string) {
		t.Helper()
		w.must(harness.Eventually(w.ctx, func() (string, error) {
			code, output := w.volumeCommand("swap", append([]string{"encrypt-a/data", "--with", "second", "--apply"}, flags...)...)
			if code != 0 && (strings.Contains(output, "try again in a minute") || strings.Contains(output, "is being copied")) {
				return output, nil
			}
			if code != 0 {
				return "", fmt.Errorf("the swap ended with %d: %s", code, output)
			}
			return "", nil
		}))
	}
	swap()
	for of, want := range map[csiVolume]string{{second.id, v.pv}: secondPassphrase, {v.id, second.pv}: passphrase} {
		if got := attach(of); got != want {
			t.Errorf("with volume %s of PersistentVolume %s, the node gets another key than the volume's", of.id, of.pv)
		}
		detach(of)
	}
	_, err = suite.CreateClaim(w.ctx, harness.Claim("encrypt-a", "swapped-clone", "encrypt-gold", "1Gi", contentOf("data")))
	w.must(err)
	swappedClone, swappedClonePV, swappedCloneRecord := bound("swapped-clone")
	if swappedCloneRecord != secondRecord || !strings.Contains(secondRecord, " "+swappedClonePV.Spec.CSI.VolumeAttributes["encrypted"]+" ") {
		t.Errorf("the clone of a swapped claim has the record %q, and its PersistentVolume says %v", swappedCloneRecord, swappedClonePV.Spec.CSI.VolumeAttributes)
	}
	if got := attach(swappedClone); got != secondPassphrase {
		t.Error("the node gets another key than that of the clone of a swapped claim")
	}
	detach(swappedClone)
	swap("--back")
	for _, name := range []string{"second", "swapped-clone"} {
		w.must(suite.Client.CoreV1().PersistentVolumeClaims("encrypt-a").Delete(w.ctx, name, metav1.DeleteOptions{}))
	}
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		if left := w.sim.Volumes(); len(left) > 2 {
			return "there are volumes: " + describe(left), nil
		}
		return "", nil
	}))

	// A rule that does not encrypt makes no clone.
	_, err = suite.CreateClaim(w.ctx, harness.Claim("encrypt-a", "plain", "encrypt-lab", "1Gi", contentOf("data")))
	w.must(err)
	_, err = suite.WaitEvent(w.ctx, "encrypt-a", "plain", "SourceNotAllowed", "claim encrypt-a/data is encrypted by nodes, and so would be its copy, but tenants[0].classes[1] has no encrypt")
	w.must(err)

	// Rotation: another entry, rewrap, and the former entry goes.
	keySecret(w, "encrypt-keys", map[string]string{"first": firstKEK, "second": secondKEK})
	var said strings.Builder
	rewrap := func(flags ...string) string {
		t.Helper()
		code, output := w.volumeCommand("rewrap", append([]string{"--secret-namespace", harness.Namespace}, flags...)...)
		said.WriteString(output)
		if code != 0 {
			t.Errorf("rewrap %q ended with %d: %s", flags, code, output)
		}
		return output
	}
	from := []string{"--from", "encrypt-keys/first", "--to", "encrypt-keys/second"}
	if output := rewrap(); !strings.Contains(output, "encrypt-keys/first  gold     2        0\n") {
		t.Errorf("in use is:\n%s", output)
	}
	if output := rewrap(from...); !strings.Contains(output, "would rewrap 2 volumes and snapshots") {
		t.Error(output)
	}
	if _, _, now := bound("data"); now != record {
		t.Errorf("without --apply, the record became %q", now)
	}
	// A retype may write back the former record at its end, so the clone keeps it until then.
	w.must(w.sim.SetVolumeStatus(clone.id, "retyping"))
	if code, output := w.volumeCommand("rewrap", append(from, "--secret-namespace", harness.Namespace, "--apply")...); code != 1 || !strings.Contains(output, "volume "+clone.id+" is retyping, and Cinder may write back the former record of its key") {
		t.Errorf("rewrap of a volume that is retyping ended with %d: %s", code, output)
	}
	if output := rewrap(); !strings.Contains(output, "encrypt-keys/first   gold     1        0\n") {
		t.Errorf("in use is:\n%s", output)
	}
	w.must(w.sim.SetVolumeStatus(clone.id, "available"))
	rewrap(append(from, "--apply")...)
	if output := rewrap(); !strings.Contains(output, "encrypt-keys/second  gold     2        0\n") || strings.Contains(output, "first") {
		t.Errorf("in use is:\n%s", output)
	}
	keySecret(w, "encrypt-keys", map[string]string{"second": secondKEK})
	_, _, rewrapped := bound("data")
	if again, err := passphraseOf(rewrapped, secondKEK); err != nil || again != passphrase || rewrapped == record {
		t.Errorf("the record became %q, %v", rewrapped, err)
	}
	for _, of := range []csiVolume{v, clone} {
		if got := attach(of); got != passphrase {
			t.Error("after the rotation, the node gets another key than the volume's")
		}
		detach(of)
	}

	// Whoever has the project at Cinder cannot have another volume opened with the key, nor
	// have the volume taken for one that is not encrypted.
	keySecret(w, "encrypt-keys", map[string]string{"first": firstKEK, "second": secondKEK})
	w.claim("a", "other", "gold", "1Gi")
	other, _, otherRecord := bound("other")
	for moved, why := range map[string]string{
		rewrapped: "has the record of another volume's key",
		strings.Replace(rewrapped, strings.Fields(rewrapped)[2], strings.Fields(otherRecord)[2], 1): "entry second of Secret standalone-cinder/encrypt-keys does not open volume " + other.id,
	} {
		w.must(setRecord(w, other.id, moved))
		refused(other, why)
	}
	w.must(setRecord(w, other.id, ""))
	refused(other, "is encrypted, but its metadata has no record of its key")
	w.must(setRecord(w, other.id, otherRecord))
	attach(other)
	detach(other)

	keySecret(w, "encrypt-keys", map[string]string{"first": firstKEK, "second": firstKEK})
	refused(v, "entry second of Secret standalone-cinder/encrypt-keys does not open volume "+v.id)

	attachments, err := suite.Client.StorageV1().VolumeAttachments().List(w.ctx, metav1.ListOptions{})
	w.must(err)
	text, err := json.Marshal(attachments)
	w.must(err)
	_, metrics, err := s.Get(w.ctx, "/metrics")
	w.must(err)
	key, _ := hex.DecodeString(passphrase)
	everything := string(text) + s.Replica.Log() + s.Attacher.Log() + w.readable() + metrics + said.String() + fmt.Sprint(w.sim.Volumes())
	for name, secret := range map[string]string{"the volume's key": passphrase, "its bytes": string(key), "its base64": base64(string(key)), "a key-encryption key": firstKEK, "another": secondKEK} {
		if strings.Contains(everything, secret) {
			t.Errorf("%s is where it must not be", name)
		}
	}
	w.must(suite.DeleteClaims(w.ctx, "encrypt-a"))
	w.noResidue()
}
