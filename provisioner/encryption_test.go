package provisioner

import (
	"encoding/hex"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
)

const (
	firstKEK  = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	secondKEK = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// newEncryptingFixture returns a fixture whose rule for StorageClass one encrypts.
func newEncryptingFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	f.inForce("{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], mode: csi, encrypt: {keySecret: keys, entry: first}}")
	f.backends["gold"].document, f.backends["gold"].apart = "", true
	return f
}

func (f *fixture) keys(entries map[string]string) {
	f.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "keys", Labels: map[string]string{objects.LabelKeyEncryption: "true"}}, Data: map[string][]byte{}}
	for name, value := range entries {
		secret.Data[name] = []byte(value)
	}
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	if f.client.Tracker().Update(secrets, secret, "own") != nil {
		f.must(f.client.Tracker().Add(secret))
	}
}

// opens reports whether a PersistentVolume's volume is opened by what its metadata records.
func (f *fixture) opens(pv *corev1.PersistentVolume) error {
	id := pv.Annotations[objects.AnnotationVolume]
	record := f.backends["gold"].records[strings.TrimPrefix(id, "volume-of-")]
	_, err := volumekeys.Keeper{Client: f.client, Namespace: "own"}.Open(f.t.Context(), id, objects.EncryptedOf(pv), map[string]string{stamps.KeyEncryption: record})
	return err
}

// TestClaimOfARuleThatEncrypts: without the key-encryption key, no volume is made, and the
// claim's next attempt is soon. With it, the PersistentVolume says that nodes encrypt it.
func TestClaimOfARuleThatEncrypts(t *testing.T) {
	f := newEncryptingFixture(t)
	claim := f.claim(nil)
	if _, err := f.provision(claim); err == nil || err.Error() != "Secret own/keys does not exist, whose entry first wraps the keys of new volumes; make or restore it" {
		t.Errorf("error %v", err)
	}
	f.keys(map[string]string{"second": secondKEK})
	if _, err := f.provision(claim); err == nil || err.Error() != "Secret own/keys has no entry first, which wraps the keys of new volumes; add or restore it" {
		t.Errorf("error %v", err)
	}
	f.keys(map[string]string{"first": "swordfish"})
	if _, err := f.provision(claim); err == nil || err.Error() != "entry first of Secret own/keys cannot wrap the key of a new volume: it is not a key of 64 hexadecimal digits, as openssl rand -hex 32 makes one" {
		t.Errorf("error %v", err)
	}
	if len(f.backends["gold"].records) > 0 {
		t.Errorf("volumes were made: %v", f.backends["gold"].records)
	}
	f.keys(map[string]string{"first": firstKEK})
	pv, err := f.provision(claim)
	f.must(err)
	if got := objects.EncryptedOf(pv); got != "uid-1" {
		t.Errorf("the PersistentVolume says %q", got)
	}
	f.must(f.opens(pv))
}

// TestVolumeThatIsNotOpenedIsNotRecorded: what an earlier attempt made stays, because its
// record may open it later.
func TestVolumeThatIsNotOpenedIsNotRecorded(t *testing.T) {
	with, err := volumekeys.New(stamps.EncryptionRecord{Secret: "keys", Entry: "first", Origin: "uid-1"}, []byte(firstKEK))
	if err != nil {
		t.Fatal(err)
	}
	moved, err := volumekeys.New(stamps.EncryptionRecord{Secret: "keys", Entry: "first", Origin: "uid-of-another"}, []byte(firstKEK))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		record  string
		keys    map[string]string
		refused string
	}{
		"with its key":                     {with.String(), map[string]string{"first": firstKEK}, ""},
		"with another key-encryption key":  {with.String(), map[string]string{"first": secondKEK}, "does not open volume volume-of-uid-1"},
		"without the key-encryption key":   {with.String(), nil, "has no entry first"},
		"with the record of another claim": {moved.String(), map[string]string{"first": firstKEK}, "has the record of another volume's key"},
		"with a damaged record":            {"1 keys", map[string]string{"first": firstKEK}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newEncryptingFixture(t)
			f.keys(test.keys)
			gold := f.backends["gold"]
			gold.records = map[string]string{"uid-1": test.record}
			_, err := f.provision(f.claim(nil))
			if test.refused == "" {
				f.must(err)
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), firstKEK) {
				t.Errorf("error %v, want %q", err, test.refused)
			}
			wantCalls(t, gold, "connect pvc-uid-1 2 GiB")
		})
	}
}

// TestVolumeThatCinderEncryptsTooIsUndone: nodes open only one layer.
func TestVolumeThatCinderEncryptsTooIsUndone(t *testing.T) {
	f := newEncryptingFixture(t)
	f.keys(map[string]string{"first": firstKEK})
	gold := f.backends["gold"]
	gold.encrypted, gold.volumeType = true, "luks"
	_, err := f.provision(f.claim(nil))
	const want = `EncryptedVolume: backend gold: the rule encrypts its volumes (encrypt), and so does Cinder by the volume type "luks"; use a type without encryption, or a rule without encrypt`
	if err == nil || err.Error() != want {
		t.Errorf("error %v\nwant  %s", err, want)
	}
	wantCalls(t, gold, "connect pvc-uid-1 2 GiB", "abandon pvc-uid-1")
}

// TestCopiesOfEncryptedVolumesNameTheClaimOfTheirKey: whichever entry wraps new keys by then.
func TestCopiesOfEncryptedVolumesNameTheClaimOfTheirKey(t *testing.T) {
	f := newEncryptingFixture(t)
	f.keys(map[string]string{"first": firstKEK, "second": secondKEK})
	bound := func(name, uid, source string) *corev1.PersistentVolume {
		claim := f.claim(func(c *corev1.PersistentVolumeClaim) {
			c.Name, c.UID = name, types.UID(uid)
			if source != "" {
				c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: source}
			}
		})
		pv, err := f.provision(claim)
		f.must(err)
		pv.UID, pv.Annotations[objects.AnnotationProvisionedBy] = types.UID("pv-of-"+uid), "test"
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
		f.store(pv)
		f.must(f.client.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), claim.Namespace, claim.Name))
		claim.Spec.VolumeName, claim.Status.Phase = pv.Name, corev1.ClaimBound
		f.must(f.client.Tracker().Add(claim))
		f.must(f.factory.Core().V1().PersistentVolumeClaims().Informer().GetStore().Update(claim))
		f.seen()
		return pv
	}
	bound("first", "uid-1", "")
	f.inForce("{storageClasses: [one], backends: [gold]}", "{storageClasses: [one], backends: [gold], mode: csi, encrypt: {keySecret: keys, entry: second}}")
	bound("second", "uid-2", "first")
	third, fourth := bound("third", "uid-3", "second"), bound("fourth", "uid-4", "")
	for pv, origin := range map[*corev1.PersistentVolume]string{third: "uid-1", fourth: "uid-4"} {
		if got := objects.EncryptedOf(pv); got != origin {
			t.Errorf("PersistentVolume %s says %q", pv.Name, got)
		}
		f.must(f.opens(pv))
	}
	// The rule encrypts no more, and the copies that it denies are not made.
	f.csi()
	if f.admits(f.claim(func(c *corev1.PersistentVolumeClaim) {
		c.Name, c.UID = "fifth", "uid-5"
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "first"}
	})) {
		t.Error("a copy is provisioned whose rule does not encrypt")
	}
	if events := f.newEvents(); len(events) == 0 || !strings.HasPrefix(events[len(events)-1], "Warning SourceNotAllowed claim team-a/first is encrypted by nodes") {
		t.Errorf("events %q", events)
	}
	for uid, record := range f.backends["gold"].records {
		for _, kek := range []string{firstKEK, secondKEK} {
			if bytes, _ := hex.DecodeString(kek); strings.Contains(record, kek) || strings.Contains(record, string(bytes)) {
				t.Errorf("claim %s: %s", uid, record)
			}
		}
	}
}
