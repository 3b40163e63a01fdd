package backends

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
			equal(t, errorText(err), test.wantErr)
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
	spec.Metadata = map[string]string{"costcenter": "4711", stampCluster: "stolen"}
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
	equal(t, errorText(err), "backend gold: volume volume-1 went to error and was removed: schedule allocate volume:Could not find any available weighted backend")
	equal(t, KindOf(err), KindVolumeFailed)
	equal(t, len(cinder.stamped(claimStamp(1))), 0)
	lists := cinder.count("volume.list")
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, errorText(err), "")
	equal(t, connected.Volume.ID, "volume-2")
	// The term knows that there is none: only the waiting lists.
	equal(t, cinder.count("volume.list")-lists <= cinder.looks+2, true)
}

func TestFailedVolumeThatCannotBeRemoved(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.member = true
	cinder.add(mine(1, StatusErrorDeleting))
	_, err := cinder.term(t).Connect(t.Context(), claimSpec(1))
	equal(t, errorText(err), "volume volume-1 went to error_deleting (Cinder gives no reason; see the logs of cinder-scheduler and cinder-volume) and cannot be removed: "+
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
	equal(t, errorText(err), "")
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
	l.doubt(claimStamp(2).ClaimUID)
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

// TestVolumeThatVanishedIsLookedUp: the volume that this term knows is gone,
// but not by its doing. Another leader may have kept another one.
func TestVolumeThatVanishedIsLookedUp(t *testing.T) {
	for _, status := range []Status{StatusAttaching, StatusCreating} {
		cinder := newMemoryCinder()
		l := cinder.term(t)
		if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
			t.Fatal(err)
		}
		if status == StatusCreating {
			// It vanishes while it is being created.
			l = cinder.term(t)
			cinder.mu.Lock()
			clear(cinder.volumes)
			cinder.mu.Unlock()
			id := cinder.add(mine(1, StatusCreating))
			cinder.mu.Lock()
			cinder.volumes[id].end = ""
			cinder.mu.Unlock()
			cinder.onCall(func(operation string) {
				cinder.mu.Lock()
				defer cinder.mu.Unlock()
				if _, there := cinder.volumes[id]; !there && len(cinder.volumes) == 0 {
					cinder.put(mine(1, StatusAvailable))
				}
			})
		} else {
			cinder.mu.Lock()
			clear(cinder.volumes)
			cinder.mu.Unlock()
			cinder.add(mine(1, StatusAvailable))
		}
		if _, err := l.Connect(t.Context(), claimSpec(1)); err != nil {
			t.Fatal(err)
		}
		found := cinder.stamped(claimStamp(1))
		if len(found) != 1 || found[0].Status != StatusAttaching {
			t.Errorf("%s: left %+v, want the one that another leader made", status, found)
		}
		cinder.onCall(nil)
	}
}

// TestRivalOfAnotherLeader: two leaders for a moment make two volumes. The one
// that is still waiting sees the other's in the listing it waits by.
func TestRivalOfAnotherLeader(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	var once sync.Once
	cinder.onCall(func(operation string) {
		if operation == "volume.list" && cinder.count("volume.create") == 1 {
			once.Do(func() {
				rival := mine(1, StatusAttaching) // the other one was faster
				rival.ID = "rival"
				cinder.add(rival)
			})
		}
	})
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, errorText(err), "")
	equal(t, connected.Volume.ID, "rival")
	equal(t, len(cinder.stamped(claimStamp(1))), 1)
	equal(t, cinder.changes(), []string{"volume.create", "volume.delete volume-1", "volume.os-initialize_connection rival"})
}

// TestLateRivalIsRemoved: the second volume appears after the first was
// connected. The PersistentVolume then says which one is right.
func TestLateRivalIsRemoved(t *testing.T) {
	for name, finish := range map[string]func(l *Lifecycle, id string) error{
		"on completion": func(l *Lifecycle, id string) error { return l.Complete(t.Context(), claimTarget(1, id), false) },
		"on removal":    func(l *Lifecycle, id string) error { return l.Remove(t.Context(), claimTarget(1, id)) },
		"on abandoning": func(l *Lifecycle, id string) error { return l.Abandon(t.Context(), claimStamp(1), testConnector) },
	} {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			l := cinder.term(t)
			connected, err := l.Connect(t.Context(), claimSpec(1))
			if err != nil {
				t.Fatal(err)
			}
			late := cinder.add(mine(1, StatusAvailable))
			foreign := mine(1, StatusAvailable)
			foreign.Metadata[stampPV] = "pvc-another"
			cinder.add(foreign)
			// Another claim's waiting shows them.
			if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
				t.Fatal(err)
			}
			if err := finish(l, connected.Volume.ID); err != nil {
				t.Fatal(err)
			}
			left := cinder.snapshot()
			if _, ok := left[late]; ok {
				t.Error("the late volume is still there")
			}
			if _, ok := left["volume-3"]; !ok {
				t.Error("a volume of another PersistentVolume was removed")
			}
			if _, ok := left[connected.Volume.ID]; ok != (name == "on completion") {
				t.Errorf("the claim's own volume is there: %v", ok)
			}
		})
	}
}

func TestLateRivalInUseIsLeftAlone(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	late := cinder.add(mine(1, StatusInUse))
	if _, err := l.Connect(t.Context(), claimSpec(2)); err != nil {
		t.Fatal(err)
	}
	before := cinder.snapshot()[late]
	if err := l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false); err != nil {
		t.Errorf("the claim is served, and yet: %v", err)
	}
	equal(t, cinder.snapshot()[late], before)
}

// TestDuplicateThatCameIntoUse: the listing is old; in the meantime the volume
// it shows as attaching has been completed by another leader.
func TestDuplicateThatCameIntoUse(t *testing.T) {
	cinder := newMemoryCinder()
	first, second := cinder.add(mine(1, StatusAttaching)), cinder.add(mine(1, StatusAttaching))
	l := cinder.term(t)
	if _, err := l.Volumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	cinder.mu.Lock()
	cinder.attach(cinder.volumes[second], testConnector.Host)
	cinder.mu.Unlock()
	connected, err := l.Connect(t.Context(), claimSpec(1))
	equal(t, errorText(err), "")
	equal(t, connected.Volume.ID, second)
	if _, ok := cinder.snapshot()[first]; ok {
		t.Error("the volume that was never attached is still there")
	}
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
	equal(t, errorText(err), "backend gold: volume volume-1 no longer carries the stamp of this claim")
	equal(t, KindOf(err), KindNotOurs)
	equal(t, len(cinder.changes()), 0)
}

func TestFenceStopsEveryChange(t *testing.T) {
	states := []Status{"", StatusCreating, StatusAvailable, StatusAttaching, StatusInUse, StatusError, StatusErrorDeleting, StatusReserved, StatusDetaching}
	operations := map[string]func(ctx context.Context, l *Lifecycle, id string) error{
		"connect": func(ctx context.Context, l *Lifecycle, _ string) error {
			_, err := l.Connect(ctx, claimSpec(1))
			return err
		},
		"complete": func(ctx context.Context, l *Lifecycle, id string) error {
			return l.Complete(ctx, claimTarget(1, id), false)
		},
		"remove": func(ctx context.Context, l *Lifecycle, id string) error { return l.Remove(ctx, claimTarget(1, id)) },
		"abandon": func(ctx context.Context, l *Lifecycle, _ string) error {
			return l.Abandon(ctx, claimStamp(1), testConnector)
		},
	}
	ended, end := context.WithCancel(t.Context())
	end()
	terms := map[string]func(*LifecycleOptions){
		"fence": func(o *LifecycleOptions) { o.Fence = func() error { return errors.New("the lease is 4 s too old") } },
		"hold":  func(o *LifecycleOptions) { o.Hold = ended },
	}
	for _, status := range states {
		for name, operation := range operations {
			for how, over := range terms {
				t.Run(fmt.Sprintf("%s/%s/%s", name, status, how), func(t *testing.T) {
					cinder := newMemoryCinder()
					cinder.looks = 0
					id := "volume-0"
					if status != "" {
						id = cinder.add(mine(1, status))
					}
					err := operation(t.Context(), cinder.term(t, over), id)
					equal(t, cinder.changes(), []string(nil))
					if how == "fence" && IsKind(err, KindFenced) {
						equal(t, err.(interface{ Unwrap() error }).Unwrap() != nil, true)
						if !strings.Contains(err.Error(), "no change is made: the lease is 4 s too old") {
							t.Error(err)
						}
					}
					// Only what needs no change may succeed.
					if err == nil && !(status == "" && name != "connect" || status == StatusInUse && name == "complete") {
						t.Error("no error")
					}
				})
			}
		}
	}
}

// TestEndOfTermCutsARequestUnderWay: waiting for the array must not outlast
// the term.
func TestEndOfTermCutsARequestUnderWay(t *testing.T) {
	hold, end := context.WithCancel(t.Context())
	s := &session{clients: &memoryClients{cinder: newMemoryCinder()}, backend: "gold", fence: func() error { return nil }, hold: hold}
	err := s.change(t.Context(), func(ctx context.Context, _ api) error {
		end()
		<-ctx.Done()
		return translate("gold", "volume.create", ctx.Err())
	})
	equal(t, errorText(err), "backend gold: volume.create: the request was cancelled")
	equal(t, effectUnknown(err), true)
}

// TestCallerLeavesARequestUnderWayAlone: cutting it would only leave its
// effect unknown.
func TestCallerLeavesARequestUnderWayAlone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &session{clients: &memoryClients{cinder: newMemoryCinder()}, backend: "gold", fence: func() error { return nil }, hold: t.Context()}
	err := s.change(ctx, func(inner context.Context, _ api) error {
		cancel()
		return inner.Err()
	})
	equal(t, errorText(err), "")
	err = s.change(ctx, func(context.Context, api) error {
		t.Error("a change is begun for a caller that has left")
		return nil
	})
	equal(t, errorText(err), "backend gold: the request was cancelled")
	equal(t, effectUnknown(err), false)
}

func TestRefusedCredentialsAreTriedAnew(t *testing.T) {
	cinder := newMemoryCinder()
	source := &memoryClients{cinder: cinder}
	refusals := 1
	cinder.fault = func(string, string) mishap {
		if refusals > 0 {
			refusals--
			return unauthorized
		}
		return noFault
	}
	s := &session{clients: source, backend: "gold", fence: func() error { return nil }, hold: t.Context()}
	id := cinder.add(mine(1, StatusAvailable))
	reserve := func() error {
		return s.change(t.Context(), func(ctx context.Context, cinder api) error { return cinder.Reserve(ctx, id) })
	}
	equal(t, errorText(reserve()), "")
	equal(t, source.forgotten, 1)
	refusals = 2
	equal(t, KindOf(reserve()), KindUnauthorized)
	equal(t, source.forgotten, 2)
}

// atOnce runs one thing for n claims at the same time.
func atOnce(t *testing.T, n int, do func(claim int) error) {
	t.Helper()
	var group sync.WaitGroup
	for claim := range n {
		group.Go(func() {
			if err := do(claim); err != nil {
				t.Errorf("claim %d: %v", claim, err)
			}
		})
	}
	group.Wait()
}

// idle waits until the watcher's goroutine has ended: nothing can be asked
// from then on.
func idle(t *testing.T, l *Lifecycle) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		l.watcher.mu.Lock()
		running := l.watcher.running
		l.watcher.mu.Unlock()
		if !running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the watcher goes on although nothing is in flight")
		}
	}
}

// together keeps the watcher from its first round until as many volumes as
// given are waited for: what is counted then is how many requests they need
// together, however long it took to begin with each.
func together(t *testing.T, l *Lifecycle, waits int) {
	l.watcher.mu.Lock()
	defer l.watcher.mu.Unlock()
	l.watcher.running = true
	go func() {
		for t.Context().Err() == nil {
			l.watcher.mu.Lock()
			n := len(l.watcher.waits)
			l.watcher.mu.Unlock()
			if n == waits {
				l.watcher.run()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
}

// TestRequestsPerClaim counts: three changes a claim, no request for a single
// volume, and as many listings for two hundred claims as for five.
func TestRequestsPerClaim(t *testing.T) {
	for _, claims := range []int{1, 5, 200} {
		t.Run(fmt.Sprint(claims), func(t *testing.T) {
			goroutines := runtime.NumGoroutine()
			cinder := newMemoryCinder()
			for range 500 { // of other people
				cinder.add(Volume{Status: StatusInUse})
			}
			l := cinder.term(t)
			connected := make([]Connected, claims)
			together(t, l, claims)
			atOnce(t, claims, func(claim int) (err error) {
				connected[claim], err = l.Connect(t.Context(), claimSpec(claim))
				return err
			})
			equal(t, cinder.count("volume.create"), claims)
			equal(t, cinder.count("volume.os-reserve"), claims)
			equal(t, cinder.count("volume.os-initialize_connection"), claims)
			equal(t, len(cinder.changes()), 3*claims)
			equal(t, cinder.count("volume.get"), 0)
			// One for the inventory, one for each look that Cinder needs, one
			// that finds.
			equal(t, cinder.count("volume.list"), 1+cinder.looks+1)
			idle(t, l)

			cinder.forgetLog()
			atOnce(t, claims, func(claim int) error {
				return l.Complete(t.Context(), claimTarget(claim, connected[claim].Volume.ID), false)
			})
			equal(t, cinder.count("volume.os-attach"), claims)
			equal(t, len(cinder.log), claims) // and nothing else
			for _, v := range cinder.snapshot() {
				if StampOf(v).Cluster != "" && v.Status != StatusInUse {
					t.Errorf("%s is %s", v.ID, v.Status)
				}
			}

			// A new leader finds what there is in one listing.
			cinder.forgetLog()
			next := cinder.term(t)
			atOnce(t, claims, func(claim int) error {
				return next.Complete(t.Context(), claimTarget(claim, connected[claim].Volume.ID), false)
			})
			equal(t, cinder.log, []string{"volume.list"})

			// And all the way back.
			cinder.forgetLog()
			together(t, next, claims)
			atOnce(t, claims, func(claim int) error { return next.Remove(t.Context(), claimTarget(claim, connected[claim].Volume.ID)) })
			equal(t, len(cinder.changes()), 3*claims)
			// One read a volume proves that it is ours. That it is gone is
			// told by a sweep for many, by one more read for a few.
			rounds := cinder.looks + 1
			if claims > fewVolumes {
				equal(t, cinder.count("volume.list"), rounds+1)
				equal(t, cinder.count("volume.get"), claims)
			} else {
				equal(t, cinder.count("volume.list"), rounds)
				equal(t, cinder.count("volume.get"), 2*claims)
			}
			equal(t, len(cinder.snapshot()), 500)
			idle(t, next)
			for deadline := time.Now().Add(time.Minute); runtime.NumGoroutine() > goroutines; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
				}
			}
		})
	}
}

func TestCompleteFromEveryState(t *testing.T) {
	noStamp := mine(1, StatusAttaching)
	noStamp.Metadata = nil
	tests := map[string]struct {
		volume  Volume
		member  bool
		faults  map[string][]mishap
		want    []string
		wantErr string
		kind    Kind
	}{
		"attaching":            {volume: mine(1, StatusAttaching), want: []string{"volume.os-attach volume-1"}},
		"in use":               {volume: mine(1, StatusInUse)},
		"answer lost":          {volume: mine(1, StatusAttaching), faults: map[string][]mishap{"volume.os-attach": {lost}}, want: []string{"volume.os-attach volume-1"}},
		"answer lost, member":  {volume: mine(1, StatusAttaching), member: true, faults: map[string][]mishap{"volume.os-attach": {lost}}, want: []string{"volume.os-attach volume-1"}},
		"refused":              {volume: mine(1, StatusAttaching), faults: map[string][]mishap{"volume.os-attach": {refused}}, want: []string{"volume.os-attach volume-1"}, wantErr: "backend gold: volume.os-attach: Cinder answered service unavailable (HTTP 503)", kind: KindUnavailable},
		"refused, and no look": {volume: mine(1, StatusAttaching), faults: map[string][]mishap{"volume.os-attach": {refused}, "volume.get": {unsent}}, want: []string{"volume.os-attach volume-1"}, wantErr: "backend gold: volume.os-attach: Cinder answered service unavailable (HTTP 503)\nbackend gold: volume.get: no connection to cinder: connection refused", kind: KindUnavailable},
		"available":            {volume: mine(1, StatusAvailable), wantErr: "backend gold: volume volume-1 is available where attaching was expected", kind: KindConflict},
		"not ours":             {volume: noStamp, wantErr: `backend gold: volume volume-1 is stamped with nothing, expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`, kind: KindNotOurs},
		"in use elsewhere":     {volume: attachedTo(mine(1, StatusInUse), Attachment{ID: "a", Host: "node7"}), wantErr: "backend gold: volume volume-1 is attached elsewhere (node7); detach it there first", kind: KindInUse},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			cinder.member = test.member
			id := cinder.add(test.volume)
			cinder.fault = sequence(test.faults)
			err := cinder.term(t).Complete(t.Context(), claimTarget(1, id), false)
			equal(t, errorText(err), test.wantErr)
			if err != nil {
				equal(t, KindOf(err), test.kind)
			}
			equal(t, cinder.changes(), test.want)
		})
	}
	t.Run("gone", func(t *testing.T) {
		cinder := newMemoryCinder()
		err := cinder.term(t).Complete(t.Context(), claimTarget(1, "volume-9"), false)
		equal(t, KindOf(err), KindNotFound)
	})
	t.Run("what was known is out of date", func(t *testing.T) {
		cinder := newMemoryCinder()
		l := cinder.term(t)
		connected, err := l.Connect(t.Context(), claimSpec(1))
		if err != nil {
			t.Fatal(err)
		}
		cinder.mu.Lock()
		cinder.attach(cinder.volumes[connected.Volume.ID], "node7")
		cinder.mu.Unlock()
		err = l.Complete(t.Context(), claimTarget(1, connected.Volume.ID), false)
		equal(t, errorText(err), "backend gold: volume volume-1 is attached elsewhere (node7); detach it there first")
	})
}

// sequence gives each operation its mishaps one after the other.
func sequence(faults map[string][]mishap) func(operation, id string) mishap {
	return func(operation, _ string) mishap {
		if len(faults[operation]) == 0 {
			return noFault
		}
		next := faults[operation][0]
		faults[operation] = faults[operation][1:]
		return next
	}
}

func TestHasAndVolumes(t *testing.T) {
	cinder := newMemoryCinder()
	id := cinder.add(mine(1, StatusAvailable))
	foreign := cinder.add(Volume{Status: StatusAvailable})
	second := cinder.add(mine(2, StatusError))
	l := cinder.term(t)
	for volume, want := range map[string]bool{id: true, foreign: true, "volume-9": false} {
		got, err := l.Has(t.Context(), volume)
		if err != nil || got != want {
			t.Errorf("Has(%s) = %v, %v", volume, got, err)
		}
	}
	cinder.fault = sequence(map[string][]mishap{"volume.get": {refused}})
	if _, err := l.Has(t.Context(), id); !IsKind(err, KindUnavailable) {
		t.Errorf("Has of a silent Cinder: %v", err)
	}
	volumes, err := l.Volumes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, ids(volumes), []string{id, second})
	for claim, want := range map[int]bool{1: true, 2: true, 3: false} {
		got, err := l.Holds(t.Context(), claimStamp(claim))
		if err != nil || got != want {
			t.Errorf("Holds(%d) = %v, %v", claim, got, err)
		}
	}
	equal(t, cinder.count("volume.list"), 1)
}

func TestHoldsOfASilentBackendIsUnknown(t *testing.T) {
	cinder := newMemoryCinder()
	cinder.fault = func(string, string) mishap { return refused }
	_, err := cinder.term(t).Holds(t.Context(), claimStamp(1))
	equal(t, KindOf(err), KindUnavailable)
	_, err = cinder.term(t).Connect(t.Context(), claimSpec(1))
	equal(t, KindOf(err), KindUnavailable)
	equal(t, len(cinder.changes()), 0)
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

func TestSortedByAge(t *testing.T) {
	at := func(seconds int, id string) Volume {
		return Volume{ID: id, CreatedAt: time.Unix(int64(seconds), 0)}
	}
	volumes := []Volume{at(2, "a"), at(1, "c"), at(1, "b")}
	slices.SortFunc(volumes, elder)
	equal(t, ids(volumes), []string{"b", "c", "a"})
}
