// Package wire has what the controller and the nodes of the CSI driver tell each
// other through Kubernetes: handles, node IDs, contexts, and the entries of a
// volume's Secret. The forms are permanent: objects of the cluster keep them longer
// than any release runs.
package wire

// DriverName is the name of the CSI driver. A driver's name is a DNS subdomain,
// so it cannot be the provisioner's.
const DriverName = "standalone-cinder.openstack.org"
