package template

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Roots returns the names that a template may use, with the names below each. A
// root with nil is itself a value. Below "connection", any field is allowed.
func (u Use) Roots() map[string][]string {
	roots := map[string][]string{
		"connection": {},
		"volume":     {"id", "name", "size", "type", "zone"},
		"claim":      {"namespace", "name", "uid"},
		"pv":         {"name"},
		"connector":  {"host", "initiator", "nqn"},
		"tenant":     nil,
		"fsType":     nil,
		"readOnly":   nil,
	}
	if facts := u.Facts[u.Protocol]; facts != nil {
		roots[u.Protocol] = facts
	}
	return roots
}

// unknown describes what is wrong with a value's path; empty if nothing is.
func (u Use) unknown(path []string) string {
	roots := u.Roots()
	children, known := roots[path[0]]
	written := "." + strings.Join(path, ".")
	switch {
	case !known && u.Facts[path[0]] != nil:
		return fmt.Sprintf("%s is known only for connections of protocol %s", written, path[0])
	case !known:
		return fmt.Sprintf("unknown value %s%s", written, among(path[0], slices.Sorted(maps.Keys(roots))))
	case children == nil && len(path) > 1:
		return fmt.Sprintf("unknown value %s: .%s has no fields", written, path[0])
	case children == nil:
		return ""
	case len(path) == 1:
		if path[0] == "connection" {
			return ".connection cannot be used as a whole, since it may hold credentials; name one of its fields"
		}
		return fmt.Sprintf("%s is not a value; name one of its fields: %s", written, strings.Join(children, ", "))
	case path[0] == "connection":
		return ""
	case !slices.Contains(children, path[1]):
		return fmt.Sprintf("unknown value %s%s", written, among(path[1], children))
	case len(path) > 2:
		return fmt.Sprintf("unknown value %s: .%s.%s has no fields", written, path[0], path[1])
	}
	return ""
}

// among ends a sentence about an unknown name.
func among(name string, known []string) string {
	for _, candidate := range known {
		if strings.EqualFold(candidate, name) || strings.HasPrefix(candidate, name) || len(name) > 3 && strings.HasPrefix(name, candidate) {
			return fmt.Sprintf("; did you mean .%s?", candidate)
		}
	}
	return "; the known names are " + strings.Join(known, ", ")
}
