// Command kubectl is kubectl, built from its module for the tests that run the
// commands of the documentation. The module has no main of its own, and needs no
// k8s.io/kubernetes, so it builds in two minutes.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
)

func main() { os.Exit(cli.Run(cmd.NewDefaultKubectlCommand())) }
