package auth

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestCloudsOracle runs the comparison with another reader of clouds.yaml,
// which is a separate module: registries do not always serve its dependencies.
func TestCloudsOracle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run := func(arguments ...string) (output string, err error) {
		command := exec.CommandContext(ctx, "go", arguments...)
		command.Dir = "../../test/cloudsoracle"
		combined, err := command.CombinedOutput()
		return strings.TrimSpace(string(combined)), err
	}
	if listing, err := run("list", "-deps", "-test", "./..."); err != nil {
		if output, err := run("mod", "download"); err != nil {
			t.Skipf("skipped: the modules of test/cloudsoracle cannot be downloaded: %v\n%s", err, output)
		}
		t.Fatalf("go list in test/cloudsoracle: %v\n%s", err, listing)
	}
	// Its input is outside the module, so that go's cache of results may not
	// notice a change.
	if output, err := run("test", "-count=1", "./..."); err != nil {
		t.Fatalf("go test in test/cloudsoracle: %v\n%s", err, output)
	}
}
