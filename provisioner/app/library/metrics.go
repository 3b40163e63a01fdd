package library

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"
)

// NewMetrics registers the provisioning library's own metrics, under the names that
// dashboards for CSI provisioners know. The label class is the name of a StorageClass
// of this provisioner, source the kind of the claim's data source, if it has one.
func NewMetrics(registry prometheus.Registerer) metrics.Metrics {
	m := metrics.New("controller")
	registry.MustRegister(m.PersistentVolumeClaimProvisionTotal, m.PersistentVolumeClaimProvisionFailedTotal, m.PersistentVolumeClaimProvisionDurationSeconds,
		m.PersistentVolumeDeleteTotal, m.PersistentVolumeDeleteFailedTotal, m.PersistentVolumeDeleteDurationSeconds)
	return m
}
