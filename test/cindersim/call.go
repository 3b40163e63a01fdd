package cindersim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/python"
)

// timeLayout is how Cinder prints times: UTC without a zone, with microseconds.
// Times that it reads back from its database have no microseconds.
const timeLayout = "2006-01-02T15:04:05.000000"

func stamp(t time.Time) string { return t.UTC().Truncate(time.Second).Format(timeLayout) }

// stampOrNull returns the printed time, or nil for the zero time.
func stampOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return stamp(t)
}

// call is one authenticated Cinder request and its context.
type call struct {
	project, user string
	admin         bool
	minor         int    // microversion 3.minor
	base          string // scheme and host the client used
	urlProject    string // the project in the URL, or empty
	query         url.Values
	rawQuery      string
	raw           []byte         // the request's body
	body          map[string]any // the decoded body, if it is an object
	volumeID      string         // of the URL, or of the volume a create made
	observed      string         // the volume's status when the request arrived
	broken        bool           // an injected failure of the backend
}

// reply is an answer before it is written.
type reply struct {
	status      int
	body        []byte
	contentType string
	header      http.Header
	// bare answers come from Cinder's middleware and have no microversion
	// header.
	bare bool
	// anonymous answers carry no X-Compute-Request-Id.
	anonymous bool
	// wait is the time until the answer is sent, as for an RPC that times out.
	wait time.Duration
}

// refusal is an error answer of Cinder.
type refusal struct {
	status     int
	message    string
	retryAfter string
}

func (r *refusal) Error() string { return r.message }

func refuse(status int, format string, args ...any) *refusal {
	return &refusal{status: status, message: fmt.Sprintf(format, args...)}
}

// Sentences that Cinder uses if it has nothing more precise.
const (
	messageMalformed = "The server could not comply with the request since it is either malformed or otherwise incorrect."
	messageBroken    = "The server has either erred or is incapable of performing the requested operation."
	messageNotFound  = "The resource could not be found."
)

func overLimit(format string, args ...any) *refusal {
	return &refusal{status: http.StatusRequestEntityTooLarge, message: fmt.Sprintf(format, args...), retryAfter: "0"}
}

func volumeNotFound(id string) *refusal {
	return refuse(http.StatusNotFound, "Volume %s could not be found.", id)
}

func forbidden(rule string) *refusal {
	return refuse(http.StatusForbidden, "Policy doesn't allow %s to be performed.", rule)
}

// faultName returns the key of Cinder's error body (Fault in its wsgi module).
func faultName(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "badRequest"
	case http.StatusUnauthorized:
		return "unauthorized"
	case http.StatusForbidden:
		return "forbidden"
	case http.StatusNotFound:
		return "itemNotFound"
	case http.StatusMethodNotAllowed:
		return "badMethod"
	case http.StatusConflict:
		return "conflictingRequest"
	case http.StatusRequestEntityTooLarge:
		return "overLimit"
	case http.StatusUnsupportedMediaType:
		return "badMediaType"
	case http.StatusNotImplemented:
		return "notImplemented"
	case http.StatusServiceUnavailable:
		return "serviceUnavailable"
	}
	return "computeFault"
}

// reply turns a refusal into Cinder's error answer.
func (r *refusal) reply() *reply {
	details := map[string]any{"code": r.status, "message": r.message}
	answer := &reply{status: r.status}
	if r.retryAfter != "" {
		details["retryAfter"] = r.retryAfter
		answer.header = http.Header{"Retry-After": {r.retryAfter}}
	}
	answer.body = encode(map[string]any{faultName(r.status): details})
	return answer
}

// notRouted returns the answer of Cinder's URL map to an unknown path.
func notRouted() *reply {
	return &reply{status: http.StatusNotFound, bare: true, anonymous: true, body: encode(map[string]any{
		"message": messageNotFound + "<br /><br />\n\n\n", "code": "404 Not Found", "title": "Not Found",
	})}
}

// encode returns a value as JSON, without the escaping of HTML characters.
func encode(value any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		// Only a test's connection document can contain something that JSON
		// cannot.
		panic(fmt.Sprintf("cindersim: cannot encode an answer: %v", err))
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n"))
}

func success(status int, value any) *reply { return &reply{status: status, body: encode(value)} }

func accepted() *reply { return &reply{status: http.StatusAccepted} }

// deletion returns the answer to an accepted DELETE, which comes without JSON.
func deletion(status int) *reply {
	return &reply{status: status, contentType: "text/html; charset=UTF-8", anonymous: true}
}

// decode parses the body of a create or update. Cinder answers 400 to invalid
// JSON, and fails on a missing body.
func (q *call) decode() error {
	if len(bytes.TrimSpace(q.raw)) == 0 {
		return refuse(http.StatusInternalServerError, messageBroken)
	}
	value, err := decodeJSON(q.raw)
	if err != nil {
		return refuse(http.StatusBadRequest, "Malformed request body")
	}
	body, ok := value.(map[string]any)
	if !ok {
		return refuse(http.StatusBadRequest, "%s is not of type 'object'", python.Repr(value))
	}
	q.body = body
	return nil
}

// entity decodes the body and returns the named object in it.
func (q *call) entity(name string) (map[string]any, error) {
	if err := q.decode(); err != nil {
		return nil, err
	}
	value, ok := q.body[name]
	if !ok {
		return nil, refuse(http.StatusBadRequest, "'%s' is a required property", name)
	}
	entity, ok := value.(map[string]any)
	if !ok {
		return nil, fields.Invalid(name, value, "%s is not of type 'object'", python.Repr(value))
	}
	return entity, nil
}

func decodeJSON(raw []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if decoder.More() {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return value, nil
}

// href returns the URL of a resource as the client addressed the API.
func (q *call) href(parts ...string) string {
	return q.base + "/v3" + q.path(parts)
}

func (q *call) path(parts []string) string {
	path := ""
	if q.urlProject != "" {
		path = "/" + q.urlProject
	}
	return path + "/" + strings.Join(parts, "/")
}

// links returns the self and bookmark links of a resource.
func (q *call) links(collection, id string) []map[string]string {
	parts := []string{collection, id}
	return []map[string]string{
		{"rel": "self", "href": q.href(parts...)},
		{"rel": "bookmark", "href": q.base + q.path(parts)},
	}
}

// param returns a query parameter's first value, and whether it was given.
func (q *call) param(name string) (string, bool) {
	values, ok := q.query[name]
	if !ok || len(values) == 0 {
		return "", false
	}
	return values[0], true
}

// flag reads a boolean query parameter.
func (q *call) flag(name string) (bool, error) {
	value, ok := q.param(name)
	if !ok {
		return false, nil
	}
	if parsed, known := fields.Truth(value); known {
		return parsed, nil
	}
	return false, refuse(http.StatusBadRequest, "Value '%s' for '%s' is not a boolean.", value, name)
}
