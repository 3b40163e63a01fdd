package main

import (
	"bytes"
	"encoding/json"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/app"
)

func TestVersionCommandSaysWhatWasBuiltFromWhat(t *testing.T) {
	want := thisBuild()
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

func TestLinkerSetsTheVersionElseTheCheckoutDoes(t *testing.T) {
	checkout := &debug.BuildInfo{Main: debug.Module{Version: "v0.1.1-0.20261122101010-ac5d48109f2b+dirty"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "ac5d48109f2b"}, {Key: "vcs.modified", Value: "true"}}}
	unstamped := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}
	for name, c := range map[string]struct {
		version, commit string
		info            *debug.BuildInfo
		want            app.Build
	}{
		"a release":             {"v0.1.0", "1234", unstamped, app.Build{Version: "v0.1.0", Commit: "1234"}},
		"go build":              {"", "", checkout, app.Build{Version: "v0.1.1-0.20261122101010-ac5d48109f2b+dirty", Commit: "ac5d48109f2b-dirty"}},
		"a module":              {"", "", &debug.BuildInfo{Main: debug.Module{Version: "v0.1.0"}}, app.Build{Version: "v0.1.0", Commit: "unknown"}},
		"a build without a VCS": {"", "", unstamped, app.Build{Version: "v0.0.0-dev", Commit: "unknown"}},
		"no information at all": {"", "", nil, app.Build{Version: "v0.0.0-dev", Commit: "unknown"}},
	} {
		if got := buildOf(c.version, c.commit, c.info); got.Version != c.want.Version || got.Commit != c.want.Commit {
			t.Errorf("%s: version %q and commit %q, want %q and %q", name, got.Version, got.Commit, c.want.Version, c.want.Commit)
		}
	}
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
