package backends

import (
	"cmp"
	"context"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Target is a volume that is to be removed, and the proof that it may be.
type Target struct {
	VolumeID string
	Stamp    Stamp
	// Historic says that the PersistentVolume was written by the historic
	// provisioner, whose volumes carry no stamp.
	Historic bool
	// Connector is the one the volume was connected with.
	Connector cinder.Connector
	// Permit is asked before every change; nil permits.
	Permit Permit
	// Place is where the volume lives as far as is recorded.
	Place cinder.Place
	// Found is called before the first change when the volume is found, with its
	// stamp, at another place than the recorded one. It is to record that, so
	// that the volume's absence tells something to whoever goes on; its error
	// ends the removal. Nil means that nothing is recorded.
	Found func(ctx context.Context, at cinder.Place) error

	// unreferenced says that no PersistentVolume names the volume. One that
	// was attached once is then left alone, since one did.
	unreferenced bool
}

// Permit says whether a volume, as it was seen last, may be taken a step
// towards its removal. It is asked twice for every change: before the request
// stands in line, where it may take its time, and again when its turn has come,
// which may be minutes later. Then it holds back other requests to the backend
// and should not have to ask anybody. What it refuses with is returned as it is,
// and nothing more is changed.
type Permit func(ctx context.Context, v cinder.Volume) error

type permitKey struct{}

// withPermit has every change that is made with the context ask first.
func withPermit(ctx context.Context, permit Permit, v cinder.Volume) context.Context {
	if permit == nil {
		return ctx
	}
	return context.WithValue(ctx, permitKey{}, func() error { return permit(ctx, v) })
}

// permitted asks for the permit that the context carries, if any.
func permitted(ctx context.Context) error {
	if ask, ok := ctx.Value(permitKey{}).(func() error); ok {
		return ask()
	}
	return nil
}

// key is what operations on one volume exclude each other by.
func (t Target) key() string { return cmp.Or(t.Stamp.ClaimUID, t.VolumeID) }

// owns reports whether the volume is provably the target's.
func (t Target) owns(v cinder.Volume) bool {
	if t.Historic {
		return looksHistoric(v)
	}
	return t.Stamp.Owns(v)
}

// attachedBy reports whether an attachment was made by us: by this connector,
// or by the historic provisioner. Cinder shows the host to administrators only
// (cinder/api/v2/views/volumes.py); an attachment without host and instance,
// on a volume with our stamp, counts as ours.
func (t Target) attachedBy(a cinder.Attachment) bool {
	if a.ServerID != "" {
		return false
	}
	return a.Host == "" || a.Host == t.Connector.Host || t.Historic && a.Host == historicHost
}
