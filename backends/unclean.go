package backends

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Unclean is a note on a volume of mode csi about a node that still used the volume when
// it was to be detached: the node may still have it mounted, and data to write. The note
// stays until the node is known to have released the volume.
type Unclean struct {
	// Node is the node's name.
	Node string
	// Boot identifies the boot of the node at that time; empty if unknown.
	Boot string
}

// BootKey identifies a node's boot in notes. It is a hash of the boot's ID, because the
// node reports the ID and could send anything.
func BootKey(id string) string {
	if id == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// String returns the note as the volume's metadata has it. It omits the boot if the
// node's name leaves no room for it.
func (u Unclean) String() string {
	if text := u.Node + " " + u.Boot; u.Boot != "" && len(text) <= longestMetadata {
		return text
	}
	return u.Node
}

// UncleanOf returns a volume's notes by the keys of their nodes, without those that were
// cleared.
func UncleanOf(v cinder.Volume) map[string]Unclean {
	var notes map[string]Unclean
	for key, value := range v.Metadata {
		if of, found := strings.CutPrefix(key, uncleanPrefix); found && value != "" {
			if notes == nil {
				notes = map[string]Unclean{}
			}
			node, boot, _ := strings.Cut(value, " ")
			notes[of] = Unclean{Node: node, Boot: boot}
		}
	}
	return notes
}

// ForgetUnclean clears a volume's note about a node, unless the volume is still attached
// to the node: then the note says in which boot the node used it. If the volume is gone,
// there is nothing to clear.
func (l *Lifecycle) ForgetUnclean(ctx context.Context, target Target, key string) error {
	release, err := l.lock(ctx, target.key())
	if err != nil {
		return err
	}
	defer release()
	e := l.current()
	v, err := e.ofNodes(ctx, target)
	if err != nil || v.ID == "" || v.Metadata[uncleanPrefix+key] == "" || NodeRecordsOf(v)[key].AttachmentID != "" {
		return err
	}
	err = e.updateMetadata(withPermit(ctx, target.Permit, v), v.ID, map[string]string{uncleanPrefix + key: ""})
	if cinder.IsKind(err, cinder.KindNotFound) {
		return e.goneFromNodes(ctx, target)
	}
	return err
}

// Withdrawal is the request to detach a volume from one node, or from all.
type Withdrawal struct {
	// Node is the node's name, and Key stands for it in the volume's metadata. If both are
	// empty, Unpublish detaches the volume from all nodes.
	Node, Key string
	// Others are the keys of other nodes that the volume stays attached to.
	Others []string
	// Unclean reports whether a node still uses the volume, and since which boot.
	// Unpublish calls it before it deletes an attachment that the node may have. noted is
	// the present note about the node. If the node uses the volume, Unpublish writes the
	// note. If Unclean returns an error, Unpublish then returns it unchanged, and deletes
	// nothing. Nil means that no node is known to use the volume.
	Unclean func(ctx context.Context, node, key string, noted Unclean) (note Unclean, unclean bool, err error)
}

// noteUnclean writes a note on a volume that a node still uses. It reports whether the
// volume has an outdated note, about a node that does not use it: that note is cleared
// when the volume is detached from the node, because it would say nothing about a later
// boot, in which the node may have the volume again.
func (e *endpoint) noteUnclean(ctx context.Context, v cinder.Volume, node, key string, from Withdrawal) (outdated bool, err error) {
	if from.Unclean == nil || key == "" {
		return false, nil
	}
	noted, has := UncleanOf(v)[key]
	note, unclean, err := from.Unclean(ctx, node, key, noted)
	if !unclean || note == noted {
		return has && !unclean && err == nil, err
	}
	if failed := e.updateMetadata(ctx, v.ID, map[string]string{uncleanPrefix + key: note.String()}); failed != nil {
		return false, failed
	}
	return false, err
}
