// Package bound truncates untrusted texts before they are kept or repeated.
package bound

import "strings"

const (
	// maxText bounds the texts kept from tenants' objects, in bytes. Names have at most
	// 253. The API server does not bound some of them.
	maxText = 512
	// maxMessage bounds messages kept or written to events, in bytes.
	maxMessage = 1024
	// maxSummary bounds messages of which many are kept in one object, in bytes.
	maxSummary = 256
)

// mark ends a truncated text. No name or ID contains it, so a truncated name matches
// nothing.
const mark = "... (cut)"

// Text bounds a text of a tenant's object.
func Text[T ~string](text T) T { return cut(text, maxText) }

// IsCut reports whether Text cut a text.
func IsCut[T ~string](text T) bool { return strings.HasSuffix(string(text), mark) }

// Message bounds a message that may repeat texts of tenants' objects or of servers.
func Message(message string) string { return cut(message, maxMessage) }

// Summary bounds a message of which many are kept in one object.
func Summary(message string) string { return cut(message, maxSummary) }

// cut copies what it keeps, so that the whole text can be freed.
func cut[T ~string](text T, most int) T {
	if len(text) <= most {
		return text
	}
	return T(strings.ToValidUTF8(string(text[:most-len(mark)]), "") + mark)
}
