package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gophercloud/gophercloud/v2"
)

// Kind classifies what went wrong, so that callers choose a reaction without
// looking at status codes.
type Kind string

// The kinds of failure that a caller tells apart.
const (
	KindNotFound     Kind = "NotFound"     // 404: the volume, type or source does not exist
	KindInvalid      Kind = "Invalid"      // 400: the request itself is refused
	KindConflict     Kind = "Conflict"     // 409, or 400 for a volume in the wrong state
	KindOverQuota    Kind = "OverQuota"    // 413: Cinder's own quota
	KindRateLimited  Kind = "RateLimited"  // 429
	KindUnauthorized Kind = "Unauthorized" // 401, also after a new login
	KindForbidden    Kind = "Forbidden"    // 403
	KindUnavailable  Kind = "Unavailable"  // 5xx, no connection, no answer
	KindConfig       Kind = "Config"       // configuration or credentials cannot be used
	KindVolumeFailed Kind = "VolumeFailed" // the volume went to error
	KindTimeout      Kind = "Timeout"      // a wait of ours ran out
	KindNotOurs      Kind = "NotOurs"      // the volume's stamp does not match
	KindInUse        Kind = "InUse"        // attached elsewhere, or has snapshots
	KindFenced       Kind = "Fenced"       // the leader's term is over
	KindInternal     Kind = "Internal"     // an answer that the API reference does not allow
)

// Error is every failure of this package, in one form.
type Error struct {
	Kind      Kind
	Backend   string
	Operation string // like "volume.create"; empty when no request was made
	Status    int    // HTTP status, 0 when there was no answer
	RequestID string // Cinder's X-Openstack-Request-Id
	// Message is a sentence without secrets, fit for an event.
	Message string
	// RetryAfter is what the server asked for, 0 when it did not.
	RetryAfter time.Duration
	// EffectUnknown says that the request may have taken effect although no
	// answer came: only a look can tell.
	EffectUnknown bool

	cause error
}

// Error renders place, culprit and what Cinder said.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "backend %s: ", e.Backend)
	if e.Operation != "" {
		fmt.Fprintf(&b, "%s: ", e.Operation)
	}
	b.WriteString(e.Message)
	if e.Status != 0 {
		fmt.Fprintf(&b, " (HTTP %d", e.Status)
		if e.RequestID != "" {
			fmt.Fprintf(&b, ", %s", e.RequestID)
		}
		b.WriteString(")")
	}
	return b.String()
}

// Unwrap gives the context error behind a cancelled call. Foreign errors stay
// hidden: their texts may carry request bodies.
func (e *Error) Unwrap() error { return e.cause }

// KindOf returns the kind of the first Error in err's chain, or "" when there
// is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return ""
}

// IsKind reports whether err carries an Error of that kind.
func IsKind(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// translate makes an Error of whatever gophercloud, net/http or the context
// returned. It is the only place that knows their types.
func translate(backend, operation string, err error) error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		return own
	}
	e := &Error{Backend: backend, Operation: operation, Kind: KindUnavailable}

	var reauth *gophercloud.ErrUnableToReauthenticate
	if errors.As(err, &reauth) {
		translated := &Error{}
		if errors.As(translate(backend, "auth.login", reauth.ErrReauth), &translated) {
			return translated
		}
	}
	var after *gophercloud.ErrErrorAfterReauthentication
	if errors.As(err, &after) && after.ErrOriginal != nil {
		return translate(backend, operation, after.ErrOriginal)
	}

	var answer gophercloud.ErrUnexpectedResponseCode
	if errors.As(err, &answer) {
		return e.fromAnswer(answer)
	}

	var unsent notSent
	e.EffectUnknown = !errors.As(err, &unsent)
	switch {
	case errors.Is(err, context.Canceled):
		e.cause = context.Canceled
		e.Message = "the request was cancelled"
		return e
	case errors.Is(err, context.DeadlineExceeded):
		e.cause = context.DeadlineExceeded
		e.Message = "no answer in time"
		return e
	case !e.EffectUnknown:
		e.Message = "the request was not sent: " + unsent.Error()
		return e
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() && !isDial(err) {
		e.Message = "no answer in time"
		return e
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		e.EffectUnknown = false
		e.Message = fmt.Sprintf("no connection to %s: %s", dialTarget(err, dial), rootCause(dial.Err))
		return e
	}
	var unresolved *net.DNSError
	if errors.As(err, &unresolved) {
		e.EffectUnknown = false
		e.Message = fmt.Sprintf("cannot resolve host %q", unresolved.Name)
		return e
	}
	var transport *url.Error
	if errors.As(err, &transport) {
		// url.Error repeats method and URL; both are in Operation and metrics.
		e.Message = "connection failed: " + rootCause(transport.Err)
		return e
	}
	if isDecoding(err) {
		e.Kind = KindInternal
		e.Message = "the answer is not the JSON that the API reference describes"
		return e
	}
	e.Kind = KindConfig
	e.EffectUnknown = false
	e.Message = err.Error()
	return e
}

func isDial(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// fromAnswer reads status, headers and the fault document of an HTTP answer.
func (e *Error) fromAnswer(answer gophercloud.ErrUnexpectedResponseCode) *Error {
	e.Status = answer.Actual
	e.EffectUnknown = false
	e.RequestID = answer.ResponseHeader.Get("X-Openstack-Request-Id")
	e.RetryAfter = retryAfter(answer.ResponseHeader)
	e.Message = faultMessage(answer.Body)
	switch {
	case answer.Actual == http.StatusNoContent || answer.Actual == http.StatusOK && len(answer.Body) == 0:
		e.Kind = KindConfig
		e.Message = "the endpoint gave an empty answer instead of data: a noauth Cinder does so when no X-Auth-Token " +
			"header arrives; check whether a proxy removes the header and whether the endpoint is Cinder's v3"
	case answer.Actual == http.StatusBadRequest && isStateConflict(e.Message):
		e.Kind = KindConflict
	case answer.Actual == http.StatusBadRequest:
		e.Kind = KindInvalid
	case answer.Actual == http.StatusUnauthorized:
		e.Kind = KindUnauthorized
		e.Message = orElse(e.Message, "the credentials were refused")
	case answer.Actual == http.StatusForbidden:
		e.Kind = KindForbidden
		e.Message = orElse(e.Message, "the account is not allowed to do this")
	case answer.Actual == http.StatusNotFound:
		e.Kind = KindNotFound
		e.Message = orElse(e.Message, "not found")
	case answer.Actual == http.StatusConflict:
		e.Kind = KindConflict
	case answer.Actual == http.StatusRequestEntityTooLarge:
		e.Kind = KindOverQuota
		e.Message = orElse(e.Message, "Cinder's quota of the project is used up")
	case answer.Actual == http.StatusTooManyRequests:
		e.Kind = KindRateLimited
		e.Message = orElse(e.Message, "Cinder asks for fewer requests")
	case answer.Actual >= 500:
		e.Kind = KindUnavailable
		e.EffectUnknown = true
	default:
		e.Kind = KindInternal
	}
	e.Message = orElse(e.Message, "Cinder answered "+strings.ToLower(http.StatusText(answer.Actual)))
	return e
}

// isStateConflict recognises Cinder's 400 for a volume in the wrong state
// (exception.InvalidVolume, text "Invalid volume: ..."), which the API
// reference documents as a conflict and Cinder answers as a bad request.
func isStateConflict(message string) bool {
	return strings.HasPrefix(message, "Invalid volume:")
}

// faultMessage takes the sentence out of a fault document such as
// {"badRequest": {"code": 400, "message": "..."}} and cuts a server's
// traceback, which some of Cinder's answers carry after a line break.
func faultMessage(body []byte) string {
	var envelope map[string]json.RawMessage
	if json.Unmarshal(body, &envelope) != nil {
		return ""
	}
	message := ""
	if raw, ok := envelope["message"]; ok {
		_ = json.Unmarshal(raw, &message)
	}
	for _, raw := range envelope {
		var fault struct {
			Message string `json:"message"`
		}
		if message == "" && json.Unmarshal(raw, &fault) == nil {
			message = fault.Message
		}
	}
	message, _, _ = strings.Cut(message, "\n")
	message = strings.TrimSpace(strings.ReplaceAll(message, "<br /><br />", ""))
	const longest = 300
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest], "") + "..."
	}
	return strings.TrimSuffix(message, ".")
}

// retryAfter reads the header in its form of seconds. Cinder sends 0 with an
// exceeded quota, which asks for nothing.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(strings.TrimSpace(header.Get("Retry-After")))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func dialTarget(err error, dial *net.OpError) string {
	var request *url.Error
	if errors.As(err, &request) {
		if u, parseErr := url.Parse(request.URL); parseErr == nil && u.Host != "" {
			return u.Host
		}
	}
	if dial.Addr != nil {
		return dial.Addr.String()
	}
	return "the endpoint"
}

// rootCause is the innermost text of a network error, without addresses of
// ephemeral ports, so that the same trouble gives the same sentence.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

func isDecoding(err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	return errors.As(err, &syntax) || errors.As(err, &kind)
}

func orElse(s, fallback string) string {
	if s == "" {
		return fallback
	}
	return s
}
