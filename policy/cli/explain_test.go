package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/mappers"
	"github.com/standalone-cinder/standalone-cinder/policy"
)

const testPolicy = "testdata/policy.yaml"

// explainCases are explanations whose whole output is kept in testdata.
var explainCases = map[string][]string{
	"granted":         {"--namespace", "team-a-web", "--storage-class", "fast", "--size", "10Gi"},
	"rounded-up":      {"--namespace", "team-a", "--storage-class", "other", "--size", "10.5Gi", "--limit", "11Gi", "--volume-mode", "Block", "--access-mode", "RWX,rwop", "--parameter", "type=a,b", "--parameter", "availability=az 2"},
	"selected":        {"--namespace", "x", "--namespace-labels", "environment=development,stage=test", "--storage-class", "scratch", "--size", "1Gi"},
	"no-tenant":       {"--namespace", "stranger", "--storage-class", "fast", "--size", "10Gi"},
	"two-tenants":     {"--namespace", "x", "--namespace-labels", "environment=development,color=blue", "--storage-class", "fast", "--size", "10Gi"},
	"no-rule":         {"--namespace", "x", "--namespace-labels", "environment=development", "--storage-class", "fast", "--size", "10Gi"},
	"stronger-tenant": {"--namespace", "team-a", "--namespace-labels", "color=blue", "--storage-class", "fast", "--size", "700Gi"},
	"all-suspended":   {"--namespace", "x", "--namespace-labels", "environment=development", "--storage-class", "archive", "--size", "10Gi"},
	"too-large":       {"--namespace", "team-a", "--storage-class", "other", "--size", "550Gi"},
	"no-sense":        {"--namespace", "Team_A", "--storage-class", "fast", "--size", "0"},
	"first-is-full":   {"--namespace", "team-a", "--storage-class", "fast", "--size", "10Gi", "--used", "backend=gold,volumes=100", "--used", "tenant=team-a,volumes=7,gigabytes=70"},
	"quota-exceeded":  {"--namespace", "team-a", "--storage-class", "fast", "--size", "10Gi", "--used", "rule=tenants[0].classes[0],gigabytes=191"},
	"manifests":       {"testdata/claims.yaml"},
	"refused":         {"--namespace", "team-a", "--storage-class", "fast", "--size", "10Gi", "--access-mode", "RWX"},
	// Without tenants' metadata there is nothing to say about it.
	"refused-and-denied": {"--namespace", "stranger", "--storage-class", "fast", "--size", "10Gi", "--access-mode", "RWX"},
}

// refusedCases are those with a claim that the provisioner refuses.
var refusedCases = map[string]bool{"refused": true, "refused-and-denied": true, "manifests": true}

func TestExplain(t *testing.T) {
	for name, args := range explainCases {
		for output, extension := range map[string]string{outputText: "txt", outputJSON: "json"} {
			t.Run(name+" as "+output, func(t *testing.T) {
				got := run("", append([]string{"explain", "--policy", testPolicy, "-o", output}, args...)...)
				want := ExitOK
				if refusedCases[name] {
					want = ExitRefused
				}
				if ExitCode(got.err) != want || got.stderr != "" {
					t.Fatalf("%v\n%s", got.err, got.stderr)
				}
				if output == outputJSON && !json.Valid([]byte(got.stdout)) {
					t.Error("not JSON")
				}
				golden(t, "explain-"+name+"."+extension, got.stdout)
			})
		}
	}
}

// TestExplainClaimsForVolumesThatExist: only Cinder knows the volume, but a rule
// without import grants none.
func TestExplainClaimsForVolumesThatExist(t *testing.T) {
	const claim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  namespace: team-a
  annotations: {standalone-cinder.openstack.org/import-volume: old}
spec: {storageClassName: CLASS, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`
	for class, want := range map[string]string{
		"fast":  `note: the claim asks for the volume "old" at Cinder, and gets it if it is one with a name like team-a-*, with the metadata owner=team-a; its size counts in place of the claim's`,
		"other": "denied: ImportNotGranted: tenants[0].classes[1] grants no volumes that exist at Cinder; ask an operator to add import to the rule, or for standalone-cinder volume import",
	} {
		got := run(strings.Replace(claim, "CLASS", class, 1), "explain", "--policy", "../../config.example.yaml", "-")
		if got.err != nil || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %v\n%s", class, got.err, got.stdout)
		}
	}
}

// TestExplainDecidesAsTheDaemon compares the explanation with what the policy
// decides for the same claim.
func TestExplainDecidesAsTheDaemon(t *testing.T) {
	p, err := policy.Load(testPolicy, mappers.BuiltIn().Describe())
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"team-a", "team-a-x", "x", "stranger", "-"} {
		for _, environment := range []string{"", "development"} {
			for _, class := range []string{"fast", "scratch", "archive", "other", ""} {
				for _, gib := range []int64{0, 1, 300, 550, 700, 5000} {
					labels := map[string]string{"kubernetes.io/metadata.name": namespace}
					args := []string{"explain", "--policy", testPolicy, "-o", "json", "--namespace", namespace, "--storage-class", class, "--size", fmt.Sprintf("%dGi", gib)}
					if environment != "" {
						labels["environment"] = environment
						args = append(args, "--namespace-labels", "environment="+environment)
					}
					want := p.Decide(policy.Request{Namespace: namespace, NamespaceLabels: labels, StorageClass: class, Bytes: gib << 30})
					var got struct{ Claims []claimExplanation }
					out := run("", args...)
					if err := json.Unmarshal([]byte(out.stdout), &got); err != nil || out.err != nil || len(got.Claims) != 1 {
						t.Fatalf("%v: %v, %v", args, out.err, err)
					}
					e := got.Claims[0]
					room := want.Room(policy.Usages{}.Of)
					if e.Granted != (room.Denial == nil) || e.Tenant != want.Tenant || e.Rule != want.Rule ||
						!e.Granted && e.Denial.Denial != *room.Denial ||
						e.Granted && (e.Volume.SizeGiB != want.Volume.SizeGiB || e.Backend != room.Backends[0]) {
						t.Errorf("%v\nexplained %+v\n  decided %+v", args, e, want)
					}
				}
			}
		}
	}
}

func TestExplainKeepsTheNumberOfLinesInBounds(t *testing.T) {
	var text strings.Builder
	text.WriteString(strings.Replace(good, "tenants:\n  - name: a\n    namespaces: [a]\n    classes: [{storageClasses: [\"*\"], backends: [gold]}]\n", "tenants:\n", 1))
	for i := range 100 {
		fmt.Fprintf(&text, "  - {name: t%d, namespaces: [n%d], classes: [{storageClasses: [\"*\"], backends: [gold]}]}\n", i, i)
	}
	file := write(t, text.String())
	got := run("", "explain", "--policy", file, "--namespace", "n99", "--storage-class", "x", "--size", "1Gi")
	if got.err != nil || strings.Count(got.stdout, "do not include it") != maxOthers {
		t.Errorf("%v\n%s", got.err, got.stdout)
	}
	for _, want := range []string{"\n  > t99  its name is listed\n", "\n    and 79 more that do not apply (--output json lists all)\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("no %q in\n%s", want, got.stdout)
		}
	}
}

func manifest(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "claims.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const simpleClaim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: fast, resources: {requests: {storage: 1Gi}}}
`

// TestManifestsAsKubectlAppliesThem looks at what a claim becomes.
func TestManifestsAsKubectlAppliesThem(t *testing.T) {
	namespaces := "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {environment: development, kubernetes.io/metadata.name: forged}}\n"
	class := func(name, annotations string) string {
		return "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: " + name + ", annotations: {" + annotations + "}}\nprovisioner: example.com/other\nparameters: {type: from-" + name + "}\n"
	}
	tests := map[string]struct {
		text string
		args []string
		want func(claimExplanation) string
		is   string
	}{
		"the namespace is default": {simpleClaim, nil, func(e claimExplanation) string { return e.Namespace }, "default"},
		"or that of --namespace":   {simpleClaim, []string{"-n", "team-a"}, func(e claimExplanation) string { return e.Namespace + " " + e.Tenant }, "team-a team-a"},
		"the manifest's labels win over the flag's, and the API server's over both": {
			namespaces + "---\n" + simpleClaim, []string{"--namespace-labels", "color=blue"},
			func(e claimExplanation) string { return fmt.Sprint(e.NamespaceLabels) }, "map[environment:development kubernetes.io/metadata.name:default]"},
		"labels of the flag where the Namespace is missing": {simpleClaim, []string{"--namespace-labels", "color=blue"},
			func(e claimExplanation) string { return e.Tenant + fmt.Sprint(len(e.Notes)) }, "blue1"},
		"parameters of the StorageClass": {simpleClaim + class("fast", ""), nil,
			func(e claimExplanation) string { return e.Parameters["type"] }, "from-fast"},
		"of two objects the later": {simpleClaim + class("fast", "") + class("fast", "a: b") + "mountOptions: [x]\n", nil,
			func(e claimExplanation) string { return e.Parameters["type"] }, "from-fast"},
		"parameters of the flag where the StorageClass is missing": {simpleClaim, []string{"--parameter", "type=mine"},
			func(e claimExplanation) string { return e.Parameters["type"] }, "mine"},
		"the default StorageClass": {strings.Replace(simpleClaim, "storageClassName: fast, ", "", 1) + class("slow", defaultClassAnnotation+`: "true"`) + class("quick", betaDefaultClassAnnotation+`: "true"`) + class("a", ""), nil,
			func(e claimExplanation) string { return e.StorageClass }, "quick"},
		"the annotation of old claims": {strings.Replace(simpleClaim, "name: data", "name: data, annotations: {volume.beta.kubernetes.io/storage-class: old}", 1), nil,
			func(e claimExplanation) string { return e.StorageClass }, "old"},
		"another provisioner's StorageClass": {simpleClaim + class("fast", ""), []string{"--namespace-labels", "a=b"},
			func(e claimExplanation) string { return strings.Join(e.Notes, "|") },
			`StorageClass fast belongs to the provisioner "example.com/other"; this program answers to openstack.org/standalone-cinder unless it runs with another --provisioner-name`},
		"no StorageClass at all": {strings.Replace(simpleClaim, "storageClassName: fast, ", "", 1), []string{"--namespace-labels", "a=b"},
			func(e claimExplanation) string { return string(e.Denial.Reason) + ": " + strings.Join(e.Notes, "|") },
			"InvalidClaim: the claim names no StorageClass, and the manifests have no default one"},
		"an empty StorageClass": {strings.Replace(simpleClaim, "fast", `""`, 1) + class("slow", defaultClassAnnotation+`: "true"`), []string{"--namespace-labels", "a=b"},
			func(e claimExplanation) string { return e.StorageClass + ": " + strings.Join(e.Notes, "|") },
			": an empty storageClassName keeps the claim from being provisioned: it waits for a PersistentVolume made by hand"},
		"a claim for a certain volume": {strings.Replace(simpleClaim, "spec: {", "spec: {volumeName: pv-1, selector: {}, ", 1), []string{"--namespace-labels", "a=b", "--parameter", "type=x"},
			func(e claimExplanation) string { return strings.Join(e.Notes, "|") },
			"spec.volumeName binds the claim to the PersistentVolume pv-1; nothing is provisioned for it"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out := run(test.text, append([]string{"explain", "--policy", testPolicy, "-o", "json", "-"}, test.args...)...)
			var got struct{ Claims []claimExplanation }
			if err := json.Unmarshal([]byte(out.stdout), &got); err != nil || len(got.Claims) != 1 {
				t.Fatalf("%v, %v\n%s", out.err, err, out.stdout)
			}
			if is := test.want(got.Claims[0]); is != test.is {
				t.Errorf("\n got %q\nwant %q", is, test.is)
			}
		})
	}
}

// TestWhatTheProvisionerRefuses: explain says what the claim's event would say.
func TestWhatTheProvisionerRefuses(t *testing.T) {
	for name, c := range map[string]struct{ change, want string }{
		"a data source":     {"dataSource: {kind: VolumeSnapshot, name: s}", `UnsupportedDataSource: spec.dataSource asks for the content of VolumeSnapshot "s", which is not supported; the claim is not given an empty volume instead; remove the data source`},
		"a data source ref": {"dataSourceRef: {kind: Thing, name: s}", `UnsupportedDataSource: spec.dataSource asks for the content of Thing "s", which is not supported; the claim is not given an empty volume instead; remove the data source`},
		"a selector":        {"selector: {}", "UnsupportedSelector: spec.selector cannot be honored for a volume that is yet to be created; remove the selector, or bind an existing PersistentVolume with spec.volumeName"},
		"many writers":      {"accessModes: [ReadWriteMany]", "UnsupportedAccessMode: access mode ReadWriteMany is for volumeMode Block only, because a Cinder volume is a disk, and its filesystem breaks when two nodes mount it for writing; use ReadWriteOnce or ReadOnlyMany"},
		"an unknown mode":   {"accessModes: [Sometimes]", `UnsupportedAccessMode: access mode "Sometimes" is unknown; use ReadWriteOnce or ReadOnlyMany`},
	} {
		t.Run(name, func(t *testing.T) {
			out := run(strings.Replace(simpleClaim, "spec: {", "spec: {"+c.change+", ", 1), "explain", "--policy", testPolicy, "-n", "team-a", "-")
			if ExitCode(out.err) != ExitRefused || message(out.err) != "the provisioner refuses 1 of 1 claim regardless of the policy" {
				t.Errorf("code %d, %v", ExitCode(out.err), out.err)
			}
			if !strings.Contains(out.stdout, "\nrefused: "+c.want+"\nThe provisioner refuses the claim before it asks the policy, which would decide:\n  granted: tenant team-a, ") {
				t.Errorf("\n got %s\nwant %s", out.stdout, c.want)
			}
		})
	}
}

const populatedUID = "0f6c2d3e-8a41-4c5b-9d7e-1234567890ab"

// populated is what a cluster has of a claim for a populator, and of the populator's own.
const populated = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: team-a, uid: ` + populatedUID + `}
spec: {storageClassName: fast, dataSourceRef: {apiGroup: example.org, kind: Image, name: debian}, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: prime-` + populatedUID + `, namespace: volume-populators}
spec: {storageClassName: fast, resources: {requests: {storage: 2Gi}}}
`

func TestClaimsOfPopulatorsAreExplained(t *testing.T) {
	const (
		example = "../../config.example.yaml"
		left    = "left: AwaitsPopulator: the claim waits for a volume populator of example.org/Image, which has its volume made for a claim of its own\n" +
			"The provisioner makes no volume for it. About the populator's claim, if it is like this one, the policy decides:\n  granted: tenant team-a, "
		behalf = "note: namespace volume-populators is a populator's (populators[0]): what follows is about claim team-a/data, on whose behalf it asks\n"
		nobody = "denied: NoPopulatedClaim: namespace volume-populators is a populator's (populators[0]) and belongs to no tenant: its claims get volumes only on behalf of claims that wait to be filled"
	)
	_, alone, _ := strings.Cut(populated, "---\n")
	flags := []string{"-n", "volume-populators", "--storage-class", "fast", "--size", "2Gi"}
	for name, c := range map[string]struct {
		stdin string
		args  []string
		want  []string
	}{
		"both, from a cluster":     {populated, []string{"-"}, []string{left, behalf, "\ngranted: tenant team-a, ", "Claim volume-populators/prime-", "0 + 2 = 2 of 500\n", "0 + 1 = 1 of 500\n"}},
		"the populator's alone":    {alone, []string{"-"}, []string{nobody + "; no claim has the UID " + populatedUID + "\ndecided by populators[0] (../../config.example.yaml:"}},
		"by flags":                 {"", append(flags, "--populates", "team-a/data"), []string{behalf, "\ngranted: tenant team-a, "}},
		"by flags, with labels":    {"", append(flags[:2:2], "--storage-class", "scratch", "--size", "2Gi", "--populates", "x/data", "--namespace-labels", "environment=development"), []string{"\ngranted: tenant developers, "}},
		"by flags, for nobody":     {"", flags, []string{nobody + "\n"}},
		"not of the populator's":   {"", append(flags, "--populates", "volume-populators/data"), []string{nobody + "; namespace volume-populators of claim data is a populator's, too\n"}},
		"not of another namespace": {"", []string{"-n", "stranger", "--storage-class", "fast", "--size", "2Gi", "--populates", "team-a/data"}, []string{"denied: NoMatchingTenant: "}},
	} {
		t.Run(name, func(t *testing.T) {
			got := run(c.stdin, append([]string{"explain", "--policy", example}, c.args...)...)
			if got.err != nil {
				t.Errorf("code %d, %v", ExitCode(got.err), got.err)
			}
			for _, want := range c.want {
				if !strings.Contains(got.stdout, want) {
					t.Errorf("no %q in\n%s", want, got.stdout)
				}
			}
		})
	}
	if got := run(populated, "explain", "--policy", example, "-o", "json", "-"); !strings.Contains(got.stdout, `"verdict": "left"`) {
		t.Errorf("no verdict in\n%s", got.stdout)
	}
}

// TestPromisesOfTheStorageClass: what a class promises and its claims do not
// get is denied or noted.
func TestPromisesOfTheStorageClass(t *testing.T) {
	file := write(t, strings.Replace(good, "auth: {cloud: gold}", "auth: {cloud: gold}, connector: {nodeLabels: {storage: fc}}", 1))
	class := func(text string) string {
		return "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: openstack.org/standalone-cinder\n" + text
	}
	node := func(name, labels string) string {
		return "---\napiVersion: v1\nkind: Node\nmetadata: {name: " + name + ", labels: {" + labels + "}}\n"
	}
	selected := strings.Replace(simpleClaim, "name: data", "name: data, annotations: {volume.kubernetes.io/selected-node: n1}", 1)
	const waits = "volumeBindingMode: WaitForFirstConsumer\n"
	const wait = "note: StorageClass fast has volumeBindingMode: WaitForFirstConsumer, but backend gold of tenants[0].classes[0] exports volumes only to some nodes (backends[0].connector.nodeLabels): a claim whose pod is scheduled to another node waits (NodeNotReached) until the scheduler selects one that they reach; give the StorageClass allowedTopologies with these labels\n"
	for name, c := range map[string]struct{ text, want string }{
		"expansion":                       {simpleClaim + class("allowVolumeExpansion: true\n"), "note: StorageClass fast has allowVolumeExpansion: true, but the kubelet does not grow the filesystems of iSCSI and Fibre Channel volumes: after each expansion, run kubectl cinder grow, or grow the filesystem on the node and annotate the claim (docs/how-to/grow-volumes.md); raw block volumes need only a rescan\n"},
		"waiting for a pod":               {simpleClaim + class(waits), wait},
		"waiting for a pod of some nodes": {simpleClaim + class(waits+"allowedTopologies: [{matchLabelExpressions: [{key: storage, values: [fc]}]}]\n"), "granted: "},
		"other topologies":                {simpleClaim + class("allowedTopologies: [{matchLabelExpressions: [{key: storage, values: [iscsi]}]}]\n"), "denied: UnsupportedTopology: StorageClass fast has allowedTopologies, "},
		"a node out of reach":             {selected + class(waits) + node("n1", "a: b"), "denied: NodeNotReached: the claim's pod was scheduled to node n1, but backend gold exports volumes only to nodes with the labels storage=fc "},
		"a node":                          {selected + class(waits) + node("n1", "storage: fc"), "granted: "},
		"a node that is not given":        {selected + class(waits), "note: the claim's pod was scheduled to node n1, which is not among the manifests: assuming that every backend exports volumes to it\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out := run(c.text, "explain", "--policy", file, "-n", "a", "-")
			if out.err != nil || !strings.Contains(out.stdout, "\n"+c.want) || strings.Contains(out.stdout, "metadata") {
				t.Errorf("%v\n%s", out.err, out.stdout)
			}
			if strings.HasSuffix(name, "some nodes") && strings.Contains(out.stdout, "note:") {
				t.Errorf("a note too many:\n%s", out.stdout)
			}
		})
	}
}

func TestBadManifests(t *testing.T) {
	tests := map[string]struct {
		text, want string
		args       []string
	}{
		"an unknown field":      {strings.Replace(simpleClaim, "storageClassName", "storageClas", 1), `FILE:1: PersistentVolumeClaim data: unknown field "spec.storageClas"`, nil},
		"a duplicate field":     {"# x\n\n" + simpleClaim + "---\n# y\n" + simpleClaim + "spec: {}\n", `FILE:9: PersistentVolumeClaim data: line 13: key "spec" already set in map`, nil},
		"not YAML":              {"a: [", "FILE:1: not a Kubernetes object: line 1: did not find expected node content", nil},
		"no object":             {"just: text\n", "FILE:1: not a Kubernetes object: kind is missing", nil},
		"no apiVersion":         {"kind: Namespace\nmetadata: {name: x}\n", "FILE:1: Namespace x has no apiVersion", nil},
		"an old apiVersion":     {"---\n---\nkind: StorageClass\napiVersion: storage.k8s.io/v1beta1\nmetadata: {name: x}\n", "FILE:3: StorageClass x has the apiVersion storage.k8s.io/v1beta1; write storage.k8s.io/v1", nil},
		"no name":               {"kind: Namespace\napiVersion: v1\n", "FILE:1: Namespace has no metadata.name", nil},
		"a bad quantity":        {strings.Replace(simpleClaim, "1Gi", "1Gb", 1), "FILE:1: PersistentVolumeClaim data: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'", nil},
		"within a list":         {"apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Namespace}]\n", "FILE:1: items[0]: Namespace has no metadata.name", nil},
		"another namespace":     {strings.Replace(simpleClaim, "name: data", "name: data, namespace: b", 1), "FILE:1: PersistentVolumeClaim b/data is not in the namespace a of --namespace; remove one of the two", []string{"-n", "a"}},
		"nothing to explain":    {"apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n", "the manifests have no PersistentVolumeClaim to explain", nil},
		"nothing":               {"", "the manifests have no PersistentVolumeClaim to explain", nil},
		"a parameter of no use": {simpleClaim, "--parameter must be written as KEY=VALUE, not \"x\"", []string{"--parameter", "x"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			file := manifest(t, test.text)
			got := run("", append([]string{"explain", "--policy", testPolicy, "--manifests", file}, test.args...)...)
			want := strings.ReplaceAll(test.want, "FILE", file)
			if message(got.err) != want || ExitCode(got.err) != ExitUsage || got.stdout != "" {
				t.Errorf("code %d, stdout %q\n got %s\nwant %s", ExitCode(got.err), got.stdout, message(got.err), want)
			}
		})
	}
}

func TestWrongUseOfExplain(t *testing.T) {
	basic := []string{"--policy", testPolicy, "--namespace", "a", "--storage-class", "fast", "--size", "1Gi"}
	const command = "standalone-cinder policy explain"
	tests := map[string]struct {
		args []string
		want string
	}{
		"nothing":                     {nil, command + " needs --policy, --namespace, --storage-class, --size; claims may also be given as files of manifests (see " + command + " --help)"},
		"no policy":                   {[]string{"claims.yaml"}, command + " needs --policy (see " + command + " --help)"},
		"no size":                     {basic[:6], command + " needs --size; claims may also be given as files of manifests (see " + command + " --help)"},
		"a size of no kind":           {append(basic[:7:7], "10gb"), `--size must be a quantity such as 10Gi, not "10gb"`},
		"a limit of no kind":          {append(basic[:8:8], "--limit", "much"), `--limit must be a quantity such as 10Gi, not "much"`},
		"a volume mode":               {append(basic[:8:8], "--volume-mode", "block"), `--volume-mode must be Filesystem or Block, not "block"`},
		"an access mode":              {append(basic[:8:8], "--access-mode", "RW"), `--access-mode must be RWO, ROX, RWX or RWOP, not "RW"`},
		"a parameter":                 {append(basic[:8:8], "--parameter", "=x"), `--parameter must be written as KEY=VALUE, not "=x"`},
		"a parameter twice":           {append(basic[:8:8], "--parameter", "a=x", "--parameter", "a=y"), `--parameter a is given twice`},
		"a label":                     {append(basic[:8:8], "--namespace-labels", "a=b c"), `--namespace-labels: "b c" cannot be a label's value; use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit`},
		"a claim without a namespace": {append(basic[:8:8], "--populates", "data"), `--populates must be written as NAMESPACE/NAME, not "data"`},
		"a label alone":               {append(basic[:8:8], "--namespace-labels", "a"), command + `: invalid argument "a" for "--namespace-labels" flag: a must be formatted as key=value (see ` + command + ` --help)`},
		"both kinds":                  {append(basic[:8:8], "claims.yaml"), "--storage-class describes a claim on the command line and does not go with manifests; remove one of them"},
		"twice from stdin":            {[]string{"--policy", "-", "-"}, "only one file can be - for standard input, not 2"},
		"an absent file":              {[]string{"--policy", testPolicy, "testdata/absent.yaml"}, "read manifests: open testdata/absent.yaml: no such file or directory"},
		"an absent policy":            {append([]string{"--policy", "testdata/absent.yaml"}, basic[2:]...), "read policy: open testdata/absent.yaml: no such file or directory"},
		"an output":                   {append(basic[:8:8], "-o", "yaml"), `--output must be text or json, not "yaml"`},
		"used by nobody":              {append(basic[:8:8], "--used", "volumes=1"), "--used volumes=1: write one of tenant=, rule=, backend= with volumes=, gigabytes= or both, such as tenant=team-a,volumes=18"},
		"used by two":                 {append(basic[:8:8], "--used", "tenant=a,backend=b,volumes=1"), "--used tenant=a,backend=b,volumes=1: write one of tenant=, rule=, backend= with volumes=, gigabytes= or both, such as tenant=team-a,volumes=18"},
		"used by one, but":            {append(basic[:8:8], "--used", "tenant=a"), "--used tenant=a: write one of tenant=, rule=, backend= with volumes=, gigabytes= or both, such as tenant=team-a,volumes=18"},
		"used twice":                  {append(basic[:8:8], "--used", "tenant=a,volumes=1,volumes=2"), "--used tenant=a,volumes=1,volumes=2: volumes is given twice"},
		"used not much":               {append(basic[:8:8], "--used", "tenant=a,volumes=-1"), `--used tenant=a,volumes=-1: volumes must be a whole number, not "-1"`},
		"used what":                   {append(basic[:8:8], "--used", "tenant=a,gb=1"), `--used tenant=a,gb=1: "gb=1" is none of tenant=, rule=, backend=, volumes=, gigabytes=`},
		"used by an unknown":          {append(basic[:8:8], "--used", "tenant=team-b,volumes=1"), `--used: used[0].tenant: the policy has no tenant "team-b"; did you mean "team-a"?`},
		"used by the unknown":         {append(basic[:8:8], "--used", "rule=x,volumes=1"), `--used: used[0].rule: the policy has no rule "x"; the rules are tenants[0].classes[0], tenants[0].classes[1], tenants[1].classes[0], tenants[1].classes[1], tenants[2].classes[0]`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := run("", append([]string{"explain"}, test.args...)...)
			if message(got.err) != test.want || ExitCode(got.err) != ExitUsage || got.stdout != "" {
				t.Errorf("code %d, stdout %q\n got %s\nwant %s", ExitCode(got.err), got.stdout, message(got.err), test.want)
			}
		})
	}
}

// TestMistakesInThePolicy: whatever needs a policy answers for a bad one as
// policy check does.
func TestMistakesInThePolicy(t *testing.T) {
	file := write(t, strings.Replace(good, "backends: [gold]", "backends: [golf]", 1))
	for _, output := range []string{outputText, outputJSON} {
		want := run("", "check", file, "-o", output)
		for _, args := range [][]string{
			{"explain", "--policy", file, "--namespace", "a", "--storage-class", "b", "--size", "1Gi"},
			{"test", "--policy", file, "testdata/pass.test.yaml"},
		} {
			got := run("", append(args, "-o", output)...)
			if got.stdout != want.stdout || message(got.err) != message(want.err) || ExitCode(got.err) != ExitFailed {
				t.Errorf("%s\n%v\n%s", args[0], got.err, got.stdout)
			}
		}
	}
}
