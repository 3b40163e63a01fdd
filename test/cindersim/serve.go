package cindersim

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/routes"
)

// maxBodySize is Cinder's osapi_max_request_body_size.
const maxBodySize = 114688

// exchange is one request to an endpoint.
type exchange struct {
	endpoint Endpoint
	request  *http.Request
	body     []byte
	base     string
	route    routes.Route
	routed   bool
}

// handler serves one endpoint.
type handler struct {
	simulator *Simulator
	endpoint  Endpoint
}

// ServeHTTP answers one request: it adds it to the journal, waits for the
// latency, applies a fault if there is one, and lets the state machine perform
// it.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := h.simulator
	if !s.enter() {
		panic(http.ErrAbortHandler)
	}
	defer s.leave()
	started := time.Now()
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodySize))
	if err != nil {
		// Too large, or the client left while sending.
		http.Error(w, "Request is too large.", http.StatusRequestEntityTooLarge)
		return
	}
	x := &exchange{endpoint: h.endpoint, request: r, body: body, base: "http://" + r.Host}
	if r.TLS != nil {
		x.base = "https://" + r.Host
	}
	request, observed := s.describe(x)
	entry := s.journal.begin(request, s.options.Now())
	fault, delays := s.faults.pick(request)
	status := 0
	defer func() {
		s.journal.update(entry, func(e *Entry) {
			e.Status, e.Duration, e.Done = status, time.Since(started), true
		})
	}()
	if fault != nil {
		s.journal.update(entry, func(e *Entry) { e.Fault = fault.Kind.String() })
	}
	// A request whose client has left is performed all the same, as in Cinder.
	s.pause(s.latency(request.Operation), nil)
	for _, injection := range delays {
		s.pause(injection.fault.Delay, injection.removed)
	}

	kind := Kind(0)
	if fault != nil {
		kind = fault.Kind
	}
	switch kind {
	case HangBefore:
		s.hold(r.Context())
		panic(http.ErrAbortHandler)
	case DropBefore:
		panic(http.ErrAbortHandler)
	case RespondBefore:
		status = fault.Code
		s.write(w, x, fault.reply(h.endpoint))
		return
	}
	answer, volumeID := s.perform(x, observed, kind == FailBackend)
	s.journal.update(entry, func(e *Entry) {
		e.Performed = true
		e.VolumeID = cmp.Or(e.VolumeID, volumeID)
	})
	switch kind {
	case HangAfter:
		s.hold(r.Context())
		panic(http.ErrAbortHandler)
	case DropAfter:
		panic(http.ErrAbortHandler)
	case RespondAfter:
		answer = fault.reply(h.endpoint)
	}
	if answer.wait > 0 {
		s.pause(answer.wait, nil)
	}
	status = answer.status
	s.write(w, x, answer)
}

// describe determines a request's description for faults and journal, and its
// volume's status on arrival.
func (s *Simulator) describe(x *exchange) (request Request, observed string) {
	r := x.request
	request = Request{
		Endpoint: x.endpoint, Operation: "unknown", Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery,
	}
	switch x.endpoint {
	case Keystone:
		request.Operation = keystone.Operation(r.Method, r.URL.Path)
		return request, ""
	case Noauth:
		if token, given := r.Header["X-Auth-Token"]; given {
			_, request.Project = noauthIdentity(token[0])
		}
	default:
		request.Project = s.keystone.ProjectOf(r.Header.Get("X-Auth-Token"))
	}
	switch path := r.URL.Path; path {
	case "/", "":
		request.Operation = "version.list"
	case "/v3", "/v3/":
		request.Operation = "version.get"
	case "/healthcheck":
		request.Operation = "healthcheck"
	default:
		if strings.HasPrefix(path, keyManagerPath) {
			request.Operation = "key.get"
			return request, ""
		}
		x.resolve()
		if x.routed {
			request.Operation = x.route.Operation
			if x.route.Collection == "volumes" {
				request.VolumeID = x.route.ID
			}
		}
	}
	s.cloud.lock()
	defer s.cloud.unlock()
	if request.VolumeID == "" {
		request.VolumeName = requestedName(x.body)
		if v := s.cloud.volumeOfAttachment(r.URL.Path); v != nil {
			request.VolumeID, request.VolumeName = v.id, stringOf(v.name)
		}
		return request, ""
	}
	if v := s.cloud.volumes[request.VolumeID]; v != nil {
		request.VolumeName, observed = stringOf(v.name), v.status
	}
	return request, observed
}

// volumeOfAttachment returns the volume of the attachment that a path names,
// nil if there is none.
func (c *cloud) volumeOfAttachment(path string) *volume {
	_, rest, found := strings.Cut(path, "/attachments/")
	id, _, _ := strings.Cut(rest, "/")
	a := c.attachments[id]
	if !found || a == nil {
		return nil
	}
	return c.volumes[a.volumeID]
}

// resolve finds the route of a Cinder request. The body determines the action.
func (x *exchange) resolve() {
	rest, ok := strings.CutPrefix(x.request.URL.Path, "/v3/")
	if !ok {
		return
	}
	if x.route, x.routed = routes.Find(x.request.Method, rest); !x.routed {
		return
	}
	switch x.route.Operation {
	case "action":
		if name, err := actionName(x.body); err == nil {
			x.route.Operation = "action." + name
		}
	case "group.action":
		if x.route.Minor = minorGroupID; strings.Contains(string(x.body), `"delete"`) {
			x.route.Operation = "group.delete"
		}
	case "attachment.action":
		if name, err := actionName(x.body); err == nil && name == "os-complete" {
			x.route.Operation, x.route.Minor = "attachment.complete", minorAttachmentComplete
		}
	}
}

// requestedName returns the name in the body of a create.
func requestedName(body []byte) string {
	var create struct {
		Volume struct {
			Name string `json:"name"`
		} `json:"volume"`
	}
	if len(body) == 0 || json.Unmarshal(body, &create) != nil {
		return ""
	}
	return strings.TrimSpace(create.Volume.Name)
}

// perform makes the endpoint handle the request. It returns the ID of the
// volume that a create made.
func (s *Simulator) perform(x *exchange, observed string, broken bool) (answer *reply, volumeID string) {
	if x.endpoint == Keystone {
		return identityReply(s.keystone.Serve(x.request, x.body, x.base)), ""
	}
	return s.serveCinder(x, observed, broken)
}

// reply returns the answer of a fault that responds.
func (f *Fault) reply(endpoint Endpoint) *reply {
	answer := &reply{status: f.Code, bare: true}
	if f.RetryAfter != "" {
		answer.header = http.Header{"Retry-After": {f.RetryAfter}}
	}
	switch {
	case f.Body != "":
		answer.body = []byte(f.Body)
	case f.Code == http.StatusUnauthorized || endpoint == Keystone:
		answer.body = encode(map[string]any{"error": map[string]any{
			"code": f.Code, "title": http.StatusText(f.Code), "message": "injected fault",
		}})
	case f.Code >= http.StatusBadRequest:
		refused := &refusal{status: f.Code, message: "injected fault", retryAfter: f.RetryAfter}
		answer.body = refused.reply().body
	}
	return answer
}

// write sends an answer with the headers that every answer has.
func (s *Simulator) write(w http.ResponseWriter, x *exchange, answer *reply) {
	header := w.Header()
	requestID := "req-" + s.ids.UUID()
	header.Set("X-Openstack-Request-Id", requestID)
	contentType := answer.contentType
	contentType = cmp.Or(contentType, "application/json")
	header.Set("Content-Type", contentType)
	if x.endpoint == Keystone {
		header.Set("Vary", "X-Auth-Token")
	} else if !answer.anonymous && !answer.bare {
		header.Set("X-Compute-Request-Id", requestID)
	}
	for name, values := range answer.header {
		header[name] = values
	}
	w.WriteHeader(answer.status)
	if x.request.Method != http.MethodHead && answer.status != http.StatusNoContent {
		// It does not matter here that a client has left.
		_, _ = w.Write(answer.body)
	}
}

// pause waits in real time, unless the simulator closes meanwhile.
func (s *Simulator) pause(duration time.Duration, ended <-chan struct{}) {
	if duration <= 0 {
		return
	}
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ended:
	case <-s.closed:
	}
}

// hold keeps a request open until its client leaves or the simulator closes.
func (s *Simulator) hold(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.closed:
	}
}
