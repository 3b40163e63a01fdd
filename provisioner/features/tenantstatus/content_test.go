package tenantstatus

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/standalone-cinder/standalone-cinder/policy"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const twoTenants = `
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
defaults: {volumeSize: {min: 1Gi}}
backends:
  - {name: gold, auth: {cloud: gold}, limits: {volumes: 100}}
  - {name: silver, auth: {cloud: silver}, mode: csi, suspended: true}
  - {name: secret, auth: {cloud: secret}}
tenants:
  - name: blue
    namespaces: [blue, "blue-*"]
    quota: {volumes: 20, gigabytes: 500}
    volumeSize: {max: 100Gi}
    classes:
      - {storageClasses: [fast, "fast-*"], backends: [gold, silver], quota: {volumes: 2}, volumeSize: {max: 50Gi}, volumeType: ssd, fsType: xfs, import: {names: ["*"]}, protect: [{name: daily, every: 24h, keep: 7}, {name: often, every: 15m, keep: 4, onRequest: true}]}
      - {storageClasses: ["*"], backends: [gold]}
  - name: red
    namespaces: [red]
    classes:
      - {storageClasses: ["*"], backends: [secret]}
`

func parse(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text), "policy.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func used(kind policy.ScopeKind, name string) policy.Usage {
	return map[string]policy.Usage{
		"tenant blue":                  {Volumes: 3, Gigabytes: 30, Snapshots: 1, SnapshotGigabytes: 10},
		"class tenants[0].classes[0]":  {Volumes: 2, Gigabytes: 20},
		"class tenants[0].classes[1]":  {Volumes: 1, Gigabytes: 10, Snapshots: 1, SnapshotGigabytes: 10},
		"tenant red":                   {Volumes: 777, Gigabytes: 777},
		"backend gold":                 {Volumes: 888},
		"class tenants[1].classes[0]":  {Volumes: 777},
		"backend secret, which is red": {},
	}[string(kind)+" "+name]
}

func waits(name string, at int, message string) Waiting {
	return Waiting{Namespace: "blue-1", Kind: "PersistentVolumeClaim", Name: name, State: "denied", Reason: "QuotaExceeded", Message: message,
		Since: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, at, 500, time.UTC))}
}

// TestContentIsWhatThePolicyGives compares whole objects with golden files.
func TestContentIsWhatThePolicyGives(t *testing.T) {
	p := parse(t, twoTenants)
	var many []Waiting
	for i := range 12 {
		many = append(many, waits(fmt.Sprintf("data-%d", i), i, "no room"))
	}
	for name, c := range map[string]struct {
		tenant  string
		waiting []Waiting
	}{
		"nothing_waits":       {"blue", nil},
		"without_quotas":      {"red", nil},
		"the_latest_are_kept": {"blue", many},
	} {
		t.Run(name, func(t *testing.T) {
			tenant, _ := p.Tenant(c.tenant)
			got, err := yaml.Marshal(contentOf(p, tenant, used).with(p, c.waiting))
			if err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".yaml"
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || string(got) != string(want) {
				t.Errorf("the content is not that of %s (%v):\n%s", golden, err, got)
			}
			if c.tenant == "blue" && (strings.Contains(string(got), "red") || strings.Contains(string(got), "secret") || strings.Contains(string(got), "777") || strings.Contains(string(got), "888")) {
				t.Errorf("the content has something of another tenant:\n%s", got)
			}
		})
	}
}

func TestMessagesNameNobodyElse(t *testing.T) {
	p := parse(t, twoTenants)
	const hidden = "see the events of the object"
	for name, c := range map[string]struct{ message, want string }{
		"own quota":                {"tenant blue would use 21 of 20 volumes (tenants[0].quota.volumes)", "tenant blue would use 21 of 20 volumes (tenants[0].quota.volumes)"},
		"own backend":              {"backend gold would use 101 of 100 volumes", "backend gold would use 101 of 100 volumes"},
		"another tenant":           {"namespace blue-1 belongs to tenant blue now, but the volume counts for tenant red", hidden},
		"another tenant, quoted":   {`tenant "red" has it`, hidden},
		"another tenant's backend": {"snapshot x is on backend secret, which tenants[0].classes[0] does not use", hidden},
		"a longer name":            {"claim red-1 of class secret-2", "claim red-1 of class secret-2"},
		"none":                     {"", ""},
		"too long":                 {strings.Repeat("é", 300), strings.Repeat("é", 123) + "... (cut)"},
	} {
		t.Run(name, func(t *testing.T) {
			tenant, _ := p.Tenant("blue")
			got := contentOf(p, tenant, used).with(p, []Waiting{waits("data", 0, c.message)}).Waiting[0].Message
			if got != c.want || len(got) > 256 || !utf8.ValidString(got) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestLargePoliciesAreCut: the API server would refuse more than the schema allows.
func TestLargePoliciesAreCut(t *testing.T) {
	var classes, rules strings.Builder
	for i := range 150 {
		fmt.Fprintf(&classes, "class-%d, ", i)
	}
	for i := range 150 {
		fmt.Fprintf(&rules, "\n      - {storageClasses: [%sfor-%d], backends: [gold]}", classes.String(), i)
	}
	p := parse(t, twoTenants[:strings.Index(twoTenants, "tenants:")]+"tenants:\n  - name: blue\n    namespaces: [blue]\n    classes:"+rules.String()+"\n")
	c := contentOf(p, &p.Tenants[0], used)
	if names := c.Rules[0].StorageClasses; len(c.Rules) != 100 || c.RulesNotShown != 50 || len(names) != 100 || names[99] != "and 52 more" {
		t.Errorf("%d rules, %d not shown, %d names, the last %q", len(c.Rules), c.RulesNotShown, len(c.Rules[0].StorageClasses), c.Rules[0].StorageClasses[99])
	}
}

func TestDigestsTellWhetherAnythingChanged(t *testing.T) {
	p := parse(t, twoTenants)
	tenant, _ := p.Tenant("blue")
	one := contentOf(p, tenant, used).with(p, []Waiting{waits("a", 0, "no room"), waits("b", 1, "no room")})
	other := contentOf(p, tenant, used).with(p, []Waiting{waits("b", 1, "no room"), waits("a", 0, "no room")})
	if one.digest() != other.digest() {
		t.Error("the order in which objects are listed changes the content")
	}
	if one.digest() == contentOf(p, tenant, used).digest() {
		t.Error("two contents have one digest")
	}
}
