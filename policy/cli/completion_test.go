package cli

import (
	"os"
	"strings"
	"testing"
)

// TestCompletion asks as a shell's completion script does, which itself picks
// what fits the beginning of a word. The last line is cobra's directive: 4 means
// no file names, 8 only those with the extensions.
func TestCompletion(t *testing.T) {
	const files = "yaml\nyml\njson\n:8\n"
	tests := map[string]struct {
		args []string
		want string
	}{
		"the file to check":     {[]string{"check", ""}, files},
		"another file to check": {[]string{"check", "a.yaml", ""}, files},
		"what fails the check":  {[]string{"check", "--fail-on", ""}, "errors\nwarnings\n:4\n"},
		"the output of check":   {[]string{"check", "--output", ""}, "text\njson\n:4\n"},
		"any kubeconfig file":   {[]string{"check", "--kubeconfig", ""}, ":0\n"},
		"the policy to compare": {[]string{"check", "--against", ""}, files},
		"a provisioner's name":  {[]string{"check", "--provisioner-name", ""}, ":4\n"},
		"the output of explain": {[]string{"explain", "-o", "j"}, "text\njson\n:4\n"},
		"the output of test":    {[]string{"test", "--output="}, "text\njson\n:4\n"},
		"the volume mode":       {[]string{"explain", "--volume-mode", ""}, "Filesystem\nBlock\n:4\n"},
		"the access mode":       {[]string{"explain", "--access-mode", "RW"}, "RWO\nROX\nRWX\nRWOP\n:4\n"},
		"the policy":            {[]string{"explain", "--policy", ""}, files},
		"manifests by flag":     {[]string{"explain", "--manifests", ""}, files},
		"manifests":             {[]string{"explain", "--policy", "p.yaml", "a.yaml", ""}, files},
		"what nobody can guess": {[]string{"explain", "--size", ""}, ":4\n"},
		"the tests":             {[]string{"test", ""}, files},
		"the policy under test": {[]string{"test", "--policy", ""}, files},
		"no file for a schema":  {[]string{"schema", ""}, ":4\n"},
		"the subcommand":        {[]string{"ex"}, "explain\tSay what a policy decides about claims, and why\n:4\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := complete(test.args...); got != test.want {
				t.Errorf("\n got %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestSchemaCommand(t *testing.T) {
	want, err := os.ReadFile("../../policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := run("", "schema"); got.stdout != string(want) || got.err != nil {
		t.Errorf("%v, %d bytes instead of %d", got.err, len(got.stdout), len(want))
	}
	got := run("", "schema", "policy.yaml")
	if message(got.err) != `standalone-cinder policy schema takes no argument "policy.yaml" (see standalone-cinder policy schema --help)` || ExitCode(got.err) != ExitUsage {
		t.Errorf("%v", got.err)
	}
	if !strings.HasPrefix(string(want), "{\n") {
		t.Error("the schema is not indented")
	}
}
