package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

const configMap = `apiVersion: v1
kind: Namespace
metadata: {name: storage}
---
apiVersion: v1
data:
  other: "1"
  policy.yaml: |
POLICYkind: ConfigMap
metadata: {name: policy}
`

func inConfigMap(text string) string {
	indented := regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(text, "    $1")
	return strings.Replace(configMap, "POLICY", indented, 1)
}

// TestConfigMapIsUnwrapped: places are those of the manifest, the revision is that
// of the policy in it.
func TestConfigMapIsUnwrapped(t *testing.T) {
	bad := strings.Replace(good, "backends: [gold]", "backends: [golf]", 1)
	quoted := func(text string) string {
		data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "data": map[string]string{"policy.yaml": text}})
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	for name, c := range map[string]struct{ text, stdout, err string }{
		"a good one":         {inConfigMap(good), "FILE: good: 1 backend, 1 tenant, revision e8378a913b83\n", ""},
		"with a mistake":     {inConfigMap(bad), "FILE:16:54: tenants[0].classes[0].backends[0]: unknown backend \"golf\"; did you mean \"gold\"?\n", "FILE has 1 error"},
		"as JSON":            {quoted(good), "FILE: good: 1 backend, 1 tenant, revision e8378a913b83\n", ""},
		"a mistake in JSON":  {quoted(bad), "FILE (data[\"policy.yaml\"]):8:50: tenants[0].classes[0].backends[0]: unknown backend \"golf\"; did you mean \"gold\"?\n", "FILE has 1 error"},
		"under another key":  {strings.Replace(inConfigMap(good), "policy.yaml:", "config.yaml:", 1), "FILE: the ConfigMap has the policy under the key config.yaml, but the pods read policy.yaml; rename the key\n", "FILE has 1 error"},
		"without a policy":   {inConfigMap("a: b\n"), "FILE: the ConfigMap has no value with kind: Policy; its keys under data are [other, policy.yaml]\n", "FILE has 1 error"},
		"two policies":       {inConfigMap(good) + "---\n" + inConfigMap(good), "FILE: there are 2 values with kind: Policy in ConfigMaps, policy.yaml and policy.yaml; give one at a time\n", "FILE has 1 error"},
		"that is not closed": {inConfigMap(strings.Replace(good, "[a]", "[a", 1)), "FILE:15: from this line on the file is not valid YAML: a bracket is not closed, or a comma is missing (did not find expected ',' or ']')\n", "FILE has 1 error"},
	} {
		t.Run(name, func(t *testing.T) {
			file := write(t, c.text)
			got := run("", "check", file)
			if stdout := strings.ReplaceAll(got.stdout, file, "FILE"); stdout != c.stdout || strings.ReplaceAll(message(got.err), file, "FILE") != c.err {
				t.Errorf("%v\n got %s\nwant %s", got.err, stdout, c.stdout)
			}
		})
	}
	got := run(inConfigMap(good), "explain", "--policy", "-", "--namespace", "a", "--storage-class", "x", "--size", "1Gi")
	if got.err != nil || !strings.Contains(got.stdout, "(<stdin>:16)") {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}
}

func TestSeveralFilesAndWarnings(t *testing.T) {
	warned := write(t, strings.Replace(good, "namespaces: [a]", "namespaces: [a]\n    quota: {volumes: 0, gigabytes: 5, snapshots: 0}", 1))
	bad := write(t, strings.Replace(good, "kind: Policy", "kind: Polizei", 1))
	fine, absent := write(t, good), filepath.Join(t.TempDir(), "absent.yaml")
	for name, c := range map[string]struct {
		args []string
		err  string
		code int
	}{
		"all are good":               {[]string{fine, warned}, "", ExitOK},
		"one warns":                  {[]string{warned, "--fail-on=warnings"}, warned + " has 1 warning", ExitFailed},
		"one of two warns":           {[]string{fine, warned, "--fail-on", "warnings"}, "1 of 2 files did not pass", ExitFailed},
		"one has a mistake":          {[]string{fine, bad, warned}, "1 of 3 files did not pass", ExitFailed},
		"one cannot be read":         {[]string{bad, absent, fine}, "read policy: open " + absent + ": no such file or directory", ExitUsage},
		"none warns, and none fails": {[]string{fine, "--fail-on=warnings"}, "", ExitOK},
	} {
		t.Run(name, func(t *testing.T) {
			got := run("", append([]string{"check"}, c.args...)...)
			if message(got.err) != c.err || ExitCode(got.err) != c.code {
				t.Errorf("code %d, error %s, want %s", ExitCode(got.err), message(got.err), c.err)
			}
			for _, file := range c.args {
				if file != absent && strings.HasSuffix(file, ".yaml") && !strings.Contains(got.stdout, file+":") {
					t.Errorf("nothing is said about %s:\n%s", file, got.stdout)
				}
			}
		})
	}
	var list []report
	if got := run("", "check", "-o", "json", fine, bad); json.Unmarshal([]byte(got.stdout), &list) != nil || len(list) != 2 || !list[0].Valid || list[1].Valid {
		t.Errorf("%s", got.stdout)
	}
}

func TestCredentialsAreCheckedOnRequest(t *testing.T) {
	file, clouds := write(t, good), write(t, "clouds: {}\n")
	options := testOptions
	options.Credentials = func(p *policy.Policy, cloudsFile string) []Finding {
		if cloudsFile != clouds {
			t.Errorf("clouds file %s", cloudsFile)
		}
		return []Finding{{Path: "backends[0].auth.cloud", Message: "broken"}, {Path: "backends[0].auth.cloud", Message: "odd", Warning: true}}
	}
	if got := runWith(options, "", "check", file); got.err != nil {
		t.Error(got.err)
	}
	got := runWith(options, "", "check", file, "--clouds-file", clouds)
	want := file + ":4: backends[0].auth.cloud: broken\n" + file + ":4: backends[0].auth.cloud: warning: odd\n"
	if ExitCode(got.err) != ExitFailed || got.stdout != want {
		t.Errorf("%v\n got %s\nwant %s", got.err, got.stdout, want)
	}
	if err := os.Remove(clouds); err != nil {
		t.Fatal(err)
	}
}
