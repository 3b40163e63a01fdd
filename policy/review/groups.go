package review

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// groups collects names of volumes by what they have in common.
type groups struct{ members map[string][]string }

func (g *groups) add(group, name string) {
	if g.members == nil {
		g.members = map[string][]string{}
	}
	g.members[group] = append(g.members[group], name)
}

func (g *groups) each(visit func(group string, names []string)) {
	for _, group := range slices.Sorted(maps.Keys(g.members)) {
		visit(group, g.members[group])
	}
}

// grouped returns a finding about several volumes.
func grouped(kind FindingKind, subject, path string, names []string, format string, args ...any) Finding {
	return Finding{Kind: kind, Subject: subject, Path: path, Volumes: names, Message: fmt.Sprintf(format, args...), detail: strings.Join(names, " ")}
}

// maxNamed is how many volumes a message names.
const maxNamed = 3

// someVolumes formats the number of volumes and the first names.
func someVolumes(names []string) string {
	what, first, more := "PersistentVolumes", names, ""
	if len(names) == 1 {
		what = "PersistentVolume"
	}
	if n := len(names) - maxNamed; n > 0 {
		first, more = names[:maxNamed], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("%d %s (%s%s)", len(names), what, strings.Join(first, ", "), more)
}
