package cli

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
)

// effects say who gains and who loses by changes. Changes that give nobody more or less,
// such as another volume type, are in none of its lists.
type effects struct {
	Gained []string `json:"gained,omitempty"`
	Lost   []string `json:"lost,omitempty"`
	Moved  []string `json:"moved,omitempty"`
}

var (
	// pathOfSubject splits a path such as tenants[team-a].quota.volumes.
	pathOfSubject = regexp.MustCompile(`^(tenant|backend)s\[(.*?)\]\.(.*)$`)
	// pathOfRule splits the rest of one such as tenants[team-a].classes[fast].backends.
	pathOfRule = regexp.MustCompile(`^classes\[(.*?)\]\.(.*)$`)
	// pathOfBound matches the rest of one if its value is a bound.
	pathOfBound = regexp.MustCompile(`(^|\.)(quota\.[A-Za-z]+|limits\.(volumes|gigabytes|concurrency|requestsPerSecond)|volumeSize\.(max|min))$`)
)

// effectsOf sorts changes by what they do to tenants and backends.
func effectsOf(changes []change) effects {
	o := effects{}
	// What comes or goes as a whole is named once.
	whole, left, joined := map[string]bool{}, map[string]string{}, map[string]string{}
	for _, c := range changes {
		who, path, ok := subjectOf(c)
		rule := pathOfRule.FindStringSubmatch(path)
		switch name, isNamespace := namespaceIn(path); {
		case !ok:
		case path == "name":
			whole[who] = true
			o.gainOrLose(c.Before == "", who+" is new", who+" goes")
		case rule != nil && rule[2] == "storageClasses":
			whole[who+" "+rule[1]] = true
		case isNamespace && c.Before == "":
			joined[name] = who
		case isNamespace:
			left[name] = who
		}
	}
	for _, name := range slices.Sorted(maps.Keys(joined)) {
		if left[name] != "" {
			o.Moved = append(o.Moved, fmt.Sprintf("namespace %s moves from %s to %s", name, left[name], joined[name]))
		}
	}
	for _, c := range changes {
		who, path, ok := subjectOf(c)
		name, isNamespace := namespaceIn(path)
		if ok && !whole[who] && !(isNamespace && left[name] != "" && joined[name] != "") {
			o.add(who, path, c, whole)
		}
	}
	return o
}

func subjectOf(c change) (who, path string, ok bool) {
	m := pathOfSubject.FindStringSubmatch(c.Path)
	if m == nil {
		return "", "", false
	}
	return m[1] + " " + m[2], m[3], true
}

// namespaceIn returns the namespace that a tenant lists.
func namespaceIn(path string) (name string, ok bool) {
	name, ok = strings.CutPrefix(path, "namespaces[")
	return strings.TrimSuffix(name, "]"), ok
}

// add adds a change of something that neither comes nor goes.
func (o *effects) add(who, path string, c change, whole map[string]bool) {
	rule := pathOfRule.FindStringSubmatch(path)
	added := c.Before == ""
	switch name, isNamespace := namespaceIn(path); {
	case isNamespace:
		o.gainOrLose(added, fmt.Sprintf("%s: namespace %s", who, name), fmt.Sprintf("%s: namespace %s", who, name))
	case path == "namespaceSelector":
		// Which namespaces have the labels, the policy does not tell.
		if c.After != "" {
			o.Gained = append(o.Gained, fmt.Sprintf("%s: the namespaces of the selector %s", who, c.After))
		}
		if c.Before != "" {
			o.Lost = append(o.Lost, fmt.Sprintf("%s: the namespaces of the selector %s", who, c.Before))
		}
	case path == "restoreAnySnapshot":
		o.gainOrLose(added, who+": may restore any snapshot", who+": may restore only its own snapshots")
	case path == "suspended":
		o.gainOrLose(!added, who+" takes new volumes again", who+" takes no new volumes")
	case rule != nil && rule[2] == "storageClasses":
		o.gainOrLose(added, fmt.Sprintf("%s: StorageClasses %s", who, rule[1]), fmt.Sprintf("%s: StorageClasses %s", who, rule[1]))
	case rule != nil && whole[who+" "+rule[1]]:
	case rule != nil && rule[2] == "backends":
		before, after := strings.Fields(strings.Trim(c.Before, "[]")), strings.Fields(strings.Trim(c.After, "[]"))
		for _, b := range after {
			if !slices.Contains(before, b) {
				o.Gained = append(o.Gained, fmt.Sprintf("%s: backend %s for StorageClasses %s", who, b, rule[1]))
			}
		}
		for _, b := range before {
			if !slices.Contains(after, b) {
				o.Lost = append(o.Lost, fmt.Sprintf("%s: backend %s for StorageClasses %s", who, b, rule[1]))
			}
		}
	case pathOfBound.MatchString(path):
		gains := more(c)
		if strings.HasSuffix(path, "volumeSize.min") && c.Before != "" && c.After != "" {
			gains = !gains
		}
		o.gainOrLose(gains, fmt.Sprintf("%s: %s %s", who, path, bounds(c)), fmt.Sprintf("%s: %s %s", who, path, bounds(c)))
	}
}

func (o *effects) gainOrLose(gains bool, gained, lost string) {
	if gains {
		o.Gained = append(o.Gained, gained)
	} else {
		o.Lost = append(o.Lost, lost)
	}
}

// more reports whether a bound is lifted or raised.
func more(c change) bool {
	before, err := resource.ParseQuantity(c.Before)
	if err != nil {
		return false // there was none
	}
	after, err := resource.ParseQuantity(c.After)
	return err != nil || after.Cmp(before) > 0
}

func bounds(c change) string {
	word := func(value string) string {
		if value == "" {
			return "without bound"
		}
		return value
	}
	return word(c.Before) + " -> " + word(c.After)
}

// each passes on the lines for people.
func (o effects) each(tell func(line string)) {
	for _, list := range []struct {
		title string
		lines []string
	}{{"Gained:", o.Gained}, {"Lost:", o.Lost}, {"Moved:", o.Moved}} {
		if len(list.lines) > 0 {
			tell(list.title)
		}
		for _, line := range list.lines {
			tell("  " + line)
		}
	}
}

// oneLine keeps text that others wrote from breaking the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, text)
}
