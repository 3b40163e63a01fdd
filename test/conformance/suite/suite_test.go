// Package suite is Kubernetes' own suite for storage drivers, as a program of its own:
// only the cases for a driver that a file describes (--storage.testdriver).
package suite

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	_ "k8s.io/kubernetes/test/e2e/feature"                // the features that cases name
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"   // what the cluster says when a case fails
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init" // the framework expects it
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"    // the framework expects it
	_ "k8s.io/kubernetes/test/e2e/storage/external"       // the cases
)

func TestMain(m *testing.M) {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unknown arguments: %q\n", flag.Args())
		os.Exit(2)
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestStorage(t *testing.T) { e2e.RunE2ETests(t) }
