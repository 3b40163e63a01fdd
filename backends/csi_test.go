package backends

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// csiVolume returns claim n's volume for the CSI driver, in a state.
func csiVolume(n int, status cinder.Status, attachments ...cinder.Attachment) cinder.Volume {
	v := cinder.Volume{Name: claimStamp(n).PV, Status: status, Metadata: claimStamp(n).Metadata(nil), SizeGiB: 1, Attachments: attachments}
	v.Metadata[stamps.KeyMode], v.Metadata[stamps.KeyWorkflow] = stamps.ModeCSI, string(cinder.WorkflowAttachment)
	return v
}

func marked(v cinder.Volume) cinder.Volume {
	v.Metadata[stamps.KeyAttached] = "true"
	return v
}

// withAttachments adds a volume for the CSI driver that has attachments at Cinder.
func withAttachments(memory *memoryCinder, v cinder.Volume, statuses ...cinder.AttachmentStatus) string {
	id := memory.add(v)
	memory.mu.Lock()
	defer memory.mu.Unlock()
	for _, status := range statuses {
		memory.ids++
		name := fmt.Sprintf("attachment-%d", memory.ids)
		memory.open[name] = &memoryAttachment{volume: id, status: string(status)}
		if status == cinder.AttachmentAttached {
			memory.volumes[id].Attachments = append(memory.volumes[id].Attachments, cinder.Attachment{ID: name, Host: stamps.NodeHost("node-1", "cluster-1")})
		}
	}
	return id
}

func csiSpec(n int) Spec {
	spec := claimSpec(n)
	spec.CSI = true
	return spec
}

func csiTarget(n int, id string) Target {
	target := claimTarget(n, id)
	target.Connector = cinder.Connector{}
	return target
}

func newCSICinder() *memoryCinder {
	memory := newMemoryCinder()
	memory.workflow = cinder.WorkflowAttachment
	return memory
}

func TestVolumeForTheCSIDriverFromEveryState(t *testing.T) {
	native := func() cinder.Volume {
		v := mine(1, cinder.StatusAvailable)
		v.Metadata[stamps.KeyRequest] = claimSpec(1).request()
		return v
	}
	for name, test := range map[string]struct {
		volumes []cinder.Volume
		want    []string
		kept    string
		wantErr string
	}{
		"nothing there":   {want: []string{"volume.create"}, kept: "volume-1"},
		"creating":        {volumes: []cinder.Volume{csiVolume(1, cinder.StatusCreating)}, kept: "volume-1"},
		"available":       {volumes: []cinder.Volume{csiVolume(1, cinder.StatusAvailable)}, kept: "volume-1"},
		"on a node":       {volumes: []cinder.Volume{marked(csiVolume(1, cinder.StatusInUse, cinder.Attachment{ID: "a", Host: stamps.NodeHost("node-1", "cluster-1")}))}, kept: "volume-1"},
		"being attached":  {volumes: []cinder.Volume{marked(csiVolume(1, cinder.StatusAttaching))}, kept: "volume-1"},
		"being detached":  {volumes: []cinder.Volume{marked(csiVolume(1, cinder.StatusDetaching))}, kept: "volume-1"},
		"being deleted":   {volumes: []cinder.Volume{csiVolume(1, cinder.StatusDeleting)}, want: []string{"volume.create"}, kept: "volume-2"},
		"in maintenance":  {volumes: []cinder.Volume{csiVolume(1, "maintenance")}, wantErr: "backend gold: volume volume-1 is maintenance; waiting for that operation to finish"},
		"error":           {volumes: []cinder.Volume{csiVolume(1, cinder.StatusError)}, want: []string{"volume.delete volume-1"}, wantErr: "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend"},
		"a native one":    {volumes: []cinder.Volume{native()}, want: []string{"volume.delete volume-1", "volume.create"}, kept: "volume-2"},
		"two of a claim":  {volumes: []cinder.Volume{csiVolume(1, cinder.StatusAvailable), csiVolume(1, cinder.StatusAvailable)}, want: []string{"volume.delete volume-2"}, kept: "volume-1"},
		"the recorded of": {volumes: []cinder.Volume{csiVolume(1, cinder.StatusAvailable), marked(csiVolume(1, cinder.StatusAvailable))}, want: []string{"volume.delete volume-1"}, kept: "volume-2"},
		"a native one that was recorded": {volumes: []cinder.Volume{once(native())},
			wantErr: `volume volume-1 was created for a different request (1 GiB, type "", zone "", mode native) than the current one (1 GiB, type "", zone "", mode csi) and cannot be removed: ` +
				"backend gold: volume volume-1 (available) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume"},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			for _, v := range test.volumes {
				memory.add(v)
			}
			connected, err := memory.term(t).Connect(t.Context(), csiSpec(1))
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, memory.changes(), test.want)
			equal(t, connected.Volume.ID, test.kept)
			if test.kept == "" {
				return
			}
			if connected.Document != nil || connected.AttachmentID != "" || connected.Place != memoryPlace {
				t.Errorf("connected %+v", connected)
			}
			v := memory.present()[test.kept]
			equal(t, stamps.IsCSI(v), true)
			equal(t, v.Metadata[stamps.KeyWorkflow], "attachment")
		})
	}
}

// TestNativeVolumeIsMadeAnewAfterTheModeCSI: neither mode adopts what the other made.
func TestNativeVolumeIsMadeAnewAfterTheModeCSI(t *testing.T) {
	memory := newCSICinder()
	memory.add(csiVolume(1, cinder.StatusAvailable))
	connected, err := memory.term(t).Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, "volume-2")
	equal(t, memory.changes(), []string{"volume.delete volume-1", "volume.create", "attachment.create volume-2"})
	equal(t, stamps.IsCSI(memory.present()["volume-2"]), false)
}

// TestTwoRequestsForAClaimInModeCSI: besides listings, one request makes the volume,
// and one marks it.
func TestTwoRequestsForAClaimInModeCSI(t *testing.T) {
	memory := newCSICinder()
	memory.looks = 0
	l := memory.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	idle(t, l)
	memory.forgetLog()
	connected, err := l.Connect(t.Context(), csiSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, stamps.EverAttached(memory.present()[connected.Volume.ID]), false)
	if err := l.Complete(t.Context(), csiTarget(1, connected.Volume.ID), false); err != nil {
		t.Fatal(err)
	}
	equal(t, stamps.EverAttached(memory.present()[connected.Volume.ID]), true)
	equal(t, memory.changes(), []string{"volume.create", "metadata.update volume-1"})
	equal(t, memory.present()[connected.Volume.ID].Status, cinder.StatusAvailable)
	// Again, by this leader and by the next, which lists.
	for _, again := range []*Lifecycle{l, memory.term(t)} {
		if err := again.Complete(t.Context(), csiTarget(1, connected.Volume.ID), false); err != nil {
			t.Error(err)
		}
	}
	equal(t, len(memory.changes()), 2)
}

func TestModeCSINeedsTheAttachmentsAPI(t *testing.T) {
	memory := newMemoryCinder()
	_, err := memory.term(t).Connect(t.Context(), csiSpec(1))
	equal(t, authtest.ErrorText(err), "backend gold: mode csi needs the attachments API, which the endpoint does not offer; use mode native")
	equal(t, cinder.KindOf(err), cinder.KindConfig)
	equal(t, memory.changes(), []string(nil))
}

func TestMarkOfAVolumeForTheCSIDriver(t *testing.T) {
	for name, test := range map[string]struct {
		volume  cinder.Volume
		faults  map[string][]mishap
		want    []string
		wantErr string
	}{
		"unmarked":          {volume: csiVolume(1, cinder.StatusAvailable), want: []string{"metadata.update volume-1"}},
		"on a node, marked": {volume: marked(csiVolume(1, cinder.StatusInUse, cinder.Attachment{ID: "a", Host: stamps.NodeHost("node-1", "cluster-1")}))},
		"refused":           {volume: csiVolume(1, cinder.StatusAvailable), faults: map[string][]mishap{"metadata.update": {refused}}, want: []string{"metadata.update volume-1"}, wantErr: "backend gold: metadata.update: Cinder answered service unavailable (HTTP 503)"},
		"another's": {volume: csiVolume(2, cinder.StatusAvailable),
			wantErr: `backend gold: volume volume-1 is stamped cluster "cluster-1", PersistentVolume "pvc-uid-2", claim UID "uid-2", expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			id := memory.add(test.volume)
			memory.fault = sequence(test.faults)
			equal(t, authtest.ErrorText(memory.term(t).Complete(t.Context(), csiTarget(1, id), false)), test.wantErr)
			equal(t, memory.changes(), test.want)
		})
	}
}

func TestRemovalOfAVolumeForTheCSIDriver(t *testing.T) {
	for name, test := range map[string]struct {
		add     func(memory *memoryCinder) string
		want    []string
		wantErr string
	}{
		"available": {add: func(m *memoryCinder) string { return m.add(marked(csiVolume(1, cinder.StatusAvailable))) }, want: []string{"volume.delete volume-1"}},
		"an attachment that is left": {
			add: func(m *memoryCinder) string {
				return withAttachments(m, marked(csiVolume(1, cinder.StatusInUse)), "attached")
			},
			want: []string{"attachment.delete attachment-2", "volume.delete volume-1"}},
		"several, and one incomplete": {
			add: func(m *memoryCinder) string {
				return withAttachments(m, marked(csiVolume(1, cinder.StatusAttaching)), "attaching", "reserved")
			},
			want: []string{"attachment.delete attachment-2", "attachment.delete attachment-3", "volume.delete volume-1"}},
		"an instance has it": {
			add: func(m *memoryCinder) string {
				return m.add(marked(csiVolume(1, cinder.StatusInUse, cinder.Attachment{ID: "a", ServerID: "instance-7"})))
			},
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			id := test.add(memory)
			equal(t, authtest.ErrorText(memory.term(t).Remove(t.Context(), csiTarget(1, id))), test.wantErr)
			equal(t, memory.changes(), test.want)
			_, kept := memory.present()[id]
			equal(t, kept, test.wantErr != "")
		})
	}
}

// TestOnlyAMarkKeepsAnAbandonedVolumeForTheCSIDriver: publishing marks first.
func TestOnlyAMarkKeepsAnAbandonedVolumeForTheCSIDriver(t *testing.T) {
	memory := newCSICinder()
	memory.add(csiVolume(1, cinder.StatusAvailable))
	memory.add(marked(csiVolume(2, cinder.StatusAvailable)))
	l := memory.term(t)
	equal(t, authtest.ErrorText(l.Abandon(t.Context(), claimStamp(1), testConnector, nil)), "")
	equal(t, authtest.ErrorText(l.Abandon(t.Context(), claimStamp(2), testConnector, nil)),
		"backend gold: volume volume-2 (available) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume")
	equal(t, memory.changes(), []string{"volume.delete volume-1"})
}

// TestImportOfAVolumeThatWasInModeCSI: the import makes it native, and refuses one that
// a node has.
func TestImportOfAVolumeThatWasInModeCSI(t *testing.T) {
	memory := newCSICinder()
	id := memory.add(marked(csiVolume(1, cinder.StatusAvailable)))
	spec := Import{VolumeID: id, Stamp: claimStamp(2), Connector: testConnector, Granted: func(cinder.Volume) error { return nil }, Unclaimed: func(context.Context, cinder.Volume) error { return nil }}
	spec.Stamp.ClusterUID = "cluster-1"
	if _, err := memory.term(t).Import(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	equal(t, stamps.IsCSI(memory.present()[id]), false)
	memory = newCSICinder()
	id = withAttachments(memory, marked(csiVolume(1, cinder.StatusInUse)), "attached")
	spec.VolumeID = id
	_, err := memory.term(t).Import(t.Context(), spec)
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 (mode csi) is in-use, so a node may have it; detach it there first")
}

// TestOneVolumeOfAClaimInModeCSIThroughMishaps: whatever is lost or interrupted, one
// volume remains, marked, and then none.
func TestOneVolumeOfAClaimInModeCSIThroughMishaps(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		memory := newCSICinder()
		left := random.IntN(30)
		memory.fault = func(string, string) mishap {
			if left == 0 {
				return noFault
			}
			left--
			return []mishap{noFault, noFault, refused, lost, unsent, rateLimited}[random.IntN(6)]
		}
		l := memory.term(t)
		until := func(what string, operation func() error) {
			for range 100 {
				if operation() == nil {
					return
				}
				if random.IntN(3) == 0 {
					l = memory.term(t)
				}
			}
			t.Fatalf("seed %d: %s never succeeds: %q", seed, what, memory.log)
		}
		var connected Connected
		until("connect", func() (err error) { connected, err = l.Connect(t.Context(), csiSpec(1)); return err })
		id := connected.Volume.ID
		until("complete", func() error { return l.Complete(t.Context(), csiTarget(1, id), false) })
		memory.deliverAll()
		_, _ = l.Relist(t.Context())
		for _, second := range l.Duplicates(claimStamp(1).ClaimUID, id) {
			until("remove a duplicate", func() error {
				return l.RemoveUnrecorded(t.Context(), second, claimStamp(1), testConnector, nil)
			})
		}
		if found := memory.stamped(claimStamp(1)); len(found) != 1 || found[0].ID != id || !stamps.EverAttached(found[0]) || found[0].Status != cinder.StatusAvailable {
			t.Fatalf("seed %d: left %+v: %q", seed, found, memory.log)
		}
		if slices.ContainsFunc(memory.changes(), func(change string) bool {
			return change == "volume.os-reserve "+id || change == "attachment.create "+id
		}) {
			t.Fatalf("seed %d: it was connected: %q", seed, memory.log)
		}
		until("remove", func() error { return l.Remove(t.Context(), csiTarget(1, id)) })
		if found := memory.stamped(claimStamp(1)); len(found) != 0 {
			t.Fatalf("seed %d: left %+v", seed, found)
		}
	}
}
