package mappers

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// The readers below treat null like an absent field, as Cinder's drivers do,
// and refuse a field of the wrong type instead of converting it.

// value returns a field that is neither absent nor null.
func (c Connection) value(key string) (any, bool) {
	value := c.data[key]
	return value, value != nil
}

// text reads an optional string.
func (c Connection) text(key string) (string, error) {
	value, present := c.value(key)
	if !present {
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", c.wrongType(key, value, "a string")
	}
	return text, nil
}

// flag reads an optional boolean. It accepts Python's spelling of booleans in
// strings, because some drivers copy them from stored text.
func (c Connection) flag(key string, absent bool) (bool, error) {
	value, present := c.value(key)
	if !present {
		return absent, nil
	}
	switch typed := value.(type) {
	case bool:
		return typed, nil
	case string:
		switch strings.ToLower(typed) {
		case "true":
			return true, nil
		case "false":
			return false, nil
		}
	}
	return false, c.wrongType(key, value, "true or false")
}

// list reads an optional list. An empty list counts as none.
func (c Connection) list(key string) ([]any, error) {
	value, present := c.value(key)
	if !present {
		return nil, nil
	}
	list, ok := value.([]any)
	if !ok {
		return nil, c.wrongType(key, value, "a list")
	}
	return list, nil
}

// texts reads an optional list of strings. If numbers is set, it also accepts
// numbers in the form in which they were written.
func (c Connection) texts(key string, numbers bool) ([]string, error) {
	list, err := c.list(key)
	if err != nil {
		return nil, err
	}
	texts := make([]string, len(list))
	for index, element := range list {
		switch typed := element.(type) {
		case string:
			texts[index] = typed
		case json.Number:
			if !numbers {
				return nil, c.wrongType(at(key, index), element, "a string")
			}
			texts[index] = typed.String()
		default:
			return nil, c.wrongType(at(key, index), element, "a string")
		}
	}
	return texts, nil
}

func (c Connection) wrongType(field string, value any, expected string) *Refusal {
	shown := c.quote(value)
	if name, _, _ := strings.Cut(field, "["); template.IsCredential(name) {
		shown = kindOf(value)
	}
	return refuse(InvalidConnection, "%s is %s, expected %s; this backend's driver failed to describe the connection, so check the cinder-volume log",
		field, shown, expected)
}

// numeral returns the digits of a number, or a string as it is.
func numeral(value any) (text string, ok bool) {
	if number, isNumber := value.(json.Number); isNumber {
		return number.String(), true
	}
	text, ok = value.(string)
	return text, ok
}

// at names an element of a list field.
func at(key string, index int) string { return fmt.Sprintf("%s[%d]", key, index) }

// hasControl reports whether text contains control characters, which no
// credential or address can have and command lines cannot carry.
func hasControl(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f })
}
