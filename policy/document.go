package policy

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds what aliases may expand to. A thousand tenants with a few
// rules each make some 30,000 values.
const maxNodes = 100_000

// place is a position in the file, counted from 1.
type place struct{ line, column int }

// document collects what is found out about a file while it is read: where
// each value stands, and what is wrong.
type document struct {
	source string
	// noun is what such a file is called in sentences, tooLarge what is
	// said about one beyond MaxFileSize.
	noun     string
	tooLarge string

	errors   ErrorList
	warnings ErrorList

	// places holds the position of each value that the file gives, by path;
	// a path that is not in it was left out.
	places map[string]place
	// unread holds the paths whose values could not be read at all, so that
	// nothing is said about what is thought to be in or missing from them.
	unread map[string]bool

	nodes     int
	exhausted bool
}

// newDocument begins a policy file.
func newDocument(source string) *document {
	return &document{
		source: source, noun: "policy",
		tooLarge: "the file is larger than 1 MiB, which is more than a ConfigMap can hold",
		places:   map[string]place{}, unread: map[string]bool{},
	}
}

// has says whether the file gives the value, readable or not.
func (d *document) has(path string) bool {
	_, ok := d.places[path]
	return ok
}

func (d *document) errorAt(at place, path, message string) {
	d.errors = append(d.errors, Error{Source: d.source, Line: at.line, Column: at.column, Path: path, Message: message})
}

// unreadable reports a value that cannot be read.
func (d *document) unreadable(n *yaml.Node, path, format string, args ...any) {
	d.errorAt(place{n.Line, n.Column}, path, fmt.Sprintf(format, args...))
	d.unread[path] = true
}

// errorf reports a mistake in a value, unless it is in something that could
// not be read.
func (d *document) errorf(path, format string, args ...any) {
	for p := path; p != ""; p = parent(p) {
		if d.unread[p] {
			return
		}
	}
	d.errorAt(d.find(path), path, fmt.Sprintf(format, args...))
}

func (d *document) warnf(path, format string, args ...any) {
	at := d.find(path)
	d.warnings = append(d.warnings, Error{Source: d.source, Line: at.line, Column: at.column, Path: path, Message: fmt.Sprintf(format, args...)})
}

// find returns the place of a path, or of the nearest one around it that the
// file has.
func (d *document) find(path string) place { return nearest(d.places, path) }

func nearest(places map[string]place, path string) place {
	for path != "" {
		if at, ok := places[path]; ok {
			return at
		}
		path = parent(path)
	}
	return place{1, 1}
}

// parent returns the path of the value that holds the one at path.
func parent(path string) string {
	if strings.HasSuffix(path, `"]`) {
		return path[:strings.LastIndex(path, `["`)]
	}
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// child returns the path of a key in the value at path. Keys that are no plain
// words are put into brackets.
func child(path, key string) string {
	if !isWord(key) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// FieldPath is the path of a key in the value at path, as errors write it.
func FieldPath(path, key string) string { return child(path, key) }

func isWord(s string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return false
		}
	}
	return s != ""
}

func element(path string, i int) string {
	return fmt.Sprintf("%s[%d]", path, i)
}

// describe names a YAML value by its kind, for sentences like "must be a list,
// not a string". It never shows the value: nobody knows what was put there.
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

// suggest returns the known word that is meant by a misspelt one, if one comes
// near enough and nearer than all others. A missing ending counts as near.
func suggest(word string, known []string) (string, bool) {
	if len(known) > maxSuggestible {
		return "", false
	}
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
	// maxSuggestible bounds the words among which a misspelt one is looked
	// for, maxListed those that an error lists.
	maxSuggestible = 1000
	maxListed      = 20
)

// didYouMean ends a sentence about an unknown word with the one that is meant,
// or with those that there are.
func didYouMean(word string, known []string, all string) string {
	if k, ok := suggest(word, known); ok {
		return fmt.Sprintf("; did you mean %q?", k)
	}
	if len(known) == 0 {
		return ""
	}
	known = slices.Sorted(slices.Values(known))
	more := ""
	if n := len(known) - maxListed; n > 0 {
		known, more = known[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("; %s %s%s", all, strings.Join(known, ", "), more)
}

// editDistance counts the insertions, deletions, replacements and exchanges of
// neighbours that turn one word into the other.
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
