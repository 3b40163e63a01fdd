package template

import (
	"slices"
	"strings"
)

// identities lists the values that are unique to a volume, as templates write them.
// Volumes are named after their PersistentVolume.
func (u Use) identities() []string {
	all := []string{".volume.id", ".volume.name", ".pv.name", ".claim.uid"}
	for _, path := range u.Identities {
		all = append(all, "."+path)
	}
	return all
}

// identifies reports whether two volumes can never have the same value of an expression.
// Functions that may drop part of their text, such as index, may drop the part that
// differs.
func (u Use) identifies(value expression) bool {
	switch typed := value.(type) {
	case field:
		return slices.Contains(u.identities(), typed.source())
	case call:
		last := len(typed.arguments) - 1
		switch typed.function {
		case "default":
			// Either may be the result.
			return u.identifies(typed.arguments[0]) && u.identifies(typed.arguments[1])
		case "printf":
			return slices.ContainsFunc(typed.arguments, u.identifies)
		case "index":
			return u.identifiesField(typed)
		case "lower", "upper", "base", "json", "split", "join":
			return u.identifies(typed.arguments[last])
		case "replace", "trimPrefix", "trimSuffix":
			return u.identifies(typed.arguments[last]) && !slices.ContainsFunc(typed.arguments[:last], isVariable)
		}
	}
	return false
}

// identifiesField is identifies for index .connection "name".
func (u Use) identifiesField(index call) bool {
	from, ok := index.arguments[0].(field)
	if !ok || len(index.arguments) != 2 {
		return false
	}
	key, _ := index.arguments[1].(literal)
	name, ok := key.value.(string)
	return ok && slices.Contains(u.identities(), from.source()+"."+name)
}

func isVariable(argument expression) bool {
	_, constant := argument.(literal)
	return !constant
}

// variesByDisk reports whether a value may name a disk.
func (u Use) variesByDisk(path []string) bool {
	return path[0] == "connection" || u.Facts[path[0]] != nil || slices.Contains(u.identities(), "."+strings.Join(path, "."))
}
