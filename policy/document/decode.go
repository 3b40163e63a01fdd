package document

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// decode fills in v from a YAML value. The Go types are the schema: fields are named by
// their json tags, and anything else is a mistake.
func (d *Document) decode(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if !d.spend(n) {
		return
	}
	if path != "" {
		d.positions[path] = Position{n.Line, n.Column, d.source}
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	scalar, isScalar := d.options.Scalars[v.Type()]
	switch {
	case isScalar:
		d.decodeText(n, v, path, scalar)
	case v.Type() == reflect.TypeFor[time.Duration]():
		d.decodeText(n, v, path, durations)
	case v.Kind() == reflect.Struct:
		d.decodeStruct(n, v, path)
	case v.Kind() == reflect.Map:
		d.decodeMap(n, v, path)
	case v.Kind() == reflect.Slice:
		d.decodeList(n, v, path)
	default:
		d.decodeScalar(n, v, path)
	}
}

// spend counts visited values. Aliases can make a short file expand to billions of them.
func (d *Document) spend(n *yaml.Node) bool {
	most := maxNodes
	if d.joined {
		most = maxJoinedNodes
	}
	if d.nodes++; d.nodes <= most {
		return true
	}
	if !d.exhausted {
		d.exhausted = true
		d.errorAt(positionOf(n), "", fmt.Sprintf(
			"the file expands to more than %d values; use fewer or smaller aliases", most))
	}
	return false
}

// pairs calls visit for each key of a mapping with its value, and reports keys that are
// not strings, are repeated, or have no value.
func (d *Document) pairs(n *yaml.Node, path string, visit func(key string, keyNode, value *yaml.Node)) {
	first := map[string]int{}
	for i := 0; i+1 < len(n.Content) && !d.exhausted; i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		at := positionOf(key)
		switch {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			d.unreadable(key, path, "merge keys (<<) are not supported; write out the keys in every place")
			continue
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			d.unreadable(key, path, "a key must be a string, not %s; put it in quotes", describe(key))
			continue
		}
		keyPath := Child(path, key.Value)
		if line, ok := first[key.Value]; ok {
			remedy := "remove one"
			if i > 0 && key.Value == n.Content[0].Value && strings.HasSuffix(path, "]") {
				// Entries commonly begin with the same key.
				remedy = "if another entry of the list begins here, put a hyphen before it, else remove one"
			}
			d.errorAt(at, keyPath, fmt.Sprintf("the key is given twice, first on line %d; %s", line, remedy))
			continue
		}
		first[key.Value] = key.Line
		if value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" {
			// An absent value has no position of its own in the file.
			at.Source = d.source
			d.positions[keyPath] = at
			d.unreadable(key, keyPath, "the key has no value; give it one or remove the key")
			continue
		}
		visit(key.Value, key, value)
	}
}

func (d *Document) decodeStruct(n *yaml.Node, v reflect.Value, path string) {
	fields := map[string]int{}
	var known []string
	for i := range v.NumField() {
		if name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = i
			known = append(known, name)
		}
	}
	if n.Kind != yaml.MappingNode {
		d.unreadable(n, path, "must be a mapping of keys to values, not %s; its keys are %s", describe(n), strings.Join(slices.Sorted(slices.Values(known)), ", "))
		return
	}
	read := func(key string, value *yaml.Node) {
		d.decode(value, v.Field(fields[key]), Child(path, key))
		if value.Kind == yaml.ScalarNode && value.ShortTag() == "!!str" && value.Value == "" {
			d.unreadable(value, Child(path, key), "the value is empty; give one or remove the key")
		}
	}
	d.pairs(n, path, func(key string, keyNode, value *yaml.Node) {
		if field, ok := fields[key]; ok {
			if path != "" || v.Field(field).Kind() == reflect.Slice || d.first(key, keyNode) {
				read(key, value)
			}
			return
		}
		remedy := DidYouMean(key, known, "the keys here are")
		meant, near := Suggest(key, known)
		if where := d.options.Misplaced(v.Type().Name(), key); where != "" && !near {
			remedy = "; " + where
		}
		d.errorAt(positionOf(keyNode), Child(path, key), fmt.Sprintf("unknown key %q%s", key, remedy))
		// A misspelled key's value is read anyway, so that its mistakes are found at once
		// and it is not reported as missing.
		if near && !hasKey(n, meant) {
			read(meant, value)
		}
	})
}

// first reports a key that an earlier one of several files gives.
func (d *Document) first(key string, at *yaml.Node) bool {
	if earlier, ok := d.given[key]; ok {
		d.errorAt(positionOf(at), key, fmt.Sprintf("the key is given twice, first in %s:%d, and only lists may stand in several files; remove one", earlier.Source, earlier.Line))
		return false
	}
	d.given[key] = Position{at.Line, at.Column, d.source}
	return true
}

func hasKey(mapping *yaml.Node, key string) bool {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return true
		}
	}
	return false
}

func (d *Document) decodeMap(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		d.unreadable(n, path, "must be a mapping of keys to values, not %s", describe(n))
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.pairs(n, path, func(key string, _, value *yaml.Node) {
		item := reflect.New(v.Type().Elem()).Elem()
		d.decode(value, item, Child(path, key))
		v.SetMapIndex(reflect.ValueOf(key), item)
	})
}

func (d *Document) decodeList(n *yaml.Node, v reflect.Value, path string) {
	switch n.Kind {
	case yaml.SequenceNode:
	case yaml.ScalarNode:
		d.unreadable(n, path, "must be a list, not %s; put it in brackets: [...]", describe(n))
		return
	default:
		d.unreadable(n, path, "must be a list, not %s; begin each entry with a hyphen", describe(n))
		return
	}
	// Every element gets its place in the list, even if unreadable, so that indices in
	// paths match the file.
	earlier := 0
	if d.joined && isWord(path) {
		earlier = v.Len()
	}
	list := reflect.MakeSlice(v.Type(), earlier+len(n.Content), earlier+len(n.Content))
	reflect.Copy(list, v.Slice(0, earlier))
	v.Set(list)
	for i, item := range n.Content {
		if d.exhausted {
			return
		}
		d.decode(item, v.Index(earlier+i), Element(path, earlier+i))
	}
}

func (d *Document) decodeScalar(n *yaml.Node, v reflect.Value, path string) {
	// Only scalars have a relevant tag; "" stands for the others.
	tag := ""
	if n.Kind == yaml.ScalarNode {
		tag = n.ShortTag()
	}
	switch v.Kind() {
	case reflect.String:
		isOther := slices.Contains([]string{"!!int", "!!float", "!!bool", "!!timestamp"}, tag)
		switch {
		case tag == "!!str", isOther && v.Type().Name() != "string": // the check of an enumeration lists what it can be
			v.SetString(n.Value)
		case isOther:
			d.unreadable(n, path, "must be a string, not %s; put it in quotes: %q", describe(n), n.Value)
		default:
			d.unreadable(n, path, "must be a string, not %s%s", describe(n), template(n))
		}
	case reflect.Bool:
		if tag != "!!bool" {
			d.unreadable(n, path, "must be true or false, without quotes; %s is neither", describeBool(n))
			return
		}
		v.SetBool(strings.EqualFold(n.Value, "true"))
	case reflect.Int64:
		i, err := strconv.ParseInt(n.Value, 10, 64)
		switch {
		case tag == "!!int" && err == nil && hasLeadingZero(n.Value):
			d.unreadable(n, path, "%s begins with 0, which other readers of YAML take for an octal number; write %d", n.Value, i)
		case tag == "!!int" && err == nil:
			v.SetInt(i)
		case errors.Is(err, strconv.ErrRange):
			d.unreadable(n, path, "%s is too large; write a smaller number", n.Value)
		case tag == "!!str" && d.options.IsAmount(n.Value):
			d.unreadable(n, path, "%q has a unit; write a whole number alone (gigabytes are counted in GiB)", n.Value)
		default:
			d.unreadable(n, path, "must be a whole number without quotes or unit, not %s", describeNumber(n))
		}
	case reflect.Float64:
		f, err := strconv.ParseFloat(n.Value, 64)
		if tag != "!!int" && tag != "!!float" || err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
			d.unreadable(n, path, "must be a number without quotes or unit, not %s", describeNumber(n))
			return
		}
		if hasLeadingZero(n.Value) {
			d.unreadable(n, path, "%s begins with 0, which other readers of YAML take for an octal number; write %g", n.Value, f)
			return
		}
		v.SetFloat(f)
	default:
		// A programming mistake, ruled out by a test that decodes every field of every
		// type.
		panic("document: no way to read a " + v.Type().String())
	}
}

// hasLeadingZero reports whether a number begins with a superfluous 0.
func hasLeadingZero(text string) bool {
	text = strings.TrimLeft(text, "+-")
	return len(text) > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9'
}

// describeBool describes a value that is not a bool, and points out words that mean true
// or false in other versions of YAML.
func describeBool(n *yaml.Node) string {
	switch strings.ToLower(n.Value) {
	case "yes", "no", "on", "off", "true", "false":
		return fmt.Sprintf("%q", n.Value)
	}
	return describe(n)
}

// describeNumber describes a value that is not a number, and shows it if it is another
// kind of number.
func describeNumber(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float") {
		return n.Value
	}
	return describe(n)
}

// decodeText reads a type that is written as text.
func (d *Document) decodeText(n *yaml.Node, v reflect.Value, path string, of Scalar) {
	switch {
	case n.Kind == yaml.ScalarNode && (n.ShortTag() == "!!int" || n.ShortTag() == "!!float"):
		d.unreadable(n, path, "%s has no unit; write it like %s", n.Value, of.Examples)
	case n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str":
		d.unreadable(n, path, "must be a %s such as %s, not %s", of.Noun, of.Example, describe(n))
	default:
		value, ok := of.Parse(n.Value)
		if !ok {
			remedy := "write it like " + of.Examples
			if unquoted, ok := Unquoted(n.Value); ok {
				remedy = fmt.Sprintf("the inner quotes are part of the value; write %s", unquoted)
			} else if strange := Foreign(n.Value); strange != "" {
				remedy = strange + "; " + remedy
			}
			d.unreadable(n, path, "%q is not a %s; %s", n.Value, of.Noun, remedy)
			return
		}
		v.Set(reflect.ValueOf(value))
	}
}

// durations are written as time.ParseDuration reads them.
var durations = Scalar{
	Noun: "duration", Example: "30s, 5m or 1h30m", Examples: "30s, 5m or 1h30m",
	Parse: func(text string) (any, bool) {
		duration, err := time.ParseDuration(text)
		return duration, err == nil
	},
}
