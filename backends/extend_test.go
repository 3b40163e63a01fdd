package backends

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func TestExtendFromEveryState(t *testing.T) {
	const extend = "volume.os-extend volume-1"
	larger := mine(1, cinder.StatusAvailable)
	larger.SizeGiB = 7
	stranger := mine(1, cinder.StatusAvailable)
	stranger.Metadata[stamps.KeyClaimUID] = "uid-2"
	failed := mine(1, cinder.StatusInUse)
	failed.Status = cinder.StatusErrorExtending
	tests := map[string]struct {
		volume  cinder.Volume
		ends    cinder.Status // status after an extension that fails
		want    []string
		size    int64
		kind    cinder.Kind
		wantErr string
	}{
		"available":            {volume: mine(1, cinder.StatusAvailable), want: []string{extend}, size: 5},
		"in use":               {volume: mine(1, cinder.StatusInUse), want: []string{extend}, size: 5},
		"large enough already": {volume: larger, size: 7},
		"attaching": {volume: mine(1, cinder.StatusAttaching), kind: cinder.KindConflict,
			wantErr: "backend gold: volume volume-1 is attaching; waiting for that operation to finish"},
		"in use by an instance": {volume: attachedTo(mine(1, cinder.StatusInUse), cinder.Attachment{ID: "a", ServerID: "instance-7"}), kind: KindInUse,
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
		"another claim's": {volume: stranger, kind: KindNotOurs,
			wantErr: `backend gold: volume volume-1 is stamped cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-2", expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`},
		"the array fails": {volume: mine(1, cinder.StatusInUse), ends: cinder.StatusErrorExtending, want: []string{extend}, kind: KindVolumeFailed,
			wantErr: "backend gold: the storage backend failed to extend volume volume-1 to 5 GiB; it still has 1 GiB, and an OpenStack administrator must set its status: cinder reset-state --state in-use volume-1"},
		"the array failed before": {volume: failed, kind: KindVolumeFailed,
			wantErr: "backend gold: the storage backend failed to extend volume volume-1 to 5 GiB; it still has 1 GiB, and an OpenStack administrator must set its status: cinder reset-state --state in-use volume-1"},
		"Cinder extends nothing": {volume: mine(1, cinder.StatusAvailable), ends: cinder.StatusAvailable, want: []string{extend}, kind: KindVolumeFailed,
			wantErr: "backend gold: Cinder accepted the extension of volume volume-1 to 5 GiB, but it still has 1 GiB"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.extended = test.ends
			id := memory.add(test.volume)
			v, err := memory.term(t).Extend(t.Context(), claimTarget(1, id), 5)
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, cinder.KindOf(err), test.kind)
			if err == nil {
				equal(t, v.SizeGiB, test.size)
			}
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
		})
	}
}

// TestVolumeToExtendThatDoesNotExist: absence counts only at the place where
// the volume was made.
func TestVolumeToExtendThatDoesNotExist(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	_, err := l.Extend(t.Context(), claimTarget(1, "volume-9"), 5)
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-9 does not exist")
	target := claimTarget(1, "volume-9")
	target.Place.Project = "p2"
	_, err = l.Extend(t.Context(), target, 5)
	equal(t, cinder.KindOf(err), KindElsewhere)
}

// TestExtendAsksForPermission: no request is sent that the caller does not
// permit.
func TestExtendAsksForPermission(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(mine(1, cinder.StatusAvailable)))
	refusal := errors.New("the claim is gone")
	target.Permit = func(context.Context, cinder.Volume) error { return refusal }
	if _, err := memory.term(t).Extend(t.Context(), target, 5); !errors.Is(err, refusal) {
		t.Errorf("the error is %v", err)
	}
	if changes := memory.changes(); len(changes) > 0 {
		t.Errorf("changes %q", changes)
	}
}

// TestExtendThroughFaults: through lost answers and changes of the leader, a
// volume ends with the requested size, and no other volume is touched.
func TestExtendThroughFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		id := w.add(mine(1, rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusInUse}).Draw(rt, "status")))
		var v cinder.Volume
		if err := w.until(rt, t, "extend", func(l *Lifecycle) (err error) {
			v, err = l.Extend(t.Context(), claimTarget(1, id), 5)
			return err
		}); err != nil {
			rt.Fatalf("not extended in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.check(rt)
		if now := w.present()[id]; v.SizeGiB != 5 || now.SizeGiB != 5 {
			rt.Fatalf("the size is %d, said to be %d", now.SizeGiB, v.SizeGiB)
		}
	})
}
