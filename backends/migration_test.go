package backends_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/cindersim"
)

// TestVolumesThatAnAdministratorMigratesStayAsTheyAre: at the end, Cinder takes back what was
// written to their metadata meanwhile, and what was written to their blocks after they were
// copied. Their status does not show it unless they were locked.
func TestVolumesThatAnAdministratorMigratesStayAsTheyAre(t *testing.T) {
	for name, do := range map[string]func(*groupBench, backends.Target) error{
		"rebind": func(b *groupBench, target backends.Target) error {
			to := claimOf(0)
			to.Claim, to.ClaimUID = "next", "claim-next"
			_, err := b.Rebind(b.Context(), target, to, func(stamps.Volume) map[string]string { return nil })
			return err
		},
		"rewrap": func(b *groupBench, target backends.Target) error {
			return backends.Keys{Lifecycle: b.Lifecycle}.Replace(b.Context(), backends.RecordedKey{ID: target.VolumeID, KeyRecords: stamps.KeyRecords{Main: "old"}}, stamps.KeyRecords{Main: "new"})
		},
		"publish": func(b *groupBench, target backends.Target) error {
			_, err := b.Publish(b.Context(), target, backends.PublishRequest{
				Key: "node", Node: "node", Connector: cinder.Connector{Initiator: "iqn.node", Host: "node"},
				Admit: func(context.Context) error { return nil }, HandOut: func(context.Context, backends.Published) error { return nil },
			})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newGroupBench(t, cindersim.Options{MigrationDelay: time.Hour}, 1)
			metadata := claimOf(0).Metadata(stamps.AttachedMark())
			metadata[stamps.KeyMode], metadata[stamps.KeyEncryption] = stamps.ModeCSI, "old"
			b.must(b.sim.SetVolumeMetadata(b.volumes[0], metadata))
			b.must(b.sim.Migrate(b.volumes[0], "iscsi-mp"))
			since := len(b.sim.Journal())
			err := do(b, b.source(0))
			if changes := b.changes(since); !cinder.IsKind(err, cinder.KindConflict) || !strings.Contains(err.Error(), "maintenance") || len(changes) > 0 {
				t.Errorf("%v, after %q", err, changes)
			}
		})
	}
}
