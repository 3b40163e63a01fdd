package policy

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"reflect"

	"github.com/standalone-cinder/standalone-cinder/mappers/mapping"
	"github.com/standalone-cinder/standalone-cinder/policy/document"
	"github.com/standalone-cinder/standalone-cinder/policy/hints"
)

// Load reads a policy file, or a directory of them, and parses it; see Parse. An unreadable
// file gives the filesystem's error, one with mistakes an ErrorList.
func Load(path string, protocols mapping.Protocols) (*Policy, error) {
	files, err := ReadFiles(path)
	if err != nil {
		return nil, err
	}
	return ParseFiles(files, path, protocols)
}

// Read parses a policy from an open file or stream; see Parse.
func Read(r io.Reader, source string, protocols mapping.Protocols) (*Policy, error) {
	data, err := document.ReadLimited(r)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return Parse(data, source, protocols)
}

// Parse checks a policy and fills in its defaults. The source names the file in errors,
// and relative file names start from its directory. The protocols are those that mappings
// may name. The error is an ErrorList of every mistake.
func Parse(data []byte, source string, protocols mapping.Protocols) (*Policy, error) {
	return ParseFiles(Files{{Text: data}}, source, protocols)
}

// MountedKey is the key of the ConfigMap that the Deployment's --policy names.
const MountedKey = "policy.yaml"

// ReadManifest reads a policy, its encoded files, or the ConfigMap manifest that holds it.
// Positions are those in the manifest, and the revision is the policy's, as the running
// program will see it.
func ReadManifest(r io.Reader, source string, protocols mapping.Protocols) (*Policy, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxEncodedSize+1))
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	if files := DecodeFiles(data); len(files) > 1 {
		return parseWithin(files, source, protocols)
	}
	embedded, err := document.Embedding(data, Kind)
	switch {
	case err != nil:
		return nil, ErrorList{{Source: source, Message: err.Error()}}
	case len(embedded) == 0:
		return Parse(data, source, protocols)
	case len(embedded) == 1 && embedded[0].Key != MountedKey:
		return nil, ErrorList{{Source: source, Message: fmt.Sprintf("the ConfigMap has the policy under the key %s, but the pods read %s; rename the key", embedded[0].Key, MountedKey)}}
	}
	var placed, files Files
	for _, value := range embedded {
		file := File{Name: value.Key, Text: value.Text, Source: source}
		if len(value.Content) > MaxFileSize || value.Text == nil {
			file.Text, file.Source = value.Content, fmt.Sprintf("%s (data[%q])", source, value.Key)
		}
		if len(embedded) > 1 && !IsFileName(value.Key) {
			return nil, ErrorList{{Source: source, Message: fmt.Sprintf("the ConfigMap has several files of the policy, and the key %s is none: their names end in .yaml or .yml; rename or remove it", value.Key)}}
		}
		placed, files = append(placed, file), append(files, File{Name: value.Key, Text: value.Content})
	}
	if len(placed) == 1 {
		source, placed[0].Name, files[0].Name = placed[0].Source, "", ""
	}
	p, err := parseWithin(placed, source, protocols)
	if err == nil {
		p.files, p.revision = files, files.Revision()
		p.Manifest = Manifest{embedded[0].Namespace, embedded[0].Name}
	}
	return p, err
}

// parseWithin parses the files that one file has; relative file names start from its
// directory.
func parseWithin(files Files, source string, protocols mapping.Protocols) (*Policy, error) {
	p, err := ParseFiles(files, source, protocols)
	if err == nil {
		p.directory = ""
	}
	return p, err
}

// RevisionOf returns the revision of a policy with this content, even if it cannot be
// parsed.
func RevisionOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:6])
}

// ResolveFile returns the path of a file that the policy names. Relative names
// start from the directory of the policy's files.
func (p *Policy) ResolveFile(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(cmp.Or(p.directory, filepath.Dir(p.Source)), name)
}

// Error is one mistake in a policy file, or one remark about it.
type Error = document.Error

// ErrorList is all mistakes in a policy file. Load and Parse return it as their
// error, which errors.As finds.
type ErrorList = document.ErrorList

// FieldPath returns the path of a key in the value at path, as errors write it.
func FieldPath(path, key string) string { return document.Child(path, key) }

// newDocument begins a policy file.
func newDocument(source string) *document.Document {
	return newDocumentOf(source, "policy", "the file is larger than 1 MiB, which is more than a ConfigMap can hold")
}

func newDocumentOf(source, noun, tooLarge string) *document.Document {
	return document.New(document.Options{
		Source: source, Noun: noun, TooLarge: tooLarge, APIVersion: APIVersion, Misplaced: hints.Misplaced,
		IsAmount: sizePattern.MatchString,
		Scalars: map[reflect.Type]document.Scalar{
			reflect.TypeFor[Size](): {
				Noun: "size", Example: "100Gi", Examples: "100Gi or 1Ti",
				Parse: func(text string) (any, bool) { return parseSize(text) },
			},
		},
	})
}

// inherit fills in what backends and tenants leave out, from the file's defaults or else
// the built-in ones.
func (p *Policy) inherit(d *document.Document, protocols mapping.Protocols) {
	fillBuiltIn(d, "audit.interval", &p.Audit.Interval, DefaultAuditInterval)
	fillBuiltIn(d, "audit.grace", &p.Audit.Grace, DefaultAuditGrace)
	for i := range p.Backends {
		b, from, path := &p.Backends[i], p.Defaults, document.Element("backends", i)
		fill(d, path, "region", &b.Region, from.Region, "")
		fill(d, path, "interface", &b.Interface, from.Interface, "")
		fill(d, path, "workflow", &b.Workflow, from.Workflow, WorkflowAuto)
		fill(d, path, "mode", &b.Mode, from.Mode, "")
		fill(d, path, "limits.volumes", &b.Limits.Volumes, from.Limits.Volumes, nil)
		fill(d, path, "limits.gigabytes", &b.Limits.Gigabytes, from.Limits.Gigabytes, nil)
		fill(d, path, "limits.concurrency", &b.Limits.Concurrency, from.Limits.Concurrency, DefaultConcurrency)
		fill(d, path, "limits.requestsPerSecond", &b.Limits.RequestsPerSecond, from.Limits.RequestsPerSecond, 0)
		fill(d, path, "timeouts.create", &b.Timeouts.Create, from.Timeouts.Create, DefaultCreateTimeout)
		fill(d, path, "timeouts.delete", &b.Timeouts.Delete, from.Timeouts.Delete, DefaultDeleteTimeout)
		fill(d, path, "timeouts.request", &b.Timeouts.Request, from.Timeouts.Request, DefaultRequestTimeout)
		fill(d, path, "connector.host", &b.Connector.Host, from.Connector.Host, DefaultConnectorHost)
		fill(d, path, "connector.initiator", &b.Connector.Initiator, from.Connector.Initiator, "")
		fill(d, path, "connector.ip", &b.Connector.IP, from.Connector.IP, "")
		fill(d, path, "connector.wwpns", &b.Connector.WWPNs, from.Connector.WWPNs, nil)
		fill(d, path, "connector.nqn", &b.Connector.NQN, from.Connector.NQN, "")
		fill(d, path, "connector.nodeLabels", &b.Connector.NodeLabels, from.Connector.NodeLabels, nil)
		fill(d, path, "connector.multipath", &b.Connector.Multipath, from.Connector.Multipath, false)
		if noauth := b.Auth.NoAuth; noauth != nil {
			fillBuiltIn(d, path+".auth.noauth.user", &noauth.User, DefaultNoAuthUser)
			fillBuiltIn(d, path+".auth.noauth.project", &noauth.Project, DefaultNoAuthProject)
		}
		for protocol, m := range b.Mapping {
			if protocols[protocol].CephCSI && m.As == mapping.CSI {
				fillBuiltIn(d, path+".mapping."+protocol+".driver", &m.Driver, mapping.DefaultCephDriver)
				b.Mapping[protocol] = m
			}
		}
	}
	for i := range p.Tenants {
		t := &p.Tenants[i]
		t.size = tenantSize(p.Defaults, t, document.Element("tenants", i))
		t.VolumeSize = VolumeSize{Min: t.size.min, Max: t.size.max}
		if len(p.Defaults.Metadata) == 0 {
			continue
		}
		own := t.Metadata
		t.Metadata = maps.Clone(p.Defaults.Metadata)
		maps.Copy(t.Metadata, own)
	}
}

// fill sets a value that the file does not set itself.
func fill[T any](d *document.Document, path, key string, value *T, inherited, builtIn T) {
	switch {
	case d.Has(path + "." + key):
	case d.Has("defaults." + key):
		*value = inherited
	default:
		*value = builtIn
	}
}

func fillBuiltIn[T any](d *document.Document, path string, value *T, builtIn T) {
	if !d.Has(path) {
		*value = builtIn
	}
}
