// Package fields reads the fields of request bodies, with those checks of Cinder's
// JSON schemas (cinder/api/schemas) that a client may fail, and jsonschema's
// sentences.
package fields

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// MaxInteger is the largest integer of Cinder's database.
const MaxInteger = 2147483647

var (
	digitsPattern      = regexp.MustCompile(`^[0-9]+$`)
	metadataKeyPattern = regexp.MustCompile(`^[a-zA-Z0-9-_:. /]{1,255}$`)
	uuidPattern        = regexp.MustCompile(`^[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}$`)
)

// Error is why a body is invalid, as Cinder says it with status 400.
type Error struct{ Message string }

func (e *Error) Error() string { return e.Message }

// Invalid returns the error with the sentence of Cinder's JSON schema
// validation.
func Invalid(field string, value any, format string, args ...any) *Error {
	return &Error{fmt.Sprintf("Invalid input for field/attribute %s. Value: %s. %s", field, python.Text(value), fmt.Sprintf(format, args...))}
}

// Digits reports whether a text is a number without a sign.
func Digits(text string) bool { return digitsPattern.MatchString(text) }

// Truth reads a boolean as oslo's strict bool_from_string does.
func Truth(text string) (value, known bool) {
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "1", "t", "true", "on", "y", "yes":
		return true, true
	case "0", "f", "false", "off", "n", "no":
		return false, true
	}
	return false, false
}

// Read reads a field unless an earlier one was invalid.
func Read[T any](invalid *error, read func(body map[string]any, field string) (T, error), body map[string]any, field string) (value T) {
	if *invalid == nil {
		value, *invalid = read(body, field)
	}
	return value
}

// Text reads an optional string. Null and absence are the same.
func Text(body map[string]any, field string) (*string, error) {
	switch value := body[field].(type) {
	case nil:
		return nil, nil
	case string:
		return &value, nil
	default:
		return nil, Invalid(field, value, "%s is not of type 'string', 'null'", python.Repr(value))
	}
}

// Name reads a name or description: stripped, at most 255 characters.
func Name(body map[string]any, field string) (*string, error) {
	text, err := Text(body, field)
	if err != nil || text == nil {
		return nil, err
	}
	stripped := strings.TrimSpace(*text)
	if n := utf8.RuneCountInString(stripped); n > 255 {
		return nil, &Error{fmt.Sprintf("Invalid input received: %s has %d characters, more than 255.", field, n)}
	}
	return &stripped, nil
}

// Size reads a size in GiB, given as an integer or a string of digits. It
// returns zero for a missing one where that is allowed.
func Size(body map[string]any, field string, nullable bool) (int, error) {
	types := "'integer', 'string'"
	if nullable {
		types += ", 'null'"
	}
	value := body[field]
	var digits string
	switch v := value.(type) {
	case nil:
		if nullable {
			return 0, nil
		}
	case json.Number:
		if number, ok := new(big.Float).SetString(v.String()); ok && number.IsInt() && !strings.ContainsAny(v.String(), ".eE") {
			digits = v.String()
		}
	case string:
		if !digitsPattern.MatchString(v) {
			return 0, Invalid(field, value, "%s does not match '^[0-9]+$'", python.Repr(v))
		}
		digits = v
	}
	if digits == "" {
		return 0, Invalid(field, value, "%s is not of type %s", python.Repr(value), types)
	}
	number, _ := new(big.Int).SetString(digits, 10)
	if number.Cmp(big.NewInt(1)) < 0 {
		return 0, Invalid(field, value, "%s is less than the minimum of 1", number)
	}
	if number.Cmp(big.NewInt(MaxInteger)) > 0 {
		return 0, Invalid(field, value, "%s is greater than the maximum of %d", number, MaxInteger)
	}
	return int(number.Int64()), nil
}

// Metadata reads an object of strings. A nil map means that it was
// missing.
func Metadata(body map[string]any, field string) (map[string]string, error) {
	return texts(body, field, false)
}

// NullableMetadata takes null as missing, too.
func NullableMetadata(body map[string]any, field string) (map[string]string, error) {
	return texts(body, field, true)
}

func texts(body map[string]any, field string, nullable bool) (map[string]string, error) {
	value, given := body[field]
	if !given || value == nil && nullable {
		return nil, nil
	}
	entries, ok := value.(map[string]any)
	if !ok {
		types := "'object'"
		if nullable {
			types += ", 'null'"
		}
		return nil, Invalid(field, value, "%s is not of type %s", python.Repr(value), types)
	}
	metadata := make(map[string]string, len(entries))
	keys := make([]string, 0, len(entries))
	for key := range entries {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		if !metadataKeyPattern.MatchString(key) {
			return nil, Invalid(field, value, "%s does not match any of the regexes: '^[a-zA-Z0-9-_:. /]{1,255}$'", python.Repr(key))
		}
		text, ok := entries[key].(string)
		if !ok {
			return nil, Invalid(key, entries[key], "%s is not of type 'string'", python.Repr(entries[key]))
		}
		if utf8.RuneCountInString(text) > 255 {
			return nil, Invalid(key, text, "%s is too long", python.Repr(text))
		}
		metadata[key] = text
	}
	return metadata, nil
}

// OptionalUUID reads an id that may be null.
func OptionalUUID(body map[string]any, field string) (string, error) {
	value := body[field]
	if value == nil {
		return "", nil
	}
	if text, ok := value.(string); ok && uuidPattern.MatchString(text) {
		return text, nil
	}
	return "", Invalid(field, value, "%s is not valid under any of the given schemas", python.Repr(value))
}

// UUID reads an ID that may be missing.
func UUID(body map[string]any, field string) (string, error) {
	value, given := body[field]
	if !given {
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", Invalid(field, value, "%s is not of type 'string'", python.Repr(value))
	}
	if !uuidPattern.MatchString(text) {
		return "", Invalid(field, value, "%s is not a 'uuid'", python.Repr(value))
	}
	return text, nil
}

// Boolean reads a boolean, given as such or as a word for it.
func Boolean(body map[string]any, field string) (bool, error) {
	value, given := body[field]
	if !given {
		return false, nil
	}
	switch v := value.(type) {
	case bool:
		return v, nil
	case string:
		if parsed, known := Truth(v); known {
			return parsed, nil
		}
		return false, Invalid(field, value, "%s is not one of the words for true and false", python.Repr(value))
	}
	return false, Invalid(field, value, "%s is not of type 'boolean', 'string'", python.Repr(value))
}

// Only rejects fields that a schema does not know.
func Only(entity string, body map[string]any, known ...string) error {
	for _, field := range slices.Sorted(maps.Keys(body)) {
		if !slices.Contains(known, field) {
			return Invalid(entity, body, "Additional properties are not allowed (%s was unexpected)", python.Repr(field))
		}
	}
	return nil
}

// Bounded reads a string that must have between minimum and 255 characters.
func Bounded(body map[string]any, field string, minimum int) (string, error) {
	value, given := body[field]
	if !given {
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", Invalid(field, value, "%s is not of type 'string'", python.Repr(value))
	}
	if n := utf8.RuneCountInString(text); n < minimum {
		return "", Invalid(field, value, "%s is too short", python.Repr(value))
	} else if n > 255 {
		return "", Invalid(field, value, "%s is too long", python.Repr(value))
	}
	return text, nil
}

// Mode reads an optional attach mode.
func Mode(body map[string]any, field string) (string, error) {
	value, given := body[field]
	if !given {
		return "", nil
	}
	if value != "rw" && value != "ro" {
		return "", Invalid(field, value, "%s is not one of ['rw', 'ro']", python.Repr(value))
	}
	return value.(string), nil
}

// Connector reads the connector of an action, which is required. Cinder
// also accepts a string, which no driver understands.
func Connector(action string, parameters map[string]any, nullable bool) (map[string]any, error) {
	value, given := parameters["connector"]
	if !given {
		return nil, Invalid(action, parameters, "'connector' is a required property")
	}
	switch connector := value.(type) {
	case map[string]any:
		return connector, nil
	case string:
		return nil, nil
	case nil:
		if nullable {
			return nil, nil
		}
	}
	types := "'object', 'string'"
	if nullable {
		types = "'string', 'object', 'null'"
	}
	return nil, Invalid("connector", value, "%s is not of type %s", python.Repr(value), types)
}
