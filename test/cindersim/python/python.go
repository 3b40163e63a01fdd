// Package python prints and reads the values that JSON can hold as Python does:
// Cinder shows values in its error sentences as Python prints them, and reads
// list filters as Python literals.
package python

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Text returns what str(value) is in Python.
func Text(value any) string {
	if s, ok := value.(string); ok {
		return s
	}
	return Repr(value)
}

// Repr returns what repr(value) is in Python. The keys of an object come in
// alphabetical order, since decoding has lost the client's.
func Repr(value any) string {
	switch v := value.(type) {
	case nil:
		return "None"
	case bool:
		if v {
			return "True"
		}
		return "False"
	case json.Number:
		return v.String()
	case string:
		quote := `'`
		if strings.Contains(v, `'`) && !strings.Contains(v, `"`) {
			quote = `"`
		}
		escaped := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(v)
		if quote == `'` {
			escaped = strings.ReplaceAll(escaped, `'`, `\'`)
		}
		return quote + escaped + quote
	case []any:
		parts := make([]string, len(v))
		for i, item := range v {
			parts[i] = Repr(item)
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case map[string]any:
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		parts := make([]string, len(keys))
		for i, key := range keys {
			parts[i] = Repr(key) + ": " + Repr(v[key])
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(value)
}

// Literal reads a Python literal: a string, number, True, False, None, list,
// tuple or dictionary. Dictionaries become map[string]any, with keys that are
// not strings in their printed form; lists and tuples become []any; numbers
// become json.Number.
func Literal(text string) (any, error) {
	p := &parser{text: text}
	value, err := p.value(0)
	if err != nil {
		return nil, err
	}
	p.blanks()
	if p.at < len(p.text) {
		return nil, p.fail("end of input")
	}
	return value, nil
}

const maxDepth = 50

type parser struct {
	text string
	at   int
}

func (p *parser) fail(want string) error {
	return fmt.Errorf("no Python literal: expected %s at offset %d", want, p.at)
}

func (p *parser) blanks() {
	for p.at < len(p.text) && strings.IndexByte(" \t\n\r", p.text[p.at]) >= 0 {
		p.at++
	}
}

func (p *parser) peek() byte {
	p.blanks()
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, p.fail("less nesting")
	}
	switch next := p.peek(); {
	case next == '\'' || next == '"':
		return p.quoted()
	case next == '{':
		return p.dictionary(depth)
	case next == '[':
		return p.sequence(']', depth)
	case next == '(':
		return p.sequence(')', depth)
	case next == '-' || next == '+' || next == '.' || next >= '0' && next <= '9':
		return p.number()
	}
	for word, value := range map[string]any{"True": true, "False": false, "None": nil} {
		if strings.HasPrefix(p.text[p.at:], word) {
			p.at += len(word)
			return value, nil
		}
	}
	return nil, p.fail("a value")
}

var numberPattern = regexp.MustCompile(`^[+-]?(?:(?:0+|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?`)

func (p *parser) number() (any, error) {
	word := numberPattern.FindString(p.text[p.at:])
	if word == "" {
		return nil, p.fail("a number")
	}
	p.at += len(word)
	return json.Number(strings.TrimPrefix(word, "+")), nil
}

func (p *parser) quoted() (any, error) {
	quote := p.text[p.at]
	var out strings.Builder
	for p.at++; p.at < len(p.text); {
		switch c := p.text[p.at]; c {
		case quote:
			p.at++
			return out.String(), nil
		case '\n', '\r':
			return nil, p.fail("a closing quote")
		case '\\':
			if p.at+1 == len(p.text) {
				return nil, p.fail("an escaped character")
			}
			escaped := p.text[p.at+1]
			switch escaped {
			case 'n':
				out.WriteByte('\n')
			case 't':
				out.WriteByte('\t')
			case 'r':
				out.WriteByte('\r')
			case '\\', '\'', '"':
				out.WriteByte(escaped)
			default:
				out.WriteByte('\\')
				out.WriteByte(escaped)
			}
			p.at += 2
		default:
			_, width := utf8.DecodeRuneInString(p.text[p.at:])
			out.WriteString(p.text[p.at : p.at+width])
			p.at += width
		}
	}
	return nil, p.fail("a closing quote")
}

func (p *parser) sequence(closing byte, depth int) (any, error) {
	p.at++
	items := []any{}
	for {
		if p.peek() == closing {
			p.at++
			return items, nil
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
		if p.peek() == ',' {
			p.at++
		} else if p.peek() != closing {
			return nil, p.fail("a comma")
		} else if closing == ')' && len(items) == 1 {
			// One value in parentheses is that value, not a tuple.
			p.at++
			return items[0], nil
		}
	}
}

func (p *parser) dictionary(depth int) (any, error) {
	p.at++
	entries := map[string]any{}
	for {
		if p.peek() == '}' {
			p.at++
			return entries, nil
		}
		key, err := p.value(depth + 1)
		if err != nil {
			return nil, err
		}
		if p.peek() != ':' {
			return nil, p.fail("a colon")
		}
		p.at++
		if entries[Text(key)], err = p.value(depth + 1); err != nil {
			return nil, err
		}
		if p.peek() == ',' {
			p.at++
		} else if p.peek() != '}' {
			return nil, p.fail("a comma")
		}
	}
}
