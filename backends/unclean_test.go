package backends

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
)

// lostWith returns an UnpublishRequest for a node that still uses the volume.
func lostWith(node, boot string) UnpublishRequest {
	return UnpublishRequest{Node: node, Key: "key-of-" + node, Unclean: func(_ context.Context, asked, _ string, _ stamps.Unclean) (stamps.Unclean, bool, error) {
		return stamps.Unclean{Node: asked, Boot: boot}, true, nil
	}}
}

// TestANodeThatStillUsesAVolumeIsNotedBeforeItIsDetached: whoever reads the volume next
// knows about it.
func TestANodeThatStillUsesAVolumeIsNotedBeforeItIsDetached(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	memory.recordedFor(t, target.VolumeID, "n1")
	success(t, memory.term(t).Unpublish(t.Context(), target, lostWith("n1", "boot-1")))
	if changes, want := memory.changes(), []string{"metadata.update volume-1", "attachment.delete attachment-2", "metadata.update volume-1"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	want := map[string]stamps.Unclean{"key-of-n1": {Node: "n1", Boot: "boot-1"}}
	if notes := stamps.UncleanOf(memory.present()[target.VolumeID]); !maps.Equal(notes, want) {
		t.Errorf("notes %v", notes)
	}

	// Another node may be refused, or admitted with the notes that have ended.
	refusal := errors.New("not yet")
	to := toNode("n2")
	var told map[string]stamps.Unclean
	to.Admit = func(_ context.Context, notes map[string]stamps.Unclean) ([]string, error) {
		told = notes
		return nil, refusal
	}
	memory.forgetLog()
	if _, err := memory.term(t).Publish(t.Context(), target, to); !errors.Is(err, refusal) || !maps.Equal(told, want) {
		t.Errorf("error %v, told %v", err, told)
	}
	if changes := memory.changes(); len(changes) > 0 {
		t.Errorf("changes %q", changes)
	}
	to.Admit = func(context.Context, map[string]stamps.Unclean) ([]string, error) { return []string{"key-of-n1"}, nil }
	_, err := memory.term(t).Publish(t.Context(), target, to)
	success(t, err)
	v := memory.present()[target.VolumeID]
	if notes := stamps.UncleanOf(v); len(notes) > 0 || len(stamps.NodeRecordsOf(v)) != 1 {
		t.Errorf("notes %v, records %v", notes, stamps.NodeRecordsOf(v))
	}
	equal(t, memory.count("metadata.update"), 1)

	// For what the node has, the answer is repeated without asking Admit.
	to.Admit = func(context.Context, map[string]stamps.Unclean) ([]string, error) { return nil, refusal }
	_, err = memory.term(t).Publish(t.Context(), target, to)
	success(t, err)
}

func TestWithdrawalsAreNotedOnlyIfSomethingIsDetached(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*testing.T, *memoryCinder)
		from    UnpublishRequest
		asked   []string
		notes   []string
	}{
		"not attached":    {from: lostWith("n1", "")},
		"on another node": {prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n2") }, from: lostWith("n1", "")},
		"its record is lost": {prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			m.loseRecord(t, "volume-1", "n1")
		}, from: lostWith("n1", ""), asked: []string{"n1 key-of-n1"}, notes: []string{"n1"}},
		"from all": {prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n1", "n2") }, from: UnpublishRequest{Unclean: lostWith("", "").Unclean},
			asked: []string{"n1 key-of-n1", "n2 key-of-n2"}, notes: []string{"n1", "n2"}},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			v := forNodes()
			v.MultiAttach = true
			id := memory.add(v)
			if test.prepare != nil {
				test.prepare(t, memory)
			}
			var asked []string
			answer := test.from.Unclean
			test.from.Unclean = func(ctx context.Context, node, key string, noted stamps.Unclean) (stamps.Unclean, bool, error) {
				asked = append(asked, node+" "+key)
				return answer(ctx, node, key, noted)
			}
			success(t, memory.term(t).Unpublish(t.Context(), claimTarget(1, id), test.from))
			var notes []string
			for _, note := range stamps.UncleanOf(memory.present()[id]) {
				notes = append(notes, note.Node)
			}
			slices.Sort(notes)
			if !slices.Equal(asked, test.asked) || !slices.Equal(notes, test.notes) {
				t.Errorf("asked %q, notes %q", asked, notes)
			}
		})
	}
}

func TestNothingIsDetachedIfItIsNotKnownWhetherTheNodeUsesIt(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	memory.recordedFor(t, target.VolumeID, "n1")
	failure := errors.New("no API server")
	err := memory.term(t).Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1", Unclean: func(context.Context, string, string, stamps.Unclean) (stamps.Unclean, bool, error) {
		return stamps.Unclean{}, false, failure
	}})
	if changes := memory.changes(); !errors.Is(err, failure) || len(changes) > 0 {
		t.Errorf("error %v, changes %q", err, changes)
	}
	// Nothing is detached either if the note cannot be written.
	memory.fault = failOnce("metadata.update", refused)
	equal(t, cinder.KindOf(memory.term(t).Unpublish(t.Context(), target, lostWith("n1", "boot-1"))), cinder.KindUnavailable)
	if changes, want := memory.changes(), []string{"metadata.update volume-1"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q", changes)
	}
}

// TestAVolumeThatMustStayIsNoted: it stays attached to the node, and the note of the
// first call says in which boot the node had it.
func TestAVolumeThatMustStayIsNoted(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	memory.recordedFor(t, target.VolumeID, "n1")
	held := errors.New("the node may write")
	var told []stamps.Unclean
	from := UnpublishRequest{Node: "n1", Key: "key-of-n1", Unclean: func(_ context.Context, node, _ string, noted stamps.Unclean) (stamps.Unclean, bool, error) {
		told = append(told, noted)
		return stamps.Unclean{Node: node, Boot: "boot-1"}, true, held
	}}
	for range 2 {
		if err := memory.term(t).Unpublish(t.Context(), target, from); !errors.Is(err, held) {
			t.Errorf("the error is %v", err)
		}
	}
	if want := []stamps.Unclean{{}, {Node: "n1", Boot: "boot-1"}}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
	success(t, memory.term(t).ForgetUnclean(t.Context(), target, "key-of-n1"))
	if changes, want := memory.changes(), []string{"metadata.update volume-1"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	_, err := memory.term(t).Publish(t.Context(), target, toNode("n2"))
	if want := "backend gold: volume volume-1 is attached to node n1, and must be detached there before it can be attached to node n2, which waits until node n1 can no longer write to it"; err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

func TestForgetUnclean(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	memory.recordedFor(t, target.VolumeID, "n1")
	success(t, memory.term(t).Unpublish(t.Context(), target, lostWith("n1", "boot-1")))
	memory.forgetLog()
	for range 2 {
		success(t, memory.term(t).ForgetUnclean(t.Context(), target, "key-of-n1"))
	}
	equal(t, memory.count("metadata.update"), 1)
	if notes := stamps.UncleanOf(memory.present()[target.VolumeID]); len(notes) > 0 {
		t.Errorf("notes %v", notes)
	}
	equal(t, cinder.KindOf(memory.term(t).ForgetUnclean(t.Context(), claimTarget(2, target.VolumeID), "key-of-n1")), KindNotOurs)
	success(t, memory.term(t).ForgetUnclean(t.Context(), claimTarget(3, "volume-9"), "key-of-n1"))
}

// TestNotesHaveRoom: a long name takes the room of the boot.
func TestNotesHaveRoom(t *testing.T) {
	long := strings.Repeat("n", 253)
	for _, note := range []stamps.Unclean{{Node: "n1", Boot: stamps.BootKey("84c3-1")}, {Node: "n1"}, {Node: long, Boot: stamps.BootKey("84c3-1")}} {
		text := note.String()
		v := cinder.Volume{Metadata: map[string]string{stamps.UncleanPrefix + "k": text, stamps.UncleanPrefix + "other": ""}}
		want := note
		if note.Node == long {
			want.Boot = ""
		}
		if notes := stamps.UncleanOf(v); len(text) > stamps.LongestValue || len(notes) != 1 || notes["k"] != want {
			t.Errorf("%d bytes, notes %v", len(text), notes)
		}
	}
	if stamps.BootKey("") != "" || stamps.BootKey("a b") == stamps.BootKey("a c") || strings.ContainsAny(stamps.BootKey("a b"), " ") {
		t.Error("keys of boots are not told apart")
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
		"the other's":                          {lost: []string{"n2"}, others: []string{"key-of-n2"}, want: []string{"attachment.delete attachment-2", "metadata.update volume-1"}},
		"its own":                              {lost: []string{"n1"}, others: []string{"key-of-n2"}, want: []string{"attachment.delete attachment-2"}},
		"both":                                 {lost: []string{"n1", "n2"}, others: []string{"key-of-n2"}, kind: cinder.KindConflict},
		"the other's, which is not attached":   {lost: []string{"n2"}, want: []string{"attachment.delete attachment-2", "metadata.update volume-1", "attachment.delete attachment-3"}},
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
			err := memory.term(t).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1", Others: test.others})
			equal(t, cinder.KindOf(err), test.kind)
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
		})
	}
}

// TestANoteEndsWithTheDetachment: the node has released the volume, which stayed attached
// to it until then. A note that stayed would name an earlier boot if the node had the
// volume again and were lost again.
func TestANoteEndsWithTheDetachment(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	memory.recordedFor(t, target.VolumeID, "n1")
	memory.fault = failOnce("attachment.delete", refused)
	equal(t, cinder.KindOf(memory.term(t).Unpublish(t.Context(), target, lostWith("n1", "boot-1"))), cinder.KindUnavailable)
	// The node has rebooted. Its note stays, as long as the attachment does.
	success(t, memory.term(t).ForgetUnclean(t.Context(), target, "key-of-n1"))
	memory.forgetLog()
	success(t, memory.term(t).Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1", Unclean: func(context.Context, string, string, stamps.Unclean) (stamps.Unclean, bool, error) {
		return stamps.Unclean{}, false, nil
	}}))
	if changes, want := memory.changes(), []string{"attachment.delete attachment-2", "metadata.update volume-1"}; !slices.Equal(changes, want) {
		t.Errorf("changes %q, want %q", changes, want)
	}
	v := memory.present()[target.VolumeID]
	if notes := stamps.UncleanOf(v); len(notes) > 0 || len(stamps.NodeRecordsOf(v)) > 0 {
		t.Errorf("notes %v, records %v", notes, stamps.NodeRecordsOf(v))
	}
}

// TestANoteEndsWhenItsNodeGetsTheVolumeAgain: the node was lost with the volume, which
// stayed attached to it, and somebody removed the VolumeAttachment's finalizer. The node
// has rebooted, and gets the volume by the next VolumeAttachment. If the note stayed, the
// node's next loss would look like a release, because its boot is another one.
func TestANoteEndsWhenItsNodeGetsTheVolumeAgain(t *testing.T) {
	held := errors.New("the node may write")
	for name, test := range map[string]struct {
		ended []string
		err   error
		notes int
	}{
		"the node has let go of it": {ended: []string{"key-of-n1"}},
		"it may still write to it":  {err: held, notes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			target := claimTarget(1, memory.add(forNodes()))
			_, err := memory.term(t).Publish(t.Context(), target, toNode("n1"))
			success(t, err)
			lost := lostWith("n1", "boot-1")
			stays := UnpublishRequest{Node: "n1", Key: "key-of-n1", Unclean: func(ctx context.Context, node, key string, noted stamps.Unclean) (stamps.Unclean, bool, error) {
				note, unclean, _ := lost.Unclean(ctx, node, key, noted)
				return note, unclean, held
			}}
			if err := memory.term(t).Unpublish(t.Context(), target, stays); !errors.Is(err, held) {
				t.Fatal(err)
			}
			success(t, memory.term(t).ForgetUnclean(t.Context(), target, "key-of-n1"))
			to := toNode("n1")
			to.Admit = func(_ context.Context, notes map[string]stamps.Unclean) ([]string, error) {
				if len(notes) != 1 || notes["key-of-n1"].Node != "n1" {
					t.Errorf("notes %v", notes)
				}
				return test.ended, test.err
			}
			handedOut := false
			to.HandOut = func(context.Context, Published) error {
				handedOut = true
				if notes := stamps.UncleanOf(memory.present()[target.VolumeID]); len(notes) > 0 {
					t.Errorf("the node gets the volume, which has the notes %v", notes)
				}
				return nil
			}
			if _, err = memory.term(t).Publish(t.Context(), target, to); !errors.Is(err, test.err) || handedOut == (test.err != nil) {
				t.Errorf("error %v, handed out: %t", err, handedOut)
			}
			if notes := stamps.UncleanOf(memory.present()[target.VolumeID]); len(notes) != test.notes {
				t.Errorf("notes %v", notes)
			}
		})
	}
}
