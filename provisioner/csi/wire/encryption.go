package wire

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Encryption says how a node opens an encrypted volume. The key is in the credentials.
type Encryption struct {
	// LUKS is the version of the header that a volume without one gets: 1 or 2.
	LUKS int `json:"luks"`
	// Cipher and KeyBits are those of a new header, in the form of cryptsetup; empty means
	// its default.
	Cipher  string `json:"cipher,omitempty"`
	KeyBits int    `json:"keyBits,omitempty"`
}

// cipher matches what a program takes for a cipher and not for an option.
var cipher = regexp.MustCompile(`^[a-z0-9][a-z0-9_:()-]{0,63}$`)

// mostKeyBits bounds the size of a volume's key.
const mostKeyBits = 4096

// Check returns an error if a node cannot use the encryption.
func (e Encryption) Check() error {
	switch {
	case e.LUKS != 1 && e.LUKS != 2:
		return fmt.Errorf("LUKS has no version %d", e.LUKS)
	case e.Cipher != "" && !cipher.MatchString(e.Cipher):
		return fmt.Errorf("%.80q is not the name of a cipher", e.Cipher)
	case e.KeyBits < 0 || e.KeyBits > mostKeyBits:
		return fmt.Errorf("a key cannot have %d bits", e.KeyBits)
	}
	return nil
}

// encode and parse use one text for a publish context, which has little room.
func (e Encryption) encode() string { return fmt.Sprintf("%d %d %s", e.LUKS, e.KeyBits, e.Cipher) }

func parseEncryption(text string) (*Encryption, error) {
	fields := strings.SplitN(text, " ", 3)
	if len(fields) != 3 {
		return nil, fmt.Errorf("%.80q is not an encryption", text)
	}
	luks, err := strconv.Atoi(fields[0])
	if err != nil {
		return nil, err
	}
	bits, err := strconv.Atoi(fields[1])
	if err != nil {
		return nil, err
	}
	e := Encryption{luks, fields[2], bits}
	return &e, e.Check()
}
