package attach

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/controller"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

const (
	volumesKey = "0123456789abcdef0123456789abcdef"
	keyID      = "9c2b1d2e-7a55-4b1c-8f0e-0f6a3c1d2e3f"
)

func encryption(change func(*cinder.Encryption)) *cinder.Encryption {
	e := &cinder.Encryption{KeyID: keyID, Provider: "luks", ControlLocation: "front-end", Cipher: "aes-xts-plain64", KeyBits: 256}
	if change != nil {
		change(e)
	}
	return e
}

// TestPublishOfAnEncryptedVolume: the key reaches only the volume's Secret.
func TestPublishOfAnEncryptedVolume(t *testing.T) {
	passphrase := hex.EncodeToString([]byte(volumesKey))
	fixedKey := func(value string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "fixed"}, Data: map[string][]byte{"fixedKey": []byte(value)}}
	}
	fixed := encryption(func(e *cinder.Encryption) { e.KeyID = objects.FixedKeyID })
	luks := &wire.Encryption{LUKS: 1, Cipher: "aes-xts-plain64", KeyBits: 256}
	for name, test := range map[string]struct {
		encryption *cinder.Encryption
		document   string
		rules      Rules
		secret     *corev1.Secret
		unkeyed    error
		want       *wire.Encryption
		event      bool
		refused    string
	}{
		"with a key of the key manager": {encryption: encryption(nil), want: luks},
		"with LUKS2 and no CHAP": {encryption: encryption(func(e *cinder.Encryption) { e.Provider, e.Cipher, e.KeyBits = "luks2", "", 0 }), document: plain + "}",
			want: &wire.Encryption{LUKS: 2}},
		"of an old type":                     {encryption: encryption(func(e *cinder.Encryption) { e.Provider = "nova.volume.encryptors.luks.LuksEncryptor" }), want: luks},
		"that the storage encrypts":          {encryption: encryption(func(e *cinder.Encryption) { e.ControlLocation = "back-end" })},
		"with the fixed key":                 {encryption: fixed, rules: Rules{FixedKeySecret: "fixed"}, secret: fixedKey(passphrase + "\n"), want: luks},
		"with the fixed key, without a name": {encryption: fixed, refused: "the volume has the fixed key of Cinder's own key manager; make a Secret in namespace standalone-cinder with fixedKey, which is fixed_key of cinder.conf, and name it in csi.encryption.fixedKeySecret of the backend"},
		"with the fixed key, without a Secret": {encryption: fixed, rules: Rules{FixedKeySecret: "fixed"},
			refused: "Secret standalone-cinder/fixed does not exist, which csi.encryption.fixedKeySecret of the backend names; make it with fixedKey"},
		"with a fixed key that is none": {encryption: fixed, rules: Rules{FixedKeySecret: "fixed"}, secret: fixedKey("swordfish"),
			refused: "Secret standalone-cinder/fixed, which csi.encryption.fixedKeySecret of the backend names, cannot be used: its fixedKey is not a key of 16 bytes or more in hexadecimal digits, as fixed_key of cinder.conf is"},
		"while the key manager is away": {encryption: encryption(nil), unkeyed: &cinder.Error{Backend: "gold", Operation: "key.get", Kind: cinder.KindUnavailable, Message: "the key manager: no answer in time"},
			refused: "backend gold: key.get: the key manager: no answer in time"},
		"without LUKS": {encryption: encryption(func(e *cinder.Encryption) { e.Provider = "plain" }), event: true,
			refused: `the volume's encryption has the provider "plain", and nodes open luks and luks2; use a volume type with one of these`},
		"with an option as the cipher": {encryption: encryption(func(e *cinder.Encryption) { e.Cipher = "--key-file=/etc/shadow" }), event: true,
			refused: `the volume's encryption has the cipher "--key-file=/etc/shadow", which cannot be one; correct its volume type`},
		"without a key": {encryption: encryption(func(e *cinder.Encryption) { e.KeyID = "" }), event: true,
			refused: "Cinder says that the volume is encrypted, but names no key for it; look for its encryption_key_id in cinder-volume's log"},
		"although its type is not": {document: plain + `, "encrypted": true}`, event: true,
			refused: "Cinder says that the volume is encrypted, but not how; check the encryption of its volume type (openstack volume type show --encryption-type)"},
	} {
		t.Run(name, func(t *testing.T) {
			existing := []runtime.Object{testPV(), testSecret()}
			existing[0].(*corev1.PersistentVolume).Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "data", UID: "1"}
			if test.secret != nil {
				existing = append(existing, test.secret)
			}
			w := newWorld(t, existing...)
			w.volumes.document, w.rules = withCHAP, test.rules
			if test.document != "" {
				w.volumes.document = test.document
			}
			w.volumes.encryption, w.volumes.keys, w.volumes.unkeyed = test.encryption, map[string]string{keyID: volumesKey}, test.unkeyed
			got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1})
			shown := fmt.Sprintf("%+v %v", got, err)
			if context, err := got.PublishContext(); err != nil || strings.Contains(fmt.Sprint(shown, context), passphrase) || strings.Contains(shown, volumesKey) {
				t.Errorf("the key is shown: %s %v %v", shown, context, err)
			}
			if test.refused != "" {
				var failed *controller.Failure
				if !errors.As(err, &failed) || failed.Message != test.refused {
					t.Errorf("got  %v\nwant %s", err, test.refused)
				}
				if len(w.events.Events) > 0 != test.event {
					t.Errorf("%d events", len(w.events.Events))
				}
				if entry, found := w.secret(t)[wire.SecretKey("n1")]; found {
					t.Errorf("the Secret has %q", entry)
				}
				return
			}
			must(t, err)
			if (got.Encryption == nil) != (test.want == nil) || got.Encryption != nil && *got.Encryption != *test.want {
				t.Errorf("encryption %+v, want %+v", got.Encryption, test.want)
			}
			credentials, err := wire.CredentialsFor("n1", w.secret(t))
			if must(t, err); (credentials.Passphrase == passphrase) != (test.want != nil) || (credentials.User == "") != (test.document != "") || !got.Credentials {
				t.Errorf("the node finds user %q, and the passphrase is right: %t", credentials.User, credentials.Passphrase == passphrase)
			}
			must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
			if entry, found := w.secret(t)[wire.SecretKey("n1")]; found {
				t.Errorf("after it is detached, the Secret has %q", entry)
			}
		})
	}
}

// TestOnlyEncryptedVolumesCostRequestsForTheirKeys.
func TestOnlyEncryptedVolumesCostRequestsForTheirKeys(t *testing.T) {
	w := newWorld(t, testPV(), testSecret())
	w.volumes.document = withCHAP
	_, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1})
	must(t, err)
	if slices.Contains(w.volumes.calls, "encryption") {
		t.Errorf("calls %q", w.volumes.calls)
	}
}

// TestPublishOfAVolumeThatRecordsItsKey: without the key-encryption key that the record
// names, the node gets nothing, so it formats nothing.
func TestPublishOfAVolumeThatRecordsItsKey(t *testing.T) {
	const (
		with    = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
		another = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
		purpose = "standalone-cinder.openstack.org/encryption 1 "
		origin  = "claim-of-the-key"
	)
	passphrase := hex.EncodeToString([]byte(volumesKey))
	key, err := hex.DecodeString(with)
	must(t, err)
	block, err := aes.NewCipher(key)
	must(t, err)
	gcm, err := cipher.NewGCM(block)
	must(t, err)
	nonce := make([]byte, gcm.NonceSize())
	// recordOf says that the key was made for a claim; it was wrapped for another one, if they
	// differ.
	recordOf := func(says, wrapped string) string {
		return "1 team-a-keys/2026-11 " + says + " " + base64.StdEncoding.EncodeToString(gcm.Seal(nonce, nonce, []byte(volumesKey), []byte(purpose+wrapped)))
	}
	record := recordOf(origin, origin)
	keys := func(entries map[string]string) *corev1.Secret {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "team-a-keys", Labels: map[string]string{"standalone-cinder.openstack.org/key-encryption": "true"}}, Data: map[string][]byte{}}
		for name, value := range entries {
			secret.Data[name] = []byte(value)
		}
		return secret
	}
	unlabeled := keys(map[string]string{"2026-11": with})
	unlabeled.Labels = nil
	isNotOpened := "entry 2026-11 of Secret standalone-cinder/team-a-keys does not open volume " + volumeID + ": its key does not open the record: it was changed, or the record is damaged"
	for name, test := range map[string]struct {
		record     string
		encryption *cinder.Encryption
		secret     *corev1.Secret
		// vanished means that the metadata has no record, not even an empty one.
		vanished bool
		// plain means that the PersistentVolume does not say that the volume is encrypted.
		plain   bool
		refused string
	}{
		"with the only entry":  {record: record, secret: keys(map[string]string{"2026-11": with})},
		"with an entry before": {record: record, secret: keys(map[string]string{"2026-11": with + "\n", "2026-12": another})},
		"without the Secret":   {record: record, refused: "Secret standalone-cinder/team-a-keys does not exist, whose entry 2026-11 opens volume " + volumeID + "; make or restore it"},
		"without the entry":    {record: record, secret: keys(map[string]string{"2026-12": another}), refused: "Secret standalone-cinder/team-a-keys has no entry 2026-11, which opens volume " + volumeID + "; add or restore it"},
		"with another key":     {record: record, secret: keys(map[string]string{"2026-11": another}), refused: isNotOpened},
		"with a Secret that nobody has labeled": {record: record, secret: unlabeled,
			refused: "Secret standalone-cinder/team-a-keys, whose entry 2026-11 opens volume " + volumeID + ", has no label standalone-cinder.openstack.org/key-encryption=true, which says that its entries are key-encryption keys; add it"},
		"with the record of another volume": {record: recordOf("another-claim", "another-claim"), secret: keys(map[string]string{"2026-11": with}),
			refused: "the metadata of volume " + volumeID + " has the record of another volume's key (standalone-cinder.openstack.org/encryption): it was made for claim UID another-claim, and that of the PersistentVolume for " + origin + "; restore it from a copy of the volume"},
		"with the record of another volume, altered to fit": {record: recordOf(origin, "another-claim"), secret: keys(map[string]string{"2026-11": with}), refused: isNotOpened},
		"whose record has vanished": {vanished: true, secret: keys(map[string]string{"2026-11": with}),
			refused: "volume " + volumeID + " is encrypted, but its metadata has no record of its key (standalone-cinder.openstack.org/encryption) any more; restore it from a copy of the volume"},
		"although its PersistentVolume says nothing": {record: record, plain: true, secret: keys(map[string]string{"2026-11": with}),
			refused: "the metadata of volume " + volumeID + " has the record of a key (standalone-cinder.openstack.org/encryption), but its PersistentVolume does not say that it is encrypted; keep a copy of the record, and remove it if it was put there by hand"},
		"with an entry of no key": {record: record, secret: keys(map[string]string{"2026-11": "swordfish"}), refused: "entry 2026-11 of Secret standalone-cinder/team-a-keys does not open volume " + volumeID + ": it is not a key of 64 hexadecimal digits, as openssl rand -hex 32 makes one"},
		"with a damaged record":   {record: "1 team-a-keys", refused: "volume " + volumeID + " is encrypted, and the record of its key (standalone-cinder.openstack.org/encryption) is damaged, or of a later release; restore it from a copy of the volume"},
		"with a cleared record":   {record: "", refused: "volume " + volumeID + " is encrypted, and the record of its key (standalone-cinder.openstack.org/encryption) is damaged, or of a later release; restore it from a copy of the volume"},
		"that Cinder encrypts, too": {record: record, encryption: encryption(nil), secret: keys(map[string]string{"2026-11": with}),
			refused: "volume " + volumeID + " is encrypted both by its volume type and by its rule; restore it with a volume type without encryption"},
	} {
		t.Run(name, func(t *testing.T) {
			pv := testPV()
			if !test.plain {
				pv.Spec.CSI.VolumeAttributes = wire.Volume{Encrypted: origin}.Context()
			}
			existing := []runtime.Object{pv, testSecret()}
			if test.secret != nil {
				existing = append(existing, test.secret)
			}
			w := newWorld(t, existing...)
			w.volumes.document, w.volumes.encryption = withCHAP, test.encryption
			w.volumes.keys = map[string]string{keyID: volumesKey}
			if !test.vanished {
				w.volumes.metadata = map[string]string{stamps.KeyEncryption: test.record}
			}
			got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1})
			for _, text := range []string{passphrase, volumesKey, with, another, "swordfish"} {
				if context, contextErr := got.PublishContext(); contextErr != nil || strings.Contains(fmt.Sprintf("%+v %v %v", got, err, context), text) {
					t.Errorf("a key is shown: %+v %v %v", got, err, context)
				}
			}
			if slices.Contains(w.volumes.calls, "encryption") {
				t.Errorf("Cinder was asked: %q", w.volumes.calls)
			}
			entry, found := w.secret(t)[wire.SecretKey("n1")]
			if test.refused != "" {
				var failed *controller.Failure
				if !errors.As(err, &failed) || failed.Message != test.refused || found {
					t.Errorf("got  %v, entry %q\nwant %s", err, entry, test.refused)
				}
				return
			}
			must(t, err)
			credentials, err := wire.CredentialsFor("n1", w.secret(t))
			if must(t, err); got.Encryption == nil || *got.Encryption != (wire.Encryption{LUKS: 2}) || credentials.Passphrase != passphrase || credentials.User == "" {
				t.Errorf("encryption %+v, user %q", got.Encryption, credentials.User)
			}
			must(t, w.Unpublish(t.Context(), handle(), idOf(t, n1)))
			if entry, found := w.secret(t)[wire.SecretKey("n1")]; found {
				t.Errorf("after it is detached, the Secret has %q", entry)
			}
		})
	}
}

// TestANodeIsToldThatOthersMayHaveAnEncryptedVolume: of a claim with ReadWriteOnce and
// ReadWriteMany, csi-attacher tells the controller that several nodes may have the volume,
// and kubelet tells the node that it alone has it (AccessModes[0] of the PersistentVolume).
// Only the publish context can keep each node from making its own LUKS header
// (TestTwoNodesMakeNoTwoHeaders of package node).
func TestANodeIsToldThatOthersMayHaveAnEncryptedVolume(t *testing.T) {
	if _, err := objects.MapCSI(objects.CSIVolume{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}, Block: true, MultiAttach: true}); err != nil {
		t.Skipf("such a claim gets no volume: %v", err)
	}
	contextOf := func(shared bool) map[string]string {
		w := newWorld(t, testPV(), testSecret())
		w.volumes.encryption, w.volumes.keys = encryption(nil), map[string]string{keyID: volumesKey}
		got, err := w.Publish(t.Context(), controller.PublishRequest{Volume: handle(), Node: n1, Shared: shared})
		if err != nil && shared {
			t.Skipf("such a volume is not attached to several nodes: %v", err)
		}
		must(t, err)
		context, err := got.PublishContext()
		must(t, err)
		return context
	}
	if alone, shared := contextOf(false), contextOf(true); reflect.DeepEqual(alone, shared) {
		t.Errorf("a node that has the volume alone, and one of several, are both told %v", shared)
	}
}
