// Command demo is the guided tour behind `make demo`: a real Kubernetes control
// plane, a simulated Cinder, three replicas of the program, two tenants, a
// denial, a failover. It exits with status 0 only if everything went as
// announced.
//
//	go run ./test/demo                    builds and starts a control plane
//	go run ./test/demo -kubeconfig FILE   uses an existing cluster
//	go run ./test/demo -picture FILE      also draws the tour, as the README shows it
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"

	"github.com/standalone-cinder/standalone-cinder/test/demo/tour"
)

// kubeconfigVariable is the default of -kubeconfig. It is not KUBECONFIG: a
// demo must not reach a cluster that its user did not choose.
const kubeconfigVariable = "KUBECONFIG_DEMO"

const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() { os.Exit(run()) }

func run() int {
	options := tour.Options{}
	flag.StringVar(&options.Kubeconfig, "kubeconfig", os.Getenv(kubeconfigVariable),
		"use the cluster of this kubeconfig `file` instead of a local control plane; default is $"+kubeconfigVariable)
	drawn := flag.String("picture", "", "draw the tour's claims, denial and failover as SVG to this `file`")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flag.Arg(0))
		return exitUsage
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second signal ends the program without cleanup.
	defer context.AfterFunc(ctx, stop)()
	// As in `make demo | head`: by default, the exit of the reader would kill the
	// program before it could clean up. With the signal caught, only a write
	// fails.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// Visitors do not need the client library's messages about requests that the
	// end of the tour cuts.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))

	var said strings.Builder
	err := tour.Run(ctx, options, io.MultiWriter(os.Stdout, &said))
	if err == nil && *drawn != "" {
		var svg bytes.Buffer
		if err = drawTour(&svg, said.String()); err == nil {
			err = os.WriteFile(*drawn, svg.Bytes(), 0o644)
		}
	}
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: stopped:", err)
		return exitInterrupted
	default:
		fmt.Fprintln(os.Stderr, "demo: failed:", err)
		return exitFailed
	}
}
