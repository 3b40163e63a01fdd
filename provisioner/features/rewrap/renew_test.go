package rewrap

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/node"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/staged"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects"
	"github.com/standalone-cinder/standalone-cinder/provisioner/objects/volumekeys"
	"github.com/standalone-cinder/standalone-cinder/test/csinode"
)

const (
	firstVolume  = "86a25cac-e84c-4ef1-816f-76fcd478cebd"
	secondVolume = "0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"
	stateDir     = "/var/lib/standalone-cinder"
)

// world has volumes at Cinder, one node with the real node service, and what the leader does
// for both.
type world struct {
	fatal   func(...any)
	now     time.Time
	volumes map[string]*cinder.Volume
	node    *csinode.Node
	service *node.Service
	client  *fake.Clientset
	said    []string
	// replaces counts requests; that of number failing fails, after or before its effect.
	replaces, failing int
	after             bool
	// swapped means that PersistentVolumes have the handle of another backend's volume.
	swapped bool
}

var errKilled = errors.New("killed")

func (w *world) must(err error) {
	if err != nil {
		w.fatal(err)
	}
}

func newWorld(fatal func(...any)) *world {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: "keys", Labels: map[string]string{objects.LabelKeyEncryption: "true"}}, Data: map[string][]byte{"a": []byte(first), "b": []byte(second)}}
	machine := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1", SystemUUID: "uuid-1"}}}
	w := &world{fatal: fatal, now: time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC), volumes: map[string]*cinder.Volume{}, node: csinode.New(), client: fake.NewClientset(secret, machine)}
	w.start()
	return w
}

func (w *world) start() {
	service, err := node.New(node.Options{Root: w.node.Root(), Files: w.node, RBD: w.node, StateDir: stateDir, NodeName: "node-1", Logger: slog.New(slog.DiscardHandler)})
	w.must(err)
	w.service = service
}

func (w *world) keeper() volumekeys.Keeper {
	return volumekeys.Keeper{Client: w.client, Namespace: "own", Now: func() time.Time { return w.now }}
}

// add makes a volume that a PersistentVolume names, with some records.
func (w *world) add(id string, records map[string]string, content *csinode.Volume) {
	v := &cinder.Volume{ID: id, Status: cinder.StatusAvailable, Metadata: map[string]string{stamps.KeyPV: "pv-" + id[:1]}}
	maps.Copy(v.Metadata, records)
	w.volumes[id] = v
	content.Identity = "6001" + id[:2]
	w.node.Targets["iqn.2026-01.org.example:"+id] = &csinode.Target{Portals: []string{"10.0.0.1:3260"}, LUNs: map[int]*csinode.Volume{1: content}, User: "u", Password: "p", Down: map[string]bool{}}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + id[:1]}}
	if w.swapped {
		pv.Annotations = map[string]string{objects.AnnotationBackend: "gold", objects.AnnotationVolume: id, objects.AnnotationSwapped: `{"handle": "` + w.handle(id) + `", "encrypted": "uid"}`}
	}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: wire.DriverName, VolumeHandle: w.handle(id), VolumeAttributes: wire.Volume{Encrypted: "uid"}.Context(),
		NodeStageSecretRef: &corev1.SecretReference{Namespace: "own", Name: objects.NodeSecretName(pv.Name)}}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "team-a", Name: "claim-" + id[:1]}
	_, err := w.client.CoreV1().PersistentVolumes().Create(context.Background(), pv, metav1.CreateOptions{})
	w.must(err)
	_, err = w.client.CoreV1().Secrets("own").Create(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "own", Name: objects.NodeSecretName(pv.Name)}, Data: map[string][]byte{}}, metav1.CreateOptions{})
	w.must(err)
}

// handle is that of a volume's PersistentVolume.
func (w *world) handle(id string) string {
	if w.swapped {
		return "silver/" + secondVolume
	}
	return "gold/" + id
}

// change changes the PersistentVolume that was made with a volume.
func (w *world) change(id string, change func(*corev1.PersistentVolume)) {
	pvs := w.client.CoreV1().PersistentVolumes()
	pv, err := pvs.Get(context.Background(), "pv-"+id[:1], metav1.GetOptions{})
	w.must(err)
	change(pv)
	_, err = pvs.Update(context.Background(), pv, metav1.UpdateOptions{})
	w.must(err)
}

func (w *world) content(id string) *csinode.Volume {
	return w.node.Targets["iqn.2026-01.org.example:"+id].LUNs[1]
}

// Recorded implements Keys.
func (w *world) Recorded(context.Context) (found []backends.RecordedKey, err error) {
	for id, v := range w.volumes {
		found = append(found, backends.RecordedKey{ID: id, KeyRecords: stamps.KeyRecordsOf(v.Metadata)})
	}
	return found, nil
}

// Volumes implements Keys.
func (w *world) Volumes(context.Context) (found []backends.KeyedVolume, err error) {
	for id, v := range w.volumes {
		copied := *v
		copied.Metadata = maps.Clone(v.Metadata)
		found = append(found, backends.KeyedVolume{RecordedKey: backends.RecordedKey{ID: id, KeyRecords: stamps.KeyRecordsOf(v.Metadata)}, Volume: copied, IsBeingCopied: v.Status == "copied"})
	}
	return found, nil
}

// Replace implements Keys.
func (w *world) Replace(_ context.Context, former backends.RecordedKey, next stamps.KeyRecords) error {
	w.replaces++
	v := w.volumes[former.ID]
	if now := stamps.KeyRecordsOf(v.Metadata); now != former.KeyRecords {
		return errors.New("changed meanwhile")
	}
	if w.replaces == w.failing && !w.after {
		return errKilled
	}
	maps.Copy(v.Metadata, former.Changes(next))
	if w.replaces == w.failing {
		return errKilled
	}
	return nil
}

func (w *world) rewrapper() *Rewrapper {
	return &Rewrapper{Keeper: w.keeper(), Backends: []Backend{{"gold", w}}, Say: func(what string) { w.said = append(w.said, what) }}
}

func (w *world) renew(apply bool) (Progress, error) {
	return w.rewrapper().Renew(context.Background(), Renewal{From: Entry{"keys", "a"}, To: Entry{"keys", "b"}}, apply)
}

// attach does what the leader does when a volume is attached to the node.
func (w *world) attach(id string) {
	v := w.volumes[id]
	opened, err := w.keeper().Open(context.Background(), id, "uid", v.Metadata)
	w.must(err)
	key, value, err := wire.SecretEntry("node-1", wire.Credentials{User: "u", Password: "p", Passphrase: opened.Main.Passphrase(), AlsoPassphrase: opened.Also.Passphrase(), FormerPassphrase: opened.Former.Passphrase()})
	w.must(err)
	w.secret(id, func(data map[string][]byte) { data[key] = value })
	v.Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-1")] = stamps.NodeRecord{AttachmentID: "attachment-1", Node: "node-1"}.String()
	v.Status = cinder.StatusInUse
}

func (w *world) detach(id string) {
	w.secret(id, func(data map[string][]byte) { clear(data) })
	w.volumes[id].Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-1")] = ""
	w.volumes[id].Status = cinder.StatusAvailable
}

func (w *world) isAttached(id string) bool { return len(stamps.NodeRecordsOf(*w.volumes[id])) > 0 }

func (w *world) secret(id string, edit func(map[string][]byte)) map[string]string {
	secrets := w.client.CoreV1().Secrets("own")
	secret, err := secrets.Get(context.Background(), objects.NodeSecretName("pv-"+id[:1]), metav1.GetOptions{})
	w.must(err)
	if edit != nil {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		edit(secret.Data)
		_, err = secrets.Update(context.Background(), secret, metav1.UpdateOptions{})
		w.must(err)
	}
	entries := map[string]string{}
	for k, v := range secret.Data {
		entries[k] = string(v)
	}
	return entries
}

// stage does what a kubelet does: it passes on the Secret that there is now. An earlier
// release of the plugin ignores what it does not know.
func (w *world) stage(id string, earlier bool) error {
	entries := w.secret(id, nil)
	credentials, err := wire.CredentialsFor("node-1", entries)
	w.must(err)
	if earlier {
		credentials.AlsoPassphrase, credentials.FormerPassphrase = "", ""
		key, value, err := wire.SecretEntry("node-1", credentials)
		w.must(err)
		entries = map[string]string{key: string(value)}
	}
	var swapped *wire.SwappedVolume
	if w.swapped {
		swapped = &wire.SwappedVolume{ID: id, Volume: wire.Volume{Encrypted: "uid"}}
	}
	publish, err := wire.Connection{Volume: swapped, Protocol: "iscsi", Credentials: true, Bytes: 1 << 30, Attachment: "attachment-1", Encryption: &wire.Encryption{LUKS: 2}, Paths: []wire.Path{{Portal: "10.0.0.1:3260", Target: "iqn.2026-01.org.example:" + id, LUN: 1}}}.PublishContext()
	w.must(err)
	about := wire.Volume{Encrypted: "uid", FilesystemUUIDs: []string{firstVolume}}
	_, err = w.service.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{
		VolumeId: w.handle(id), StagingTargetPath: "/var/lib/kubelet/" + id, PublishContext: publish, VolumeContext: about.Context(), Secrets: entries,
		VolumeCapability: &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}, AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}}},
	})
	return err
}

func (w *world) unstage(id string) error {
	_, err := w.service.NodeUnstageVolume(context.Background(), &csi.NodeUnstageVolumeRequest{VolumeId: w.handle(id), StagingTargetPath: "/var/lib/kubelet/" + id})
	return err
}

// report writes the node's Lease.
func (w *world) report() {
	volumes, err := node.StagedVolumes(w.node, stateDir, "boot-1")
	w.must(err)
	proven, err := node.StagedPassphrases(w.node, stateDir, "boot-1")
	w.must(err)
	w.write(staged.Report{Machine: staged.Machine{SystemUUID: "uuid-1", Boot: "boot-1"}, Volumes: volumes, Passphrases: proven, Written: time.Now()})
}

func (w *world) write(r staged.Report) {
	leases := w.client.CoordinationV1().Leases("own")
	_ = leases.Delete(context.Background(), staged.LeaseName("node-1"), metav1.DeleteOptions{})
	_, err := leases.Create(context.Background(), r.Lease("own", "node-1"), metav1.CreateOptions{})
	w.must(err)
}

// opens returns how many of the volume's records open its header, the first of them first.
func (w *world) opens(id string) (opens []bool) {
	header := w.content(id).LUKS
	for _, text := range stamps.KeyRecordsOf(w.volumes[id].Metadata).All() {
		opened, err := w.keeper().Open(context.Background(), id, "uid", map[string]string{stamps.KeyEncryption: text})
		w.must(err)
		opens = append(opens, header == nil || len(header.Opens(opened.Main.Passphrase())) > 0)
	}
	return opens
}

// TestVolumesGetNewKeys: a volume in use, step by step. Each step waits for what it needs, and
// says so; without --apply, nothing changes. Nodes know a volume that was swapped by the handle
// of its PersistentVolume.
func TestVolumesGetNewKeys(t *testing.T) {
	t.Run("as made", func(t *testing.T) { getsNewKey(t, false) })
	t.Run("swapped", func(t *testing.T) { getsNewKey(t, true) })
}

func getsNewKey(t *testing.T, swapped bool) {
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	w.swapped = swapped
	w.add(firstVolume, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
	before, err := w.keeper().Open(t.Context(), firstVolume, "uid", w.volumes[firstVolume].Metadata)
	w.must(err)
	step := func(want Progress, says string) {
		t.Helper()
		was := maps.Clone(w.volumes[firstVolume].Metadata)
		w.said = nil
		planned, err := w.renew(false)
		if planned != want || err != nil || !maps.Equal(was, w.volumes[firstVolume].Metadata) {
			t.Errorf("without --apply: %+v, %v; want %+v", planned, err, want)
		}
		got, err := w.renew(true)
		if got != want || err != nil || !strings.Contains(strings.Join(w.said, "\n"), says) {
			t.Fatalf("%+v, %v; want %+v\nsaid %q", got, err, want, w.said)
		}
	}
	hour := func() { w.now = w.now.Add(time.Hour) }
	restage := func() {
		t.Helper()
		w.must(w.stage(firstVolume, false))
		w.report()
	}

	w.attach(firstVolume)
	restage()
	step(Progress{Begun: 1}, "it gets a new key from its node when it is staged again")
	step(Progress{Waiting: 1}, "the next step can be taken from 2026-11-29T13:00:00Z on")
	hour()
	step(Progress{Waiting: 1}, "its node has not added the new key yet")
	restage()
	w.volumes[firstVolume].Status = "copied"
	step(Progress{Waiting: 1}, "it is being copied")
	w.volumes[firstVolume].Status = cinder.StatusInUse
	step(Progress{Switched: 1}, "its new key opens it")
	restage()
	if got := w.content(firstVolume).LUKS; len(got.Opens(before.Main.Passphrase())) != 1 {
		t.Error("the former key was removed before its record settled")
	}
	hour()
	step(Progress{Waiting: 1}, "its node has not removed the former key yet")
	restage()
	step(Progress{Ended: 1}, "its former key opens it no longer")
	step(Progress{}, "")

	after, err := w.keeper().Open(t.Context(), firstVolume, "uid", w.volumes[firstVolume].Metadata)
	w.must(err)
	header := w.content(firstVolume).LUKS
	if len(header.Opens(before.Main.Passphrase())) != 0 || len(header.Opens(after.Main.Passphrase())) != 1 || !slices.Equal(w.opens(firstVolume), []bool{true}) {
		t.Errorf("at the end, the header has %d and %d keyslots", len(header.Opens(before.Main.Passphrase())), len(header.Opens(after.Main.Passphrase())))
	}
	credentials, err := wire.CredentialsFor("node-1", w.secret(firstVolume, nil))
	if err != nil || !slices.Equal(credentials.Passphrases(), []string{after.Main.Passphrase()}) || credentials.User != "u" {
		t.Errorf("the node's entry has %d passphrases, %v", len(credentials.Passphrases()), err)
	}
	if shown := fmt.Sprintf("%+v %q %+v", w.said, credentials, after) + fmt.Sprint(w.leases(t)); strings.Contains(shown, after.Main.Passphrase()) || strings.Contains(shown, before.Main.Passphrase()) {
		t.Error("a key is shown")
	}
	if entries := entriesOf(stamps.KeyRecordsOf(w.volumes[firstVolume].Metadata)); !slices.Equal(entries, []Entry{{"keys", "b"}}) {
		t.Errorf("it needs %v", entries)
	}
}

func (w *world) leases(t *testing.T) []coordinationv1.Lease {
	t.Helper()
	all, err := w.client.CoordinationV1().Leases("own").List(t.Context(), metav1.ListOptions{})
	w.must(err)
	return all.Items
}

// TestWhatProvesNothing about a volume's header: the step is not taken.
func TestWhatProvesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		change func(t *testing.T, w *world, names []string)
		says   string
		fails  string
	}{
		"nothing attached": {func(_ *testing.T, w *world, _ []string) { w.detach(firstVolume) }, "0 nodes have it", ""},
		"two nodes": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.NodeRecordPrefix+"x"] = "a node-2"
		}, "2 nodes have it", ""},
		// It says what is not true, for all the leader knows, and could not destroy the volume.
		"a node that may only read it": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-1")] = stamps.NodeRecord{AttachmentID: "attachment-1", Node: "node-1", ReadOnly: true}.String()
		}, "may only read it", ""},
		"another node's report": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-1")] = ""
			w.volumes[firstVolume].Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-2")] = "a node-2"
		}, "node node-2, which had it, does not exist", ""},
		"a node that is another boot": {func(t *testing.T, w *world, _ []string) {
			n, _ := w.client.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
			n.Status.NodeInfo.BootID = "boot-2"
			_, err := w.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
			w.must(err)
		}, "does not report that it has it", ""},
		"a report without the volume": {func(_ *testing.T, w *world, names []string) {
			w.write(staged.Report{Machine: staged.Machine{SystemUUID: "uuid-1", Boot: "boot-1"}, Passphrases: map[string][]string{"gold/" + firstVolume: names}})
		}, "does not report that it has it", ""},
		"a report about another volume": {func(_ *testing.T, w *world, names []string) {
			w.write(staged.Report{Machine: staged.Machine{SystemUUID: "uuid-1", Boot: "boot-1"}, Volumes: []string{"gold/" + firstVolume, "gold/" + secondVolume}, Passphrases: map[string][]string{"gold/" + secondVolume: names}})
		}, "has not added the new key yet", ""},
		"no report": {func(t *testing.T, w *world, _ []string) {
			w.must(w.client.CoordinationV1().Leases("own").Delete(t.Context(), staged.LeaseName("node-1"), metav1.DeleteOptions{}))
		}, "node node-1 reports nothing", ""},
		"a clock ahead": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.KeyEncryptionSince] = "2030-01-01T00:00:00Z"
		}, "counts anew", ""},
		"two PersistentVolumes": {func(t *testing.T, w *world, _ []string) {
			pv, _ := w.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv-8", metav1.GetOptions{})
			pv.Name, pv.ResourceVersion = "pv-9", ""
			_, err := w.client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{})
			w.must(err)
		}, "2 PersistentVolumes name it", ""},
		"another PersistentVolume's stamp": {func(_ *testing.T, w *world, _ []string) { w.volumes[firstVolume].Metadata[stamps.KeyPV] = "pv-9" }, "its stamp another one", ""},
		"a record of another volume": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.KeyEncryptionNext] = strings.Replace(made(t, "a", first), " uid ", " other ", 1)
		}, "", "has the record of another volume's key"},
		"a record that cannot be read": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.KeyEncryptionNext] = "1 x"
		}, "", "damaged, or of a later release"},
		"the same key twice": {func(_ *testing.T, w *world, _ []string) {
			w.volumes[firstVolume].Metadata[stamps.KeyEncryptionNext] = w.volumes[firstVolume].Metadata[stamps.KeyEncryption]
		}, "", "has the same key"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
			w.add(firstVolume, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
			w.attach(firstVolume)
			_, err := w.renew(true)
			w.must(err)
			w.must(w.stage(firstVolume, false))
			w.report()
			w.now = w.now.Add(time.Hour)
			proven, err := node.StagedPassphrases(w.node, stateDir, "boot-1")
			w.must(err)
			test.change(t, w, proven["gold/"+firstVolume])
			main := w.volumes[firstVolume].Metadata[stamps.KeyEncryption]
			w.said = nil
			got, err := w.renew(true)
			if got.Switched > 0 || w.volumes[firstVolume].Metadata[stamps.KeyEncryption] != main {
				t.Errorf("the step is taken: %+v", got)
			}
			if said := strings.Join(w.said, "\n"); !strings.Contains(said, test.says) || (test.fails == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), test.fails) {
				t.Errorf("said %q, %v", said, err)
			}
		})
	}
}

// TestWhichVolumesGetNewKeys: those that --from opens, or only that of a claim. None that
// several nodes may have at once.
func TestWhichVolumesGetNewKeys(t *testing.T) {
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	w.add(firstVolume, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
	w.add(secondVolume, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
	w.add(strings.Replace(firstVolume, "8", "7", 1), map[string]string{stamps.KeyEncryption: made(t, "b", second)}, &csinode.Volume{Bytes: 1 << 30})
	of := Renewal{From: Entry{"keys", "a"}, To: Entry{"keys", "b"}, Namespace: "team-a", Claim: "claim-0"}
	if got, err := w.rewrapper().Renew(t.Context(), of, true); err != nil || got != (Progress{Begun: 1}) || w.volumes[secondVolume].Metadata[stamps.KeyEncryptionNext] == "" {
		t.Errorf("one claim: %+v, %v", got, err)
	}
	of.Namespace = "team-b"
	if got, err := w.rewrapper().Renew(t.Context(), of, true); err != nil || got != (Progress{}) {
		t.Errorf("another namespace: %+v, %v", got, err)
	}
	w.volumes[firstVolume].MultiAttach = true
	if got, err := w.renew(true); err != nil || got != (Progress{Waiting: 2}) || !strings.Contains(strings.Join(w.said, "\n"), "several nodes may have it at once") {
		t.Errorf("all: %+v, %v, %q", got, err, w.said)
	}
	of.To.Entry = "c"
	if _, err := w.rewrapper().Renew(t.Context(), of, true); err == nil || !strings.Contains(err.Error(), "Secret own/keys has no entry c") {
		t.Errorf("without the entry: %v", err)
	}
}

// moment is what a volume has at Cinder, and what opens its header.
type moment struct {
	at      time.Time
	records map[string]string
	header  csinode.LUKS
}

// renewed gives a volume in use a new key as fast as the program lets it, and returns every
// moment of it.
func renewed(t *testing.T) []moment {
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	w.add(firstVolume, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
	w.attach(firstVolume)
	w.must(w.stage(firstVolume, false))
	w.report()
	var moments []moment
	note := func() {
		moments = append(moments, moment{w.now, maps.Clone(w.volumes[firstVolume].Metadata), *w.content(firstVolume).LUKS})
	}
	// Before it begins, and after it has ended, nothing changes for as long as a copy takes.
	const tick, longest = 5 * time.Minute, 3 * time.Hour
	for ; moments == nil || w.now.Sub(moments[0].at) < longest; w.now = w.now.Add(tick) {
		note()
	}
	for left := longest; left > 0; w.now = w.now.Add(tick) {
		_, err := w.renew(true)
		w.must(err)
		note()
		w.attach(firstVolume)
		w.must(w.stage(firstVolume, false))
		w.report()
		note()
		if records := stamps.KeyRecordsOf(w.volumes[firstVolume].Metadata); !records.IsChanging() && len(w.said) > 0 {
			left -= tick
		}
		if w.now.Sub(moments[0].at) > 12*time.Hour {
			t.Fatalf("it does not end: %q", w.said)
		}
	}
	return moments
}

// TestCopiesTakenAtAnyTimeOfANewKeyOpen: a clone, a snapshot, or what is restored from one,
// has the records of when it was begun, and the header of when its content was taken. For an
// hour, the first record opens it, which is the only one that earlier releases know, and for
// almost two, one of them does. Each of them loses the other keys in the end.
func TestCopiesTakenAtAnyTimeOfANewKeyOpen(t *testing.T) {
	moments := renewed(t)
	inherit := func(source map[string]string) map[string]string {
		records := map[string]string{}
		stamps.InheritEncryption(records, source)
		return records
	}
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	names := map[string]string{}
	passphrases := func(records map[string]string, at time.Time) []string {
		keeper := w.keeper()
		keeper.Now = func() time.Time { return at }
		key := fmt.Sprint(records, at)
		if _, known := names[key]; !known {
			opened, err := keeper.Open(t.Context(), secondVolume, "uid", records)
			w.must(errors.Join(err, opened.Unusable))
			names[key] = strings.Join(passphrasesOf(opened).Passphrases(), " ")
		}
		return strings.Fields(names[key])
	}
	type kind struct {
		records stamps.KeyRecords
		header  csinode.LUKS
	}
	kinds := map[kind]map[string]string{}
	for n, begun := range moments {
		for _, taken := range moments[n:] {
			takes := taken.at.Sub(begun.at)
			if takes >= 2*time.Hour {
				break
			}
			for name, copied := range map[string]map[string]string{"clone or snapshot": inherit(begun.records), "restored snapshot": inherit(inherit(begun.records))} {
				opens := passphrases(copied, taken.at)
				i := slices.IndexFunc(opens, func(p string) bool { return len(taken.header.Opens(p)) > 0 })
				if i < 0 || i > 0 && takes < time.Hour {
					t.Fatalf("%s, begun at %s, content taken after %s: the header is opened by number %d of %d passphrases", name, begun.at.Format(time.TimeOnly), takes, i, len(opens))
				}
				kinds[kind{stamps.KeyRecordsOf(copied), taken.header}] = copied
			}
		}
	}
	ids := "12345679abcdef"
	if len(kinds) < 6 || len(kinds) > len(ids) {
		t.Fatalf("there are %d kinds of copies", len(kinds))
	}
	for of, records := range kinds {
		id := ids[:1] + firstVolume[1:]
		ids = ids[1:]
		header := of.header
		w.add(id, records, &csinode.Volume{Bytes: 1 << 30, LUKS: &header, Filesystem: "ext4", UUID: firstVolume, FilesystemBytes: 1 << 29})
	}
	w.now = moments[len(moments)-1].at
	for range 7 {
		for id := range w.volumes {
			w.attach(id)
			w.must(w.stage(id, false))
		}
		w.report()
		_, err := w.rewrapper().Renew(t.Context(), Renewal{From: Entry{"keys", "none"}, To: Entry{"keys", "b"}}, true)
		w.must(err)
		w.now = w.now.Add(2 * time.Hour)
	}
	for id, v := range w.volumes {
		if stamps.KeyRecordsOf(v.Metadata).IsChanging() || !slices.Equal(w.opens(id), []bool{true}) {
			t.Errorf("in the end, a copy has %d records, which open it: %v", len(stamps.KeyRecordsOf(v.Metadata).All()), w.opens(id))
		}
	}
}

// TestALyingNodeHarmsOnlyItsOwnVolume: what it says of a volume that it has is believed, and
// the records keep what opens the volume until it says so. The next node mends the header.
func TestALyingNodeHarmsOnlyItsOwnVolume(t *testing.T) {
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	for _, id := range []string{firstVolume, secondVolume} {
		w.add(id, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
		w.attach(id)
		w.must(w.stage(id, false))
	}
	w.report()
	_, err := w.renew(true)
	w.must(err)
	w.now = w.now.Add(time.Hour)
	var names []string
	for _, id := range []string{firstVolume, secondVolume} {
		opened, err := w.keeper().Open(t.Context(), id, "uid", w.volumes[id].Metadata)
		w.must(err)
		names = append(names, wire.PassphraseName(opened.Also.Passphrase()))
	}
	// It has both volumes, and says of one what is not true; then it says the same of the
	// other, which another node has by then.
	w.volumes[secondVolume].Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-1")] = ""
	w.volumes[secondVolume].Metadata[stamps.NodeRecordPrefix+wire.NodeKey("node-2")] = "a node-2"
	w.write(staged.Report{Machine: staged.Machine{SystemUUID: "uuid-1", Boot: "boot-1"}, Volumes: []string{"gold/" + firstVolume, "gold/" + secondVolume}, Passphrases: map[string][]string{"gold/" + firstVolume: names, "gold/" + secondVolume: names}})
	if got, err := w.renew(true); err != nil || got != (Progress{Switched: 1, Waiting: 1}) {
		t.Fatalf("%+v, %v", got, err)
	}
	if got := w.opens(firstVolume); !slices.Equal(got, []bool{false, true}) {
		t.Errorf("of the records, these open the header: %v", got)
	}
	w.must(w.unstage(firstVolume))
	w.attach(firstVolume)
	w.must(w.stage(firstVolume, false))
	w.now = w.now.Add(time.Hour)
	w.attach(firstVolume)
	w.must(w.stage(firstVolume, false))
	w.report()
	if got, err := w.renew(true); err != nil || got.Ended != 1 || !slices.Equal(w.opens(firstVolume), []bool{true}) {
		t.Errorf("%+v, %v, opened by %v", got, err, w.opens(firstVolume))
	}
}

// TestVolumesAlwaysOpen: whatever is killed, copied, rewrapped and moved, and in whatever
// order, some record opens each header, and the first one that of a volume that is no copy.
// In the end, each volume has one record, which opens it. -rapid.checks=1000 tells more stories.
func TestVolumesAlwaysOpen(t *testing.T) {
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		if err := checks.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) { rapid.Check(inBubble{t}, alwaysOpen) })
}

// inBubble hides the method Deadline of a *testing.T, which a synctest bubble forbids.
type inBubble struct{ rapid.TB }

func alwaysOpen(t *rapid.T) {
	w := newWorld(func(a ...any) { t.Fatal(a...) })
	record, err := volumekeys.New(stamps.EncryptionRecord{Secret: "keys", Entry: "a", Origin: "uid"}, []byte(first))
	w.must(err)
	w.add(firstVolume, map[string]string{stamps.KeyEncryption: record.String()}, &csinode.Volume{Bytes: 1 << 30})
	// The first staging makes the header.
	w.attach(firstVolume)
	w.must(w.stage(firstVolume, false))
	from := Entry{"keys", "a"}
	// A copy has the records of when it was begun, and the content of up to an hour later.
	var begun map[string]string
	var begunAt time.Time
	ids := func() []string { return slices.Sorted(maps.Keys(w.volumes)) }
	to := func() Entry { return map[Entry]Entry{{"keys", "a"}: {"keys", "b"}, {"keys", "b"}: {"keys", "a"}}[from] }
	ofVolume := func() string { return rapid.SampledFrom(ids()).Draw(t, "volume") }
	kill := func(run func()) {
		if rapid.Bool().Draw(t, "killed") {
			w.failing, w.after = w.replaces+rapid.IntRange(1, 2).Draw(t, "request"), rapid.Bool().Draw(t, "after")
		}
		run()
		w.failing = 0
	}
	restart := func() {
		if w.node.Restart() {
			w.start()
		}
	}
	t.Repeat(map[string]func(*rapid.T){
		"": func(t *rapid.T) {
			for _, id := range ids() {
				opens := w.opens(id)
				if !slices.Contains(opens, true) || id == firstVolume && !opens[0] {
					t.Fatalf("volume %s is opened by %v of its records", id, opens)
				}
			}
			if harm := w.node.Harm(); len(harm) > 0 {
				t.Fatal(harm)
			}
		},
		"new keys": func(t *rapid.T) {
			kill(func() { _, _ = w.rewrapper().Renew(context.Background(), Renewal{From: from, To: to()}, true) })
		},
		"rewrap": func(t *rapid.T) {
			kill(func() { _, _ = w.rewrapper().Rewrap(context.Background(), from, to(), true) })
			from = to()
		},
		"a step": func(t *rapid.T) {
			for _, id := range ids() {
				w.attach(id)
				w.must(w.stage(id, false))
			}
			w.report()
			kill(func() { _, _ = w.rewrapper().Renew(context.Background(), Renewal{From: from, To: to()}, true) })
			w.now = w.now.Add(time.Duration(rapid.IntRange(10, 70).Draw(t, "minutes")) * time.Minute)
		},
		"attach": func(t *rapid.T) { w.attach(ofVolume()) },
		"stage": func(t *rapid.T) {
			id := ofVolume()
			if !w.isAttached(id) {
				w.attach(id)
			}
			crash := rapid.IntRange(0, 40).Draw(t, "change")
			if crash > 0 {
				w.node.CrashAt(crash, rapid.Bool().Draw(t, "after"))
			}
			err := w.stage(id, false)
			if crash == 0 {
				w.must(err)
			}
			restart()
			w.must(w.stage(id, false))
		},
		"stage by an earlier release": func(t *rapid.T) {
			if w.isAttached(firstVolume) {
				w.must(w.stage(firstVolume, true))
			}
		},
		"report": func(t *rapid.T) { w.report() },
		"detach": func(t *rapid.T) {
			id := ofVolume()
			w.must(w.unstage(id))
			w.report()
			w.detach(id)
		},
		"begin a copy": func(t *rapid.T) {
			begun, begunAt = map[string]string{}, w.now
			stamps.InheritEncryption(begun, w.volumes[firstVolume].Metadata)
		},
		"end a copy": func(t *rapid.T) {
			if begun == nil || len(w.volumes) > 1 || w.now.Sub(begunAt) > 2*time.Hour-time.Minute {
				return
			}
			content := *w.content(firstVolume)
			header := *content.LUKS
			content.LUKS = &header
			w.add(secondVolume, begun, &content)
		},
	})
	// Enough runs end whatever was begun, and what begins then.
	for range 7 {
		for _, id := range ids() {
			w.attach(id)
			w.must(w.stage(id, false))
		}
		w.report()
		_, err := w.rewrapper().Renew(context.Background(), Renewal{From: from, To: to()}, true)
		w.must(err)
		w.now = w.now.Add(time.Hour)
	}
	for _, id := range ids() {
		records := stamps.KeyRecordsOf(w.volumes[id].Metadata)
		if records.IsChanging() || !slices.Equal(w.opens(id), []bool{true}) {
			t.Fatalf("at the end, volume %s has %d records, of which %v open it", id, len(records.All()), w.opens(id))
		}
	}
}

// afterListing changes the world once the run has listed the volumes. A listing is used for a
// minute (freshFor), and the PersistentVolumes are listed once in a run.
type afterListing struct {
	*world
	then func()
}

func (a *afterListing) Volumes(ctx context.Context) ([]backends.KeyedVolume, error) {
	found, err := a.world.Volumes(ctx)
	if a.then != nil {
		a.then()
		a.then = nil
	}
	return found, err
}

// TestNoKeyIsRemovedFromTheVolumeOfASwap: a volume gets a new key, and another one was restored
// from its snapshot of yesterday, so it has the former key. After this run has listed them, another
// run takes the last step, the claims swap their volumes, and a pod gets the restored one on the
// same node. This run, which waits for the first volume's node, must not tell the node to remove
// the former key from the volume that it has now.
func TestNoKeyIsRemovedFromTheVolumeOfASwap(t *testing.T) {
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	former, now := made(t, "a", first), made(t, "b", second)
	w.add(firstVolume, map[string]string{
		stamps.KeyEncryption: now, stamps.KeyEncryptionFormer: former, stamps.KeyEncryptionSince: w.now.Add(-2 * time.Hour).UTC().Format(time.RFC3339),
	}, &csinode.Volume{Bytes: 1 << 30})
	w.add(secondVolume, map[string]string{stamps.KeyEncryption: former}, &csinode.Volume{Bytes: 1 << 30})
	w.attach(firstVolume)
	keys := &afterListing{world: w}
	keys.then = func() {
		// The other run's step, and the swap.
		w.detach(firstVolume)
		maps.Copy(w.volumes[firstVolume].Metadata, map[string]string{stamps.KeyEncryptionFormer: "", stamps.KeyEncryptionSince: "", stamps.KeyPV: "pv-0"})
		w.volumes[secondVolume].Metadata[stamps.KeyPV] = "pv-8"
		w.change(firstVolume, func(pv *corev1.PersistentVolume) {
			pv.Annotations = map[string]string{objects.AnnotationBackend: "gold", objects.AnnotationVolume: secondVolume, objects.AnnotationSwapped: `{"handle": "gold/` + firstVolume + `", "encrypted": "uid"}`}
		})
		// The restored volume is attached as that of pv-8, whose Secret gets its key, and staged.
		w.attach(secondVolume)
		entry := w.secret(secondVolume, nil)
		w.secret(firstVolume, func(data map[string][]byte) {
			for k, v := range entry {
				data[k] = []byte(v)
			}
		})
		w.must(w.stage(secondVolume, false))
		w.write(staged.Report{Machine: staged.Machine{SystemUUID: "uuid-1", Boot: "boot-1"}, Volumes: []string{"gold/" + firstVolume}})
	}
	r := w.rewrapper()
	r.Backends[0].Keys = keys
	_, err := r.Renew(t.Context(), Renewal{From: Entry{"keys", "a"}, To: Entry{"keys", "b"}}, true)
	w.must(err)
	// The kubelet stages the volume of pv-8 once more, with the Secret of pv-8.
	entry := w.secret(firstVolume, nil)
	w.secret(secondVolume, func(data map[string][]byte) {
		for k, v := range entry {
			data[k] = []byte(v)
		}
	})
	w.must(w.stage(secondVolume, false))
	if !w.opens(secondVolume)[0] {
		t.Errorf("the key that the restored volume's only record holds opens it no longer; said %q", w.said)
	}
}

// TestAVolumeThatIsMovedKeepsItsKey: a pod of its own would have to use it before it has another
// one, and then the copy is worth nothing.
func TestAVolumeThatIsMovedKeepsItsKey(t *testing.T) {
	w := newWorld(func(a ...any) { t.Helper(); t.Fatal(a...) })
	for id, change := range map[string]func(*corev1.PersistentVolume){
		firstVolume: func(pv *corev1.PersistentVolume) { pv.Spec.ClaimRef.UID = "moved" },
		secondVolume: func(pv *corev1.PersistentVolume) {
			pv.Annotations = map[string]string{objects.AnnotationCopyOf: "moved"}
		},
	} {
		w.add(id, map[string]string{stamps.KeyEncryption: made(t, "a", first)}, &csinode.Volume{Bytes: 1 << 30})
		w.change(id, change)
	}
	if done, err := w.renew(true); err != nil || done != (Progress{Waiting: 2}) || !strings.Contains(strings.Join(w.said, "\n"), "volume move copies it") {
		t.Errorf("%+v, %v; said %q", done, err, w.said)
	}
}
