package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxSize is the capacity of a ConfigMap, in bytes; a larger file could never be mounted
// into its cluster.
const MaxSize = 1 << 20

// ReadLimited reads at most one byte more than the limit, which is enough for Read to
// reject the file.
func ReadLimited(r io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, MaxSize+1))
}

// parse returns the root mapping of the only YAML document, or nil after reporting why
// there is none.
func (d *Document) parse(data []byte) *yaml.Node {
	if len(data) > MaxSize {
		d.errorAt(Position{}, "", d.options.TooLarge)
		return nil
	}
	if at, message, bad := unreadable(data); bad {
		d.errorAt(at, "", message)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		d.errorAt(Position{Line: 1, Column: 1}, "", fmt.Sprintf("the file is empty; a %s begins with apiVersion: %s", d.options.Noun, d.options.APIVersion))
		return nil
	case err != nil:
		d.reportSyntax(err, data)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		d.reportSyntax(err, data)
		return nil
	default:
		d.errorAt(positionOf(&second), "", fmt.Sprintf("a second YAML document begins here; a %s file holds exactly one", d.options.Noun))
		return nil
	}
	root := first.Content[0]
	if root.Kind != yaml.MappingNode {
		d.errorAt(positionOf(root), "", fmt.Sprintf(
			"the file must be a mapping that begins with apiVersion: %s, but it is %s", d.options.APIVersion, describe(root)))
		return nil
	}
	return root
}

// unreadable finds characters that the YAML reader rejects without a position.
func unreadable(data []byte) (Position, string, bool) {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return Position{Line: 1, Column: 1}, "the file is encoded in UTF-16; save it as UTF-8", true
	}
	at := Position{Line: 1, Column: 1}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return at, fmt.Sprintf("byte %#02x is not valid UTF-8; save the file as UTF-8", data[i]), true
		case r < ' ' && r != '\n' && r != '\r' && r != '\t', r == 0x7f:
			return at, fmt.Sprintf("control character %U is not allowed; remove it", r), true
		}
		if r == '\n' {
			at = Position{Line: at.Line + 1, Column: 1}
		} else {
			at.Column++
		}
		i += size
	}
	return Position{}, "", false
}
