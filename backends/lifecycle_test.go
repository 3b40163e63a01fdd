package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

func TestConnectFromEveryState(t *testing.T) {
	other := mine(1, StatusAvailable)
	other.Metadata[stampPV] = "pvc-another"
	tests := map[string]struct {
		volumes []Volume
		want    []string // changes made
		kept    string   // the volume that is connected; empty: an error
		wantErr string
	}{
		"nothing there": {want: []string{"volume.create", "volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"creating":      {volumes: []Volume{mine(1, StatusCreating)}, want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"available":     {volumes: []Volume{mine(1, StatusAvailable)}, want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"attaching":     {volumes: []Volume{mine(1, StatusAttaching)}, want: []string{"volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"in use":        {volumes: []Volume{mine(1, StatusInUse)}, want: []string{"volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"error": {volumes: []Volume{mine(1, StatusError)}, want: []string{"volume.delete volume-1"},
			wantErr: "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend"},
		"error_deleting": {volumes: []Volume{mine(1, StatusErrorDeleting)}, want: []string{"volume.force-delete volume-1"},
			wantErr: "backend gold: volume volume-1 went to error_deleting and was removed: Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume"},
		"deleting": {volumes: []Volume{mine(1, StatusDeleting)}, want: []string{"volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"reserved by somebody": {volumes: []Volume{mine(1, StatusReserved)},
			wantErr: "backend gold: volume volume-1 is reserved; it is left alone until that is over"},
		"in maintenance": {volumes: []Volume{mine(1, "maintenance")},
			wantErr: "backend gold: volume volume-1 is maintenance; it is left alone until that is over"},
		"another PersistentVolume's": {volumes: []Volume{other}, want: []string{"volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"no stamp, our name":         {volumes: []Volume{{Name: claimStamp(1).PV, Status: StatusAvailable}}, want: []string{"volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"the elder of two": {volumes: []Volume{mine(1, StatusAvailable), mine(1, StatusAvailable)},
			want: []string{"volume.delete volume-2", "volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}, kept: "volume-1"},
		"of the same second, the lesser id": {volumes: []Volume{withID("b", mine(1, StatusAvailable)), withID("a", mine(1, StatusAvailable))},
			want: []string{"volume.delete b", "volume.os-reserve a", "volume.os-initialize_connection a"}, kept: "a"},
		"the connected one of two": {volumes: []Volume{mine(1, StatusAvailable), mine(1, StatusAttaching)},
			want: []string{"volume.delete volume-1", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"the one in use of three": {volumes: []Volume{mine(1, StatusAttaching), mine(1, StatusError), mine(1, StatusInUse)},
			want: []string{"volume.os-terminate_connection volume-1", "volume.os-unreserve volume-1", "volume.delete volume-1", "volume.delete volume-2", "volume.os-initialize_connection volume-3"}, kept: "volume-3"},
		"a good one beside a failed one": {volumes: []Volume{mine(1, StatusError), mine(1, StatusCreating)},
			want: []string{"volume.delete volume-1", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}, kept: "volume-2"},
		"two in use": {volumes: []Volume{mine(1, StatusInUse), mine(1, StatusInUse)},
			wantErr: "backend gold: volumes volume-1 and volume-2 of one claim have both been attached; keep one and delete the other by hand"},
		"one in use, one that was once": {volumes: []Volume{mine(1, StatusInUse), once(mine(1, StatusAvailable))},
			wantErr: "backend gold: volumes volume-1 and volume-2 of one claim have both been attached; keep one and delete the other by hand"},
		"failed, but attached once": {volumes: []Volume{once(mine(1, StatusError))},
			wantErr: "volume volume-1 went to error (schedule allocate volume:Could not find any available weighted backend) and cannot be removed: " +
				"backend gold: volume volume-1 (error) has been attached, which happens only when a PersistentVolume names it; it is not removed without one"},
		"in use elsewhere": {volumes: []Volume{attachedTo(mine(1, StatusInUse), Attachment{ID: "a", ServerID: "instance-7"})},
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
		"too small": {volumes: []Volume{mine(1, StatusAvailable)},
			wantErr: "backend gold: volume volume-1 has 1 GiB, the claim wants 2 GiB"},
		"too small, but failed": {volumes: []Volume{mine(1, StatusError)}, want: []string{"volume.delete volume-1"},
			wantErr: "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			for _, v := range test.volumes {
				if strings.HasPrefix(name, "of the same second") {
					v.CreatedAt = cinder.clock
				}
				cinder.add(v)
			}
			spec := claimSpec(1)
			if strings.HasPrefix(name, "too small") {
				spec.SizeGiB = 2
			}
			connected, err := cinder.term(t).Connect(t.Context(), spec)
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, cinder.changes(), test.want)
			equal(t, connected.Volume.ID, test.kept)
			if test.kept == "" {
				return
			}
			equal(t, string(connected.Document), `{"driver_volume_type":"iscsi","data":{"volume_id":"`+test.kept+`"}}`)
			found := cinder.stamped(claimStamp(1))
			if len(found) != 1 || found[0].ID != test.kept || found[0].Status != StatusAttaching && found[0].Status != StatusInUse {
				t.Errorf("left %+v", found)
			}
		})
	}
}

func withID(id string, v Volume) Volume { v.ID = id; return v }

func once(v Volume) Volume {
	v.Metadata["readonly"] = "False"
	return v
}

func attachedTo(v Volume, attachments ...Attachment) Volume {
	v.Attachments = attachments
	return v
}

func TestCreateRequest(t *testing.T) {
	cinder := newMemoryCinder()
	spec := claimSpec(1)
	spec.SizeGiB, spec.Type, spec.Zone = 7, "ssd", "az1"
	spec.Metadata = map[string]string{"costcenter": "4711", stampCluster: "stolen", "readonly": "True", "attached_mode": "ro"}
	if _, err := cinder.term(t).Connect(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	v := cinder.stamped(claimStamp(1))[0]
	equal(t, []any{v.Name, v.SizeGiB, v.Type, v.Zone}, []any{"pvc-uid-1", int64(7), "ssd", "az1"})
	equal(t, v.Metadata, map[string]string{
		"costcenter": "4711",
		"standalone-cinder.openstack.org/cluster":       "cluster-1",
		"standalone-cinder.openstack.org/claim-uid":     "uid-1",
		"standalone-cinder.openstack.org/tenant":        "team-a",
		"standalone-cinder.openstack.org/storage-class": "fast",
		"standalone-cinder.openstack.org/requested":     `7 GiB, type "ssd", zone "az1"`,
		"csi.storage.k8s.io/pvc/namespace":              "team-a",
		"csi.storage.k8s.io/pvc/name":                   "data-1",
		"csi.storage.k8s.io/pv/name":                    "pvc-uid-1",
	})
	equal(t, StampOf(v), claimStamp(1))
}

// TestCreationFailsAndIsReported: the volume that went to error is gone, the
// claim learns why, and the next attempt makes a new one.
func TestCreationFailsAndIsReported(t *testing.T) {
	cinder := newMemoryCinder()
	failures := 1
	cinder.created = func(string) Status {
		if failures > 0 {
			failures--
			return StatusError
		}
		return StatusAvailable
	}
	l := cinder.term(t)
	_, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend")
	equal(t, KindOf(err), KindVolumeFailed)
	equal(t, len(cinder.stamped(claimStamp(1))), 0)
	lists := cinder.count("volume.list")
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, connected.Volume.ID, "volume-2")
	// The term knows that there is none: only the waiting lists.
	equal(t, cinder.count("volume.list")-lists <= cinder.looks+2, true)
}

func TestFailedVolumeThatCannotBeRemoved(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.member = true
	cinder.add(mine(1, StatusErrorDeleting))
	_, err := cinder.term(t).Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "volume volume-1 went to error_deleting (Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume) and cannot be removed: "+
		"backend gold: volume volume-1 is in error_deleting; an OpenStack administrator must repair it and run: cinder force-delete volume-1")
	equal(t, KindOf(err), KindForbidden)
}

func TestRefusedCreateIsReported(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.fault = func(operation, _ string) mishap {
		if operation == "volume.create" {
			return rateLimited
		}
		return noFault
	}
	l := cinder.term(t)
	for range 3 {
		_, err := l.Connect(t.Context(), claimSpec(1))
		equal(t, KindOf(err), KindRateLimited)
	}
	// A refusal leaves no doubt: the listing of the term's beginning serves.
	equal(t, cinder.count("volume.list"), 1)
	equal(t, cinder.count("volume.create"), 3)
}

// TestLostCreateIsSettledByLooking: the answer was lost after the effect.
func TestLostCreateIsSettledByLooking(t *testing.T) {
	cinder := newMemoryCinder()
	lose := true
	cinder.fault = func(operation, _ string) mishap {
		if operation == "volume.create" && lose {
			lose = false
			return lost
		}
		return noFault
	}
	l := cinder.term(t)
	_, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, KindOf(err), KindUnavailable)
	holds, err := l.Holds(t.Context(), claimStamp(1))
	equal(t, authtest.ErrorText(err), "")
	equal(t, holds, true)
	if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
		t.Fatal(err)
	}
	equal(t, cinder.count("volume.create"), 1)
	equal(t, len(cinder.stamped(claimStamp(1))), 1)
}

// TestListingDuringALostCreateProvesNothing: another claim's look lists the
// volumes while the create request is still under way at Cinder. Only a
// listing that began after the request was given up may tell that there is no
// volume.
func TestListingDuringALostCreateProvesNothing(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	underWay, takeEffect := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	first.Store(true)
	cinder.onCall(func(operation string) {
		if operation == "volume.create" && first.Swap(false) {
			close(underWay)
			<-takeEffect
		}
	})
	lose := true
	cinder.fault = func(operation, _ string) mishap {
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
	l.current().doubt(claimStamp(2).ClaimUID)
	if holds, err := l.Holds(t.Context(), claimStamp(2)); err != nil || holds {
		t.Fatal(holds, err)
	}
	close(takeEffect)
	equal(t, KindOf(<-failed), KindUnavailable)
	if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
		t.Fatal(err)
	}
	equal(t, len(cinder.stamped(claimStamp(1))), 1)
	equal(t, cinder.count("volume.create"), 1)
}

func TestStampThatChangedUnderOurHands(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	cinder.mu.Lock()
	cinder.volumes[connected.Volume.ID].Metadata = map[string]string{}
	cinder.mu.Unlock()
	cinder.forgetLog()
	_, err = l.Connect(t.Context(), claimSpec(1))
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 no longer carries the stamp of this claim")
	equal(t, KindOf(err), KindNotOurs)
	equal(t, len(cinder.changes()), 0)
}

func TestStampThatChangesDuringCreation(t *testing.T) {
	for name, operation := range map[string]func(l *Lifecycle) error{
		"connect": func(l *Lifecycle) error { _, err := l.Connect(t.Context(), claimSpec(1)); return err },
		"remove":  func(l *Lifecycle) error { return l.Remove(t.Context(), claimTarget(1, "volume-1")) },
	} {
		cinder := newMemoryCinder()
		id := cinder.add(mine(1, StatusCreating))
		l := cinder.term(t)
		if _, err := l.Volumes(t.Context()); err != nil {
			t.Fatal(err)
		}
		listings := cinder.count("volume.list")
		cinder.onCall(func(called string) {
			if called == "volume.list" && cinder.count("volume.list") == listings {
				cinder.mu.Lock()
				defer cinder.mu.Unlock()
				cinder.volumes[id].Metadata = nil
			}
		})
		if err := operation(l); !IsKind(err, KindNotOurs) {
			t.Errorf("%s: error %v", name, err)
		}
		equal(t, cinder.changes(), []string(nil))
	}
}

// TestOneClaimOneOperation: Complete and Remove of one claim never interleave,
// those of different claims, historic ones included, never wait for each other.
func TestOneClaimOneOperation(t *testing.T) {
	cinder := newMemoryCinder()
	historic := func(n int) (Volume, Target) {
		v := Volume{ID: fmt.Sprintf("historic-%d", n), Name: historicNamePrefix + fmt.Sprint(n), Status: StatusAvailable}
		return v, Target{VolumeID: v.ID, Historic: true, Connector: Connector{Host: "localhost"}}
	}
	first, firstTarget := historic(1)
	second, secondTarget := historic(2)
	cinder.add(first)
	cinder.add(second)
	stuck, leave := make(chan struct{}), make(chan struct{})
	cinder.onCall(func(operation string) {
		if operation == "volume.delete" {
			cinder.mu.Lock()
			n := len(cinder.log)
			cinder.mu.Unlock()
			if n < 3 {
				select {
				case stuck <- struct{}{}:
					<-leave
				case <-leave:
				}
			}
		}
	})
	l := cinder.term(t)
	done := make(chan error)
	go func() { done <- l.Remove(t.Context(), firstTarget) }()
	<-stuck
	go func() { done <- l.Remove(t.Context(), secondTarget) }()
	<-stuck // the second has come as far, although the first is not through
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Remove(ctx, firstTarget); !errors.Is(err, context.Canceled) {
		t.Errorf("who waits for the same volume cannot leave: %v", err)
	}
	close(leave)
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	equal(t, len(cinder.snapshot()), 0)
}
