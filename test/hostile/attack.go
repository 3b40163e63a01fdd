package hostile

import (
	"context"
	"net/http"
	"slices"
)

// Attack is one way to answer.
type Attack struct {
	Name string
	when when
	// of are the names of the fields that the true answer must have one of; none
	// means that every answer will do.
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

// Attacks are all of them, in the order of their names' groups. Attacks that no
// client can take for a success come in both forms.
func Attacks() []Attack {
	all := slices.Concat(bodies(), documents(), listings(), logins(), heads())
	for _, a := range rejections() {
		all = append(all, a)
		a.Name, a.when = a.Name+" instead", before
		all = append(all, a)
	}
	return append(all, refusals()...)
}

// fittingRequest are the attacks whose answers may fit a request.
func fittingRequest(r *http.Request) []Attack {
	listing := r.Method == http.MethodGet && len(r.URL.RawQuery) > 0
	return slices.DeleteFunc(Attacks(), func(a Attack) bool {
		switch {
		case len(a.of) == 0:
			return false
		case slices.Contains(a.of, "token"):
			return !isLogin(r)
		case slices.Contains(a.of, "volumes"):
			return !listing
		}
		return listing || isLogin(r) || r.Method == http.MethodDelete
	})
}
