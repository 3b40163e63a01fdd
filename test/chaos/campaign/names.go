package campaign

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/policy"
	"github.com/standalone-cinder/standalone-cinder/test/chaos/plan"
)

// names keep the objects of one seed apart from those of another.
type names struct{ seed uint64 }

func (n names) id() string                     { return "chaos-" + strconv.FormatUint(n.seed, 10) }
func (n names) cluster() string                { return n.id() }
func (n names) provisioner() string            { return "chaos.example/" + n.id() }
func (n names) namespace(tenant string) string { return n.id() + "-" + tenant }
func (n names) class(class string) string      { return n.id() + "-" + class }
func (n names) snapshotClass() string          { return n.id() + "-snapshots" }
func (n names) backupClass() string            { return n.id() + "-backups" }
func (n names) groupClass() string             { return n.id() + "-groups" }
func (n names) podNode(number int) string      { return fmt.Sprintf("%s-pods-%d", n.id(), number) }
func (n names) machine(number int) string      { return fmt.Sprintf("%s-machine-%d", n.id(), number) }

// keys is the Secret of key-encryption keys.
func (n names) keys() string { return n.id() + "-keys" }

func (n names) isMachine(node string) bool { return strings.HasPrefix(node, n.id()+"-machine-") }

// lease returns the program's name for its Lease.
func (n names) lease() string { return strings.ReplaceAll(n.provisioner(), "/", "-") }

func (n names) classes() []string {
	var all []string
	for _, class := range plan.Classes() {
		all = append(all, n.class(class))
	}
	return all
}

// labels returns the labels of a tenant's namespace. The policy selects one of
// the namespaces by label.
func (n names) labels(tenant string) map[string]string {
	return map[string]string{"chaos.example/tenant": n.namespace(tenant)}
}

// isApart reports whether a StorageClass is one of the volumes of movers or machines, which
// no other actor touches.
func (n names) isApart(class string) bool {
	for _, apart := range []string{plan.Moved, plan.MovedOnNodes, plan.Shown, plan.Masked, plan.Sealed} {
		if class == n.class(apart) {
			return true
		}
	}
	return false
}

func (n names) isNamespace(namespace string) bool {
	for _, tenant := range plan.AllTenants() {
		if n.namespace(tenant) == namespace {
			return true
		}
	}
	return false
}

// connectorHost is the policy's default.
const connectorHost = policy.DefaultConnectorHost

// labEndpoint is where the policy finds the noauth backend. It is the same for
// all replicas, since PersistentVolumes record it, although each has its own
// network: the name is reachable only through the proxy in the replica's
// environment.
const labEndpoint = "http://cinder.lab.example:8776/v3"

// podsProject is the project of the noauth Cinder for volumes in mode csi.
const podsProject = "abcdef0123456789abcdef0123456789"

// arrayProjects are the projects of the noauth Cinder whose volumes machines stage, by
// backend.
func arrayProjects() map[string]string {
	return map[string]string{plan.Shown: "abcdef0123456789abcdef012345678a", plan.Masked: "abcdef0123456789abcdef012345678b"}
}

// policyText returns the policy of a variant. Volumes that outlive their claims
// on purpose must not use up the quotas in a long campaign, so the limits grow
// with the plan. The tenants of movers have no quotas: a volume that gets another claim
// counts for its tenant, whether there is room or not.
func policyText(p plan.Plan, n names, variant int, lead places) string {
	// The limits are lower, as drawn, or higher.
	scale := []int{10, 6, 16}[variant]
	limit := func(most, more int) string { return strconv.Itoa(most*scale/10 + more) }
	kept := func(tenants ...string) int {
		kept := p.KeptByHand()
		for _, tenant := range tenants {
			kept += p.Retained(tenant)
		}
		return kept
	}
	// The lower variant also connects volumes on lab by the other workflow.
	workflow := policy.WorkflowReserve
	if p.Attachments != (variant == 1) {
		workflow = policy.WorkflowAttachment
	}
	lab, project := lead.lab()
	const largest = plan.LargestMi / 1024
	everybody := kept(plan.TenantNames()...)
	return strings.NewReplacer(
		"CHAOS", n.id(), "LABEL", fmt.Sprintf("{chaos.example/tenant: %s}", n.namespace("c")),
		"NOAUTH", lab, "ENDPOINT", labEndpoint, "PODS", podsProject, "SHOWN", arrayProjects()[plan.Shown], "MASKED", arrayProjects()[plan.Masked],
		"VARIANT", strconv.Itoa(variant), "WORKFLOW", string(workflow), "PROJECT", project,
		"GOLD-VOLUMES", limit(26, everybody+p.Moved()), "SILVER-GIGABYTES", limit(50, everybody*largest), "LAB-VOLUMES", limit(30, everybody+p.Moved()),
		"A-VOLUMES", limit(19, kept("a")), "B-GIGABYTES", limit(36, kept("b")*largest),
		"C-VOLUMES", limit(22, kept("c")), "C-GIGABYTES", limit(40, kept("c")*largest), "C-FAST", limit(10, kept("c")),
	).Replace(`
apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: CHAOS
defaults:
  timeouts: {create: 20s, delete: 20s, request: 4s}
  volumeSize: {max: 10Gi}
backends:
  - {name: gold, auth: {cloud: team-a}, workflow: reserve, limits: {volumes: GOLD-VOLUMES}}
  - {name: silver, auth: {cloud: team-b}, workflow: attachment, limits: {gigabytes: SILVER-GIGABYTES}}
  - {name: lab, auth: {noauth: {endpoint: "NOAUTH", project: PROJECT}}, workflow: WORKFLOW, limits: {volumes: LAB-VOLUMES}}
  - {name: pods, auth: {noauth: {endpoint: "ENDPOINT", project: PODS}}}
  - {name: shown, auth: {noauth: {endpoint: "ENDPOINT", project: SHOWN}}, mode: csi}
  - {name: masked, auth: {noauth: {endpoint: "ENDPOINT", project: MASKED}}, mode: csi, csi: {fencing: initiator}}
tenants:
  - name: a
    namespaces: [CHAOS-a]
    quota: {volumes: A-VOLUMES}
    metadata: {costcenter: "4711"}
    classes:
      - {storageClasses: [CHAOS-fast], backends: [gold], groups: true, backups: true}
      - {storageClasses: [CHAOS-dual], backends: [silver, lab], groups: true, backups: true}
      - {storageClasses: [CHAOS-kept], backends: [gold], groups: true, backups: true}
      - {storageClasses: [CHAOS-nodes], backends: [silver], mode: csi}
  - name: b
    namespaces: [CHAOS-b]
    quota: {gigabytes: B-GIGABYTES}
    classes:
      - {storageClasses: [CHAOS-fast], backends: [silver], groups: true, backups: true}
      - {storageClasses: [CHAOS-dual], backends: [gold, lab], groups: true, backups: true}
      - {storageClasses: [CHAOS-kept], backends: [lab], groups: true, backups: true}
      - {storageClasses: [CHAOS-nodes], backends: [pods], mode: csi}
  - name: c
    namespaceSelector: {matchLabels: LABEL}
    quota: {volumes: C-VOLUMES, gigabytes: C-GIGABYTES}
    classes:
      - {storageClasses: [CHAOS-fast], backends: [lab], groups: true, backups: true, quota: {volumes: C-FAST}}
      - {storageClasses: [CHAOS-dual], backends: [lab, silver], groups: true, backups: true}
      - {storageClasses: [CHAOS-kept], backends: [silver], groups: true, backups: true}
      - {storageClasses: [CHAOS-nodes], backends: [pods], mode: csi}
  - name: d
    namespaces: [CHAOS-d]
    metadata: {costcenter: "4712", owner: d}
    classes:
      - {storageClasses: [CHAOS-moved], backends: [gold, lab]}
      - {storageClasses: [CHAOS-moved-nodes], backends: [pods], mode: csi}
  - name: e
    namespaces: [CHAOS-e]
    metadata: {costcenter: "4713"}
    classes:
      - {storageClasses: [CHAOS-moved], backends: [lab, gold]}
      - {storageClasses: [CHAOS-moved-nodes], backends: [pods], mode: csi}
  - name: f
    namespaces: [CHAOS-f]
    classes:
      - {storageClasses: [CHAOS-shown], backends: [shown]}
      - {storageClasses: [CHAOS-masked], backends: [masked]}
      - {storageClasses: [CHAOS-sealed], backends: [masked], encrypt: {keySecret: CHAOS-keys, entry: "VARIANT"}}
`)
}
