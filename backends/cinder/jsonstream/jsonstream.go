// Package jsonstream reads JSON that a server may have crafted to do harm.
//
// A server can send far more than was requested, and JSON grows when decoded: three bytes
// of an empty object become a hundred. So answers are read as streams, and only the used
// parts are kept.
package jsonstream

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text is a JSON string, or null. A value of another type is odd.
type Text struct {
	Value string
	Odd   bool
}

// Number is a non-negative JSON integer, or null. Any other value is odd, except such a
// number in another form, such as "10" for 10.
type Number struct {
	Value int64
	Odd   bool
}

// Flag is true, false or null. Any other value is odd.
type Flag struct {
	Value bool
	Odd   bool
}

// UnmarshalJSON never fails: a value of another type is odd.
func (t *Text) UnmarshalJSON(content []byte) error {
	// The caller has checked the syntax, so a text without escapes is literal.
	if inner := len(content) - 1; inner > 0 && content[0] == '"' && !bytes.ContainsRune(content, '\\') && utf8.Valid(content) {
		t.Value, t.Odd = string(content[1:inner]), false
		return nil
	}
	t.Odd = json.Unmarshal(content, &t.Value) != nil
	return nil
}

// UnmarshalJSON never fails: a value of another type is odd.
func (n *Number) UnmarshalJSON(content []byte) error {
	written := strings.Trim(string(content[:min(len(content), 32)]), `"`)
	if written == "null" {
		return nil
	}
	var err error
	n.Value, err = strconv.ParseInt(written, 10, 64)
	n.Odd = err != nil || n.Value < 0
	return nil
}

// UnmarshalJSON never fails: a value of another type is odd.
func (f *Flag) UnmarshalJSON(content []byte) error {
	f.Odd = json.Unmarshal(content, &f.Value) != nil
	return nil
}

// ErrUnexpectedJSON means that an answer, or a part of one, could not be read.
var ErrUnexpectedJSON = errors.New("not the JSON that was expected")

// Skipped is a JSON value that is not kept.
type Skipped struct{}

// UnmarshalJSON keeps nothing.
func (*Skipped) UnmarshalJSON([]byte) error { return nil }

// Fields calls read for every field of the next object. read takes the field's value from
// the decoder.
func Fields(decoder *json.Decoder, read func(key string) error) error {
	if err := expect(decoder, '{'); err != nil {
		return err
	}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if err := read(key); err != nil {
			return err
		}
	}
	return expect(decoder, '}')
}

// Elements calls read for every element of the next list and reports whether there is a
// list: null is none. read takes the element from the decoder.
func Elements(decoder *json.Decoder, read func() error) (isList bool, err error) {
	token, err := decoder.Token()
	if err != nil || token == nil {
		return false, err
	}
	if token != json.Delim('[') {
		return false, ErrUnexpectedJSON
	}
	for decoder.More() {
		if err := read(); err != nil {
			return true, err
		}
	}
	return true, expect(decoder, ']')
}

func expect(decoder *json.Decoder, want json.Delim) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	if token != want {
		return ErrUnexpectedJSON
	}
	return nil
}

// DecoderOf decodes a part of an answer. There is none if the part is absent or
// null.
func DecoderOf(part json.RawMessage) (decoder *json.Decoder, ok bool) {
	if len(part) == 0 || string(part) == "null" {
		return nil, false
	}
	return json.NewDecoder(bytes.NewReader(part)), true
}
