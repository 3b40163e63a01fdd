// Package template implements the small language of a policy's mapping for the fields of
// a volume source: text with values of the connection, the volume and the claim filled
// in.
//
//	{{ .connection.export }}
//	{{ index .connection.target_portals 0 }}
//	{{ .nvmeof.addresses | join "," }}
//	{{ .connection.volume_nguid | default "" }}
//
// It has the syntax of Go's templates, whose parser it uses, and far fewer
// features: no conditions, loops, variables or nested templates, and functions
// that only rearrange text. Evaluation therefore ends, and its result is bounded.
// Values are data: they are never parsed, and templates reach only the fields and
// elements of the JSON.
//
// The policy checks templates with this package, and the mappers fill them in.
package template

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template/parse"
)

const (
	// MaxLength is the longest template, in bytes.
	MaxLength = 4096
	// MaxResult is the longest result, in bytes.
	MaxResult = 4096
	// MaxSecret is the longest result of a Secret's template, in bytes. It may be a whole
	// keyring or certificate.
	MaxSecret = 16384
	// maxText bounds every intermediate text.
	maxText = 65536
)

// Use describes where a template is used, which determines the values it may use.
type Use struct {
	// Protocol is the driver_volume_type whose connections are mapped.
	Protocol string
	// Facts are the names that each protocol's mapper adds below the protocol's own name.
	// Only those of Protocol may be used.
	Facts map[string][]string
	// PerNode explains why a field of the connection is valid for one node only and may
	// not be used.
	PerNode map[string]string
	// Secret is set for the data of a Secret, the only place for credentials.
	Secret bool
	// Identity is set for a text that identifies the volume to its driver. It must differ
	// between volumes, and tenants must not be able to choose it.
	Identity bool
	// Identities are the paths below the protocol and the connection whose values are
	// unique to a volume, such as nvmeof.uuid.
	Identities []string
	// Device is set for a text that identifies the disk to nodes. It may be any field of
	// the driver, since the node finds no disk by a wrong name, but tenants must not be
	// able to choose it.
	Device bool
}

// Mistakes are the mistakes in a template, one sentence each.
type Mistakes []string

// Error joins the sentences.
func (m Mistakes) Error() string { return strings.Join(m, "; ") }

// Template is a template that has been read and checked.
type Template struct {
	use   Use
	parts []expression
	paths [][]string
}

// Parse reads a template and checks it as far as possible without a connection. The error
// is of type Mistakes.
func Parse(text string, use Use) (*Template, error) {
	if len(text) > MaxLength {
		return nil, Mistakes{fmt.Sprintf("the template is longer than %d bytes", MaxLength)}
	}
	tree := parse.New("")
	// The compiler looks up functions and reports unknown ones more clearly.
	tree.Mode = parse.SkipFuncCheck
	trees := map[string]*parse.Tree{}
	if _, err := tree.Parse(text, "{{", "}}", trees); err != nil {
		return nil, Mistakes{"the template cannot be read: " + syntaxMistake(err)}
	}
	if len(trees) > 1 {
		return nil, Mistakes{`{{define}} is not part of this language; write the text in its place`}
	}
	c := &compiler{use: use}
	t := &Template{use: use}
	if tree.Root != nil {
		for _, node := range tree.Root.Nodes {
			t.parts = append(t.parts, c.node(node))
		}
	}
	t.paths = c.paths
	switch {
	case len(c.mistakes) > 0:
	case use.Identity && !slices.ContainsFunc(t.parts, use.identifies):
		c.mistakef("it may be the same for several volumes, so nodes could mount the wrong one; include one of these: %s", strings.Join(use.identities(), ", "))
	case use.Device && !slices.ContainsFunc(c.paths, use.variesByDisk):
		c.mistakef("it is the same for every volume; include a value of the connection that identifies the disk")
	}
	if len(c.mistakes) > 0 {
		return nil, c.mistakes
	}
	return t, nil
}

// syntaxMistake returns the parser's error without its "template: name:line:".
func syntaxMistake(err error) string {
	text := err.Error()
	if match := syntaxPrefix.FindStringSubmatch(text); match != nil {
		text = text[len(match[0]):]
		if match[1] != "1" {
			text = "line " + match[1] + ": " + text
		}
	}
	return text
}

var syntaxPrefix = regexp.MustCompile(`^template: [^:]*:(\d+): `)

// Names reports whether the template uses a value below the root.
func (t *Template) Names(root string) bool {
	return slices.ContainsFunc(t.paths, func(path []string) bool { return path[0] == root })
}

// ConnectionFields lists the fields of the connection that the template uses, sorted.
func (t *Template) ConnectionFields() []string {
	var fields []string
	for _, path := range t.paths {
		if path[0] == "connection" {
			fields = append(fields, path[1])
		}
	}
	slices.Sort(fields)
	return slices.Compact(fields)
}

// Execute fills in the template. The values are a tree of map[string]any,
// []any, string, bool and json.Number, with the roots of Use.Roots. Values that are
// absent or nil count as missing. The error never quotes a value.
func (t *Template) Execute(values map[string]any) (string, error) {
	limit := MaxResult
	if t.use.Secret {
		limit = MaxSecret
	}
	var result strings.Builder
	for _, part := range t.parts {
		value, err := part.evaluate(&scope{values: values, secret: t.use.Secret})
		if err != nil {
			return "", err
		}
		text, err := scalar(part, value)
		if err != nil {
			return "", err
		}
		if result.Len()+len(text) > limit {
			return "", fmt.Errorf("the result is longer than %d bytes", limit)
		}
		result.WriteString(text)
	}
	text := result.String()
	if strings.ContainsFunc(text, t.unprintable) {
		return "", ErrControlCharacter
	}
	return text, nil
}

// unprintable finds characters that end lines or texts unexpectedly. Files in
// Secrets may have several lines.
func (t *Template) unprintable(r rune) bool {
	if t.use.Secret && (r == '\n' || r == '\t') {
		return false
	}
	return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r == '\ufffd'
}

// ErrControlCharacter means that a value would have brought control characters or broken
// text into the result.
const ErrControlCharacter = constantError("a value holds control characters or broken text")

type constantError string

func (e constantError) Error() string { return string(e) }

// MissingError means that a value that the template requires is missing.
type MissingError struct {
	// Name is the value's, such as nvmeof.wwid.
	Name   string
	source string
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is missing; if the driver can do without it, write {{ %s | default \"\" }}", e.Name, e.source)
}

// scalar returns a value as it is written into the result.
func scalar(of expression, value any) (string, error) {
	switch typed := value.(type) {
	case string:
		return typed, nil
	case bool:
		if typed {
			return "true", nil
		}
		return "false", nil
	case json.Number:
		return decimal(typed), nil
	case nil:
		return "", &MissingError{Name: of.name(), source: of.source()}
	case []any:
		return "", fmt.Errorf("%s is a list, but text is needed; take an element with index, or all with join", of.name())
	default:
		return "", fmt.Errorf("%s is an object, but text is needed; name one of its fields", of.name())
	}
}
