package statusreport

import (
	"cmp"
	"slices"
	"time"
)

// The number of pending objects that a report lists by default, and the most that can
// be requested.
const (
	DefaultLimit = 100
	MaxLimit     = 10_000
)

// NewPending describes an object that cannot continue, since its creation if no other time
// is known.
func NewPending(state, reason, message string, since, created time.Time) Pending {
	if since.IsZero() {
		since = created
	}
	return Pending{State: state, Reason: reason, Message: message, Since: since.UTC().Truncate(time.Second), Created: created.UTC()}
}

// NewWaiting lists the objects that have waited longest, up to the limit.
func NewWaiting(pending []Pending, limit int) Waiting {
	slices.SortFunc(pending, func(a, b Pending) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.PersistentVolume, b.PersistentVolume), cmp.Compare(a.Content, b.Content), cmp.Compare(a.Node, b.Node))
	})
	w := Waiting{Total: len(pending), Pending: []Pending{}}
	w.Pending = append(w.Pending, pending[:min(limit, len(pending))]...)
	w.NotShown = w.Total - len(w.Pending)
	return w
}
