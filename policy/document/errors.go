package document

import (
	"fmt"
	"sort"
	"strings"
)

// Error is one mistake in a policy file, or one remark about it.
type Error struct {
	// Source is the name of the file.
	Source string `json:"source"`
	// Line and Column count from 1; 0 means unknown.
	Line   int `json:"line"`
	Column int `json:"column"`
	// Path is the field, such as tenants[1].classes[0].backends[0]; it is empty if the
	// mistake concerns the whole file.
	Path string `json:"path"`
	// Message names the culprit and the remedy.
	Message string `json:"message"`
}

// Error returns "source:line:column: path: message", without unknown parts.
func (e Error) Error() string {
	var b strings.Builder
	if e.Source != "" {
		b.WriteString(e.Source)
		b.WriteByte(':')
	}
	if e.Line > 0 {
		fmt.Fprintf(&b, "%d:", e.Line)
	}
	if e.Line > 0 && e.Column > 0 {
		fmt.Fprintf(&b, "%d:", e.Column)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if e.Path != "" {
		b.WriteString(e.Path)
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// ErrorList holds every mistake of a file, or of several, sorted by position. Load and Parse return
// it as their error; errors.As finds it.
type ErrorList []Error

// Error returns one line for each mistake.
func (l ErrorList) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

func (l ErrorList) sort() {
	sort.SliceStable(l, func(i, j int) bool {
		a, b := l[i], l[j]
		if a.Source != b.Source {
			return a.Source < b.Source
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		if a.Column != b.Column {
			return a.Column < b.Column
		}
		return a.Path < b.Path
	})
}
