package backends

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// reboundStamp is the stamp of claim 1's volume after claim 2 got it.
func reboundStamp() stamps.Volume {
	stamp := claimStamp(1)
	stamp.Namespace, stamp.Claim, stamp.ReboundTo, stamp.Tenant = "team-b", "data-2", "uid-2", "team-b"
	return stamp
}

func rebind(t *testing.T, l *Lifecycle, target Target, to stamps.Volume, own map[string]string) {
	t.Helper()
	v, err := l.Rebind(t.Context(), target, to, func(stamps.Volume) map[string]string { return own })
	success(t, err)
	equal(t, stamps.Of(v), to)
}

func TestRebind(t *testing.T) {
	permitted := func(context.Context, cinder.Volume) error { return nil }
	forbidden := errors.New("claim team-a/data-1 still has it")
	rebound := mine(1, cinder.StatusInUse)
	rebound.Metadata = reboundStamp().Metadata(stamps.AttachedMark())
	for name, test := range map[string]struct {
		volume  cinder.Volume
		permit  Permit
		fault   mishap
		changes int
		kind    cinder.Kind
		err     error
	}{
		"in use":             {volume: mine(1, cinder.StatusInUse), permit: permitted, changes: 1},
		"not in use yet":     {volume: mine(1, cinder.StatusAttaching), permit: permitted, changes: 1},
		"of mode csi":        {volume: mine(1, cinder.StatusAvailable), permit: permitted, changes: 1},
		"being migrated":     {volume: mine(1, cinder.StatusRetyping), permit: permitted, kind: cinder.KindConflict},
		"in maintenance":     {volume: mine(1, cinder.StatusMaintenance), permit: permitted, kind: cinder.KindConflict},
		"stamped already":    {volume: rebound, permit: func(context.Context, cinder.Volume) error { return forbidden }},
		"not permitted":      {volume: mine(1, cinder.StatusInUse), permit: func(context.Context, cinder.Volume) error { return forbidden }, err: forbidden},
		"a lost answer":      {volume: mine(1, cinder.StatusInUse), permit: permitted, fault: lost, changes: 1, kind: cinder.KindUnavailable},
		"another's":          {volume: mine(2, cinder.StatusInUse), permit: permitted, kind: KindNotOurs},
		"of another cluster": {volume: cinder.Volume{Status: cinder.StatusAvailable, Metadata: map[string]string{stamps.KeyCluster: "cluster-2"}}, permit: permitted, kind: KindNotOurs},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(test.volume)
			if test.fault != noFault {
				memory.fault = func(operation, _ string) mishap {
					if operation == "metadata.update" {
						return test.fault
					}
					return noFault
				}
			}
			target := claimTarget(1, id)
			target.Permit = test.permit
			_, err := memory.term(t).Rebind(t.Context(), target, reboundStamp(), func(stamps.Volume) map[string]string { return map[string]string{"costcenter": "4711"} })
			if test.err != nil && !errors.Is(err, test.err) || test.err == nil && cinder.KindOf(err) != test.kind {
				t.Errorf("error %v", err)
			}
			equal(t, len(memory.changes()), test.changes)
			v := memory.volumes[id].Volume
			if test.changes > 0 {
				equal(t, stamps.Of(v), reboundStamp())
				equal(t, v.Metadata["costcenter"], "4711")
				equal(t, stamps.EverAttached(v), true)
			}
			if test.fault == lost {
				memory.fault = nil
				rebind(t, memory.term(t), target, reboundStamp(), map[string]string{"costcenter": "4711"})
				equal(t, len(memory.changes()), 1)
			}
		})
	}
}

// TestAReboundVolumeIsItsPersistentVolumes: what identifies the volume is unchanged, so
// its PersistentVolume completes and removes it, and no claim gets it by its stamp.
func TestAReboundVolumeIsItsPersistentVolumes(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	success(t, err)
	target := claimTarget(1, connected.Volume.ID)
	rebind(t, l, target, reboundStamp(), nil)
	success(t, l.Complete(t.Context(), target, false))
	equal(t, memory.volumes[target.VolumeID].Status, cinder.StatusInUse)
	for _, term := range []*Lifecycle{l, memory.term(t)} {
		for _, n := range []int{1, 2} {
			spec := claimSpec(n)
			if n == 2 {
				spec.Stamp.Namespace, spec.Stamp.Tenant = "team-b", "team-b"
			}
			got, err := term.Connect(t.Context(), spec)
			if n == 1 && !cinder.IsKind(err, KindNotOurs) || n == 2 && (err != nil || got.Volume.ID == target.VolumeID) {
				t.Errorf("claim %d gets volume %s, error %v", n, got.Volume.ID, err)
			}
			if n == 1 && !cinder.IsKind(term.Abandon(t.Context(), spec.Stamp, testConnector, nil), KindNotOurs) {
				t.Error("the volume was abandoned with the claim that it was made for")
			}
		}
	}
	success(t, l.Remove(t.Context(), target))
	equal(t, memory.volumes[target.VolumeID] == nil, true)
}

// TestARestoredPersistentVolumeDeletesNothingBeforeItIsBound: an object that was applied
// again may name a claim that is gone, so Kubernetes releases it at once. That asks for no
// deletion. Once it was seen in use, or bound to another claim, its deletion is meant.
func TestARestoredPersistentVolumeDeletesNothingBeforeItIsBound(t *testing.T) {
	for name, test := range map[string]struct {
		volume cinder.Volume
		after  time.Duration // from the request of the volume to the PersistentVolume
		before func(t *testing.T, l *Lifecycle, target Target)
		kind   cinder.Kind
	}{
		"the first object":          {volume: mine(1, cinder.StatusInUse), after: time.Minute},
		"an object applied again":   {volume: mine(1, cinder.StatusInUse), after: time.Hour, kind: KindRestored},
		"of mode csi":               {volume: recordedCSI(mine(1, cinder.StatusAvailable)), after: time.Hour, kind: KindRestored},
		"saved late, never in use":  {volume: mine(1, cinder.StatusAttaching), after: time.Hour},
		"saved late, and completed": {volume: mine(1, cinder.StatusAttaching), after: time.Hour, before: complete},
		"applied again, and in use": {volume: mine(1, cinder.StatusInUse), after: time.Hour, before: complete},
		"applied again, and bound to another claim": {volume: mine(1, cinder.StatusInUse), after: time.Hour, before: func(t *testing.T, l *Lifecycle, target Target) {
			rebind(t, l, target, reboundStamp(), nil)
		}},
		"applied again, and not bound yet": {volume: mine(1, cinder.StatusInUse), after: time.Hour, kind: KindRestored, before: func(t *testing.T, l *Lifecycle, target Target) {
			target.Undecided = true
			if err := l.Complete(t.Context(), target, false); !cinder.IsKind(err, KindRestored) {
				t.Errorf("error %v", err)
			}
		}},
		"applied a third time": {volume: mine(1, cinder.StatusInUse), after: time.Hour, kind: KindRestored, before: func(t *testing.T, l *Lifecycle, target Target) {
			target.PVUID = "second"
			complete(t, l, target)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			requested := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
			test.volume.Metadata[stamps.KeyRequestedAt] = requested.Format(time.RFC3339)
			id := memory.add(test.volume)
			l := memory.term(t)
			target := claimTarget(1, id)
			target.RecordedAt, target.PVUID = requested.Add(test.after), "third"
			if test.before != nil {
				test.before(t, l, target)
			}
			// The next leader decides the same.
			err := memory.term(t).Remove(t.Context(), target)
			equal(t, cinder.KindOf(err), test.kind)
			equal(t, memory.volumes[id] != nil, test.kind != "")
			equal(t, l.IsComplete(target), false)
		})
	}
}

// complete brings the target into use, as the leader does with each PersistentVolume that
// is not released, unless the listing shows that nothing is to be done.
func complete(t *testing.T, l *Lifecycle, target Target) {
	t.Helper()
	if !l.IsComplete(target) {
		success(t, l.Complete(t.Context(), target, false))
	}
}

func recordedCSI(v cinder.Volume) cinder.Volume {
	v.Metadata = maps.Clone(v.Metadata)
	maps.Copy(v.Metadata, stamps.AttachedMark())
	v.Metadata[stamps.KeyMode] = stamps.ModeCSI
	return v
}

// TestAClusterRemovesNothingThatAnotherTookUp: two clusters have the same clusterID, and
// the PersistentVolumes of one were restored in the other. Whoever took a volume up last
// may remove it, and the other may not, although it still has its PersistentVolume.
func TestAClusterRemovesNothingThatAnotherTookUp(t *testing.T) {
	for name, takeUp := range map[string]func(t *testing.T, l *Lifecycle, target Target){
		"bound to a claim there": func(t *testing.T, l *Lifecycle, target Target) {
			to := reboundStamp()
			to.ClusterUID = "new"
			rebind(t, l, target, to, nil)
		},
		"seen in use there, but not granted": complete,
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			requested := time.Date(2026, 11, 26, 8, 0, 0, 0, time.UTC)
			v := mine(1, cinder.StatusInUse)
			v.Metadata[stamps.KeyClusterUID], v.Metadata[stamps.KeyRequestedAt] = "old", requested.Format(time.RFC3339)
			id := memory.add(v)
			here := claimTarget(1, id)
			here.Stamp.ClusterUID, here.RecordedAt, here.PVUID = "old", requested, "first"
			there := here
			there.Stamp.ClusterUID, there.RecordedAt, there.PVUID = "new", requested.Add(time.Hour), "restored"
			takeUp(t, memory.term(t), there)
			if err := memory.term(t).Remove(t.Context(), here); !cinder.IsKind(err, KindNotOurs) || memory.volumes[id] == nil {
				t.Fatalf("the other cluster's volume was removed: %t, error %v", memory.volumes[id] == nil, err)
			}
			success(t, memory.term(t).Remove(t.Context(), there))
			equal(t, memory.volumes[id] == nil, true)
		})
	}
}
