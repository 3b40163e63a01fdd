package backends

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// Unclean is what a volume of mode csi notes about a node from which it was detached
// while the node still used it: the node may still have it mounted, and data to write.
// The note stays until the node is known to have let go.
type Unclean struct {
	// Node is the node's name.
	Node string
	// Boot stands for the boot of the node during which that was; empty if unknown.
	Boot string
}

// BootKey stands for the ID of a node's boot in notes. The node reports the ID itself,
// so what it consists of is not trusted.
func BootKey(id string) string {
	if id == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// String is the note's form in the volume's metadata. The boot is left out if the name
// of the node takes the room.
func (u Unclean) String() string {
	if text := u.Node + " " + u.Boot; u.Boot != "" && len(text) <= longestMetadata {
		return text
	}
	return u.Node
}

// UncleanOf are a volume's notes by the keys of their nodes, without those that were
// emptied.
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

// ForgetUnclean empties a volume's note about a node, unless the node still has the
// volume: the note says since which boot it is to be detached. A volume that is gone has
// none.
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

// Withdrawal is what Unpublish takes a volume from.
type Withdrawal struct {
	// Node is the node's name, and Key stands for it in the volume's metadata. All nodes
	// are meant if both are empty.
	Node, Key string
	// Others are the keys of other nodes that the volume stays attached to.
	Others []string
	// Unclean is asked before an attachment that a node may have is deleted: whether the
	// node still uses the volume, and since which boot. noted is what the volume notes
	// about the node. If the node uses it, that is noted. Its error is returned
	// unchanged, after the note, and nothing is deleted. Nil means that no node is known
	// to use it.
	Unclean func(ctx context.Context, node, key string, noted Unclean) (note Unclean, unclean bool, err error)
}

// noteUnclean notes on a volume that a node still uses it. It reports whether the volume
// has a note about a node that does not: that ends when the node is detached. Of a later
// boot, in which the node may have the volume again, the note would say nothing.
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
