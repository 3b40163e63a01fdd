// Command binaries is etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler in one file. The name it is called by, or else its first
// argument, says which of them it is.
//
// One file rather than four, because four links of mostly the same packages
// would take four times as long and as much space.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics, as the released programs have them
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version as a metric, likewise
)

func main() {
	name, args, ok := component(os.Args)
	if !ok {
		fmt.Fprintf(os.Stderr, "usage: %s {%s} [flags]\n", filepath.Base(os.Args[0]), strings.Join(components(), "|"))
		os.Exit(2)
	}
	// Everything below, and cobra in particular, reads the process's own
	// argument list.
	os.Args = append([]string{name}, args...)

	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	os.Exit(cli.Run(commands()[name]()))
}

// commands returns the Kubernetes components by name.
func commands() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": func() *cobra.Command { return controllermanager.NewControllerManagerCommand() },
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
}

func components() []string {
	names := []string{"etcd"}
	for name := range commands() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// component finds which program is wanted and the arguments that are left for
// it: from the name it was called by (a link named kube-apiserver, say), or
// else from the first argument.
func component(argv []string) (name string, args []string, ok bool) {
	known := components()
	if called := filepath.Base(argv[0]); slices.Contains(known, called) {
		return called, argv[1:], true
	}
	if len(argv) > 1 && slices.Contains(known, argv[1]) {
		return argv[1], argv[2:], true
	}
	return "", nil, false
}
