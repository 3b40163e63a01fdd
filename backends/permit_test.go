package backends

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

var errNotPermitted = errors.New("somebody has changed his mind")

// TestPermitIsAskedBeforeEveryChange, before and after the request stands in line:
// what it refuses with is returned as it
// is, and nothing more is changed.
func TestPermitIsAskedBeforeEveryChange(t *testing.T) {
	for permitted, want := range [][]string{
		nil,
		{"volume.os-terminate_connection volume-1"},
		{"volume.os-terminate_connection volume-1", "volume.os-detach volume-1 attachment-0"},
		{"volume.os-terminate_connection volume-1", "volume.os-detach volume-1 attachment-0", "volume.delete volume-1"},
	} {
		t.Run(fmt.Sprint(permitted), func(t *testing.T) {
			cinder := newMemoryCinder()
			id := cinder.add(mine(1, StatusInUse))
			target := claimTarget(1, id)
			var seen []Status
			target.Permit = func(_ context.Context, v Volume) error {
				if seen = append(seen, v.Status); len(seen) > 2*permitted {
					return errNotPermitted
				}
				return nil
			}
			l := cinder.term(t)
			cinder.forgetLog()
			err := l.Remove(t.Context(), target)
			if refused := permitted < 3; errors.Is(err, errNotPermitted) != refused {
				t.Errorf("the answer is %v", err)
			}
			equal(t, cinder.changes(), want)
			// A refusal is no failure of the backend.
			equal(t, authtest.ErrorText(l.Health()), "")
		})
	}
}

// TestPermitGuardsEveryVolumeWithoutARecord: undoing, second volumes, and
// volumes that failed.
func TestPermitGuardsEveryVolumeWithoutARecord(t *testing.T) {
	refuse := func(context.Context, Volume) error { return errNotPermitted }
	for name, c := range map[string]struct {
		volumes []Volume
		remove  func(l *Lifecycle, id string) error
	}{
		"undone": {[]Volume{mine(1, StatusAttaching)}, func(l *Lifecycle, _ string) error {
			return l.Abandon(t.Context(), claimStamp(1), testConnector, refuse)
		}},
		"found in a listing": {[]Volume{mine(1, StatusAvailable)}, func(l *Lifecycle, id string) error {
			return l.RemoveUnrecorded(t.Context(), id, claimStamp(1), testConnector, refuse)
		}},
		"second": {[]Volume{mine(1, StatusAttaching), mine(1, StatusAvailable)}, func(l *Lifecycle, _ string) error {
			spec := claimSpec(1)
			spec.Permit = refuse
			_, err := l.Connect(t.Context(), spec)
			return err
		}},
		"failed": {[]Volume{mine(1, StatusError)}, func(l *Lifecycle, _ string) error {
			spec := claimSpec(1)
			spec.Permit = refuse
			_, err := l.Connect(t.Context(), spec)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			id := ""
			for _, v := range c.volumes {
				id = cinder.add(v)
			}
			l := cinder.term(t)
			if err := c.remove(l, id); !errors.Is(err, errNotPermitted) {
				t.Errorf("the answer is %v", err)
			}
			equal(t, len(cinder.changes()), 0)
		})
	}
}

// TestMarkedVolumeIsKept: a volume whose PersistentVolume is gone before it was
// brought into use is told from one that was never recorded.
func TestMarkedVolumeIsKept(t *testing.T) {
	cinder := newMemoryCinder()
	id := cinder.add(mine(1, StatusAttaching))
	l := cinder.term(t)
	equal(t, authtest.ErrorText(l.Mark(t.Context(), claimTarget(1, id))), "")
	equal(t, authtest.ErrorText(l.Mark(t.Context(), claimTarget(1, id))), "")
	equal(t, cinder.count("metadata.update"), 1)
	if err := l.Abandon(t.Context(), claimStamp(1), testConnector, nil); !IsKind(err, KindRecorded) {
		t.Errorf("the answer is %v", err)
	}
	if err := l.Mark(t.Context(), claimTarget(2, id)); !IsKind(err, KindNotOurs) {
		t.Errorf("a volume of another claim is marked: %v", err)
	}
}
