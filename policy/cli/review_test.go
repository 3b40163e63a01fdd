package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/policy/review"
)

// testOptions have no cluster.
var testOptions = Options{
	Protocols:       mappers.BuiltIn().Describe(),
	ProvisionerName: "cinder.example",
	ReadCluster: func(context.Context, string, string) (review.Existing, error) {
		return review.Existing{}, errors.New("no cluster in this test")
	},
	Places: func(*policy.Policy, string) map[string]review.Place {
		return map[string]review.Place{"gold": {Endpoint: "http://new:8776/v3", Project: "b"}}
	},
}

// clusterWith returns a cluster that has these claims and volumes.
func clusterWith(existing review.Existing) Options {
	options := testOptions
	options.ReadCluster = func(context.Context, string, string) (review.Existing, error) { return existing, nil }
	return options
}

// reviewed has something for every kind of finding, under testdata/policy.yaml.
func reviewed() review.Existing {
	claim := func(namespace, name, class string, gib int64, bound bool) review.Claim {
		c := review.Claim{
			Request: policy.Request{Namespace: namespace, StorageClass: class, Bytes: gib << 30},
			Name:    name, UID: name, ClassExists: class != "missing", Bound: bound,
		}
		if bound {
			c.Volume = "pv-" + name
		}
		return c
	}
	volume := func(name, tenant, class, backend, cluster string) review.Volume {
		return review.Volume{Name: "pv-" + name, ClaimUID: name, Tenant: tenant, StorageClass: class, Backend: backend, Cluster: cluster, GiB: 100}
	}
	retained := volume("kept", "team-a", "fast", "bronze", "here")
	retained.Retain = true
	odd := volume("odd", "team-a", "unheard-of", "gold", "here")
	odd.Place = review.Place{Endpoint: "http://old:8776/v3", Project: "a"}
	damaged := volume("damaged", "team-a", "fast", "", "here")
	damaged.Damage = "PersistentVolume pv-damaged: annotation standalone-cinder.openstack.org/backend is missing; nothing is deleted until it is put right"
	populated := claim("team-a", "populated", "fast", 1, false)
	populated.Refusal = &policy.Denial{Reason: policy.AwaitsPopulator, Message: "the claim waits for a volume populator of example.org/Image, which has its volume made for a claim of its own"}
	existing := review.Existing{
		Cluster: "here",
		Classes: []policy.StorageClass{{Name: "fast", Expandable: true}},
		Claims: []review.Claim{
			claim("team-a", "moved", "fast", 100, true), claim("stranger", "denied", "fast", 100, true),
			claim("team-a", "waits", "missing", 1, false), claim("team-a", "too-much", "fast", 1, false), claim("stranger", "nobody", "fast", 1, false),
			populated,
		},
		Volumes: []review.Volume{
			retained, damaged, volume("elsewhere", "team-a", "fast", "gold", "there"), volume("gone", "team-z", "fast", "gold", "here"),
			odd, volume("moved", "team-b", "any", "gold", "here"), volume("denied", "team-a", "fast", "gold", "here"),
		},
	}
	sealed := volume("sealed", "team-b", "any", "gold", "here")
	sealed.Encrypted = true
	existing.Volumes = append(existing.Volumes, sealed)
	for i := range 5 {
		existing.Volumes = append(existing.Volumes, volume(fmt.Sprintf("stuck-%d", i), "team-a", "fast", "copper", "here"))
	}
	for i := range maxShown + 2 {
		existing.Claims = append(existing.Claims, claim("team-b", fmt.Sprintf("new-%02d", i), "any", 1, false))
	}
	return existing
}

func TestCheckOfACluster(t *testing.T) {
	const file = "testdata/review.yaml"
	for name, test := range map[string]struct {
		args     []string
		existing review.Existing
		err      string
		code     int
	}{
		"review-all-kinds":    {[]string{"check", file, "--kubeconfig", "prod.conf"}, reviewed(), file + " leaves volumes that cannot be deleted: 2 findings", ExitFailed},
		"review-nothing":      {[]string{"check", file, "--kubeconfig", "prod.conf"}, review.Existing{Cluster: "here", Claims: reviewed().Claims[:0], Volumes: reviewed().Volumes[6:7]}, "", ExitOK},
		"review-against":      {[]string{"check", file, "--kubeconfig", "prod.conf", "--against", "testdata/review-old.yaml"}, reviewed(), "", ExitOK},
		"review-against-back": {[]string{"check", "testdata/review-old.yaml", "--kubeconfig", "prod.conf", "--against", file}, reviewed(), "", ExitOK},
		"review-against-same": {[]string{"check", file, "--kubeconfig", "prod.conf", "--against", file}, reviewed(), "", ExitOK},
	} {
		for extension, format := range map[string]string{".txt": "text", ".json": "json"} {
			t.Run(name+extension, func(t *testing.T) {
				got := runWith(clusterWith(test.existing), "", append(test.args, "--output", format)...)
				golden(t, name+extension, got.stdout)
				if message(got.err) != test.err || ExitCode(got.err) != test.code {
					t.Errorf("error %v with code %d, want %q with code %d", got.err, ExitCode(got.err), test.err, test.code)
				}
				if format == "json" && !json.Valid([]byte(got.stdout)) {
					t.Error("not JSON")
				}
			})
		}
	}
}

// TestEveryKindOfFindingHasAHeading also checks that reviewed has a finding of
// every kind.
func TestEveryKindOfFindingHasAHeading(t *testing.T) {
	p, err := policy.Load("testdata/review.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := policy.Load("testdata/review-old.yaml", mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	existing := reviewed()
	existing.Places = testOptions.Places(p, "")
	found := map[review.FindingKind]bool{}
	for _, f := range append(review.Of(p, existing).Findings, review.Change(earlier, p, existing, existing).Findings...) {
		found[f.Kind] = true
	}
	csi := load(t, csiPolicy)
	for _, f := range review.Of(csi, review.Existing{CSI: &review.CSI{}}).Findings {
		found[f.Kind] = true
	}
	for _, kind := range review.FindingKinds() {
		if !found[kind] {
			t.Errorf("nothing of kind %s is found", kind)
		}
	}
	for _, kind := range review.FindingKinds() {
		if headings[kind] == "" {
			t.Errorf("%s has no heading", kind)
		}
	}
}

func TestTheClusterIsAskedOnlyIfAFlagSaysSo(t *testing.T) {
	file := write(t, good)
	t.Setenv("KUBECONFIG", "/environment.conf")
	for name, test := range map[string]struct {
		stdin string
		args  []string
		asked []string
	}{
		"without flags":          {"", []string{"check", file}, nil},
		"with a file":            {"", []string{"check", file, "--kubeconfig", "prod.conf"}, []string{"prod.conf cinder.example"}},
		"with another name":      {"", []string{"check", file, "--kubeconfig", "prod.conf", "--provisioner-name", "mine"}, []string{"prod.conf mine"}},
		"compared":               {good, []string{"check", file, "--kubeconfig", "prod.conf", "--against", "-"}, []string{"prod.conf cinder.example"}},
		"a policy with mistakes": {"kind: Polizei", []string{"check", "-", "--kubeconfig", "prod.conf"}, nil},
		"a bad file to compare":  {"kind: Polizei", []string{"check", file, "--kubeconfig", "prod.conf", "--against", "-"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []string
			options := testOptions
			options.ReadCluster = func(_ context.Context, kubeconfig, provisionerName string) (review.Existing, error) {
				asked = append(asked, kubeconfig+" "+provisionerName)
				return review.Existing{}, nil
			}
			runWith(options, test.stdin, test.args...)
			if !slices.Equal(asked, test.asked) {
				t.Errorf("asked %q, want %q", asked, test.asked)
			}
		})
	}
}

func TestCheckOfAClusterGoesWrong(t *testing.T) {
	file := write(t, good)
	for name, test := range map[string]struct {
		stdin  string
		args   []string
		stdout string
		err    string
		code   int
	}{
		"an unreachable cluster": {"", []string{"check", file, "--kubeconfig", "prod.conf"}, "",
			"cannot say what the policy means for the cluster: no cluster in this test", ExitUsage},
		"mistakes come first": {"kind: Policy\n", []string{"check", "-", "--kubeconfig", "prod.conf"},
			"<stdin>:1:1: apiVersion: is missing; write apiVersion: standalone-cinder.openstack.org/v1alpha1\n" +
				"<stdin>:1:1: backends: is missing; list the Cinder endpoints that volumes may come from\n" +
				"<stdin>:1:1: tenants: is missing; list who may have volumes: a namespace that no tenant matches gets nothing\n", "<stdin> has 3 errors", ExitFailed},
		"mistakes in the file to compare with": {"kind: Polizei\napiVersion: standalone-cinder.openstack.org/v1alpha1\nbackends: []\ntenants: []\n", []string{"check", file, "--kubeconfig", "prod.conf", "--against", "-"},
			"<stdin>:1:7: kind: must be Policy, not \"Polizei\"\n", "<stdin> has 1 error", ExitUsage},
		"no file to compare with": {"", []string{"check", file, "--kubeconfig", "prod.conf", "--against", "absent.yaml"}, "",
			"read policy: open absent.yaml: no such file or directory", ExitUsage},
		"nothing to compare about": {"", []string{"check", file, "--against", file}, "",
			"--against is about the claims and volumes of a cluster and needs --kubeconfig", ExitUsage},
		"an empty clouds.yaml": {"", []string{"check", file, "--kubeconfig", "x", "--clouds-file="}, "",
			"--clouds-file is empty; name the clouds.yaml with the credentials of the policy's backends", ExitUsage},
		"a name without a cluster": {"", []string{"check", file, "--provisioner-name", "x"}, "",
			"--provisioner-name is about the claims and volumes of a cluster and needs --kubeconfig", ExitUsage},
		"an empty kubeconfig": {"", []string{"check", file, "--kubeconfig", ""}, "", "--kubeconfig is empty; name the kubeconfig file of a cluster", ExitUsage},
		"an empty comparison": {"", []string{"check", file, "--kubeconfig", "x", "--against="}, "", "--against is empty; name the policy file to compare with", ExitUsage},
		"an empty name": {"", []string{"check", file, "--kubeconfig", "x", "--provisioner-name="}, "",
			"--provisioner-name is empty; give the name under which the cluster's StorageClasses call the program", ExitUsage},
		"standard input twice": {good, []string{"check", "-", "--kubeconfig", "x", "--against", "-"}, "", "only one file can be - for standard input, not 2", ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(test.stdin, test.args...)
			if got.stdout != test.stdout || got.stderr != "" {
				t.Errorf("it printed\n%s%s\nwant\n%s", got.stdout, got.stderr, test.stdout)
			}
			if message(got.err) != test.err || ExitCode(got.err) != test.code {
				t.Errorf("error %q with code %d, want %q with code %d", message(got.err), ExitCode(got.err), test.err, test.code)
			}
		})
	}
}

// TestInterruptedReading: the command passes its context on.
func TestInterruptedReading(t *testing.T) {
	options := testOptions
	options.ReadCluster = func(ctx context.Context, _, _ string) (review.Existing, error) { return review.Existing{}, ctx.Err() }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cmd := NewCommand(options)
	cmd.SetArgs([]string{"check", write(t, good), "--kubeconfig", "prod.conf"})
	if err := cmd.ExecuteContext(ctx); !errors.Is(err, context.Canceled) || ExitCode(err) != ExitUsage {
		t.Errorf("%v", err)
	}
}
