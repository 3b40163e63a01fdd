package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Embedded is a file of this package's kind in a ConfigMap.
type Embedded struct {
	// Content is the value, and Key its key under data.
	Content []byte
	Key     string
	// Namespace and Name are those of the ConfigMap, as far as the manifest has them.
	Namespace, Name string
	// Text is the value with its indentation and line numbers in the manifest, or nil if
	// it is not written as a block (|).
	Text []byte
}

// Embedding finds the one value of a ConfigMap that is a file of the kind or, if one
// ConfigMap has several, all its values, sorted by their keys. It returns nil if the data
// contains no ConfigMap.
func Embedding(data []byte, kind string) ([]*Embedded, error) {
	if len(data) > 4*MaxSize || !bytes.Contains(data, []byte("ConfigMap")) {
		return nil, nil
	}
	isKind := regexp.MustCompile(`(?m)^\s*"?kind"?\s*:\s*"?` + kind + `"?\s*,?\s*$`)
	var found, siblings []*Embedded
	var keys []string
	isConfigMap, holders := false, 0
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var object yaml.Node
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			// The caller finds the line.
			return nil, nil
		}
		root := object.Content[0]
		if named := valueOf(root, "kind"); named == nil || named.Value != "ConfigMap" {
			continue
		}
		isConfigMap = true
		values := valueOf(root, "data")
		if values == nil || values.Kind != yaml.MappingNode {
			continue
		}
		var here []*Embedded
		before := len(found)
		for i := 0; i+1 < len(values.Content); i += 2 {
			key, value := values.Content[i].Value, values.Content[i+1]
			keys = append(keys, key)
			if value.Kind == yaml.ScalarNode {
				meta := valueOf(root, "metadata")
				here = append(here, &Embedded{Content: []byte(value.Value), Key: key, Namespace: textOf(meta, "namespace"), Name: textOf(meta, "name"), Text: inPlace(data, value)})
				if isKind.MatchString(value.Value) {
					found = append(found, here[len(here)-1])
				}
			}
		}
		if len(found) > before {
			holders, siblings = holders+1, here
		}
	}
	switch {
	case !isConfigMap:
		return nil, nil
	case len(found) == 1:
		return found, nil
	case holders == 1:
		slices.SortFunc(siblings, func(a, b *Embedded) int { return strings.Compare(a.Key, b.Key) })
		return siblings, nil
	case len(found) == 0:
		slices.Sort(keys)
		return nil, fmt.Errorf("the ConfigMap has no value with kind: %s; its keys under data are [%s]", kind, strings.Join(keys, ", "))
	}
	return nil, fmt.Errorf("there are %d values with kind: %s in ConfigMaps, %s and %s; give one at a time", len(found), kind, found[0].Key, found[1].Key)
}

// textOf returns the text of a key in a mapping, or "".
func textOf(n *yaml.Node, key string) string {
	if value := valueOf(n, key); value != nil {
		return value.Value
	}
	return ""
}

// valueOf returns the value of a key in a mapping, or nil.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// inPlace blanks everything before a block scalar, so that a reader counts the
// lines and columns of the whole file.
func inPlace(data []byte, value *yaml.Node) []byte {
	if value.Style&yaml.LiteralStyle == 0 {
		return nil
	}
	lines := strings.SplitAfter(string(data), "\n")
	content := strings.Split(strings.TrimRight(value.Value, "\n"), "\n")
	if value.Line+len(content) > len(lines)+1 {
		return nil
	}
	var text strings.Builder
	text.WriteString(strings.Repeat("\n", value.Line))
	for i, wanted := range content {
		if value.Line+i >= len(lines) {
			return nil
		}
		line := lines[value.Line+i]
		if bare := strings.TrimRight(line, "\r\n"); strings.TrimSpace(wanted) != strings.TrimSpace(bare) || !strings.HasSuffix(bare, wanted) {
			return nil
		}
		text.WriteString(line)
	}
	return []byte(text.String())
}
