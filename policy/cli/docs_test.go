package cli

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// documented returns what exists in the cluster of the documentation.
func documented() review.Existing {
	claim := func(namespace, name string, gib int64, volume string) review.Claim {
		return review.Claim{
			Request: policy.Request{Namespace: namespace, StorageClass: "fast", Bytes: gib << 30},
			Name:    name, UID: name, ClassExists: true, Bound: volume != "", Volume: volume,
		}
	}
	volume := func(name, claim, backend string, gib int64) review.Volume {
		return review.Volume{Name: name, ClaimUID: claim, Tenant: "team-a", StorageClass: "fast", Backend: backend, Cluster: "prod-eu-1", GiB: gib}
	}
	return review.Existing{
		Claims: []review.Claim{
			claim("team-a", "orders", 100, "pvc-0a41"), claim("team-a-old", "archive", 60, "pvc-77e0"), claim("shop", "data", 50, "pvc-c5d2"),
			claim("team-a", "cache", 10, ""), claim("team-a-new", "scratch", 4, ""),
		},
		Volumes: []review.Volume{
			volume("pvc-0a41", "orders", "gold", 100), volume("pvc-77e0", "archive", "silver", 60), volume("pvc-c5d2", "data", "gold", 30), volume("pvc-e9b3", "gone", "silver", 5),
		},
	}
}

// TestDocumentationIsTrue runs what docs/policy-commands.md shows, against the
// example that comes with the program.
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
	// A block that ends with an ellipsis shows the beginning.
	shows := func(got, want string) bool {
		begin, isShort := strings.CutSuffix(want, "...\n")
		return got == want || isShort && strings.HasPrefix(got, begin)
	}
	t.Run("explain", func(t *testing.T) {
		shown := block("```console\n$ standalone-cinder policy explain ")
		command, want, _ := strings.Cut(shown, "\n")
		got := run("", append([]string{"explain"}, strings.Fields(command)...)...)
		if got.err != nil || !shows(got.stdout, want) {
			t.Errorf("%v\n got:\n%s\nwant:\n%s", got.err, got.stdout, want)
		}
	})
	t.Run("check", func(t *testing.T) {
		shown := block("```console\n$ standalone-cinder policy check ")
		command, want, _ := strings.Cut(shown, "\n")
		options := clusterWith(documented())
		options.ProvisionerName = "openstack.org/standalone-cinder"
		got := runWith(options, "", append([]string{"check"}, strings.Fields(command)...)...)
		// Every change of a comment in the example changes its revision.
		revision := regexp.MustCompile("revision [0-9a-f]{12}")
		if ExitCode(got.err) != ExitFailed || !shows(revision.ReplaceAllString(got.stdout, ""), revision.ReplaceAllString(want, "")) {
			t.Errorf("%v\n got:\n%s\nwant:\n%s", got.err, got.stdout, want)
		}
	})
	t.Run("kinds", func(t *testing.T) {
		for _, kind := range review.FindingKinds() {
			if !strings.Contains(string(text), "`"+string(kind)+"`") {
				t.Errorf("the kind %s is not explained", kind)
			}
		}
	})
	t.Run("test", func(t *testing.T) {
		got := run(block("```yaml\n"), "test", "--policy", "config.example.yaml", "-")
		if got.err != nil || !strings.HasSuffix(got.stdout, ": 5 passed, 0 failed\n") {
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
