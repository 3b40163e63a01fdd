// Package names matches and compares names and name patterns of Kubernetes objects; *
// stands for any run of characters.
package names

import (
	"fmt"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/standalone-cinder/standalone-cinder/policy/document"
)

// Kind is a kind of Kubernetes object name that patterns are written for.
type Kind struct {
	// max is the length of the longest name; dots allows several labels.
	max  int
	dots bool
}

// Namespace returns the kind of names that are RFC 1123 labels.
func Namespace() Kind { return Kind{max: validation.DNS1123LabelMaxLength} }

// StorageClass returns the kind of names that are RFC 1123 subdomains, like
// those of StorageClasses and claims.
func StorageClass() Kind { return Kind{max: validation.DNS1123SubdomainMaxLength, dots: true} }

// Valid reports whether an object of the kind can have the name.
func (k Kind) Valid(name string) bool {
	if k.dots {
		return len(validation.IsDNS1123Subdomain(name)) == 0
	}
	return len(validation.IsDNS1123Label(name)) == 0
}

// Mistake describes what is wrong with a name or pattern in a policy; it is empty
// if nothing is.
func (k Kind) Mistake(entry string) string {
	for _, r := range entry {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '*' || r == '.' && k.dots:
		case r == '.' && strings.Contains(entry, ".*"):
			return "only * is special in a pattern, and it stands for any run of characters; write * instead of .*"
		case r == '.':
			return "names of namespaces have no dots"
		case strings.ContainsRune("?[]{}!^|/\\()+$", r):
			return "only * is special in a pattern, and it stands for any run of characters"
		case unicode.IsUpper(r) && document.Strange(string(r)) == "":
			return "names of Kubernetes objects have no capital letters"
		case document.Strange(string(r)) != "":
			return document.Strange(string(r)) + "; type it again"
		case r > unicode.MaxASCII:
			return fmt.Sprintf("names of Kubernetes objects have lower-case letters, digits and hyphens only, not %q (%U)", r, r)
		case r == '"' || r == '\'':
			return "the inner quotes are part of the name; write it in one pair of quotes or in none"
		default:
			return "names of Kubernetes objects have lower-case letters, digits and hyphens only"
		}
	}
	switch {
	case entry == "":
		return "it is empty"
	case strings.Contains(entry, "**"):
		return "one * already stands for any run of characters"
	case !IsPattern(entry) && !k.Valid(entry):
		return k.shape()
	}
	if _, ok := k.Common(entry, "*"); !ok {
		return "no name can match it: " + k.shape()
	}
	return ""
}

func (k Kind) shape() string {
	what := "names"
	if k.dots {
		what = "the parts of names between dots"
	}
	return fmt.Sprintf("%s begin and end with a letter or digit, and names have at most %d characters", what, k.max)
}

// IsPattern reports whether an entry is a pattern rather than a name.
func IsPattern(entry string) bool { return strings.Contains(entry, "*") }

// Matches reports whether a name equals or matches the entry.
func Matches(entry, name string) bool {
	first, rest, found := strings.Cut(entry, "*")
	if !found {
		return entry == name
	}
	if !strings.HasPrefix(name, first) {
		return false
	}
	name = name[len(first):]
	for {
		part, next, found := strings.Cut(rest, "*")
		if !found {
			// The last part must end the name.
			return strings.HasSuffix(name, part)
		}
		// The leftmost place leaves the most room for what follows.
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], next
	}
}

// Covers reports whether every name that matches the narrow entry also matches the wide
// one. A * in the narrow entry may stand for anything, and only a * in the wide one
// matches it, so matching the narrow entry's text is enough.
func Covers(wide, narrow string) bool { return Matches(wide, narrow) }

// Common returns a shortest valid name that matches both entries, if there is one. It
// searches all ways to match both at once, breadth first.
func (k Kind) Common(a, b string) (string, bool) {
	if !compatibleEnds(a, b) {
		return "", false
	}
	const start, alphanumeric, hyphen, dot = 0, 1, 2, 3
	type state struct {
		i, j int // how much of a and b is used up
		last int // what the name ends with so far
	}
	type step struct {
		state
		before int // index of the step this one continues
		char   byte
	}
	seen := map[state]bool{}
	var steps []step
	// add queues a state and those reached from it without another character,
	// by letting a * end.
	var add func(s step)
	add = func(s step) {
		if seen[s.state] {
			return
		}
		seen[s.state] = true
		steps = append(steps, s)
		if s.i < len(a) && a[s.i] == '*' {
			skip := s
			skip.i++
			add(skip)
		}
		if s.j < len(b) && b[s.j] == '*' {
			skip := s
			skip.j++
			add(skip)
		}
	}
	advance := func(entry string, i int, c byte) (int, bool) {
		switch {
		case i == len(entry):
			return 0, false
		case entry[i] == '*':
			return i, true
		}
		return i + 1, entry[i] == c
	}
	name := func(s step) string {
		var reversed []byte
		for ; s.before >= 0; s = steps[s.before] {
			reversed = append(reversed, s.char)
		}
		for i, j := 0, len(reversed)-1; i < j; i, j = i+1, j-1 {
			reversed[i], reversed[j] = reversed[j], reversed[i]
		}
		return string(reversed)
	}

	add(step{before: -1})
	for at := 0; at < len(steps); at++ {
		s := steps[at]
		if s.i == len(a) && s.j == len(b) && s.last == alphanumeric {
			// The first found is a shortest one; if that is too long, all are.
			found := name(s)
			return found, len(found) <= k.max
		}
		// If neither side requires a certain character, any will do.
		c := byte('x')
		if s.i < len(a) && a[s.i] != '*' {
			c = a[s.i]
		} else if s.j < len(b) && b[s.j] != '*' {
			c = b[s.j]
		}
		last := alphanumeric
		switch c {
		case '-':
			last = hyphen
		case '.':
			last = dot
		}
		if last == hyphen && (s.last == start || s.last == dot) || last == dot && s.last != alphanumeric {
			continue
		}
		i, okA := advance(a, s.i, c)
		j, okB := advance(b, s.j, c)
		if okA && okB {
			add(step{state: state{i, j, last}, before: at, char: c})
		}
	}
	return "", false
}

// compatibleEnds rules out most pairs of patterns cheaply: the text before the first *
// and after the last one must be compatible.
func compatibleEnds(a, b string) bool {
	prefixA, suffixA := literalEnds(a)
	prefixB, suffixB := literalEnds(b)
	n, m := min(len(prefixA), len(prefixB)), min(len(suffixA), len(suffixB))
	return prefixA[:n] == prefixB[:n] && suffixA[len(suffixA)-m:] == suffixB[len(suffixB)-m:]
}

// literalEnds returns the text before the first * and after the last one. Without a *,
// both are the whole entry.
func literalEnds(entry string) (prefix, suffix string) {
	first := strings.IndexByte(entry, '*')
	if first < 0 {
		return entry, entry
	}
	return entry[:first], entry[strings.LastIndexByte(entry, '*')+1:]
}
