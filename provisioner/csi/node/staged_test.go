package node

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
)

// reports is the Reporter of a test.
type reports struct {
	f *fixture
	// named are the volumes that the state files showed when the report was written last.
	named []string
	err   error
}

func (r *reports) volumes() []string {
	volumes, err := StagedVolumes(r.f.node, stateDir, r.f.service.state.boot)
	if err != nil {
		r.f.t.Error(err)
	}
	return volumes
}

func (r *reports) Staging(context.Context, string) error {
	if r.err == nil {
		r.named = r.volumes()
	}
	return r.err
}

func (r *reports) Changed() { r.named = r.volumes() }

// TestAVolumeIsReportedBeforeItIsStaged: and until nothing of it is left. What cannot be
// reported is not staged.
func TestAVolumeIsReportedBeforeItIsStaged(t *testing.T) {
	f := newFixture(t)
	r := &reports{f: f}
	f.service.reporter = r
	u := plain()
	r.err = errors.New("no answer")
	f.refuses(f.stage(u), codes.Unavailable, "no answer")
	if left := r.volumes(); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
	f.clean()
	r.err = nil
	f.must(f.stage(u))
	if !slices.Equal(r.named, []string{u.handle()}) {
		t.Errorf("reported %q", r.named)
	}
	f.must(f.unstage(u))
	if len(r.named) > 0 {
		t.Errorf("reported %q", r.named)
	}
	f.clean()
}
