package contract

import (
	"context"
	"testing"
	"time"

	"github.com/standalone-cinder/standalone-cinder/backends"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/test/cindercontract"
)

// lagging returns a way to use a simulator whose reads lag.
func lagging(t *testing.T, lag time.Duration) Target {
	target := simulatorTargets(t, lag)[0]
	target.Name += ", reads lag"
	return target
}

// patient reads only when reads show everything that was changed before.
type patient struct {
	cindercontract.Cinder
	lag time.Duration
}

func (p patient) Volume(ctx context.Context, id string) (cinder.Volume, error) {
	time.Sleep(p.lag)
	return p.Cinder.Volume(ctx, id)
}

func (p patient) ListVolumes(ctx context.Context, query cinder.Query, yield func([]cinder.Volume) bool) error {
	time.Sleep(p.lag)
	return p.Cinder.ListVolumes(ctx, query, yield)
}

func (p patient) Snapshot(ctx context.Context, id string) (cinder.Snapshot, error) {
	time.Sleep(p.lag)
	return p.Cinder.Snapshot(ctx, id)
}

func (p patient) ListSnapshots(ctx context.Context, query cinder.Query, yield func([]cinder.Snapshot) bool) error {
	time.Sleep(p.lag)
	return p.Cinder.ListSnapshots(ctx, query, yield)
}

func (p patient) Backup(ctx context.Context, id string) (cinder.Snapshot, error) {
	time.Sleep(p.lag)
	return p.Cinder.Backup(ctx, id)
}

func (p patient) ListBackups(ctx context.Context, query cinder.Query, yield func([]cinder.Snapshot) bool) error {
	time.Sleep(p.lag)
	return p.Cinder.ListBackups(ctx, query, yield)
}

func (p patient) Attachments(ctx context.Context, volumeID string) ([]cinder.Attachment, error) {
	time.Sleep(p.lag)
	return p.Cinder.Attachments(ctx, volumeID)
}

func (p patient) AttachmentDocument(ctx context.Context, id string) ([]byte, error) {
	time.Sleep(p.lag)
	return p.Cinder.AttachmentDocument(ctx, id)
}

// TestOneClaimOneVolumeWhileReadsLag: every step is the last one of its leader.
func TestOneClaimOneVolumeWhileReadsLag(t *testing.T) {
	for _, lag := range []time.Duration{300 * time.Millisecond, time.Second} {
		for _, workflow := range []cinder.Workflow{cinder.WorkflowReserve, cinder.WorkflowAttachment} {
			t.Run(string(workflow)+", "+lag.String(), func(t *testing.T) {
				t.Parallel()
				target := lagging(t, lag)
				target.Poll = 100 * time.Millisecond
				a := newActor(t, target.ready(t), workflow)
				made := a.connect()
				a.newTerm()
				if again := a.connect(); again.Volume.ID != made.Volume.ID || again.AttachmentID != made.AttachmentID {
					t.Errorf("volume %s, attachment %s; then %s, %s", made.Volume.ID, made.AttachmentID, again.Volume.ID, again.AttachmentID)
				}
				a.newTerm()
				a.must(a.Complete(a.ctx, a.of(made.Volume), false))
				a.newTerm()
				if err := a.Abandon(a.ctx, a.spec.Stamp, a.spec.Connector, nil); !cinder.IsKind(err, backends.KindRecorded) {
					t.Errorf("a volume in use: %v", err)
				}
				if mine := a.mine(); len(mine) != 1 || mine[0].Status != cinder.StatusInUse {
					t.Errorf("volumes %+v", mine)
				}
			})
		}
	}
}
