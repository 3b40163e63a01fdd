package backends

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// importStamp returns the stamp of a volume that claim n imports: the
// PersistentVolume is named after the volume.
func importStamp(n int, id string) stamps.Volume {
	stamp := claimStamp(n)
	stamp.ClusterUID, stamp.PV = "cluster-1", "imported-"+id
	return stamp
}

func importOf(n int, id string) Import {
	return Import{VolumeID: id, Stamp: importStamp(n, id), Connector: testConnector, Granted: func(cinder.Volume) error { return nil }, Unclaimed: func(context.Context, cinder.Volume) error { return nil }}
}

// TestImportFromEveryState: what is free, or was kept by a claim of this cluster,
// is stamped and connected; everything else stays exactly as it is.
func TestImportFromEveryState(t *testing.T) {
	node := cinder.Attachment{ID: "attachment-0", Host: testConnector.Host}
	foreign := cinder.Attachment{ID: "attachment-0", ServerID: "instance"}
	stamped := func(change func(*stamps.Volume), marked bool) map[string]string {
		stamp := claimStamp(2)
		stamp.ClusterUID = "cluster-1"
		change(&stamp)
		metadata := stamp.Metadata(nil)
		if marked {
			maps.Copy(metadata, stamps.AttachedMark())
		}
		return metadata
	}
	kept := stamped(func(*stamps.Volume) {}, true)
	for name, c := range map[string]struct {
		volume cinder.Volume
		want   cinder.Kind // of the error; empty if it is imported
	}{
		"available":                        {cinder.Volume{Status: cinder.StatusAvailable}, ""},
		"available with an attachment":     {cinder.Volume{Status: cinder.StatusAvailable, Attachments: []cinder.Attachment{node}}, cinder.KindConflict},
		"in use":                           {cinder.Volume{Status: cinder.StatusInUse, Attachments: []cinder.Attachment{foreign}}, cinder.KindConflict},
		"reserved":                         {cinder.Volume{Status: cinder.StatusAttaching}, cinder.KindConflict},
		"in error":                         {cinder.Volume{Status: cinder.StatusError}, cinder.KindConflict},
		"unreadable":                       {cinder.Volume{Status: cinder.StatusUnreadable}, cinder.KindConflict},
		"kept, detached":                   {cinder.Volume{Status: cinder.StatusAvailable, Metadata: kept}, ""},
		"kept, still connected":            {cinder.Volume{Status: cinder.StatusInUse, Metadata: kept, Attachments: []cinder.Attachment{node}}, ""},
		"kept, used by an instance":        {cinder.Volume{Status: cinder.StatusInUse, Metadata: kept, Attachments: []cinder.Attachment{foreign}}, KindInUse},
		"kept, in error":                   {cinder.Volume{Status: cinder.StatusError, Metadata: kept}, cinder.KindConflict},
		"of another cluster":               {cinder.Volume{Status: cinder.StatusAvailable, Metadata: stamped(func(s *stamps.Volume) { s.Cluster = "other" }, true)}, KindNotOurs},
		"of another with the clusterID":    {cinder.Volume{Status: cinder.StatusAvailable, Metadata: stamped(func(s *stamps.Volume) { s.ClusterUID = "other" }, true)}, KindNotOurs},
		"of an attempt that is unfinished": {cinder.Volume{Status: cinder.StatusAvailable, Metadata: stamped(func(*stamps.Volume) {}, false)}, KindNotOurs},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(c.volume)
			before := memory.present()[id]
			connected, err := memory.term(t).Import(t.Context(), importOf(1, id))
			equal(t, cinder.KindOf(err), c.want)
			after := memory.present()[id]
			if c.want != "" {
				if len(memory.changes()) > 0 {
					t.Errorf("refused, and yet: %v", memory.changes())
				}
				return
			}
			if err != nil || len(connected.Document) == 0 || !importStamp(1, id).Owns(after) || !stamps.EverAttached(after) || stamps.IsCopy(after) || connected.Place != memoryPlace {
				t.Fatalf("error %v, connected %+v, volume %+v", err, connected, after)
			}
			if before.Status == cinder.StatusAvailable {
				before.Status = cinder.StatusAttaching
			}
			equal(t, after.Status, before.Status)
		})
	}
}

// TestImportedVolumeIsKeptByEveryRemovalWithoutARecord: from the first request
// on, only a PersistentVolume leads to the volume's removal.
func TestImportedVolumeIsKeptByEveryRemovalWithoutARecord(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	memory.fault = func(operation, _ string) mishap {
		if operation == "volume.os-reserve" {
			return unsent
		}
		return noFault
	}
	if _, err := memory.term(t).Import(t.Context(), importOf(1, id)); err == nil {
		t.Fatal("the reservation was not sent, but the import succeeded")
	}
	memory.fault = nil
	err := memory.term(t).RemoveUnrecorded(t.Context(), id, importStamp(1, id), testConnector, nil)
	equal(t, cinder.KindOf(err), KindRecorded)
	if err := memory.term(t).Abandon(t.Context(), claimStamp(1), testConnector, nil); err != nil {
		t.Error(err)
	}
	if _, exists := memory.present()[id]; !exists {
		t.Error("the volume is gone")
	}
}

// TestImportIsRepeatedAfterEveryFault lets every request of an import fail in every
// way, and imports again: the volume is connected once, and a leader brings it into
// use and removes it through its PersistentVolume.
func TestImportIsRepeatedAfterEveryFault(t *testing.T) {
	for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
		for _, what := range []mishap{refused, lost, unsent, late, twice} {
			calls := 1
			for at := 0; at < calls; at++ {
				t.Run(fmt.Sprintf("%s/fault %d/call %d", workflow, what, at), func(t *testing.T) {
					memory := newMemoryCinder()
					memory.workflow = workflow
					id := memory.add(cinder.Volume{Status: cinder.StatusAvailable, Metadata: map[string]string{"owner": "somebody"}})
					n := 0
					memory.fault = func(string, string) mishap {
						n++
						if n-1 == at {
							return what
						}
						return noFault
					}
					_, first := memory.term(t).Import(t.Context(), importOf(1, id))
					calls = max(calls, n)
					memory.fault = nil
					memory.deliverAll()
					connected, err := memory.term(t).Import(t.Context(), importOf(1, id))
					if err != nil {
						t.Fatalf("first %v, then %v\n%v", first, err, memory.log)
					}
					target := Target{VolumeID: id, Stamp: importStamp(1, id), Connector: testConnector, Place: connected.Place}
					leader := memory.term(t)
					if err := leader.Complete(t.Context(), target, false); err != nil {
						t.Fatal(err)
					}
					after := memory.present()[id]
					if after.Status != cinder.StatusInUse || len(after.Attachments) != 1 || after.Metadata["owner"] != "somebody" {
						t.Errorf("after completion: %+v", after)
					}
					if err := leader.Remove(t.Context(), target); err != nil {
						t.Fatal(err)
					}
					equal(t, len(memory.present()), 0)
				})
			}
		}
	}
}

// TestTwoClustersImportOneVolume: both see it free, and at most one gets it,
// even if the other changes the volume at the worst moment.
func TestTwoClustersImportOneVolume(t *testing.T) {
	for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
		for at := range 8 {
			t.Run(fmt.Sprintf("%s/%d", workflow, at), func(t *testing.T) {
				memory := newMemoryCinder()
				memory.workflow = workflow
				id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
				other := importOf(2, id)
				other.Stamp.Cluster, other.Stamp.ClusterUID = "cluster-2", "cluster-2"
				var otherErr error
				n, met := 0, false
				memory.onCall(func(string) {
					if n++; n-1 == at && !met {
						met = true
						_, otherErr = memory.term(t, func(o *LifecycleOptions) { o.Cluster = "cluster-2" }).Import(t.Context(), other)
					}
				})
				_, err := memory.term(t).Import(t.Context(), importOf(1, id))
				if met && err == nil && otherErr == nil {
					t.Errorf("both imported it: %+v", memory.present()[id])
				}
			})
		}
	}
}

// TestClaimThatNeedsItsVolumeKeepsIt: whether a kept volume is needed is asked
// before anything is written.
func TestClaimThatNeedsItsVolumeKeepsIt(t *testing.T) {
	memory := newMemoryCinder()
	v := mine(2, cinder.StatusInUse)
	v.Metadata[stamps.KeyClusterUID] = "cluster-1"
	id := memory.add(v)
	needed := errors.New("claim team-a/data-2 exists")
	spec := importOf(1, id)
	spec.Unclaimed = func(context.Context, cinder.Volume) error { return needed }
	if _, err := memory.term(t).Import(t.Context(), spec); !errors.Is(err, needed) {
		t.Errorf("error %v", err)
	}
	equal(t, len(memory.changes()), 0)
}

// TestCanceledImportIsAvailableAgain: a canceled import leaves the volume
// available, and can be repeated.
func TestCanceledImportIsAvailableAgain(t *testing.T) {
	for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
		t.Run(string(workflow), func(t *testing.T) {
			memory := newMemoryCinder()
			memory.workflow = workflow
			id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
			l := memory.term(t)
			for range 2 {
				if _, err := l.Import(t.Context(), importOf(1, id)); err != nil {
					t.Fatal(err)
				}
				if err := l.CancelImport(t.Context(), Target{VolumeID: id, Stamp: importStamp(1, id), Connector: testConnector}); err != nil {
					t.Fatal(err)
				}
				equal(t, memory.present()[id].Status, cinder.StatusAvailable)
			}
		})
	}
}

// TestCompletionAfterAnImport: what the term knew of the volume under its former
// stamp is out of date.
func TestCompletionAfterAnImport(t *testing.T) {
	memory := newMemoryCinder()
	leader := memory.term(t)
	made, err := leader.Connect(t.Context(), claimSpec(2))
	if err != nil {
		t.Fatal(err)
	}
	id := made.Volume.ID
	// Its PersistentVolume was removed before the volume was brought into use, and an
	// operator has set the volume free.
	if err := memory.term(t).Mark(t.Context(), claimTarget(2, id)); err != nil {
		t.Fatal(err)
	}
	setStatus(memory, id, cinder.StatusAvailable)
	spec := importOf(1, id)
	spec.Stamp.ClusterUID = "cluster-1"
	if _, err := memory.term(t).Import(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if err := leader.Complete(t.Context(), Target{VolumeID: id, Stamp: spec.Stamp, Connector: testConnector, Place: memoryPlace}, false); err != nil {
		t.Error(err)
	}
	equal(t, memory.present()[id].Status, cinder.StatusInUse)
}

// TestOneImportTwiceAtOnce runs an import while another run of it is at any
// step: the volume keeps its stamp and is connected once.
func TestOneImportTwiceAtOnce(t *testing.T) {
	for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
		for at := range 8 {
			t.Run(fmt.Sprintf("%s/%d", workflow, at), func(t *testing.T) {
				memory := newMemoryCinder()
				memory.workflow = workflow
				id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
				n, met := 0, false
				memory.onCall(func(string) {
					if n++; n-1 == at && !met {
						met = true
						if _, err := memory.term(t).Import(t.Context(), importOf(1, id)); err != nil {
							t.Error(err)
						}
					}
				})
				_, first := memory.term(t).Import(t.Context(), importOf(1, id))
				if first != nil && !cinder.IsKind(first, cinder.KindConflict) {
					t.Error(first)
				}
				memory.onCall(nil)
				connected, err := memory.term(t).Import(t.Context(), importOf(1, id))
				if err != nil {
					t.Fatal(err)
				}
				target := Target{VolumeID: id, Stamp: importStamp(1, id), Connector: testConnector, Place: connected.Place}
				if err := memory.term(t).Complete(t.Context(), target, false); err != nil {
					t.Fatal(err)
				}
				if v := memory.present()[id]; v.Status != cinder.StatusInUse || len(v.Attachments) != 1 {
					t.Errorf("the volume is %+v", v)
				}
			})
		}
	}
}

// TestRepeatedImportLosesToAReservation: an import that was interrupted before its
// reservation sees the volume free, and so may Nova.
func TestRepeatedImportLosesToAReservation(t *testing.T) {
	for workflow, reservation := range map[cinder.Workflow]string{cinder.WorkflowReserve: "volume.os-reserve", cinder.WorkflowAttachment: "attachment.create"} {
		t.Run(string(workflow), func(t *testing.T) {
			memory := newMemoryCinder()
			memory.workflow = workflow
			id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
			memory.fault = func(operation, _ string) mishap {
				if operation == reservation {
					return unsent
				}
				return noFault
			}
			if _, err := memory.term(t).Import(t.Context(), importOf(1, id)); err == nil {
				t.Fatal("the reservation was not sent, but the import succeeded")
			}
			memory.fault = nil
			memory.forgetLog()
			memory.onCall(func(operation string) {
				if operation == reservation {
					memory.onCall(nil)
					memory.mu.Lock()
					defer memory.mu.Unlock()
					memory.volumes[id].Status = cinder.StatusAttaching
				}
			})
			_, err := memory.term(t).Import(t.Context(), importOf(1, id))
			equal(t, cinder.KindOf(err), cinder.KindConflict)
			equal(t, memory.changes(), []string{reservation + " " + id})
		})
	}
}

// TestLookTellsGoneFromElsewhere: where a volume was, its absence proves that it is gone.
func TestLookTellsGoneFromElsewhere(t *testing.T) {
	elsewhere := cinder.Place{Endpoint: "http://cinder:8776/v3", Project: "p2"}
	for name, test := range map[string]struct {
		id                         string
		place                      cinder.Place
		others, present, elsewhere bool
	}{
		"it is there":                           {id: "volume-1", place: memoryPlace, others: true, present: true},
		"it is there, whatever is recorded":     {id: "volume-1", place: elsewhere, others: true, present: true},
		"it is gone":                            {id: "none", place: memoryPlace},
		"it was elsewhere":                      {id: "none", place: elsewhere, others: true, elsewhere: true},
		"it was somewhere, and here are others": {id: "none", others: true},
		"it was somewhere, and here is nothing": {id: "none", elsewhere: true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			if test.others {
				memory.add(mine(1, cinder.StatusAvailable))
			}
			v, at, err := memory.term(t).Look(t.Context(), Target{VolumeID: test.id, Place: test.place})
			equal(t, v.ID != "", test.present)
			equal(t, at, memoryPlace)
			equal(t, cinder.IsKind(err, KindElsewhere), test.elsewhere)
			equal(t, err != nil, test.elsewhere)
		})
	}
}

// TestWhatATermListedElsewhereIsNotGone: no PersistentVolume records where the volume of an
// import under way is, but the term has seen it, and the place to which its backend leads
// now has volumes of the cluster, too.
func TestWhatATermListedElsewhereIsNotGone(t *testing.T) {
	for n, elsewhere := range map[int]bool{1: true, 3: false} {
		before, after := newMemoryCinder(), newMemoryCinder()
		after.place = cinder.Place{Endpoint: memoryPlace.Endpoint, Project: "p2"}
		id := before.add(mine(1, cinder.StatusAvailable))
		after.add(mine(2, cinder.StatusAvailable))
		clients := &changingClients{now: before}
		l := newLifecycle(before.term(t).options, clients)
		_, err := l.Volumes(t.Context())
		success(t, err)
		clients.leadTo(after)
		_, _, err = l.Look(t.Context(), Target{VolumeID: id})
		equal(t, cinder.KindOf(err), cinder.KindConflict)
		_, _, err = l.Look(t.Context(), Target{VolumeID: id + "-gone", Stamp: claimStamp(n)})
		equal(t, cinder.IsKind(err, KindElsewhere), elsewhere)
		equal(t, err != nil, elsewhere)
	}
}

// TestTheVolumeModeIsStamped: of what is made as a raw device, or imported as one.
func TestTheVolumeModeIsStamped(t *testing.T) {
	for block, want := range map[bool]string{true: stamps.VolumeModeBlock, false: ""} {
		memory := newMemoryCinder()
		spec := claimSpec(1)
		spec.Block = block
		made, err := memory.term(t).Connect(t.Context(), spec)
		success(t, err)
		equal(t, memory.volumes[made.Volume.ID].Metadata[stamps.KeyVolumeMode], want)
		id := memory.add(cinder.Volume{Name: "old", Status: cinder.StatusAvailable})
		_, err = memory.term(t).Import(t.Context(), Import{VolumeID: id, Stamp: claimStamp(2), Connector: testConnector, Block: block, Granted: func(cinder.Volume) error { return nil }})
		success(t, err)
		equal(t, memory.volumes[id].Metadata[stamps.KeyVolumeMode], want)
	}
}

// TestCanceledImportLeavesAVolumeInUse: a volume in use stays connected, also if Cinder
// lists no attachment with it.
func TestCanceledImportLeavesAVolumeInUse(t *testing.T) {
	for name, attachments := range map[string][]string{"with an attachment that it does not list": {"attached"}, "without any": nil} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.workflow = cinder.WorkflowAttachment
			v := cinder.Volume{ID: "volume-x", Status: cinder.StatusInUse, Metadata: importStamp(1, "volume-x").Metadata(nil)}
			v.Metadata[stamps.KeyWorkflow], v.Metadata[stamps.KeyAttached] = string(cinder.WorkflowAttachment), "true"
			id := memory.add(v)
			for _, status := range attachments {
				memory.open["attachment-1"] = &memoryAttachment{volume: id, status: status}
			}
			if err := memory.term(t).CancelImport(t.Context(), Target{VolumeID: id, Stamp: importStamp(1, id), Connector: testConnector}); err != nil {
				t.Error(err)
			}
			if changes := memory.changes(); len(changes) > 0 || memory.present()[id].Status != cinder.StatusInUse {
				t.Errorf("the volume is %s after %v", memory.present()[id].Status, changes)
			}
		})
	}
}
