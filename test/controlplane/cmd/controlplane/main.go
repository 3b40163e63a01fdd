// Command controlplane runs the tests' control plane in the foreground, for
// experiments by hand, of the Kubernetes minor that KUBERNETES names, or else of
// the newest that can be downloaded. It says where the administrator's
// kubeconfig is, and runs until it is interrupted.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/standalone-cinder/standalone-cinder/test/controlplane"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	dir := flag.String("dir", "", "state directory, kept at the end (default: a temporary one, removed at the end)")
	qps := flag.Int("controller-manager-qps", controlplane.DefaultControllerManagerQPS, "the controller manager's client rate, in requests per second")
	scheduler := flag.Bool("scheduler", false, "run kube-scheduler too")
	buildOnly := flag.Bool("build-only", false, "build the binary if need be, print its path and exit")
	buildKubelet := flag.Bool("build-kubelet", false, "build the kubelet of the tests with virtual machines if need be, print its path and exit")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if *buildOnly || *buildKubelet {
		build := controlplane.Binary
		if *buildKubelet {
			build = controlplane.Kubelet
		}
		path, err := build(ctx, os.Stderr)
		if err == nil {
			fmt.Println(path)
		}
		return err
	}
	plane, err := controlplane.Start(ctx, controlplane.Options{Dir: *dir, ControllerManagerQPS: *qps, Scheduler: *scheduler})
	if err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\n", plane.KubeconfigPath())
	fmt.Fprintln(os.Stderr, "controlplane: running; interrupt to stop")
	<-ctx.Done()
	// A second interrupt ends the program at once.
	cancel()
	return plane.Stop()
}
