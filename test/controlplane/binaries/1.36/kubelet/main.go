// Command kubelet is the kubelet of the same Kubernetes. It is a file of its own,
// since it runs on other machines than the control plane.
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kubelet/app"

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics, as the released program has them
	_ "k8s.io/component-base/metrics/prometheus/version"  // the version as a metric, likewise
)

func main() {
	os.Exit(cli.Run(app.NewKubeletCommand(context.Background())))
}
