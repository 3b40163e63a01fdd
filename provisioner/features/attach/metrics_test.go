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
	w := lost(t, machine("n3", "boot-1"), otherPV(1, "gold"), testAttachment("other-1", "n2", nil))
	w.reportsStaged(t, "n3", "boot-1", wire.Handle{Backend: "gold", ID: "gone"})
	w.Metrics = NewMetrics(registry)
	w.rounds.tidy(t.Context())
	names := []string{"standalone_cinder_csi_attachments", "standalone_cinder_csi_unclean_volumes", "standalone_cinder_csi_quarantined_nodes"}
	want := func(attachments, unclean, quarantined string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(`
			# HELP standalone_cinder_csi_attachments VolumeAttachments of volumes in mode csi that are attached, by backend; only the leader exports it.
			# TYPE standalone_cinder_csi_attachments gauge
			standalone_cinder_csi_attachments{backend="gold"} `+attachments+`
			# HELP standalone_cinder_csi_quarantined_nodes Nodes that get no further volume because they have one of the backend staged that Kubernetes has detached from them; only the leader exports it.
			# TYPE standalone_cinder_csi_quarantined_nodes gauge
			standalone_cinder_csi_quarantined_nodes{backend="gold"} `+quarantined+`
			# HELP standalone_cinder_csi_unclean_volumes Volumes in mode csi that nodes have staged although Kubernetes has detached them, by backend; only the leader exports it.
			# TYPE standalone_cinder_csi_unclean_volumes gauge
			standalone_cinder_csi_unclean_volumes{backend="gold"} `+unclean+`
		`), names...); err != nil {
			t.Error(err)
		}
	}
	want("1", "2", "2")
	w.becomes(t, machine("n1", "boot-2"))
	w.reportsStaged(t, "n3", "boot-1")
	w.rounds.tidy(t.Context())
	want("1", "0", "0")

	// Attaching a volume that is attached already does not count again.
	for _, has := range []bool{false, true} {
		w.volumes.has = has
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
