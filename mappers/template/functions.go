package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// function is a function of the language. Its arguments are in written order, with a
// piped value last.
type function struct {
	// usage is the call as the documentation shows it.
	usage string
	// least and most bound the number of arguments. If most is 0, there is no
	// upper bound.
	least, most int
	// check finds mistakes in constant arguments.
	check func(arguments []expression) string
	apply func(s *scope, c call, values []any) (any, error)
}

// FunctionNames lists the functions, sorted.
func FunctionNames() []string { return slices.Sorted(maps.Keys(functions())) }

// Usage shows how a function is called.
func Usage(name string) string { return functions()[name].usage }

// functions returns all functions of the language. They depend only on their arguments.
func functions() map[string]function {
	return map[string]function{
		"default":    {usage: `VALUE | default "x"`, least: 2, most: 2, apply: applyDefault},
		"index":      {usage: "index LIST 0, or index OBJECT \"key\"", least: 2, apply: applyIndex},
		"join":       {usage: `LIST | join ","`, least: 2, most: 2, apply: applyJoin},
		"split":      {usage: `TEXT | split ","`, least: 2, most: 2, check: notEmpty("split", 0), apply: applySplit},
		"replace":    {usage: `TEXT | replace "old" "new"`, least: 3, most: 3, check: notEmpty("replace", 0), apply: applyReplace},
		"trimPrefix": {usage: `TEXT | trimPrefix "x"`, least: 2, most: 2, apply: onTexts(func(t []string) string { return strings.TrimPrefix(t[1], t[0]) })},
		"trimSuffix": {usage: `TEXT | trimSuffix "x"`, least: 2, most: 2, apply: onTexts(func(t []string) string { return strings.TrimSuffix(t[1], t[0]) })},
		"lower":      {usage: "TEXT | lower", least: 1, most: 1, apply: onTexts(func(t []string) string { return strings.ToLower(t[0]) })},
		"upper":      {usage: "TEXT | upper", least: 1, most: 1, apply: onTexts(func(t []string) string { return strings.ToUpper(t[0]) })},
		"base":       {usage: "PATH | base", least: 1, most: 1, apply: onTexts(func(t []string) string { return path.Base(t[0]) })},
		"dir":        {usage: "PATH | dir", least: 1, most: 1, apply: onTexts(func(t []string) string { return path.Dir(t[0]) })},
		"host":       {usage: "ADDRESS | host", least: 1, most: 1, apply: applyHost},
		"port":       {usage: "ADDRESS | port", least: 1, most: 1, apply: applyPort},
		"printf":     {usage: `printf "%04d" NUMBER`, least: 1, most: 9, check: checkFormat, apply: applyPrintf},
		"json":       {usage: "VALUE | json", least: 1, most: 1, apply: applyJSON},
	}
}

// notEmpty refuses an empty text as a constant argument.
func notEmpty(name string, at int) func([]expression) string {
	return func(arguments []expression) string {
		if constant, ok := arguments[at].(literal); ok && constant.value == "" {
			return name + " looks for empty text; write the text to look for"
		}
		return ""
	}
}

// texts returns a call's arguments as texts.
func texts(c call, values []any) ([]string, error) {
	result := make([]string, len(values))
	for i, value := range values {
		text, err := scalar(c.arguments[i], value)
		if err != nil {
			return nil, err
		}
		result[i] = text
	}
	return result, nil
}

func onTexts(do func([]string) string) func(*scope, call, []any) (any, error) {
	return func(_ *scope, c call, values []any) (any, error) {
		arguments, err := texts(c, values)
		if err != nil {
			return nil, err
		}
		return do(arguments), nil
	}
}

func applyDefault(_ *scope, _ call, values []any) (any, error) {
	if values[1] == nil || values[1] == "" {
		return values[0], nil
	}
	return values[1], nil
}

func applyIndex(s *scope, c call, values []any) (any, error) {
	value := values[0]
	for i, key := range values[1:] {
		// Messages name the container and the keys so far.
		at := call{function: c.function, arguments: c.arguments[:i+2]}
		switch container := value.(type) {
		case nil:
			return nil, nil
		case []any:
			number, ok := key.(json.Number)
			position, err := strconv.Atoi(string(number))
			if !ok || err != nil {
				return nil, fmt.Errorf("%s: a list is indexed by whole numbers", at.name())
			}
			if value = nil; position >= 0 && position < len(container) {
				value = container[position]
			}
		case map[string]any:
			name, ok := key.(string)
			if !ok {
				return nil, fmt.Errorf("%s: an object is indexed by names", at.name())
			}
			if !s.secret && IsCredential(name) {
				return nil, errCredential
			}
			value = container[name]
		default:
			return nil, fmt.Errorf("%s: %s has no elements", at.name(), kindOf(value))
		}
	}
	if text, ok := value.(string); ok && len(text) > maxText {
		return nil, fmt.Errorf("%s is longer than %d bytes", c.name(), maxText)
	}
	return value, nil
}

func applyJoin(_ *scope, c call, values []any) (any, error) {
	separator, err := scalar(c.arguments[0], values[0])
	if err != nil {
		return nil, err
	}
	list, ok := values[1].([]any)
	if !ok {
		if values[1] == nil {
			_, err := scalar(c.arguments[1], nil)
			return nil, err
		}
		return nil, fmt.Errorf("%s is %s, but join needs a list", c.arguments[1].name(), kindOf(values[1]))
	}
	elements := make([]string, len(list))
	length := 0
	for i, element := range list {
		position := literal{json.Number(strconv.Itoa(i))}
		if elements[i], err = scalar(call{function: "index", arguments: []expression{c.arguments[1], position}}, element); err != nil {
			return nil, err
		}
		if length += len(elements[i]) + len(separator); length > maxText+len(separator) {
			return nil, fmt.Errorf("%s is longer than %d bytes", c.name(), maxText)
		}
	}
	return strings.Join(elements, separator), nil
}

func applySplit(_ *scope, c call, values []any) (any, error) {
	arguments, err := texts(c, values)
	if err != nil {
		return nil, err
	}
	if arguments[0] == "" {
		return nil, fmt.Errorf("%s is empty, but split needs a separator", c.arguments[0].name())
	}
	var list []any
	for part := range strings.SplitSeq(arguments[1], arguments[0]) {
		list = append(list, part)
	}
	return list, nil
}

func applyReplace(_ *scope, c call, values []any) (any, error) {
	arguments, err := texts(c, values)
	if err != nil {
		return nil, err
	}
	before, after, text := arguments[0], arguments[1], arguments[2]
	if before == "" {
		return nil, fmt.Errorf("%s is empty, but replace needs text to look for", c.arguments[0].name())
	}
	// The length is computed first, because a short text may become very long.
	if len(text)+strings.Count(text, before)*len(after) > maxText {
		return nil, fmt.Errorf("%s is longer than %d bytes", c.name(), maxText)
	}
	return strings.ReplaceAll(text, before, after), nil
}

func applyHost(_ *scope, c call, values []any) (any, error) {
	host, _, err := hostPort(c, values)
	return host, err
}

func applyPort(_ *scope, c call, values []any) (any, error) {
	_, port, err := hostPort(c, values)
	return port, err
}

func hostPort(c call, values []any) (host, port string, err error) {
	arguments, err := texts(c, values)
	if err != nil {
		return "", "", err
	}
	host, port, err = net.SplitHostPort(arguments[0])
	if err != nil {
		// The cause quotes the address.
		return "", "", fmt.Errorf("%s is not an address and port", c.arguments[0].name())
	}
	return host, port, nil
}

// verb matches a verb that printf knows; widths have two digits at most.
var (
	verb       = regexp.MustCompile(`%%|%(0?[0-9]{0,2})([dsxX])`)
	percentEnd = regexp.MustCompile(`%`)
)

// checkFormat rejects formats that are not constants, and unknown verbs.
func checkFormat(arguments []expression) string {
	constant, _ := arguments[0].(literal)
	format, ok := constant.value.(string)
	if !ok {
		return "printf needs its format in quotes"
	}
	if percentEnd.MatchString(verb.ReplaceAllString(format, "")) {
		return fmt.Sprintf("printf does not support the format %q; it supports %%s, %%d, %%x, %%X and %%%%, with a width such as %%04d", format)
	}
	verbs := 0
	for _, match := range verb.FindAllString(format, -1) {
		if match != "%%" {
			verbs++
		}
	}
	if verbs != len(arguments)-1 {
		return fmt.Sprintf("printf has %d values for the %d in its format", len(arguments)-1, verbs)
	}
	return ""
}

func applyPrintf(_ *scope, c call, values []any) (any, error) {
	format, _ := values[0].(string)
	arguments, err := texts(c, values)
	if err != nil {
		return nil, err
	}
	next, failed := 0, error(nil)
	text := verb.ReplaceAllStringFunc(format, func(match string) string {
		if match == "%%" {
			return "%"
		}
		next++
		if kind := match[len(match)-1]; kind == 's' {
			return fmt.Sprintf(match, arguments[next])
		}
		number, err := strconv.ParseInt(arguments[next], 10, 64)
		if err != nil {
			failed = fmt.Errorf("%s is not a whole number", c.arguments[next].name())
			return ""
		}
		return fmt.Sprintf(match, number)
	})
	return text, failed
}

func applyJSON(s *scope, c call, values []any) (any, error) {
	if values[0] == nil {
		_, err := scalar(c.arguments[0], nil)
		return nil, err
	}
	if !s.secret && holdsCredential(values[0]) {
		return nil, errCredential
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(values[0]); err != nil {
		return nil, fmt.Errorf("%s cannot be written as JSON", c.arguments[0].name())
	}
	return strings.TrimSuffix(text.String(), "\n"), nil
}

// holdsCredential looks for credential fields at any depth.
func holdsCredential(value any) bool {
	switch typed := value.(type) {
	case []any:
		return slices.ContainsFunc(typed, holdsCredential)
	case map[string]any:
		for key, inner := range typed {
			if IsCredential(key) || holdsCredential(inner) {
				return true
			}
		}
	}
	return false
}

// decimal writes a whole number in digits, however it was written.
func decimal(number json.Number) string {
	text := string(number)
	if !strings.ContainsAny(text, ".eE") {
		return text
	}
	const exact = 1 << 53
	if value, err := number.Float64(); err == nil && value == math.Trunc(value) && math.Abs(value) < exact {
		return strconv.FormatInt(int64(value), 10)
	}
	return text
}
