package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// pinnedHelm is where test/deploy pins the Helm that renders the chart.
var pinnedHelm = regexp.MustCompile(`(?m)^\thelm *= "(.+)"$`)

// chart returns the name of the packaged chart.
func (s source) chart() string { return program + "-" + strings.TrimPrefix(s.version, "v") + ".tgz" }

// packageChart packages deploy/chart with the version of the release. The
// image's tag follows from it (deploy/chart/values.yaml).
func packageChart(ctx context.Context, s source, out string) error {
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(s.version, "v")
	// Helm gives every file of the chart this time.
	_, err = runHelm(ctx, s, []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(s.time.Unix(), 10)},
		"package", filepath.Join("deploy", "chart"), "--version", version, "--app-version", version, "--destination", out)
	return err
}

// runHelm runs the Helm that test/deploy pins.
func runHelm(ctx context.Context, s source, variables []string, arguments ...string) ([]byte, error) {
	renderer, err := os.ReadFile(filepath.Join(s.directory, "test", "deploy", "render.go"))
	if err != nil {
		return nil, err
	}
	helm := pinnedHelm.FindSubmatch(renderer)
	if helm == nil {
		return nil, fmt.Errorf("test/deploy/render.go pins no version of Helm")
	}
	return run(ctx, s.directory, variables, "go", append([]string{"run", string(helm[1])}, arguments...)...)
}
