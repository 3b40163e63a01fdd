package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestPolicyTests(t *testing.T) {
	for name, test := range map[string]struct {
		code int
		err  string
	}{
		"pass": {ExitOK, ""},
		"fail": {ExitFailed, "testdata/fail.test.yaml: 9 of 10 tests failed"},
	} {
		for output, extension := range map[string]string{outputText: "txt", outputJSON: "json"} {
			t.Run(name+" as "+output, func(t *testing.T) {
				got := run("", "test", "testdata/"+name+".test.yaml", "--output", output)
				if message(got.err) != test.err || ExitCode(got.err) != test.code || got.stderr != "" {
					t.Errorf("%v, code %d, stderr %q", got.err, ExitCode(got.err), got.stderr)
				}
				if output == outputJSON && !json.Valid([]byte(got.stdout)) {
					t.Error("not JSON")
				}
				golden(t, "test-"+name+"."+extension, got.stdout)
			})
		}
	}
}

const smallTest = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: PolicyTest
tests:
  - name: one
    claim: {namespace: a, storageClass: b, size: 1Gi}
    expect: {tenant: a}
`

func TestThePolicyUnderTest(t *testing.T) {
	file := write(t, good)
	passed := "ok    one\n1 test of " + file + " (revision e8378a913b83): 1 passed, 0 failed\n"
	t.Run("of the flag", func(t *testing.T) {
		if got := run(smallTest, "test", "--policy", file, "-"); got.stdout != passed || got.err != nil {
			t.Errorf("%v\n%s", got.err, got.stdout)
		}
	})
	t.Run("from standard input", func(t *testing.T) {
		tests := filepath.Join(t.TempDir(), "tests.yaml")
		if err := os.WriteFile(tests, []byte(smallTest), 0o600); err != nil {
			t.Fatal(err)
		}
		want := "ok    one\n1 test of <stdin> (revision e8378a913b83): 1 passed, 0 failed\n"
		if got := run(good, "test", "--policy", "-", tests); got.stdout != want || got.err != nil {
			t.Errorf("%v\n%s", got.err, got.stdout)
		}
	})
	t.Run("by an absolute name", func(t *testing.T) {
		if got := run(smallTest+"policy: "+file+"\n", "test", "-"); got.stdout != passed || got.err != nil {
			t.Errorf("%v\n%s", got.err, got.stdout)
		}
	})
}

func TestWrongUseOfTest(t *testing.T) {
	tests := map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"no file":          {"", nil, "standalone-cinder policy test takes one FILE, or - for standard input, but was given 0"},
		"two files":        {"", []string{"a", "b"}, "standalone-cinder policy test takes one FILE, or - for standard input, but was given 2"},
		"an absent file":   {"", []string{"testdata/absent.yaml"}, "read policy tests: open testdata/absent.yaml: no such file or directory"},
		"no policy":        {smallTest, []string{"-"}, "<stdin> names no policy; write policy: FILE into it, or give --policy"},
		"an absent policy": {smallTest + "policy: testdata/absent.yaml\n", []string{"-"}, "read policy: open testdata/absent.yaml: no such file or directory"},
		"twice from stdin": {smallTest, []string{"--policy", "-", "-"}, "only one file can be - for standard input, not 2"},
		"an output":        {smallTest, []string{"-", "-o", "junit"}, `--output must be text or json, not "junit"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := run(test.stdin, append([]string{"test"}, test.args...)...)
			if message(got.err) != test.want || ExitCode(got.err) != ExitUsage || got.stdout != "" {
				t.Errorf("code %d, stdout %q\n got %s\nwant %s", ExitCode(got.err), got.stdout, message(got.err), test.want)
			}
		})
	}
}

func TestMistakesInTests(t *testing.T) {
	got := run("kind: PolicyTest\n", "test", "-")
	want := "<stdin>:1:1: apiVersion: is missing; write apiVersion: standalone-cinder.openstack.org/v1alpha1\n" +
		"<stdin>:1:1: tests: is missing or empty; list claims and snapshots with what is expected of them\n"
	if got.stdout != want || message(got.err) != "<stdin> has 2 errors" || ExitCode(got.err) != ExitUsage {
		t.Errorf("%v, code %d\n%s", got.err, ExitCode(got.err), got.stdout)
	}
}
