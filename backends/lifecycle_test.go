package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func TestConnectFromEveryState(t *testing.T) {
	other := mine(1, cinder.StatusAvailable)
	other.Metadata[stamps.KeyPV] = "pvc-another"
	tests := map[string]struct {
		volumes []cinder.Volume
		want    []string // changes made
		kept    string   // the volume that is connected; empty: an error
		wantErr string
	}{
		"nothing there": {want: []string{"volume.create", "volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"creating":      {volumes: []cinder.Volume{mine(1, cinder.StatusCreating)}, want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"available":     {volumes: []cinder.Volume{mine(1, cinder.StatusAvailable)}, want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"attaching":     {volumes: []cinder.Volume{mine(1, cinder.StatusAttaching)}, want: []string{"volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"in use":        {volumes: []cinder.Volume{mine(1, cinder.StatusInUse)}, want: []string{"volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"error": {volumes: []cinder.Volume{mine(1, cinder.StatusError)}, want: []string{"volume.delete volume-1"},
			wantErr: "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend"},
		"error_deleting": {volumes: []cinder.Volume{mine(1, cinder.StatusErrorDeleting)}, want: []string{"volume.force-delete volume-1"},
			wantErr: "backend gold: volume volume-1 went to error_deleting and was removed: Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume"},
		"deleting": {volumes: []cinder.Volume{mine(1, cinder.StatusDeleting)}, want: []string{"volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"reserved by another party": {volumes: []cinder.Volume{mine(1, cinder.StatusReserved)},
			wantErr: "backend gold: volume volume-1 is reserved; waiting for that operation to finish"},
		"in maintenance": {volumes: []cinder.Volume{mine(1, "maintenance")},
			wantErr: "backend gold: volume volume-1 is maintenance; waiting for that operation to finish"},
		"another PersistentVolume's": {volumes: []cinder.Volume{other}, want: []string{"volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"no stamp, our name":         {volumes: []cinder.Volume{{Name: claimStamp(1).PV, Status: cinder.StatusAvailable}}, want: []string{"volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"the elder of two": {volumes: []cinder.Volume{mine(1, cinder.StatusAvailable), mine(1, cinder.StatusAvailable)},
			want: []string{"volume.delete volume-2", "volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"of the same second, the lesser id": {volumes: []cinder.Volume{withID("b", mine(1, cinder.StatusAvailable)), withID("a", mine(1, cinder.StatusAvailable))},
			want: []string{"volume.delete b", "volume.os-reserve a", "volume.os-initialize_connection a"}, kept: "a"},
		"the connected one of two": {volumes: []cinder.Volume{mine(1, cinder.StatusAvailable), mine(1, cinder.StatusAttaching)},
			want: []string{"volume.delete volume-1", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"the one in use of three": {volumes: []cinder.Volume{mine(1, cinder.StatusAttaching), mine(1, cinder.StatusError), mine(1, cinder.StatusInUse)},
			want: []string{"volume.os-terminate_connection volume-1", "volume.os-unreserve volume-1", "volume.delete volume-1", "volume.delete volume-2", "volume.os-initialize_connection volume-3"}, kept: "volume-3"},
		"a good one and a failed one": {volumes: []cinder.Volume{mine(1, cinder.StatusError), mine(1, cinder.StatusCreating)},
			want: []string{"volume.delete volume-1", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"two in use": {volumes: []cinder.Volume{mine(1, cinder.StatusInUse), mine(1, cinder.StatusInUse)},
			wantErr: "backend gold: volumes volume-1 and volume-2 of one claim have both been attached; keep one and delete the other by hand"},
		"one in use, one that was once": {volumes: []cinder.Volume{mine(1, cinder.StatusInUse), once(mine(1, cinder.StatusAvailable))},
			wantErr: "backend gold: volumes volume-1 and volume-2 of one claim have both been attached; keep one and delete the other by hand"},
		"failed, but attached once": {volumes: []cinder.Volume{once(mine(1, cinder.StatusError))},
			wantErr: "volume volume-1 went to error (schedule allocate volume:Could not find any available weighted backend) and cannot be removed: " +
				"backend gold: volume volume-1 (error) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume"},
		"in use elsewhere": {volumes: []cinder.Volume{attachedTo(mine(1, cinder.StatusInUse), cinder.Attachment{ID: "a", ServerID: "instance-7"})},
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
		"too small": {volumes: []cinder.Volume{mine(1, cinder.StatusAvailable)},
			wantErr: "backend gold: volume volume-1 has 1 GiB, but the claim requests 2 GiB"},
		"too small, but failed": {volumes: []cinder.Volume{mine(1, cinder.StatusError)}, want: []string{"volume.delete volume-1"},
			wantErr: "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			for _, v := range test.volumes {
				if strings.HasPrefix(name, "of the same second") {
					v.CreatedAt = memory.clock
				}
				memory.add(v)
			}
			spec := claimSpec(1)
			if strings.HasPrefix(name, "too small") {
				spec.SizeGiB = 2
			}
			connected, err := memory.term(t).Connect(t.Context(), spec)
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, memory.changes(), test.want)
			equal(t, connected.Volume.ID, test.kept)
			if test.kept == "" {
				return
			}
			equal(t, string(connected.Document), `{"driver_volume_type":"iscsi","data":{"volume_id":"`+test.kept+`"}}`)
			found := memory.stamped(claimStamp(1))
			if len(found) != 1 || found[0].ID != test.kept || found[0].Status != cinder.StatusAttaching && found[0].Status != cinder.StatusInUse {
				t.Errorf("left %+v", found)
			}
		})
	}
}

func withID(id string, v cinder.Volume) cinder.Volume { v.ID = id; return v }

func once(v cinder.Volume) cinder.Volume {
	v.Metadata["readonly"] = "False"
	return v
}

func attachedTo(v cinder.Volume, attachments ...cinder.Attachment) cinder.Volume {
	v.Attachments = attachments
	return v
}

func TestCreateRequest(t *testing.T) {
	memory := newMemoryCinder()
	spec := claimSpec(1)
	spec.SizeGiB, spec.Type, spec.Zone = 7, "ssd", "az1"
	spec.Metadata = map[string]string{"costcenter": "4711", stamps.KeyCluster: "stolen", "readonly": "True", "attached_mode": "ro"}
	if _, err := memory.term(t).Connect(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	v := memory.stamped(claimStamp(1))[0]
	equal(t, []any{v.Name, v.SizeGiB, v.Type, v.Zone}, []any{"pvc-uid-1", int64(7), "ssd", "az1"})
	equal(t, v.Metadata, map[string]string{
		"costcenter": "4711",
		"standalone-cinder.openstack.org/cluster":       "cluster-1",
		"standalone-cinder.openstack.org/claim-uid":     "uid-1",
		"standalone-cinder.openstack.org/tenant":        "team-a",
		"standalone-cinder.openstack.org/storage-class": "fast",
		"standalone-cinder.openstack.org/requested":     `7 GiB, type "ssd", zone "az1"`,
		"standalone-cinder.openstack.org/requested-at":  "2026-11-20T15:00:00Z",
		"csi.storage.k8s.io/pvc/namespace":              "team-a",
		"csi.storage.k8s.io/pvc/name":                   "data-1",
		"csi.storage.k8s.io/pv/name":                    "pvc-uid-1",
	})
	equal(t, stamps.Of(v), claimStamp(1))
}

// TestCreationFailsAndIsReported: the volume that went to error is gone, the
// claim gets the reason, and the next attempt creates a new one.
func TestCreationFailsAndIsReported(t *testing.T) {
	memory := newMemoryCinder()
	failures := 1
	memory.created = func(string) cinder.Status {
		if failures > 0 {
			failures--
			return cinder.StatusError
		}
		return cinder.StatusAvailable
	}
	l := memory.term(t)
	_, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend")
	equal(t, cinder.KindOf(err), KindVolumeFailed)
	equal(t, len(memory.stamped(claimStamp(1))), 0)
	lists := memory.count("volume.list")
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, "volume-2")
	// The term knows that there is none: only the waits list.
	equal(t, memory.count("volume.list")-lists <= memory.looks+2, true)
}

// TestFailureNamesTheZoneThatWasRequested: another attempt may have requested it.
func TestFailureNamesTheZoneThatWasRequested(t *testing.T) {
	requested := func(request string) cinder.Volume {
		v := mine(1, cinder.StatusError)
		v.Zone = "somewhere"
		if request != "" {
			v.Metadata["standalone-cinder.openstack.org/requested"] = request
		}
		return v
	}
	for name, c := range map[string]struct {
		left cinder.Volume
		zone string
		not  bool // the failure says nothing about a zone
	}{
		"by this attempt":             {zone: "az1"},
		"by an earlier attempt":       {left: requested(`7 GiB, type "ssd", zone "az2"`), zone: "az2"},
		"by an earlier version":       {left: requested(""), zone: "az1"},
		"in a zone that is of no use": {left: requested(`7 GiB, type "ssd", zone "az3"`), not: true},
		"with another size":           {left: requested(`9 GiB, type "ssd", zone "az1"`), not: true},
		"and it was deleted in vain":  {left: mine(1, cinder.StatusErrorDeleting), not: true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.created = func(string) cinder.Status { return cinder.StatusError }
			if c.left.ID = "volume-1"; c.left.Status != "" {
				memory.add(c.left)
			}
			spec := claimSpec(1)
			spec.SizeGiB, spec.Type, spec.Zone, spec.Zones = 7, "ssd", "az1", []string{"az1", "az2"}
			_, err := memory.term(t).Connect(t.Context(), spec)
			equal(t, cinder.KindOf(err), KindVolumeFailed)
			equal(t, len(memory.stamped(claimStamp(1))), 0)
			var failed *NotMadeError
			equal(t, errors.As(err, &failed), !c.not)
			if failed != nil {
				equal(t, failed.Zone, c.zone)
				equal(t, failed.Reason, "schedule allocate volume:Could not find any available weighted backend")
			}
		})
	}
}

func TestFailedVolumeThatCannotBeRemoved(t *testing.T) {
	memory := newMemoryCinder()
	memory.member = true
	memory.add(mine(1, cinder.StatusErrorDeleting))
	_, err := memory.term(t).Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "volume volume-1 went to error_deleting (Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume) and cannot be removed: "+
		"backend gold: volume volume-1 is in error_deleting; an OpenStack administrator must repair it and run: cinder force-delete volume-1")
	equal(t, cinder.KindOf(err), cinder.KindForbidden)
}

func TestRefusedCreateIsReported(t *testing.T) {
	memory := newMemoryCinder()
	memory.fault = func(operation, _ string) mishap {
		if operation == "volume.create" {
			return rateLimited
		}
		return noFault
	}
	l := memory.term(t)
	for range 3 {
		_, err := l.Connect(t.Context(), claimSpec(1))
		equal(t, cinder.KindOf(err), cinder.KindRateLimited)
	}
	// A rejection leaves no doubt: the term's first listing suffices.
	equal(t, memory.count("volume.list"), 1)
	equal(t, memory.count("volume.create"), 3)
}

// TestLostCreateIsSettledByLooking: the answer is lost after the effect.
func TestLostCreateIsSettledByLooking(t *testing.T) {
	memory := newMemoryCinder()
	lose := true
	memory.fault = func(operation, _ string) mishap {
		if operation == "volume.create" && lose {
			lose = false
			return lost
		}
		return noFault
	}
	l := memory.term(t)
	_, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, cinder.KindOf(err), cinder.KindUnavailable)
	holds, err := l.HasVolumeOf(t.Context(), claimStamp(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, holds, true)
	if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
		t.Fatal(err)
	}
	equal(t, memory.count("volume.create"), 1)
	equal(t, len(memory.stamped(claimStamp(1))), 1)
}

// TestListingDuringALostCreateProvesNothing: another claim's look lists the
// volumes while the create request is still under way at Cinder. Only a listing
// that began after the request's end can prove that there is no volume.
func TestListingDuringALostCreateProvesNothing(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	underWay, takeEffect := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	memory.onCall(func(operation string) {
		if operation == "volume.create" && first.Swap(false) {
			close(underWay)
			<-takeEffect
		}
	})
	lose := true
	memory.fault = func(operation, _ string) mishap {
		if operation == "volume.create" && lose {
			lose = false
			return lost
		}
		return noFault
	}
	failed := make(chan error)
	go func() {
		_, err := l.Connect(t.Context(), claimSpec(1))
		failed <- err
	}()
	<-underWay
	// A listing after the request left and before its effect.
	l.current().known.Doubt(claimStamp(2).ClaimUID)
	if holds, err := l.HasVolumeOf(t.Context(), claimStamp(2)); err != nil || holds {
		t.Fatal(holds, err)
	}
	close(takeEffect)
	equal(t, cinder.KindOf(<-failed), cinder.KindUnavailable)
	if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
		t.Fatal(err)
	}
	equal(t, len(memory.stamped(claimStamp(1))), 1)
	equal(t, memory.count("volume.create"), 1)
}

func TestStampThatChangedUnderOurHands(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	memory.mu.Lock()
	memory.volumes[connected.Volume.ID].Metadata = map[string]string{}
	memory.mu.Unlock()
	memory.forgetLog()
	_, err = l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 no longer carries the stamp of this claim")
	equal(t, cinder.KindOf(err), KindNotOurs)
	equal(t, len(memory.changes()), 0)
}

func TestStampThatChangesDuringCreation(t *testing.T) {
	for name, operation := range map[string]func(l *Lifecycle) error{
		"connect": func(l *Lifecycle) error { _, err := l.Connect(t.Context(), claimSpec(1)); return err },
		"remove":  func(l *Lifecycle) error { return l.Remove(t.Context(), claimTarget(1, "volume-1")) },
	} {
		memory := newMemoryCinder()
		id := memory.add(mine(1, cinder.StatusCreating))
		l := memory.term(t)
		if _, err := l.Volumes(t.Context()); err != nil {
			t.Fatal(err)
		}
		listings := memory.count("volume.list")
		memory.onCall(func(called string) {
			if called == "volume.list" && memory.count("volume.list") == listings {
				memory.mu.Lock()
				defer memory.mu.Unlock()
				memory.volumes[id].Metadata = nil
			}
		})
		if err := operation(l); !cinder.IsKind(err, KindNotOurs) {
			t.Errorf("%s: error %v", name, err)
		}
		equal(t, memory.changes(), []string(nil))
	}
}

// TestOneClaimOneOperation: Complete and Remove of one claim never interleave;
// those of different claims, including historic ones, never wait for each
// other.
func TestOneClaimOneOperation(t *testing.T) {
	memory := newMemoryCinder()
	historic := func(n int) (cinder.Volume, Target) {
		v := cinder.Volume{ID: fmt.Sprintf("historic-%d", n), Name: stamps.HistoricNamePrefix + fmt.Sprint(n), Status: cinder.StatusAvailable}
		return v, Target{VolumeID: v.ID, Historic: true, Connector: cinder.Connector{Host: "localhost"}}
	}
	first, firstTarget := historic(1)
	second, secondTarget := historic(2)
	memory.add(first)
	memory.add(second)
	stuck, leave := make(chan struct{}), make(chan struct{})
	memory.onCall(func(operation string) {
		if operation == "volume.delete" {
			memory.mu.Lock()
			n := len(memory.log)
			memory.mu.Unlock()
			if n < 3 {
				select {
				case stuck <- struct{}{}:
					<-leave
				case <-leave:
				}
			}
		}
	})
	l := memory.term(t)
	done := make(chan error)
	go func() { done <- l.Remove(t.Context(), firstTarget) }()
	<-stuck
	go func() { done <- l.Remove(t.Context(), secondTarget) }()
	<-stuck // the second got this far before the first ended
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Remove(ctx, firstTarget); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller waiting for the same volume cannot leave: %v", err)
	}
	close(leave)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	equal(t, len(memory.present()), 0)
}
