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
		if name, _ := iniValue(key); !ok && slices.Contains(iniFlags, name) {
			key, raw, ok = name, "true", true // the name alone sets a flag
		}
		if !ok || key == "" {
			return nil, fmt.Errorf("%d: not of the form key=value", number+1)
		}
		begin := number
		value, end := iniValue(strings.TrimSpace(raw))
		for end == iniContinues && number+1 < len(lines) {
			number++
			raw = strings.TrimSuffix(strings.TrimRight(raw, "\r"), "\\") + lines[number]
			value, end = iniValue(strings.TrimSpace(raw))
		}
		switch end {
		case iniContinues, iniQuoted:
			return nil, fmt.Errorf("%d: the value's quotes are not closed", begin+1)
		case iniBackslash:
			return nil, fmt.Errorf("%d: the value ends with a backslash, so other programs join the next line to it; put it in quotes, and write the backslash twice", begin+1)
		}
		file[section][key] = value
	}
	return file, nil
}

// iniFlags are the keys that may have no value.
var iniFlags = []string{"tls-insecure", "use-clouds"}

// iniEnd is how the text of a value ends.
type iniEnd int

const (
	iniComplete  iniEnd = iota
	iniQuoted           // within quotes
	iniContinues        // within quotes, with a backslash: the next line belongs to it
	iniBackslash        // ends with a backslash
)

// iniValue removes quotes, escapes and a trailing comment from a value.
func iniValue(raw string) (value string, end iniEnd) {
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
				return "", iniContinues
			}
			return "", iniBackslash
		case c == '\\':
			if escaped, known := iniEscape(raw[i+1], quoted); known {
				i++
				b.WriteByte(escaped)
				kept = b.Len()
				continue
			}
		case (c == '#' || c == ';') && !quoted && (i == 0 || raw[i-1] == ' ' || raw[i-1] == '\t'):
			return b.String()[:kept], iniComplete
		}
		b.WriteByte(c)
		if quoted || c != ' ' && c != '\t' {
			kept = b.Len()
		}
	}
	if quoted {
		return "", iniQuoted
	}
	return b.String()[:kept], iniComplete
}

// iniEscape returns the character that a backslash and c stand for. Any other pair is
// literal text: Windows domains contain backslashes.
func iniEscape(c byte, quoted bool) (escaped byte, known bool) {
	switch {
	case c == '"' || c == '\\':
		return c, true
	case quoted && c == 'n':
		return '\n', true
	case quoted && c == 't':
		return '\t', true
	}
	return 0, false
}
