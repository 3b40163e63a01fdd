package app

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

func TestMetricNamesTheBuild(t *testing.T) {
	registry := prometheus.NewRegistry()
	newStatus(wiring.Build{Version: "v0.1.0", Commit: "1234", GoVersion: "go1.26.0", Platform: "linux/amd64"}, registry)
	want := `
# HELP standalone_cinder_build_info 1, with the version, its commit and the version of Go as labels.
# TYPE standalone_cinder_build_info gauge
standalone_cinder_build_info{goversion="go1.26.0",revision="1234",version="v0.1.0"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "standalone_cinder_build_info"); err != nil {
		t.Error(err)
	}
}
