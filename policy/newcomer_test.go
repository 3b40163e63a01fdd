package policy

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// newcomersMistakes are single changes to the example that everybody starts
// from, with everything that is reported about each, line by line. Line numbers
// are left out, so that they do not depend on the length of the example.
var newcomersMistakes = map[string]struct{ from, to, want string }{
	"a key in the plural": {"    quota: {volumes: 20", "    quotas: {volumes: 20",
		`tenants[0].quotas: unknown key "quotas"; did you mean "quota"?`},
	"a key in the singular": {"storageClasses: [fast]", "storageClass: [fast]",
		`tenants[0].classes[0].storageClass: unknown key "storageClass"; did you mean "storageClasses"?`},
	"a misspelled backend": {"[gold, ceph]", "[glod, ceph]",
		`tenants[0].classes[0].backends[0]: unknown backend "glod"; did you mean "gold"?`},
	"a backend of another name": {"[gold, ceph]", "[platinum, ceph]",
		`tenants[0].classes[0].backends[0]: unknown backend "platinum"; the backends are ceph, gold, lab`},
	"overlapping patterns": {"  - name: developers\n", "  - name: developers\n    namespaces: [\"team-*\"]\n",
		`tenants[1].namespaces[0]: "team-*" overlaps with "team-a-*" of tenants[0].namespaces[1] (line N, tenant team-a): both match "team-a-x"; a namespace belongs to one tenant, so narrow one of them (a name wins over a pattern, a pattern over namespaceSelector)`},
	"a namespace of two tenants": {"  - name: developers\n", "  - name: developers\n    namespaces: [team-a]\n",
		`tenants[1].namespaces[0]: "team-a" is claimed by tenants[0].namespaces[0] (line N, tenant team-a) too; a namespace belongs to one tenant, so remove one of them`},
	"a regular expression": {`"team-a-*"`, `"team-a-.*"`,
		`tenants[0].namespaces[1]: "team-a-.*" cannot be a namespace: only * is special in a pattern, and it stands for any run of characters; write * instead of .*`},
	"a pattern without quotes": {`"team-a-*"`, `*-a`,
		`*-a is read as a reference to something called &-a, which does not exist; put a pattern that begins with * in quotes: "*-a"`},
	"a unit that Kubernetes does not have": {"{max: 100Gi}", "{max: 100GB}",
		`tenants[0].volumeSize.max: "100GB" is not a size; write it like 100Gi or 1Ti`},
	"a size without unit": {"{max: 100Gi}", "{max: 100}",
		`tenants[0].volumeSize.max: 100 has no unit; write it like 100Gi or 1Ti`},
	"gigabytes with a unit": {"gigabytes: 500,", "gigabytes: 500Gi,",
		`tenants[0].quota.gigabytes: "500Gi" has a unit; write a whole number alone (gigabytes are counted in GiB)`},
	"max below min": {"{min: 1Gi, max: 1Ti}", "{min: 10Gi, max: 1Gi}",
		`defaults.volumeSize: no size in whole GiB is at least 10Gi (defaults.volumeSize.min) and at most 1Gi (defaults.volumeSize.max); raise the largest or lower the smallest size`},
	"max below the smallest volume": {"{max: 100Gi}", "{max: 100Mi}",
		`tenants[0].volumeSize.max: must be at least 1Gi, the smallest volume that Cinder creates`},
	"too little indentation": {"    auth: {cloud: gold}", "   auth: {cloud: gold}",
		`from this line on the file is not valid YAML: the line is indented wrongly, or a hyphen is missing (did not find expected '-' indicator)`},
	"too much indentation": {"    region: RegionOne", "      region: RegionOne",
		`from this line on the file is not valid YAML: the line is indented wrongly, or something before it is not closed (did not find expected key)`},
	"a tab": {"    auth: {cloud: gold}", "\tauth: {cloud: gold}",
		`the line is indented with a tab; YAML allows only spaces there`},
	"a tab after spaces": {"    region: RegionOne", "  \tregion: RegionOne",
		`the line is indented with a tab; YAML allows only spaces there`},
	"an indentation of no-break spaces": {"    region: RegionOne", "\u00a0\u00a0\u00a0\u00a0region: RegionOne",
		`the line is indented with U+00A0, which only looks like a space; type the spaces again`},
	"a merge conflict": {"    region: RegionOne", "<<<<<<< HEAD\n    region: RegionOne\n=======\n    region: RegionTwo\n>>>>>>> other\n    suspended: false #",
		`a merge conflict was left here; keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>`},
	"a block of a template": {"tenants:\n", "{{- range .Values.tenants }}\ntenants:\n",
		`the line begins with {{, which is of a template; fill that in first, as with helm template, and give the result`},
	"a value of a template": {"  - name: developers", "  - name: {{ .Values.tenant }}",
		`tenants[1].name: must be a string, not a mapping; {{ begins a place of a template: fill that in first, as with helm template, and give the result`},
	"a colon is missing": {"    suspended: false", "    suspended false",
		`from this line on the file is not valid YAML: a key without a colon, or something before it is not closed (could not find expected ':')`},
	"a bracket is missing": {`[scratch, "lab-*"]`, `[scratch, "lab-*"`,
		`from this line on the file is not valid YAML: a bracket is not closed, or a comma is missing (did not find expected ',' or ']')`},
	"a key twice": {"    suspended: false", "    suspended: false\n    suspended: true",
		`backends[0].suspended: the key is given twice, first on line N; remove one`},
	"a hyphen is missing": {"  - name: ceph\n    auth: {cloud: ceph}\n    volumeSize: {max: 500Gi}         # the sizes that this backend accepts, whatever the tenant's limit\n    mapping:", "    name: ceph\n    mapping:",
		`backends[0].name: the key is given twice, first on line N; if another entry of the list begins here, put a hyphen before it, else remove one
backends[0].mapping: the key is given twice, first on line N; remove one
tenants[0].classes[0].backends[1]: unknown backend "ceph"; the backends are gold, lab
tenants[0].classes[1].backends[0]: unknown backend "ceph"; the backends are gold, lab`},
	"a tenant's name twice": {"  - name: developers", "  - name: team-a",
		`tenants[1].name: tenants[0] (line N) is already called "team-a", and quotas count the volumes of a tenant by its name; give each a different name`},
	"no way to log in": {"    auth: {cloud: gold}\n", "",
		`backends[0].auth: is missing; give one of cloud, noauth, cloudConfig, environment`},
	"two ways to log in": {"auth: {cloud: gold}", "auth: {cloud: gold, environment: true}",
		`backends[0].auth: exactly one of cloud, noauth, cloudConfig, environment must be given, not cloud and environment`},
	"a way to log in without its kind": {"auth: {cloud: gold}", "auth: gold",
		`backends[0].auth: must be a mapping of keys to values, not a string; its keys are cloud, cloudConfig, environment, noauth`},
	"a password": {"auth: {cloud: gold}", "auth: {cloud: gold, password: hunter2}",
		`backends[0].auth.password: unknown key "password"; credentials and addresses belong in clouds.yaml, in the entry that cloud names; for a Cinder without authentication use noauth`},
	"a flag where a word belongs": {"    auth: {cloud: gold}\n", "    auth: {cloud: gold}\n    csi: {fencing: true}\n",
		`backends[0].csi.fencing: unknown fencing "true"; it can be export, initiator`},
	"a password in an endpoint": {"http://cinder.lab", "http://admin:hunter2@cinder.lab",
		`backends[2].auth.noauth.endpoint: the endpoint must carry no user or password; write it like http://cinder.example:8776/v3`},
	"the way to log in a level too high": {"    auth: {cloud: gold}\n", "    cloud: gold\n",
		`backends[0].auth: is missing; give one of cloud, noauth, cloudConfig, environment
backends[0].cloud: unknown key "cloud"; it belongs under auth`},
	"a StorageClass's parameter": {"volumeType: ssd", "type: ssd",
		`tenants[0].classes[0].type: unknown key "type"; did you mean "volumeType"?`},
	"parameters as in a StorageClass": {"volumeType: ssd", "parameters: {type: ssd}",
		`tenants[0].classes[0].parameters: unknown key "parameters"; a rule sets volumeType, availabilityZone and fsType as keys of its own; there are no other parameters`},
	"a quota under limits": {"      concurrency: 20 ", "      volumes: 20 ",
		`tenants[0].limits.volumes: unknown key "volumes"; what a tenant may have belongs under quota`},
	"a limit that may mean anything": {"concurrency: 20 ", "concurrency: 0 ",
		`tenants[0].limits.concurrency: must be at least 1; remove the key if the tenant needs no limit of its own; to allow it no volumes, set quota: {volumes: 0}`},
	"a rate with a unit": {"requestsPerSecond: 10 ", "requestsPerSecond: 10/s ",
		`tenants[0].limits.requestsPerSecond: must be a number without quotes or unit, not a string`},
	"a backend's quota": {"    limits:                          # for", "    quota:                          # for",
		`backends[0].quota: unknown key "quota"; what a backend may hold belongs under limits`},
	"a rule's key at the tenant": {"    quota: {volumes: 100, gigabytes: 1000, snapshotGigabytes: 500}", "    volumeType: hdd",
		`tenants[1].volumeType: unknown key "volumeType"; it belongs to a rule, under classes`},
	"labels without matchLabels": {"    namespaceSelector:\n      matchLabels: {environment: development}", "    namespaceSelector: {environment: development}",
		`tenants[1].namespaceSelector.environment: unknown key "environment"; labels belong under matchLabels or matchExpressions`},
	"yes": {"multipath: true", "multipath: yes",
		`backends[0].connector.multipath: must be true or false, without quotes; "yes" is neither`},
	"a number as a string": {`"4711"`, `4711`,
		`tenants[0].metadata.costcenter: must be a string, not a number; put it in quotes: "4711"`},
	"a list of one without brackets": {`namespaces: [team-a, "team-a-*"]`, "namespaces: team-a",
		`tenants[0].namespaces: must be a list, not a string; put it in brackets: [...]`},
	"a duration without unit": {"create: 5m", "create: 300",
		`defaults.timeouts.create: 300 has no unit; write it like 30s, 5m or 1h30m`},
	"a filesystem that there is not": {"fsType: xfs", "fsType: ext5",
		`tenants[0].classes[0].fsType: "ext5" is not a filesystem that can be created on a volume; use one of btrfs, ext2, ext3, ext4, xfs`},
	"no backends": {"        backends: [lab]\n", "",
		`tenants[1].classes[0].backends: is missing or empty; name the backends the volumes may come from`},
}

// numberOfLine matches the line numbers in sentences.
var numberOfLine = regexp.MustCompile(`line [0-9]+`)

func sentences(mistakes ErrorList) string {
	var lines []string
	for _, e := range mistakes {
		e.Source, e.Line, e.Column = "", 0, 0
		lines = append(lines, numberOfLine.ReplaceAllString(e.Error(), "line N"))
	}
	return strings.Join(lines, "\n")
}

// TestMistakesOfANewcomer plants common mistakes in the example. The check reports
// the place, the mistake and a remedy for each, and nothing else.
func TestMistakesOfANewcomer(t *testing.T) {
	example := string(read(t, "../config.example.yaml"))
	for name, mistake := range newcomersMistakes {
		t.Run(name, func(t *testing.T) {
			before, _, found := strings.Cut(example, mistake.from)
			if !found {
				t.Fatalf("the example has no %q", mistake.from)
			}
			_, err := Parse([]byte(strings.Replace(example, mistake.from, mistake.to, 1)), "p.yaml", protocols())
			var told ErrorList
			if !errors.As(err, &told) {
				t.Fatal(err)
			}
			if got := sentences(told); got != mistake.want {
				t.Errorf("\n got %s\nwant %s", got, mistake.want)
			}
			first := 1 + strings.Count(before, "\n")
			last := first + strings.Count(mistake.to, "\n")
			if !slices.ContainsFunc(told, func(e Error) bool { return e.Line >= first && e.Line <= last }) && mistake.to != "" {
				t.Errorf("the mistake is on line %d, but said to be on line %d", first, told[0].Line)
			}
		})
	}
}

// TestAllMistakesAreToldAtOnce: mistakes in one file do not hide each other.
func TestAllMistakesAreToldAtOnce(t *testing.T) {
	planted := []string{
		"a key in the plural", "a misspelled backend", "overlapping patterns", "a unit that Kubernetes does not have", "max below min",
		"a key twice", "two ways to log in", "a StorageClass's parameter", "yes", "a rate with a unit", "a filesystem that there is not", "labels without matchLabels",
	}
	text := string(read(t, "../config.example.yaml"))
	for _, name := range planted {
		mistake := newcomersMistakes[name]
		if !strings.Contains(text, mistake.from) {
			t.Fatalf("nothing is left to plant %q", name)
		}
		text = strings.Replace(text, mistake.from, mistake.to, 1)
	}
	_, err := Parse([]byte(text), "p.yaml", protocols())
	var told ErrorList
	if !errors.As(err, &told) {
		t.Fatal(err)
	}
	if len(told) != len(planted) {
		t.Errorf("%d mistakes are told, want %d:\n%v", len(told), len(planted), err)
	}
	all := strings.Split(sentences(told), "\n")
	for _, name := range planted {
		if !slices.Contains(all, newcomersMistakes[name].want) {
			t.Errorf("%s is not told in\n%v", name, err)
		}
	}
}
