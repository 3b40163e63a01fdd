package auth

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlFile reads the settings in one file. It looks only at what is requested, so that an
// invalid entry affects only its own users.
type yamlFile struct {
	path string
	// merges counts the mappings that were merged with "<<", each of which can
	// contain others.
	merges int
}

// member is a key of a mapping with its value.
type member struct {
	key   *yaml.Node
	value *yaml.Node
}

const maxMerges = 1000

func (f *yamlFile) wrong(node *yaml.Node, what string) error {
	return fmt.Errorf("%s:%d: %s", f.path, node.Line, what)
}

// members returns the keys of a mapping, merged ones first.
func (f *yamlFile) members(node *yaml.Node) ([]member, error) {
	node = target(node)
	if node.Kind != yaml.MappingNode {
		return nil, f.wrong(node, "not a valid clouds file: a mapping is needed here")
	}
	var own, merged []member
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := target(node.Content[i]), target(node.Content[i+1])
		switch {
		case key.Kind != yaml.ScalarNode: // no program can ask for it
		case key.Value == "<<" && key.Style == 0:
			sources := []*yaml.Node{value}
			if value.Kind == yaml.SequenceNode {
				sources = slices.Clone(value.Content)
				slices.Reverse(sources) // the first counts most
			}
			for _, source := range sources {
				if f.merges++; f.merges > maxMerges {
					return nil, f.wrong(key, "too many merged mappings")
				}
				more, err := f.members(source)
				if err != nil {
					return nil, err
				}
				merged = append(merged, more...)
			}
		default:
			own = append(own, member{key, value})
		}
	}
	return append(merged, own...), nil
}

// target follows an alias.
func target(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

// find returns the value of a key; nil if the mapping lacks it.
func (f *yamlFile) find(node *yaml.Node, key string) (*yaml.Node, error) {
	if node == nil || isNull(node) {
		return nil, nil
	}
	members, err := f.members(node)
	if err != nil {
		return nil, err
	}
	var found *yaml.Node
	for _, m := range members {
		if m.key.Value == key {
			found = m.value
		}
	}
	return found, nil
}

// settings reads an entry, a profile or a region's values.
func (f *yamlFile) settings(node *yaml.Node) (settings, error) {
	found := settings{}
	if node == nil || isNull(node) {
		return found, nil
	}
	var nested *yaml.Node
	var err error
	if found.top, err = f.values(node, func(key string, value *yaml.Node) (bool, error) {
		switch key {
		case "auth":
			nested = value
			return true, nil
		case "regions":
			found.regions, err = f.regions(value)
			return true, err
		}
		return false, nil
	}); err != nil || nested == nil || isNull(nested) {
		return found, err
	}
	found.auth, err = f.values(nested, func(string, *yaml.Node) (bool, error) { return false, nil })
	return found, err
}

// values reads a mapping, except the keys that special handles. Other clients also write
// keys with dashes.
func (f *yamlFile) values(node *yaml.Node, special func(key string, value *yaml.Node) (taken bool, err error)) (map[string]setting, error) {
	members, err := f.members(node)
	if err != nil {
		return nil, err
	}
	found, from := map[string]setting{}, map[string]*yaml.Node{}
	own := target(node).Content
	for _, m := range members {
		key := strings.ReplaceAll(m.key.Value, "-", "_")
		if taken, err := special(key, m.value); taken || err != nil {
			if err != nil {
				return nil, err
			}
		} else {
			found[key] = f.value(m)
		}
		// A merged key may be given again.
		if before := from[key]; before != nil && slices.Contains(own, before) {
			return nil, f.wrong(m.key, fmt.Sprintf("not a valid clouds file: %s is given twice", m.key.Value))
		}
		from[key] = m.key
	}
	return found, nil
}

// The reasons why a value is not text.
const (
	oddFlag   = "is a boolean, not text; put it in quotes if it is meant as text"
	oddNumber = "is a number that other programs write in another way; put it in quotes"
	oddList   = "is a list, not text"
	oddOther  = "is not text"
)

func (f *yamlFile) value(m member) setting {
	v := setting{key: m.key.Value, at: fmt.Sprintf("%s:%d", f.path, m.key.Line), text: m.value.Value}
	plain := m.value.Kind == yaml.ScalarNode && m.value.Style == 0
	switch {
	case isNull(m.value):
		v.text, v.null = "", true
	case m.value.Kind == yaml.SequenceNode:
		v.odd = oddList
		for _, element := range m.value.Content {
			one := f.value(member{m.key, target(element)})
			if one.odd != "" {
				v.list = nil
				break
			}
			v.list = append(v.list, one.text)
		}
	case m.value.Kind != yaml.ScalarNode, m.value.Style&yaml.TaggedStyle != 0 && m.value.Tag != "!!str":
		v.odd = oddOther
	case plain && yamlFlag.MatchString(v.text):
		v.odd = oddFlag
	case plain && yamlNumber.MatchString(v.text) && !writtenBack(v.text):
		v.odd = oddNumber
	}
	return v
}

// What YAML 1.1 reads as a boolean, a number or a date. Most OpenStack programs read
// clouds.yaml that way and turn 0123 into 83.
var (
	yamlFlag   = regexp.MustCompile(`^(yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF)$`)
	yamlWhole  = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)
	yamlNumber = regexp.MustCompile(`^([-+]?(0b[01_]+|0[0-7_]*|[1-9][0-9_]*|0x[0-9a-fA-F_]+|[1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])*\.[0-9_]*([eE][-+][0-9]+)?|\.(inf|Inf|INF))` +
		`|\.[0-9][0-9_]*([eE][-+][0-9]+)?|\.(nan|NaN|NAN)|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?|=)$`)
)

// writtenBack reports whether a number is written as every program writes it.
func writtenBack(text string) bool {
	if yamlWhole.MatchString(text) {
		return true
	}
	number, err := strconv.ParseFloat(text, 64)
	written := strconv.FormatFloat(number, 'f', -1, 64)
	return err == nil && len(text) < 16 && (written == text || written+".0" == text)
}

func isNull(node *yaml.Node) bool {
	node = target(node)
	return node.Kind == 0 || node.Kind == yaml.ScalarNode && node.Tag == "!!null"
}

// regions reads the list of regions: names, or mappings of a name and its values.
func (f *yamlFile) regions(node *yaml.Node) ([]regionEntry, error) {
	if isNull(node) {
		return nil, nil
	}
	if node.Kind != yaml.SequenceNode {
		return nil, f.wrong(node, "regions is not a list")
	}
	var found []regionEntry
	for _, element := range node.Content {
		element = target(element)
		if element.Kind == yaml.ScalarNode {
			name := f.value(member{key: &yaml.Node{Value: "the region's name", Line: element.Line}, value: element})
			if name.odd != "" {
				return nil, name.wrong(name.odd)
			}
			found = append(found, regionEntry{name: name.text})
			continue
		}
		var one regionEntry
		var values *yaml.Node
		keys, err := f.values(element, func(key string, value *yaml.Node) (bool, error) {
			if key == "values" {
				values = value
			}
			return key == "values", nil
		})
		if err != nil {
			return nil, err
		}
		one.name = keys["name"].text
		if keys["name"].odd != "" || one.name == "" || len(keys) != 1 {
			return nil, f.wrong(element, "a region has a name and values, nothing else")
		}
		if one.values, err = f.settings(values); err != nil {
			return nil, err
		}
		for key, value := range one.values.top {
			// Here, and only here, an empty value means that the key is not set.
			if value.null {
				delete(one.values.top, key)
			}
		}
		found = append(found, one)
	}
	return found, nil
}
