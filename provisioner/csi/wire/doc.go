// Package wire defines what the controller and the nodes of the CSI driver exchange
// through Kubernetes: handles, node IDs, contexts, and the entries of a volume's Secret.
// These formats are permanent: objects in the cluster outlive every release.
package wire

// DriverName is the name of the CSI driver. It must be a DNS subdomain, so it cannot be
// the provisioner's name.
const DriverName = "standalone-cinder.openstack.org"
