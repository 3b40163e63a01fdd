package move

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/swap"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
)

func TestPlan(t *testing.T) {
	changeClaim := func(change func(*corev1.PersistentVolumeClaim)) func(w *world) {
		return func(w *world) {
			found, err := w.client.Tracker().Get(claimsResource, "team-a", "data")
			must(w.t, err)
			claim := found.(*corev1.PersistentVolumeClaim).DeepCopy()
			change(claim)
			must(w.t, w.client.Tracker().Update(claimsResource, claim, "team-a"))
		}
	}
	changePV := func(change func(*corev1.PersistentVolume)) func(w *world) {
		return func(w *world) {
			pv := w.pvOf("data").DeepCopy()
			change(pv)
			must(w.t, w.client.Tracker().Update(pvsResource, pv, ""))
		}
	}
	encrypted := func(w *world) { w.volumes["volume-1"].Encrypted = true }
	inUse := func(w *world) { w.attached[w.pvOf("data").Name] = "n1" }
	for name, test := range map[string]struct {
		change         func(w *world)
		backend, class string
		want           string // of the description, or of the refusal
		refused, busy  bool
	}{
		"to a class of the new backend": {backend: "silver", class: "silver", want: "claim team-a/data gets a copy of volume gold/volume-1 on backend silver, and claim data-former, of StorageClass silver, keeps that volume"},
		"already there":                 {backend: "gold", want: "claim team-a/data has volume gold/volume-1; nothing to do"},
		"the rule prefers another":      {backend: "silver", want: "a new claim of StorageClass gold goes to backend gold before silver; set suspended: true on that one", refused: true},
		"not granted to the claim":      {backend: "another", class: "silver", want: "claim data could not have a volume of backend another: ", refused: true},
		"not granted to the new claim":  {backend: "another", class: "silver", want: "a new claim of StorageClass silver gets no volume on backend another; add it to the rule", refused: true},
		"the former not granted":        {backend: "native", class: "native", want: "claim data-former could not keep the former volume: ", refused: true},
		"not in mode csi":               {backend: "native", class: "native", want: "a new claim of StorageClass native is not in mode csi on backend native", refused: true},
		"another filesystem":            {backend: "silver", class: "silver-xfs", want: "a new claim of StorageClass silver-xfs has filesystem xfs, and this one ext4", refused: true},
		"no such class":                 {backend: "silver", class: "none", want: `StorageClass "none" does not exist; name one with --storage-class`, refused: true},
		"in use":                        {backend: "silver", class: "silver", change: inUse, want: "claim data is in use on node n1; stop its pods first", refused: true, busy: true},
		"named by a pod":                {backend: "silver", class: "silver", change: func(w *world) { w.user("web", "data", nil) }, want: "pod web uses claim data; stop it first", refused: true, busy: true},
		"already there, and in use":     {backend: "gold", change: inUse, want: "nothing to do"},
		"not bound":                     {backend: "silver", change: changeClaim(func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }), want: "claim team-a/data does not exist, is not Bound", refused: true},
		"native": {backend: "silver", change: changePV(func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = corev1.PersistentVolumeSource{ISCSI: &corev1.ISCSIPersistentVolumeSource{}}
		}), want: "is native", refused: true},
		"encrypted, to a rule that encrypts":         {backend: "silver", class: "silver-luks", change: encrypted, want: "of StorageClass silver-luks, keeps that volume"},
		"encrypted, to who knows what":               {backend: "silver", class: "silver-type", change: encrypted, want: "of StorageClass silver-type, keeps that volume"},
		"encrypted, to what is known after the copy": {backend: "silver", class: "silver-waits", change: encrypted, want: "is not known before the copying pod begins; name a StorageClass with volumeBindingMode Immediate", refused: true},
		"to what nodes encrypt":                      {backend: "silver", class: "silver-luks", want: "; nodes encrypt the copy, so it has no backups, and only claims whose rule has encrypt can be made from it"},
		"to what nodes encrypt, for several": {backend: "silver", class: "silver-luks", change: changePV(func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes = append(pv.Spec.AccessModes, corev1.ReadOnlyMany)
		}), want: "several nodes may have the volume of claim data at once", refused: true},
		"of a pod": {backend: "silver", class: "silver", change: changeClaim(func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = []metav1.OwnerReference{{Kind: "Pod", Name: "web", UID: "p", Controller: new(true)}}
		}), want: "claim team-a/data is an ephemeral volume of pod web, and goes with it", refused: true},
		"read-only": {backend: "silver", class: "silver", change: changePV(func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}), want: "is ReadOnlyMany only", refused: true},
		"a former one": {backend: "silver", class: "silver", change: changeClaim(func(c *corev1.PersistentVolumeClaim) {
			c.Labels = map[string]string{objects.LabelCopy: objects.CopyFormer}
		}),
			want: "claim team-a/data was made by a move itself", refused: true},
		"being copied": {backend: "silver", class: "silver", change: func(w *world) {
			pod := w.user("copy-"+string(w.pvOf("data").Spec.ClaimRef.UID), "data", nil)
			pod.Labels = map[string]string{objects.LabelCopy: string(w.pvOf("data").Spec.ClaimRef.UID)}
			must(w.t, w.client.Tracker().Update(podsResource, pod, "team-a"))
		}, want: "of another run copies the volume of claim data; wait for its end, or delete the pod", refused: true, busy: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("data", "gold")
			if test.change != nil {
				test.change(w)
			}
			plan, err := w.mover().Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: test.backend, StorageClass: test.class})
			refusal, refused := errors.AsType[*swap.RefusedError](err)
			said := ""
			switch {
			case refused:
				said = refusal.Error()
			case err != nil:
				t.Fatal(err)
			default:
				said = plan.Describe()
			}
			if refused != test.refused || refused && refusal.Busy != test.busy || !strings.Contains(said, test.want) {
				t.Errorf("refused %t: %s", refused, said)
			}
		})
	}
}

// TestASecondClaimOfSomebodyElseIsLeftAlone: a copy removes what is in its target.
func TestASecondClaimOfSomebodyElseIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"made by hand":                   func(second *corev1.PersistentVolumeClaim) { second.Labels, second.Annotations = nil, nil },
		"for a former claim of the name": func(second *corev1.PersistentVolumeClaim) { second.Annotations[objects.AnnotationCopyOf] = "another" },
		"a copy of another command":      func(second *corev1.PersistentVolumeClaim) { second.Labels = nil },
		"of another class": func(second *corev1.PersistentVolumeClaim) {
			second.Spec.StorageClassName = new("silver-luks")
		},
		"one that is being deleted already": func(second *corev1.PersistentVolumeClaim) {
			second.DeletionTimestamp, second.Finalizers = &metav1.Time{}, []string{"a/b"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.claim("data", "gold")
			plan, err := w.mover().Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver"})
			must(t, err)
			second := plan.second()
			w.bind(second)
			change(second)
			must(t, w.client.Tracker().Add(second))
			_, err = w.mover().Apply(t.Context(), plan, silent)
			if _, refused := errors.AsType[*swap.RefusedError](err); !refused || len(w.copied) > 0 {
				t.Errorf("error %v; copied %v", err, w.copied)
			}
		})
	}
}

// TestEncryptedVolumesStayEncrypted: nothing of one is copied to another that is not. A copy may
// be encrypted though its source is not.
func TestEncryptedVolumesStayEncrypted(t *testing.T) {
	encryptedByCinder := func(w *world, v *cinder.Volume) { v.Encrypted = true }
	encryptedByNodes := func(w *world, v *cinder.Volume) {
		pv := w.pvOf("data").DeepCopy()
		pv.Spec.CSI.VolumeAttributes["encrypted"], v.Metadata[stamps.KeyEncryption] = "origin", "1 keys/b"
		must(w.t, w.client.Tracker().Update(pvsResource, pv, ""))
	}
	for name, test := range map[string]struct {
		source  func(*world, *cinder.Volume)
		class   string
		block   bool
		refused string
		origin  bool // of the key that the claim has in the end
	}{
		"by Cinder, to nodes":    {encryptedByCinder, "silver-luks", false, "", true},
		"by Cinder, to Cinder":   {encryptedByCinder, "silver-type", false, "", false},
		"by nodes, to nodes":     {encryptedByNodes, "silver-luks", false, "", true},
		"by nodes, to Cinder":    {encryptedByNodes, "silver-type", true, "", false},
		"by Cinder, to nobody":   {encryptedByCinder, "silver", false, "the volume of claim data is encrypted, and that of claim data-former is not", false},
		"by nodes, to nobody":    {encryptedByNodes, "silver", true, "the volume of claim data is encrypted, and that of claim data-former is not", false},
		"by nobody, to Cinder":   {nil, "silver-type", false, "", false},
		"by nobody, to nodes":    {nil, "silver-luks", false, "", true},
		"raw, to a smaller one":  {nil, "silver-luks", true, "has no room for all of it", false},
		"raw, to Cinder's type":  {nil, "silver-type", true, "has no room for all of it", false},
		"of nobody, to the same": {nil, "silver", true, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.block = test.block
			w.claim("data", "gold")
			if test.source != nil {
				test.source(w, w.volumes["volume-1"])
			}
			m := w.mover()
			plan, err := m.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: test.class})
			must(t, err)
			_, err = m.Apply(t.Context(), plan, silent)
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) || len(w.copied) > 0 || w.volumeOf("data") != "gold/volume-1" {
					t.Errorf("error %v; copied %v", err, w.copied)
				}
				return
			}
			must(t, err)
			pv, former := w.pvOf("data"), w.pvOf("data-former")
			if own := string(former.Spec.ClaimRef.UID); w.volumeOf("data") != "silver/volume-2" || objects.EncryptedOf(pv) == own != test.origin {
				t.Errorf("the claim has volume %s, with a key for %q", w.volumeOf("data"), objects.EncryptedOf(pv))
			}
			// All of it can be taken back.
			must(t, w.swap("data", "data-former", true))
			if w.volumeOf("data") != "gold/volume-1" || objects.EncryptedOf(w.pvOf("data")) != wire.ParseVolumeContext(pv.Spec.CSI.VolumeAttributes).Encrypted {
				t.Errorf("taken back, the claim has volume %s, with a key for %q", w.volumeOf("data"), objects.EncryptedOf(w.pvOf("data")))
			}
		})
	}
}

// TestACopyThatShouldBeEncryptedIs: the command knows the policy of a file, and the program may
// have an older one, now or when an earlier run made the second claim.
func TestACopyThatShouldBeEncryptedIs(t *testing.T) {
	w := newWorld(t)
	w.lags = true
	w.claim("data", "gold")
	m := w.mover()
	plan, err := m.Plan(t.Context(), Request{Namespace: "team-a", Claim: "data", Backend: "silver", StorageClass: "silver-luks"})
	must(t, err)
	if _, err = m.Apply(t.Context(), plan, silent); err == nil || !strings.Contains(err.Error(), "nodes do not encrypt the volume of claim team-a/data-former") || len(w.copied) > 0 || w.volumeOf("data") != "gold/volume-1" {
		t.Errorf("error %v; copied %v", err, w.copied)
	}
}
