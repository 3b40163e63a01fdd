package backends

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/auth/authtest"
)

// askedFor is the volume as a create request of the spec would have left it.
func askedFor(spec Spec, v Volume) Volume {
	v.SizeGiB, v.Type, v.Zone = spec.SizeGiB, spec.Type, spec.Zone
	v.Metadata[stampRequest] = spec.request()
	return v
}

// TestVolumeOfAnEarlierAttemptFitsTheRequest: between two attempts the policy
// may have come to ask for another volume.
func TestVolumeOfAnEarlierAttemptFitsTheRequest(t *testing.T) {
	wanted := func(change func(*Spec)) Spec {
		spec := claimSpec(1)
		spec.SizeGiB, spec.Type, spec.Zone = 4, "encrypted", "az1"
		if change != nil {
			change(&spec)
		}
		return spec
	}
	made := func(status Status, change func(*Spec)) Volume { return askedFor(wanted(change), mine(1, status)) }
	anotherType := func(s *Spec) { s.Type = "plain" }
	replaced := []string{"volume.delete volume-1", "volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}
	tests := map[string]struct {
		found   Volume
		want    []string
		wantErr string
	}{
		"as asked":     {found: made(StatusAvailable, nil), want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"another type": {found: made(StatusAvailable, anotherType), want: replaced},
		"no type":      {found: made(StatusAvailable, func(s *Spec) { s.Type = "" }), want: replaced},
		"another zone": {found: made(StatusAvailable, func(s *Spec) { s.Zone = "az2" }), want: replaced},
		"smaller":      {found: made(StatusAvailable, func(s *Spec) { s.SizeGiB = 3 }), want: replaced},
		"larger":       {found: made(StatusAvailable, func(s *Spec) { s.SizeGiB = 5 }), want: replaced},
		"in creation":  {found: made(StatusCreating, anotherType), want: replaced},
		"attaching":    {found: made(StatusAttaching, anotherType), want: append([]string{"volume.os-terminate_connection volume-1", "volume.os-unreserve volume-1"}, replaced...)},
		"in deletion":  {found: made(StatusDeleting, anotherType), want: replaced[1:]},
		// What Cinder made of the request does not matter.
		"rounded up, of the default type, in another zone": {found: func() Volume {
			v := made(StatusAvailable, nil)
			v.SizeGiB, v.Type, v.Zone = 8, "__DEFAULT__", "nova"
			return v
		}(), want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"of an earlier version, larger": {found: func() Volume {
			v := mine(1, StatusAvailable)
			v.SizeGiB, v.Type = 5, "plain"
			return v
		}(), want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"attached once": {found: once(made(StatusAvailable, anotherType)),
			wantErr: `volume volume-1 was made for another request (4 GiB, type "plain", zone "az1") than the present one (4 GiB, type "encrypted", zone "az1") and cannot be removed: ` +
				`backend gold: volume volume-1 (available) has been attached, which happens only when a PersistentVolume names it; it is not removed without one`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cinder := newMemoryCinder()
			cinder.add(test.found)
			connected, err := cinder.term(t).Connect(t.Context(), wanted(nil))
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, cinder.changes(), test.want)
			if err == nil && (!connected.Fresh || len(cinder.stamped(claimStamp(1))) != 1) {
				t.Errorf("connected %+v, left %+v", connected, cinder.stamped(claimStamp(1)))
			}
		})
	}
}

// TestVolumeThatIsNotAsAskedIsNotMadeAgain: what this very call made is taken as
// Cinder made it.
func TestVolumeThatIsNotAsAskedIsNotMadeAgain(t *testing.T) {
	cinder := newMemoryCinder()
	l := cinder.term(t)
	spec := claimSpec(1)
	spec.Type, spec.Zone = "0c5a1a1e-6c1b-4c0f-9d1e-2b3b9c3f7a10", "az1"
	connected, err := l.Connect(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	cinder.mu.Lock()
	v := cinder.volumes[connected.Volume.ID]
	v.Type, v.Zone, v.SizeGiB = "ssd", "nova", 2
	cinder.mu.Unlock()
	for range 3 {
		again, err := cinder.term(t).Connect(t.Context(), spec)
		if err != nil || again.Volume.ID != connected.Volume.ID {
			t.Fatalf("connected %s, %v", again.Volume.ID, err)
		}
	}
	equal(t, cinder.count("volume.create"), 1)
	equal(t, cinder.count("volume.delete"), 0)
}

func TestRequestThatIsLongerThanMetadataMayBe(t *testing.T) {
	spec := claimSpec(1)
	spec.Type = strings.Repeat("t", 255)
	other := spec
	other.Zone = "az1"
	if len(spec.request()) > 255 || spec.request() == other.request() {
		t.Errorf("requests %q and %q", spec.request(), other.request())
	}
}
