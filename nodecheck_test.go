package main

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/nodecheck"
)

// TestNodeCheckReadsThisMachine runs the command where the tests run, which may lack
// anything.
func TestNodeCheckReadsThisMachine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("nodes have Linux")
	}
	for _, mode := range []string{"native", "csi"} {
		var stdout, stderr bytes.Buffer
		code := run("standalone-cinder", []string{"node", "check", "--mode", mode, "--protocol", "iscsi,multipath,nvmeof,rbd", "--portal", "127.0.0.1:1", "--output", "json"}, &stdout, &stderr)
		var report nodecheck.Report
		if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
			t.Fatalf("%v\n%s%s", err, &stdout, &stderr)
		}
		refused := slices.ContainsFunc(report.Checks, func(c nodecheck.Check) bool {
			return c.Name == "portal 127.0.0.1:1" && c.Status == nodecheck.Error
		})
		if code != 1 || report.Mode != mode || report.Node == "" || len(report.Checks) < 8 || !refused {
			t.Errorf("exit code %d, %s%s", code, &stdout, &stderr)
		}
	}
	if code := run("standalone-cinder", []string{"node", "check", "--host-root", t.TempDir()}, io.Discard, io.Discard); code != 2 {
		t.Errorf("exit code %d without a node", code)
	}
}
