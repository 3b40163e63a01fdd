package backends

import (
	"context"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/cinder/turns"
)

// liar changes some of a memoryCinder's answers.
type liar struct {
	memoryClient
	*lies
}

type lies struct {
	// created replaces the ID in the next answer to a create.
	created string
	// complete replaces the result of the next completion.
	complete error
}

func (l liar) client(context.Context, Config) (Cinder, error) { return l, nil }
func (l liar) forget(Cinder)                                  {}

func (l liar) With(admission turns.Admission) Cinder { return liar{l.with(admission), l.lies} }

func (l liar) CreateVolume(ctx context.Context, request cinder.NewVolume) (cinder.Volume, error) {
	v, err := l.memoryClient.CreateVolume(ctx, request)
	if l.created != "" {
		v.ID, l.created = l.created, ""
	}
	return v, err
}

func (l liar) CompleteAttachment(ctx context.Context, id string) error {
	if err := l.complete; err != nil {
		l.complete = nil
		return err
	}
	return l.memoryClient.CompleteAttachment(ctx, id)
}

func (l liar) term(t *testing.T) *Lifecycle {
	made := l.memoryCinder.term(t)
	return newLifecycle(made.options, l)
}

// TestCreateAnsweredWithAnotherID: the claim's volume is found by its stamp, and
// the other volume is not touched.
func TestCreateAnsweredWithAnotherID(t *testing.T) {
	for name, foreign := range map[string]bool{"of a foreign volume": true, "of no volume": false} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.looks = 2
			server := liar{memory.client(), &lies{created: "nothing"}}
			if foreign {
				other, err := memory.client().CreateVolume(t.Context(), cinder.NewVolume{Name: "other", SizeGiB: 1})
				if err != nil {
					t.Fatal(err)
				}
				server.created = other.ID
			}
			wrong := server.created
			memory.forgetLog()
			l := server.term(t)
			connected, err := l.Connect(t.Context(), claimSpec(1))
			if foreign {
				equal(t, cinder.KindOf(err), KindNotOurs)
				connected, err = l.Connect(t.Context(), claimSpec(1))
			}
			if err != nil || connected.Volume.ID == wrong {
				t.Fatalf("got volume %q, %v", connected.Volume.ID, err)
			}
			equal(t, memory.count("volume.create"), 1)
			equal(t, len(memory.stamped(claimStamp(1))), 1)
		})
	}
}

// TestCreateAnsweredWithTheVolumeOfAnotherClaim: the other claim's volume is still
// found.
func TestCreateAnsweredWithTheVolumeOfAnotherClaim(t *testing.T) {
	for _, status := range []cinder.Status{cinder.StatusCreating, cinder.StatusAvailable} {
		t.Run(string(status), func(t *testing.T) {
			memory := newMemoryCinder()
			other := memory.add(mine(2, status))
			server := liar{memory.client(), &lies{created: other}}
			l := server.term(t)
			_, err := l.Connect(t.Context(), claimSpec(1))
			equal(t, cinder.KindOf(err), KindNotOurs)
			connected, err := l.Connect(t.Context(), claimSpec(2))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, connected.Volume.ID, other)
			equal(t, memory.count("volume.create"), 1)
			equal(t, len(memory.stamped(claimStamp(2))), 1)
		})
	}
}

// TestUnknownAttachmentDoesNotMakeTheVolumeMissing: otherwise the caller would
// give up on the PersistentVolume.
func TestUnknownAttachmentDoesNotMakeTheVolumeMissing(t *testing.T) {
	memory := newMemoryCinder()
	memory.workflow = cinder.WorkflowAttachment
	server := liar{memory.client(), &lies{}}
	l := server.term(t)
	connected, err := l.Connect(t.Context(), claimSpec(1))
	if err != nil {
		t.Fatal(err)
	}
	server.complete = &cinder.Error{Kind: cinder.KindNotFound, Status: 404, Message: "not found"}
	target := claimTarget(1, connected.Volume.ID)
	equal(t, cinder.KindOf(l.Complete(t.Context(), target, false)), cinder.KindConflict)
	if err := l.Complete(t.Context(), target, false); err != nil {
		t.Error(err)
	}
	equal(t, memory.stamped(claimStamp(1))[0].Status, cinder.StatusInUse)
}
