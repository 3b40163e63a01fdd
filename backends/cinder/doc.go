// Package cinder is the adapter to OpenStack: a Client speaks to the Cinder of
// one endpoint, as one account, and nothing else in the program sends anything
// to OpenStack.
//
// Login makes a client of credentials. Each method of it is one exchange; it
// returns what Cinder said in this package's own types, and every failure as an
// *Error. Under it the transport bounds, paces and measures the requests; what
// may hold one back at the last moment comes with the context (Admission).
//
// The package knows neither whose a volume is nor what is to become of it.
package cinder
