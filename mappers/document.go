package mappers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// The largest documents of real drivers are a few kilobytes, five levels deep.
const (
	maxDocumentBytes = 1 << 20
	maxDocumentDepth = 32
)

// decodeObject reads one JSON object. It is stricter than encoding/json, which lets the
// last of two equal keys win (a second "encrypted" must not override the first), replaces
// broken UTF-8 (which would change a password) and turns numbers into floats. Numbers
// become json.Number.
//
// Its errors quote nothing from the document, which may contain credentials.
func decodeObject(document []byte) (map[string]any, error) {
	if len(document) > maxDocumentBytes {
		return nil, fmt.Errorf("is %d bytes long, more than the %d expected at most", len(document), maxDocumentBytes)
	}
	if !utf8.Valid(document) {
		return nil, errors.New("is not valid UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	value, err := decodeValue(decoder, 0)
	if err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("has something after its end")
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is %s, expected an object", kindOf(value))
	}
	return object, nil
}

func decodeValue(decoder *json.Decoder, depth int) (any, error) {
	if depth > maxDocumentDepth {
		return nil, fmt.Errorf("is nested more than %d levels deep", maxDocumentDepth)
	}
	token, err := decoder.Token()
	if err != nil {
		return nil, fmt.Errorf("is not JSON (near byte %d)", decoder.InputOffset())
	}
	switch token {
	case json.Delim('{'):
		object := map[string]any{}
		for decoder.More() {
			keyToken, err := decoder.Token()
			if err != nil {
				return nil, fmt.Errorf("is not JSON (near byte %d)", decoder.InputOffset())
			}
			// The decoder returns only strings as keys.
			key, _ := keyToken.(string)
			if _, seen := object[key]; seen {
				return nil, fmt.Errorf("has a key twice (near byte %d)", decoder.InputOffset())
			}
			if object[key], err = decodeValue(decoder, depth+1); err != nil {
				return nil, err
			}
		}
		return object, decodeEnd(decoder)
	case json.Delim('['):
		list := []any{}
		for decoder.More() {
			element, err := decodeValue(decoder, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, element)
		}
		return list, decodeEnd(decoder)
	default:
		return token, nil
	}
}

func decodeEnd(decoder *json.Decoder) error {
	if _, err := decoder.Token(); err != nil {
		return fmt.Errorf("is not JSON (near byte %d)", decoder.InputOffset())
	}
	return nil
}

// kindOf names the JSON type of a decoded value.
func kindOf(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}
