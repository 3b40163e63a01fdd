package backends

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// UUIDs of filesystems.
const (
	filesystem1 = "6f3d7f7c-8b0f-4b43-8d4e-3f3b9d3f6a11"
	filesystem2 = "0b1c5a52-3a3f-4a64-9a59-2b7e2a6f1c11"
)

// importForNodesOf returns the import of a volume in mode csi.
func importForNodesOf(n int, id string, filesystems ...string) Import {
	spec := importOf(n, id)
	spec.CSI, spec.FilesystemUUIDs, spec.Connector = true, filesystems, cinder.Connector{}
	return spec
}

// keptByNodes returns a volume that a claim in mode csi left behind.
func keptByNodes(status cinder.Status, more map[string]string) cinder.Volume {
	v := marked(csiVolume(2, status))
	v.Metadata[stamps.KeyClusterUID] = "cluster-1"
	maps.Copy(v.Metadata, more)
	return v
}

// TestImportInModeCSIFromEveryState: only a volume that nobody has is stamped, and it
// stays available.
func TestImportInModeCSIFromEveryState(t *testing.T) {
	add := func(v cinder.Volume) func(*memoryCinder) string {
		return func(m *memoryCinder) string { return m.add(v) }
	}
	record := func(attachment string) map[string]string {
		return map[string]string{stamps.NodeRecordPrefix + "key-1": stamps.NodeRecord{AttachmentID: attachment, Node: "node-1"}.String()}
	}
	native := func(status cinder.Status, attachments ...cinder.Attachment) cinder.Volume {
		v := mine(2, status)
		v.Metadata[stamps.KeyClusterUID], v.Attachments = "cluster-1", attachments
		return marked(v)
	}
	shared := cinder.Attachment{ID: "attachment-0", Host: testConnector.Host}
	for name, test := range map[string]struct {
		add func(*memoryCinder) string
		// wantErr is empty if the volume is imported.
		wantErr string
	}{
		"free":                     {add: add(cinder.Volume{Status: cinder.StatusAvailable})},
		"kept in mode csi":         {add: add(keptByNodes(cinder.StatusAvailable, nil))},
		"kept, with an old record": {add: add(keptByNodes(cinder.StatusAvailable, record("gone")))},
		"kept, native, detached":   {add: add(native(cinder.StatusAvailable))},
		"kept, of an import":       {add: add(keptByNodes(cinder.StatusAvailable, map[string]string{stamps.KeyPV: "imported-volume-1"}))},
		"kept, native, connected": {add: add(native(cinder.StatusInUse, shared)),
			wantErr: "volume volume-1 is in-use and has 1 attachments, but only an available volume without any can be imported in mode csi; detach it first, or import it in mode native"},
		"kept, native, reserved": {add: add(native(cinder.StatusAttaching)),
			wantErr: "volume volume-1 is attaching and has 0 attachments, but only an available volume without any can be imported in mode csi; detach it first, or import it in mode native"},
		"free, and reserved": {add: add(cinder.Volume{Status: cinder.StatusAttaching}),
			wantErr: "volume volume-1 is attaching and has 0 attachments, but only an available volume without any can be imported; detach it first"},
		"in error": {add: add(keptByNodes(cinder.StatusError, nil)),
			wantErr: "volume volume-1 (mode csi) is error, so a node may have it; detach it there first"},
		"on a node": {add: func(m *memoryCinder) string {
			return withAttachments(m, keptByNodes(cinder.StatusInUse, record("attachment-2")), "attached")
		}, wantErr: "volume volume-1 (mode csi) is in-use and recorded as attached to node node-1; detach it there first"},
		"on a node, without a record": {add: func(m *memoryCinder) string {
			return withAttachments(m, keptByNodes(cinder.StatusInUse, nil), "attached")
		}, wantErr: "volume volume-1 (mode csi) is in-use, so a node may have it; detach it there first"},
		"set available, and on a node": {add: func(m *memoryCinder) string {
			return withAttachments(m, keptByNodes(cinder.StatusAvailable, record("attachment-2")), "attaching")
		}, wantErr: "volume volume-1 is available but has attachment attachment-2 of node node-1; detach it there first"},
		"set available, and attached": {add: func(m *memoryCinder) string {
			return withAttachments(m, cinder.Volume{Status: cinder.StatusAvailable}, "attaching")
		}, wantErr: "volume volume-1 is available but has attachment attachment-2, and no record names its node; if no node has it, delete the attachment"},
		"of another cluster": {add: add(keptByNodes(cinder.StatusAvailable, map[string]string{stamps.KeyCluster: "other"})),
			wantErr: `volume volume-1 carries the stamp of cluster "other", claim team-a/data-2; if that cluster no longer needs it, remove the stamp: openstack volume unset --property standalone-cinder.openstack.org/cluster volume-1`},
		"of an attempt that is unfinished": {add: func(m *memoryCinder) string {
			v := csiVolume(2, cinder.StatusAvailable)
			v.Metadata[stamps.KeyClusterUID] = "cluster-1"
			return m.add(v)
		}, wantErr: "volume volume-1 was made for claim team-a/data-2 and was never in use, so it is empty; the program or its audit will remove it"},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			id := test.add(memory)
			memory.forgetLog()
			connected, err := memory.term(t).Import(t.Context(), importForNodesOf(1, id))
			if test.wantErr != "" {
				equal(t, authtest.ErrorText(err), "backend gold: "+test.wantErr)
				if changes := memory.changes(); len(changes) > 0 {
					t.Errorf("refused, and yet: %v", changes)
				}
				return
			}
			success(t, err)
			equal(t, memory.changes(), []string{"metadata.update volume-1"})
			v := memory.present()[id]
			if v.Status != cinder.StatusAvailable || len(v.Attachments) > 0 || !stamps.IsCSI(v) || !importStamp(1, id).Owns(v) || !stamps.EverAttached(v) || stamps.IsCopy(v) || len(stamps.NodeRecordsOf(v)) > 0 {
				t.Errorf("the volume is %+v", v)
			}
			if connected.Document != nil || connected.Place != memoryPlace || connected.Volume.ID != id {
				t.Errorf("connected %+v", connected)
			}
		})
	}
}

// TestImportInModeCSINeedsTheAttachmentsAPI: without it, nothing is stamped.
func TestImportInModeCSINeedsTheAttachmentsAPI(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	_, err := memory.term(t).Import(t.Context(), importForNodesOf(1, id))
	equal(t, authtest.ErrorText(err), "backend gold: mode csi needs the attachments API, which the endpoint does not offer; use mode native")
	equal(t, len(memory.changes()), 0)
}

// TestImportInModeCSIIsRepeatedAfterEveryFault: whatever happened to the first run, the
// second one ends with the same volume, which a node can then have.
func TestImportInModeCSIIsRepeatedAfterEveryFault(t *testing.T) {
	for _, what := range []mishap{refused, lost, unsent, late, twice} {
		calls := 1
		for at := 0; at < calls; at++ {
			t.Run(fmt.Sprintf("fault %d/call %d", what, at), func(t *testing.T) {
				memory := newCSICinder()
				id := memory.add(keptByNodes(cinder.StatusAvailable, map[string]string{"owner": "somebody", stamps.NodeRecordPrefix + "key-1": "gone node-1"}))
				n := 0
				memory.fault = func(string, string) mishap {
					n++
					if n-1 == at {
						return what
					}
					return noFault
				}
				_, first := memory.term(t).Import(t.Context(), importForNodesOf(1, id, filesystem1))
				calls = max(calls, n)
				memory.fault = nil
				memory.deliverAll()
				connected, err := memory.term(t).Import(t.Context(), importForNodesOf(1, id, filesystem1))
				if err != nil {
					t.Fatalf("first %v, then %v\n%v", first, err, memory.log)
				}
				target := Target{VolumeID: id, Stamp: importStamp(1, id), Place: connected.Place}
				leader := memory.term(t)
				success(t, leader.Complete(t.Context(), target, false))
				after := memory.present()[id]
				if after.Status != cinder.StatusAvailable || after.Metadata["owner"] != "somebody" || strings.Join(stamps.FilesystemUUIDsOf(after), " ") != filesystem1 {
					t.Errorf("after completion: %+v", after)
				}
				_, err = leader.Publish(t.Context(), target, toNode("n1"))
				success(t, err)
				success(t, leader.Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
				success(t, leader.Remove(t.Context(), target))
				equal(t, len(memory.present()), 0)
			})
		}
	}
}

// TestTwoClustersImportOneVolumeInModeCSI: a stamp shows which of them can attach it.
func TestTwoClustersImportOneVolumeInModeCSI(t *testing.T) {
	for at := range 6 {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			memory := newCSICinder()
			id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
			other := importForNodesOf(2, id)
			other.Stamp.Cluster, other.Stamp.ClusterUID = "cluster-2", "cluster-2"
			n, met := 0, false
			var otherErr error
			memory.onCall(func(string) {
				if n++; n-1 == at && !met {
					met = true
					_, otherErr = memory.term(t, func(o *LifecycleOptions) { o.Cluster = "cluster-2" }).Import(t.Context(), other)
				}
			})
			_, err := memory.term(t).Import(t.Context(), importForNodesOf(1, id))
			memory.onCall(nil)
			_, first := memory.term(t).Publish(t.Context(), Target{VolumeID: id, Stamp: importStamp(1, id), Place: memoryPlace}, toNode("n1"))
			_, second := memory.term(t).Publish(t.Context(), Target{VolumeID: id, Stamp: other.Stamp, Place: memoryPlace}, toNode("n2"))
			if first == nil && second == nil || err != nil && first == nil || otherErr != nil && met && second == nil {
				t.Errorf("imports %v and %v, attached %v and %v", err, otherErr, first, second)
			}
		})
	}
}

// TestImportInModeCSILosesToAReservation: somebody else reserves the volume at any moment.
func TestImportInModeCSILosesToAReservation(t *testing.T) {
	for at := range 4 {
		for _, unattended := range []bool{false, true} {
			t.Run(fmt.Sprint(at, unattended), func(t *testing.T) {
				memory := newCSICinder()
				id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
				n := 0
				memory.onCall(func(string) {
					if n++; n-1 == at {
						memory.mu.Lock()
						defer memory.mu.Unlock()
						memory.volumes[id].Status = cinder.StatusReserved
					}
				})
				spec := importForNodesOf(1, id)
				spec.Unattended, spec.Granted = unattended, func(cinder.Volume) error { return nil }
				_, err := memory.term(t).Import(t.Context(), spec)
				taken := memory.present()[id].Status == cinder.StatusReserved
				if taken != (err != nil) {
					t.Errorf("taken %t, error %v", taken, err)
				}
				memory.onCall(nil)
				target := Target{VolumeID: id, Stamp: spec.Stamp}
				if err := memory.term(t).CancelImport(t.Context(), target); err != nil && !cinder.IsKind(err, KindNotOurs) {
					t.Error(err)
				}
				if taken {
					equal(t, memory.present()[id].Status, cinder.StatusReserved)
					_, err = memory.term(t).Import(t.Context(), spec)
					equal(t, err != nil, true)
					setStatus(memory, id, cinder.StatusAvailable)
				}
				_, err = memory.term(t).Import(t.Context(), spec)
				success(t, err)
			})
		}
	}
}

// TestModeOfAnImportThatChangesBetweenRuns: the rule's mode may have changed in
// between.
func TestModeOfAnImportThatChangesBetweenRuns(t *testing.T) {
	memory := newCSICinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	spec := importForNodesOf(1, id)
	_, err := memory.term(t).Import(t.Context(), spec)
	success(t, err)
	native := importOf(1, id)
	needed := fmt.Errorf("the claim exists")
	native.Unclaimed = func(context.Context, cinder.Volume) error { return needed }
	connected, err := memory.term(t).Import(t.Context(), native)
	success(t, err)
	if v := memory.present()[id]; stamps.IsCSI(v) || v.Status != cinder.StatusAttaching || len(connected.Document) == 0 {
		t.Errorf("native: %+v", v)
	}
	_, err = memory.term(t).Import(t.Context(), spec)
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 is attaching and has 0 attachments, but only an available volume without any can be imported in mode csi; detach it first, or import it in mode native")
	success(t, memory.term(t).CancelImport(t.Context(), Target{VolumeID: id, Stamp: spec.Stamp, Connector: testConnector}))
	spec.Unclaimed = native.Unclaimed
	_, err = memory.term(t).Import(t.Context(), spec)
	success(t, err)
	equal(t, stamps.IsCSI(memory.present()[id]), true)
}

// TestFilesystemUUIDsOnAVolume: recorded UUIDs stay, and what is not a UUID is ignored.
func TestFilesystemUUIDsOnAVolume(t *testing.T) {
	many := make([]string, 15)
	for n := range many {
		many[n] = fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
	}
	for name, test := range map[string]struct {
		recorded map[string]string
		given    []string
		want     []string
	}{
		"none":                           {},
		"one":                            {given: []string{filesystem1}, want: []string{filesystem1}},
		"an administrator's":             {recorded: map[string]string{stamps.KeyFilesystemUUIDs: " " + strings.ToUpper(filesystem2) + ", junk,00000000-0000-0000-0000-000000000000"}, want: []string{filesystem2}},
		"both":                           {recorded: map[string]string{stamps.KeyFilesystemUUIDs: filesystem2}, given: []string{filesystem1, filesystem2}, want: []string{filesystem2, filesystem1}},
		"more than a value has room for": {given: many, want: many},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newCSICinder()
			id := memory.add(keptByNodes(cinder.StatusAvailable, test.recorded))
			_, err := memory.term(t).Import(t.Context(), importForNodesOf(1, id, test.given...))
			success(t, err)
			v := memory.present()[id]
			equal(t, fmt.Sprint(stamps.FilesystemUUIDsOf(v)), fmt.Sprint(test.want))
			for key, value := range v.Metadata {
				if len(value) > stamps.LongestValue {
					t.Errorf("%s has %d characters", key, len(value))
				}
			}
			// A later run that knows more records that, too.
			memory.forgetLog()
			_, err = memory.term(t).Import(t.Context(), importForNodesOf(1, id, test.given...))
			success(t, err)
			equal(t, len(memory.changes()), 0)
			_, err = memory.term(t).Import(t.Context(), importForNodesOf(1, id, "22222222-2222-4222-8222-222222222222"))
			success(t, err)
			equal(t, fmt.Sprint(stamps.FilesystemUUIDsOf(memory.present()[id])), fmt.Sprint(append(test.want, "22222222-2222-4222-8222-222222222222")))
		})
	}
}

// TestACopyInModeCSIRecordsItsFilesystem: once its PersistentVolume is gone, nothing else
// records it.
func TestACopyInModeCSIRecordsItsFilesystem(t *testing.T) {
	memory := newCSICinder()
	spec := csiSpec(1)
	spec.FilesystemUUIDs = []string{filesystem1, filesystem2}
	connected, err := memory.term(t).Connect(t.Context(), spec)
	success(t, err)
	equal(t, fmt.Sprint(stamps.FilesystemUUIDsOf(memory.present()[connected.Volume.ID])), fmt.Sprint(spec.FilesystemUUIDs))
}
