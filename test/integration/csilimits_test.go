package integration

import (
	"testing"

	"github.com/standalone-cinder/standalone-cinder/provisioner/csi/wire"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim/drivers"
)

// TestAVolumeIsAttachedWithItsLimits: the front-end QoS of its type is in the publish
// context.
func TestAVolumeIsAttachedWithItsLimits(t *testing.T) {
	w := newWorld(t, "csilimits", cindersim.Options{Types: append(drivers.DefaultVolumeTypes(), drivers.VolumeType{
		Name: "limited", RequiresInitiator: true, QoS: map[string]string{"total_bytes_sec": "2097152", "read_iops_sec": "50", "read_iops_sec_max": "90"},
	})})
	c, volumes := w.csi(1, 1, "limited")
	v := volumes[0]
	w.startWithSidecar()
	w.must(c.attachTo(w.ctx, v, 0))
	connection, err := c.attached(w.ctx, v, 0)
	w.must(err)
	if want := (wire.Limits{ReadBytes: 2097152, WriteBytes: 2097152, ReadOperations: 50}); connection.Limits == nil || *connection.Limits != want {
		t.Errorf("the limits are %+v, want %+v", connection.Limits, want)
	}
	w.must(c.detachFrom(w.ctx, v, 0))
	w.must(c.detached(w.ctx, v, 0))
}
