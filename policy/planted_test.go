package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// plantedMistakes are single changes to the example that can be read but that
// nobody can mean, with everything that is reported about each.
var plantedMistakes = []struct {
	name, from, to string
	warning        bool
	want           string
}{
	{"namespaceSelector that is empty", "    namespaceSelector:\n      matchLabels: {environment: development}", "    namespaceSelector: {}", true,
		"tenants[1].namespaceSelector: namespaceSelector {} selects every namespace, so every namespace that no other tenant names belongs to tenant developers, kube-system included; require a label with matchLabels, or list kube-system in the tenant that should have it"},
	{"namespaceSelector with NotIn only", "      matchLabels: {environment: development}", "      matchExpressions: [{key: environment, operator: NotIn, values: [production]}]", true,
		"tenants[1].namespaceSelector: namespaceSelector {environment notin (production)} also selects namespaces without labels, so every namespace that no other tenant names belongs to tenant developers, kube-system included; require a label with matchLabels, or list kube-system in the tenant that should have it"},
	{"namespaceSelector with DoesNotExist only", "      matchLabels: {environment: development}", "      matchExpressions: [{key: protected, operator: DoesNotExist}]", true,
		"tenants[1].namespaceSelector: namespaceSelector {!protected} also selects namespaces without labels, so every namespace that no other tenant names belongs to tenant developers, kube-system included; require a label with matchLabels, or list kube-system in the tenant that should have it"},
	{"namespaceSelector by a name's absence", "      matchLabels: {environment: development}", "      matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [default]}]", true,
		"tenants[1].namespaceSelector: namespaceSelector {kubernetes.io/metadata.name notin (default)} also selects namespaces without labels, so every namespace that no other tenant names belongs to tenant developers, kube-system included; require a label with matchLabels, or list kube-system in the tenant that should have it"},
	{"namespace pattern for all", `namespaces: [team-a, "team-a-*"]`, `namespaces: [team-a, "*"]`, true,
		`tenants[0].namespaces[1]: the pattern "*" matches kube-system, too; narrow it, or list kube-system in the tenant that should have it`},
	{"namespace pattern for Kubernetes' own", `namespaces: [team-a, "team-a-*"]`, `namespaces: [team-a, "kube-*"]`, true,
		`tenants[0].namespaces[1]: the pattern "kube-*" matches kube-system, too; narrow it, or list kube-system in the tenant that should have it`},
	{"namespace with a Cyrillic letter", `namespaces: [team-a, "team-a-*"]`, `namespaces: [tеam-a, "team-a-*"]`, false,
		`tenants[0].namespaces[0]: "tеam-a" cannot be a namespace: the character 'е' (U+0435) only looks like 'e'; type it again`},
	{"namespace with a dash from a word processor", `namespaces: [team-a, "team-a-*"]`, `namespaces: [team–a, "team-a-*"]`, false,
		`tenants[0].namespaces[0]: "team–a" cannot be a namespace: the character '–' (U+2013) only looks like '-'; type it again`},
	{"namespace with an accent", `namespaces: [team-a, "team-a-*"]`, `namespaces: [téam-a, "team-a-*"]`, false,
		`tenants[0].namespaces[0]: "téam-a" cannot be a namespace: names of Kubernetes objects have lower-case letters, digits and hyphens only, not 'é' (U+00E9)`},
	{"namespace in two pairs of quotes", `namespaces: [team-a, "team-a-*"]`, `namespaces: ['"team-a"', "team-a-*"]`, false,
		`tenants[0].namespaces[0]: "\"team-a\"" cannot be a namespace: the inner quotes are part of the name; write it in one pair of quotes or in none`},
	{"namespace with an invisible space", `namespaces: [team-a, "team-a-*"]`, "namespaces: [\"team-a\u200b\", \"team-a-*\"]", false,
		`tenants[0].namespaces[0]: "team-a\u200b" cannot be a namespace: there is an invisible character (U+200B) in it; type it again`},
	{"restoreAnySnapshot for a pattern", `namespaces: [team-a, "team-a-*"]`, "restoreAnySnapshot: true\n    namespaces: [team-a, \"team-a-*\"]", false,
		`tenants[0].namespaces[1]: "team-a-*" is a pattern, but the tenant has restoreAnySnapshot: true, so the owner of such a namespace could read every tenant's snapshots; list the namespaces by their names, or make them a tenant of their own`},
	{"restoreAnySnapshot for a selector", "    namespaceSelector:\n      matchLabels: {environment: development}", "    restoreAnySnapshot: true\n    namespaceSelector:\n      matchLabels: {environment: development}", false,
		`tenants[1].namespaceSelector: selects namespaces by their labels, but the tenant has restoreAnySnapshot: true, so the owner of such a namespace could read every tenant's snapshots; remove it, and list the namespaces by their names`},
	{"populator in a tenant's namespace", "- namespace: volume-populators", "- namespace: team-a", false,
		`populators[0].namespace: "team-a" is listed by tenants[0].namespaces[0] (line N, tenant team-a), too; a populator's claims belong to the tenants whose claims they fill, so remove one of them`},
	{"populators by a pattern", "- namespace: volume-populators", `- namespace: "*-populators"`, false,
		`populators[0].namespace: "*-populators" is a pattern, but the owner of a populator's namespace asks on behalf of every tenant; name each namespace in an entry of its own`},
	{"a populator twice", "- namespace: volume-populators", "- namespace: volume-populators\n  - namespace: volume-populators", false,
		`populators[1].namespace: "volume-populators" is named by populators[0].namespace (line N) already; remove one of them`},
	{"two backends at one place", "  - name: lab\n    auth:", "  - name: copper\n    suspended: true\n    auth: {cloud: ceph}\n\n  - name: lab\n    auth:", true,
		`backends[2]: backend "copper" points to the same place as "ceph" (backends[1], line N): cloud ceph, region (default) and interface (default); the limits of each count only its own volumes, so together they allow twice as much, and each lists the volumes of both; use one backend, or give them different connectors or workflows`},
	{"two backends at one endpoint", "  - name: lab\n    auth:", "  - name: copper\n    suspended: true\n    auth: {noauth: {endpoint: \"http://cinder.lab.example:8776/v3/\", user: admin, project: 6bb3d9b8a2e14a5f9a4c1c7f0e2d3b55}}\n\n  - name: lab\n    auth:", true,
		`backends[3]: backend "lab" points to the same place as "copper" (backends[2], line N): endpoint http://cinder.lab.example:8776/v3 and project 6bb3d9b8a2e14a5f9a4c1c7f0e2d3b55; the limits of each count only its own volumes, so together they allow twice as much, and each lists the volumes of both; use one backend, or give them different connectors or workflows`},
	{"a nanosecond to create", "{create: 5m, delete: 10m, request: 75s}", "{create: 1ns, delete: 10m, request: 75s}", false,
		"defaults.timeouts.create: 1ns is too short: no volume is created so fast; write at least 1s"},
	{"a century to create", "{create: 5m, delete: 10m, request: 75s}", "{create: 1000000h, delete: 10m, request: 75s}", false,
		"defaults.timeouts.create: 1000000h is too long to be meant; write at most 24h"},
	{"milliseconds to delete", "{create: 5m, delete: 10m, request: 75s}", "{create: 5m, delete: 10ms, request: 75s}", false,
		"defaults.timeouts.delete: 10ms is too short: no volume is deleted so fast; write at least 1s"},
	{"days to delete", "{create: 5m, delete: 10m, request: 75s}", "{create: 5m, delete: 240h, request: 75s}", false,
		"defaults.timeouts.delete: 240h is too long to be meant; write at most 24h"},
	{"a millisecond to answer", "{create: 5m, delete: 10m, request: 75s}", "{create: 5m, delete: 10m, request: 1ms}", false,
		"defaults.timeouts.request: 1ms is too short: no request is answered so fast; write at least 100ms"},
	{"a week to answer", "{create: 5m, delete: 10m, request: 75s}", "{create: 5m, delete: 10m, request: 168h}", false,
		"defaults.timeouts.request: 168h is too long to be meant; write at most 24h"},
	{"a duration in two pairs of quotes", "{create: 5m, delete: 10m, request: 75s}", `{create: "'5m'", delete: 10m, request: 75s}`, false,
		`defaults.timeouts.create: "'5m'" is not a duration; the inner quotes are part of the value; write 5m`},
	{"a duration in minutes spelled out", "{create: 5m, delete: 10m, request: 75s}", "{create: 5min, delete: 10m, request: 75s}", false,
		`defaults.timeouts.create: "5min" is not a duration; write it like 30s, 5m or 1h30m`},
	{"audits without a pause", "{interval: 10m, grace: 10m, delete: false}", "{interval: 1us, grace: 10m, delete: false}", false,
		"audit.interval: 1µs is too short: every audit lists all volumes; write at least 100ms"},
	{"audits once a year", "{interval: 10m, grace: 10m, delete: false}", "{interval: 8760h, grace: 10m, delete: false}", false,
		"audit.interval: 8760h is too long to be meant; write at most 720h"},
	{"no grace before removal", "{interval: 10m, grace: 10m, delete: false}", "{interval: 10m, grace: 1ns, delete: true}", false,
		"audit.grace: 1ns is too short: with delete: true the audit would look at volumes that are just being created; write at least 1s"},
	{"grace shorter than a creation", "{interval: 10m, grace: 10m, delete: false}", "{interval: 10m, grace: 1m, delete: true}", true,
		"audit.grace: 1m0s is shorter than the 5m0s that backend gold may take to create a volume (backends[0].timeouts.create); with delete: true give it at least that"},
	{"grace of a year", "{interval: 10m, grace: 10m, delete: false}", "{interval: 10m, grace: 8760h, delete: false}", false,
		"audit.grace: 8760h is too long to be meant; write at most 720h"},
	{"a quota that no volume fits", "    volumeSize: {max: 100Gi}\n", "    volumeSize: {min: 501Gi, max: 600Gi}\n", false,
		"tenants[0].quota.gigabytes: no volume fits into 500 GiB: the smallest has 501 GiB (tenants[0].volumeSize.min); raise the quota or lower the smallest size\ntenants[0].classes[0].quota.gigabytes: no volume fits into 200 GiB: the smallest has 501 GiB (tenants[0].volumeSize.min); raise the quota or lower the smallest size"},
	{"a rule's quota that no volume fits", "        quota: {gigabytes: 200}", "        volumeSize: {min: 60Gi}\n        quota: {gigabytes: 50}", false,
		"tenants[0].classes[0].quota.gigabytes: no volume fits into 50 GiB: the smallest has 60 GiB (tenants[0].classes[0].volumeSize.min); raise the quota or lower the smallest size"},
	{"a backend's limit that no volume fits", "    volumeSize: {max: 500Gi}", "    limits: {gigabytes: 5}\n    volumeSize: {min: 10Gi, max: 500Gi}", false,
		"backends[1].limits.gigabytes: no volume fits into 5 GiB: the smallest has 10 GiB (backends[1].volumeSize.min); raise the quota or lower the smallest size"},
	{"a rule's quota above the tenant's", "        quota: {gigabytes: 200}", "        quota: {gigabytes: 2000}", true,
		"tenants[0].classes[0].quota.gigabytes: 2000 is never reached, because the whole tenant has at most 500 GiB (tenants[0].quota.gigabytes); lower it or remove it"},
	{"a rule's number of volumes above the tenant's", "        quota: {gigabytes: 200}", "        quota: {volumes: 21}", true,
		"tenants[0].classes[0].quota.volumes: 21 is never reached, because the whole tenant has at most 20 volumes (tenants[0].quota.volumes); lower it or remove it"},
	{"no volumes of many gigabytes", "quota: {volumes: 20, gigabytes: 500,", "quota: {volumes: 0, gigabytes: 500,", true,
		"tenants[0].quota.gigabytes: has no effect, because volumes: 0 allows no volume; raise volumes, or remove one of the two"},
	{"volumes with a limit and snapshots without", ", snapshotGigabytes: 500}   #", "}   #", true,
		"tenants[0].quota: limits volumes and not snapshots, whose size Cinder counts in the quota of the project, so snapshots of tenant team-a can keep others from volumes; add snapshotGigabytes or snapshots, or snapshots: 0 if it is to have none"},
	{"no GiB for many snapshots", "gigabytes: 500, snapshotGigabytes: 500}", "gigabytes: 500, snapshots: 50, snapshotGigabytes: 0}", true,
		"tenants[0].quota.snapshots: has no effect, because snapshotGigabytes: 0 allows no snapshot; raise snapshotGigabytes, or remove one of the two"},
	{"no gigabytes for many volumes", "quota: {volumes: 100, gigabytes: 1000,", "quota: {volumes: 100, gigabytes: 0,", true,
		"tenants[1].quota.volumes: has no effect, because gigabytes: 0 allows no volume; raise gigabytes, or remove one of the two"},
	{"a quota in bytes", "quota: {volumes: 20, gigabytes: 500,", "quota: {volumes: 20, gigabytes: 536870912000,", false,
		"tenants[0].quota.gigabytes: 536870912000 is too large: Cinder counts no further than 2147483647; write a smaller number, or remove the key if there is no limit"},
	{"a quota that no computer counts to", "quota: {volumes: 20, gigabytes: 500,", "quota: {volumes: 99999999999999999999, gigabytes: 500,", false,
		"tenants[0].quota.volumes: 99999999999999999999 is too large; write a smaller number"},
	{"a number that looks octal", "quota: {volumes: 20, gigabytes: 500,", "quota: {volumes: 020, gigabytes: 500,", false,
		"tenants[0].quota.volumes: 020 begins with 0, which other readers of YAML take for an octal number; write 20"},
	{"a hexadecimal number", "quota: {volumes: 20, gigabytes: 500,", "quota: {volumes: 0x20, gigabytes: 500,", false,
		"tenants[0].quota.volumes: must be a whole number without quotes or unit, not 0x20"},
	{"a rate that looks octal", "requestsPerSecond: 10 ", "requestsPerSecond: 010 ", false,
		"tenants[0].limits.requestsPerSecond: 010 begins with 0, which other readers of YAML take for an octal number; write 10"},
	{"a rate of a million", "requestsPerSecond: 10 ", "requestsPerSecond: 1e6 ", false,
		"tenants[0].limits.requestsPerSecond: must be at most 100000; 0 means no limit"},
	{"a backend's limit in bytes", "gigabytes: 100000 ", "gigabytes: 107374182400000 ", false,
		"backends[0].limits.gigabytes: 107374182400000 is too large: Cinder counts no further than 2147483647; write a smaller number, or remove the key if there is no limit"},
	{"a concurrency in bytes", "concurrency: 16 ", "concurrency: 16777216 ", false,
		"backends[0].limits.concurrency: must be at most 100000"},
	{"an exabyte too much", "{max: 100Gi}", "{max: 9999999999Ei}", false,
		"tenants[0].volumeSize.max: no volume in Cinder can be larger than 2147483647 GiB; write a smaller size, or remove the key if there is no largest size"},
	{"a largest size of Cinder's", "{max: 100Gi}", "{max: 2Ei}", false,
		"tenants[0].volumeSize.max: no volume in Cinder can be larger than 2147483647 GiB; write a smaller size, or remove the key if there is no largest size"},
	{"a decimal size", "{max: 100Gi}", "{max: 100G}", true,
		"tenants[0].volumeSize.max: 100G is not a whole number of GiB, so the largest volume has 93 GiB; write 93Gi"},
	{"a decimal smallest size", "{min: 1Gi, max: 1Ti}", "{min: 1.5Gi, max: 1Ti}", true,
		"defaults.volumeSize.min: 1.5Gi is not a whole number of GiB, so the smallest volume has 2 GiB; write 2Gi"},
	{"a size in two pairs of quotes", "{max: 100Gi}", `{max: '"100Gi"'}`, false,
		`tenants[0].volumeSize.max: "\"100Gi\"" is not a size; the inner quotes are part of the value; write 100Gi`},
	{"all backends of a rule suspended", "  - name: lab\n", "  - name: lab\n    suspended: true\n", true,
		"tenants[1].classes[0].backends: every backend of the rule is suspended (lab), so its claims are denied as BackendsSuspended; end a suspension, or add another backend"},
	{"reserved metadata", `metadata: {costcenter: "4711"}`, "metadata: {csi.storage.k8s.io/pvc/name: x}", false,
		`tenants[0].metadata["csi.storage.k8s.io/pvc/name"]: metadata keys that begin with csi.storage.k8s.io/ say for which claim a volume was made, and the provisioner writes them; choose another`},
	{"the program's own metadata", `metadata: {costcenter: "4711"}`, "metadata: {standalone-cinder.openstack.org/cluster: x}", false,
		`tenants[0].metadata["standalone-cinder.openstack.org/cluster"]: metadata keys that begin with standalone-cinder.openstack.org/ are the provisioner's own; choose another`},
	{"Cinder's own metadata", `metadata: {costcenter: "4711"}`, `metadata: {readonly: "True"}`, false,
		`tenants[0].metadata.readonly: Cinder itself writes the metadata key "readonly"; choose another`},
	{"a backend with a Cyrillic letter", "[gold, ceph]", "[gоld, ceph]", false,
		`tenants[0].classes[0].backends[0]: unknown backend "gоld"; the character 'о' (U+043E) only looks like 'o'; did you mean "gold"?`},
	{"a backend in two pairs of quotes", "[gold, ceph]", `['"gold"', ceph]`, false,
		`tenants[0].classes[0].backends[0]: unknown backend "\"gold\""; the inner quotes are part of the value; did you mean "gold"?`},
	{"a backend's name with a Greek letter", "  - name: gold\n", "  - name: gοld\n", false,
		`backends[0].name: "gοld" cannot be the name of a backend: the character 'ο' (U+03BF) only looks like 'o'; use lower-case letters, digits and hyphens`},
	{"a backend's name twice", "  - name: lab\n", "  - name: gold\n", false,
		"backends[2].name: backends[0] (line N) is already called \"gold\", and rules and PersistentVolumes know backends by their names; give each a different name\ntenants[1].classes[0].backends[0]: unknown backend \"lab\"; the backends are ceph, gold; two are called \"gold\", and one of them may be meant to be \"lab\""},
	{"a tenant's name twice", "  - name: developers", "  - name: team-a", false,
		`tenants[1].name: tenants[0] (line N) is already called "team-a", and quotas count the volumes of a tenant by its name; give each a different name`},
	{"a key with a Cyrillic letter", "    suspended: false", "    susреnded: false", false,
		`backends[0]["susреnded"]: unknown key "susреnded"; the character 'р' (U+0440) only looks like 'p'; did you mean "suspended"?`},
	{"a volume type with a Cyrillic letter", "volumeType: ssd", "volumeType: ѕsd", true,
		`tenants[0].classes[0].volumeType: "ѕsd" is unlikely to be meant: the character 'ѕ' (U+0455) only looks like 's'; type it again`},
	{"a volume type in two pairs of quotes", "volumeType: ssd", `volumeType: "'ssd'"`, false,
		`tenants[0].classes[0].volumeType: "'ssd'" cannot be used: the inner quotes are part of the value; write ssd`},
	{"a list of volume types", "volumeType: ssd", `volumeType: "ssd,hdd"`, true,
		`tenants[0].classes[0].volumeType: "ssd,hdd" is one name, not a list; for several, write several rules`},
	{"a list of zones", "availabilityZone: az1", `availabilityZone: "az1,az2"`, true,
		`tenants[0].classes[0].availabilityZone: "az1,az2" is one name, not a list; for several, write several rules`},
	{"a zone with a blank at its end", "availabilityZone: az1", `availabilityZone: "az1 "`, false,
		`tenants[0].classes[0].availabilityZone: "az1 " cannot be used: it begins or ends with a space, which Cinder would drop`},
	{"a region with an invisible character", "region: RegionOne", "region: \"Region\u00a0One\"", true,
		`backends[0].region: "Region\u00a0One" is unlikely to be meant: there is an invisible character (U+00A0) in it; type it again`},
	{"a cloud that is a file", "auth: {cloud: gold}", "auth: {cloud: /etc/openstack/clouds.yaml}", false,
		`backends[0].auth.cloud: "/etc/openstack/clouds.yaml" is a file; cloud names an entry of clouds.yaml, and --clouds-file names the file`},
	{"a cloud configuration at home", "auth: {cloud: gold}", "auth: {cloudConfig: ~/cloud.conf}", false,
		`backends[0].auth.cloudConfig: "~/cloud.conf" cannot be a file: ~ is not replaced by a home directory; write the whole path, or one relative to the policy file`},
	{"a cloud configuration by a variable", "auth: {cloud: gold}", "auth: {cloudConfig: $HOME/cloud.conf}", false,
		`backends[0].auth.cloudConfig: "$HOME/cloud.conf" cannot be a file: variables are not replaced in paths; write the whole path, or one relative to the policy file`},
	{"a cloud configuration that is a directory", "auth: {cloud: gold}", "auth: {cloudConfig: /etc/cloud/}", false,
		`backends[0].auth.cloudConfig: "/etc/cloud/" cannot be a file: it is a directory; name a file`},
	{"an endpoint with a blank", "http://cinder.lab.example:8776/v3", `"http://cinder.lab.example:8776/v3 "`, false,
		"backends[2].auth.noauth.endpoint: the endpoint begins or ends with a blank; write it like http://cinder.example:8776/v3"},
	{"an endpoint with a user", "http://cinder.lab.example:8776/v3", "http://admin@cinder.lab.example:8776/v3", false,
		"backends[2].auth.noauth.endpoint: the endpoint must carry no user or password; write it like http://cinder.example:8776/v3"},
	{"an endpoint with a query", "http://cinder.lab.example:8776/v3", "http://cinder.lab.example:8776/v3?a=b", false,
		"backends[2].auth.noauth.endpoint: the endpoint must have no query or fragment; write it like http://cinder.example:8776/v3"},
	{"an endpoint with a port too far", "http://cinder.lab.example:8776/v3", "http://cinder.lab.example:87760/v3", false,
		"backends[2].auth.noauth.endpoint: the port of the endpoint must be 1 to 65535, not 87760; write it like http://cinder.example:8776/v3"},
	{"an endpoint with port 0", "http://cinder.lab.example:8776/v3", "http://cinder.lab.example:0/v3", false,
		"backends[2].auth.noauth.endpoint: the port of the endpoint must be 1 to 65535, not 0; write it like http://cinder.example:8776/v3"},
	{"an endpoint of a volume", "http://cinder.lab.example:8776/v3", "http://cinder.lab.example:8776/v3/abc/volumes", false,
		"backends[2].auth.noauth.endpoint: the endpoint has extra text after the version and project; write it like http://cinder.example:8776/v3"},
	{"an endpoint of another project", "http://cinder.lab.example:8776/v3", "http://cinder.lab.example:8776/v3/abc", false,
		`backends[2].auth.noauth.endpoint: the endpoint ends with project "abc", but project is "6bb3d9b8a2e14a5f9a4c1c7f0e2d3b55"; keep one of them; write it like http://cinder.example:8776/v3`},
	{"an endpoint of an old version", "http://cinder.lab.example:8776/v3", "http://cinder.lab.example:8776/v2", true,
		"backends[2].auth.noauth.endpoint: current Cinder releases serve only version 3 of the API; write the URL with /v3"},
	{"a project with a slash", "project: 6bb3d9b8a2e14a5f9a4c1c7f0e2d3b55", "project: 6bb3/d9b8", false,
		`backends[2].auth.noauth.project: "6bb3/d9b8" must have no slashes or blanks, because it becomes part of a URL`},
	{"a user with a colon", "user: admin", `user: "admin:secret"`, false,
		"backends[2].auth.noauth.user: must have no colon, because the noauth token is user:project"},
	{"an address of no host", "      host: k8s-prod-eu-1 ", "      ip: 0.0.0.0\n      host: k8s-prod-eu-1 ", false,
		"backends[0].connector.ip: 0.0.0.0 is not the address of a host; write one of the nodes' addresses, or remove the key"},
	{"an address of every host", "      host: k8s-prod-eu-1 ", "      ip: 127.0.0.1\n      host: k8s-prod-eu-1 ", true,
		"backends[0].connector.ip: 127.0.0.1 is a loopback address, so Cinder cannot identify the nodes by it; write one of the nodes' addresses, or remove the key"},
	{"an address with a prefix length", "      host: k8s-prod-eu-1 ", "      ip: 10.0.0.5/24\n      host: k8s-prod-eu-1 ", false,
		`backends[0].connector.ip: "10.0.0.5/24" is not an IP address; write one such as 192.0.2.10 or 2001:db8::10, without a prefix length`},
	{"a port name of zeros", "      host: k8s-prod-eu-1 ", "      wwpns: [\"0000000000000000\"]\n      host: k8s-prod-eu-1 ", false,
		`backends[0].connector.wwpns[0]: "0000000000000000" is not the name of a port; write one from /sys/class/fc_host/*/port_name`},
	{"no node labels", "      host: k8s-prod-eu-1 ", "      nodeLabels: {}\n      host: k8s-prod-eu-1 ", true,
		"backends[0].connector.nodeLabels: no label is given, so volumes can be used on every node; name the labels, or remove the key"},
	{"a node label with a Cyrillic letter", "      host: k8s-prod-eu-1 ", "      nodeLabels: {ѕtorage: fc}\n      host: k8s-prod-eu-1 ", false,
		`backends[0].connector.nodeLabels["ѕtorage"]: "ѕtorage" cannot be a label's key: the character 'ѕ' (U+0455) only looks like 's'; use letters, digits, '-', '_' and '.'`},
	{"a label's value with a Cyrillic letter", "{environment: development}", "{environment: dеvelopment}", false,
		`tenants[1].namespaceSelector.matchLabels.environment: "dеvelopment" cannot be a label's value: the character 'е' (U+0435) only looks like 'e'; use letters, digits, '-', '_' and '.'`},
	{"a misspelled key of another level", "    quota: {volumes: 100, gigabytes: 1000, snapshotGigabytes: 500}", "    volumTypes: hdd", false,
		`tenants[1].volumTypes: unknown key "volumTypes"; did you mean "volumeType"? it belongs to a rule, under classes`},
	{"a misspelled interface with a lookalike", "interface: internal ", "interface: intеrnal ", false,
		`backends[0].interface: unknown interface "intеrnal"; the character 'е' (U+0435) only looks like 'e'; did you mean "internal"?`},
	{"a misspelled workflow", "workflow: auto ", "workflow: automatic ", false,
		`backends[0].workflow: unknown workflow "automatic"; the workflows are attachment, auto, reserve`},
	{"a cluster's ID with a blank", "clusterID: prod-eu-1", "clusterID: prod eu 1", false,
		`clusterID: "prod eu 1" cannot be a cluster's id; use 1 to 63 letters, digits, '.', '_' and '-', beginning and ending with a letter or digit`},
}

// TestPlantedMistakes: none passes unnoticed, and each is reported where it was
// planted.
func TestPlantedMistakes(t *testing.T) {
	example := string(read(t, "../config.example.yaml"))
	for _, mistake := range plantedMistakes {
		t.Run(mistake.name, func(t *testing.T) {
			before, _, found := strings.Cut(example, mistake.from)
			if !found {
				t.Fatalf("the example has no %q", mistake.from)
			}
			p, err := Parse([]byte(strings.Replace(example, mistake.from, mistake.to, 1)), "p.yaml", protocols())
			var told ErrorList
			if err == nil {
				told = p.Warnings
			} else if !errors.As(err, &told) {
				t.Fatal(err)
			}
			if got := sentences(told); got != mistake.want || (err == nil) != mistake.warning {
				t.Errorf("warning: %t\n got %s\nwant %s", err == nil, got, mistake.want)
			}
			first := 1 + strings.Count(before, "\n")
			last := first + strings.Count(mistake.to, "\n")
			near := func(e Error) bool { return e.Line >= first && e.Line <= last }
			// The consequence of a planted value may be reported where it
			// matters.
			if elsewhere := map[string]bool{"two backends at one endpoint": true, "all backends of a rule suspended": true, "a quota that no volume fits": true}; !elsewhere[mistake.name] && !slices.ContainsFunc(told, near) {
				t.Errorf("the mistake is on lines %d to %d, but is told elsewhere:\n%v", first, last, told)
			}
		})
	}
	if len(plantedMistakes) < 60 {
		t.Errorf("there are only %d planted mistakes", len(plantedMistakes))
	}
}
