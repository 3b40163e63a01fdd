package policy

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

const (
	// MaxFileSize is the largest size of a file, in bytes.
	MaxFileSize = document.MaxSize
	// MaxSize is the largest size of all files of a policy. Every replica reads them once a
	// second.
	MaxSize = 4 * MaxFileSize
	// MaxFiles is their largest number.
	MaxFiles = 256
	// MaxEncodedSize is the largest size of an encoded policy: JSON takes at most two bytes
	// for one that a policy may have, and a file has a name.
	MaxEncodedSize = 2*MaxSize + MaxFiles*1024
)

// File is a file of a policy.
type File struct {
	// Name is its name in the directory; empty if the policy is only this file.
	Name string
	Text []byte
	// Source is how messages call it; empty if they call it by its name in the directory.
	Source string
}

// Files are what a policy is read from: one file without a name, or those of a directory in
// the order of their names.
type Files []File

// ReadFiles reads a file, or the files of a directory. An ErrorList is about a directory that
// cannot be a policy.
func ReadFiles(path string) (Files, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return readDirectory(path)
	}
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Files{{Text: text}}, nil
}

// maxSnapshots is how often a directory is read that changes meanwhile.
const maxSnapshots = 5

// readDirectory reads all files of a directory as they were at one time, if it is a volume:
// the kubelet writes a new directory with all files, then replaces the link ..data to it, and
// removes the old one. Elsewhere, nothing tells that files belong together.
func readDirectory(path string) (Files, error) {
	for range maxSnapshots {
		before := linked(path)
		files, err := readNow(path, cmp.Or(before, path))
		if linked(path) == before {
			return files, err
		}
	}
	return nil, fmt.Errorf("read policy: the directory %s changed each of the %d times that it was read", path, maxSnapshots)
}

// linked returns where a volume's files are; empty if the directory is not a volume. They
// may be gone by now, and then the link is another one.
func linked(path string) string {
	target, err := os.Readlink(filepath.Join(path, "..data"))
	switch {
	case err != nil:
		return ""
	case filepath.IsAbs(target):
		return target
	}
	return filepath.Join(path, target)
}

// readNow reads the files of a directory, which messages call by its path.
func readNow(path, directory string) (Files, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	var files Files
	var mistakes ErrorList
	size := 0
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(directory, name))
		switch {
		case err != nil:
			return nil, fmt.Errorf("read policy: %w", err)
		case len(files)+len(mistakes) == MaxFiles:
			return nil, ErrorList{{Source: path, Message: fmt.Sprintf("the directory has more than %d files; join some of them", MaxFiles)}}
		case !info.Mode().IsRegular() || !IsFileName(name):
			mistakes = append(mistakes, Error{Source: filepath.Join(path, name), Message: "is not read as a part of the policy: the directory may have only files whose names end in .yaml or .yml; rename it, or move it out of the directory"})
			continue
		}
		text, err := readFile(filepath.Join(directory, name))
		if err != nil {
			return nil, err
		}
		if size += len(text); size > MaxSize {
			return nil, ErrorList{{Source: path, Message: fmt.Sprintf("the files are larger than %d MiB together; make the policy smaller", MaxSize>>20)}}
		}
		files = append(files, File{Name: name, Text: text})
	}
	if len(files) == 0 {
		mistakes = append(mistakes, Error{Source: path, Message: "the directory has no policy; put files into it whose names end in .yaml or .yml"})
	}
	if len(mistakes) > 0 {
		return nil, mistakes
	}
	return files, nil
}

// IsFileName reports whether a file of that name is read in a directory.
func IsFileName(name string) bool {
	return !strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml"))
}

// Open opens a file of a policy.
func Open(path string) (*os.File, error) {
	f, err := os.Open(path)
	switch {
	case err != nil && strings.Contains(path, "://"):
		return nil, fmt.Errorf("read policy: %w; download the policy, and give the file", err)
	case err != nil:
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return f, nil
}

func readFile(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // Nothing was written.
	text, err := document.ReadLimited(f)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return text, nil
}

// Revision returns the revision of a policy of these files, even if they cannot be parsed.
// The name of a single file does not count, so that a directory of one is that file.
func (f Files) Revision() string {
	if len(f) == 1 {
		return RevisionOf(f[0].Text)
	}
	sum := sha256.New()
	for _, file := range f {
		fmt.Fprintf(sum, "%q %d\n", file.Name, len(file.Text))
		sum.Write(file.Text)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}

// encodedFile is how a file is encoded.
type encodedFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Encode returns all files as one text: a single file as it is, several as a list in JSON,
// which no policy is.
func (f Files) Encode() []byte {
	if len(f) == 1 {
		return f[0].Text
	}
	encoded := make([]encodedFile, len(f))
	for i, file := range f {
		encoded[i] = encodedFile{file.Name, string(file.Text)}
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	// Writing strings to a buffer never fails.
	_ = encoder.Encode(encoded)
	return text.Bytes()
}

// DecodeFiles returns what Encode was called for. Anything else is a file, which its reader
// refuses.
func DecodeFiles(text []byte) Files {
	var encoded []encodedFile
	if !bytes.HasPrefix(text, []byte("[")) || json.Unmarshal(text, &encoded) != nil || len(encoded) < 2 {
		return Files{{Text: text}}
	}
	files := make(Files, len(encoded))
	for i, file := range encoded {
		if !IsFileName(file.Name) || i > 0 && file.Name <= encoded[i-1].Name {
			return Files{{Text: text}}
		}
		files[i] = File{Name: file.Name, Text: []byte(file.Text)}
	}
	return files
}

// ParseFiles checks the policy that a source, a file or a directory, has; see Parse.
func ParseFiles(files Files, source string, protocols mapping.Protocols) (*Policy, error) {
	d := newDocument(source)
	p := &Policy{Source: source, files: files}
	readable := true
	for _, file := range files {
		if file.Name != "" {
			p.directory, p.APIVersion, p.Kind = source, "", ""
			d.Join(cmp.Or(file.Source, filepath.Join(source, file.Name)))
		}
		if !d.Read(file.Text, p) {
			readable = false
			continue
		}
		validateKind(d, p.APIVersion, p.Kind, Kind)
	}
	if !readable {
		return nil, d.Errors()
	}
	if files[0].Name != "" {
		d.Join("")
	}
	p.positions = d.Positions()
	p.index = newIndex(p)
	p.inherit(d, protocols)
	(&validator{p, d, protocols}).validate()
	if mistakes := d.Errors(); len(mistakes) > 0 {
		return nil, mistakes
	}
	p.index.addNamespaces(p.Tenants)
	p.prepareScopes()
	p.Warnings = d.Warnings()
	p.revision = p.files.Revision()
	return p, nil
}
