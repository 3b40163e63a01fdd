package backends

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// TestAnotherNodeLosesAnAttachmentOnlyIfItIsReleased: before anything is made for the
// new node.
func TestAnotherNodeLosesAnAttachmentOnlyIfItIsReleased(t *testing.T) {
	refusal := errors.New("not yet")
	for name, c := range map[string]struct {
		release func(context.Context, string, string) (bool, error)
		err     error
		kind    cinder.Kind
		want    []string // changes
	}{
		"nobody decides": {kind: KindOnOtherNode},
		"it keeps it":    {release: func(context.Context, string, string) (bool, error) { return false, nil }, kind: KindOnOtherNode},
		"not yet":        {release: func(context.Context, string, string) (bool, error) { return false, refusal }, err: refusal},
		"released": {release: func(context.Context, string, string) (bool, error) { return true, nil },
			want: []string{"attachment.delete attachment-2", "metadata.delete volume-1", "attachment.create volume-1", "metadata.update volume-1", "attachment.complete attachment-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			target := claimTarget(1, memory.add(forNodes()))
			memory.recordedFor(t, target.VolumeID, "n1")
			to := toNode("n2")
			var asked []string
			if c.release != nil {
				to.Release = func(ctx context.Context, node, key string) (bool, error) {
					asked = append(asked, node+" "+key)
					return c.release(ctx, node, key)
				}
			}
			_, err := memory.term(t).Publish(t.Context(), target, to)
			switch {
			case c.err != nil && !errors.Is(err, c.err), c.kind != "" && !cinder.IsKind(err, c.kind), c.err == nil && c.kind == "" && err != nil:
				t.Errorf("the error is %v", err)
			}
			if c.release != nil && !slices.Equal(asked, []string{"n1 key-of-n1"}) {
				t.Errorf("asked about %q", asked)
			}
			if changes := memory.changes(); !slices.Equal(changes, c.want) {
				t.Errorf("changes %q, want %q", changes, c.want)
			}
		})
	}
}

// TestAdmitDecidesAboutNewAttachmentsAlone: for what the node has, the answer is repeated.
func TestAdmitDecidesAboutNewAttachmentsAlone(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	refusal := errors.New("not now")
	to := toNode("n1")
	to.Admit = func(context.Context) error { return refusal }
	if _, err := memory.term(t).Publish(t.Context(), target, to); !errors.Is(err, refusal) {
		t.Errorf("the error is %v", err)
	}
	if changes := memory.changes(); len(changes) > 0 {
		t.Errorf("changes %q", changes)
	}
	memory.recordedFor(t, target.VolumeID, "n1")
	_, err := memory.term(t).Publish(t.Context(), target, to)
	success(t, err)
}

// TestAnAttachmentOfSomebodyElseOutlastsAPodThatWasRefused: an operator has attached the
// volume to another host, and Cinder shows a member of the project no hosts.
func TestAnAttachmentOfSomebodyElseOutlastsAPodThatWasRefused(t *testing.T) {
	for name, c := range map[string]struct {
		attached, stays bool
	}{
		"it was never the node's":       {stays: true},
		"Kubernetes has it on the node": {attached: true},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(forNodes())
			attachment, _, err := memory.client().CreateAttachment(t.Context(), id, cinder.Connector{Host: "rescue"}, false)
			success(t, err)
			success(t, memory.client().CompleteAttachment(t.Context(), attachment))
			memory.member = true
			_, err = memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1"))
			equal(t, cinder.KindOf(err), KindOnOtherNode)
			success(t, memory.term(t).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Attached: c.attached}))
			if stays := len(memory.present()[id].Attachments) > 0; stays != c.stays {
				t.Errorf("it stays: %t", stays)
			}
		})
	}
}

// TestALostRecordCostsNoOtherNodeItsAttachment: Cinder does not show whose an
// attachment is, but Kubernetes says that another node has one.
func TestALostRecordCostsNoOtherNodeItsAttachment(t *testing.T) {
	for name, test := range map[string]struct {
		lost   []string // whose record is lost
		others []string
		want   []string // changes
		kind   cinder.Kind
	}{
		"the other's":                          {lost: []string{"n2"}, others: []string{"key-of-n2"}, want: []string{"attachment.delete attachment-2", "metadata.delete volume-1"}},
		"its own":                              {lost: []string{"n1"}, others: []string{"key-of-n2"}, want: []string{"attachment.delete attachment-2"}},
		"both":                                 {lost: []string{"n1", "n2"}, others: []string{"key-of-n2"}, kind: cinder.KindConflict},
		"the other's, which is not attached":   {lost: []string{"n2"}, want: []string{"attachment.delete attachment-2", "metadata.delete volume-1", "attachment.delete attachment-3"}},
		"both, and the other one is not there": {lost: []string{"n1", "n2"}, want: []string{"attachment.delete attachment-2", "attachment.delete attachment-3"}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			memory.member = true
			v := forNodes()
			v.MultiAttach = true
			id := memory.add(v)
			memory.recordedFor(t, id, "n1", "n2")
			for _, node := range test.lost {
				memory.loseRecord(t, id, node)
			}
			err := memory.term(t).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Others: test.others, Attached: true})
			equal(t, cinder.KindOf(err), test.kind)
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
		})
	}
}
