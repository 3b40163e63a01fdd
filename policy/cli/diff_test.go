package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// compared is a policy that the cases change.
const compared = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
defaults: {limits: {concurrency: 8}, volumeSize: {max: 100Gi}}
backends:
  - {name: gold, auth: {cloud: gold}}
  - {name: silver, auth: {cloud: silver}, suspended: true}
tenants:
  - name: a
    namespaces: [a, b]
    quota: {volumes: 10}
    classes:
      - {storageClasses: [fast], backends: [gold], volumeType: ssd}
      - {storageClasses: ["*"], backends: [silver, gold]}
  - name: z
    namespaceSelector: {matchLabels: {team: z}}
    classes: [{storageClasses: ["*"], backends: [gold]}]
`

func TestDiffOfTwoPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		change []string // what is replaced by what
		want   string
	}{
		"the same": {nil, "nothing changes\n"},
		"other text": {[]string{"namespaces: [a, b]", "namespaces: [b, a] # both", "{name: gold, auth: {cloud: gold}}", "{auth: {cloud: gold}, name: gold}"},
			"nothing changes\n"},
		"a default that is written out": {[]string{"defaults: {limits: {concurrency: 8}, ", "defaults: {", "auth: {cloud: gold}}", "auth: {cloud: gold}, limits: {concurrency: 8}}"},
			"~ backends[silver].limits.concurrency: 8 -> 16\n"},
		"a default": {[]string{"max: 100Gi", "max: 50Gi"},
			"~ tenants[a].volumeSize.max: 100Gi -> 50Gi\n~ tenants[z].volumeSize.max: 100Gi -> 50Gi\n"},
		"namespaces": {[]string{"[a, b]", "[a, c]"},
			"- tenants[a].namespaces[b]: listed\n+ tenants[a].namespaces[c]: listed\n"},
		"a selector": {[]string{"{matchLabels: {team: z}}", "{}"}, "~ tenants[z].namespaceSelector: team=z -> every namespace\n"},
		"a quota of nothing": {[]string{"quota: {volumes: 10}", "quota: {volumes: 0, gigabytes: 5}"},
			"+ tenants[a].quota.gigabytes: 5\n~ tenants[a].quota.volumes: 10 -> 0\n"},
		"backends of a rule, and their order": {[]string{"[silver, gold]", "[gold, silver]"}, "~ tenants[a].classes[*].backends: [silver gold] -> [gold silver]\n"},
		"a backend is used again":             {[]string{", suspended: true", ""}, "- backends[silver].suspended: true\n"},
		"the order of the rules": {[]string{
			"      - {storageClasses: [fast], backends: [gold], volumeType: ssd}\n      - {storageClasses: [\"*\"], backends: [silver, gold]}\n",
			"      - {storageClasses: [\"*\"], backends: [silver, gold]}\n      - {storageClasses: [fast], backends: [gold], volumeType: ssd}\n",
		}, "~ tenants[a].classes in their order: fast; * -> *; fast\n"},
		"a tenant that goes": {[]string{"  - name: z\n    namespaceSelector: {matchLabels: {team: z}}\n    classes: [{storageClasses: [\"*\"], backends: [gold]}]\n", ""},
			"- tenants[z].classes[*].backends: [gold]\n- tenants[z].classes[*].storageClasses: [*]\n- tenants[z].name: z\n- tenants[z].namespaceSelector: team=z\n- tenants[z].volumeSize.max: 100Gi\n"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.NewReplacer(c.change...).Replace(compared)
			got := run(changed, "diff", write(t, compared), "-")
			code := ExitFailed
			if strings.HasPrefix(c.want, "nothing") {
				code = ExitOK
			}
			if got.stdout != c.want || ExitCode(got.err) != code {
				t.Errorf("exit code %d\n got %s\nwant %s", ExitCode(got.err), got.stdout, c.want)
			}
		})
	}
}

func TestDiffAsJSON(t *testing.T) {
	got := run(strings.Replace(compared, "volumes: 10", "volumes: 9", 1), "diff", write(t, compared), "-", "-o", "json")
	var found differences
	if err := json.Unmarshal([]byte(got.stdout), &found); err != nil {
		t.Fatal(err)
	}
	if len(found.Changes) != 1 || found.Changes[0] != (change{"tenants[a].quota.volumes", "10", "9"}) || found.From.Revision == found.To.Revision || found.To.Source != stdinName {
		t.Errorf("%+v", found)
	}
}

func TestWhatDiffRefuses(t *testing.T) {
	file := write(t, compared)
	for name, c := range map[string]struct {
		stdin string
		args  []string
		want  string
	}{
		"one file":             {"", []string{file}, "needs two policy files, not 1"},
		"standard input twice": {"", []string{"-", "-"}, "only one file can be - for standard input, not 2"},
		"no such file":         {"", []string{file, "absent.yaml"}, "read policy: open absent.yaml"},
		"a mistake":            {"kind: Polizei\n", []string{file, "-"}, "<stdin> has "},
		"another format":       {"", []string{file, file, "-o", "xml"}, "--output must be text or json"},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(c.stdin, append([]string{"diff"}, c.args...)...)
			if ExitCode(got.err) != ExitUsage || !strings.Contains(message(got.err), c.want) {
				t.Errorf("%v\nwant %s", got.err, c.want)
			}
		})
	}
}
