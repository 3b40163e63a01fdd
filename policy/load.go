package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// MaxFileSize is, in bytes, the most that a ConfigMap can hold; a larger file could never
// be mounted into the cluster it is meant for.
const MaxFileSize = 1 << 20

// Load reads a policy file and parses it. A file that cannot be read gives the
// error of the file system, one with mistakes an ErrorList.
func Load(file string) (*Policy, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	defer f.Close() //nolint:errcheck // Nothing was written.
	return Read(f, file)
}

// Read parses a policy from an open file or stream; see Parse.
func Read(r io.Reader, source string) (*Policy, error) {
	data, err := readLimited(r)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return Parse(data, source)
}

// Parse checks a policy and fills in its defaults. The source names the file
// in errors and is the place that relative file names start from. The error is
// an ErrorList of every mistake.
func Parse(data []byte, source string) (*Policy, error) {
	d := newDocument(source)
	root := d.parse(data)
	if root == nil {
		return nil, d.errors
	}
	p := &Policy{Source: source}
	d.decode(root, reflect.ValueOf(p).Elem(), "")
	if d.exhausted {
		// What was read so far is only a part: further remarks would mislead.
		d.errors.sort()
		return nil, d.errors
	}
	p.inherit(d)
	p.validate(d)
	if len(d.errors) > 0 {
		d.errors.sort()
		return nil, d.errors
	}
	d.warnings.sort()
	p.Warnings = d.warnings
	p.revision = RevisionOf(data)
	p.places = d.places
	return p, nil
}

// RevisionOf returns the revision that a policy with this content has, whether
// it can be parsed or not.
func RevisionOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// ResolveFile returns the path of a file that the policy names: relative names
// start from the directory of the policy file.
func (p *Policy) ResolveFile(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(p.Source), name)
}

// readLimited reads one byte more than a file may have, which is enough for
// parse to refuse it.
func readLimited(r io.Reader) ([]byte, error) {
	return io.ReadAll(io.LimitReader(r, MaxFileSize+1))
}

// parse returns the root mapping of the only YAML document, or nil after
// having reported why there is none.
func (d *document) parse(data []byte) *yaml.Node {
	if len(data) > MaxFileSize {
		d.errorAt(place{}, "", d.tooLarge)
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
		d.errorAt(place{1, 1}, "", fmt.Sprintf("the file is empty; a %s begins with apiVersion: %s", d.noun, APIVersion))
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
		d.errorAt(place{second.Line, second.Column}, "", fmt.Sprintf("a second YAML document begins here; a %s file holds exactly one", d.noun))
		return nil
	}
	root := first.Content[0]
	if root.Kind != yaml.MappingNode {
		d.errorAt(place{root.Line, root.Column}, "", fmt.Sprintf(
			"the file must be a mapping that begins with apiVersion: %s, but it is %s", APIVersion, describe(root)))
		return nil
	}
	return root
}

// unreadable finds what the YAML reader refuses without saying where.
func unreadable(data []byte) (place, string, bool) {
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return place{1, 1}, "the file is encoded in UTF-16; save it as UTF-8", true
	}
	at := place{1, 1}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return at, fmt.Sprintf("byte %#02x is not valid UTF-8; save the file as UTF-8", data[i]), true
		case r < ' ' && r != '\n' && r != '\r' && r != '\t', r == 0x7f:
			return at, fmt.Sprintf("control character %U is not allowed; remove it", r), true
		}
		if r == '\n' {
			at = place{at.line + 1, 1}
		} else {
			at.column++
		}
		i += size
	}
	return place{}, "", false
}
