package cinder

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind classifies what went wrong, so that callers can react without looking at
// status codes.
type Kind string

// The kinds of failure that a client distinguishes. The lifecycle adds more.
const (
	KindNotFound     Kind = "NotFound"     // 404: the volume, type or source does not exist
	KindInvalid      Kind = "Invalid"      // 400: the request itself is wrong
	KindConflict     Kind = "Conflict"     // 409, or 400 for a volume or snapshot in the wrong state
	KindOverQuota    Kind = "OverQuota"    // 413: Cinder's own quota
	KindRateLimited  Kind = "RateLimited"  // 429
	KindUnauthorized Kind = "Unauthorized" // 401, also after a new login
	KindForbidden    Kind = "Forbidden"    // 403
	KindUnavailable  Kind = "Unavailable"  // 5xx, no connection, no answer
	KindConfig       Kind = "Config"       // configuration or credentials are unusable
	KindFenced       Kind = "Fenced"       // the leader's term is over
	KindInternal     Kind = "Internal"     // an answer that the API reference does not allow
)

// Error is every failure at a backend, in one form.
type Error struct {
	Kind      Kind
	Backend   string
	Operation string // like "volume.create"; empty when no request was made
	Status    int    // HTTP status, 0 without an answer
	RequestID string // Cinder's X-Openstack-Request-Id
	// Message is a sentence without secrets, fit for an event.
	Message string
	// RetryAfter is the delay that the server requested, or 0.
	RetryAfter time.Duration
	// EffectUnknown means that the request may have taken effect although no answer came:
	// only a read can tell.
	EffectUnknown bool
	// Place is where the backend points, if that matters to the failure.
	Place Place
	// Cause is the context's error behind a canceled call. Foreign errors stay
	// hidden: their texts may contain request bodies.
	Cause error
	// Unsent means that no request was made, so the failure says nothing about the
	// backend.
	Unsent bool
}

// Error returns the backend's name, the operation, and what went wrong.
func (e *Error) Error() string {
	text := "backend " + e.Backend + ": " + e.Summary()
	if e.Status != 0 && e.RequestID != "" {
		text = strings.TrimSuffix(text, ")") + ", " + e.RequestID + ")"
	}
	return text
}

// TextOf returns an error's text without the request ID of the failure that it wraps, so
// the same problem yields the same text.
func TextOf(err error) string {
	var failed *Error
	if !errors.As(err, &failed) || failed.RequestID == "" {
		return err.Error()
	}
	return strings.ReplaceAll(err.Error(), ", "+failed.RequestID, "")
}

// Summary returns the error without the backend's name and the request ID, so the same
// problem yields the same text.
func (e *Error) Summary() string {
	text := e.Message
	if e.Operation != "" {
		text = e.Operation + ": " + text
	}
	if e.Status != 0 {
		text += fmt.Sprintf(" (HTTP %d)", e.Status)
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KindOf returns the kind of the first Error in err's chain, or "" if there is
// none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return ""
}

// IsKind reports whether err contains an Error of that kind.
func IsKind(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// WithoutEffect turns the failure of a preparatory request, such as a login, into that of
// the call that it prepared: regardless of what happened to the former, the latter was
// not made.
func WithoutEffect(err error) error {
	return altered(err, func(e *Error) { e.EffectUnknown = false })
}

// altered returns an error with a change to the Error that it contains, if any.
func altered(err error, change func(e *Error)) error {
	var failed *Error
	if !errors.As(err, &failed) {
		return err
	}
	other := *failed
	change(&other)
	return &other
}

// NotSent returns the failure of a request that was not made because of another
// error, such as a context's.
func NotSent(backend, operation string, err error) error {
	return translate(backend, operation, notSent{err})
}
