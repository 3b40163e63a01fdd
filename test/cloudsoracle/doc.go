// Package cloudsoracle compares how the product reads clouds.yaml with
// gophercloud's clientconfig, which most Go programs for OpenStack use.
//
// The product writes its readings of a table of files to
// backends/auth/testdata/cloudsreadings.json, and its own test fails if they
// change. The test of this module reads the same files with clientconfig and
// fails if a field differs that the table does not list, or if a listed one no
// longer differs.
package cloudsoracle
