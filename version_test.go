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
	for arguments, want := range map[string]string{
		"volume":         "standalone-cinder volume needs a subcommand (see standalone-cinder volume --help)\n",
		"audit":          "standalone-cinder: --policy is required\n",
		"status -o wide": "standalone-cinder: --output must be table, json, yaml or jsonpath=TEMPLATE, not \"wide\"\n",
	} {
		var stderr bytes.Buffer
		run("standalone-cinder", strings.Fields(arguments), io.Discard, &stderr)
		if stderr.String() != want {
			t.Errorf("%s: %q", arguments, stderr.String())
		}
	}
}
