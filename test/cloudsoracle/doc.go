// Package cloudsoracle compares how the product reads clouds.yaml with how
// gophercloud's clientconfig does, which most Go programs for OpenStack use.
//
// The product writes its readings of a table of files to
// backends/auth/testdata/cloudsreadings.json, and its own test fails when it reads
// them in another way. The test of this module reads the same files with
// clientconfig and fails when a field differs that the table does not list, or
// when one that it lists differs no more.
package cloudsoracle
