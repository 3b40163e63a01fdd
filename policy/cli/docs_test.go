package cli

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentationIsTrue runs what docs/policy-commands.md shows, against the
// example that everybody has.
func TestDocumentationIsTrue(t *testing.T) {
	t.Chdir("../..")
	text, err := os.ReadFile("docs/policy-commands.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(begin string) string {
		_, rest, found := strings.Cut(string(text), begin)
		if !found {
			t.Fatalf("no block begins with %q", begin)
		}
		block, _, _ := strings.Cut(rest, "\n```\n")
		return block + "\n"
	}
	t.Run("explain", func(t *testing.T) {
		shown := block("```console\n$ standalone-cinder policy explain ")
		command, want, _ := strings.Cut(shown, "\n")
		got := run("", append([]string{"explain"}, strings.Fields(command)...)...)
		if got.err != nil || got.stdout != want {
			t.Errorf("%v\n got:\n%s\nwant:\n%s", got.err, got.stdout, want)
		}
	})
	t.Run("test", func(t *testing.T) {
		got := run(block("```yaml\n"), "test", "--policy", "config.example.yaml", "-")
		if got.err != nil || !strings.HasSuffix(got.stdout, ": 3 passed, 0 failed\n") {
			t.Errorf("%v\n%s", got.err, got.stdout)
		}
	})
	t.Run("help", func(t *testing.T) {
		got := run("", "test", "--help")
		if !strings.Contains(got.stdout, "kind: PolicyTest") || got.err != nil {
			t.Errorf("%v\n%s", got.err, got.stdout)
		}
	})
}
