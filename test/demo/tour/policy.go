package tour

import "strings"

// policyHead is not shown.
const policyHead = `apiVersion: standalone-cinder.openstack.org/v1alpha1
kind: Policy
clusterID: CLUSTER
`

// policyRules are shown in full, so they are short: two backends with different
// logins, two tenants that are recognized in different ways.
const policyRules = `backends:
  - name: gold                       # behind Keystone; clouds.yaml has the password
    auth: {cloud: shop}
  - name: lab                        # a Cinder without Keystone
    auth: {noauth: {endpoint: "ENDPOINT", user: admin, project: PROJECT}}
    mapping:                         # its Ceph volumes are mounted by ceph-csi
      rbd: {as: csi, clusterID: ceph-1, nodeStageSecretRef: {name: ceph, namespace: ceph-csi}}
tenants:
  - name: shop
    namespaces: [PREFIXshop]
    classes:
      - {storageClasses: [PREFIXfast], backends: [gold], volumeType: iscsi, fsType: xfs}
  - name: research
    namespaceSelector: {matchLabels: {team: research}}
    volumeSize: {max: 20Gi}
    classes:
      - {storageClasses: [PREFIXlab], backends: [lab], volumeType: iscsi}
      - {storageClasses: [PREFIXceph], backends: [lab], volumeType: rbd}
`

// policyOf fills in what differs from run to run.
func policyOf(names names, endpoint, project string) (head, rules string) {
	fill := strings.NewReplacer("CLUSTER", names.cluster, "PREFIX", names.prefix, "ENDPOINT", endpoint, "PROJECT", project)
	return fill.Replace(policyHead), fill.Replace(policyRules)
}

// names are all names that the tour uses in the cluster. In a shared cluster
// each carries the tour's ID.
type names struct {
	// id is empty in the tour's own cluster.
	id string
	// prefix precedes the names of namespaces and StorageClasses.
	prefix string
	// cluster is stamped on the volumes.
	cluster string
	// provisioner is the name by which StorageClasses refer to the program.
	provisioner string
}

func namesOf(id string) names {
	if id == "" {
		return names{cluster: "demo", provisioner: "openstack.org/standalone-cinder"}
	}
	return names{
		id:          id,
		prefix:      "demo-" + id + "-",
		cluster:     "demo-" + id,
		provisioner: "demo.standalone-cinder.example/" + id,
	}
}

// The namespaces: shop belongs to a tenant by its name, research by its label,
// guest to none.
func (n names) shop() string     { return n.prefix + "shop" }
func (n names) research() string { return n.prefix + "research" }
func (n names) guest() string    { return n.prefix + "guest" }

func (n names) tenantNamespaces() []string { return []string{n.shop(), n.research()} }
func (n names) namespaces() []string       { return []string{n.shop(), n.research(), n.guest()} }

// The StorageClasses.
func (n names) fast() string { return n.prefix + "fast" }
func (n names) lab() string  { return n.prefix + "lab" }
func (n names) ceph() string { return n.prefix + "ceph" }

func (n names) classes() []string { return []string{n.fast(), n.lab(), n.ceph()} }
