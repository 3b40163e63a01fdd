package mappers

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/mappers/template"
)

// Connection is Cinder's answer about a connected volume, regardless of the API and
// envelope it came in. Map rejects the zero value, which is no connection.
//
// A Connection holds credentials. Its data cannot be reached from outside this package,
// and every way of printing it shows only the names of its fields.
type Connection struct {
	protocol string
	data     map[string]any
	// credentials are the values in data that must not be printed.
	credentials []string
	// readOnly means that the envelope grants the volume read-only.
	readOnly bool
}

// protocolPattern restricts protocols to plain words, because they end up in
// events, annotations and metric labels.
var protocolPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ParseConnection reads the JSON of an answer of Cinder. It accepts two forms, each bare
// or inside "connection_info", and an attachment also inside "attachment":
//
//   - os-initialize_connection: {"driver_volume_type": ..., "data": {...}}
//   - attachments API: the same facts in one flat object, without "data"
//     (cinder/api/v3/views/attachments.py)
//
// The error is a *Refusal of reason InvalidConnection.
func ParseConnection(document []byte) (Connection, error) {
	root, err := decodeObject(document)
	if err != nil {
		return Connection{}, refuse(InvalidConnection, "the connection document %v; pass Cinder's answer unchanged", err)
	}
	return fromEnvelope(root)
}

func fromEnvelope(root map[string]any) (Connection, error) {
	envelope, info := root, root
	for _, key := range []string{"attachment", "connection_info"} {
		if _, flat := info["driver_volume_type"]; flat {
			break
		}
		value, present := info[key]
		if !present {
			continue
		}
		inner, ok := value.(map[string]any)
		if !ok || len(inner) == 0 {
			return Connection{}, refuse(InvalidConnection, "%s is %s: Cinder has not connected the volume; connect it with a connector first", key, emptiness(value))
		}
		envelope, info = info, inner
	}

	connection := Connection{}
	switch kind := info["driver_volume_type"].(type) {
	case string:
		connection.protocol = strings.ToLower(kind)
		if slices.Contains(placeholders(), connection.protocol) {
			return Connection{}, refuse(InvalidConnection, "driver_volume_type is %q, which is no protocol: this backend's driver failed to say how the volume is connected, so check the cinder-volume log", kind)
		}
		if !protocolPattern.MatchString(connection.protocol) {
			return Connection{}, refuse(InvalidConnection, "driver_volume_type is not a protocol's name (letters, digits, \".\", \"_\" and \"-\"); pass Cinder's answer unchanged")
		}
	default:
		return Connection{}, refuse(InvalidConnection, "driver_volume_type is %s, expected a protocol's name such as \"iscsi\"; pass Cinder's answer unchanged", missingOr(info, "driver_volume_type"))
	}

	// Only an absent "data" makes the form flat: null is a driver's failure.
	if data, nested := info["data"]; nested {
		object, ok := data.(map[string]any)
		if !ok {
			return Connection{}, refuse(InvalidConnection, "data is %s, expected an object; this backend's driver failed to describe the connection, so check the cinder-volume log", kindOf(data))
		}
		connection.data = object
	} else {
		connection.data = maps.Clone(info)
		delete(connection.data, "driver_volume_type")
		delete(connection.data, "attachment_id")
	}
	if len(connection.data) == 0 {
		return Connection{}, refuse(InvalidConnection, "the connection has type %s and no other fields; this backend's driver failed to describe it, so check the cinder-volume log", connection.protocol)
	}

	connection.credentials = credentialsIn(connection.data)
	// The driver may still report "rw" for an attachment created with mode "ro"
	// (attachments API 3.54 and newer).
	connection.readOnly = envelope["attach_mode"] == "ro"
	return connection, nil
}

// placeholders returns words that drivers send for a missing value.
func placeholders() []string {
	return []string{"", "unknown", "none", "null", "undefined", "unsupported"}
}

func emptiness(value any) string {
	if object, ok := value.(map[string]any); ok && len(object) == 0 {
		return "empty"
	}
	return kindOf(value)
}

func missingOr(object map[string]any, key string) string {
	value, present := object[key]
	if !present {
		return "missing"
	}
	return kindOf(value)
}

// Protocol returns driver_volume_type in lower case.
func (c Connection) Protocol() string { return c.protocol }

// String describes the connection without its values.
func (c Connection) String() string {
	return fmt.Sprintf("%s connection (%s)", c.protocol, strings.Join(slices.Sorted(maps.Keys(c.data)), ", "))
}

// GoString keeps %#v from printing the values.
func (c Connection) GoString() string { return c.String() }

// LogValue keeps slog from printing the values.
func (c Connection) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MarshalJSON keeps JSON loggers from printing the values.
func (c Connection) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// minCredentialLength is the minimum length of a credential to search for within other
// values and to reject in results. Shorter ones would match everywhere; they are withheld
// only from messages, and only as a whole value.
const minCredentialLength = 4

// credentialsIn collects the values of credential fields at any depth: a VMDK connection
// carries its vCenter's password in a nested object.
func credentialsIn(value any) []string {
	found := map[string]bool{}
	var walk func(value any, marked bool)
	walk = func(value any, marked bool) {
		switch typed := value.(type) {
		case map[string]any:
			for key, inner := range typed {
				walk(inner, marked || template.IsCredential(key))
			}
		case []any:
			for _, inner := range typed {
				walk(inner, marked)
			}
		case string:
			if marked {
				found[typed] = true
				// The lines of a keyring contain the actual keys. Cinder's provider_auth
				// is a method, a user and a password.
				words := strings.Fields(typed)
				if len(words) == 3 && words[0] == "CHAP" {
					words = words[2:]
				}
				for _, word := range words {
					found[word] = true
				}
			}
		case json.Number:
			if marked {
				found[typed.String()] = true
			}
		}
	}
	walk(value, false)
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// quote formats a value of the document for a message. It is the only way for a value to
// get into a message: objects and lists are named instead of printed, long strings cut,
// and values that contain a credential withheld.
func (c Connection) quote(value any) string {
	switch typed := value.(type) {
	case bool:
		return fmt.Sprint(typed)
	case json.Number:
		return c.quoteText(typed.String(), "%s")
	case string:
		return c.quoteText(typed, "%q")
	default:
		return kindOf(value)
	}
}

func (c Connection) quoteText(text, format string) string {
	for _, credential := range c.credentials {
		if text == credential || len(credential) >= minCredentialLength && strings.Contains(text, credential) {
			return "a value that contains a credential"
		}
	}
	const longest = 80
	if runes := []rune(text); len(runes) > longest {
		text = string(runes[:longest]) + "..."
	}
	return fmt.Sprintf(format, text)
}
