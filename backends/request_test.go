package backends

import (
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// askedFor returns the volume after a create request for the spec.
func askedFor(spec Spec, v cinder.Volume) cinder.Volume {
	v.SizeGiB, v.Type, v.Zone = spec.SizeGiB, spec.Type, spec.Zone
	v.Metadata[stamps.KeyRequest] = spec.request()
	return v
}

// TestVolumeOfAnEarlierAttemptFitsTheRequest: between two attempts the policy
// may have changed to request a different volume.
func TestVolumeOfAnEarlierAttemptFitsTheRequest(t *testing.T) {
	wanted := func(change func(*Spec)) Spec {
		spec := claimSpec(1)
		spec.SizeGiB, spec.Type, spec.Zone = 4, "encrypted", "az1"
		if change != nil {
			change(&spec)
		}
		return spec
	}
	made := func(status cinder.Status, change func(*Spec)) cinder.Volume {
		return askedFor(wanted(change), mine(1, status))
	}
	anotherType := func(s *Spec) { s.Type = "plain" }
	replaced := []string{"volume.delete volume-1", "volume.create", "volume.os-reserve volume-2", "volume.os-initialize_connection volume-2"}
	tests := map[string]struct {
		found cinder.Volume
		// zones are those in which the volume may be.
		zones   []string
		want    []string
		wantErr string
	}{
		"another zone that will do, too": {found: made(cinder.StatusAvailable, func(s *Spec) { s.Zone = "az2" }), zones: []string{"az1", "az2"}, want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"a zone that will not do":        {found: made(cinder.StatusAvailable, func(s *Spec) { s.Zone = "az3" }), zones: []string{"az1", "az2"}, want: replaced},
		"no zone where some will do":     {found: made(cinder.StatusAvailable, func(s *Spec) { s.Zone = "" }), zones: []string{"az1", "az2"}, want: replaced},
		"another zone and another type":  {found: made(cinder.StatusAvailable, func(s *Spec) { s.Zone, s.Type = "az2", "plain" }), zones: []string{"az1", "az2"}, want: replaced},
		"as asked":                       {found: made(cinder.StatusAvailable, nil), want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"another type":                   {found: made(cinder.StatusAvailable, anotherType), want: replaced},
		"no type":                        {found: made(cinder.StatusAvailable, func(s *Spec) { s.Type = "" }), want: replaced},
		"another zone":                   {found: made(cinder.StatusAvailable, func(s *Spec) { s.Zone = "az2" }), want: replaced},
		"smaller":                        {found: made(cinder.StatusAvailable, func(s *Spec) { s.SizeGiB = 3 }), want: replaced},
		"larger":                         {found: made(cinder.StatusAvailable, func(s *Spec) { s.SizeGiB = 5 }), want: replaced},
		"in creation":                    {found: made(cinder.StatusCreating, anotherType), want: replaced},
		"attaching":                      {found: made(cinder.StatusAttaching, anotherType), want: append([]string{"volume.os-terminate_connection volume-1", "volume.os-unreserve volume-1"}, replaced...)},
		"in deletion":                    {found: made(cinder.StatusDeleting, anotherType), want: replaced[1:]},
		// What Cinder made of the request does not matter.
		"rounded up, of the default type, in another zone": {found: func() cinder.Volume {
			v := made(cinder.StatusAvailable, nil)
			v.SizeGiB, v.Type, v.Zone = 8, "__DEFAULT__", "nova"
			return v
		}(), want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"of an earlier version, larger": {found: func() cinder.Volume {
			v := mine(1, cinder.StatusAvailable)
			v.SizeGiB, v.Type = 5, "plain"
			return v
		}(), want: []string{"volume.os-reserve volume-1", "volume.os-initialize_connection volume-1"}},
		"attached once": {found: once(made(cinder.StatusAvailable, anotherType)),
			wantErr: `volume volume-1 was created for a different request (4 GiB, type "plain", zone "az1") than the current one (4 GiB, type "encrypted", zone "az1") and cannot be removed: ` +
				`backend gold: volume volume-1 (available) has been attached, so a PersistentVolume has named it; it is removed only through that PersistentVolume`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.add(test.found)
			connected, err := memory.term(t).Connect(t.Context(), wanted(func(s *Spec) { s.Zones = test.zones }))
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, memory.changes(), test.want)
			if err == nil && (!connected.Fresh || len(memory.stamped(claimStamp(1))) != 1) {
				t.Errorf("connected %+v, left %+v", connected, memory.stamped(claimStamp(1)))
			}
		})
	}
}

// TestVolumeThatIsNotAsAskedIsNotMadeAgain: a call accepts its own volume,
// however Cinder created it.
func TestVolumeThatIsNotAsAskedIsNotMadeAgain(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	spec := claimSpec(1)
	spec.Type, spec.Zone = "0c5a1a1e-6c1b-4c0f-9d1e-2b3b9c3f7a10", "az1"
	connected, err := l.Connect(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	memory.mu.Lock()
	v := memory.volumes[connected.Volume.ID]
	v.Type, v.Zone, v.SizeGiB = "ssd", "nova", 2
	memory.mu.Unlock()
	for range 3 {
		again, err := memory.term(t).Connect(t.Context(), spec)
		if err != nil || again.Volume.ID != connected.Volume.ID {
			t.Fatalf("connected %s, %v", again.Volume.ID, err)
		}
	}
	equal(t, memory.count("volume.create"), 1)
	equal(t, memory.count("volume.delete"), 0)
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
