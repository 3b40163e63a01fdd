package statusreport

import (
	"cmp"
	"slices"
)

// The number of pending objects that a report lists by default, and the most that can
// be requested.
const (
	DefaultLimit = 100
	MaxLimit     = 10_000
)

// NewWaiting lists the objects that have waited longest, up to the limit.
func NewWaiting(pending []Pending, limit int) Waiting {
	slices.SortFunc(pending, func(a, b Pending) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.PersistentVolume, b.PersistentVolume))
	})
	w := Waiting{Total: len(pending), Pending: []Pending{}}
	w.Pending = append(w.Pending, pending[:min(limit, len(pending))]...)
	w.NotShown = w.Total - len(w.Pending)
	return w
}
