package integration

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/harness"
)

// TestAnEncryptedVolumeIsAttachedWithItsKey: the key comes from the key manager of the
// service catalog, and is nowhere but in the volume's Secret, until the volume is detached.
// While the key manager is away, the attachment says so.
func TestAnEncryptedVolumeIsAttachedWithItsKey(t *testing.T) {
	identity := keystone.DefaultIdentity()
	identity.KeyManager = true
	w := newWorld(t, "csiencrypted", cindersim.Options{Identity: identity, Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{
		Name: "luks2", RequiresInitiator: true, Encryption: &drivers.Encryption{Provider: "luks2", Cipher: "aes-xts-plain64", KeyBits: 512, KeyManager: true},
	})})
	c, volumes := w.csi(1, 1, "luks2")
	v := volumes[0]
	away := w.sim.Inject(cindersim.Fault{Kind: cindersim.RespondBefore, Operation: "key.get", Code: 503})
	s := w.startWithSidecar()
	w.must(c.attachTo(w.ctx, v, 0))
	w.must(harness.Eventually(w.ctx, func() (string, error) {
		va, err := suite.Client.StorageV1().VolumeAttachments().Get(w.ctx, c.attachment(v, 0), metav1.GetOptions{})
		if err != nil || va.Status.AttachError == nil || !strings.Contains(va.Status.AttachError.Message, "key.get: the key manager: ") {
			return fmt.Sprintf("the attachment says %v", va.Status.AttachError), err
		}
		return "", nil
	}))
	if entries, err := c.credentials(w.ctx, v); err != nil || len(entries) > 0 {
		t.Errorf("without a key, the Secret has %d entries, %v", len(entries), err)
	}
	away.Remove()
	connection, err := c.attached(w.ctx, v, 0)
	w.must(err)
	if connection.Encryption == nil || *connection.Encryption != (wire.Encryption{LUKS: 2, Cipher: "aes-xts-plain64", KeyBits: 512}) {
		t.Errorf("the connection is %+v, %+v", connection, connection.Encryption)
	}
	now, _ := w.sim.Volume(v.id)
	passphrase := hex.EncodeToString(cindersim.KeyOf(now.KeyID))
	entries, err := c.credentials(w.ctx, v)
	w.must(err)
	if found, err := wire.CredentialsFor(c.node(0), entries); err != nil || found.Passphrase != passphrase || found.Password != now.Export.Password {
		t.Errorf("the node does not find the key, %v", err)
	}
	attachments, err := suite.Client.StorageV1().VolumeAttachments().List(w.ctx, metav1.ListOptions{})
	w.must(err)
	text, err := json.Marshal(attachments)
	w.must(err)
	if everything := string(text) + s.Replica.Log() + s.Attacher.Log() + w.readable(); strings.Contains(everything, passphrase) {
		t.Error("the key is where it must not be")
	}
	w.must(c.detachFrom(w.ctx, v, 0))
	w.must(c.detached(w.ctx, v, 0))
	if entries, err = c.credentials(w.ctx, v); err != nil || len(entries) > 0 {
		t.Errorf("after it is detached, the Secret has %d entries, %v", len(entries), err)
	}
}
