package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// iniFile contains an INI file's values by section and key, both in lower case.
type iniFile map[string]map[string]string

// parseINI reads the dialect of git's and the cloud provider's configuration files
// (gcfg's): `key = value` under `[Section]`, names in any case, comments after # or ;,
// double quotes around values that contain blanks or comment signs, and \" \\ as escapes
// (\n and \t within quotes). A general INI reader would change passwords that contain
// %(x)s, backticks or a trailing backslash. This one is more lenient in one respect: a
// comment sign right after another character is part of the value, since passwords get
// pasted like that.
//
// Only the named sections are read; others belong to other programs. Errors begin with a
// line number and never quote the file, which contains passwords.
func parseINI(content []byte, sections ...string) (iniFile, error) {
	if !utf8.Valid(content) {
		return nil, errors.New("1: the file is not UTF-8")
	}
	file := iniFile{}
	section := ""
	text := strings.TrimPrefix(string(content), "\ufeff")
	lines := strings.Split(text, "\n")
	for number := 0; number < len(lines); number++ {
		line := strings.TrimSpace(lines[number])
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '[':
			name, rest, closed := strings.Cut(line[1:], "]")
			if rest = strings.TrimSpace(rest); !closed || rest != "" && rest[0] != '#' && rest[0] != ';' {
				return nil, fmt.Errorf("%d: not a section of the form [Name]", number+1)
			}
			section = strings.ToLower(strings.TrimSpace(name))
			if file[section] == nil {
				file[section] = map[string]string{}
			}
			continue
		}
		if !slices.Contains(sections, section) {
			continue
		}
		key, raw, ok := strings.Cut(line, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if name, _, _ := iniValue(key); !ok && slices.Contains(iniFlags, name) {
			key, raw, ok = name, "true", true // the name alone sets a flag
		}
		if !ok || key == "" {
			return nil, fmt.Errorf("%d: not of the form key=value", number+1)
		}
		begin := number
		value, continues, err := iniValue(strings.TrimSpace(raw))
		for continues && number+1 < len(lines) {
			number++
			raw = strings.TrimSuffix(strings.TrimRight(raw, "\r"), "\\") + lines[number]
			value, continues, err = iniValue(strings.TrimSpace(raw))
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", begin+1, err)
		}
		file[section][key] = value
	}
	return file, nil
}

// iniFlags are the keys that may have no value.
var iniFlags = []string{"tls-insecure", "use-clouds"}

var (
	errOpen      = errors.New("the value's quotes are not closed")
	errBackslash = errors.New("the value ends with a backslash, so other programs join the next line to it; put it in quotes, and write the backslash twice")
)

// iniEscapes are the characters that may follow a backslash; letters do so only within
// quotes. Any other pair is literal text: Windows domains contain backslashes.
var iniEscapes = map[byte]byte{'"': '"', '\\': '\\', 'n': '\n', 't': '\t'}

// iniValue removes quotes, escapes and a trailing comment from a value. One that ends with a
// backslash within quotes continues in the next line.
func iniValue(raw string) (value string, continues bool, err error) {
	var b strings.Builder
	quoted := false
	kept := 0 // length without trailing blanks
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '"':
			quoted = !quoted
			kept = b.Len()
			continue
		case c == '\\' && i+1 == len(raw):
			if quoted {
				return "", true, errOpen
			}
			return "", false, errBackslash
		case c == '\\':
			if escaped, known := iniEscapes[raw[i+1]]; known && (quoted || escaped == raw[i+1]) {
				i++
				b.WriteByte(escaped)
				kept = b.Len()
				continue
			}
		case (c == '#' || c == ';') && !quoted && (i == 0 || raw[i-1] == ' ' || raw[i-1] == '\t'):
			return b.String()[:kept], false, nil
		}
		b.WriteByte(c)
		if quoted || c != ' ' && c != '\t' {
			kept = b.Len()
		}
	}
	if quoted {
		return "", false, errOpen
	}
	return b.String()[:kept], false, nil
}
