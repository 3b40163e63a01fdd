// Package datasource finds the volume that a claim wants the content of, says
// why it cannot be had, and keeps it from being deleted while it is copied.
package datasource
