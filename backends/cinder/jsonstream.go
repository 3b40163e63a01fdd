package cinder

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// A server can send far more than the program asked for, and JSON grows when it
// is decoded: three bytes of an empty object become a hundred. So answers are
// read as streams, and only the parts that are used are kept.

// text, number and flag are JSON values of one type, or null. A value of another
// type is odd, unless it says the same in another form, such as "10" for 10.
type (
	text struct {
		value string
		odd   bool
	}
	number struct {
		value int64
		odd   bool
	}
	flag struct {
		value bool
		odd   bool
	}
)

func (t *text) UnmarshalJSON(content []byte) error {
	t.odd = json.Unmarshal(content, &t.value) != nil
	return nil
}

func (n *number) UnmarshalJSON(content []byte) error {
	written := strings.Trim(string(content[:min(len(content), 32)]), `"`)
	if written == "null" {
		return nil
	}
	var err error
	n.value, err = strconv.ParseInt(written, 10, 64)
	n.odd = err != nil || n.value < 0
	return nil
}

func (f *flag) UnmarshalJSON(content []byte) error {
	f.odd = json.Unmarshal(content, &f.value) != nil
	return nil
}

// errNotAsDescribed is the failure to read an answer, or a part of one.
var errNotAsDescribed = errors.New(notDescribed)

// skipped is a JSON value that is not kept.
type skipped struct{}

func (*skipped) UnmarshalJSON([]byte) error { return nil }

// fields calls read for every field of the object that comes next. read takes
// the field's value from the decoder.
func fields(decoder *json.Decoder, read func(key string) error) error {
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

// elements calls read for every element of the list that comes next, and
// reports whether there is one: null is none. read takes the element from the
// decoder.
func elements(decoder *json.Decoder, read func() error) (isList bool, err error) {
	token, err := decoder.Token()
	if err != nil || token == nil {
		return false, err
	}
	if token != json.Delim('[') {
		return false, errNotAsDescribed
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
		return errNotAsDescribed
	}
	return nil
}

// decoderOf decodes a part of an answer. There is none if the part is absent or
// null.
func decoderOf(part json.RawMessage) (decoder *json.Decoder, ok bool) {
	if len(part) == 0 || string(part) == "null" {
		return nil, false
	}
	return json.NewDecoder(bytes.NewReader(part)), true
}
