// Package policy is the language in which an operator says which Kubernetes
// namespaces may have which OpenStack Cinder volumes from which backends, and
// the one decision that everything else obeys.
//
// Load reads a policy file. If anything in it is wrong, Load rejects the whole
// file and lists every mistake with its line, its path and a remedy.
// Policy.Decide decides about one claim: the tenant and class rule that apply,
// the backends to try in order, the properties of the volume, the quotas it
// counts against, or a Denial; and a Trace of everything that was considered.
//
// The package is pure: it reads one file and does nothing else, it keeps no
// state, and a Policy never changes once it is parsed, so it may be shared
// between goroutines. The caller finds out whether a backend is healthy and how
// much of a quota is used; the arithmetic of quotas is here.
package policy
