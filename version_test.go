package main

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/wiring"
)

func TestVersionCommandSaysWhatWasBuiltFromWhat(t *testing.T) {
	want := wiring.ThisBuild("", "")
	text := printed(t, "version")
	if line := "standalone-cinder " + want.Version + " (commit " + want.Commit + ", " + runtime.Version() + ", " + runtime.GOOS + "/" + runtime.GOARCH + ")\n"; text != line {
		t.Errorf("version printed %q, want %q", text, line)
	}
	if text := printed(t, "--version"); text != want.Version+"\n" {
		t.Errorf("--version printed %q, want %q", text, want.Version)
	}
	var fields map[string]string
	if err := json.Unmarshal([]byte(printed(t, "version -o json")), &fields); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"version": want.Version, "commit": want.Commit, "goVersion": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH} {
		if fields[name] != value {
			t.Errorf("%s is %q, want %q", name, fields[name], value)
		}
	}
	if code := run("standalone-cinder", []string{"version", "-o", "xml"}, io.Discard, io.Discard); code != 2 {
		t.Errorf("version -o xml: exit code %d, want 2", code)
	}
}

func printed(t *testing.T, arguments string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run("standalone-cinder", strings.Fields(arguments), &stdout, &stderr); code != 0 {
		t.Fatalf("%s: exit code %d: %s", arguments, code, &stderr)
	}
	return stdout.String()
}

// TestErrorsNameTheProgramOnce: an error about a command already begins with
// its name.
func TestErrorsNameTheProgramOnce(t *testing.T) {
	for line, want := range map[string]string{
		"standalone-cinder volume":            "standalone-cinder volume needs a subcommand (see standalone-cinder volume --help)",
		"standalone-cinder audit":             "standalone-cinder: --policy is required",
		"standalone-cinder status -o wide":    `standalone-cinder: --output must be table, json, yaml or jsonpath=TEMPLATE, not "wide"`,
		"standalone-cinder runn":              `standalone-cinder has no command "runn" (did you mean run?)`,
		"standalone-cinder volume lst":        `standalone-cinder volume has no subcommand "lst" (did you mean list?)`,
		"standalone-cinder node chek":         `standalone-cinder node has no subcommand "chek" (did you mean check?)`,
		"standalone-cinder run policy.yaml":   `standalone-cinder run takes no argument "policy.yaml" (use --policy policy.yaml)`,
		"standalone-cinder run --policy a b":  `standalone-cinder run takes no argument "b" (see standalone-cinder run --help)`,
		"standalone-cinder version x":         `standalone-cinder version takes no argument "x" (see standalone-cinder version --help)`,
		"standalone-cinder status --watch=ja": `standalone-cinder status: --watch must be true or false, not "ja" (see standalone-cinder status --help)`,
		"standalone-cinder run -v high":       `standalone-cinder run: --verbosity must be a whole number, not "high" (see standalone-cinder run --help)`,
		"kubectl-cinder quot":                 `kubectl cinder has no command "quot" (did you mean quota?)`,
		"kubectl-cinder grow d --timeout 5":   `kubectl cinder grow: --timeout must be a duration such as 90s or 5m, not "5" (see kubectl cinder grow --help)`,
	} {
		var stderr bytes.Buffer
		arguments := strings.Fields(line)
		if code := run(arguments[0], arguments[1:], io.Discard, &stderr); code != 2 || stderr.String() != want+"\n" {
			t.Errorf("%s: exit code %d: %q", line, code, stderr.String())
		}
	}
}
