// Package bound cuts texts that strangers wrote before they are kept or repeated.
package bound

import "strings"

const (
	// maxText bounds the texts that are kept of tenants' objects, in bytes. No name has
	// more than 253. The API server itself has no bound for some of them.
	maxText = 512
	// maxMessage bounds the messages that are kept, and written to events, in bytes.
	maxMessage = 1024
)

// mark ends what was cut. No name, and no ID, contains it, so what names an object
// names none once it is cut.
const mark = "... (cut)"

// Text bounds a text of a tenant's object.
func Text[T ~string](text T) T { return cut(text, maxText) }

// IsCut reports whether Text cut a text.
func IsCut[T ~string](text T) bool { return strings.HasSuffix(string(text), mark) }

// Message bounds a message that may repeat texts of tenants' objects or of servers.
func Message(message string) string { return cut(message, maxMessage) }

// cut copies what it keeps, or the whole text would stay in memory.
func cut[T ~string](text T, most int) T {
	if len(text) <= most {
		return text
	}
	return T(strings.ToValidUTF8(string(text[:most-len(mark)]), "") + mark)
}
