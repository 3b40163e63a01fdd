// Package policy is the language in which an operator says which Kubernetes
// namespaces may have which OpenStack Cinder volumes from which backends, and
// the one decision that everything else obeys.
//
// A policy file is read by Load, which refuses it whole when anything in it is
// wrong and then lists every mistake with its line, its path and a remedy.
// Policy.Decide answers for one claim: the tenant and class rule that apply,
// the backends to try in order, the properties of the volume, the quotas it
// counts against, or a Denial; and a Trace of everything that was looked at.
//
// The package is pure: it reads one file and does nothing else, it keeps no
// state, and a Policy never changes once it is parsed, so it may be shared
// between goroutines. Whether a backend is healthy and whether a quota has
// room is for the caller to find out; the arithmetic for the latter is here.
package policy
