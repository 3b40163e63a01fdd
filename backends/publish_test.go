package backends

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
	"github.com/standalone-cinder/standalone-cinder/backends/stamps"
	"github.com/standalone-cinder/standalone-cinder/test/authtest"
)

// forNodes returns claim 1's volume of mode csi, as provisioning leaves it.
func forNodes() cinder.Volume {
	v := mine(1, cinder.StatusAvailable)
	v.Metadata[stamps.KeyMode], v.Metadata[stamps.KeyAttached] = stamps.ModeCSI, "true"
	return v
}

// toNode returns the PublishRequest for a node, which counts what was handed out.
func toNode(name string, handed ...*[]string) PublishRequest {
	return PublishRequest{
		Node: name, Key: "key-of-" + name, Connector: cinder.Connector{Host: stamps.NodeHost(name, "cluster-1"), Initiator: "iqn.2026-01.example:" + name},
		Admit:   func(context.Context) error { return nil },
		Release: func(context.Context, string, string) (bool, error) { return false, nil },
		HandOut: func(_ context.Context, p Published) error {
			for _, list := range handed {
				*list = append(*list, p.AttachmentID)
			}
			return nil
		},
	}
}

// recordedFor gives a volume a completed attachment of a node, as Publish leaves it.
func (m *memoryCinder) recordedFor(t *testing.T, id string, nodes ...string) {
	t.Helper()
	for _, node := range nodes {
		to := toNode(node)
		to.Shared = len(nodes) > 1
		_, err := m.term(t).Publish(t.Context(), claimTarget(1, id), to)
		success(t, err)
	}
	m.forgetLog()
}

// attachedBy makes an attachment that is not the program's.
func (m *memoryCinder) attachedBy(t *testing.T, id string, by cinder.Attachment) {
	t.Helper()
	attachment, _, err := m.client().CreateAttachment(t.Context(), id, cinder.Connector{Host: by.Host}, false)
	success(t, err)
	success(t, m.client().CompleteAttachment(t.Context(), attachment))
	m.mu.Lock()
	defer m.mu.Unlock()
	shown := m.volumes[id].Attachments
	shown[len(shown)-1].ServerID, shown[len(shown)-1].Host = by.ServerID, by.Host
	m.log = nil
}

func TestPublish(t *testing.T) {
	const (
		mark     = "metadata.update volume-1"
		attach   = "attachment.create volume-1"
		complete = "attachment.complete attachment-2"
	)
	unmarked := forNodes()
	delete(unmarked.Metadata, stamps.KeyAttached)
	native := mine(1, cinder.StatusAvailable)
	shared := forNodes()
	shared.MultiAttach = true
	reserved := forNodes()
	reserved.Status = cinder.StatusReserved
	retyping := forNodes()
	retyping.Status = cinder.StatusRetyping
	stranger := forNodes()
	stranger.Metadata[stamps.KeyClaimUID] = "uid-2"
	instance := attachedTo(forNodes(), cinder.Attachment{ID: "a", ServerID: "instance-7"})
	elsewhere := attachedTo(forNodes(), cinder.Attachment{ID: "a", Host: "a-hypervisor"})
	for name, test := range map[string]struct {
		volume  cinder.Volume
		prepare func(*testing.T, *memoryCinder)
		shared  bool
		want    []string // changes
		handed  string
		kind    cinder.Kind
		wantErr string
	}{
		"available":      {volume: forNodes(), want: []string{attach, mark, complete}, handed: "attachment-2"},
		"never recorded": {volume: unmarked, want: []string{mark, attach, mark, complete}, handed: "attachment-2"},
		"attached there already": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n1") },
			handed: "attachment-2"},
		"recorded, and never completed": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.fault = failOnce("attachment.complete", refused)
			_, err := m.term(t).Publish(t.Context(), claimTarget(1, "volume-1"), toNode("n1"))
			equal(t, cinder.KindOf(err), cinder.KindUnavailable)
			m.forgetLog()
		}, want: []string{"attachment.delete attachment-2", attach, mark, "attachment.complete attachment-3"}, handed: "attachment-3"},
		"made, and never recorded": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.fault = failOnce("attachment.create", lost)
			_, err := m.term(t).Publish(t.Context(), claimTarget(1, "volume-1"), toNode("n1"))
			equal(t, cinder.KindOf(err), cinder.KindUnavailable)
			m.forgetLog()
		}, want: []string{"attachment.delete attachment-2", attach, mark, "attachment.complete attachment-3"}, handed: "attachment-3"},
		"the attachment went behind the record": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			success(t, m.client().DeleteAttachment(t.Context(), "attachment-2"))
			m.forgetLog()
		}, want: []string{attach, mark, "attachment.complete attachment-3"}, handed: "attachment-3"},
		"on another node": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n2") }, kind: KindOnOtherNode,
			wantErr: "backend gold: volume volume-1 is attached to node n2, and must be detached there before it can be attached to node n1"},
		"on another node, and not for several": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n2") }, shared: true, kind: KindOnOtherNode,
			wantErr: "backend gold: volume volume-1 is attached to node n2, and must be detached there before it can be attached to node n1; for several nodes at once it needs a volume type with multiattach"},
		"on another node, which asked for it alone": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n2") }, kind: KindOnOtherNode,
			wantErr: "backend gold: volume volume-1 is attached to node n2, and must be detached there before it can be attached to node n1"},
		"on another node, for several": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n2") }, shared: true,
			want: []string{attach, mark, "attachment.complete attachment-3"}, handed: "attachment-3"},
		"made for this node, and its record lost": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			m.loseRecord(t, "volume-1", "n1")
		}, want: []string{mark}, handed: "attachment-2"},
		"made for another node, and its record lost": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n2")
			m.loseRecord(t, "volume-1", "n2")
		}, kind: KindOnOtherNode, wantErr: "backend gold: volume volume-1 is attached to node n2, and must be detached there before it can be attached to node n1"},
		"made for a node that a member is not told, and its record lost": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.member = true
			m.recordedFor(t, "volume-1", "n2")
			m.loseRecord(t, "volume-1", "n2")
		}, kind: KindOnOtherNode, wantErr: "backend gold: volume volume-1 has attachment attachment-2, and no record says which node has it; it is removed when the volume is detached from its node"},
		"another node's record is left": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n2")
			success(t, m.client().DeleteAttachment(t.Context(), "attachment-2"))
			m.forgetLog()
		}, want: []string{"metadata.delete volume-1", attach, mark, "attachment.complete attachment-3"}, handed: "attachment-3"},
		"reserved by another party": {volume: reserved, kind: cinder.KindConflict,
			wantErr: "backend gold: volume volume-1 is reserved without an attachment; another party reserved it, or an OpenStack administrator set its status"},
		"being retyped": {volume: retyping, kind: cinder.KindConflict, wantErr: "backend gold: volume volume-1 is retyping; waiting for that operation to finish"},
		"of mode native": {volume: native, kind: KindNotOurs,
			wantErr: "backend gold: volume volume-1 was not created for a CSI PersistentVolume, so the program does not attach or detach it"},
		"another claim's": {volume: stranger, kind: KindNotOurs,
			wantErr: `backend gold: volume volume-1 is stamped cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-2", expected cluster "cluster-1", PersistentVolume "pvc-uid-1", claim UID "uid-1"; it is not touched`},
		"in use by an instance": {volume: instance, kind: KindInUse,
			wantErr: "backend gold: volume volume-1 is attached elsewhere (instance-7); detach it there first"},
		"in use by a host that is no node": {volume: elsewhere, kind: KindInUse,
			wantErr: "backend gold: volume volume-1 is attached elsewhere (a-hypervisor); detach it there first"},
		"a Cinder without attachments": {volume: forNodes(), prepare: func(_ *testing.T, m *memoryCinder) { m.noAttachments = true }, kind: cinder.KindConfig,
			wantErr: "backend gold: no attachments API"},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(test.volume)
			if test.prepare != nil {
				test.prepare(t, memory)
			}
			var handed []string
			to := toNode("n1", &handed)
			to.Shared = test.shared
			published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), to)
			equal(t, authtest.ErrorText(err), test.wantErr)
			equal(t, cinder.KindOf(err), test.kind)
			equal(t, published.AttachmentID, test.handed)
			equal(t, strings.Join(handed, " "), test.handed)
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
			if err != nil {
				return
			}
			v := memory.present()[id]
			equal(t, v.Status, cinder.StatusInUse)
			equal(t, v.Metadata[stamps.NodeRecordPrefix+"key-of-n1"], test.handed+" n1")
			equal(t, v.Metadata[stamps.KeyAttached], "true")
		})
	}
}

// TestPublishForReading: when the volume is published again, the record says so,
// since Cinder may be too old to.
func TestPublishForReading(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	to := toNode("ro")
	to.ReadOnly = true
	for range 2 {
		published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), to)
		success(t, err)
		equal(t, published.ReadOnly, true)
		to.ReadOnly = false
	}
	equal(t, stamps.NodeRecordsOf(memory.present()[id])["key-of-ro"].Node, "ro")
}

// recordedOfAnother has the first node's record of volume-1 name an attachment of another
// volume, as the metadata of a restored backup does.
func (m *memoryCinder) recordedOfAnother(t *testing.T) {
	t.Helper()
	other := m.add(mine(2, cinder.StatusAvailable))
	id, _, err := m.client().CreateAttachment(t.Context(), other, toNode("n3").Connector, false)
	success(t, err)
	success(t, m.client().UpdateMetadata(t.Context(), "volume-1", map[string]string{stamps.NodeRecordPrefix + "key-of-n1": stamps.NodeRecord{AttachmentID: id, Node: "n1"}.String()}))
	m.forgetLog()
}

// loseRecord empties a node's record, as a late request does.
func (m *memoryCinder) loseRecord(t *testing.T, id, node string) {
	t.Helper()
	success(t, m.client().UpdateMetadata(t.Context(), id, map[string]string{stamps.NodeRecordPrefix + "key-of-" + node: ""}))
	m.forgetLog()
}

// failOnce fails an operation once.
func failOnce(operation string, how mishap) func(string, string) mishap {
	done := false
	return func(called, _ string) mishap {
		if called == operation && !done {
			done = true
			return how
		}
		return noFault
	}
}

// TestPublishNamesTheOtherNode: the error says which node has the volume.
func TestPublishNamesTheOtherNode(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	memory.recordedFor(t, id, "n2")
	_, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1"))
	if !cinder.IsKind(err, KindOnOtherNode) || !strings.Contains(err.Error(), "is attached to node n2, and") {
		t.Errorf("the error is %v", err)
	}
}

// TestANodeKeepsASharedVolumeWhileAnotherOneGetsIt: Cinder shows a volume as attaching as
// long as any of its attachments is incomplete, including one that an interrupted call
// left.
func TestANodeKeepsASharedVolumeWhileAnotherOneGetsIt(t *testing.T) {
	for _, member := range []bool{false, true} {
		memory := newMemoryCinder()
		memory.member = member
		v := forNodes()
		v.MultiAttach = true
		id := memory.add(v)
		memory.recordedFor(t, id, "n1")
		second := toNode("n2")
		second.Shared, second.HandOut = true, func(context.Context, Published) error { return errors.New("no right") }
		_, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), second)
		equal(t, authtest.ErrorText(err), "no right")
		equal(t, memory.present()[id].Status, cinder.StatusAttaching)
		memory.forgetLog()

		first := toNode("n1")
		first.Shared = true
		published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), first)
		success(t, err)
		equal(t, published.AttachmentID, "attachment-2")
		if changes := memory.changes(); len(changes) > 0 {
			t.Errorf("changes %q", changes)
		}
	}
}

// TestANodeThatCannotTakeASharedVolumeKeepsItFromNoOther: its call left an
// incomplete attachment, and Cinder makes no other one beside that.
func TestANodeThatCannotTakeASharedVolumeKeepsItFromNoOther(t *testing.T) {
	memory := newMemoryCinder()
	v := forNodes()
	v.MultiAttach = true
	id := memory.add(v)
	memory.recordedFor(t, id, "n1")
	second, third := toNode("n2"), toNode("n3")
	second.Shared, third.Shared = true, true
	second.HandOut = func(context.Context, Published) error { return errors.New("no right") }
	_, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), second)
	equal(t, authtest.ErrorText(err), "no right")
	memory.forgetLog()

	published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), third)
	success(t, err)
	equal(t, published.AttachmentID, "attachment-4")
	if want := []string{"attachment.delete attachment-3", "metadata.delete volume-1", "attachment.create volume-1", "metadata.update volume-1", "attachment.complete attachment-4"}; !slices.Equal(memory.changes(), want) {
		t.Errorf("changes %q, want %q", memory.changes(), want)
	}
	want := map[string]stamps.NodeRecord{"key-of-n1": {AttachmentID: "attachment-2", Node: "n1"}, "key-of-n3": {AttachmentID: "attachment-4", Node: "n3"}}
	if records := stamps.NodeRecordsOf(memory.present()[id]); !maps.Equal(records, want) {
		t.Errorf("records %v", records)
	}
}

// TestNothingIsCompletedThatCouldNotBeHandedOut: without its credentials, a node
// could not log in.
func TestNothingIsCompletedThatCouldNotBeHandedOut(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	refusal := errors.New("no Secret")
	to := toNode("n1")
	to.HandOut = func(context.Context, Published) error { return refusal }
	_, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), to)
	if !errors.Is(err, refusal) || memory.count("attachment.complete") > 0 {
		t.Errorf("error %v, changes %q", err, memory.changes())
	}
	// The next call makes another one.
	var handed []string
	_, err = memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1", &handed))
	success(t, err)
	equal(t, strings.Join(handed, " "), "attachment-3")
	equal(t, len(memory.open), 1)
}

func TestUnpublish(t *testing.T) {
	const clears = "metadata.delete volume-1"
	shared := forNodes()
	shared.MultiAttach = true
	for name, test := range map[string]struct {
		volume  cinder.Volume
		prepare func(*testing.T, *memoryCinder)
		key     string
		want    []string // changes
		left    []string // nodes with a record
		status  cinder.Status
		kind    cinder.Kind
	}{
		"attached": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n1") },
			key: "key-of-n1", want: []string{"attachment.delete attachment-2", clears}, status: cinder.StatusAvailable},
		"not attached": {volume: forNodes(), key: "key-of-n1", status: cinder.StatusAvailable},
		"on another node": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n2") },
			key: "key-of-n1", left: []string{"n2"}, status: cinder.StatusInUse},
		"on two nodes": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n1", "n2") },
			key: "key-of-n1", want: []string{"attachment.delete attachment-2", clears}, left: []string{"n2"}, status: cinder.StatusInUse},
		"from all": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) { m.recordedFor(t, "volume-1", "n1", "n2") },
			want: []string{"attachment.delete attachment-2", clears, "attachment.delete attachment-3", clears}, status: cinder.StatusAvailable},
		"made, and never recorded": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.fault = failOnce("attachment.create", lost)
			_, _ = m.term(t).Publish(t.Context(), claimTarget(1, "volume-1"), toNode("n1"))
			m.forgetLog()
		}, key: "key-of-n1", want: []string{"attachment.delete attachment-2"}, status: cinder.StatusAvailable},
		"recorded, and never completed": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.fault = failOnce("attachment.complete", refused)
			_, _ = m.term(t).Publish(t.Context(), claimTarget(1, "volume-1"), toNode("n1"))
			m.forgetLog()
		}, key: "key-of-n1", want: []string{"attachment.delete attachment-2", clears}, status: cinder.StatusAvailable},
		"the attachment went behind the record": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			success(t, m.client().DeleteAttachment(t.Context(), "attachment-2"))
			m.forgetLog()
		}, key: "key-of-n1", want: []string{clears}, status: cinder.StatusAvailable},
		"the record names another volume's attachment": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedOfAnother(t)
		}, key: "key-of-n1", want: []string{clears}, status: cinder.StatusAvailable},
		"the record names another volume's attachment, and there is one": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			m.recordedOfAnother(t)
		}, key: "key-of-n1", want: []string{clears, "attachment.delete attachment-2"}, status: cinder.StatusAvailable},
		"from all, and a record names another volume's attachment": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1", "n2")
			m.recordedOfAnother(t)
		}, want: []string{clears, "attachment.delete attachment-3", clears, "attachment.delete attachment-2"}, status: cinder.StatusAvailable},
		"the answer is lost": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			m.fault = failOnce("attachment.delete", refused)
		}, key: "key-of-n1", want: []string{"attachment.delete attachment-2"}, left: []string{"n1"}, status: cinder.StatusInUse, kind: cinder.KindUnavailable},
		"its record is lost": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			m.loseRecord(t, "volume-1", "n1")
		}, key: "key-of-n1", want: []string{"attachment.delete attachment-2"}, status: cinder.StatusAvailable},
		"its record is lost, and a member is not told whose it is": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.member = true
			m.recordedFor(t, "volume-1", "n1")
			m.loseRecord(t, "volume-1", "n1")
		}, key: "key-of-n1", want: []string{"attachment.delete attachment-2"}, status: cinder.StatusAvailable},
		"another node's record is lost": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n2")
			m.loseRecord(t, "volume-1", "n2")
		}, key: "key-of-n1", status: cinder.StatusInUse},
		"of mode native": {volume: mine(1, cinder.StatusInUse), key: "key-of-n1", status: cinder.StatusInUse, kind: KindNotOurs},
		"another host has it": {volume: forNodes(), prepare: func(t *testing.T, m *memoryCinder) { m.attachedBy(t, "volume-1", cinder.Attachment{Host: "rescue"}) },
			key: "key-of-n1", status: cinder.StatusInUse},
		"another host has it, too": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) {
			m.recordedFor(t, "volume-1", "n1")
			m.attachedBy(t, "volume-1", cinder.Attachment{Host: "rescue"})
		}, key: "key-of-n1", want: []string{"attachment.delete attachment-2", clears}, status: cinder.StatusInUse},
		"an instance has it, and a member is told no host": {volume: shared, prepare: func(t *testing.T, m *memoryCinder) {
			m.attachedBy(t, "volume-1", cinder.Attachment{ServerID: "instance"})
		}, key: "key-of-n1", status: cinder.StatusInUse},
	} {
		t.Run(name, func(t *testing.T) {
			memory := newMemoryCinder()
			id := memory.add(test.volume)
			if test.prepare != nil {
				test.prepare(t, memory)
			}
			err := memory.term(t).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: strings.TrimPrefix(test.key, "key-of-"), Key: test.key, Attached: true})
			equal(t, cinder.KindOf(err), test.kind)
			if changes := memory.changes(); !slices.Equal(changes, test.want) {
				t.Errorf("changes %q, want %q", changes, test.want)
			}
			v := memory.present()[id]
			equal(t, v.Status, test.status)
			var left []string
			for _, r := range stamps.NodeRecordsOf(v) {
				left = append(left, r.Node)
			}
			slices.Sort(left)
			if !slices.Equal(left, test.left) {
				t.Errorf("records of %q are left, want %q", left, test.left)
			}
		})
	}
}

// TestUnpublishOfAVolumeThatIsGone: gone counts as detached, but only at the
// volume's place.
func TestUnpublishOfAVolumeThatIsGone(t *testing.T) {
	memory := newMemoryCinder()
	l := memory.term(t)
	success(t, l.Unpublish(t.Context(), claimTarget(1, "volume-9"), UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
	target := claimTarget(1, "volume-9")
	target.Place.Project = "p2"
	equal(t, cinder.KindOf(l.Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1"})), KindElsewhere)
	_, err := l.Publish(t.Context(), claimTarget(1, "volume-9"), toNode("n1"))
	equal(t, authtest.ErrorText(err), "backend gold: volume volume-9 does not exist")
}

// TestPublishAsksForPermission: no request is sent that the caller does not
// permit.
func TestPublishAsksForPermission(t *testing.T) {
	memory := newMemoryCinder()
	target := claimTarget(1, memory.add(forNodes()))
	refusal := errors.New("the PersistentVolume is gone")
	target.Permit = func(context.Context, cinder.Volume) error { return refusal }
	if _, err := memory.term(t).Publish(t.Context(), target, toNode("n1")); !errors.Is(err, refusal) {
		t.Errorf("the error is %v", err)
	}
	if changes := memory.changes(); len(changes) > 0 {
		t.Errorf("changes %q", changes)
	}
}

// TestRemovalOfAPublishedVolume: the removal of a volume of mode csi ends the
// attachments of its nodes, by the attachments API, whatever the workflow is.
func TestRemovalOfAPublishedVolume(t *testing.T) {
	memory := newMemoryCinder()
	v := forNodes()
	v.MultiAttach = true
	id := memory.add(v)
	memory.recordedFor(t, id, "n1", "n2")
	success(t, memory.term(t).Remove(t.Context(), claimTarget(1, id)))
	equal(t, len(memory.present()), 0)
	equal(t, memory.count("attachment.delete"), 2)
	equal(t, memory.count("volume.os-detach"), 0)
}

// TestPublishCrashesAtEveryRequest: whatever happens to one request, and whether the
// leader lives on or another takes over, the next calls end as if nothing had happened:
// with one attachment, which is recorded, or with none.
func TestPublishCrashesAtEveryRequest(t *testing.T) {
	for _, how := range []mishap{refused, lost, unsent, late, twice} {
		for request := range 12 {
			for _, ends := range []string{"published", "unpublished", "published to another node"} {
				t.Run(fmt.Sprintf("mishap %d of request %d, then %s", how, request, ends), func(t *testing.T) {
					memory := newMemoryCinder()
					memory.looks = 0
					id := memory.add(forNodes())
					calls := 0
					memory.fault = func(string, string) mishap {
						if calls++; calls == request+1 {
							return how
						}
						return noFault
					}
					target := claimTarget(1, id)
					_, _ = memory.term(t).Publish(t.Context(), target, toNode("n1"))
					_ = memory.term(t).Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1"})
					_, _ = memory.term(t).Publish(t.Context(), target, toNode("n1"))
					memory.fault = nil
					memory.deliverAll()
					switch ends {
					case "published":
						memory.settlesOn(t, id, "n1")
					case "unpublished":
						success(t, memory.term(t).Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
						memory.settlesOn(t, id)
					case "published to another node":
						success(t, memory.term(t).Unpublish(t.Context(), target, UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
						memory.settlesOn(t, id, "n2")
					}
				})
			}
		}
	}
}

// settlesOn publishes a volume to nodes, and checks that they have it, and no others.
func (m *memoryCinder) settlesOn(t *testing.T, id string, nodes ...string) {
	t.Helper()
	var handed []string
	for _, node := range nodes {
		_, err := m.term(t).Publish(t.Context(), claimTarget(1, id), toNode(node, &handed))
		success(t, err)
	}
	v := m.present()[id]
	equal(t, len(m.attachmentsOf(m.volumes[id])), len(nodes))
	equal(t, len(stamps.NodeRecordsOf(v)), len(nodes))
	for i, node := range nodes {
		equal(t, stamps.NodeRecordsOf(v)["key-of-"+node], stamps.NodeRecord{AttachmentID: handed[i], Node: node})
	}
	if len(nodes) == 0 {
		equal(t, v.Status, cinder.StatusAvailable)
	}
}

// TestALateRecordGivesAVolumeToNoOtherNode: the record of an earlier attempt arrives
// late, and overwrites the record of the attachment that the node has.
func TestALateRecordGivesAVolumeToNoOtherNode(t *testing.T) {
	for _, member := range []bool{false, true} {
		memory := newMemoryCinder()
		memory.member = member
		memory.delay = func() int { return 1000 }
		id := memory.add(forNodes())
		memory.fault = failOnce("metadata.update", late)
		_, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1"))
		equal(t, cinder.KindOf(err), cinder.KindUnavailable)
		published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1"))
		success(t, err)
		memory.deliverAll()
		_, err = memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n2"))
		equal(t, cinder.KindOf(err), KindOnOtherNode)
		if all := memory.attachmentsOf(memory.volumes[id]); len(all) != 1 || all[0].ID != published.AttachmentID {
			t.Errorf("the attachments are %+v, want %s", all, published.AttachmentID)
		}
		success(t, memory.term(t).Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: "n1", Key: "key-of-n1"}))
		memory.settlesOn(t, id, "n2")
	}
}

// TestALateEndOfARecordCostsANodeNothing: where Cinder shows whose an attachment is, the
// node that has it keeps it. The volume is published again after repeated listings, while
// pods use it.
func TestALateEndOfARecordCostsANodeNothing(t *testing.T) {
	memory := newMemoryCinder()
	id := memory.add(forNodes())
	memory.recordedFor(t, id, "n1")
	memory.loseRecord(t, id, "n1")
	var handed []string
	published, err := memory.term(t).Publish(t.Context(), claimTarget(1, id), toNode("n1", &handed))
	success(t, err)
	equal(t, published.AttachmentID, "attachment-2")
	equal(t, strings.Join(handed, " "), "attachment-2")
	if want := []string{"metadata.update volume-1"}; !slices.Equal(memory.changes(), want) {
		t.Errorf("changes %q, want %q", memory.changes(), want)
	}
	equal(t, stamps.NodeRecordsOf(memory.present()[id])["key-of-n1"], stamps.NodeRecord{AttachmentID: "attachment-2", Node: "n1"})
}

// TestPublishThroughFaults: through lost answers and changes of the leader, a volume
// moves from node to node. An attachment that a node was told about stays as it is
// until it is ended, no two nodes have the volume at once, and no other volume is
// touched.
func TestPublishThroughFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.shared = false
		id := w.add(forNodes())
		for range rapid.IntRange(1, 4).Draw(rt, "moves") {
			node := rapid.SampledFrom([]string{"n1", "n2"}).Draw(rt, "node")
			var published Published
			publish := func(l *Lifecycle) (err error) {
				published, err = l.Publish(t.Context(), claimTarget(1, id), toNode(node))
				return err
			}
			if err := w.until(rt, t, "publish", publish); err != nil {
				rt.Fatalf("not published in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
			}
			first := published.AttachmentID
			if rapid.Bool().Draw(rt, "asked again") {
				if err := w.until(rt, t, "publish again", publish); err != nil || published.AttachmentID != first {
					rt.Fatalf("again: attachment %s, then %s, error %v", first, published.AttachmentID, err)
				}
			}
			if all := w.attachmentsOf(w.volumes[id]); len(all) != 1 || all[0].Status != cinder.AttachmentAttached || w.open[first].host != stamps.NodeHost(node, "cluster-1") {
				rt.Fatalf("the attachments are %+v", all)
			}
			key := rapid.SampledFrom([]string{"", "key-of-" + node}).Draw(rt, "key")
			if err := w.until(rt, t, "unpublish", func(l *Lifecycle) error {
				return l.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: strings.TrimPrefix(key, "key-of-"), Key: key})
			}); err != nil {
				rt.Fatalf("not unpublished in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
			}
			v := w.present()[id]
			if len(w.attachmentsOf(w.volumes[id])) > 0 || len(stamps.NodeRecordsOf(v)) > 0 || v.Status != cinder.StatusAvailable {
				rt.Fatalf("after unpublish: %+v\nlog: %s", v, strings.Join(w.log, "\n     "))
			}
		}
		w.check(rt)
	})
}

// TestSharedVolumesThroughFaults: the same for a volume that several nodes have at once.
// What a node was told stays true until the volume is detached from that node, whatever
// becomes of the calls for others.
func TestSharedVolumesThroughFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		w.member = rapid.Bool().Draw(rt, "member")
		v := forNodes()
		v.MultiAttach = true
		id := w.add(v)
		has := map[string]string{} // attachments by node
		check := func(after string) {
			for node, attachment := range has {
				if a, ok := w.open[attachment]; !ok || a.host != stamps.NodeHost(node, "cluster-1") {
					rt.Fatalf("after %s node %s has lost attachment %s\nlog: %s", after, node, attachment, strings.Join(w.log, "\n     "))
				}
			}
		}
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			node := rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(rt, "node")
			to := toNode(node)
			to.Shared = true
			var others []string
			for other := range has {
				if other != node {
					others = append(others, "key-of-"+other)
				}
			}
			step := rapid.SampledFrom([]string{"publish", "cut off", "refused", "unpublish"}).Draw(rt, "step")
			switch step {
			case "publish":
				if err := w.until(rt, t, step, func(l *Lifecycle) error {
					published, err := l.Publish(t.Context(), claimTarget(1, id), to)
					if err == nil {
						if before := has[node]; before != "" && before != published.AttachmentID {
							rt.Fatalf("node %s had attachment %s, and has %s", node, before, published.AttachmentID)
						}
						has[node] = published.AttachmentID
					}
					return err
				}); err != nil {
					rt.Fatalf("not published in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
				}
			case "refused":
				to.HandOut = func(context.Context, Published) error { return errors.New("no right") }
				fallthrough
			case "cut off":
				if published, err := w.term(t).Publish(t.Context(), claimTarget(1, id), to); err == nil {
					has[node] = published.AttachmentID
				}
			case "unpublish":
				delete(has, node)
				if err := w.until(rt, t, step, func(l *Lifecycle) error {
					return l.Unpublish(t.Context(), claimTarget(1, id), UnpublishRequest{Node: node, Key: "key-of-" + node, Others: others})
				}); err != nil {
					rt.Fatalf("not unpublished in the end: %v\nlog: %s", err, strings.Join(w.log, "\n     "))
				}
				if stamps.NodeRecordsOf(w.present()[id])["key-of-"+node].AttachmentID != "" {
					rt.Fatalf("a record of node %s is left", node)
				}
			}
			check(step + " of " + node)
		}
		w.check(rt)
	})
}
