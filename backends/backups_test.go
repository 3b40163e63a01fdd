package backends

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// stampedBackups lists the IDs of the backups with the stamp of snapshot n.
func (m *memoryCinder) stampedBackups(n int) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []string
	for id, b := range m.backups {
		if snapshotStamp(n).Owns(b.Snapshot) {
			found = append(found, backupPrefix+id)
		}
	}
	slices.Sort(found)
	return found
}

// TestBackupIsMadeFromASnapshotThatGoes: the requests for a backup, and what stays.
func TestBackupIsMadeFromASnapshotThatGoes(t *testing.T) {
	for name, test := range map[string]struct {
		incremental bool
		earlier     bool          // there is an earlier backup
		fails       string        // the creation that ends in error
		volume      cinder.Volume // is encrypted by this metadata, or by Cinder
		want        []string
		wantErr     string
		left        int // snapshots
	}{
		"full": {want: []string{"snapshot.create volume-1", "backup.create snapshot-2", "snapshot.delete snapshot-2"}},
		"incremental, without an earlier one": {incremental: true,
			want: []string{"snapshot.create volume-1", "backup.create incremental snapshot-2", "backup.create snapshot-2", "snapshot.delete snapshot-2"}},
		"incremental": {incremental: true, earlier: true,
			want: []string{"snapshot.create volume-1", "backup.create incremental snapshot-4", "snapshot.delete snapshot-4"}},
		"it fails": {fails: "backup.create", left: 1, want: []string{"snapshot.create volume-1", "backup.create snapshot-2", "backup.delete backup-3"},
			wantErr: "backend gold: backup backup-3 went to error and was removed; see the log of cinder-backup"},
		"Cinder encrypts the volume": {volume: cinder.Volume{Encrypted: true},
			wantErr: "backend gold: volume volume-1 is encrypted, and backups of encrypted volumes are not supported; take snapshots, or back up its files"},
		"nodes encrypt the volume": {volume: cinder.Volume{Metadata: map[string]string{stamps.KeyEncryption: "x"}},
			wantErr: "backend gold: volume volume-1 is encrypted, and backups of encrypted volumes are not supported; take snapshots, or back up its files"},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			v := mine(1, cinder.StatusInUse)
			v.Encrypted = test.volume.Encrypted
			for key, value := range test.volume.Metadata {
				v.Metadata[key] = value
			}
			volume := memory.add(v)
			l := memory.term(t)
			if test.earlier {
				_, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(2, volume))
				success(t, err)
			}
			memory.created = func(operation string) cinder.Status {
				if operation == test.fails {
					return cinder.StatusError
				}
				return cinder.StatusAvailable
			}
			memory.forgetLog()
			spec := snapshotSpec(1, volume)
			spec.Incremental = test.incremental
			b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), spec)
			equal(t, authtest.ErrorText(err), test.wantErr)
			if err == nil && (!IsBackup(b.ID) || b.Incremental != test.earlier || b.SizeGiB != 1 || stamps.WasRecorded(b)) {
				t.Errorf("the backup is %+v", b)
			}
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
			equal(t, len(memory.stampedSnapshots(1)), test.left)
			if err != nil {
				_, err := l.Snapshots().Backups().AbandonSnapshots(t.Context(), snapshotTarget(1, ""))
				success(t, err)
				equal(t, len(memory.stampedSnapshots(1))+len(memory.stampedBackups(1)), 0)
			}
		})
	}
}

// TestFailedIncrementalBackupIsFollowedByAFullOne: an incremental backup that always fails,
// perhaps because its parent is at another backup service, must not keep a volume from
// backups.
func TestFailedIncrementalBackupIsFollowedByAFullOne(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	l := memory.term(t)
	_, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(2, volume))
	success(t, err)
	memory.created = func(operation string) cinder.Status {
		if strings.HasSuffix(operation, "incremental") {
			return cinder.StatusError
		}
		return cinder.StatusAvailable
	}
	spec := snapshotSpec(1, volume)
	spec.Incremental = true
	_, err = l.Snapshots().Backups().TakeSnapshot(t.Context(), spec)
	equal(t, cinder.KindOf(err), KindVolumeFailed)
	b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), spec)
	if err != nil || b.Incremental {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestSnapshotOfABackupIsNobodysSnapshot: a VolumeSnapshotClass may get another type while a
// VolumeSnapshot waits for its backup, whose record others may replace.
func TestSnapshotOfABackupIsNobodysSnapshot(t *testing.T) {
	for name, lateLeader := range map[string]bool{"in the same term": false, "in the next": true} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			volume := memory.add(mine(1, cinder.StatusAvailable))
			l := memory.term(t)
			memory.created = func(operation string) cinder.Status {
				if strings.HasPrefix(operation, "backup") {
					return cinder.StatusError
				}
				return cinder.StatusAvailable
			}
			_, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			equal(t, cinder.KindOf(err), KindVolumeFailed)
			equal(t, len(memory.stampedSnapshots(1)), 1)
			if lateLeader {
				l = memory.term(t)
			}
			s, err := l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			if cinder.IsKind(err, KindNotOurs) {
				s, err = l.Snapshots().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			}
			if err != nil || stamps.IsForBackup(s) {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// TestBackupWithDependentsWaits: Cinder deletes no backup before those that depend on it.
func TestBackupWithDependentsWaits(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusAvailable))
	l := memory.term(t)
	full, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	spec := snapshotSpec(2, volume)
	spec.Incremental = true
	next, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), spec)
	success(t, err)
	err = l.Snapshots().Backups().RemoveSnapshot(t.Context(), snapshotTarget(1, full.ID))
	equal(t, cinder.KindOf(err), KindHasBackups)
	equal(t, authtest.ErrorText(err), "backend gold: incremental backups depend on backup "+cinderID(full.ID)+"; it is deleted after them")
	success(t, l.Snapshots().Backups().RemoveSnapshot(t.Context(), snapshotTarget(2, next.ID)))
	success(t, l.Snapshots().Backups().RemoveSnapshot(t.Context(), snapshotTarget(1, full.ID)))
	equal(t, len(memory.backups), 0)
}

// TestChainsOfIncrementalBackupsEnd: otherwise none of a schedule's could ever be deleted.
func TestChainsOfIncrementalBackupsEnd(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	const keep = 3
	var all []string
	most := 0
	for n := range 40 {
		spec := snapshotSpec(n, volume)
		spec.Incremental = true
		b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), spec)
		success(t, err)
		all = append(all, b.ID)
		most = max(most, len(memory.backups))
		for old := len(all) - keep - 1; old >= 0; old-- {
			if err := l.Snapshots().Backups().RemoveSnapshot(t.Context(), snapshotTarget(old, all[old])); err != nil && !cinder.IsKind(err, KindHasBackups) {
				t.Fatal(err)
			}
		}
	}
	if most != keep+longestChain {
		t.Errorf("there were up to %d backups", most)
	}
}

// TestStuckSnapshotCostsNoListings: without a backup service, Cinder may leave the snapshot
// backing-up until an administrator resets it. All backups of a night may wait for that.
func TestStuckSnapshotCostsNoListings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		volume := memory.add(mine(1, cinder.StatusAvailable))
		l := memory.term(t)
		memory.created = func(operation string) cinder.Status {
			if strings.HasPrefix(operation, "backup") {
				return cinder.StatusError
			}
			return cinder.StatusAvailable
		}
		take := func() error {
			_, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			time.Sleep(30 * time.Second)
			return err
		}
		equal(t, cinder.KindOf(take()), KindVolumeFailed)
		for _, s := range memory.snapshots {
			s.Status = cinder.StatusBackingUp
		}
		memory.forgetLog()
		for range 40 {
			if err := take(); !strings.HasSuffix(authtest.ErrorText(err), "cinder snapshot-reset-state --state available snapshot-2") {
				t.Fatal(err)
			}
		}
		listings := 0
		for _, line := range memory.log {
			if strings.HasPrefix(line, "backup.list") {
				listings++
			}
		}
		if listings > 5 {
			t.Errorf("%d listings in 20 minutes", listings)
		}
		for _, s := range memory.snapshots {
			s.Status = cinder.StatusAvailable
		}
		memory.created = nil
		success(t, take())
	})
}

// TestNobodyWaitsHoursForABackup: neither for one being made, nor for its removal or its
// content.
func TestNobodyWaitsHoursForABackup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := newMemoryCinder()
		volume := memory.add(mine(1, cinder.StatusAvailable))
		l := memory.term(t)
		ready, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
		success(t, err)
		memory.slowBackups = true
		take := func() error {
			_, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(2, volume))
			return err
		}
		restore := func() error { _, err := l.Connect(t.Context(), restoring(3, ready.ID)); return err }
		for n, do := range []func() error{
			take, restore, take,
			func() error {
				_, err := l.Snapshots().Backups().AbandonSnapshots(t.Context(), snapshotTarget(2, ""))
				return err
			},
			restore,
			func() error { return l.Abandon(t.Context(), claimStamp(3), testConnector, nil) },
		} {
			most := time.Second
			if n < 2 {
				most = 2 * patience
			}
			began := time.Now()
			if err := do(); cinder.KindOf(err) != KindPending || time.Since(began) > most {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		}
		// The snapshot stays as long as the backup needs it.
		equal(t, len(memory.stampedSnapshots(2)), 1)
		time.Sleep(time.Minute) // until nothing is watched anymore
	})
}

// restoring returns claim n, with the content of snapshot 1's backup.
func restoring(n int, id string) Spec {
	spec := claimSpec(n)
	from := snapshotTarget(1, id)
	spec.Source = Source{Snapshot: &from}
	return spec
}

// TestRestoredVolumeIsStampedAgain: Cinder replaces the metadata of a restored volume. It
// belongs to the claim that it was made for, and to no other, whoever looks and whenever.
func TestRestoredVolumeIsStampedAgain(t *testing.T) {
	for name, killed := range map[string]bool{"at once": false, "by the next leader": true} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			volume := memory.add(mine(1, cinder.StatusInUse))
			l := memory.term(t)
			b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
			success(t, err)
			success(t, l.Snapshots().Backups().MarkSnapshot(t.Context(), b))
			if killed {
				memory.fault = func(operation, _ string) mishap {
					if operation == "volume.update" {
						return unsent
					}
					return noFault
				}
				if _, err := l.Connect(t.Context(), restoring(2, b.ID)); err == nil {
					t.Fatal("the stamp was written although Cinder did not answer")
				}
				memory.fault = nil
				l = memory.term(t)
				seen, err := l.Volumes(t.Context())
				success(t, err)
				for _, v := range seen {
					if owner := claimStamp(1); v.ID != volume && (owner.Owns(v) || !claimStamp(2).Owns(v) || stamps.EverAttached(v) || stamps.IsCopy(v)) {
						t.Errorf("until then, volume %s is %+v", v.ID, v)
					}
				}
			}
			connected, err := l.Connect(t.Context(), restoring(2, b.ID))
			success(t, err)
			v := memory.present()[connected.Volume.ID]
			if !claimStamp(2).Owns(v) || stamps.IsUnstamped(v) || stamps.EverAttached(v) || stamps.IsCopy(v) || v.Metadata[cinder.MetadataSourceBackup] != "" || v.Metadata["attached_mode"] != "" {
				t.Errorf("the volume is %+v", v)
			}
			equal(t, len(memory.present()), 2)
			// Its owner may remove it, as any other.
			success(t, l.Abandon(t.Context(), claimStamp(2), testConnector, nil))
			equal(t, len(memory.present()), 1)
		})
	}
}

// TestRestoredVolumeOfAGoneClaimIsRemoved: a claim may be deleted while its volume gets its
// content.
func TestRestoredVolumeOfAGoneClaimIsRemoved(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	memory.fault = func(operation, _ string) mishap {
		if operation == "volume.update" {
			return unsent
		}
		return noFault
	}
	if _, err := l.Connect(t.Context(), restoring(2, b.ID)); err == nil {
		t.Fatal("no error")
	}
	success(t, memory.term(t).Abandon(t.Context(), claimStamp(2), testConnector, nil))
	if left := memory.present(); len(left) != 1 || left[volume].ID != volume {
		t.Errorf("left %v", left)
	}
}

// TestRestoredVolumeBelongsToItsClaimFromTheBeginning: Cinder replaces the metadata before
// the restore has ended. A leader that begins just then makes no second volume, and a
// restore that fails at its end leaves none behind.
func TestRestoredVolumeBelongsToItsClaimFromTheBeginning(t *testing.T) {
	for name, test := range map[string]struct {
		end  cinder.Status
		kind cinder.Kind
		left int
	}{
		"a leader begins meanwhile": {end: cinder.StatusAvailable, left: 2},
		"it fails at its end":       {end: cinder.StatusErrorRestoring, kind: KindVolumeFailed, left: 1},
		"somebody cancels it":       {end: cinder.StatusError, kind: KindVolumeFailed, left: 1},
	} {
		for mode, csi := range map[string]bool{"native": false, "csi": true} {
			t.Run(name+", "+mode, func(t *testing.T) {
				memory := newMemoryCinder()
				memory.workflow = cinder.WorkflowAttachment
				volume := memory.add(mine(1, cinder.StatusInUse))
				l := memory.term(t)
				b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
				success(t, err)
				success(t, l.Snapshots().Backups().MarkSnapshot(t.Context(), b))
				memory.created = func(string) cinder.Status { return test.end }
				spec := restoring(2, b.ID)
				spec.CSI = csi
				memory.fault = func(operation, _ string) mishap {
					if operation == "volume.create of "+cinderID(b.ID) {
						return lost
					}
					return noFault
				}
				if _, err := l.Connect(t.Context(), spec); err == nil {
					t.Fatal("no error although the answer was lost")
				}
				memory.fault = nil
				for id, v := range memory.volumes {
					if id != volume {
						v.left = 1
					}
				}
				_, err = memory.term(t).Connect(t.Context(), spec)
				equal(t, cinder.KindOf(err), test.kind)
				if left := memory.present(); len(left) != test.left {
					t.Errorf("left %+v", left)
				}
			})
		}
	}
}

// TestVolumeRestoredByHandIsNobodys: an administrator restores a backup to a volume that
// Cinder describes as the one that was backed up, which a claim may have got from a backup,
// too.
func TestVolumeRestoredByHandIsNobodys(t *testing.T) {
	described := claimStamp(1).RestoredFrom("backup-1")
	for name, v := range map[string]cinder.Volume{
		"of another backup":         {Description: described, Metadata: map[string]string{cinder.MetadataSourceBackup: "backup-2", stamps.KeyClaimUID: "x"}},
		"of none":                   {Description: described, Metadata: map[string]string{stamps.KeyClaimUID: "x"}},
		"with its own stamp":        {Description: described, Metadata: map[string]string{cinder.MetadataSourceBackup: "backup-1", stamps.KeyClaimUID: claimStamp(1).ClaimUID}},
		"with another description":  {Description: "x", Metadata: map[string]string{cinder.MetadataSourceBackup: "backup-1", stamps.KeyClaimUID: "x"}},
		"with half the description": {Description: described[:len(described)-15], Metadata: map[string]string{cinder.MetadataSourceBackup: "backup-1", stamps.KeyClaimUID: "x"}},
	} {
		if after := stamps.Settled(v); stamps.IsUnstamped(after) || after.Metadata[stamps.KeyClaimUID] != v.Metadata[stamps.KeyClaimUID] {
			t.Errorf("%s: %+v", name, after)
		}
	}
}

// lateStamped restores a backup for claim 2. The request to stamp the volume again loses its
// answer, and has not arrived yet.
func lateStamped(t *testing.T, memory *memoryCinder) (*Lifecycle, Spec) {
	t.Helper()
	memory.workflow = cinder.WorkflowAttachment
	volume := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	memory.delay = func() int { return 1000 }
	memory.fault = failOnce("volume.update", late)
	spec := restoring(2, b.ID)
	spec.CSI = true
	_, err = l.Connect(t.Context(), spec)
	equal(t, cinder.KindOf(err), cinder.KindUnavailable)
	return l, spec
}

// TestLateStampOfARestoredVolumeHidesNoUse: the request to stamp it replaces all metadata. It
// loses its answer, and arrives later, or never.
func TestLateStampOfARestoredVolumeHidesNoUse(t *testing.T) {
	for name, arrives := range map[string]bool{"it arrives": true, "it never does": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := newMemoryCinder()
				l, spec := lateStamped(t, memory)
				if _, err := l.Connect(t.Context(), spec); !cinder.IsKind(err, cinder.KindConflict) {
					t.Errorf("the next attempt did not wait: %v", err)
				}
				if arrives {
					memory.deliverAll()
				} else {
					memory.delayed = map[*delayedEffect]int{}
					time.Sleep(lateStamp)
				}
				connected, err := l.Connect(t.Context(), spec)
				success(t, err)
				memory.volumes[connected.Volume.ID].Metadata[stamps.KeyAttached] = "true"
				memory.deliverAll()
				if v := memory.present()[connected.Volume.ID]; !stamps.EverAttached(v) || !claimStamp(2).Owns(v) {
					t.Errorf("the volume is %+v", v)
				}
				time.Sleep(time.Minute) // until nothing is watched anymore
			})
		})
	}
}

// TestVolumeRestoredAgainByHandIsNobodys: an administrator restores the same backup once
// more, to the volume that a claim got from it.
func TestVolumeRestoredAgainByHandIsNobodys(t *testing.T) {
	memory := newMemoryCinder()
	volume := memory.add(mine(1, cinder.StatusInUse))
	l := memory.term(t)
	b, err := l.Snapshots().Backups().TakeSnapshot(t.Context(), snapshotSpec(1, volume))
	success(t, err)
	connected, err := l.Connect(t.Context(), restoring(2, b.ID))
	success(t, err)
	restored := memory.volumes[connected.Volume.ID]
	restored.Metadata = maps.Clone(memory.backups[cinderID(b.ID)].of)
	restored.Metadata[cinder.MetadataSourceBackup] = cinderID(b.ID)
	restored.Status = cinder.StatusAvailable
	l = memory.term(t)
	seen, found, err := l.Find(t.Context(), restored.ID)
	if err != nil || !found || claimStamp(2).Owns(seen) {
		t.Errorf("%+v, %v", seen, err)
	}
	if err := l.RemoveUnrecorded(t.Context(), restored.ID, claimStamp(2), testConnector, nil); cinder.KindOf(err) != KindNotOurs {
		t.Errorf("%v", err)
	}
}

// TestBackupsSurviveEveryFault: whatever happens to requests, and whichever leader goes on,
// there is one backup in the end, and no snapshot; and none of either after its removal.
func TestBackupsSurviveEveryFault(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.created = nil
		volume := w.add(mine(1, rapid.SampledFrom([]cinder.Status{cinder.StatusAvailable, cinder.StatusInUse}).Draw(rt, "source")))
		spec := snapshotSpec(1, volume)
		spec.Incremental = rapid.Bool().Draw(rt, "incremental")
		var b cinder.Snapshot
		if err := w.until(rt, t, "take", func(l *Lifecycle) (err error) {
			b, err = l.Snapshots().Backups().TakeSnapshot(t.Context(), spec)
			return err
		}); err != nil {
			rt.Fatalf("no backup in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		if found := w.stampedBackups(1); !slices.Equal(found, []string{b.ID}) {
			rt.Fatalf("left %q, want %s, which is %s\nlog: %s", found, b.ID, b.Status, strings.Join(w.log, "\n     "))
		}
		if found := w.stampedSnapshots(1); len(found) > 0 {
			rt.Fatalf("left the snapshots %q\nlog: %s", found, strings.Join(w.log, "\n     "))
		}
		if err := w.until(rt, t, "remove", func(l *Lifecycle) error {
			return l.Snapshots().Backups().RemoveSnapshot(t.Context(), snapshotTarget(1, b.ID))
		}); err != nil {
			rt.Fatalf("not removed in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
		}
		w.check(rt)
		if found := append(w.stampedBackups(1), w.stampedSnapshots(1)...); len(found) > 0 {
			rt.Fatalf("left %s", fmt.Sprint(found))
		}
	})
}
