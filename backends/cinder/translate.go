package cinder

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/gophercloud/gophercloud/v2"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder/jsonstream"
)

// translate turns any error of gophercloud, net/http or a context into an
// Error. It is the only place that knows their types.
func translate(backend, operation string, err error) error {
	if err == nil {
		return nil
	}
	if own, ok := errors.AsType[*Error](err); ok {
		return own
	}
	e := &Error{Backend: backend, Operation: operation, Kind: KindUnavailable}

	if reauth, ok := errors.AsType[*gophercloud.ErrUnableToReauthenticate](err); ok {
		if errors.Is(reauth.ErrReauth, errFruitless) {
			return translate(backend, operation, reauth.ErrOriginal)
		}
		// The request itself was rejected with 401: regardless of what happened to the
		// login, nothing has changed.
		return WithoutEffect(translate(backend, OperationLogin, reauth.ErrReauth))
	}
	if after, ok := errors.AsType[*gophercloud.ErrErrorAfterReauthentication](err); ok && after.ErrOriginal != nil {
		return translate(backend, operation, after.ErrOriginal)
	}
	if answer, ok := errors.AsType[gophercloud.ErrUnexpectedResponseCode](err); ok {
		return e.fromAnswer(answer)
	}
	return e.fromFailure(err)
}

// fromFailure describes an exchange that ended without a complete answer. Unless the
// request certainly was not sent, its effect is unknown: a caller that assumed no effect
// would create a second volume.
func (e *Error) fromFailure(err error) *Error {
	var network *net.OpError
	var request *url.Error
	var tooLarge *http.MaxBytesError
	unsent, waited := errors.AsType[notSent](err)
	dial := dialing(err)
	unresolved, resolving := errors.AsType[*net.DNSError](err)
	untrusted, refused := errors.AsType[*tls.CertificateVerificationError](err)
	e.Unsent = waited
	e.EffectUnknown = !waited && dial == nil && !resolving && !refused
	switch {
	case errors.Is(err, context.Canceled):
		e.Cause, e.Message = context.Canceled, "the request was canceled"
	case waited && errors.Is(err, context.DeadlineExceeded):
		e.Cause, e.Message = context.DeadlineExceeded, "timed out waiting for a free request slot"
	case waited:
		e.Message = "the request was not sent: " + unsent.Error()
	case resolving:
		e.Message = fmt.Sprintf("cannot resolve host %q", sentence(unresolved.Name))
	case dial != nil:
		e.Message = fmt.Sprintf("no connection to %s: %s", dialTarget(err, dial), rootCause(dial.Err))
	case errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		e.Cause, e.Message = context.DeadlineExceeded, "no answer in time"
	case refused:
		e.Kind, e.Message = KindConfig, "the server's certificate is not trusted: "+sentence(untrusted.Err.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Message = "the connection ended before the answer was complete"
	case errors.As(err, &request):
		// url.Error repeats the method and URL, which Operation and the metrics already
		// show.
		e.Message = "connection failed: " + rootCause(request.Err)
	case errors.As(err, &network):
		e.Message = "connection failed: " + rootCause(network.Err)
	case errors.As(err, &tooLarge):
		e.Kind, e.Message = KindInternal, fmt.Sprintf("the answer is larger than %d KiB", tooLarge.Limit>>10)
	case isDecoding(err):
		e.Kind, e.Message = KindInternal, notDescribed
	default:
		// An unknown error's text may contain anything; its type is safe to show.
		e.Kind, e.Message = KindInternal, fmt.Sprintf("the exchange failed unexpectedly (%T)", err)
	}
	return e
}

// notDescribed describes an answer in a form that the API reference does not define.
const notDescribed = "unexpected response: not the JSON documented in the API reference"

// dialing returns the error of a connection that was never made.
func dialing(err error) *net.OpError {
	if failed, ok := errors.AsType[*net.OpError](err); ok && (failed.Op == "dial" || failed.Op == "proxyconnect") {
		return failed
	}
	return nil
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// cinderQuota distinguishes the OpenStack project's quota from the policy's.
const cinderQuota = "the OpenStack project's Cinder quota, not the policy's, is exhausted"

// fromAnswer reads status, headers and the fault document of an HTTP answer.
func (e *Error) fromAnswer(answer gophercloud.ErrUnexpectedResponseCode) *Error {
	e.Status = answer.Actual
	e.RequestID = requestID(answer.ResponseHeader)
	e.RetryAfter = retryAfter(answer.ResponseHeader)
	fault := readFault(answer.Body)
	isLogin := strings.HasPrefix(e.Operation, "auth.")
	service, tokenCheck, intermediary := "Cinder", isTokenCheck(answer.ResponseHeader, fault), isIntermediary(answer.ResponseHeader, answer.Body)
	if isLogin {
		service, tokenCheck = "Keystone", false
	} else {
		e.Message = fault.message
	}
	switch status := answer.Actual; {
	case status == http.StatusNoContent || status == http.StatusOK && len(answer.Body) == 0:
		e.Kind, e.Message = KindConfig, emptyAnswer
	case status >= 300 && status < 400:
		e.redirected(answer.ResponseHeader)
	case status == http.StatusUnauthorized && intermediary && !tokenCheck, status == http.StatusProxyAuthRequired:
		e.Kind, e.Message = KindConfig, fmt.Sprintf(demandsLogin, service)
	case status == http.StatusForbidden && intermediary && (isLogin || fault.message == ""):
		e.Kind, e.Message = KindForbidden, fmt.Sprintf(forbidsIt, service)
	case isLogin:
		return e.fromLogin(status, fault)
	case status < 300:
		e.Kind, e.Message = KindInternal, fmt.Sprintf("Cinder answered with status %s, which the API reference does not allow here", statusText(status))
	case status == http.StatusBadRequest && isStateConflict(e.Message):
		e.Kind = KindConflict
	case status == http.StatusBadRequest && e.Message == noKeyMade:
		e.Kind, e.Message = KindInvalid, keyRole
	case status == http.StatusBadRequest:
		e.Kind = KindInvalid
	case status == http.StatusUnauthorized && tokenCheck:
		e.Kind, e.Message = KindUnauthorized, tokenRefused
	case status == http.StatusUnauthorized:
		e.Kind, e.Message = KindUnauthorized, cmp.Or(e.Message, "the credentials were rejected")
	case status == http.StatusForbidden:
		e.Kind, e.Message = KindForbidden, cmp.Or(e.Message, "the account may not do this")
	case status == http.StatusNotFound && fault.name == "itemNotFound":
		e.Kind, e.Message = KindNotFound, cmp.Or(e.Message, "not found")
	case status == http.StatusNotFound:
		// A proxy without a backend answers this too, as does a Cinder that does not know
		// the address: neither proves that a volume is gone.
		e.Kind, e.Message = KindConfig, unprovenAbsence
	case status == http.StatusConflict:
		e.Kind = KindConflict
	case status == http.StatusRequestTimeout:
		e.Kind = KindUnavailable
		e.EffectUnknown = true
	case status == http.StatusRequestEntityTooLarge && e.RetryAfter > 0, status == http.StatusTooManyRequests:
		e.Kind, e.Message = KindRateLimited, cmp.Or(e.Message, "Cinder asks for fewer requests")
	case status == http.StatusRequestEntityTooLarge && fault.name != "overLimit":
		// A proxy answers this to a body that is too long for it, as does Cinder
		// (max_request_body_size, oslo.middleware, 112 KiB by default).
		e.Kind, e.Message = KindInvalid, requestTooLarge
	case status == http.StatusRequestEntityTooLarge:
		e.Kind, e.Message = KindOverQuota, cinderQuota
		if neverFits(fault.message) {
			e.Message = "the request is larger than Cinder's quota for the OpenStack project or its largest volume, so it can never fit"
		}
		if fault.message != "" {
			e.Message += ": " + fault.message
		}
	case status >= 500:
		e.Kind = KindUnavailable
		if isTokenUnchecked(answer.Body) {
			e.Message = tokenUnchecked
		}
	default:
		e.Kind = KindInternal
	}
	if !isLogin && !rejects(answer.Actual, fault) {
		e.EffectUnknown = true
	}
	e.Message = cmp.Or(e.Message, "Cinder answered "+statusText(answer.Actual))
	return e
}

// rejects reports whether an answer proves that the request had no effect: it carries
// Cinder's own fault, or a status given only to requests that go no further. Anything
// else may come from a server in between that rejected Cinder's answer.
func rejects(status int, fault fault) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusRequestEntityTooLarge, http.StatusTooManyRequests:
		return true
	}
	return status >= 400 && status < 500 && (fault.name != "" || fault.message != "")
}

const requestTooLarge = "the request is too large for the endpoint or a proxy in front of it; give the volume less metadata, or raise the limit " +
	"(max_request_body_size in cinder.conf)"

const emptyAnswer = "the endpoint gave an empty answer instead of data: a noauth Cinder does so when no X-Auth-Token " +
	"header arrives; check whether a proxy removes the header and whether the endpoint is Cinder's v3"

const unprovenAbsence = "the endpoint answers 404 without Cinder's itemNotFound: something between here and Cinder may be " +
	"broken, or the endpoint may not be Cinder's v3"

// fromLogin describes a rejected login without Keystone's message, which is never shown:
// the request it refers to contains the password.
func (e *Error) fromLogin(status int, fault fault) *Error {
	switch {
	case status == http.StatusBadRequest:
		e.Kind, e.Message = KindConfig, "Keystone rejected the login request as malformed; check the user, the project and their domains"
	case status == http.StatusUnauthorized:
		e.Kind, e.Message = KindUnauthorized, "the credentials were rejected"
		if e.Operation == OperationLogin {
			e.Message += "; check user, password, project and domains"
		}
	case status == http.StatusForbidden:
		e.Kind, e.Message = KindForbidden, "the account is not allowed to log in this way"
	case status == http.StatusNotFound && strings.HasPrefix(fault.message, "Could not find Application Credential:"):
		e.Kind, e.Message = KindUnauthorized, "Keystone has no such application credential: it was deleted, or its ID or name is wrong"
	case status == http.StatusNotFound:
		e.Kind, e.Message = KindConfig, "nothing was found at the address; check auth_url or the noauth endpoint"
	case status == http.StatusTooManyRequests:
		e.Kind, e.Message = KindRateLimited, "too many logins"
	case status >= 500, status == http.StatusRequestTimeout:
		e.Kind, e.Message = KindUnavailable, "the answer is "+statusText(status)
	default:
		e.Kind, e.Message = KindConfig, fmt.Sprintf("the answer is %s, which is not an answer to a login; check auth_url or the noauth endpoint", statusText(status))
	}
	return e
}

// redirected describes a redirect. It is not followed, since the token would be
// sent along.
func (e *Error) redirected(header http.Header) {
	e.Kind, e.Message = KindConfig, "the endpoint redirects requests"
	if target, err := url.Parse(header.Get("Location")); err == nil && target.Host != "" {
		e.Message += fmt.Sprintf(" (to %s://%s)", sentence(target.Scheme), sentence(target.Host))
	}
	e.Message += "; configure the address that answers directly"
}

func statusText(status int) string {
	return cmp.Or(strings.ToLower(http.StatusText(status)), "an unknown status")
}

// statusOf returns the HTTP status of an error, or 0.
func statusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return 0
}

// isStateConflict recognizes Cinder's 400 for an object in the wrong state
// (exception.InvalidVolume, text "Invalid volume: ...", and the others likewise), which the
// API reference documents as a conflict.
func isStateConflict(message string) bool {
	text, isInvalid := strings.CutPrefix(message, "Invalid ")
	object, _, _ := strings.Cut(text, ":")
	return isInvalid && slices.Contains([]string{"volume", "snapshot", "backup", "group", "groupsnapshot"}, strings.ToLower(object))
}

// noKeyMade is all that Cinder says when its key manager makes no key
// (create_encryption_key in cinder/volume/volume_utils.py).
const noKeyMade = "Key manager error"

const keyRole = "Cinder got no key for the encrypted volume: give the backend's user a role such as creator in its project; " +
	"if it has one, the log of cinder-api says what is wrong with the key manager"

// fault is the content of an error document.
type fault struct {
	name    string // such as itemNotFound; may be empty
	message string
}

// readFault reads a fault document such as {"badRequest": {"code": 400, "message":
// "..."}}, or one from Cinder's routing, which has no name. It cuts off the server's
// traceback, which some of Cinder's answers append after a line break.
func readFault(content []byte) fault {
	var envelope map[string]json.RawMessage
	if json.Unmarshal(content, &envelope) != nil {
		return fault{}
	}
	var found fault
	if raw, ok := envelope["message"]; ok {
		_ = json.Unmarshal(raw, &found.message)
	} else {
		for _, name := range slices.Sorted(maps.Keys(envelope)) {
			var document struct {
				Message *string `json:"message"`
			}
			if json.Unmarshal(envelope[name], &document) == nil && document.Message != nil {
				found = fault{name: name, message: *document.Message}
				break
			}
		}
	}
	found.message = sentence(found.message)
	return found
}

// sentence turns a server's text into one line without a final period.
func sentence(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	text = strings.ReplaceAll(text, "<br />", "")
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	text = strings.TrimSpace(text)
	const longest = 300
	if len(text) > longest {
		return strings.TrimSpace(strings.ToValidUTF8(text[:longest], "")) + "..."
	}
	return strings.TrimSpace(strings.TrimSuffix(text, "."))
}

// maxRetryAfter bounds the delay that a server may request: a misconfigured proxy must
// not park a claim for a day.
const maxRetryAfter = 10 * time.Minute

// retryAfter reads the header in both of its forms, seconds and a date (RFC 9110, section
// 10.2.3). Cinder sends 0 when a quota is exceeded, which requests no delay.
func retryAfter(header http.Header) time.Duration {
	text := strings.TrimSpace(header.Get("Retry-After"))
	if at, err := http.ParseTime(text); err == nil {
		return max(0, min(time.Until(at), maxRetryAfter))
	}
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0
	}
	// ParseUint returns the largest number for one that is out of range.
	return time.Duration(min(seconds, uint64(maxRetryAfter/time.Second))) * time.Second
}

func dialTarget(err error, dial *net.OpError) string {
	if dial.Addr != nil && dial.Op == "proxyconnect" {
		return "the proxy " + dial.Addr.String()
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		if u, parseErr := url.Parse(request.URL); parseErr == nil && u.Host != "" {
			return u.Host
		}
	}
	return "the endpoint"
}

// requestID returns the ID that OpenStack services assign to a request, by which it is
// found in their logs. Any other text in its place is dropped.
func requestID(header http.Header) string {
	id := header.Get("X-Openstack-Request-Id")
	if len(id) > 64 || strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") != "" {
		return ""
	}
	return id
}

// rootCause returns the innermost text of a network error, without ephemeral ports, so
// that the same problem yields the same text.
func rootCause(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			// Some texts repeat what the server sent.
			return sentence(err.Error())
		}
		err = inner
	}
}

func isDecoding(err error) bool {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	return errors.As(err, &syntax) || errors.As(err, &kind) || errors.Is(err, jsonstream.ErrUnexpectedJSON)
}
