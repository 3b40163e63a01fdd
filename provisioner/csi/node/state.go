package node

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/host"
	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// record is what the node knows about a volume that is staged, or being staged. It is
// written before the first step, and contains no credentials.
type record struct {
	Version int    `json:"version"`
	Volume  string `json:"volume"`
	// SwappedID is the volume's ID at Cinder if Volume does not have it.
	SwappedID string `json:"swappedID,omitempty"`
	// Boot is the boot ID of the node, because nothing that a record says outlives a
	// boot.
	Boot string `json:"boot"`
	// Attachment is the attachment with which the volume was staged. Outdated means
	// that another one has been seen since: what the kernel has of the filesystem may
	// be older than what is on the disk, and must not be written.
	Attachment string `json:"attachment,omitempty"`
	Outdated   bool   `json:"outdated,omitempty"`
	Protocol   string `json:"protocol"`
	// Initiator is the name that the sessions use.
	Initiator string      `json:"initiator,omitempty"`
	Paths     []wire.Path `json:"paths,omitempty"`
	// Identities are the IDs that the disks must show, as far as Cinder knows them.
	Identities []string `json:"identities,omitempty"`
	// Bytes is the minimum size of the disks.
	Bytes       int64  `json:"bytes,omitempty"`
	StagingPath string `json:"stagingPath"`
	// Filesystem is empty for raw volumes.
	Filesystem string   `json:"filesystem,omitempty"`
	Copied     []string `json:"copied,omitempty"`
	// NeverFormat means that no filesystem may be made on the volume.
	NeverFormat bool `json:"neverFormat,omitempty"`
	ReadOnly    bool `json:"readOnly,omitempty"`
	// NoWriters means that no node may write to the volume, and ManyWriters that all may.
	NoWriters   bool `json:"noWriters,omitempty"`
	ManyWriters bool `json:"manyWriters,omitempty"`
	// Taken means that another node, from which the volume was taken, may write to it.
	Taken bool `json:"taken,omitempty"`
	// Disks are the disks that were found and that belong to this volume alone.
	Disks []host.Disk `json:"disks,omitempty"`
	// Device is the multipath map of the disks, or the only disk. Map is the ID of the
	// map, whose name the kernel may give to another device.
	Device string `json:"device,omitempty"`
	Map    string `json:"map,omitempty"`
	// Encryption is nil if the volume is not encrypted. Header is the UUID of its LUKS
	// header, and Opened what was opened from the device.
	Encryption *wire.Encryption `json:"encryption,omitempty"`
	Header     string           `json:"header,omitempty"`
	Opened     string           `json:"opened,omitempty"`
	// Passphrases are the names of those that open the header, and of those that do not, as
	// it was last seen; see wire.PassphraseName. It is empty unless the volume gets a new
	// passphrase.
	Passphrases []string `json:"passphrases,omitempty"`
	// Limits are nil if there are none, or if an earlier release staged the volume.
	Limits *wire.Limits `json:"limits,omitempty"`
	Staged bool         `json:"staged,omitempty"`
	// Targets are the paths at which the volume was published.
	Targets []string `json:"targets,omitempty"`

	// unreadable says why only a part of the record is known, perhaps only the volume.
	unreadable error
}

// A record of an encrypted volume has a version of its own, because plugins that do not
// know of encryption would take what is open for another volume's. Those that do not know of
// encrypted volumes that were swapped would look for what is open under another name.
const (
	recordVersion           = 1
	encryptedVersion        = 2
	swappedEncryptedVersion = 3
)

func (r *record) version() int {
	switch {
	case r.Encryption != nil && r.SwappedID != "":
		return swappedEncryptedVersion
	case r.Encryption != nil:
		return encryptedVersion
	}
	return recordVersion
}

func (r *record) volumeID() string {
	return cmp.Or(r.SwappedID, r.handleID())
}

// handleID is the ID in the handle, by which a kubelet knows the volume for good.
func (r *record) handleID() string {
	handle, err := wire.ParseHandle(r.Volume)
	if err != nil {
		return ""
	}
	return handle.ID
}

// Files are those that a Service keeps on the node. Paths are absolute paths there.
type Files interface {
	ReadFile(path string) ([]byte, error)
	// ReadDir lists the names in a directory.
	ReadDir(path string) ([]string, error)
	// Modified returns when a file was last written.
	Modified(path string) (time.Time, error)
	// Replace writes a whole file. If the node stops at any time, the file has either its
	// old or its new content.
	Replace(path string, content []byte) error
	// Remove removes a file. It succeeds if there is none.
	Remove(path string) error
	// Lock takes a lock that no other process of the node can hold at the same time, and
	// that ends with this process. Without wait, it returns host.ErrLocked if the lock is
	// taken.
	Lock(ctx context.Context, path string, wait bool) (release func(), err error)
}

// state holds the records, which are files on the node.
type state struct {
	files Files
	dir   string
	boot  string
	// mapID returns the ID of a map.
	mapID func(device string) string
}

func (s *state) file(kind, volume string) string {
	return path.Join(s.dir, kind, url.PathEscape(volume)+".json")
}

const (
	kindVolumes    = "volumes"
	kindFormatting = "formatting"
	// kindConnections is for connections that volumes share and that this plugin made.
	kindConnections = "connections"
)

// load reads a volume's record of this boot; nil if there is none.
func (s *state) load(volume string) (*record, error) {
	r := s.read(s.file(kindVolumes, volume))
	if r == nil || r.Boot != s.boot && r.unreadable == nil {
		return nil, nil
	}
	if r.unreadable != nil {
		return nil, r.unreadable
	}
	// Earlier releases did not write the ID of the map.
	if r.Map == "" && !slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.Name == r.Device }) {
		r.Map = s.mapID(r.Device)
	}
	return r, nil
}

// read reads a record of any boot; nil if there is none.
func (s *state) read(file string) *record {
	var r record
	content, err := s.files.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		// The name of the file is all that is known for certain.
		volume, _ := url.PathUnescape(strings.TrimSuffix(path.Base(file), ".json"))
		return &record{Volume: volume, unreadable: fmt.Errorf("the state file %s cannot be read: %w", file, err)}
	}
	if r.Boot == s.boot && r.Version != r.version() {
		r.unreadable = fmt.Errorf("the state file %s has version %d, but this plugin knows only %d; upgrade the plugin again, or restart the node", file, r.Version, r.version())
	}
	return &r
}

func (s *state) save(r *record) error {
	r.Version, r.Boot = r.version(), s.boot
	return s.write(s.file(kindVolumes, r.Volume), r)
}

func (s *state) write(file string, value any) error {
	content, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return s.files.Replace(file, content)
}

func (s *state) remove(volume string) error { return s.files.Remove(s.file(kindVolumes, volume)) }

// all reads the records of this boot. Of those that are unreadable, it returns what is
// known.
func (s *state) all() ([]*record, error) {
	directory := path.Join(s.dir, kindVolumes)
	names, err := s.files.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var records []*record
	for _, name := range names {
		if !strings.HasSuffix(name, ".json") {
			continue
		}
		if r := s.read(path.Join(directory, name)); r != nil && (r.Boot == s.boot || r.unreadable != nil) {
			records = append(records, r)
		}
	}
	return records, nil
}

// other returns a volume, except but, whose record satisfies is; empty if there is
// none.
func (s *state) other(but string, is func(*record) bool) (string, error) {
	records, err := s.all()
	if err != nil {
		return "", err
	}
	for _, r := range records {
		if r.Volume != but && is(r) {
			return r.Volume, nil
		}
	}
	return "", nil
}

// claimant returns the other volume that has the disk at an address.
func (s *state) claimant(a host.Address, but string) (string, error) {
	return s.other(but, func(r *record) bool {
		return slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.IsAt(a) })
	})
}

// namesake returns another volume whose disks have an identity.
func (s *state) namesake(identity, but string) (string, error) {
	return s.other(but, func(r *record) bool {
		return slices.ContainsFunc(r.Disks, func(d host.Disk) bool { return d.Identity == identity })
	})
}

// formatting says which disk is being formatted. It is kept when formatting is
// interrupted, so that the remains are not mistaken for data.
type formatting struct {
	Boot     string `json:"boot"`
	Identity string `json:"identity"`
	Bytes    int64  `json:"bytes"`
	Layer    layer  `json:"layer,omitempty"`
}

// layer is what is being made: a filesystem, or a LUKS header.
type layer string

const (
	layerFilesystem layer = ""
	layerEncryption layer = "encryption"
)

func (s *state) mark(r *record, of layer) formatting {
	return formatting{Boot: s.boot, Identity: r.Disks[0].Identity, Bytes: r.Disks[0].Bytes, Layer: of}
}

func (s *state) beginFormat(r *record, of layer) error {
	return s.write(s.file(kindFormatting, r.Volume), s.mark(r, of))
}

// formatBegun reports whether formatting of the volume's very disk was begun in this
// boot.
func (s *state) formatBegun(r *record, of layer) (bool, error) {
	content, err := s.files.ReadFile(s.file(kindFormatting, r.Volume))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var begun formatting
	return json.Unmarshal(content, &begun) == nil && begun == s.mark(r, of), nil
}

func (s *state) endFormat(r *record) error { return s.files.Remove(s.file(kindFormatting, r.Volume)) }

// tidy removes the files of other boots, and damaged ones that are older than this boot.
// It keeps the record of a volume that forget cannot forget.
func (s *state) tidy(ctx context.Context, booted time.Time, forget func(*record) error) error {
	var errs []error
	for kind, lock := range map[string]string{kindVolumes: "volume", kindFormatting: "volume", kindConnections: "target"} {
		names, err := s.files.ReadDir(path.Join(s.dir, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, name := range names {
			of, _ := url.PathUnescape(strings.TrimSuffix(name, ".json"))
			release, err := s.lock(ctx, lock, of, false)
			if errors.Is(err, host.ErrLocked) {
				continue // a call writes it
			}
			if err == nil {
				err = s.tidyFile(path.Join(s.dir, kind, name), booted, forget)
				release()
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *state) tidyFile(file string, booted time.Time, forget func(*record) error) error {
	content, err := s.files.ReadFile(file)
	if err != nil {
		return err
	}
	var of struct{ Boot string }
	if json.Unmarshal(content, &of) != nil {
		if written, err := s.files.Modified(file); err != nil || !written.Before(booted) {
			return err
		}
	} else if of.Boot == s.boot {
		return nil
	} else if r := s.read(file); path.Base(path.Dir(file)) == kindVolumes && r != nil {
		if err := forget(r); err != nil {
			return err
		}
	}
	return s.files.Remove(file)
}

// lock takes the lock of something that only one process may work on. A lock needs no
// room on the node's disk, and it does not outlive the boot.
func (s *state) lock(ctx context.Context, kind, name string, wait bool) (func(), error) {
	sum := sha256.Sum256([]byte(name))
	return s.files.Lock(ctx, path.Join("/run", s.dir, "locks", kind+"-"+hex.EncodeToString(sum[:8])), wait)
}

// lockTargets takes the locks of the targets of all paths.
func (s *state) lockTargets(ctx context.Context, paths []wire.Path) (release func(), err error) {
	var names []string
	for _, path := range paths {
		names = append(names, path.Target)
	}
	return s.lockAll(ctx, "target", names)
}

// lockAll takes several locks, always in the same order.
func (s *state) lockAll(ctx context.Context, kind string, names []string) (release func(), err error) {
	names = slices.Clone(names)
	slices.Sort(names)
	var held []func()
	release = func() {
		for _, unlock := range held {
			unlock()
		}
	}
	for _, name := range slices.Compact(names) {
		unlock, err := s.lock(ctx, kind, name, true)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, unlock)
	}
	return release, nil
}
