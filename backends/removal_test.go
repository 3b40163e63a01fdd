package backends

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

func TestRemoveFromEveryState(t *testing.T) {
	stranger := mine(1, cinder.StatusAvailable)
	stranger.Metadata[stamps.KeyCluster] = "cluster-2"
	unstamped := cinder.Volume{Name: "important", Status: cinder.StatusAvailable}
	several := mine(1, cinder.StatusInUse)
	several.Attachments = append(several.Attachments, cinder.Attachment{ID: "attachment-1", Host: testConnector.Host})
	const (
		terminate = "volume.os-terminate_connection volume-1"
		unreserve = "volume.os-unreserve volume-1"
		del       = "volume.delete volume-1"
	)
	tests := map[string]struct {
		volume  cinder.Volume
		member  bool
		ends    cinder.Status // status after the deletion
		want    []string
		kept    bool
		wantErr string
		kind    cinder.Kind
	}{
		"creating":                   {volume: mine(1, cinder.StatusCreating), want: []string{del}},
		"available":                  {volume: mine(1, cinder.StatusAvailable), want: []string{del}},
		"attaching":                  {volume: mine(1, cinder.StatusAttaching), want: []string{terminate, unreserve, del}},
		"reserved":                   {volume: mine(1, cinder.StatusReserved), want: []string{terminate, unreserve, del}, kept: true, kind: cinder.KindConflict, wantErr: "backend gold: volume volume-1 keeps changing state; something else is modifying it"},
		"in use":                     {volume: mine(1, cinder.StatusInUse), want: []string{terminate, "volume.os-detach volume-1 attachment-0", del}},
		"in use, host hidden":        {volume: mine(1, cinder.StatusInUse), member: true, want: []string{terminate, "volume.os-detach volume-1 attachment-0", del}},
		"in use several times":       {volume: several, want: []string{"volume.os-detach volume-1 attachment-0", terminate, "volume.os-detach volume-1 attachment-1", del}},
		"in use without attachments": {volume: attachedTo(mine(1, cinder.StatusInUse)), want: []string{terminate, "volume.os-detach volume-1", del}},
		"detaching":                  {volume: attachedTo(mine(1, cinder.StatusDetaching)), want: []string{terminate, "volume.os-detach volume-1", del}},
		"in use by an instance": {volume: attachedTo(mine(1, cinder.StatusInUse), cinder.Attachment{ID: "a", ServerID: "instance-7"}), kept: true, kind: KindInUse,
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
		"in use by other hosts": {volume: attachedTo(mine(1, cinder.StatusInUse), cinder.Attachment{ID: "a", Host: "node7"}, cinder.Attachment{ID: "b", Host: "k8s"}, cinder.Attachment{ID: "c", Host: "node3"}, cinder.Attachment{ID: "d", Host: "node7"}), kept: true, kind: KindInUse,
			wantErr: "backend gold: volume volume-1 is attached elsewhere (node3, node7); detach it there first"},
		"reserved by an instance": {volume: attachedTo(mine(1, cinder.StatusAttaching), cinder.Attachment{ID: "a", ServerID: "instance-7"}), kept: true, kind: KindInUse,
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
		"error":           {volume: mine(1, cinder.StatusError), want: []string{del}},
		"error_extending": {volume: mine(1, cinder.StatusErrorExtending), want: []string{del}},
		"deleting":        {volume: mine(1, cinder.StatusDeleting)},
		"error_deleting":  {volume: mine(1, cinder.StatusErrorDeleting), want: []string{"volume.force-delete volume-1"}},
		"error_deleting, member": {volume: mine(1, cinder.StatusErrorDeleting), member: true, want: []string{"volume.force-delete volume-1"}, kept: true, kind: cinder.KindForbidden,
			wantErr: "backend gold: volume volume-1 is in error_deleting; an OpenStack administrator must repair it and run: cinder force-delete volume-1"},
		"another operation works on it": {volume: mine(1, "retyping"), kept: true, kind: cinder.KindConflict, wantErr: "backend gold: volume volume-1 is retyping; waiting for that operation to finish"},
		"the array fails to delete it": {volume: mine(1, cinder.StatusAvailable), ends: cinder.StatusErrorDeleting, want: []string{del}, kept: true, kind: KindVolumeFailed,
			wantErr: "backend gold: the storage backend failed to delete volume volume-1 (error_deleting)"},
		"Cinder takes the deletion back": {volume: mine(1, cinder.StatusAvailable), ends: cinder.StatusAvailable, want: []string{del}, kept: true, kind: KindInUse,
			wantErr: "backend gold: Cinder canceled the deletion of volume volume-1 (status available): something may still depend on it"},
		"another cluster's": {volume: stranger, kept: true, kind: KindNotOurs,
			wantErr: `backend gold: volume volume-1 is stamped cluster "cluster-2", PersistentVolume "pvc-uid-1", claim UID "uid-1", expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`},
		"without a stamp": {volume: unstamped, kept: true, kind: KindNotOurs,
			wantErr: `backend gold: volume volume-1 is stamped with nothing, expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.member = test.member
			id := memory.add(test.volume)
			memory.volumes[id].deleted = test.ends
			if test.volume.Status == cinder.StatusReserved {
				// A reservation of the attachments API, which the actions do
				// not end.
				test.want = nil
				for range maxMoves / 2 {
					test.want = append(test.want, terminate, unreserve, del)
				}
			}
			err := memory.term(t).Remove(t.Context(), claimTarget(1, id))
			equal(t, authtest.ErrorText(err), test.wantErr)
			if err != nil {
				equal(t, cinder.KindOf(err), test.kind)
			}
			equal(t, memory.changes(), test.want)
			_, kept := memory.present()[id]
			equal(t, kept, test.kept)
		})
	}
	t.Run("gone already", func(t *testing.T) {
		memory := newMemoryCinder()
		equal(t, authtest.ErrorText(memory.term(t).Remove(t.Context(), claimTarget(1, "volume-9"))), "")
		equal(t, memory.changes(), []string(nil))
	})
}

func TestRefusedDeleteIsSettledByLooking(t *testing.T) {
	refuse := func(operation string, change func(memory *memoryCinder, id string)) (*memoryCinder, error) {
		memory := newMemoryCinder()
		id := memory.add(mine(1, cinder.StatusAvailable))
		first := true
		memory.onCall(func(called string) {
			if called == operation && first {
				first = false
				memory.mu.Lock()
				defer memory.mu.Unlock()
				change(memory, id)
			}
		})
		err := memory.term(t).Remove(t.Context(), claimTarget(1, id))
		return memory, err
	}
	t.Run("it was being deleted already", func(t *testing.T) {
		memory, err := refuse("volume.delete", func(memory *memoryCinder, id string) {
			memory.volumes[id].Status = cinder.StatusDeleting
			memory.volumes[id].change(2, "")
		})
		equal(t, authtest.ErrorText(err), "")
		equal(t, len(memory.present()), 0)
	})
	t.Run("it went between look and step", func(t *testing.T) {
		_, err := refuse("volume.delete", func(memory *memoryCinder, id string) { delete(memory.volumes, id) })
		equal(t, authtest.ErrorText(err), "")
	})
	t.Run("it came into use", func(t *testing.T) {
		memory, err := refuse("volume.delete", func(memory *memoryCinder, id string) { memory.attach(memory.volumes[id], "node7") })
		equal(t, authtest.ErrorText(err), "backend gold: volume volume-1 is attached elsewhere (node7); detach it there first")
		equal(t, len(memory.present()), 1)
	})
	t.Run("its stamp changed", func(t *testing.T) {
		memory, err := refuse("volume.delete", func(memory *memoryCinder, id string) {
			memory.volumes[id].Metadata = nil
			memory.volumes[id].Status = "retyping"
		})
		equal(t, cinder.KindOf(err), KindNotOurs)
		equal(t, len(memory.present()), 1)
	})
	t.Run("it has snapshots", func(t *testing.T) {
		memory := newMemoryCinder()
		id := memory.add(mine(1, cinder.StatusAvailable))
		s := dependents{memory.client()}
		options := LifecycleOptions{Config: Config{Name: "gold"}, Cluster: "cluster-1", Fence: func() error { return nil }, Term: t.Context(), Logger: discard(), Metrics: testMetrics(), Poll: time.Millisecond}
		err := newLifecycle(options, &memoryClients{memory: s}).Remove(t.Context(), claimTarget(1, id))
		equal(t, authtest.ErrorText(err), "backend gold: Cinder refused to delete volume volume-1 (status available): it may have snapshots or dependent volumes, or be part of a group or a migration; remove those first")
		equal(t, cinder.KindOf(err), KindInUse)
	})
}

// dependents is a Cinder whose volumes all have snapshots.
type dependents struct{ memoryClient }

func (d dependents) With(admission turns.Admission) Cinder { return dependents{d.with(admission)} }

func (d dependents) DeleteVolume(context.Context, string) error {
	return conflict("volume.delete", "Volume status must be available or error and must not have snapshots")
}

func TestAbandon(t *testing.T) {
	tests := map[string]struct {
		volumes []cinder.Volume
		left    int
		wantErr string
	}{
		"nothing":            {},
		"creating":           {volumes: []cinder.Volume{mine(1, cinder.StatusCreating)}},
		"attaching":          {volumes: []cinder.Volume{mine(1, cinder.StatusAttaching)}},
		"failed":             {volumes: []cinder.Volume{mine(1, cinder.StatusError)}},
		"two":                {volumes: []cinder.Volume{mine(1, cinder.StatusAttaching), mine(1, cinder.StatusAvailable)}},
		"another claim's":    {volumes: []cinder.Volume{mine(2, cinder.StatusAvailable)}, left: 1},
		"in use":             {volumes: []cinder.Volume{mine(1, cinder.StatusInUse)}, left: 1, wantErr: "backend gold: volume volume-1 (in-use) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume"},
		"was in use":         {volumes: []cinder.Volume{once(mine(1, cinder.StatusAvailable))}, left: 1, wantErr: "backend gold: volume volume-1 (available) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume"},
		"in use and another": {volumes: []cinder.Volume{mine(1, cinder.StatusInUse), mine(1, cinder.StatusAvailable)}, left: 1, wantErr: "backend gold: volume volume-1 (in-use) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			for _, v := range test.volumes {
				memory.add(v)
			}
			err := memory.term(t).Abandon(t.Context(), claimStamp(1), testConnector, nil)
			equal(t, authtest.ErrorText(err), test.wantErr)
			if err != nil {
				equal(t, cinder.KindOf(err), KindRecorded)
			}
			equal(t, len(memory.present()), test.left)
		})
	}
	t.Run("after a create whose answer was lost", func(t *testing.T) {
		memory := newMemoryCinder()
		memory.fault = sequence(map[string][]mishap{"volume.create": {lost}})
		l := memory.term(t)
		if _, err := l.Connect(t.Context(), claimSpec(1)); err == nil {
			t.Fatal("no error")
		}
		equal(t, authtest.ErrorText(l.Abandon(t.Context(), claimStamp(1), testConnector, nil)), "")
		equal(t, len(memory.present()), 0)
	})
}

func TestRemoveHistoricVolumes(t *testing.T) {
	const name = "cinder-dynamic-pvc-4f1b2c9e-0000-4000-8000-000000000000"
	stamped := mine(1, cinder.StatusAvailable)
	stamped.Name = name
	tests := map[string]struct {
		volume  cinder.Volume
		wantErr string
	}{
		"in use":                 {volume: cinder.Volume{Name: name, Status: cinder.StatusInUse, Attachments: []cinder.Attachment{{ID: "a", Host: stamps.HistoricHost}}}},
		"in use, host hidden":    {volume: cinder.Volume{Name: name, Status: cinder.StatusInUse, Attachments: []cinder.Attachment{{ID: "a"}}}},
		"available":              {volume: cinder.Volume{Name: name, Status: cinder.StatusAvailable}},
		"another name":           {volume: cinder.Volume{Name: "database", Status: cinder.StatusAvailable}, wantErr: `backend gold: volume volume-1 ("database") does not look like a volume of the historic provisioner; it is not touched`},
		"a stamp":                {volume: stamped, wantErr: `backend gold: volume volume-1 ("` + name + `") does not look like a volume of the historic provisioner; it is not touched`},
		"in use by an instance":  {volume: cinder.Volume{Name: name, Status: cinder.StatusInUse, Attachments: []cinder.Attachment{{ID: "a", ServerID: "i"}}}, wantErr: `backend gold: volume volume-1 ("` + name + `") does not look like a volume of the historic provisioner; it is not touched`},
		"in use by another host": {volume: cinder.Volume{Name: name, Status: cinder.StatusInUse, Attachments: []cinder.Attachment{{ID: "a", Host: "node7"}}}, wantErr: `backend gold: volume volume-1 ("` + name + `") does not look like a volume of the historic provisioner; it is not touched`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(test.volume)
			err := memory.term(t).Remove(t.Context(), Target{VolumeID: id, Historic: true, Connector: cinder.Connector{Host: "localhost"}})
			equal(t, authtest.ErrorText(err), test.wantErr)
			if err == nil {
				equal(t, len(memory.present()), 0)
				return
			}
			equal(t, cinder.KindOf(err), KindNotOurs)
			equal(t, memory.changes(), []string(nil))
		})
	}
}

func TestOwnership(t *testing.T) {
	stamp := claimStamp(1)
	renamed := stamp
	renamed.Tenant, renamed.StorageClass, renamed.Claim, renamed.Namespace = "renamed", "renamed", "renamed", "renamed"
	equal(t, stamp.Owns(cinder.Volume{Metadata: renamed.Metadata(nil)}), true)
	for name, change := range map[string]func(*stamps.Volume){
		"cluster": func(s *stamps.Volume) { s.Cluster = "cluster-2" },
		"claim":   func(s *stamps.Volume) { s.ClaimUID = "uid-2" },
		"PV":      func(s *stamps.Volume) { s.PV = "pvc-uid-2" },
	} {
		other := stamp
		change(&other)
		equal(t, stamp.Owns(cinder.Volume{Metadata: other.Metadata(nil)}), false)
		// Empty fields prove nothing, although they are equal.
		change = map[string]func(*stamps.Volume){
			"cluster": func(s *stamps.Volume) { s.Cluster = "" },
			"claim":   func(s *stamps.Volume) { s.ClaimUID = "" },
			"PV":      func(s *stamps.Volume) { s.PV = "" },
		}[name]
		change(&other)
		equal(t, other.Owns(cinder.Volume{Metadata: other.Metadata(nil)}), false)
	}
	equal(t, stamps.Volume{}.Owns(cinder.Volume{}), false)
	own := map[string]string{"a": "b"}
	stamp.Metadata(own)
	equal(t, own, map[string]string{"a": "b"})
}

func TestRemoveStopsWhenItsContextEnds(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(mine(1, cinder.StatusAttaching))
	ctx, cancel := context.WithCancel(t.Context())
	memory.onCall(func(operation string) {
		if operation == "volume.os-unreserve" {
			cancel()
		}
	})
	err := memory.term(t).Remove(ctx, claimTarget(1, id))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	equal(t, memory.changes(), []string{"volume.os-terminate_connection volume-1", "volume.os-unreserve volume-1"})
}

func TestRemovalStepsThatFail(t *testing.T) {
	for status, operations := range map[cinder.Status][]string{
		cinder.StatusAttaching: {"volume.get", "volume.os-terminate_connection", "volume.os-unreserve", "volume.delete"},
		cinder.StatusInUse:     {"volume.get", "volume.os-terminate_connection", "volume.os-detach", "volume.delete"},
	} {
		for _, operation := range operations {
			for what, retries := range map[mishap]bool{refused: true, lost: true, unsent: true, rateLimited: true} {
				t.Run(fmt.Sprintf("%s/%s/%d", status, operation, what), func(t *testing.T) {
					memory := newMemoryCinder()
					id := memory.add(mine(1, status))
					memory.fault = sequence(map[string][]mishap{operation: {what}})
					l := memory.term(t)
					err := l.Remove(t.Context(), claimTarget(1, id))
					if (err != nil) != retries {
						t.Errorf("error %v", err)
					}
					if err != nil && !strings.Contains(err.Error(), operation) && what != lost {
						t.Errorf("error %q does not name %s", err, operation)
					}
					if err := l.Remove(t.Context(), claimTarget(1, id)); err != nil {
						t.Errorf("the next attempt: %v", err)
					}
					equal(t, len(memory.present()), 0)
				})
			}
		}
	}
}

// TestAttachedVolumeInErrorIsDetachedFirst has a volume whose backend failed
// while it was in use. Cinder does not delete it while it is attached
// (attach_status in cinder/volume/api.py), and detaches it in any state.
func TestAttachedVolumeInErrorIsDetachedFirst(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusError, cinder.StatusErrorExtending} {
		t.Run(string(status), func(t *testing.T) {
			memory := newMemoryCinder()
			l := memory.term(t)
			connected, err := l.Connect(t.Context(), claimSpec(1))
			if err != nil {
				t.Fatal(err)
			}
			target := claimTarget(1, connected.Volume.ID)
			if err := l.Complete(t.Context(), target, false); err != nil {
				t.Fatal(err)
			}
			memory.mu.Lock()
			memory.volumes[connected.Volume.ID].Status = status
			memory.mu.Unlock()
			memory.forgetLog()
			if err := l.Remove(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			equal(t, memory.changes(), []string{"volume.os-terminate_connection volume-1", "volume.os-detach volume-1 attachment-2", "volume.delete volume-1"})
			equal(t, len(memory.present()), 0)
		})
	}
}
