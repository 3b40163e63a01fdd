// Package document reads YAML files strictly and reports the position of every mistake.
// The Go types to fill in are the schema: anything else is a mistake.
package document

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds the expansion of aliases in a file, and maxJoinedNodes in several that
// are read as one. A thousand tenants with a few rules each have some 30,000 values.
const (
	maxNodes       = 100_000
	maxJoinedNodes = 4 * maxNodes
)

// Position is a position in a file, counted from 1. Without a line, it is the whole file.
type Position struct {
	Line, Column int
	Source       string
}

// Options describe the kind of file.
type Options struct {
	// Source names the file in errors, or several that are read as one.
	Source string
	// Noun is the name of such a file in messages, TooLarge the error about a file larger
	// than MaxSize, and APIVersion the first value of the file.
	Noun, TooLarge, APIVersion string
	// Misplaced returns a hint about an unknown key of a type: where it belongs, or its
	// correct name; empty if there is none.
	Misplaced func(typeName, key string) string
	// Scalars are types that are written as text of a form.
	Scalars map[reflect.Type]Scalar
	// IsAmount reports whether a text is a number with a unit.
	IsAmount func(text string) bool
}

// Scalar describes how a type is written.
type Scalar struct {
	// Noun names the type; Example and Examples show how it is written.
	Noun, Example, Examples string
	Parse                   func(text string) (value any, ok bool)
}

// Document collects the positions of values and the mistakes while a file is read.
type Document struct {
	options Options

	// source names the file that is being read; empty once several have been joined.
	source string
	joined bool
	// given holds where keys are given that may stand in only one of several files.
	given map[string]Position

	errors   ErrorList
	warnings ErrorList

	// positions holds the position of each value in the file, by path; an absent path was
	// left out.
	positions map[string]Position
	// unread holds the paths of values that could not be read at all. Mistakes in
	// them, and values missing from them, are not reported.
	unread map[string]bool

	nodes     int
	exhausted bool
}

// New begins a file.
func New(options Options) *Document {
	return &Document{options: options, source: options.Source, given: map[string]Position{}, positions: map[string]Position{}, unread: map[string]bool{}}
}

// Join begins the next of several files that are read as one: lists at their top level
// continue those of earlier files; all other keys there may stand in only one file, except
// those that every file begins with. Without a name, all files have been read.
func (d *Document) Join(source string) {
	d.source, d.joined = source, true
	for _, key := range []string{"apiVersion", "kind"} {
		delete(d.given, key)
		if source != "" {
			delete(d.positions, key)
			delete(d.unread, key)
		}
	}
}

// Read fills in a value from a file; see Join for several. It returns false if the file
// could not be read completely, because further checks would then mislead.
func (d *Document) Read(data []byte, into any) bool {
	root := d.parse(data)
	if root == nil {
		return false
	}
	d.decode(root, reflect.ValueOf(into).Elem(), "")
	return !d.exhausted
}

// Errors returns the mistakes so far, sorted by position.
func (d *Document) Errors() ErrorList {
	d.errors.sort()
	return d.errors
}

// Warnings returns the remarks that are not mistakes.
func (d *Document) Warnings() ErrorList {
	d.warnings.sort()
	return d.warnings
}

// Positions returns the position of each value in the file, by path.
func (d *Document) Positions() map[string]Position { return d.positions }

// IsUnread reports whether a value could not be read at all.
func (d *Document) IsUnread(path string) bool { return d.unread[path] }

// Has reports whether the file gives the value, readable or not.
func (d *Document) Has(path string) bool {
	_, ok := d.positions[path]
	return ok
}

func (d *Document) errorAt(at Position, path, message string) {
	d.errors = append(d.errors, d.remark(at, path, message))
}

func (d *Document) remark(at Position, path, message string) Error {
	return Error{Source: cmp.Or(at.Source, d.source, d.options.Source), Line: at.Line, Column: at.Column, Path: path, Message: message}
}

// unreadable reports a value that cannot be read.
func (d *Document) unreadable(n *yaml.Node, path, format string, args ...any) {
	d.errorAt(positionOf(n), path, fmt.Sprintf(format, args...))
	d.unread[path] = true
}

// Errorf reports a mistake in a value, unless it is inside something unreadable.
func (d *Document) Errorf(path, format string, args ...any) {
	for p := path; p != ""; p = parent(p) {
		if d.unread[p] {
			return
		}
	}
	d.errorAt(d.find(path), path, fmt.Sprintf(format, args...))
}

// Warnf adds a remark about the value at path, which does not make the document
// invalid.
func (d *Document) Warnf(path, format string, args ...any) {
	d.warnings = append(d.warnings, d.remark(d.find(path), path, fmt.Sprintf(format, args...)))
}

// find returns the position of a path, or of its nearest ancestor in the file.
func (d *Document) find(path string) Position {
	at := Nearest(d.positions, path)
	if at.Source == "" && d.joined && d.source == "" {
		return Position{} // It stands in none of the files.
	}
	return at
}

// LineOf returns the line of a path for a message, with the file if there are several.
func (d *Document) LineOf(path string) string {
	at := d.find(path)
	if d.joined {
		return fmt.Sprintf("%s:%d", at.Source, at.Line)
	}
	return fmt.Sprintf("line %d", at.Line)
}

// Nearest returns the position of a path, or of its nearest ancestor.
func Nearest(positions map[string]Position, path string) Position {
	for path != "" {
		if at, ok := positions[path]; ok {
			return at
		}
		path = parent(path)
	}
	return Position{Line: 1, Column: 1}
}

func positionOf(n *yaml.Node) Position { return Position{Line: n.Line, Column: n.Column} }

// parent returns the path of the value that holds the one at path.
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) {
		return path[:strings.LastIndex(path, `["`)]
	}
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// Child returns the path of a key in the value at path. Keys that are not plain words are
// bracketed.
func Child(path, key string) string {
	if !isWord(key) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func isWord(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return false
		}
	}
	return s != ""
}

// Element returns the path of an element of the list at path.
func Element(path string, i int) string {
	return fmt.Sprintf("%s[%d]", path, i)
}

// describe names a YAML value by its kind, for messages like "must be a list, not a
// string". It never shows the value, which might be a secret.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "a string"
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "empty"
	case "!!timestamp":
		return "a date"
	}
	return "a value with the tag " + n.Tag
}

// template says what to do if a value is {{ ... }}, which YAML reads as a mapping whose key
// is a mapping.
func template(n *yaml.Node) string {
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 && n.Content[0].Kind == yaml.MappingNode {
		return "; {{ begins a place of a template: " + fillIn
	}
	return ""
}

// Suggest returns the known word closest to a misspelled one, if it is close enough and
// closer than all others. A word without its ending counts as close.
func Suggest(word string, known []string) (string, bool) {
	if len(known) > maxSuggestible {
		return "", false
	}
	word, _ = Unquoted(plain(word))
	lower := strings.ToLower(word)
	best, bestDistance, only := "", 0, false
	for _, k := range known {
		if strings.EqualFold(k, word) {
			return k, true
		}
		limit := max(len(word)/4, 1)
		if word != "" && strings.HasPrefix(strings.ToLower(k), lower) {
			limit = max(limit, 2)
		}
		switch n := editDistance(lower, strings.ToLower(k)); {
		case n > limit || best != "" && n > bestDistance:
		case best == "" || n < bestDistance:
			best, bestDistance, only = k, n, true
		default:
			only = false
		}
	}
	return best, only
}

const (
	// maxSuggestible bounds the known words compared with a misspelled one, maxListed
	// those that an error lists.
	maxSuggestible = 1000
	maxListed      = 20
)

// DidYouMean ends a sentence about an unknown word with a suggestion, or with the
// list of known words.
func DidYouMean(word string, known []string, all string) string {
	if k, ok := Suggest(word, known); ok {
		return fmt.Sprintf("%s; did you mean %q?", oddity(word), k)
	}
	if len(known) == 0 {
		return ""
	}
	known = slices.Compact(slices.Sorted(slices.Values(known)))
	more := ""
	if n := len(known) - maxListed; n > 0 {
		known, more = known[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%s; %s %s%s", oddity(word), all, strings.Join(known, ", "), more)
}

// oddity adds the invisible problems of a word to a message about it.
func oddity(word string) string {
	if strange := Strange(word); strange != "" {
		return "; " + strange
	}
	if _, ok := Unquoted(word); ok {
		return "; the inner quotes are part of the value"
	}
	return ""
}

// editDistance counts the insertions, deletions, replacements and exchanges of
// neighbors that turn one word into the other.
func editDistance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(replace, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
