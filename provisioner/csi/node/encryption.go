package node

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// encrypted opens the LUKS layer of encrypted volumes, which lies between the device of a
// volume's disks and its filesystem. What it opens has a name that is made of the ID in the
// volume's handle, so that it is found even if no record tells of it.
type encrypted struct {
	host   *host.SCSI
	crypt  *host.Crypt
	state  *state
	logger *slog.Logger
}

// used returns the device that pods use: that of the volume's disks, or what was opened
// from it.
func (r *record) used() string {
	if r.Encryption != nil {
		return r.Opened
	}
	return r.Device
}

func openedName(r *record) string { return host.LUKSPrefix + r.handleID() }

// isKnown reports whether the volume's header was made by this driver, for this volume or
// for one that it is a copy of. Cinder and os-brick give their headers random UUIDs.
func (r *record) isKnown() bool {
	return r.Header == r.volumeID() || slices.Contains(r.Copied, r.Header)
}

// open makes the header of a new volume, and opens the volume. unchanged proves that the
// device still is the volume's.
func (e encrypted) open(ctx context.Context, r *record, w staging, unchanged func(context.Context, *record) error) error {
	content, err := e.host.Look(ctx, r.Device)
	if err != nil {
		return err
	}
	begun, err := e.state.formatBegun(r, layerEncryption)
	if err != nil {
		return err
	}
	wanted := host.Wanted{Volume: r.volumeID(), ReadOnly: r.ReadOnly, NeverFormat: r.NeverFormat, Begun: begun}
	format, err := e.crypt.Judge(ctx, r.Device, content, wanted, r.Encryption.LUKS)
	if err != nil {
		return err
	}
	if format && (r.ManyWriters || w.shared) {
		return host.Refuse(host.WrongFilesystem, "volume %s has no LUKS header yet, and none is made while several nodes may have it at once: each would make its own; copy it from a volume of a claim with ReadWriteOnce alone", r.Volume)
	}
	if err := unchanged(ctx, r); err != nil {
		return err
	}
	if format {
		if err := e.state.beginFormat(r, layerEncryption); err != nil {
			return err
		}
		if err := e.crypt.Format(ctx, r.Device, r.volumeID(), host.Encryption{Version: r.Encryption.LUKS, Cipher: r.Encryption.Cipher, KeyBits: r.Encryption.KeyBits}, w.credentials.Passphrase); err != nil {
			return err
		}
		if content, err = e.host.Look(ctx, r.Device); err != nil {
			return err
		}
		e.logger.Info("volume got a LUKS header", "volume", r.Volume, "device", r.Device, "luks", r.Encryption.LUKS)
	}
	if format || begun {
		if err := e.state.endFormat(r); err != nil {
			return err
		}
	}
	r.Header = content.LUKS.UUID
	// A raw volume has no filesystem inside by which it could be recognized, and with a
	// fixed key, one passphrase opens all volumes.
	if r.Filesystem == "" && e.mustBeKnown(r) {
		return host.Refuse(host.WrongVolume, "the disk of volume %s (%s) has a LUKS header with the UUID %s, which this driver did not make for the volume; nothing was changed", r.Volume, r.Device, r.Header)
	}
	readOnly := w.refusesWrites || r.ReadOnly && r.Filesystem == ""
	if r.Opened, err = e.crypt.Open(ctx, r.Device, openedName(r), w.credentials.Passphrases(), readOnly); err != nil {
		return err
	}
	if err := e.state.save(r); err != nil {
		return err
	}
	// What was opened by its name must be the volume.
	return unchanged(ctx, r)
}

// agree makes the header of a staged volume have the passphrases that the leader says, once
// and for all that is in the volume's Secret, and records which ones open it. Until it
// succeeds, the volume is used as it is, so a failure is no reason not to stage it. unchanged
// proves that the device still is the volume's.
func (e encrypted) agree(ctx context.Context, r *record, w staging, unchanged func(context.Context, *record) error) {
	c := w.credentials
	var shown []string
	if r.Encryption != nil && len(c.Passphrases()) > 1 {
		var err error
		if shown, err = e.rekey(ctx, r, w, unchanged); err != nil {
			e.logger.Warn("the header of a volume does not have the passphrases that it should; this is tried again when it is staged again", "volume", r.Volume, "device", r.Device, "error", err)
		}
	}
	if slices.Equal(shown, r.Passphrases) {
		return
	}
	r.Passphrases = shown
	if err := e.state.save(r); err != nil {
		e.logger.Warn("state file of a volume could not be written", "volume", r.Volume, "error", err)
	}
}

// rekey adds or removes a passphrase, and returns what was proven. Each step is repeated
// without harm. None is taken while another node may have the volume, too, and may change
// its header at the same time.
func (e encrypted) rekey(ctx context.Context, r *record, w staging, unchanged func(context.Context, *record) error) ([]string, error) {
	c := w.credentials
	mayChange := !r.ReadOnly && !w.refusesWrites && !w.shared && !r.ManyWriters && !r.NoWriters && !r.Taken && !w.record.Taken && r.Encryption.LUKS == 2
	stays, other := c.Passphrase, cmp.Or(c.AlsoPassphrase, c.FormerPassphrase)
	if mayChange {
		opens, err := e.crypt.Opens(ctx, r.Device, stays)
		if err == nil {
			err = unchanged(ctx, r)
		}
		// A copy may have either passphrase, or both.
		switch {
		case err != nil:
		case opens && c.AlsoPassphrase != "":
			err = e.crypt.AddPassphrase(ctx, r.Device, stays, other)
		case !opens && c.FormerPassphrase != "":
			err = e.crypt.AddPassphrase(ctx, r.Device, other, stays)
		}
		if err == nil && c.FormerPassphrase != "" {
			if err = unchanged(ctx, r); err == nil {
				err = e.crypt.RemovePassphrase(ctx, r.Device, stays, other)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	var shown []string
	for _, passphrase := range []string{stays, other} {
		opens, err := e.crypt.Opens(ctx, r.Device, passphrase)
		if err != nil {
			return nil, err
		}
		name := wire.PassphraseName(passphrase)
		if !opens {
			name = wire.Absent(name)
		}
		shown = append(shown, name)
	}
	// What was read by its name must have been the volume.
	return shown, unchanged(ctx, r)
}

// isVolumes refuses what is not opened from the device of the volume's record.
func (e encrypted) isVolumes(ctx context.Context, r *record) error {
	if r.Encryption == nil || r.Opened == "" {
		return nil
	}
	return e.crypt.RefuseUnlessOpened(ctx, r.Opened, openedName(r), r.Device, r.Header)
}

// content reads the beginning of what a filesystem is on.
func (e encrypted) content(ctx context.Context, r *record) (host.Content, error) {
	if r.Encryption == nil {
		return e.host.Look(ctx, r.Device)
	}
	return e.crypt.LookInside(ctx, r.Device, r.Opened)
}

// shows reports whether a volume's device holds what it held when it was mounted. It
// reads nothing of an encrypted volume but its header, which a path shows.
func (e encrypted) shows(r *record, outside host.Content) bool {
	if r.Encryption != nil {
		return outside.LUKS.UUID == r.Header
	}
	return outside.UUID == r.volumeID() || slices.Contains(r.Copied, outside.UUID)
}

// neverFormat reports whether no filesystem may be made in a volume, however empty it
// seems. Of the headers that the driver did not make, only those of Ceph's images are
// certain to be new: Cinder makes them with the image.
func (e encrypted) neverFormat(r *record) bool {
	return r.NeverFormat || r.Encryption != nil && e.mustBeKnown(r)
}

// mustBeKnown reports whether a header is of nobody knows what: neither did the driver make
// it, nor did the volume exist before its claim, nor did Cinder make it with an image.
func (e encrypted) mustBeKnown(r *record) bool {
	return !r.NeverFormat && !r.isKnown() && r.Protocol != protocolRBD
}

// refuseUnopened refuses a raw volume with a header of the driver if Cinder says that there
// is nothing to open: to its pod, it would look empty.
func (e encrypted) refuseUnopened(ctx context.Context, r *record) error {
	if r.Encryption != nil || r.Filesystem != "" {
		return nil
	}
	content, err := e.host.Look(ctx, r.Device)
	if id := content.LUKS.UUID; err != nil || id != r.volumeID() && !slices.Contains(r.Copied, id) {
		return err
	}
	return host.Refuse(host.WrongFilesystem, "the disk of volume %s (%s) was encrypted by this driver, but Cinder says that nothing is to be opened; nothing was changed", r.Volume, r.Device)
}

// grow enlarges what is open to its device.
func (e encrypted) grow(ctx context.Context, r *record) error {
	if r.Encryption == nil {
		return nil
	}
	return e.crypt.Grow(ctx, r.Device, r.Opened)
}

// close closes a volume, whether or not its record says that it is open.
func (e encrypted) close(ctx context.Context, r *record) error {
	return e.crypt.Close(ctx, openedName(r))
}

// trace fills in the record of a volume that is mounted from a device, and returns the
// device of its disks.
func (e encrypted) trace(r *record, mounted string) string {
	name, below, header, ok := e.crypt.Opened(mounted)
	if !ok || name != openedName(r) {
		return mounted
	}
	r.Encryption, r.Opened, r.Header = &wire.Encryption{LUKS: header.Version}, mounted, header.UUID
	return below
}
