package csinode

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// LUKS is the header of an encrypted volume. The volume's content is what is inside.
type LUKS struct {
	Version int
	UUID    string
	// Passphrase opens it, as does what Added has; empty means that the keyslot is free. A
	// header without any is one of which luksFormat did not end.
	Passphrase string
	Added      [3]string
	// Cipher and KeyBits are what luksFormat was told.
	Cipher, KeyBits string
}

// Payload is where the encrypted data begin.
func (l LUKS) Payload() int64 { return map[int]int64{1: 2 << 20, 2: 16 << 20}[l.Version] }

// header returns the first bytes of a device.
func (l LUKS) header(length int) []byte {
	content := make([]byte, length)
	copy(content, "LUKS\xba\xbe")
	binary.BigEndian.PutUint16(content[6:], uint16(l.Version))
	copy(content[168:], l.UUID)
	if l.Version == 1 {
		binary.BigEndian.PutUint32(content[104:], uint32(l.Payload()/512))
		if l.Passphrase != "" {
			binary.BigEndian.PutUint32(content[208:], 0x00ac71f3)
		}
		return content
	}
	binary.BigEndian.PutUint64(content[8:], 16384)
	var slots []string
	for slot, passphrase := range l.slots() {
		if passphrase != "" {
			slots = append(slots, fmt.Sprintf(`"%d": {"type": "luks2"}`, slot))
		}
	}
	copy(content[4096:], fmt.Sprintf(`{"keyslots": {%s}, "segments": {"0": {"type": "crypt", "offset": "%d"}}}`, strings.Join(slots, ", "), l.Payload()))
	return content
}

// slots are what opens the keyslots; empty for those that are free.
func (l LUKS) slots() []string { return append([]string{l.Passphrase}, l.Added[:]...) }

// Opens returns the keyslots that a passphrase opens.
func (l LUKS) Opens(passphrase string) (slots []int) {
	for slot, p := range l.slots() {
		if p != "" && p == passphrase {
			slots = append(slots, slot)
		}
	}
	return slots
}

// isKeyless reports whether nothing opens the header.
func (l LUKS) isKeyless() bool { return strings.Join(l.slots(), "") == "" }

func (l *LUKS) set(slot int, passphrase string) {
	if slot == 0 {
		l.Passphrase = passphrase
	} else {
		l.Added[slot-1] = passphrase
	}
}

// changeSlots does what cryptsetup 2.6 does with keyslots.
func (n *Node) changeSlots(action string, arguments []string, input string, option func(string) string) (string, int) {
	at := slices.IndexFunc(arguments, func(a string) bool { return strings.HasPrefix(a, "/dev/") })
	v := n.volumeOf(strings.TrimPrefix(arguments[at], "/dev/"))
	if v == nil || v.LUKS == nil {
		return "Device is not a valid LUKS device.", 1
	}
	switch action {
	case "test":
		slot := option("--key-slot")
		found := slices.ContainsFunc(v.LUKS.Opens(input), func(s int) bool { return slot == "" || strconv.Itoa(s) == slot })
		switch {
		case found:
			return "", 0
		case v.LUKS.isKeyless():
			return "No usable keyslot is available.", 1
		}
		return "No key available with this passphrase.", 2
	case "luksAddKey":
		length, err := strconv.Atoi(option("--keyfile-size"))
		if err != nil || length >= len(input) || arguments[len(arguments)-1] != "-" {
			return "Cannot read keyfile.", 1
		}
		free := slices.Index(v.LUKS.slots(), "")
		switch {
		case len(v.LUKS.Opens(input[:length])) == 0:
			return "No key available with this passphrase.", 2
		case free < 0:
			return "No free keyslot.", 1
		}
		v.LUKS.set(free, input[length:])
		return "", 0
	}
	slot, err := strconv.Atoi(arguments[at+1])
	if err != nil || slot >= len(v.LUKS.slots()) || v.LUKS.slots()[slot] == "" {
		return "Keyslot is not active.", 1
	}
	opens := v.LUKS.Opens(input)
	if len(opens) == 0 || len(opens) == 1 && opens[0] == slot {
		return "No key available with this passphrase.", 2
	}
	v.LUKS.set(slot, "")
	return "", 0
}

// written reports whether anything was ever written inside.
func (v *Volume) written() bool {
	return v.Filesystem != "" || v.Junk || v.Unfinished || v.Data != ""
}

// Encryption returns the passphrases that open a volume, and whether there is content that
// can be read without one.
func (n *Node) Encryption(v *Volume) (passphrases []string, plain bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if v.LUKS == nil {
		return nil, v.written()
	}
	return slices.DeleteFunc(v.LUKS.slots(), func(p string) bool { return p == "" }), false
}

// outside returns what an encrypted volume's disk shows.
func (v *Volume) outside(offset int64, length int) []byte {
	if offset == 0 {
		return v.LUKS.header(length)
	}
	content := make([]byte, length)
	// LUKS2 fills the room of its keys with noise.
	if offset >= v.LUKS.Payload() && v.written() || offset < v.LUKS.Payload() {
		content[length/2] = 1
	}
	return content
}

// opened is what cryptsetup opened.
type opened struct {
	name, alias, on string
	bytes           int64
	of              LUKS
	readOnly        bool
}

func (o *opened) id() string {
	return fmt.Sprintf("CRYPT-LUKS%d-%s-%s", o.of.Version, strings.ReplaceAll(o.of.UUID, "-", ""), o.alias)
}

// below returns the device below what is opened, or the device itself.
func (n *Node) below(device string) string {
	if o := n.openedOf(device); o != nil {
		return o.on
	}
	return device
}

func (n *Node) openedOf(device string) *opened {
	for _, o := range n.opened {
		if o.name == device {
			return o
		}
	}
	return nil
}

// isOpened reports whether something is opened from a device.
func (n *Node) isOpened(device string) bool {
	return slices.ContainsFunc(n.opened, func(o *opened) bool { return o.on == device })
}

func (n *Node) openedTree(files map[string]string) {
	for _, o := range n.opened {
		n.block(files, o.name, o.bytes)
		files["/sys/block/"+o.name+"/dm/name"] = o.alias + "\n"
		files["/sys/block/"+o.name+"/dm/uuid"] = o.id() + "\n"
		files["/sys/block/"+o.name+"/slaves/"+o.on+"/uevent"] = ""
		if _, there := files["/sys/block/"+o.on+"/dev"]; there {
			files["/sys/block/"+o.on+"/holders/"+o.name+"/uevent"] = ""
		}
	}
}

func (n *Node) cryptsetup(arguments []string, input string) (string, int) {
	if arguments[0] == "--batch-mode" {
		arguments = arguments[1:]
	}
	last := arguments[len(arguments)-1]
	option := func(name string) string {
		if i := slices.Index(arguments, name); i >= 0 {
			return arguments[i+1]
		}
		return ""
	}
	switch arguments[0] {
	case "luksFormat":
		v := n.volumeOf(strings.TrimPrefix(last, "/dev/"))
		if v == nil {
			return "Device does not exist or access denied.", 4
		}
		if v.LUKS != nil && !v.LUKS.isKeyless() || v.written() {
			n.harm = append(n.harm, "a volume with data got a LUKS header")
		}
		v.LUKS, v.Torn = n.newLUKS(option), false
		v.LUKS.Passphrase = input
		return "", 0
	case "luksAddKey", "luksKillSlot":
		return n.changeSlots(arguments[0], arguments, input, option)
	case "open":
		if slices.Contains(arguments, "--test-passphrase") {
			return n.changeSlots("test", arguments, input, option)
		}
		device := strings.TrimPrefix(arguments[len(arguments)-2], "/dev/")
		v := n.volumeOf(device)
		switch {
		case slices.ContainsFunc(n.opened, func(o *opened) bool { return o.alias == last }):
			return "Device " + last + " already exists.", 5
		case n.claimed(device):
			return "Cannot use device " + device + " which is in use.", 5
		case v == nil || v.LUKS == nil:
			return "Device is not a valid LUKS device.", 1
		case v.LUKS.isKeyless():
			return "No usable keyslot is available.", 1
		case len(v.LUKS.Opens(input)) == 0:
			return "No key available with this passphrase " + input, 2
		}
		n.nextID++
		n.opened = append(n.opened, &opened{fmt.Sprintf("dm-%d", n.nextID), last, device, n.size(device) - v.LUKS.Payload(), *v.LUKS, slices.Contains(arguments, "--readonly")})
		return "", 0
	case "resize":
		for _, o := range n.opened {
			if o.alias == last {
				o.bytes = n.size(o.on) - o.of.Payload()
				return "", 0
			}
		}
		return "Device " + last + " is not active.", 4
	case "close":
		return n.closeOpened(last)
	}
	return "Unknown action.", 1
}

func (n *Node) newLUKS(option func(string) string) *LUKS {
	version, _ := strconv.Atoi(strings.TrimPrefix(option("--type"), "luks"))
	return &LUKS{Version: version, UUID: option("--uuid"), Cipher: option("--cipher"), KeyBits: option("--key-size")}
}

func (n *Node) closeOpened(alias string) (string, int) {
	for i, o := range n.opened {
		if o.alias != alias {
			continue
		}
		if n.claimed(o.name) {
			return "Device " + alias + " is still in use.", 5
		}
		n.opened = slices.Delete(n.opened, i, i+1)
		return "", 0
	}
	return "Device " + alias + " is not active.", 4
}

// breakLUKS leaves what an interrupted luksFormat does: LUKS2 has a header without keys, and
// LUKS1 only a part of one.
func (n *Node) breakLUKS(arguments []string) {
	v := n.volumeOf(strings.TrimPrefix(arguments[len(arguments)-1], "/dev/"))
	if v == nil || v.LUKS != nil && !v.LUKS.isKeyless() {
		return
	}
	made := n.newLUKS(func(name string) string { return arguments[slices.Index(arguments, name)+1] })
	if v.Torn = made.Version == 1; !v.Torn {
		v.LUKS = made
	}
}

// OpenedBytes returns the size of what is open, if that is one device.
func (n *Node) OpenedBytes() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.opened) != 1 {
		return 0
	}
	return n.opened[0].bytes
}

// CloseByHand closes all that is open, as an administrator would.
func (n *Node) CloseByHand() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opened = nil
}

// OpenedFrom makes what is open lie on another device.
func (n *Node) OpenedFrom(device string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.opened {
		o.on = device
	}
}
