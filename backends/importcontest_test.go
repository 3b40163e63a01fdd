package backends

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

func unattended(n int, id string) Import {
	spec := importOf(n, id)
	spec.Unattended = true
	spec.Granted = func(cinder.Volume) error { return nil }
	return spec
}

// TestUnattendedImportNeverTakesAForeignReservation: a volume that somebody else
// reserved after the stamp is noted as contested, and no later run, of this term or
// the next, continues until it is available.
func TestUnattendedImportNeverTakesAForeignReservation(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
	spec := unattended(1, id)
	asked := 0
	spec.Granted = func(cinder.Volume) error {
		// The second look is after the stamp, before the reservation.
		if asked++; asked == 2 {
			setStatus(memory, id, cinder.StatusAttaching)
		}
		return nil
	}
	term := memory.term(t)
	for range 3 {
		if _, err := term.Import(t.Context(), spec); !cinder.IsKind(err, KindContested) {
			t.Fatalf("error %v", err)
		}
	}
	if _, err := memory.term(t).Import(t.Context(), unattended(1, id)); !cinder.IsKind(err, KindContested) {
		t.Errorf("the next leader: %v", err)
	}
	setStatus(memory, id, cinder.StatusAvailable)
	connected, err := memory.term(t).Import(t.Context(), unattended(1, id))
	if err != nil || connected.Volume.Metadata[stamps.KeyContested] != "" {
		t.Errorf("free again: %v, %v", err, connected.Volume.Metadata)
	}
}

// TestContestThatCouldNotBeNotedIsRemembered: the caller remembers it.
func TestContestThatCouldNotBeNotedIsRemembered(t *testing.T) {
	memory := newMemoryCinder()
	metadata := importStamp(1, "volume-x").Metadata(nil)
	metadata[stamps.KeyAttached] = "true"
	id := memory.add(cinder.Volume{ID: "volume-x", Status: cinder.StatusAttaching, Metadata: metadata})
	spec := unattended(1, id)
	spec.Contested = true
	if _, err := memory.term(t).Import(t.Context(), spec); !cinder.IsKind(err, KindContested) {
		t.Fatalf("error %v", err)
	}
	if memory.present()[id].Metadata[stamps.KeyContested] == "" {
		t.Error("it is not noted")
	}
}

// TestReservationIsNotTakenThroughAnotherClaim: a kept volume that is reserved is
// somebody's, whichever claim asks, and whether or not the contest was noted.
func TestReservationIsNotTakenThroughAnotherClaim(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusAttaching, cinder.StatusReserved} {
		for _, noted := range []string{"", "true"} {
			for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
				for _, alone := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s, noted %q, %s, unattended %t", status, noted, workflow, alone), func(t *testing.T) {
						memory := newMemoryCinder()
						memory.workflow = workflow
						metadata := importStamp(1, "volume-x").Metadata(nil)
						metadata[stamps.KeyAttached], metadata[stamps.KeyContested], metadata[stamps.KeyWorkflow] = "true", noted, string(workflow)
						id := memory.add(cinder.Volume{ID: "volume-x", Status: status, Metadata: metadata})
						spec := unattended(2, id)
						spec.Unattended = alone
						_, err := memory.term(t).Import(t.Context(), spec)
						equal(t, cinder.KindOf(err), cinder.KindConflict)
						if len(memory.changes()) > 0 {
							t.Errorf("refused, and yet: %v", memory.changes())
						}
					})
				}
			}
		}
	}
}

// TestContestedReservationIsNotReleased: when the import ends, because its claim is
// gone or the volume is no longer granted, the reservation is still another's.
func TestContestedReservationIsNotReleased(t *testing.T) {
	t.Run("the claim is gone", func(t *testing.T) {
		memory := newMemoryCinder()
		metadata := importStamp(1, "volume-x").Metadata(nil)
		metadata[stamps.KeyAttached], metadata[stamps.KeyContested] = "true", "true"
		id := memory.add(cinder.Volume{ID: "volume-x", Status: cinder.StatusAttaching, Metadata: metadata})
		target := Target{VolumeID: id, Stamp: importStamp(1, id), Connector: testConnector}
		if err := memory.term(t).CancelImport(t.Context(), target); err != nil {
			t.Fatal(err)
		}
		if len(memory.changes()) > 0 {
			t.Errorf("changed: %v", memory.changes())
		}
	})
	t.Run("the volume is no longer granted", func(t *testing.T) {
		memory := newMemoryCinder()
		id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
		spec := unattended(1, id)
		asked := 0
		spec.Granted = func(v cinder.Volume) error {
			if asked++; asked == 1 {
				// Right before the stamp, somebody reserves the volume and renames it.
				setStatus(memory, id, cinder.StatusAttaching)
				return nil
			}
			return errors.New("not granted")
		}
		_, err := memory.term(t).Import(t.Context(), spec)
		equal(t, cinder.KindOf(err), KindContested)
	})
}

// TestForeignStampIsRefusedByTheGrant: whoever asked must not learn whose the volume
// is, whenever the other stamp appears.
func TestForeignStampIsRefusedByTheGrant(t *testing.T) {
	errNo := errors.New("there is no such volume")
	for _, cluster := range []string{"cluster-1", "cluster-2"} {
		for at := range 3 {
			t.Run(fmt.Sprintf("%s, before look %d", cluster, at), func(t *testing.T) {
				memory := newMemoryCinder()
				id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
				foreign := importStamp(2, id)
				foreign.Cluster, foreign.Tenant = cluster, "other"
				looks := 0
				memory.onCall(func(operation string) {
					if operation != "volume.get" {
						return
					}
					if looks++; looks-1 == at {
						memory.mu.Lock()
						defer memory.mu.Unlock()
						memory.volumes[id].Metadata = foreign.Metadata(nil)
					}
				})
				spec := unattended(1, id)
				spec.Granted = func(v cinder.Volume) error {
					if stamps.Of(v).Tenant == "other" {
						return errNo
					}
					return nil
				}
				if _, err := memory.term(t).Import(t.Context(), spec); !errors.Is(err, errNo) {
					t.Errorf("error %v", err)
				}
			})
		}
	}
}

// TestImportAsksBeforeEveryStep: the answer is returned unchanged, and nothing is
// stamped if it comes first.
func TestImportAsksBeforeEveryStep(t *testing.T) {
	errNo := errors.New("not granted")
	for stopAt := 1; stopAt <= 3; stopAt++ {
		memory := newMemoryCinder()
		id := memory.add(cinder.Volume{Status: cinder.StatusAvailable})
		spec := unattended(1, id)
		spec.Unclaimed = func(context.Context, cinder.Volume) error { return nil }
		asked := 0
		spec.Granted = func(cinder.Volume) error {
			if asked++; asked == stopAt {
				return errNo
			}
			return nil
		}
		_, err := memory.term(t).Import(t.Context(), spec)
		if !errors.Is(err, errNo) {
			t.Errorf("stopped at %d: %v", stopAt, err)
		}
		if stopAt == 1 && len(memory.changes()) > 0 {
			t.Errorf("not granted, and yet: %v", memory.changes())
		}
	}
}

func setStatus(memory *memoryCinder, id string, status cinder.Status) {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	memory.volumes[id].Status = status
}
