package policy

import (
	"fmt"
	"strings"
)

// Usage is what a volume with these properties counts for.
func (v VolumeProperties) Usage() Usage { return Usage{Volumes: 1, Gigabytes: v.SizeGiB} }

// ScopeRoom is a quota scope with what it would hold together with the volume.
type ScopeRoom struct {
	QuotaScope
	Used  Usage `json:"used"`
	Would Usage `json:"would"`
	// Denial is the limit that would be exceeded, or nil.
	Denial *Denial `json:"denial,omitempty"`
}

// Room is what the quotas have to say about a granted claim.
type Room struct {
	// Denial has the reason QuotaExceeded if the volume fits nowhere.
	Denial *Denial
	// Backends are those of the decision that have room, in the same order.
	Backends []string
	// Scopes are those of the decision, in the same order.
	Scopes []ScopeRoom
}

// Room checks a granted claim against what its quota scopes use: the tenant and
// the class rule must have room, and of the backends at least one. For a denied
// claim it only repeats the denial.
func (d Decision) Room(used func(QuotaScope) Usage) Room {
	if d.Denial != nil {
		return Room{Denial: d.Denial}
	}
	var room Room
	var full []string
	var first *Denial
	more := d.Volume.Usage()
	for _, scope := range d.Quotas {
		s := ScopeRoom{QuotaScope: scope, Used: used(scope)}
		s.Would, s.Denial = s.Used.Add(more), scope.Check(s.Used, more)
		room.Scopes = append(room.Scopes, s)
		switch {
		case s.Denial == nil && scope.Kind == BackendScope:
			room.Backends = append(room.Backends, scope.Name)
		case s.Denial == nil:
		case scope.Kind == BackendScope:
			full = append(full, s.Denial.Message)
			if first == nil {
				first = s.Denial
			}
		case room.Denial == nil:
			room.Denial = s.Denial
		}
	}
	if room.Denial == nil && len(room.Backends) == 0 {
		denial := *first
		if len(full) > 1 {
			denial.Path = d.Rule + ".backends"
			denial.Message = fmt.Sprintf("no backend of %s has room: %s", d.Rule, strings.Join(full, "; "))
		}
		room.Denial = &denial
	}
	return room
}
