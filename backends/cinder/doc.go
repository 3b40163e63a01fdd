// Package cinder is the adapter to OpenStack: a Client speaks to the Cinder of
// one endpoint, as one account. Nothing else in the program sends anything to
// OpenStack.
//
// Login makes a client from credentials. Each of its methods is one exchange;
// it returns Cinder's answer in this package's types, and every failure as an
// *Error. Below it, the transport bounds, paces and measures the requests. What
// may stop a request at the last moment comes with the context (Admission).
//
// The package does not know whom a volume belongs to or what it is for.
package cinder
