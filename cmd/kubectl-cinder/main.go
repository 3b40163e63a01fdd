// Kubectl-cinder is the kubectl plugin alone, for machines of people: it has every command
// but run and node, which need what a pod or a node has.
package main

import (
	"os"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/provisioner/commands/client"
	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

// The linker sets these in a release (build/release), with -X. Nothing else
// writes them.
var version, commit string

func main() {
	root := client.NewPlugin(mappers.BuiltIn(), wiring.ThisBuild(version, commit))
	os.Exit(client.Execute(root, os.Args[1:], os.Stdout, os.Stderr))
}
