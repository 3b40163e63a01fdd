package backends

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

var errNotPermitted = errors.New("the permit was withdrawn")

// TestPermitIsAskedBeforeEveryChange, both before the request enters the queue
// and when its turn has come: its error is returned unchanged, and nothing more
// is changed.
func TestPermitIsAskedBeforeEveryChange(t *testing.T) {
	for permitted, want := range [][]string{
		nil,
		{"volume.os-terminate_connection volume-1"},
		{"volume.os-terminate_connection volume-1", "volume.os-detach volume-1 attachment-0"},
		{"volume.os-terminate_connection volume-1", "volume.os-detach volume-1 attachment-0", "volume.delete volume-1"},
	} {
		t.Run(fmt.Sprint(permitted), func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(mine(1, cinder.StatusInUse))
			target := claimTarget(1, id)
			var seen []cinder.Status
			target.Permit = func(_ context.Context, v cinder.Volume) error {
				if seen = append(seen, v.Status); len(seen) > 2*permitted {
					return errNotPermitted
				}
				return nil
			}
			l := memory.term(t)
			memory.forgetLog()
			err := l.Remove(t.Context(), target)
			if refused := permitted < 3; errors.Is(err, errNotPermitted) != refused {
				t.Errorf("error %v", err)
			}
			equal(t, memory.changes(), want)
			// A missing permit is not a failure of the backend.
			equal(t, authtest.ErrorText(l.Health()), "")
		})
	}
}

// TestPermitGuardsEveryVolumeWithoutARecord: it is asked when volumes are
// undone, duplicate or failed.
func TestPermitGuardsEveryVolumeWithoutARecord(t *testing.T) {
	refuse := func(context.Context, cinder.Volume) error { return errNotPermitted }
	for name, c := range map[string]struct {
		volumes []cinder.Volume
		remove  func(l *Lifecycle, id string) error
	}{
		"undone": {[]cinder.Volume{mine(1, cinder.StatusAttaching)}, func(l *Lifecycle, _ string) error {
			return l.Abandon(t.Context(), claimStamp(1), testConnector, refuse)
		}},
		"found in a listing": {[]cinder.Volume{mine(1, cinder.StatusAvailable)}, func(l *Lifecycle, id string) error {
			return l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, refuse)
		}},
		"second": {[]cinder.Volume{mine(1, cinder.StatusAttaching), mine(1, cinder.StatusAvailable)}, func(l *Lifecycle, _ string) error {
			spec := claimSpec(1)
			spec.Permit = refuse
			_, err := l.Connect(t.Context(), spec)
			return err
		}},
		"failed": {[]cinder.Volume{mine(1, cinder.StatusError)}, func(l *Lifecycle, _ string) error {
			spec := claimSpec(1)
			spec.Permit = refuse
			_, err := l.Connect(t.Context(), spec)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := ""
			for _, v := range c.volumes {
				id = memory.add(v)
			}
			l := memory.term(t)
			if err := c.remove(l, id); !errors.Is(err, errNotPermitted) {
				t.Errorf("error %v", err)
			}
			equal(t, len(memory.changes()), 0)
		})
	}
}

// TestMarkedVolumeIsKept: a volume whose PersistentVolume disappears before the
// volume is in use differs from one that was never recorded.
func TestMarkedVolumeIsKept(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(mine(1, cinder.StatusAttaching))
	l := memory.term(t)
	equal(t, authtest.ErrorText(l.Mark(t.Context(), claimTarget(1, id))), "")
	equal(t, authtest.ErrorText(l.Mark(t.Context(), claimTarget(1, id))), "")
	equal(t, memory.count("metadata.update"), 1)
	if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); !cinder.IsKind(err, KindRecorded) {
		t.Errorf("error %v", err)
	}
	if err := l.Mark(t.Context(), claimTarget(2, id)); !cinder.IsKind(err, KindNotOurs) {
		t.Errorf("a volume of another claim was marked: %v", err)
	}
}
