package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// Attack is one way to answer.
type Attack struct {
	Name string
	// unauthorized means that the answer is a 401.
	unauthorized bool
	when         when
	// of are names of fields, one of which the true answer must have; none means
	// that any answer will do.
	of     []string
	answer func(exchange)
}

// when is the time of an attack.
type when int

const (
	// after the effect: a client may take the answer for a success.
	after when = iota
	// before means in place of the effect: the answer is a rejection, and a lie
	// after it.
	before
)

// exchange is one request under attack.
type exchange struct {
	// ctx ends when the client leaves or the server closes.
	ctx context.Context
	w   http.ResponseWriter
	r   *http.Request
	// truth is the true answer; zero before the effect.
	truth answer
	// other is another object of the kind that the answer is about, if one is
	// known.
	other object
}

// fits reports whether the attack can be made from the true answer.
func (a Attack) fits(truth answer) bool {
	if len(a.of) == 0 {
		return true
	}
	document := truth.document()
	return slices.ContainsFunc(a.of, func(field string) bool {
		_, has := document[field]
		return has
	})
}

// Attacks returns all attacks, in the order of their names' groups. Attacks
// that no client can take for a success come in both forms.
func Attacks() []Attack {
	all := slices.Concat(bodies(), documents(), listings(), logins(), heads())
	for _, a := range rejections() {
		all = append(all, a)
		a.Name, a.when = a.Name+" instead", before
		all = append(all, a)
	}
	return append(all, refusals()...)
}

// Suits reports whether an attack can be made on the answer to an operation.
func (a Attack) Suits(operation string) bool {
	field := map[string]string{
		"login": "token", "volume.create": "volume", "volume.get": "volume", "volume.list": "volumes",
		"attachment.create": "attachment", "attachment.get": "attachment", "attachment.list": "attachments",
		"os-initialize_connection": "connection_info",
	}[operation]
	return len(a.of) == 0 || slices.Contains(a.of, field)
}

// RejectsCredentials reports whether a login that is attacked seems to have a wrong
// password. The program then sends no login for a minute or longer.
func (a Attack) RejectsCredentials(operation string) bool {
	return operation == "login" && a.unauthorized
}

// Draw picks an attack on a request. It rejects no credentials: the pauses that
// follow are longer than a campaign waits for everything to settle.
func Draw(random *rand.Rand, r *http.Request) Attack {
	operation := Operation(r)
	suitable := slices.DeleteFunc(Attacks(), func(a Attack) bool { return !a.Suits(operation) || a.RejectsCredentials(operation) })
	return suitable[random.IntN(len(suitable))]
}

// Operation names what a request wants: login, volume.create, the action of a
// volume such as os-reserve, and so on; "other" if no attack depends on it. It
// leaves the body to be read again.
func Operation(r *http.Request) string {
	kind, id, action := resource(r.URL.Path)
	switch {
	case strings.HasSuffix(r.URL.Path, "/auth/tokens"):
		return "login"
	case strings.HasSuffix(r.URL.Path, "/v3/"):
		return "version.get"
	case action == "action" && kind == "volume":
		return actionIn(r)
	case action == "action":
		return kind + ".complete"
	case action == "metadata":
		return "metadata.update"
	case strings.HasPrefix(action, "metadata/"):
		return "metadata.delete"
	case kind == "":
		return "other"
	case r.Method == http.MethodPost:
		return kind + ".create"
	case r.Method == http.MethodDelete:
		return kind + ".delete"
	case id == "" || id == "detail":
		return kind + ".list"
	}
	return kind + ".get"
}

// resource finds the volume or the attachment in a path.
func resource(path string) (kind, id, action string) {
	for _, kind := range []string{"volume", "attachment"} {
		if _, rest, found := strings.Cut(path, "/"+kind+"s"); found && (rest == "" || rest[0] == '/') {
			id, action, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
			return kind, id, action
		}
	}
	return "", "", ""
}

// actionIn returns the name of the action in a request's body.
func actionIn(r *http.Request) string {
	content, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(content))
	var action map[string]json.RawMessage
	if err != nil || json.Unmarshal(content, &action) != nil {
		return "other"
	}
	for name := range action {
		return name
	}
	return "other"
}
