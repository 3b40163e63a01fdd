package cindersim

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/cindersim/fields"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/keystone"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/routes"
)

// minorEmpty is the microversion of requests without one: 3.0.
const minorEmpty = 0

// noauthIdentity reads a noauth token, "user:project". Without a colon it is
// both (cinder/api/middleware/auth.py).
func noauthIdentity(token string) (user, project string) {
	user, project, _ = strings.Cut(token, ":")
	project = cmp.Or(project, user)
	return user, project
}

// serveCinder applies Cinder's middleware and performs the request.
func (s *Simulator) serveCinder(x *exchange, observed string, broken bool) (*reply, string) {
	r := x.request
	switch path := r.URL.Path; {
	case path == "/" || path == "":
		return s.versions(x, http.StatusMultipleChoices), ""
	case path == "/healthcheck":
		return &reply{status: http.StatusOK, bare: true, anonymous: true, body: encode(map[string]any{
			"detailed": false, "reasons": []string{"OK"},
		})}, ""
	case strings.HasPrefix(path, keyManagerPath):
		return s.serveKey(x), ""
	case path != "/v3" && !strings.HasPrefix(path, "/v3/"):
		return notRouted(), ""
	}
	q := &call{base: x.base, rawQuery: r.URL.RawQuery, raw: x.body, observed: observed, broken: broken}
	if refused := s.authenticate(x, q); refused != nil {
		return refused, ""
	}
	switch r.URL.Path {
	case "/v3":
		return &reply{status: http.StatusFound, bare: true, anonymous: true, contentType: "text/plain; charset=utf8",
			header: http.Header{"Location": {x.base + "/v3/"}}}, ""
	case "/v3/":
		return s.versions(x, http.StatusOK), ""
	}
	if !x.routed {
		return notRouted(), ""
	}
	var refused *reply
	if q.minor, refused = s.negotiate(r); refused != nil {
		return refused, ""
	}
	answer := s.dispatch(x, q)
	if !answer.bare {
		answer.setVersion("volume 3." + strconv.Itoa(q.minor))
	}
	return answer, q.volumeID
}

// setVersion adds the headers that name the microversion of an answer.
func (a *reply) setVersion(version string) {
	if a.header == nil {
		a.header = make(http.Header)
	}
	a.header.Set("OpenStack-API-Version", version)
	a.header.Set("Vary", "OpenStack-API-Version")
}

// dispatch performs a routed request on the state.
func (s *Simulator) dispatch(x *exchange, q *call) *reply {
	if x.route.Project != "" && x.route.Project != q.project {
		return refuse(http.StatusBadRequest, "Malformed request url").reply()
	}
	if q.minor < x.route.Minor {
		return refuse(http.StatusNotFound, messageNotFound).reply()
	}
	var err error
	if q.query, err = url.ParseQuery(q.rawQuery); err != nil {
		return refuse(http.StatusBadRequest, messageMalformed).reply()
	}
	if contentType := x.request.Header.Get("Content-Type"); len(x.body) > 0 && contentType != "" {
		if mediaType, _, _ := strings.Cut(contentType, ";"); strings.TrimSpace(mediaType) != "application/json" {
			return refuse(http.StatusUnsupportedMediaType, "Unsupported Content-Type").reply()
		}
	}
	q.urlProject = x.route.Project
	now := s.cloud.lock()
	defer s.cloud.unlock()
	state := s.cloud
	if x.request.Method == http.MethodGet {
		state = state.shown(now)
	} else {
		state.changes(now)
	}
	answer, err := state.perform(x.route, q, now)
	if err == nil {
		return answer
	}
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		return refused.reply()
	}
	if wrong := (*fields.Error)(nil); errors.As(err, &wrong) {
		return refuse(http.StatusBadRequest, "%s", wrong.Message).reply()
	}
	return refuse(http.StatusInternalServerError, messageBroken).reply()
}

// The operations of routes that do not need more than others.
var (
	// lists answer with many objects, in detail or not.
	lists = map[string]func(*cloud, *call, bool) (*reply, error){
		"volume.list":         (*cloud).listVolumes,
		"snapshot.list":       (*cloud).listSnapshots,
		"backup.list":         (*cloud).listBackups,
		"group.list":          (*cloud).listGroups,
		"group_snapshot.list": (*cloud).listGroupSnapshots,
		"attachment.list":     (*cloud).listAttachments,
	}
	// creations make an object.
	creations = map[string]func(*cloud, *call, time.Time) (*reply, error){
		"volume.create":         (*cloud).createVolume,
		"snapshot.create":       (*cloud).createSnapshot,
		"backup.create":         (*cloud).createBackup,
		"group.create":          (*cloud).createGroup,
		"group_snapshot.create": (*cloud).createGroupSnapshot,
		"attachment.create":     (*cloud).createAttachment,
	}
	// byID are about one object or project, whatever the time.
	byID = map[string]func(*cloud, *call, string) (*reply, error){
		"volume.get":         (*cloud).showVolume,
		"volume.encryption":  (*cloud).showEncryption,
		"metadata.list":      (*cloud).showMetadata,
		"snapshot.get":       (*cloud).showSnapshot,
		"backup.get":         (*cloud).showBackup,
		"group.get":          (*cloud).showGroup,
		"group_snapshot.get": (*cloud).showGroupSnapshot,
		"attachment.get":     (*cloud).showAttachment,
		"message.get":        (*cloud).showMessage,
		"type.get":           (*cloud).showType,
		"quota.get":          (*cloud).showQuota,
		"quota.defaults":     (*cloud).defaultQuota,
		"quota.update":       (*cloud).updateQuota,
		"quota.delete":       (*cloud).deleteQuota,
	}
	// changes change one object.
	changes = map[string]func(*cloud, *call, string, time.Time) (*reply, error){
		"volume.update":            (*cloud).updateVolume,
		"volume.delete":            (*cloud).deleteVolume,
		"snapshot.delete":          (*cloud).deleteSnapshot,
		"snapshot.metadata.update": (*cloud).mergeSnapshotMetadata,
		"backup.update":            (*cloud).updateBackup,
		"backup.delete":            (*cloud).deleteBackup,
		"group.update":             (*cloud).updateGroup,
		"group.delete":             (*cloud).deleteGroup,
		"group_snapshot.delete":    (*cloud).deleteGroupSnapshot,
		"attachment.update":        (*cloud).updateAttachment,
		"attachment.complete":      (*cloud).completeAttachment,
		"attachment.delete":        (*cloud).deleteAttachment,
	}
)

// perform performs the operation of a route.
func (c *cloud) perform(r routes.Route, q *call, now time.Time) (*reply, error) {
	if name, ok := strings.CutPrefix(r.Operation, "action."); ok {
		return c.act(q, r.ID, name, now)
	}
	if list, ok := lists[r.Operation]; ok {
		return list(c, q, r.Detail)
	}
	if create, ok := creations[r.Operation]; ok {
		return create(c, q, now)
	}
	if show, ok := byID[r.Operation]; ok {
		return show(c, q, r.ID)
	}
	if change, ok := changes[r.Operation]; ok {
		return change(c, q, r.ID, now)
	}
	switch r.Operation {
	case "action":
		_, err := actionName(q.raw)
		return nil, err
	case "metadata.update":
		return c.writeMetadata(q, r.ID, false, now)
	case "metadata.replace":
		return c.writeMetadata(q, r.ID, true, now)
	case "metadata.get":
		return c.showMetadataKey(q, r.ID, r.Key)
	case "metadata.set":
		return c.writeMetadataKey(q, r.ID, r.Key, now)
	case "metadata.delete":
		return c.deleteMetadataKey(q, r.ID, r.Key, now)
	case "group_type.list":
		return c.listGroupTypes(q)
	case "group.action", "attachment.action":
		name, err := actionName(q.raw)
		if err == nil {
			err = unknownAction(name)
		}
		return nil, err
	case "message.list":
		return c.listMessages(q)
	case "type.list":
		return c.listTypes(q)
	case "zone.list":
		return c.listZones()
	case "limits.get":
		return c.showLimits(q)
	case "service.list":
		return c.listServices(q)
	case "pool.list":
		return c.listPools(q)
	}
	return nil, fmt.Errorf("the operation %s is routed and not implemented", r.Operation)
}

// authenticate determines the caller, or answers in place of Cinder.
func (s *Simulator) authenticate(x *exchange, q *call) *reply {
	r := x.request
	token := r.Header.Get("X-Auth-Token")
	if x.endpoint == Noauth {
		if _, given := r.Header["X-Auth-Token"]; !given {
			return noauthToken(x)
		}
		q.user, q.project = noauthIdentity(token)
		q.admin = true
		return nil
	}
	user, project, admin, ok := s.keystone.Validate(token)
	if !ok {
		return s.unauthorized()
	}
	q.user, q.project, q.admin = user, project, admin
	return nil
}

// noauthToken is the trap of noauth mode: it answers any request without a
// token with an empty success that offers one.
func noauthToken(x *exchange) *reply {
	user, project := x.request.Header.Get("X-Auth-User"), x.request.Header.Get("X-Auth-Project-Id")
	user = cmp.Or(user, "admin")
	project = cmp.Or(project, "admin")
	return &reply{
		status: http.StatusNoContent, bare: true, anonymous: true, contentType: "text/plain; charset=UTF-8",
		header: http.Header{
			"X-Auth-Token":            {user + ":" + project},
			"X-Server-Management-Url": {strings.TrimRight(x.base+x.request.URL.RequestURI(), "/")},
		},
	}
}

// unauthorized returns the answer of keystonemiddleware.
func (s *Simulator) unauthorized() *reply {
	answer := identityReply(s.keystone.Unauthorized())
	answer.bare, answer.anonymous = true, true
	return answer
}

// identityReply returns an answer of Keystone.
func identityReply(answer *keystone.Answer) *reply {
	out := &reply{status: answer.Status, header: answer.Header}
	if answer.Body != nil {
		out.body = encode(answer.Body)
	}
	return out
}

// negotiate reads the microversion header: "volume 3.27", possibly among those
// of other services, or "volume latest".
func (s *Simulator) negotiate(r *http.Request) (minor int, refused *reply) {
	header, given := r.Header["Openstack-Api-Version"]
	if !given {
		return minorEmpty, nil
	}
	version := ""
	for _, part := range strings.Split(header[0], ",") {
		if strings.Contains(part, "volume") {
			if words := strings.Fields(part); len(words) == 2 {
				version = words[1]
			}
			break
		}
	}
	if version == "" {
		answer := refuse(http.StatusBadRequest, "VersionNotFoundForAPIMethod: API version None is not supported on this method.").reply()
		answer.bare = true
		return 0, answer
	}
	_, highest, _ := parseMicroversion(s.options.MaxMicroversion)
	if version == "latest" {
		return highest, nil
	}
	major, minor, ok := parseMicroversion(version)
	if !ok {
		answer := refuse(http.StatusBadRequest, "API Version String %s is of invalid format. Must be of format MajorNum.MinorNum.", version).reply()
		answer.bare = true
		return 0, answer
	}
	if major != 3 || minor > highest {
		answer := refuse(http.StatusNotAcceptable, "Version %s is not supported by the API. Minimum is 3.0 and maximum is %s.",
			version, s.options.MaxMicroversion).reply()
		answer.setVersion("volume " + version)
		return 0, answer
	}
	return minor, nil
}

// versions returns the version document, at the root and at /v3/.
func (s *Simulator) versions(x *exchange, status int) *reply {
	answer := success(status, map[string]any{"versions": []map[string]any{{
		"id": "v3.0", "status": "CURRENT", "version": s.options.MaxMicroversion, "min_version": "3.0",
		"updated": "2022-08-31T00:00:00Z",
		"links": []map[string]string{
			{"rel": "describedby", "type": "text/html", "href": "https://docs.openstack.org/"},
			{"rel": "self", "href": x.base + "/v3/"},
		},
		"media-types": []map[string]string{{
			"base": "application/json", "type": "application/vnd.openstack.volume+json;version=3",
		}},
	}}})
	answer.setVersion("volume 3.0")
	return answer
}
