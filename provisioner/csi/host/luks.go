package host

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Volumes of Cinder's encrypted types, and those of rules with encrypt, are opened as os-brick opens them
// (os_brick/encryptors/luks.py): a LUKS header at the beginning of the disk, and the
// passphrase on the standard input of cryptsetup.

// Crypt is a node's encrypted devices, and what is open of them.
type Crypt struct{ host *Host }

// NewCrypt returns the encrypted devices of a node.
func NewCrypt(h *Host) *Crypt { return &Crypt{h} }

// LUKS is the header of an encrypted device; the zero value means that there is none.
type LUKS struct {
	// Version is that of the format: 1 or 2.
	Version int
	UUID    string
	// Payload is where the encrypted data begin.
	Payload int64
	// Keyless means that no key opens it, as before luksFormat has ended.
	Keyless bool
}

var luksMagic = []byte("LUKS\xba\xbe")

// The parts of the headers (LUKS1 on-disk format 1.2.3; LUKS2 on-disk format 1.1.3).
const (
	luksUUID       = 168
	luksUUIDLength = 40
	luks1Payload   = 104 // in sectors
	luks1Slots     = 208
	luks1Slot      = 48
	luks1Active    = 0x00ac71f3
	luks2Size      = 8
	luks2JSON      = 4096
)

// readLUKS reads the header of a device's beginning; none if it cannot.
func readLUKS(content []byte) LUKS {
	if !bytes.HasPrefix(content, luksMagic) {
		return LUKS{}
	}
	id, _, _ := bytes.Cut(content[luksUUID:luksUUID+luksUUIDLength], []byte{0})
	found := LUKS{Version: int(binary.BigEndian.Uint16(content[len(luksMagic):])), UUID: strings.ToLower(string(id)), Keyless: true}
	switch found.Version {
	case 1:
		found.Payload = int64(binary.BigEndian.Uint32(content[luks1Payload:])) * 512
		for i := range 8 {
			if binary.BigEndian.Uint32(content[luks1Slots+i*luks1Slot:]) == luks1Active {
				found.Keyless = false
			}
		}
	case 2:
		about, err := readLUKS2(content)
		if err != nil {
			return LUKS{}
		}
		// Several segments mean that somebody encrypts the device anew.
		offset, err := strconv.ParseInt(about.Segments["0"].Offset, 10, 64)
		if err != nil || len(about.Segments) != 1 {
			return LUKS{}
		}
		found.Payload, found.Keyless = offset, len(about.Keyslots) == 0
	default:
		return LUKS{}
	}
	if found.UUID == "" || found.Payload < luks2JSON || found.Payload > largestHeader {
		return LUKS{}
	}
	return found
}

// luks2 is what the JSON of a LUKS2 header says.
type luks2 struct {
	Keyslots map[string]struct{} `json:"keyslots"`
	Segments map[string]struct {
		Offset string `json:"offset"`
	} `json:"segments"`
}

func readLUKS2(content []byte) (about luks2, err error) {
	size := binary.BigEndian.Uint64(content[luks2Size:])
	if size <= luks2JSON || size > uint64(len(content)) {
		return about, fmt.Errorf("a LUKS2 header cannot have %d bytes", size)
	}
	text, _, _ := bytes.Cut(content[luks2JSON:size], []byte{0})
	return about, json.Unmarshal(text, &about)
}

// largestHeader is more than any cryptsetup reserves.
const largestHeader = 1 << 30

// Encryption is how a volume is to be encrypted.
type Encryption struct {
	// Version is that of LUKS.
	Version int
	// Cipher and KeyBits are cryptsetup's; empty means its default.
	Cipher  string
	KeyBits int
}

// payloads are where cryptsetup begins the data, by the version of LUKS. LUKS1 begins later
// if the device has larger stripes. LUKS2 fills the room before with noise.
var payloads = map[int]int64{1: 2 << 20, 2: 16 << 20}

// Judge decides what to do with the disk of an encrypted volume, like the Judge of
// filesystems: use its LUKS header, or make one of a version.
func (c *Crypt) Judge(ctx context.Context, device string, found Content, w Wanted, version int) (format bool, err error) {
	switch {
	case found.LUKS.Version != 0 && !found.LUKS.Keyless:
		return false, nil
	case found.Unreadable && !w.Begun:
		return false, unreadable(device, w)
	case found.LUKS.Keyless && found.LUKS.UUID != w.Volume:
		return false, Refuse(WrongKey, "the LUKS header on the disk of volume %s (%s) has no key; restore the volume. Nothing was changed", w.Volume, device)
	case found.Filesystem != "":
		return false, Refuse(WrongFilesystem, "Cinder says that volume %s is encrypted, but its disk %s holds %s without encryption; nothing was changed", w.Volume, device, found.Filesystem)
	case w.ReadOnly:
		return false, Refuse(WrongFilesystem, "volume %s holds no LUKS header, and none can be created on it, because it is read-only", w.Volume)
	case w.NeverFormat:
		return false, Refuse(WrongFilesystem, "volume %s (or its source) was not created by this driver and disk %s has no LUKS header; such a volume is never formatted, so nothing was changed", w.Volume, device)
	case !found.Empty && !w.Begun && !found.LUKS.Keyless:
		return false, notEmpty(device, w, beginning+payloads[2])
	}
	// Where the data will be, nothing may be either: this is what later shows that
	// nothing was ever written inside. What luksFormat leaves when it is interrupted ends
	// before.
	from, length := int64(beginning), int(payloads[2])
	if w.Begun || found.LUKS.Keyless {
		from, length = max(payloads[version], found.LUKS.Payload), beginning
	}
	blank, err := c.blank(ctx, device, from, length)
	if err == nil && !blank {
		err = notEmpty(device, w, beginning+payloads[2])
	}
	return err == nil, err
}

// blank reports whether a part of a device holds only zeros. It reads pieces, since the
// plugin has little memory.
func (c *Crypt) blank(ctx context.Context, device string, offset int64, length int) (bool, error) {
	const piece = 1 << 20
	for end := offset + int64(length); offset < end; offset += piece {
		size := int(min(piece, end-offset))
		content, err := c.host.readByPath(ctx, device, offset, size)
		if err != nil || len(content) != size || !isEmpty(content) {
			return false, err
		}
	}
	return true, nil
}

// Format makes a LUKS header with the volume's ID as its UUID.
func (c *Crypt) Format(ctx context.Context, device, volume string, e Encryption, passphrase string) error {
	arguments := []string{"--batch-mode", "luksFormat", "--type", fmt.Sprintf("luks%d", e.Version), "--key-file=-", "--uuid", volume}
	if e.Cipher != "" {
		arguments = append(arguments, "--cipher", e.Cipher)
	}
	if e.KeyBits != 0 {
		arguments = append(arguments, "--key-size", strconv.Itoa(e.KeyBits))
	}
	if e.Version == 2 {
		// Its default takes up to a gigabyte of memory, and the passphrase is a random key.
		arguments = append(arguments, "--pbkdf", "pbkdf2")
	}
	if _, err := c.host.call(ctx, Command{Tool: cryptsetup, Arguments: append(arguments, "/dev/"+device), Input: passphrase, Limit: formatLimit}); err != nil {
		return err
	}
	made, err := c.host.Look(ctx, device)
	if err == nil && (made.LUKS.Version != e.Version || made.LUKS.UUID != volume || made.LUKS.Keyless) {
		err = fmt.Errorf("cryptsetup luksFormat succeeded, but %s holds %+v", device, made)
	}
	return err
}

// cryptsetup is the program, and wrongPassphrase its exit code for a wrong passphrase.
const (
	cryptsetup      = "cryptsetup"
	wrongPassphrase = 2
)

// Open opens an encrypted device under a name with one of some passphrases, and returns the
// kernel's name of what it shows. The key stays in the kernel's table instead of a keyring,
// so that the device can be enlarged without it.
func (c *Crypt) Open(ctx context.Context, device, name string, passphrases []string, readOnly bool) (string, error) {
	arguments := []string{"open", "--type", "luks", "--key-file=-", "--disable-keyring"}
	if readOnly {
		arguments = append(arguments, "--readonly")
	}
	arguments = append(arguments, "/dev/"+device, name)
	var err error
	for _, passphrase := range passphrases {
		if _, err = c.host.call(ctx, Command{Tool: cryptsetup, Arguments: arguments, Input: passphrase}); !isWrongPassphrase(err) {
			break
		}
	}
	if isWrongPassphrase(err) {
		return "", Refuse(WrongKey, "the volume's key does not open %s; check that the disk is the volume's, and its key at Cinder's key manager (with a fixed key, that of csi.encryption.fixedKeySecret; by a rule with encrypt, the record in the volume's metadata). Nothing was changed", device)
	}
	if err != nil {
		return "", err
	}
	opened, err := c.OpenedAs(name)
	if err == nil && opened == "" {
		err = fmt.Errorf("cryptsetup open succeeded, but the kernel has no %s", name)
	}
	return opened, err
}

func isWrongPassphrase(err error) bool { return hasCode(err, wrongPassphrase) }

// Opens reports whether a passphrase opens the header of a device, open or not.
func (c *Crypt) Opens(ctx context.Context, device, passphrase string) (bool, error) {
	return c.opens(ctx, device, passphrase)
}

func (c *Crypt) opens(ctx context.Context, device, passphrase string, options ...string) (bool, error) {
	arguments := append([]string{"open", "--test-passphrase", "--type", "luks", "--key-file=-"}, options...)
	_, err := c.host.call(ctx, Command{Tool: cryptsetup, Arguments: append(arguments, "/dev/"+device), Input: passphrase})
	if isWrongPassphrase(err) {
		return false, nil
	}
	return err == nil, err
}

// AddPassphrase makes a device's header have another passphrase besides the one that opens
// it, and proves that it does.
func (c *Crypt) AddPassphrase(ctx context.Context, device, opens, added string) error {
	if has, err := c.Opens(ctx, device, added); has || err != nil {
		return err
	}
	// Both are read from the standard input, and only the first has a length.
	arguments := []string{"--batch-mode", "luksAddKey", "--key-file=-", "--keyfile-size", strconv.Itoa(len(opens)), "--pbkdf", "pbkdf2", "/dev/" + device, "-"}
	if _, err := c.host.call(ctx, Command{Tool: cryptsetup, Arguments: arguments, Input: opens, Further: added, Limit: formatLimit}); err != nil {
		return err
	}
	has, err := c.Opens(ctx, device, added)
	if err == nil && !has {
		err = fmt.Errorf("cryptsetup luksAddKey succeeded, but the new passphrase does not open %s", device)
	}
	return err
}

// RemovePassphrase destroys every keyslot of a device's header that a passphrase opens, and
// proves that none is left. cryptsetup itself refuses unless another keyslot has the one
// that stays.
func (c *Crypt) RemovePassphrase(ctx context.Context, device, stays, removed string) error {
	if stays == removed {
		return fmt.Errorf("the passphrase of %s that is to be removed is the one that is to stay", device)
	}
	if has, err := c.Opens(ctx, device, removed); !has || err != nil {
		return err
	}
	slots, err := c.slots(ctx, device)
	if err != nil {
		return err
	}
	for _, slot := range slots {
		has, err := c.opens(ctx, device, removed, "--key-slot", slot)
		if err != nil {
			return err
		}
		if !has {
			continue
		}
		if _, err := c.host.call(ctx, Command{Tool: cryptsetup, Arguments: []string{"luksKillSlot", "--key-file=-", "/dev/" + device, slot}, Input: stays, Limit: formatLimit}); err != nil {
			return err
		}
	}
	has, err := c.Opens(ctx, device, removed)
	if err == nil && has {
		err = fmt.Errorf("the former passphrase still opens %s", device)
	}
	return err
}

// slots lists the keyslots of a device with LUKS2.
func (c *Crypt) slots(ctx context.Context, device string) ([]string, error) {
	content, err := c.host.readByPath(ctx, device, 0, beginning)
	if err != nil {
		return nil, err
	}
	if found := readLUKS(content); found.Version != 2 {
		return nil, fmt.Errorf("%s has no LUKS2 header", device)
	}
	about, err := readLUKS2(content)
	// What it says becomes an argument.
	slots := slices.DeleteFunc(slices.Sorted(maps.Keys(about.Keyslots)), func(slot string) bool { return !luksSlot.MatchString(slot) })
	return slots[:min(len(slots), maxSlots)], err
}

// luksSlot matches the number of a keyslot, of which a LUKS2 header has up to maxSlots.
var luksSlot = regexp.MustCompile(`^[0-9]{1,2}$`)

const maxSlots = 32

// OpenedAs returns the kernel's name of what Open opened under a name; empty if there
// is none.
func (c *Crypt) OpenedAs(name string) (string, error) {
	devices, err := list(c.host.root, "/sys/block")
	if err != nil {
		return "", err
	}
	for _, device := range devices {
		if strings.HasPrefix(device, "dm-") && c.host.mapperName(device) == name {
			if !strings.HasPrefix(c.host.mapperID(device), cryptPrefix) {
				return "", Refuse(InUse, "%s is called %s, but is not encrypted; remove it", device, name)
			}
			return device, nil
		}
	}
	return "", nil
}

// cryptID matches the kernel's ID of what cryptsetup opened.
var cryptID = regexp.MustCompile(`^CRYPT-LUKS([12])-([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})-`)

// Opened returns what the kernel says about what Open opened: its name, the encrypted
// device below it, and the header that this had. It returns false for other devices.
func (c *Crypt) Opened(device string) (name, below string, header LUKS, ok bool) {
	id := cryptID.FindStringSubmatch(c.host.mapperID(device))
	slaves, err := c.host.root.ReadDir("/sys/block/" + device + "/slaves")
	if id == nil || err != nil || len(slaves) != 1 {
		return "", "", LUKS{}, false
	}
	return c.host.mapperName(device), slaves[0], LUKS{Version: int(id[1][0] - '0'), UUID: strings.Join(id[2:], "-")}, true
}

// RefuseUnlessOpened refuses what shows anything but an encrypted device with a header,
// opened under a name. It reads the header of the device itself.
func (c *Crypt) RefuseUnlessOpened(ctx context.Context, opened, name, device, header string) error {
	as, below, of, ok := c.Opened(opened)
	if !ok || as != name || below != device || of.UUID != header {
		return Refuse(WrongDisk, "%s should be %s, opened from %s with the header %s, but is %q from %q with %q", opened, name, device, header, as, below, of.UUID)
	}
	content, err := c.host.Look(ctx, device)
	if err == nil && content.LUKS.UUID != header {
		err = Refuse(WrongVolume, "%s had the LUKS header %s, but now has %q", device, header, content.LUKS.UUID)
	}
	return err
}

// LookInside is Look for what was opened from an encrypted device. Zeros on the device
// show that nothing was ever written: they decrypt to noise. It reads the device by a path
// first, and what was opened only if a path answers; see readByPath.
func (c *Crypt) LookInside(ctx context.Context, device, opened string) (Content, error) {
	outside, err := c.host.Look(ctx, device)
	if err != nil {
		return Content{}, err
	}
	if outside.LUKS.Version == 0 {
		return Content{}, Refuse(WrongVolume, "%s has no LUKS header any more", device)
	}
	blank, err := c.blank(ctx, device, outside.LUKS.Payload, beginning)
	if err != nil || blank {
		return Content{Empty: blank}, err
	}
	return c.host.Look(ctx, opened)
}

// Grow enlarges what was opened from an encrypted device to the device's size.
func (c *Crypt) Grow(ctx context.Context, device, opened string) error {
	content, err := c.host.Look(ctx, device)
	if err != nil {
		return err
	}
	below, err := c.host.Size(device)
	if err != nil {
		return err
	}
	size, err := c.host.Size(opened)
	// Some headers have larger sectors than the device.
	const largestSector = 4096
	if err != nil || size >= (below-content.LUKS.Payload)/largestSector*largestSector {
		return err
	}
	_, err = c.host.run(ctx, cryptsetup, "resize", c.host.mapperName(opened))
	return err
}

// Close closes what was opened under a name, and waits until it is gone. It refuses if
// that is in use.
func (c *Crypt) Close(ctx context.Context, name string) error {
	device, err := c.OpenedAs(name)
	if err != nil || device == "" {
		return err
	}
	if err := c.host.refuseUsed(ctx, device); err != nil {
		return err
	}
	c.host.Unlayer(ctx, device)
	var last error
	tried := 0
	gone, err := until(ctx, patience, func() (bool, error) {
		device, err := c.OpenedAs(name)
		if err != nil || device == "" {
			return err == nil, err
		}
		if tried < flushTries {
			tried++
			_, last = c.host.run(ctx, cryptsetup, "close", name)
		}
		return false, nil
	})
	if err == nil && !gone {
		err = errors.Join(fmt.Errorf("%s (%s) is still open after %s", name, device, patience), last)
	}
	return err
}

// LUKSPrefix begins the names under which the driver opens volumes, and cryptPrefix the
// kernel's IDs of what cryptsetup opened.
const (
	LUKSPrefix  = "standalone-cinder-"
	cryptPrefix = "CRYPT-"
)

// Has returns an error if the node cannot open encrypted volumes.
func (c *Crypt) Has() error { return c.host.Need(cryptsetup, "cryptsetup") }

func isEmpty(content []byte) bool {
	return bytes.Count(content, []byte{0}) == len(content)
}
