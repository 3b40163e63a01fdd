//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/test/e2e/rig"
)

// checked is the part of the answer of policy check that matters here.
type checked struct {
	Valid    bool
	Errors   []struct{ Path, Message string }
	Warnings []struct{ Path, Message string }
	Live     struct {
		Backends []struct {
			Name, Endpoint, Region, Interface, Microversion string
			Reachable                                       bool
			VolumeTypes, AvailabilityZones                  []string
			Quota                                           *struct{ Volumes, Gigabytes struct{ Limit, Used int64 } }
		}
		Trials []struct {
			Backend, VolumeType, Volume, FailedStep, Error, Left string
			Source                                               json.RawMessage
		}
	}
}

// TestPolicyCheckAsksRealCinder runs policy check --live --make-volume on the
// policy of the other tests.
func TestPolicyCheckAsksRealCinder(t *testing.T) {
	env, err := rig.Load(rig.EnvFile())
	must(t, err)
	program := filepath.Join(t.TempDir(), "standalone-cinder")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../..").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	check := func(text string, interruptAfter time.Duration, arguments ...string) (checked, int, string) {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		must(t, os.WriteFile(file, []byte(text), 0o600))
		command := exec.CommandContext(t.Context(), program, append([]string{"policy", "check", file, "--live", "--clouds-file", env.CloudsFile, "--output", "json"}, arguments...)...)
		if interruptAfter > 0 {
			ctx, cancel := context.WithTimeout(t.Context(), interruptAfter)
			defer cancel()
			command = exec.CommandContext(ctx, program, command.Args[1:]...)
			command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
			command.WaitDelay = 5 * time.Minute
		}
		var stderr strings.Builder
		command.Stderr = &stderr
		stdout, err := command.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		var answer checked
		if err := json.Unmarshal(stdout, &answer); err != nil {
			t.Fatalf("%v\n%s\n%s", err, stdout, stderr.String())
		}
		for _, secret := range []string{env.TeamA.Password, env.TeamB.Password, env.TeamACredential.Secret} {
			if strings.Contains(string(stdout)+stderr.String(), secret) {
				t.Error("the answer shows a secret")
			}
		}
		t.Logf("exit code %d\n%s%s", command.ProcessState.ExitCode(), stdout, stderr.String())
		return answer, command.ProcessState.ExitCode(), stderr.String()
	}
	nothingIsLeft := func() {
		t.Helper()
		var answer struct {
			Volumes []volume `json:"volumes"`
		}
		must(t, ask(t.Context(), env, "/volumes/detail?all_tenants=1", &answer))
		for _, v := range answer.Volumes {
			if strings.HasPrefix(v.Name, "policy-check-") {
				t.Errorf("volume %s is left %s", v.Name, v.Status)
			}
		}
	}

	// The only mistakes are the rules whose volumes end in error: one for its type, one
	// for its first zone.
	answer, code, _ := check(policyOf(env), 0, "--make-volume")
	if code != 1 || len(answer.Errors) != 2 {
		t.Errorf("code %d: %+v", code, answer.Errors)
	}
	for _, e := range answer.Errors {
		if !strings.Contains(e.Message, "went to error and was removed") {
			t.Errorf("%+v", e)
		}
	}
	for _, b := range answer.Live.Backends {
		if !b.Reachable || b.Microversion == "" || b.Quota == nil || len(b.AvailabilityZones) == 0 || !slices.Contains(b.VolumeTypes, env.Types.ISCSI) {
			t.Errorf("%+v", b)
		}
	}
	failed := 0
	for _, trial := range answer.Live.Trials {
		failing := trial.VolumeType == env.Types.Fail
		if trial.Backend == "filled" {
			// Each of its zones is tried.
			failing = trial.FailedStep == "create"
		}
		if trial.FailedStep != "" {
			failed++
		}
		if trial.Left != "" || failing != (trial.FailedStep == "create") || failing == (len(trial.Source) > 0) {
			t.Errorf("%+v", trial)
		}
	}
	if failed != 2 {
		t.Errorf("%d trials failed, want 2", failed)
	}
	nothingIsLeft()

	// What Cinder does not have.
	wrong := strings.NewReplacer("volumeType: "+env.Types.ISCSIMultipath, "volumeType: absent, availabilityZone: nowhere, quota: {volumes: 1000000}").Replace(policyOf(env))
	answer, code, _ = check(wrong, 0)
	var paths []string
	for _, e := range answer.Errors {
		paths = append(paths, e.Path)
	}
	if code != 1 || !slices.Equal(paths, []string{"tenants[1].classes[0].volumeType", "tenants[1].classes[0].availabilityZone"}) {
		t.Errorf("code %d: %+v", code, answer.Errors)
	}
	nothingIsLeft()

	// The check is interrupted wherever it is by then.
	for _, after := range []time.Duration{time.Second, 3 * time.Second} {
		check(policyOf(env), after, "--make-volume")
		nothingIsLeft()
	}
}
