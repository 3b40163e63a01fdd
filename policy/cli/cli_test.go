package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

const good = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
backends:
  - {name: gold, auth: {cloud: gold}}
tenants:
  - name: a
    namespaces: [a]
    classes: [{storageClasses: ["*"], backends: [gold]}]
`

// result is what running the command did.
type result struct {
	stdout, stderr string
	err            error
}

// run runs a command line as main does: the policy command under a root.
func run(stdin string, args ...string) result {
	return runWith(testOptions, stdin, args...)
}

func runWith(options Options, stdin string, args ...string) result {
	return execute(options, stdin, append([]string{"policy"}, args...)...)
}

// complete returns what the shell is offered after the arguments.
func complete(args ...string) string {
	return execute(testOptions, "", append([]string{"__complete", "policy"}, args...)...).stdout
}

func execute(options Options, stdin string, args ...string) result {
	root := &cobra.Command{Use: "standalone-cinder", SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(FlagError)
	root.AddCommand(NewCommand(options))
	var stdout, stderr bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(args)
	err := root.Execute()
	return result{stdout.String(), stderr.String(), err}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestCheck(t *testing.T) {
	bad := strings.Replace(strings.Replace(good, "backends: [gold]", "backends: [golf]", 1), "kind: Policy", "kind: Polizei", 1)
	warned := strings.Replace(good, "tenants:", "  - {name: lab, auth: {cloud: lab}}\ntenants:", 1)
	tests := map[string]struct {
		text, stdout, err string
		code              int
	}{
		"a good policy": {good, "FILE: good: 1 backend, 1 tenant, revision e8378a913b83\n", "", ExitOK},
		"a policy with warnings": {warned, "FILE:5:5: backends[1]: warning: no rule uses backend \"lab\"; name it in a tenant's classes, or set suspended: true if it is kept only for the volumes it has\n" +
			"FILE: good: 2 backends, 1 tenant, revision 5b33656f2e77, 1 warning\n", "", ExitOK},
		"a policy with mistakes": {bad, "FILE:2:7: kind: must be Policy, not \"Polizei\"\n" +
			"FILE:8:50: tenants[0].classes[0].backends[0]: unknown backend \"golf\"; did you mean \"gold\"?\n", "FILE has 2 errors", ExitFailed},
		"an empty file": {"", "FILE:1:1: the file is empty; a policy begins with apiVersion: standalone-cinder.openstack.org/v1alpha1\n", "FILE has 1 error", ExitFailed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := write(t, test.text)
			for source, got := range map[string]result{
				file:      run("", "check", file),
				"<stdin>": run(test.text, "check", "-", "-o", "text"),
			} {
				if want := strings.ReplaceAll(test.stdout, "FILE", source); got.stdout != want || got.stderr != "" {
					t.Errorf("stdout\n got %q\nwant %q\nstderr %q", got.stdout, want, got.stderr)
				}
				if want := strings.ReplaceAll(test.err, "FILE", source); message(got.err) != want || ExitCode(got.err) != test.code {
					t.Errorf("error %v with code %d, want %q with code %d", got.err, ExitCode(got.err), want, test.code)
				}
			}
		})
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestCheckAsJSON(t *testing.T) {
	got := run(good, "check", "-", "--output", "json")
	want := `{
  "source": "<stdin>",
  "valid": true,
  "revision": "e8378a913b83",
  "backends": [
    "gold"
  ],
  "tenants": [
    "a"
  ],
  "errors": [],
  "warnings": []
}
`
	if got.stdout != want || got.err != nil {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}

	got = run("kind: Policy\napiVersion: <v1>\ntenants: []\nbackends: []\n", "check", "-", "--output=json")
	want = `{
  "source": "<stdin>",
  "valid": false,
  "errors": [
    {
      "source": "<stdin>",
      "line": 2,
      "column": 13,
      "path": "apiVersion",
      "message": "must be standalone-cinder.openstack.org/v1alpha1, not \"<v1>\""
    }
  ],
  "warnings": []
}
`
	if got.stdout != want || ExitCode(got.err) != ExitFailed {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}
	if !json.Valid([]byte(got.stdout)) {
		t.Error("not JSON")
	}
}

func TestWrongUse(t *testing.T) {
	file := write(t, good)
	absent := filepath.Join(t.TempDir(), "absent.yaml")
	tests := map[string]struct {
		args []string
		want string
	}{
		"no subcommand":         {nil, "standalone-cinder policy needs a subcommand (see standalone-cinder policy --help)"},
		"a misspelled one":      {[]string{"chek", file}, `standalone-cinder policy has no subcommand "chek" (did you mean check?)`},
		"an unknown one":        {[]string{"frobnicate"}, `standalone-cinder policy has no subcommand "frobnicate" (see standalone-cinder policy --help)`},
		"no file":               {[]string{"check"}, "standalone-cinder policy check needs a FILE, or - for standard input (see standalone-cinder policy check --help)"},
		"stdin twice":           {[]string{"check", "-", "-"}, "only one file can be - for standard input, not 2"},
		"two for a cluster":     {[]string{"check", file, file, "--kubeconfig", "k"}, "--kubeconfig reviews one policy, but 2 files are given; give one"},
		"fail on what":          {[]string{"check", file, "--fail-on", "notes"}, `--fail-on must be errors or warnings, not "notes"`},
		"a volume, but offline": {[]string{"check", file, "--make-volume"}, "--make-volume needs --live"},
		"no clouds file":        {[]string{"check", file, "--clouds-file", absent}, "--clouds-file: open " + absent + ": no such file or directory"},
		"an unknown flag":       {[]string{"check", "--frob", file}, "standalone-cinder policy check: unknown flag: --frob (see standalone-cinder policy check --help)"},
		"an unknown format":     {[]string{"check", "--output", "xml", file}, `--output must be text or json, not "xml"`},
		"a file that is not":    {[]string{"check", absent}, "read policy: open " + absent + ": no such file or directory"},
		"an address":            {[]string{"check", "https://example.com/p"}, "read policy: open https://example.com/p: no such file or directory; download the policy, and give the file"},
		"a flag's bad value":    {[]string{"check", file, "--live=ja"}, `standalone-cinder policy check: --live must be true or false, not "ja" (see standalone-cinder policy check --help)`},
		"an unknown root flag":  {[]string{"--frob"}, "standalone-cinder policy: unknown flag: --frob (see standalone-cinder policy --help)"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := run("", test.args...)
			if message(got.err) != test.want || ExitCode(got.err) != ExitUsage {
				t.Errorf("error %q with code %d, want %q with code %d", message(got.err), ExitCode(got.err), test.want, ExitUsage)
			}
			if got.stdout != "" || got.stderr != "" {
				t.Errorf("it printed %q and %q itself", got.stdout, got.stderr)
			}
		})
	}
}

// TestUnwritableOutput: an answer that is lost must not pass for success.
func TestUnwritableOutput(t *testing.T) {
	broken := errors.New("broken pipe")
	for _, args := range [][]string{
		{"check", "-"},
		{"check", "-", "--output", "json"},
		{"check", "-", "--kubeconfig", "x"},
		{"check", "-", "--kubeconfig", "x", "--output", "json"},
		{"explain", "--policy", "-", "--namespace", "a", "--storage-class", "b", "--size", "1Gi"},
		{"explain", "--policy", "-", "--namespace", "a", "--storage-class", "b", "--size", "1Gi", "--output", "json"},
		{"test", "--policy", "-", "testdata/pass.test.yaml"},
		{"test", "--policy", "-", "testdata/pass.test.yaml", "--output", "json"},
		{"schema"},
	} {
		cmd := NewCommand(clusterWith(reviewed()))
		cmd.SetIn(strings.NewReader(good))
		cmd.SetOut(failingWriter{broken})
		cmd.SetArgs(args)
		err := cmd.Execute()
		if !errors.Is(err, broken) || ExitCode(err) != ExitUsage {
			t.Errorf("%v: %v, code %d", args, err, ExitCode(err))
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, ExitOK},
		{errors.New("unknown command"), ExitUsage},
		{&ExitError{ExitFailed, errors.New("x")}, ExitFailed},
		{fmt.Errorf("wrapped: %w", &ExitError{ExitFailed, errors.New("x")}), ExitFailed},
	} {
		if got := ExitCode(test.err); got != test.want {
			t.Errorf("ExitCode(%v) = %d, want %d", test.err, got, test.want)
		}
	}
}

// writeTo writes a file beside others.
func writeTo(t *testing.T, dir, name, text string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
