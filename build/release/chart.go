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

// packageChart packages deploy/chart with the version of the release. The
// image's tag follows from it (deploy/chart/values.yaml).
func packageChart(ctx context.Context, s source, out string) error {
	renderer, err := os.ReadFile(filepath.Join(s.directory, "test", "deploy", "render.go"))
	if err != nil {
		return err
	}
	helm := pinnedHelm.FindSubmatch(renderer)
	if helm == nil {
		return fmt.Errorf("test/deploy/render.go pins no version of Helm")
	}
	out, err = filepath.Abs(out)
	if err != nil {
		return err
	}
	version := strings.TrimPrefix(s.version, "v")
	// Helm gives every file of the chart this time.
	_, err = run(ctx, s.directory, []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(s.time.Unix(), 10)},
		"go", "run", string(helm[1]), "package", filepath.Join("deploy", "chart"), "--version", version, "--app-version", version, "--destination", out)
	return err
}
