package document

import (
	"fmt"
	"strings"
	"unicode"
)

// lookalikes are letters of other scripts that look like Latin ones, and typographic
// signs in place of keyboard characters.
var lookalikes = map[rune]rune{
	'а': 'a', 'с': 'c', 'ԁ': 'd', 'е': 'e', 'һ': 'h', 'і': 'i', 'ј': 'j', 'ӏ': 'l', 'о': 'o', 'р': 'p', 'ԛ': 'q', 'ѕ': 's', 'ԝ': 'w', 'х': 'x', 'у': 'y',
	'А': 'A', 'В': 'B', 'Е': 'E', 'К': 'K', 'М': 'M', 'Н': 'H', 'О': 'O', 'Р': 'P', 'С': 'C', 'Т': 'T', 'Х': 'X', 'У': 'Y', 'І': 'I', 'Ѕ': 'S', 'Ј': 'J',
	'α': 'a', 'ο': 'o', 'ν': 'v', 'ρ': 'p', 'ι': 'i', 'υ': 'u', 'κ': 'k', 'Α': 'A', 'Β': 'B', 'Ε': 'E', 'Ζ': 'Z', 'Η': 'H', 'Ι': 'I', 'Κ': 'K', 'Μ': 'M', 'Ν': 'N',
	'Ο': 'O', 'Ρ': 'P', 'Τ': 'T', 'Υ': 'Y', 'Χ': 'X', 'ı': 'i', 'ɡ': 'g', 'ⅼ': 'l', 'ⅰ': 'i',
	'‐': '-', '‑': '-', '‒': '-', '–': '-', '—': '-', '−': '-', '“': '"', '”': '"', '‘': '\'', '’': '\'',
}

// Strange names the first character of a word that is invisible or looks like another
// one; it is empty if there is none.
func Strange(word string) string {
	for _, r := range word {
		if latin, ok := lookalikes[r]; ok {
			return fmt.Sprintf("the character %q (%U) only looks like %q", r, r, latin)
		}
		if fullwidth := r - 0xfee0; r >= 0xff01 && r <= 0xff5e {
			return fmt.Sprintf("the character %q (%U) only looks like %q", r, r, fullwidth)
		}
		if r > unicode.MaxASCII && (unicode.IsSpace(r) || unicode.In(r, unicode.Cf)) {
			return fmt.Sprintf("there is an invisible character (%U) in it", r)
		}
	}
	return ""
}

// Foreign is Strange for ASCII words: it also names the first non-ASCII character.
func Foreign(word string) string {
	if strange := Strange(word); strange != "" {
		return strange
	}
	for _, r := range word {
		if r > unicode.MaxASCII {
			return fmt.Sprintf("the character %q (%U) is not allowed", r, r)
		}
	}
	return ""
}

// plain replaces lookalikes and drops invisible characters.
func plain(word string) string {
	return strings.Map(func(r rune) rune {
		switch latin, ok := lookalikes[r]; {
		case ok:
			return latin
		case r >= 0xff01 && r <= 0xff5e:
			return r - 0xfee0
		case r > unicode.MaxASCII && (unicode.IsSpace(r) || unicode.In(r, unicode.Cf)):
			return -1
		}
		return r
	}, word)
}

// Unquoted returns a value without literal quotes around it, if it has any.
func Unquoted(value string) (string, bool) {
	if len(value) < 2 || value[0] != value[len(value)-1] || value[0] != '"' && value[0] != '\'' {
		return value, false
	}
	return value[1 : len(value)-1], true
}
