package attach

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
)

// TestMetricsShowWhatIsLost: only a leader shows it.
func TestMetricsShowWhatIsLost(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := lostWithVolume(t, machine("n3", "boot-1", wire.Handle{Backend: "gold", ID: "gone"}), otherPV(1, "gold"), testAttachment("other-1", "n2", nil))
	w.Metrics = NewMetrics(registry)
	w.tidy(t.Context())
	names := []string{"standalone_cinder_csi_attachments", "standalone_cinder_csi_unclean_volumes", "standalone_cinder_csi_quarantined_nodes"}
	want := func(attachments, unclean, quarantined string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
			# HELP standalone_cinder_csi_attachments VolumeAttachments of volumes in mode csi that are attached, by backend; only the leader exports it.
			# TYPE standalone_cinder_csi_attachments gauge
			standalone_cinder_csi_attachments{backend="gold"} `+attachments+`
			# HELP standalone_cinder_csi_quarantined_nodes Nodes that get no volume of the backend because they were lost with one and may still write to it; only the leader exports it.
			# TYPE standalone_cinder_csi_quarantined_nodes gauge
			standalone_cinder_csi_quarantined_nodes{backend="gold"} `+quarantined+`
			# HELP standalone_cinder_csi_unclean_volumes Volumes in mode csi that a lost node may still write to, by backend; only the leader exports it.
			# TYPE standalone_cinder_csi_unclean_volumes gauge
			standalone_cinder_csi_unclean_volumes{backend="gold"} `+unclean+`
		`), names...); err != nil {
			t.Error(err)
		}
	}
	want("1", "1", "2")
	w.becomes(t, machine("n1", "boot-2"))
	w.becomes(t, machine("n3", "boot-1"))
	w.tidy(t.Context())
	want("1", "0", "0")

	// Attaching a volume that is attached already does not count again.
	for range 2 {
		_, err := w.publish(t)
		must(t, err)
	}
	if n := testutil.CollectAndCount(w.Metrics.attaching); n != 1 {
		t.Errorf("%d series", n)
	}
	w.Metrics.forget()
	if n, err := testutil.GatherAndCount(registry, names...); err != nil || n > 0 {
		t.Errorf("%d series (%v)", n, err)
	}
}
