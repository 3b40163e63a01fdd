package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Load reads a policy file and parses it; see Parse. A file that cannot be read
// gives the error of the file system, one with mistakes an ErrorList.
func Load(file string, protocols mapping.Protocols) (*Policy, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	defer f.Close() //nolint:errcheck // Nothing was written.
	return Read(f, file, protocols)
}

// Read parses a policy from an open file or stream; see Parse.
func Read(r io.Reader, source string, protocols mapping.Protocols) (*Policy, error) {
	data, err := document.ReadLimited(r)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return Parse(data, source, protocols)
}

// Parse checks a policy and fills in its defaults. The source names the file
// in errors, and relative file names start from its directory. The protocols are
// those that mappings may be about. The error is an ErrorList of every
// mistake.
func Parse(data []byte, source string, protocols mapping.Protocols) (*Policy, error) {
	d := newDocument(source)
	p := &Policy{Source: source}
	if !d.Read(data, p) {
		return nil, d.Errors()
	}
	p.inherit(d, protocols)
	p.validate(d, protocols)
	if mistakes := d.Errors(); len(mistakes) > 0 {
		return nil, mistakes
	}
	p.Warnings = d.Warnings()
	p.revision, p.text = RevisionOf(data), data
	p.positions = d.Positions()
	return p, nil
}

// ReadManifest reads a policy, or the ConfigMap manifest that holds it. Places in a
// manifest are those of the manifest, and the revision is that of the policy, as
// the running program will see it.
func ReadManifest(r io.Reader, source string, protocols mapping.Protocols) (*Policy, error) {
	data, err := io.ReadAll(io.LimitReader(r, 4*MaxFileSize+1))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	embedded, err := document.Embedding(data, Kind)
	switch {
	case err != nil:
		return nil, ErrorList{{Source: source, Message: err.Error()}}
	case embedded == nil:
		return Parse(data, source, protocols)
	case len(embedded.Content) > MaxFileSize || embedded.Text == nil:
		return Parse(embedded.Content, fmt.Sprintf("%s (data[%q])", source, embedded.Key), protocols)
	}
	p, err := Parse(embedded.Text, source, protocols)
	if err == nil {
		p.revision, p.text = RevisionOf(embedded.Content), embedded.Content
	}
	return p, err
}

// RevisionOf returns the revision that a policy with this content has, whether
// it can be parsed or not.
func RevisionOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// ResolveFile returns the path of a file that the policy names. Relative names
// start from the directory of the policy file.
func (p *Policy) ResolveFile(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(p.Source), name)
}

// Error is one mistake in a policy file, or one remark about it.
type Error = document.Error

// ErrorList is all mistakes in a policy file. Load and Parse return it as their
// error, which errors.As finds.
type ErrorList = document.ErrorList

// MaxFileSize is the largest size of a file, in bytes.
const MaxFileSize = document.MaxSize

// FieldPath returns the path of a key in the value at path, as errors write it.
func FieldPath(path, key string) string { return document.Child(path, key) }

// newDocument begins a policy file.
func newDocument(source string) *document.Document {
	return newDocumentOf(source, "policy", "the file is larger than 1 MiB, which is more than a ConfigMap can hold")
}

func newDocumentOf(source, noun, tooLarge string) *document.Document {
	return document.New(document.Options{
		Source: source, Noun: noun, TooLarge: tooLarge, APIVersion: APIVersion, Misplaced: misplaced,
		IsAmount: sizePattern.MatchString,
		Scalars: map[reflect.Type]document.Scalar{
			reflect.TypeFor[Size](): {
				Noun: "size", Example: "100Gi", Examples: "100Gi or 1Ti",
				Parse: func(text string) (any, bool) { return parseSize(text) },
			},
		},
	})
}
